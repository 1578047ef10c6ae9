"""Do two wrong responses go wrong at the same point: an LLM judges pairs of one class and pairs of two classes.

Any endpoint that speaks OpenAI's chat completions will do. Judgements are cached on disk as they come; what cannot be judged
is counted and kept with its reason.
"""

import argparse
import hashlib
import json
import os
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from math import ceil
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minirl.analysis.ngrams import within_between
from minirl.analysis.output import CONTRAST_HEAD, Table, contrast, contrast_cells, scatter
from minirl.analysis.samples import Problems, Row, rows_with, without_prose
from minirl.evaluation.report import markdown
from minirl.utils.console import say
from minirl.utils.errors import ConfigError

PROMPT = """Two attempts at the same problem are given; both end in a wrong answer.

Find in each the first step that is wrong, and say what kind of mistake it is. Then decide whether both attempts go wrong for
the same reason: the same faulty step, assumption or misreading, however it is worded. Equal final answers alone
are no evidence.

<problem>
{problem}
</problem>

<attempt_1>
{first}
</attempt_1>

<attempt_2>
{second}
</attempt_2>

Explain in a few sentences. End with exactly one line, `VERDICT: SAME` or `VERDICT: DIFFERENT`."""
# The question as the paper asks it (arXiv 2605.17333): problem, right answer, two responses, "same error root", JSON.
PAPER_PROMPT = """A mathematics problem, its right answer, and two solutions A and B that end in wrong answers are given.

Problem:
{problem}

Right answer: {gold}

Solution A:
{first}

Solution B:
{second}

Locate the mistake from which each solution goes astray, and compare the two: is it the same error root, that is, the same
faulty idea, step or misreading, though it may be worded otherwise or lead to other numbers?

Answer with a JSON object only: {{"reason": "one or two sentences", "same_error_root": true or false}}"""
PROMPTS = {"ours": PROMPT, "paper": PAPER_PROMPT}
VERDICT = re.compile(r"verdict\W{0,10}(same|different)\b|same_error_root\W{0,5}(true|false)\b", re.IGNORECASE)
FAILURES_IN_A_ROW = 10  # then the endpoint is taken to be broken
NO_COMPLETION = "garbage: not a chat completion"
UNREACHABLE = ("ConnectError", "ConnectTimeout", "UnsupportedProtocol")  # errors of httpx
TRANSIENT = (408, 409, 429)  # and everything from 500: what the client tries again


@dataclass(frozen=True)
class Pair:
    """Two wrong responses to one problem, and whether they are of one class."""

    model: str
    problem: str
    within: bool
    prompt: str
    tokens: int  # of the prompt, estimated
    cut: bool


@dataclass(frozen=True)
class Judgement:
    """same: None without a verdict, for the `reason`. usage: tokens that the endpoint counted, of a new answer."""

    same: bool | None
    text: str
    reason: str = ""
    usage: Mapping[str, Any] | None = None


class Unanswered(Exception):
    """A request that failed at every try; the message says how."""


def verdict(text: str) -> bool | None:
    """True for SAME or "same_error_root": true, False for the contrary, by the last in an answer; None where there is none."""
    found = VERDICT.findall(text)
    return "".join(found[-1]).lower() in ("same", "true") if found else None


def draw_pairs(models: Mapping[str, Problems], per_problem: int, longest: int, seed: int, form: str) -> Iterator[Pair]:
    """The pairs of each problem that has some of one class and some of two; which of a pair comes first is by seed.

    form "ours": up to `per_problem` pairs of one class and as many of two, chosen by seed. "paper": all pairs of one class,
    and of two classes the pairs of one response each, the first.
    """
    for model, problems in models.items():
        for key, attempts in problems.items():
            pairs = {
                within: [p for p in combinations(attempts.wrong, 2) if (p[0]["label"] == p[1]["label"]) == within]
                for within in (True, False)
            }
            if not all(pairs.values()):
                continue
            rng = random.Random(f"{seed}/{model}/{key}")
            if form == "paper":
                first_of = {row["label"]: row for row in reversed(attempts.wrong)}
                pairs[False] = list(combinations(first_of.values(), 2))
            else:
                pairs = {within: rng.sample(some, min(per_problem, len(some))) for within, some in pairs.items()}
            for within, some in pairs.items():
                for pair in some:
                    yield as_pair(model, attempts.name, within, rng.sample(pair, 2), longest, form)


def as_pair(model: str, problem: str, within: bool, rows: list[Row], longest: int, form: str) -> Pair:
    """The request for two responses. Its tokens: those that the sampler counted for whole responses, a quarter of the
    characters for everything else."""
    texts = [shortened(row["response"], longest) for row in rows]
    prompt = PROMPTS[form].format(problem=rows[0]["prompt"], gold=rows[0]["gold"], first=texts[0], second=texts[1])
    rest = len(prompt) - sum(map(len, texts))
    tokens = ceil(rest / 4)
    for row, text in zip(rows, texts, strict=True):
        whole = text is row["response"] and row["tokens"] is not None
        tokens += row["tokens"] if whole else ceil(len(text) / 4)
    return Pair(model, problem, within, prompt, tokens, any(t is not r["response"] for t, r in zip(texts, rows, strict=True)))


def shortened(text: str, longest: int) -> str:
    """The text itself, or its beginning and its end where it is longer than `longest` characters."""
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]}\n[... {len(text) - longest // 2 * 2} characters left out ...]\n{text[-(longest // 2) :]}"


class Endpoint:
    """Chat completions through the openai client, which tries again on 408, 409, 429, 5xx, timeouts and broken connections.

    Answers with a verdict are kept in `cache`, a JSONL file, and never asked for again.
    """

    def __init__(
        self, url: str, model: str, key: str, cache: Path, timeout: float, retries: int, body: Mapping[str, Any]
    ) -> None:
        try:
            from openai import DefaultHttpxClient, OpenAI
        except ImportError:
            raise ConfigError("the judge needs the openai package: pip install 'minirl-llm[judge]'") from None
        self.url, self.retries = f"{url.rstrip('/')}/chat/completions", retries
        # A redirect is not followed: the key would go to whatever host the answer names, and that host's answer would count.
        self.plain = DefaultHttpxClient(follow_redirects=False)
        self.client = OpenAI(base_url=url, api_key=key or "none", timeout=timeout, max_retries=retries, http_client=self.plain)
        whole = {"model": model, "temperature": 0, "max_tokens": 1024, **body}
        self.body = {name: value for name, value in whole.items() if value is not None}
        self.cache, self.lock = cache, threading.Lock()
        self.known: dict[str, str] = {}
        if cache.is_file():
            content = cache.read_bytes()
            cache.write_bytes(content[: content.rfind(b"\n") + 1])  # a line that an interruption cut is taken off
            self.known = {row["request"]: row["text"] for row in rows_with(cache, ("request", "text"))}

    def check_reachable(self) -> None:
        """ConfigError when nothing listens there: said at once, since the client would try again for half a minute."""
        try:
            self.plain.head(self.url, timeout=5.0)
        except Exception as error:  # noqa: BLE001 - of httpx or its successor, by the client's version
            if type(error).__name__ in UNREACHABLE:
                raise ConfigError(f"{self.url} cannot be reached: {error}; is the server up, and --endpoint right?") from None
            # Something is there; how it answers, the questions show.

    def request(self, prompt: str) -> tuple[str, dict[str, Any]]:
        """(name in the cache, body) of a prompt."""
        body = self.body | {"messages": [{"role": "user", "content": prompt}]}
        return hashlib.sha256(self.url.encode() + json.dumps(body, sort_keys=True).encode()).hexdigest(), body

    def judge(self, pair: Pair) -> Judgement:
        """The judgement of a pair. ConfigError when the endpoint cannot be used at all."""
        name, body = self.request(pair.prompt)
        if name in self.known:
            return Judgement(verdict(self.known[name]), self.known[name])
        try:
            answer = self.post(body)
        except Unanswered as error:
            return Judgement(None, "", f"failed: {error}")
        try:
            choice = json.loads(answer)["choices"][0]
            text = choice["message"]["content"]
            usage = json.loads(answer).get("usage")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Judgement(None, answer.decode(errors="replace")[:2000], NO_COMPLETION)
        if not isinstance(usage, dict):
            usage = None
        if not isinstance(text, str) or not text.strip():
            return Judgement(None, "", "garbage: an empty answer", usage)
        text = text.encode(errors="replace").decode()  # half of a surrogate pair cannot be written to a file
        if verdict(text) is None:
            cut = ", cut at its length limit" * (choice.get("finish_reason") == "length")
            return Judgement(None, text, f"garbage: no verdict{cut}", usage)
        with self.lock, self.cache.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"request": name, "text": text}, ensure_ascii=False) + "\n")
            self.known[name] = text
        return Judgement(verdict(text), text, usage=usage)

    def post(self, body: dict[str, Any]) -> bytes:
        """The answer's body. Unanswered when all tries fail; ConfigError for an endpoint that can be of no use."""
        import openai

        messages, model = body["messages"], body["model"]
        more = {name: value for name, value in body.items() if name not in ("messages", "model")}
        try:
            answer = self.client.chat.completions.with_raw_response.create(messages=messages, model=model, extra_body=more)
            return answer.http_response.content
        except openai.APIStatusError as error:
            code, where = error.status_code, error.response.headers.get("Location")
            if code in TRANSIENT or code >= 500:
                last = f"HTTP {code}"
            elif 300 <= code < 400:
                raise ConfigError(
                    f"{self.url} answers {code} and points to {where!r}, which is not followed, because the key would go there "
                    "too: if you trust that address, name it by --endpoint"
                ) from None
            else:
                hint = "; the key comes from the environment, see --key-variable" if code in (401, 403) else ""
                raise ConfigError(f"{self.url} answers {code}: {error.response.text[:300]}{hint}") from None
        except openai.APITimeoutError:
            last = "timeout"
        except openai.APIConnectionError as error:
            cause = type(error.__cause__).__name__  # of httpx or its successor, by the client's version
            if cause in UNREACHABLE:
                raise ConfigError(f"{self.url} cannot be reached: {error.__cause__}") from None
            last = f"broken connection ({cause})"
        raise Unanswered(f"{last}, {self.retries + 1} tries")


def judge_pairs(endpoint: Endpoint, pairs: list[Pair], workers: int) -> list[Judgement]:
    """Judgements in the order of the pairs. ConfigError when requests fail one after the other: the endpoint is broken."""
    found: list[Judgement] = []
    failed = 0
    pool = ThreadPoolExecutor(workers)
    try:
        for judgement in tqdm(pool.map(endpoint.judge, pairs), total=len(pairs), unit="pair", leave=False, disable=None):
            found.append(judgement)
            failed = failed + 1 if judgement.reason.startswith(("failed", NO_COMPLETION)) else 0
            if failed >= FAILURES_IN_A_ROW:
                raise ConfigError(
                    f"{failed} requests in a row without a usable answer ({judgement.reason}); what was judged is in "
                    f"{endpoint.cache}"
                )
    finally:
        pool.shutdown(cancel_futures=True)
    return found


def run(o: argparse.Namespace, models: Mapping[str, Problems]) -> dict[str, Any] | None:
    """The result; None after --dry-run, which prints the cost."""
    if not o.endpoint:
        raise ConfigError("the judge needs --endpoint URL (or OPENAI_BASE_URL), such as http://localhost:8000/v1")
    if min(o.pairs, o.workers, o.max_chars) < 1 or o.retries < 0 or not isinstance(o.request, dict):
        raise ConfigError("--pairs, --workers and --max-chars are at least 1, --retries at least 0, --request is a JSON object")
    pairs = list(draw_pairs(models, o.pairs, o.max_chars, o.seed, o.prompt))
    if not pairs:
        raise ConfigError("no problem has two wrong responses of one class and two of different ones: sample more responses")
    cache = o.out / "judge_cache.jsonl"
    # No key is fine for a server of one's own; another one answers 401.
    endpoint = Endpoint(o.endpoint, o.judge, os.environ.get(o.key_variable, ""), cache, o.timeout, o.retries, o.request)
    unreadable = without_prose(models, "which step they go wrong at")
    if o.dry_run:
        for sentence in unreadable:
            say(f"{sentence}\n")
        say(markdown(cost_table(endpoint, pairs)))
        return None
    if any(endpoint.request(pair.prompt)[0] not in endpoint.known for pair in pairs):
        endpoint.check_reachable()
    cache.parent.mkdir(parents=True, exist_ok=True)
    described = {"judge": o.judge, "endpoint": endpoint.url, "prompt": o.prompt, "unreadable": unreadable}
    return {**described, **analyse(pairs, judge_pairs(endpoint, pairs, o.workers), o.seed)}


def cost_table(endpoint: Endpoint, pairs: list[Pair]) -> Table:
    """What a run would ask for, in tokens."""
    requests = {endpoint.request(pair.prompt)[0]: pair for pair in pairs}  # equal texts are asked once
    new = [pair for name, pair in requests.items() if name not in endpoint.known]
    limit = endpoint.body.get("max_tokens") or endpoint.body.get("max_completion_tokens")
    return [
        ["different pairs", "in the cache", "requests", "prompt tokens (estimate)", "answer tokens (at most)"],
        [str(len(requests)), str(len(requests) - len(new)), str(len(new)), f"{sum(p.tokens for p in new):,}",
         f"{limit * len(new):,}" if limit else "no limit"],
    ]  # fmt: skip


def analyse(pairs: list[Pair], judgements: list[Judgement], seed: int) -> dict[str, Any]:
    """{model: contrast of the share judged SAME}; reasons and counts of what has no verdict; tokens used."""
    result: dict[str, Any] = {"models": {}, "problems": {}, "unjudged": {}}
    result |= {"pairs": len(pairs), "cut": sum(p.cut for p in pairs)}
    for model in dict.fromkeys(pair.model for pair in pairs):
        mine = [(p, j) for p, j in zip(pairs, judgements, strict=True) if p.model == model]
        rows: list[dict[str, Any]] = []
        for problem in dict.fromkeys(p.problem for p, _ in mine):
            values = [
                ("a", "a" if p.within else "b", float(j.same)) for p, j in mine if p.problem == problem and j.same is not None
            ]
            if means := within_between(values):
                rows.append({"problem": problem, **means})
        result["models"][model] = contrast(rows, seed) if rows else None
        result["problems"][model] = rows
        result["unjudged"][model] = dict(Counter(j.reason for _, j in mine if j.same is None))
    used = [j.usage for j in judgements if j.usage]
    names = ("prompt_tokens", "completion_tokens")
    result["usage"] = {name: sum(u[name] for u in used if isinstance(u.get(name), int)) for name in names}
    result["judgements"] = [
        {"model": p.model, "problem": p.problem, "within": p.within, "same": j.same, "reason": j.reason, "answer": j.text}
        for p, j in zip(pairs, judgements, strict=True)
    ]
    if not any(result["models"].values()):
        lacking = "; ".join(f"{n} x {reason}" for n, reason in reasons(result))
        example = next((j.text for j in judgements if j.text), "")[:200]
        raise ConfigError(
            f"no problem has verdicts on pairs of one class and of two, so there is no result ({lacking}; {example!r})"
        )
    return result


def reasons(result: Mapping[str, Any]) -> list[tuple[int, str]]:
    """(count, reason) of what has no verdict, over all models."""
    total: Counter[str] = Counter()
    for counts in result["unjudged"].values():
        total.update(counts)
    return [(n, reason) for reason, n in total.most_common()]


def tables(result: Mapping[str, Any]) -> list[str | Table]:
    """A row for each model, and what was not judged."""
    table: Table = [["model", *CONTRAST_HEAD]]
    for model, found in result["models"].items():
        table.append([model, *(contrast_cells(found) if found else ["0", *["–"] * 6])])
    unjudged = sum(n for n, _ in reasons(result))
    usage = result["usage"]
    return [
        *result["unreadable"],
        f"Share of pairs of wrong responses that {result['judge']} judged to go wrong for the same reason: mean over pairs, "
        "then over problems with verdicts on pairs of both sorts; 95% bootstrap intervals over problems, sign-flip p.",
        table,
        *[f"{model}: {above_the_diagonal(found)}." for model, found in result["models"].items() if found],
        f"{result['pairs']} pairs, {unjudged} without a verdict and left out"
        + "".join(f"; {n} x {reason}" for n, reason in reasons(result))
        + f". {result['cut']} pairs had a response shortened. New requests used {usage['prompt_tokens']:,} prompt and "
        f"{usage['completion_tokens']:,} answer tokens.",
    ]


def above_the_diagonal(found: Mapping[str, Any]) -> str:
    """'94.0% of 50 problems above the diagonal': where more pairs of one class than of two are judged the same."""
    return f"{100 * found['above']['mean']:.1f}% of {found['problems']} problems above the diagonal"


def draw(result: Mapping[str, Any], plt: Any) -> Any:
    """The figure. plt: matplotlib.pyplot."""
    shown = {model: rows for model, rows in result["problems"].items() if rows}
    figure, axes = plt.subplots(1, len(shown), figsize=(4.6 * len(shown), 4.8), layout="constrained", squeeze=False)
    for axis, (model, rows) in zip(axes.flat, shown.items(), strict=True):
        scatter(axis, rows, f"{model}: {above_the_diagonal(result['models'][model])}", "share judged the same")
    return figure
