import json
import re
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import pytest

from minirl.analysis import judge
from minirl.analysis.__main__ import main
from minirl.analysis.judge import shortened, verdict

from .evaluations import rows, write


class Server(ThreadingHTTPServer):
    """Speaks chat completions. Judges SAME when both attempts name the same fruit; `script` overrides single requests."""

    daemon_threads = True
    block_on_close = False

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.always, self.seen, self.lock = [], None, [], threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.seen.append((self.path, self.headers.get("Authorization"), body))
            act = self.server.script.pop(0) if self.server.script else self.server.always
        prompt = body["messages"][0]["content"]
        fruits = [a.split("</attempt")[0].split()[-1] for a in prompt.split("<attempt_")[1:]]
        text = f"Both add wrongly.\nVERDICT: {'SAME' if len(set(fruits)) == 1 else 'DIFFERENT'}"
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}
        status, headers, answer = 200, {}, {"choices": [choice], "usage": usage}
        if act == "slow":
            time.sleep(1.0)
        elif act == "drop":
            self.close_connection = True
            return
        elif isinstance(act, tuple):
            status, headers = act[0], {"Location": act[1]}
        elif isinstance(act, int):
            status, headers, answer = act, {"Retry-After": "0"}, {"error": {"message": f"error {act}"}}
        elif isinstance(act, str):
            choice["message"]["content"] = act
        elif act is not None:
            answer = act
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        try:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client stopped waiting, which is what some tests are about

    def do_GET(self):
        """What urllib makes of a redirected POST: it counts as seen, and the answer is a verdict."""
        with self.server.lock:
            self.server.seen.append((self.path, self.headers.get("Authorization"), None))
        data = json.dumps({"choices": [{"message": {"content": "VERDICT: SAME"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextmanager
def serving():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    with serving() as server:
        yield server


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("same_host", [True, False])
def test_a_redirect_gets_neither_the_key_nor_belief(status, same_host, ask, server, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with serving() as other:
        target = f"{(server if same_host else other).url}/elsewhere"
        server.script, server.always = [429], (status, target)
        assert ask()[0] == 2
        assert {path for path, *_ in server.seen} == {"/v1/chat/completions"}
        assert other.seen == []
    err = capsys.readouterr().err
    assert f"answers {status} and points to '{target}', which is not followed" in err
    assert "secret" not in err
    assert not (tmp_path / "out" / "judge_cache.jsonl").exists()


# Two problems, each with two pairs of one class and four of two classes. In the first, the fruit follows the class; in the
# second one pair of one class has different fruits, and two of the four pairs of two classes have the same.
TEXTS = [["1 apple", "2 apple", "3 pear", "4 pear"], ["5 apple", "6 apple", "7 apple", "8 pear"]]


@pytest.fixture
def samples(tmp_path):
    return write(tmp_path / "e", rows("m", [list("aabb"), list("aabb"), ["right"] * 4], responses=[*TEXTS, ["x"] * 4]))


@pytest.fixture
def ask(server, samples, tmp_path):
    """Runs the command on the samples with more options; returns (exit code, result or None)."""

    def ask(*options):
        (tmp_path / "out" / "judge.json").unlink(missing_ok=True)
        common = [
            "--endpoint",
            server.url,
            "--judge",
            "judge-1",
            "--pairs",
            "9",
            "--workers",
            "1",
            "--out",
            str(tmp_path / "out"),
        ]
        code = main(["judge", samples, *common, *options])
        path = tmp_path / "out" / "judge.json"
        return code, json.loads(path.read_text()) if path.exists() else None

    return ask


def test_shares_counted_by_hand_and_the_request(ask, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    code, found = ask()
    assert code == 0
    by_problem = {row["problem"]: (row["within"], row["between"]) for row in found["problems"]["m"]}
    assert by_problem == {"tests p0": (1, 0), "tests p1": (0.5, 0.5)}
    summary = found["models"]["m"]
    assert (summary["within"]["mean"], summary["between"]["mean"], summary["above"]["mean"], summary["equal"]) == (
        0.75,
        0.25,
        0.5,
        0.5,
    )
    assert found["usage"] == {"prompt_tokens": 1200, "completion_tokens": 84}
    assert len(server.seen) == found["pairs"] == 12
    path, key, body = server.seen[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer sk-test")
    assert body.keys() == {"model", "messages", "temperature", "max_tokens"}
    assert "question 0" in body["messages"][0]["content"]


def test_the_papers_question_has_the_right_answer_and_wants_json_of_all_pairs_of_a_class(ask, server, samples, tmp_path):
    yes, no = ('```json\n{"reason": "r", "same_error_root": ' + word + "}\n```" for word in ("true", "false"))
    # classes a a a b and a a b b: three and two pairs within, one across each
    write(tmp_path / "e", rows("m", [list("aaab"), list("aabb")], responses=TEXTS))
    server.script = [yes, yes, no, yes, yes, yes, no]
    code, found = ask("--prompt", "paper", "--pairs", "1")
    assert (code, found["pairs"], found["prompt"]) == (0, 3 + 1 + 2 + 1, "paper")
    by_problem = {row["problem"]: (row["within"], row["between"]) for row in found["problems"]["m"]}
    assert by_problem == {"tests p0": (pytest.approx(2 / 3), 1), "tests p1": (1, 0)}
    prompts = [body["messages"][0]["content"] for _, _, body in server.seen]
    assert all("same_error_root" in p and "question" in p and "VERDICT" not in p for p in prompts)
    assert ["g0" in p for p in prompts] == [True] * 4 + [False] * 3
    across = prompts[3], prompts[6]
    assert all(text in across[0] for text in ("1 apple", "4 pear")), "the first response of each class"
    assert all(text in across[1] for text in ("5 apple", "7 apple"))


def test_the_share_above_the_diagonal_is_said(ask, capsys):
    assert ask()[0] == 0
    assert "m: 50.0% of 2 problems above the diagonal." in capsys.readouterr().out


def test_what_was_judged_is_never_asked_again(ask, server, tmp_path):
    assert ask()[0] == 0
    with (tmp_path / "out" / "judge_cache.jsonl").open("a") as file:
        file.write('{"request": "cut by an interr')
    first = len(server.seen)
    code, found = ask("--workers", "4")
    assert (code, len(server.seen), found["usage"]["prompt_tokens"]) == (0, first, 0)
    assert found["models"]["m"]["within"]["mean"] == 0.75
    assert ask("--request", '{"max_tokens": null, "max_completion_tokens": 9}')[0] == 0
    assert len(server.seen) == 2 * first, "another request is another question"
    assert server.seen[-1][2].keys() == {"model", "messages", "temperature", "max_completion_tokens"}
    assert ask()[0] == 0, "the cache can be read after all that"
    assert len(server.seen) == 2 * first


def test_a_dry_run_asks_nothing_and_prints_the_cost(ask, server, tmp_path, capsys):
    assert ask("--dry-run") == (0, None)
    assert server.seen == []
    assert not (tmp_path / "out").exists()
    cells = [cell.strip() for cell in capsys.readouterr().out.strip().splitlines()[-1].strip("|").split("|")]
    assert cells[:3] == ["12", "0", "12"]
    # a response has 10 tokens (its "tokens"), all else a quarter of its characters: the prompt and the question
    fixed = len(judge.PROMPT.format(problem="question 0", first="", second=""))
    assert int(cells[3].replace(",", "")) == 12 * (20 + -(-fixed // 4))
    assert cells[4] == f"{12 * 1024:,}"
    server.script = ["no idea", *[None] * 99]
    ask()
    ask("--dry-run")
    assert [c.strip() for c in capsys.readouterr().out.strip().splitlines()[-1].strip("|").split("|")][:3] == ["12", "11", "1"]


def test_429_500_a_timeout_and_a_dropped_connection_are_tried_again(ask, server, capsys):
    server.script = [429, 500, "slow", "drop", 503, None]
    code, found = ask("--timeout", "0.3")
    assert (code, found["unjudged"]["m"]) == (0, {})
    assert len(server.seen) == 12 + 5
    assert len({json.dumps(body) for _, _, body in server.seen[:6]}) == 1, "the same request each time"


def test_retry_after_is_obeyed(server, tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(openai._base_client.time, "sleep", waits.append)
    endpoint = judge.Endpoint(server.url, "m", "", tmp_path / "c", 1.0, 2, {})
    monkeypatch.setattr(Handler, "send_header", lambda self, name, value: BaseHTTPRequestHandler.send_header(
        self, name, "7" if name == "Retry-After" else value))  # fmt: skip
    server.script = [429]
    endpoint.post(endpoint.request("<attempt_1>a</attempt><attempt_2>b</attempt>")[1])
    assert waits == [7.0]


def test_garbage_is_counted_by_its_reason_and_asked_again_next_time(ask, server):
    one_kind = [None, None]  # the two pairs of one class come first
    server.script = [
        *one_kind, b"<html>proxy</html>", {"choices": []}, "", None,
        *one_kind, {"choices": [{"message": None}]}, "They look alike to me.", [1],
        {"choices": [{"message": {"content": "so long"}, "finish_reason": "length"}]},
    ]  # fmt: skip
    code, found = ask()
    assert (code, found["models"]["m"]["problems"]) == (0, 1), "the second problem has no verdict on pairs of two classes"
    assert found["unjudged"]["m"] == {
        "garbage: not a chat completion": 4, "garbage: an empty answer": 1, "garbage: no verdict": 1,
        "garbage: no verdict, cut at its length limit": 1,
    }  # fmt: skip
    assert ask()[1]["models"]["m"]["problems"] == 2
    asked = Counter(json.dumps(body) for _, _, body in server.seen)
    assert Counter(asked.values()) == {1: 5, 2: 7}, "only what had no verdict"


def test_a_little_garbage_is_left_out_and_reported(ask, server, capsys):
    server.script = [None, None, "hm", b"\xff", *[None] * 99]  # pairs 3 and 4 of six are of two classes
    code, found = ask()
    assert code == 0
    assert found["unjudged"]["m"] == {"garbage: no verdict": 1, "garbage: not a chat completion": 1}
    assert [j["answer"] for j in found["judgements"] if j["same"] is None] == ["hm", "\ufffd"]
    assert "12 pairs, 2 without a verdict and left out" in capsys.readouterr().out


def test_odd_usage_and_half_a_character_do_not_end_what_is_paid_for(ask, server):
    message = {"content": "\ud83d VERDICT: SAME"}
    server.script = [{"choices": [{"message": message}], "usage": usage} for usage in (7, ["x"], None)]
    code, found = ask()
    assert (code, found["unjudged"]["m"]) == (0, {})
    assert [j["answer"] for j in found["judgements"]][:3] == ["? VERDICT: SAME"] * 3
    assert found["usage"]["prompt_tokens"] == 9 * 100, "of the answers that say it"
    assert ask()[1]["usage"]["prompt_tokens"] == 0, "all of it was kept"


def test_an_error_whose_text_breaks_off_is_tried_again(server, tmp_path, monkeypatch):
    endpoint = judge.Endpoint(server.url, "m", "", tmp_path / "c", 1.0, 2, {})
    send = BaseHTTPRequestHandler.send_header
    monkeypatch.setattr(Handler, "send_header", lambda self, name, value: send(
        self, *(("Transfer-Encoding", "chunked") if name == "Content-Length" else (name, value))))  # fmt: skip
    monkeypatch.setattr(Handler, "protocol_version", "HTTP/1.1")
    server.always = 503  # its text is no chunk, so reading it fails
    with pytest.raises(judge.Unanswered, match="3 tries"):
        endpoint.post(endpoint.request("<attempt_1>a</attempt><attempt_2>b</attempt>")[1])


@pytest.mark.parametrize(
    ("always", "message"),
    [
        ("yes", "12 x garbage: no verdict; 'yes'"),
        (401, r"answers 401: .*--key-variable"),
        (404, "answers 404"),
        (500, r"10 requests in a row without a usable answer \(failed: HTTP 500, 2 tries\)"),
        ("slow", r"10 requests in a row without a usable answer \(failed: timeout, 2 tries\)"),
        (b"<html>", r"10 requests in a row without a usable answer \(garbage: not a chat completion\)"),
    ],
)
def test_an_endpoint_that_is_of_no_use_ends_with_exit_code_2(always, message, ask, server, capsys):
    server.always = always
    assert ask("--retries", "1", "--timeout", "0.05")[0] == 2
    assert re.search(message, capsys.readouterr().err)


def test_an_endpoint_that_is_not_there(samples, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(openai._base_client.time, "sleep", lambda seconds: pytest.fail("it is tried again"))
    for more, message in (
        (["--endpoint", f"http://127.0.0.1:{port}/v1"], "cannot be reached"),
        (["--endpoint", "localhost"], "cannot be reached"),
        ([], "needs --endpoint URL"),
    ):
        assert main(["judge", samples, "--judge", "m", "--out", str(tmp_path / "out"), *more]) == 2
        assert message in capsys.readouterr().err


def test_the_last_verdict_of_an_answer_counts():
    assert verdict("VERDICT: SAME") is True
    assert verdict("I would say VERDICT: SAME, but no.\n**Verdict:** `different`") is False
    assert verdict("the same") is None
    assert verdict("VERDICT: SAMEISH") is None
    assert verdict('{"same_error_root": true, "reason": "..."}') is True
    assert verdict('{"same_error_root" : False}') is False
    assert verdict('{"same_error_root": null}') is None


def test_long_responses_keep_their_beginning_and_end():
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefgh", 4) == "ab\n[... 4 characters left out ...]\ngh"
