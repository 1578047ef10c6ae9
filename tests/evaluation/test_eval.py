"""eval.py as users start it, on the embedded model and on given responses."""

import base64
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

import eval as program
from benchmarks.kill_resume import free_port
from minirl.evaluation import benchmarks, hub_rows, responses, running
from minirl.evaluation.folder import versions
from minirl.evaluation.metrics import paired_difference, pass_at_k
from minirl.tiny import make as tiny
from minirl.utils.errors import ConfigError
from minirl.verify.pool.pool import VerifierPool
from tests.conftest import ROOT

DATA = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the folder of real problems")
FILES = ("results.json", "samples.jsonl", "table.md", "table.tex", "pass_at_k.png", "evaluation.json")
SMALL = ["embedded", "--benchmark", "rules", "--limit", "32", "--samples", "4", "--max-sequences", "8"]


def run(*arguments):
    """Exit code of eval.py with these arguments, in this process."""
    return program.main(program.command_line([str(a) for a in arguments]))


def samples(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def results(folder):
    return json.loads((folder / "results.json").read_text())


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def same(a, b):
    return [name for name in FILES if (a / name).read_bytes() != (b / name).read_bytes()] == []


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval") / "one"
    assert run(*SMALL, "--k", 3, "--out", folder) == 0
    return folder


def test_the_folder_holds_what_its_contract_says(one):
    assert {p.name for p in one.iterdir()} == {*FILES, "timing.json"}
    rows = samples(one)
    assert [(r["index"], r["sample"]) for r in rows] == [(i, j) for i in range(32) for j in range(4)]
    assert list(rows[0]) == [
        "model", "benchmark", "problem", "index", "sample", "prompt", "gold", "response", "status", "label", "key", "tokens",
        "finish", "detail",
    ]  # fmt: skip
    found = results(one)
    assert found["seed"] == 0
    assert found["models"]["embedded"]["first_prompts"]["rules"] == rows[0]["prompt"] == "<user>L525=<assistant>"
    assert re.fullmatch("[0-9a-f]{64}", found["models"]["embedded"]["sha256"])
    record = found["benchmarks"]["rules"]
    assert (record["rows"], record["problems"], record["temperature"], record["max_tokens"]) == (512, 32, 1.0, 24)
    assert found["versions"]["torch"]
    assert found["versions"]["code"] == versions()["code"]
    timing = json.loads((one / "timing.json").read_text())["embedded"]["rules"]
    assert (timing["samples"], timing["of"]) == (128, 128)


def test_metrics_are_those_of_the_samples(one):
    rows = samples(one)
    right = np.array([r["status"] == "right" for r in rows]).reshape(32, 4).sum(1)
    entry = results(one)["results"]["embedded"]["rules"]
    assert entry["metrics"]["accuracy"]["mean"] == pytest.approx(right.mean() / 4)
    assert entry["metrics"]["pass@3"]["mean"] == pytest.approx(np.mean([pass_at_k(4, c, 3) for c in right]))
    assert entry["metrics"]["tokens"]["mean"] == pytest.approx(np.mean([r["tokens"] for r in rows]))
    assert [p["right"] for p in entry["problems"]] == right.tolist()
    shown = f"{100 * right.mean() / 4:.1f} ["
    assert shown in (one / "table.md").read_text()
    assert shown in (one / "table.tex").read_text()
    assert (one / "pass_at_k.png").read_bytes().startswith(b"\x89PNG")


def test_the_bar_moves_before_a_sample_is_finished(tmp_path, capsys, monkeypatch):
    assert running.pace(1000, 600, 3, 500, 2.0) == "500 tokens/s, at most 00:02 more"  # 3 * 500 - 400 tokens are left
    monkeypatch.setattr(running, "LOG", 0.0)
    counts = []
    show = running.pace
    monkeypatch.setattr(running, "pace", lambda sampled, *more: counts.append(sampled) or show(sampled, *more))
    options = ["embedded", "--benchmark", "rules", "--limit", 8, "--samples", 2]
    assert run(*options, "--out", tmp_path / "out") == 0
    assert re.search(r" 0/16 .* tokens/s, at most \d\d:\d\d more", capsys.readouterr().err)
    assert counts[-1] == sum(r["tokens"] for r in samples(tmp_path / "out")), "every token is told once"


def test_a_limit_changes_no_sample_and_another_seed_changes_them(one, tmp_path):
    # The seed of a sample comes from its place in the whole data set.
    assert run(*SMALL, "--limit", 8, "--out", tmp_path / "fewer") == 0
    assert [r["response"] for r in samples(tmp_path / "fewer")] == [r["response"] for r in samples(one)][:32]
    assert run(*SMALL, "--seed", 1, "--limit", 8, "--out", tmp_path / "other") == 0
    assert [r["response"] for r in samples(tmp_path / "other")] != [r["response"] for r in samples(one)][:32]


def test_a_response_is_cut_before_the_first_stop_text_as_in_training(one, tmp_path):
    assert run(*SMALL, "--stop", "}", "--stop", "7", "--out", tmp_path / "stop") == 0
    whole = [r["response"] for r in samples(one)]
    cut = samples(tmp_path / "stop")
    assert [r["response"] for r in cut] == [re.split("[}7]", text)[0] for text in whole]
    assert {r["finish"] for r in cut} == {"stop"}
    assert sum("7" in text.split("}")[0] for text in whole) > 10, "else only one of the stop texts was met"
    assert results(tmp_path / "stop")["engine"]["stop"] == ["}", "7"]


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_to_the_same_bytes(one, tmp_path):
    command = [sys.executable, str(ROOT / "eval.py"), *SMALL, "--k", "3", "--out", str(tmp_path / "cut")]
    part = tmp_path / "cut" / "samples.rank0.jsonl"
    for _ in range(6):  # on a busy machine it may be over before it is killed
        shutil.rmtree(tmp_path / "cut", ignore_errors=True)
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (part.is_file() and part.stat().st_size):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if part.is_file() and part.read_bytes().count(b"\n") < 128:
            break
    assert process.returncode == -signal.SIGKILL
    assert 0 < part.read_bytes().count(b"\n") < 128
    with part.open("ab") as file:
        file.write(b'{"model": "embedded", "benchm')  # as a power cut leaves it
    assert run(*SMALL, "--k", 3, "--out", tmp_path / "cut") == 0
    assert same(one, tmp_path / "cut")
    # A repeated command samples nothing and says the same.
    assert run(*SMALL, "--k", 3, "--out", tmp_path / "cut") == 0
    assert same(one, tmp_path / "cut")


@pytest.mark.slow
def test_two_ranks_give_the_bytes_of_one(one, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port()]
    command = [*launcher, str(ROOT / "eval.py"), *SMALL, "--k", "3", "--out", str(tmp_path / "two")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    assert same(one, tmp_path / "two")


# ---- what is refused ---------------------------------------------------------------------------------------------------------


def broken_folder(tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir(exist_ok=True)
    shutil.copy(tiny.FOLDERS["embedded"] / "config.json", folder)
    return folder


def sharded_folder(tmp_path):
    folder = broken_folder(tmp_path)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    return folder


def bare_folder(tmp_path):
    shutil.copytree(tiny.FOLDERS["embedded"], tmp_path / "bare")
    (tmp_path / "bare" / "chat_template.jinja").unlink()
    return tmp_path / "bare"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["embedded", "--benchmark", "aime2052"], "unknown benchmark 'aime2052': there are aime2024, "),
        (["embedded", "--suite", "maths"], "unknown suite 'maths': there are code, math"),
        (["embedded"], "no benchmark is chosen"),
        (["embedded", "--benchmark", "rules", "--skip", "rules"], "no benchmark is chosen"),
        (["embedded", "--benchmark", "rules", "--limit", "0"], "--limit must be at least 1"),
        (["embedded", "--benchmark", "rules", "--k", "17"], "--k 17 is not between 1 and the number of samples (16"),
        (["embedded", "--benchmark", "rules", "--stop", ""], "--stop has an empty text"),
        (["embedded", "--benchmark", "rules", "--k", "0"], "--k must be at least 1, not 0"),
        (["embedded", "--benchmark", "rules", "--max-tokens", "0"], "max_tokens must be at least 1, not 0"),
        (["{bare}", "--benchmark", "rules"], "no chat template (a base model has none): --set chat=false"),
        (["embedded", "--data", "{null}"], "row 3 has no value in 'answer': mend"),
        (["embedded", "--data", "{blank}"], "row 3 has an empty answer"),
        (["embedded", "--data", "{silent}"], "row 2 has an empty problem"),
        (["embedded", "--data", "{null}", "--set", "answer_pattern='('"], "'(' is no regular expression"),
        (["embedded", "--data", "{null}", "--set", "answer_pattern=x"], "'x' has no group"),
        (["embedded", "--benchmark", "rules", "--set", "answer_pattern=(x)"], "answer_pattern needs rows with answers"),
        (["embedded", "--data", "{marked}", "--set", "answer_pattern='# (.+)'"], "row 3: answer_pattern '# (.+)' finds no"),
        (["embedded", "--benchmark", "rules", "--greedy", "--k", "2"], "--k 2 is not between 1 and the number of samples"),
        (["embedded", "--benchmark", "rules", "--set", "metric=pass@8", "--samples", "4"], "needs at least 8 samples"),
        (["embedded", "--benchmark", "rules", "--set", "grade=exact"], "unknown key 'grade'; known are title"),
        (["embedded", "--benchmark", "rules", "--set", "samples=few"], "samples takes a value of type int, not 'few'"),
        (["embedded", "--benchmark", "rules", "--max-tokens", "200"], "exceed the 128 positions of embedded"),
        (["embedded", "embedded", "--benchmark", "rules"], "two models are called"),
        (["--benchmark", "rules"], "name at least one MODEL"),
        (["{broken}", "--benchmark", "rules"], "has no weights"),
        (["{sharded}", "--benchmark", "rules"], "1 of 1 weight files are missing, first model-1.safetensors"),
        (["nowhere/at-all", "--benchmark", "rules"], "cannot load model.path='nowhere/at-all'"),
        (["embedded", "--data", "{columns}"], "row 1 has no 'problem' (it has question, result): name it by columns: {"),
        (["embedded", "--data", "{empty}"], "has no rows"),
        (["embedded", "--data", "rules.jsonl"], "there is no data file rules.jsonl"),
        (["embedded", "--data", "{empty}", "--benchmarks", "{columns}"], "must hold 'benchmarks:'"),
        (["embedded", "--data", "missing.jsonl"], "there is no data file missing.jsonl"),
        (["embedded", "--benchmark", "amc2024"], "no public data set is known for it"),
        (["embedded", "--benchmark", "aime2024"], "rows {problem, answer}) by --data-dir, or leave it out by --skip aime2024"),
        (["embedded", "--benchmark", "rules", "--set", "grader=oracle"], "unknown grader 'oracle'"),
        (["--responses", "{columns}", "--benchmark", "rules"], "it needs a response (text) and the problem"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, sentence, tmp_path, capsys):
    places = {
        "{broken}": broken_folder(tmp_path),
        "{sharded}": None,
        "{bare}": None,
        "{null}": jsonl(tmp_path / "null.jsonl", [{"problem": "q", "answer": "1"}, {"problem": "r", "answer": None}]),
        "{blank}": jsonl(tmp_path / "blank.jsonl", [{"problem": "q", "answer": "1"}, {"problem": "r", "answer": " "}]),
        "{silent}": jsonl(tmp_path / "silent.jsonl", [{"problem": " ", "answer": "1"}]),
        "{marked}": jsonl(tmp_path / "marked.jsonl", [{"problem": "q", "answer": "# 1"}, {"problem": "r", "answer": "2"}]),
        "{columns}": jsonl(tmp_path / "columns.jsonl", [{"question": "1+1", "result": "2"}]),
        "{empty}": jsonl(tmp_path / "empty.jsonl", []),
    }
    for name in ("null", "blank", "silent", "marked"):  # rows count as lines do
        file = tmp_path / f"{name}.jsonl"
        file.write_text("\n" + file.read_text())
    if "{sharded}" in arguments:
        places["{sharded}"] = sharded_folder(tmp_path)
    if "{bare}" in arguments:
        places["{bare}"] = bare_folder(tmp_path)
    arguments = [str(places.get(a, a)) for a in arguments]
    assert run(*arguments, "--out", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert said.startswith("eval.py: ")
    assert said.count("\n") == 1
    assert sentence in said
    assert not (tmp_path / "out").exists()


def test_as_published_is_the_papers_grader_and_one_sample_of_code():
    known = benchmarks.read_records(program.CONFIG)

    def found(*options):
        o = program.command_line(["m", *options])
        chosen = [program.changed(b, o) for b in benchmarks.select(known, ["math", "code"], [], [])]
        return {b.name: (b.verifier.grader, b.sampling.n) for b in chosen if b.name != "gsm8k"}

    ours, theirs = found(), found("--as-published")
    assert [ours[name] for name in ("aime2024", "olympiadbench", "humaneval_plus")] == [
        ("exact", 32),
        ("exact", 1),
        ("exact", 8),
    ]
    assert theirs["aime2024"] == theirs["hmmt_feb_2025"] == ("mathruler", 32)
    assert theirs["olympiadbench"] == ("mathruler", 1)
    code = ("humaneval_plus", "mbpp_plus", "livecodebench_v6", "codeforces")
    assert [theirs[name][1] for name in code] == [1, 1, 8, 8], "pass@8 needs its eight"
    assert found("--as-published", "--set", "grader=exact")["aime2024"] == ("exact", 32), "--set comes last"


def test_a_key_that_as_published_cannot_set_is_found_when_the_record_is_read(tmp_path):
    (tmp_path / "mine.yaml").write_text("benchmarks: {x: {file: x.jsonl, as_published: {grade: mathruler}}}")
    with pytest.raises(ConfigError, match="benchmark x: unknown key 'grade'"):
        benchmarks.read_records(tmp_path / "mine.yaml")


def test_a_changed_data_set_is_noticed(tmp_path, capsys):
    rows = [{"problem": f"12{i}*3=", "answer": str((120 + i) * 3)} for i in range(4)]
    options = ["embedded", "--samples", 2, "--max-tokens", 8, "--set", "template='{problem}'", "--out", tmp_path / "out"]
    data = jsonl(tmp_path / "mine.jsonl", rows)
    assert run(*options, "--data", data) == 0
    assert samples(tmp_path / "out")[0]["prompt"] == "<user>120*3=<assistant>"
    before = (tmp_path / "out" / "samples.jsonl").read_bytes()
    rows[2]["answer"] = "367"
    jsonl(data, rows)
    assert run(*options, "--data", data) == 2
    assert "the data set has changed: benchmarks.mine.sha256" in capsys.readouterr().err
    assert run(*options, "--data", data, "--seed", 1) == 2
    assert (tmp_path / "out" / "samples.jsonl").read_bytes() == before
    # A record that knows its data warns of other texts.
    record = tmp_path / "records.yaml"
    record.write_text(f"benchmarks:\n  mine: {{file: '{data}', rows: 4, sha256: abc, template: '{{problem}}'}}\n")
    loaded = benchmarks.load(benchmarks.read_records(record)["mine"], None, None)
    assert "not the text that the record knows" in loaded.notes[0]
    jsonl(data, rows[:3])
    assert "has 3 rows" in benchmarks.load(benchmarks.read_records(record)["mine"], None, None).notes[0]


def test_a_file_that_is_named_is_read_whatever_lies_in_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "dd").mkdir()
    jsonl(tmp_path / "dd" / "clash.jsonl", [{"problem": "theirs", "answer": "1"}])
    jsonl(tmp_path / "clash.jsonl", [{"problem": "mine", "answer": "2"}])
    monkeypatch.chdir(tmp_path)
    assert benchmarks.load(benchmarks.from_file("clash.jsonl"), tmp_path / "dd", None).problems[0].prompt == "mine"


def one_response_judged_by(folder, body):
    """(file of a verifier with that body, options of an evaluation of one given response by it into folder/out)"""
    reward = folder / "reward.py"
    reward.write_text(f"def judge(problem, response, rollout):\n    {body}\n")
    data = jsonl(folder / "mine.jsonl", [{"problem": "q", "answer": "1"}])
    theirs = jsonl(folder / "theirs.jsonl", [{"index": 0, "response": "x"}])
    return reward, ["--data", data, "--responses", theirs, "--set", f"verifier={reward}:judge", "--out", folder / "out"]


def test_a_changed_verifier_of_the_user_is_noticed(tmp_path, capsys):
    reward, options = one_response_judged_by(tmp_path, "return 1.0")
    assert run(*options) == 0
    assert results(tmp_path / "out")["results"]["theirs"]["mine"]["counts"]["right"] == 1
    reward.write_text("def judge(problem, response, rollout):\n    return 0.0\n")
    assert run(*options) == 2
    assert "benchmarks.mine.verifier_sha256" in capsys.readouterr().err


# ---- given responses ---------------------------------------------------------------------------------------------------------


def test_given_responses_two_models_and_an_error_that_is_no_wrong_answer(tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def judge(problem, response, rollout):\n"
        "    if response == 'broken':\n        raise OSError('no judge today')\n"
        "    return {'status': 'right' if response == problem.answer else 'wrong', 'label': response, 'key': response}\n"
    )
    data = jsonl(tmp_path / "mine.jsonl", [{"id": f"p{i}", "problem": f"q{i}", "answer": str(i)} for i in range(6)])
    said = {"a": ["0", "x", "2", "x", "y", "broken"], "b": ["0", "1", "2", "x", "4", "5"]}
    theirs = jsonl(
        tmp_path / "theirs.jsonl",
        [{"model": m, "problem": f"p{i}", "response": text} for m in "ab" for i, text in enumerate(said[m])],
    )
    options = ["--data", data, "--responses", theirs, "--set", f"verifier={reward}:judge", "--out", tmp_path / "out"]
    assert run(*options) == 0
    found = results(tmp_path / "out")
    a, b = (found["results"][m]["mine"] for m in "ab")
    assert a["counts"] == {"right": 2, "wrong": 3, "errors": 1}
    assert a["metrics"]["accuracy"]["mean"] == pytest.approx(2 / 5), "one of six has no verdict"
    assert a["metrics"]["accuracy"]["problems"] == 5
    assert b["metrics"]["accuracy"]["mean"] == pytest.approx(5 / 6)
    assert a["metrics"]["tokens"]["mean"] is None, "nobody said how long they were"
    table = (tmp_path / "out" / "table.md").read_text()
    assert re.search(r"\| a +\| 40\.0 \[[\d., ]+\] \(5 of 6 problems\) \|", table), "the number behind it is said"
    assert re.search(r"\| a +\| mine +\| 6 x 1 +\| 40\.0 \(5\) ", table)
    (difference,) = found["comparisons"]
    x, y = np.array([1, 0, 1, 0, 0, np.nan]), np.array([1, 1, 1, 0, 1, 1.0])
    assert difference["problems"] == 5, "the same problems for both"
    assert difference["mean"] == pytest.approx(2 / 5)
    assert difference["p"] == pytest.approx(paired_difference([(x, y)], 3)["p"], abs=0.02)
    errors = [row for row in samples(tmp_path / "out") if row["status"] == "error"]
    assert [row["problem"] for row in errors] == ["p5"]
    assert "no judge today" in errors[0]["detail"]
    # Uneven numbers of responses cannot be compared.
    with theirs.open("a") as file:
        file.write(json.dumps({"model": "a", "problem": "p0", "response": "0"}) + "\n")
    assert run(*options[:-1], tmp_path / "uneven") == 2


def test_problems_without_a_response_and_metrics_with_too_few_are_named(tmp_path, capsys):
    data = jsonl(tmp_path / "mine.jsonl", [{"id": f"p{i}", "problem": f"q{i}", "answer": str(i)} for i in range(5)])
    rows = [
        {"problem": p, "response": f"\\boxed{{{x}}}"}
        for p, x in (("p1", 1), ("p1", 7), ("p3", 3), ("p3", 3), ("p4", 0), ("p4", 0))
    ]
    theirs = jsonl(tmp_path / "theirs.jsonl", rows)
    options = ["--data", data, "--responses", theirs, "--set", "metric=pass@8", "--out", tmp_path / "out"]
    assert run(*options, "--k", 9) == 2
    assert "--k 9 is not between 1 and the number of samples (2 samples of mine): give more" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(*options, "--k", 2) == 0
    console = capsys.readouterr().out
    assert "mine: the responses of theirs.jsonl answer 3 of 5 problems; the others count nowhere" in console
    assert "mine: the table shows accuracy: pass@8 needs 8 responses to each problem, not 2" in console
    record, entry = (results(tmp_path / "out")[key] for key in ("benchmarks", "results"))
    assert (record["mine"]["chosen"], record["mine"]["problems"]) == (5, 3)
    assert entry["theirs"]["mine"]["metrics"]["accuracy"]["mean"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    table = (tmp_path / "out" / "table.md").read_text()
    assert re.search(r"\| theirs +\| 50\.0 \[[\d., ]+\] \(3 of 5 problems\) \|", table)
    # With --limit the problems that are left out are those that were asked for to be left out.
    assert run(*options[:-1], tmp_path / "four", "--limit", 4) == 2, "p4 is none of the first four"
    jsonl(theirs, rows[:4])
    assert run(*options[:-1], tmp_path / "four", "--limit", 4) == 0
    assert "(2 of 4 problems)" in (tmp_path / "four" / "table.md").read_text()


def test_gold_answers_that_are_not_checked_are_named(tmp_path, capsys):
    row = {
        "problem": "f(x) is x + 1",
        "tests": "assert f(1) == 2",
        "entry_point": "f",
        "solution": "def f(x):\n    return x + 1",
    }
    data = jsonl(tmp_path / "code.jsonl", [row, row | {"problem": "f(x) is 2", "solution": None}])
    assert run("--check", "--data", data, "--k", 2, "--out", tmp_path / "out") == 2
    assert "(1 samples of code): give more responses to each problem, or leave --k out" in capsys.readouterr().err
    assert run("--check", "--data", data, "--out", tmp_path / "out") == 0
    assert "code: canonical solutions answer 1 of 2 problems; the others count nowhere" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", ["eval.py --help", "eval.py --list", "-m minirl.analysis --help", "-m minirl.analysis judge -h"]
)
def test_a_reader_that_has_gone_is_no_error(command):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run([sys.executable, *command.split()], cwd=ROOT, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("option", [["--samples", 2], ["--max-tokens", 9], ["--greedy"], ["--stop", "x"]])
def test_options_of_sampling_need_a_model(option, tmp_path, capsys):
    assert run("--check", "--benchmark", "rules", *option, "--out", tmp_path / "out") == 2
    assert f"{option[0]} says how a model is sampled, and no MODEL is named" in capsys.readouterr().err


def test_without_a_verdict_the_reason_is_said_and_the_exit_code_is_1(tmp_path, capsys):
    reward, options = one_response_judged_by(tmp_path, "raise OSError('no judge today')")
    assert run(*options) == 1
    said = capsys.readouterr()
    assert "1 samples have no verdict" in said.out
    assert re.search("no response of theirs to mine has a verdict, the first because of .*no judge today", said.err)
    assert (tmp_path / "out" / "pass_at_k.png").read_bytes().startswith(b"\x89PNG")
    # Samples that could be judged are kept and can be judged again.
    reward.write_text("def judge(problem, response, rollout):\n    return 1.0\n")
    options[3], options[-1] = tmp_path / "out" / "samples.jsonl", tmp_path / "again"
    assert run(*options) == 0


def test_a_model_that_is_not_named_again_and_a_damaged_line(tmp_path, capsys):
    data = jsonl(tmp_path / "mine.jsonl", [{"problem": "q", "answer": "1"}])
    answers = [{"index": 0, "response": "\\boxed{1}", "model": model} for model in ("v1.5", "b")]
    both, one = jsonl(tmp_path / "both.jsonl", answers), jsonl(tmp_path / "one.jsonl", answers[1:])
    out = tmp_path / "out"
    assert run("--data", data, "--responses", both, "--out", out) == 0
    assert run("--data", data, "--responses", one, "--out", out) == 2
    assert "was begun with the model 'v1.5' too: name it again" in capsys.readouterr().err
    line = (out / "samples.jsonl").read_text().splitlines()[0]
    (out / "samples.jsonl").write_text(f"{line}\n{line[:50]}\n")
    assert run("--data", data, "--responses", both, "--out", out) == 2
    assert re.search(r"samples\.jsonl, line 2 is damaged \(JSONDecodeError: .*\): remove the line", capsys.readouterr().err)
    (out / "samples.jsonl").write_text(f"{line}\n")
    assert run("--data", data, "--responses", both, "--out", out) == 0
    assert [r["model"] for r in samples(out)] == ["v1.5", "b"]


def test_odd_rows_are_spoken_of_and_named_by_their_place(tmp_path):
    rows = [{"id": None, "problem": "q", "answer": "3"}, {"id": "", "problem": "q ", "answer": "3"},
            {"id": ["l"], "problem": "r", "answer": "what=1+"}]  # fmt: skip
    loaded = benchmarks.load(benchmarks.from_file(str(jsonl(tmp_path / "odd.jsonl", rows))), None, None)
    assert [p.id for p in loaded.problems] == ["1", "2", "3"]
    assert "odd: 1 of 3 problems are repetitions; each counts" in loaded.notes
    assert any("1 of 3 odd problems have a gold answer that only the same text will match: 3:" in note for note in loaded.notes)
    # A pattern that no answer has is said, unless the text is known to be right without it.
    b = benchmarks.record("odd", {"answer_pattern": "#(.+)"}, loaded.benchmark)
    assert any("answer_pattern '#(.+)' is in no answer" in note for note in benchmarks.load(b, None, None).notes)
    known = benchmarks.record("odd", {"sha256": loaded.sha256}, b)
    assert not any("answer_pattern" in note for note in benchmarks.load(known, None, None).notes)


def test_samples_can_be_judged_again(one, tmp_path):
    options = ["--benchmark", "rules", "--responses", one / "samples.jsonl", "--set", "grader=mathruler"]
    assert run(*options, "--out", tmp_path / "again") == 0
    assert [r["status"] for r in samples(tmp_path / "again")] == [r["status"] for r in samples(one)]
    found, before = results(tmp_path / "again"), results(one)
    assert found["benchmarks"]["rules"]["grader"] == "mathruler"
    assert found["results"]["embedded"]["rules"]["counts"] == before["results"]["embedded"]["rules"]["counts"]


@needs_data
def test_gold_answers_of_every_mathematics_benchmark_are_right():
    known = benchmarks.read_records(program.CONFIG)
    loaded = [benchmarks.load(b, DATA, None) for n, b in known.items() if "math" in b.suites and n != "amc2024"]
    every = [note for one in loaded for note in one.notes]
    notes = [note for note in every if "problems have a list as gold answer" not in note]
    assert [note.split()[3] for note in every if note not in notes] == ["hmmt_feb_2025", "olympiadbench", "math500"]
    assert len(notes) == 1
    assert "2 of 675 olympiadbench problems have a gold answer that only the same text will match" in notes[0]
    kept, given = responses.canonical(loaded)
    assert sum(len(one.problems) for one in kept) == 30 * 4 + 40 + 675 + 500 + 1319
    with VerifierPool("math", {"grader": "exact", "answer": "boxed"}) as pool:
        for one in kept:
            answers = given["canonical"][one.benchmark.name]
            verdicts = pool.grade([(p, r.text) for p, r in zip(one.problems, answers, strict=True)])
            assert [p.id for p, v in zip(one.problems, verdicts, strict=True) if v.status != "right"] == []


@needs_data
def test_canonical_programs_are_right_and_a_wrong_one_fails_the_check(tmp_path, capsys):
    code = ["--benchmark", "humaneval", "--benchmark", "humaneval_plus_mini", "--benchmark", "mbpp_plus", "--data-dir", DATA]
    assert run("--check", *code, "--limit", 5, "--out", tmp_path / "right") == 0
    assert [r["status"] for r in samples(tmp_path / "right")] == ["right"] * 15
    row = {"problem": "f(x) is x + 1", "tests": "assert f(1) == 2", "entry_point": "f", "solution": "def f(x):\n    return x"}
    assert run("--check", "--data", jsonl(tmp_path / "code.jsonl", [row]), "--out", tmp_path / "wrong") == 1
    assert "WrongAnswer" in capsys.readouterr().out


# ---- Hub rows ----------------------------------------------------------------------------------------------------------------


def test_livecodebench_rows_become_problems(tmp_path):
    public = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
    private = [{"input": "2 2\n", "output": "4\n", "testtype": "stdin"}]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(private)))).decode()
    row = {
        "question_id": "q1", "question_content": "Add two numbers.", "starter_code": "", "metadata": "{}",
        "public_test_cases": json.dumps(public), "private_test_cases": packed,
    }  # fmt: skip
    jsonl(tmp_path / "livecodebench_v6.jsonl", [row])
    record = benchmarks.read_records(program.CONFIG)["livecodebench_v6"]
    loaded = benchmarks.load(record, tmp_path, None)
    assert loaded.problems[0].id == "q1"
    assert loaded.problems[0].extra_info["tests"] == public + private
    with VerifierPool("code", timeout=10) as pool:
        good, bad = "```python\nprint(sum(map(int, input().split())))\n```", "```python\nprint(3)\n```"
        assert [v.status for v in pool.grade([(loaded.problems[0], good), (loaded.problems[0], bad)])] == ["right", "wrong"]


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("pwned"),)


def test_a_pickle_that_would_run_code_is_refused():
    packed = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    with pytest.raises(program.ConfigError, match="refused"):
        hub_rows.private_tests(packed)
    assert not Path("pwned").exists()


def test_codeforces_rows_that_need_a_checker_or_files_are_left_out():
    row = {
        "id": "1/A", "description": "Double it.", "input_format": "n", "output_format": "2n", "time_limit": 2.0,
        "examples": [{"input": "1", "output": "2"}], "official_tests": [{"input": "2", "output": "4"}],
        "official_tests_complete": True, "input_mode": "stdio", "generated_checker": None,
    }  # fmt: skip
    others = [row | {"input_mode": "file"}, row | {"official_tests_complete": False}, row | {"generated_checker": "code"}]
    (made,) = hub_rows.codeforces([row, *others])
    assert made["tests"] == {"type": "stdin_stdout", "inputs": ["2"], "outputs": ["4"]}
    assert "Example input\n1\nExample output\n2" in made["problem"]
    assert made["timeout"] == 2.0
