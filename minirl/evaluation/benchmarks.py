"""Benchmarks as small records, and the problems they name.

A record is one entry of configs/benchmarks.yaml or of a file of the user's: where the rows come from, how a prompt is made of a
row, how to sample, how to judge, which metric stands in the table. Nothing here knows a model.
"""

import hashlib
import json
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from minirl.advantages import option
from minirl.config.command_line import coerce, read_yaml
from minirl.config.options import DataConfig, items
from minirl.data.messages import read_prompt
from minirl.data.problems import GENERATORS, same_problem, unreadable_answers
from minirl.data.rows import column_value, read_rows, text_of
from minirl.evaluation.hub_rows import PREPARE
from minirl.utils.errors import ConfigError
from minirl.verify.rewards import reward_file
from minirl.verify.types import Problem

METRIC = re.compile(r"accuracy|(pass|maj)@[1-9]\d*")


@dataclass(frozen=True)
class Benchmark:
    """One record. `columns` says under which other name a row may hold problem, answer, tests, entry_point, id or solution."""

    name: str
    title: str = option("", "head of its column in tables; the name when empty")
    suites: list[str] = items([], "suites that it belongs to")
    in_average: bool = option(True, "counts in the average of a row of the table")
    task: str = option("", "generator of minirl/tasks to take the problems from")
    file: str = option("", ".jsonl or .parquet file, looked for in --data-dir first; rows as in docs/evaluation.md")
    hub: str = option("", "Hub data set, used when no file is there")
    revision: str | None = option(None, "its revision")
    subset: str | None = option(None, "its configuration name")
    split: str = option("test", "its split")
    prepare: str = option("", "how its rows become problems, where columns alone do not say it: livecodebench, codeforces")
    columns: dict[str, Any] = items({}, "name in our schema: name in the rows")
    answer_pattern: str | None = option(None, "regular expression; its first group is the answer, in all rows or in none")
    rows: int = option(0, "how many rows are known to be right; 0: unknown")
    sha256: str = option("", "known hash of the problems (prompts, answers, tests)")
    template: str = option("{problem}", "the user's message")
    system: str | None = option(None, "system message before it")
    chat: bool = option(True, "wrap the message in the tokenizer's chat template")
    chat_arguments: dict[str, Any] = items({}, "arguments of the chat template")
    samples: int = option(32, "responses to each problem")
    temperature: float = option(0.7, "0 is greedy")
    top_p: float = option(0.95, "nucleus sampling; 1 is off")
    top_k: int = option(40, "0 is off")
    max_tokens: int = option(32768, "a response is cut there")
    metric: str = option("accuracy", "what the table shows: accuracy (mean over samples), pass@K or maj@K")
    verifier: str = option("math", "math, code, or file.py:function")
    grader: str = option("exact", "verifier=math: exact, mathruler or math_verify")
    answer: str = option("boxed", "verifier=math: boxed or whole")
    timeout: float = option(5.0, "seconds to verify one response, where its tests name no limit")

    def __post_init__(self) -> None:
        for wrong, message in (
            (self.samples < 1, f"samples must be at least 1, not {self.samples}"),
            (self.temperature < 0, f"temperature must be at least 0, not {self.temperature}"),
            (self.temperature == 0 and self.samples > 1, f"temperature 0 is greedy: samples must be 1, not {self.samples}"),
            (not 0 < self.top_p <= 1, f"top_p must be in (0, 1], not {self.top_p}"),
            (self.top_k < 0, f"top_k must be at least 0, not {self.top_k}"),
            (self.max_tokens < 1, f"max_tokens must be at least 1, not {self.max_tokens}"),
            ("{problem}" not in self.template, f"template must contain {{problem}}, not just {self.template!r}"),
            (not (self.task or self.file or self.hub), "it names no task, file or hub to take problems from"),
            (bool(self.task) and self.task not in GENERATORS, f"task is one of {', '.join(GENERATORS)}, not {self.task!r}"),
            (self.prepare not in ("", *PREPARE), f"prepare is one of {', '.join(PREPARE)}, not {self.prepare!r}"),
            (not METRIC.fullmatch(self.metric), f"metric is accuracy, pass@K or maj@K, not {self.metric!r}"),
            (self.metric_k > self.samples, f"{self.metric} needs at least {self.metric_k} samples, not {self.samples}"),
        ):  # fmt: skip
            if wrong:
                raise ConfigError(f"benchmark {self.name}: {message}")
        if self.answer_pattern is not None:
            if self.task or self.verifier == "code":
                raise ConfigError(f"benchmark {self.name}: answer_pattern needs rows with answers: leave it out")
            try:
                groups = re.compile(self.answer_pattern).groups
            except re.error as error:
                raise ConfigError(
                    f"benchmark {self.name}: answer_pattern {self.answer_pattern!r} is no regular expression: {error}"
                ) from None
            if not groups:
                raise ConfigError(
                    f"benchmark {self.name}: answer_pattern {self.answer_pattern!r} has no group: put ( ) around the answer"
                )

    @property
    def metric_k(self) -> int:
        """The K of the metric; 1 for accuracy."""
        return int(self.metric.partition("@")[2] or 1)

    def data_config(self) -> DataConfig:
        """How prompts are made, for `encode_prompts`. Nothing is dropped for its length."""
        return DataConfig(
            template=self.template, system=self.system, chat=self.chat, chat_arguments=self.chat_arguments,
            max_prompt_tokens=10**9,
        )  # fmt: skip

    def pool(self) -> tuple[str, dict[str, Any]]:
        """The name and the options that VerifierPool takes."""
        if self.verifier == "math":
            return self.verifier, {"grader": self.grader, "answer": self.answer}
        return self.verifier, {"timeout": self.timeout} if self.verifier == "code" else {}


@dataclass(frozen=True)
class Loaded:
    """A benchmark with its problems. indices: their places in the whole data set; sha256, rows: of the whole data set;
    solutions: a response that must be judged right (gold answer or canonical program), None where there is none."""

    benchmark: Benchmark
    problems: list[Problem]
    indices: list[int]
    solutions: list[str | None]
    source: str
    sha256: str
    rows: int
    notes: list[str]

    def wanted(self) -> list[tuple[str, int, int]]:
        """(benchmark, index, sample) of every response that is wanted."""
        return [(self.benchmark.name, i, j) for i in self.indices for j in range(self.benchmark.samples)]

    def record(self) -> dict[str, Any]:
        """All that shapes the result, for results.json."""
        described = {"source": self.source, "rows": self.rows, "sha256": self.sha256, "problems": len(self.problems)}
        path = reward_file(self.benchmark.verifier)
        if path and path.is_file():  # a missing one is the verifier's to report
            described["verifier_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        return {k: v for k, v in asdict(self.benchmark).items() if k not in ("rows", "sha256", "file", "suites")} | described


def read_records(path: Path) -> dict[str, Benchmark]:
    """The records of a YAML file, by name. Unknown keys and values of the wrong kind are a ConfigError."""
    entries = read_yaml(path).get("benchmarks")
    if not isinstance(entries, dict) or not entries:
        raise ConfigError(f"{path} must hold 'benchmarks:' with a record under each name, not {entries!r}")
    return {str(name): record(str(name), entry) for name, entry in entries.items()}


def record(name: str, entry: Any, base: Benchmark | None = None) -> Benchmark:
    """The Benchmark of plain values, over those of `base`."""
    hints = typing.get_type_hints(Benchmark)
    known = [f.name for f in fields(Benchmark) if f.name != "name"]
    if not isinstance(entry, dict):
        raise ConfigError(f"benchmark {name}: an entry is a mapping of {', '.join(known)}, not {entry!r}")
    if unknown := [key for key in entry if key not in known]:
        raise ConfigError(f"benchmark {name}: unknown key {unknown[0]!r}; known are {', '.join(known)}")
    values = {key: coerce(value, hints[key], f"benchmark {name}: {key}") for key, value in entry.items()}
    return Benchmark(**({"name": name} | (vars(base) if base else {}) | values))


def from_file(file: str) -> Benchmark:
    """A record for a file of the user's, called like it: code when its first row has tests, else mathematics."""
    path = Path(file).expanduser()
    if path.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"--data {file} must be a .jsonl or .parquet file")
    rows = full_rows(str(path))
    if not rows:
        raise ConfigError(f"--data {file} has no rows")
    code = {"verifier": "code", "timeout": 15.0, "template": PROGRAM} if "tests" in rows[0] else {"template": BOXED}
    return record(path.stem, {"file": str(path.resolve()), **code})  # absolute: --data-dir may hold one of the same name


BOXED = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{}."
PROGRAM = "{problem}\n\nAnswer with a Python program in one ```python block."


def select(
    records: Mapping[str, Benchmark], suites: Sequence[str], names: Sequence[str], skip: Sequence[str]
) -> list[Benchmark]:
    """The benchmarks of `suites`, then `names`, without `skip`. ConfigError, with what there is, for an unknown one."""
    there = sorted({suite for b in records.values() for suite in b.suites})
    for suite in suites:
        if suite not in there:
            raise ConfigError(f"unknown suite {suite!r}: there are {', '.join(there)}")
    for name in (*names, *skip):
        if name not in records:
            raise ConfigError(f"unknown benchmark {name!r}: there are {', '.join(records)}; or give --data, --benchmarks")
    chosen = [name for name, b in records.items() if set(suites) & set(b.suites)] + list(names)
    return [records[name] for name in dict.fromkeys(chosen) if name not in skip]


def load(b: Benchmark, data_dir: Path | None, limit: int | None) -> Loaded:
    """The problems of `b`, the first `limit` of them; what to do is said when they cannot be had."""
    notes: list[str] = []
    solutions: list[str | None] = []
    if b.task:
        problems, source = GENERATORS[b.task]("test"), f"task {b.task}"
    else:
        rows, source = rows_of(b, data_dir)
        if not rows:
            raise ConfigError(f"benchmark {b.name}: {source} has no rows")
        pairs = [to_problem(row, number, b, source) for number, row in enumerate(rows, 1)]
        problems, solutions = with_unique_ids([p for p, _ in pairs]), [s for _, s in pairs]
    matched = True
    if b.answer_pattern:
        problems, matched = answers_found(problems, b.answer_pattern, f"benchmark {b.name}: {source}")
    sha256 = digest(problems)
    if not matched and sha256 != b.sha256:
        notes.append(f"{b.name}: answer_pattern {b.answer_pattern!r} is in no answer of {source}: answers are taken whole")
    if b.rows and len(problems) != b.rows:
        notes.append(
            f"{b.name} has {len(problems)} rows in {source}, {b.rows} are known: part of it is missing or it has changed"
        )
    elif b.sha256 and sha256 != b.sha256:
        notes.append(f"{b.name} in {source} is not the text that the record knows (sha256 {sha256[:12]}, not {b.sha256[:12]})")
    count = len(problems) if limit is None else min(limit, len(problems))
    if repeated := len(problems) - len({same_problem(p) for p in problems}):
        notes.append(f"{b.name}: {repeated} of {len(problems)} problems are repetitions; each counts")
    if b.verifier != "code":
        solutions = [f"\\boxed{{{p.answer}}}" if b.answer == "boxed" else p.answer for p in problems]
    if b.verifier == "math":
        if empty := [number for number, p in enumerate(problems, 1) if not p.answer]:
            raise ConfigError(f"benchmark {b.name}: {source}, row {empty[0]} has an empty answer: mend or remove the row")
        notes += unreadable_answers(problems[:count], b.name)
    return Loaded(b, problems[:count], list(range(count)), solutions[:count], source, sha256, len(problems), notes)


def full_rows(source: str, subset: str | None = None, split: str = "", revision: str | None = None) -> list[dict[str, Any]]:
    """The rows of a source, without a file's empty lines."""
    return [row for row in read_rows(source, subset, split, revision) if row is not None]


def rows_of(b: Benchmark, data_dir: Path | None) -> tuple[list[dict[str, Any]], str]:
    """(rows, where they were found): a file in `data_dir`, a file, the Hub."""
    for path in ([data_dir / b.file] if data_dir else []) + [Path(b.file).expanduser()]:
        if b.file and path.is_file():
            return prepared(full_rows(str(path)), b, path.name), path.name
    schema = "{problem, answer}" if b.verifier == "math" else "{prompt, tests, entry_point}"
    remedy = f"give a folder that holds {b.file} (rows {schema}) by --data-dir, or leave it out by --skip {b.name}"
    if not b.hub:
        place = f"{data_dir} has no {b.file}" if data_dir else f"there is no {b.file}"
        raise ConfigError(f"benchmark {b.name}: {place}, and no public data set is known for it: {remedy}")
    source = f"{b.hub}@{b.revision or 'main'}"
    try:
        rows = full_rows(b.hub, b.subset, b.split, b.revision)
    except ConfigError as error:
        raise ConfigError(f"benchmark {b.name}: {error}; without network, {remedy}") from None
    return prepared(rows, b, source), source


def prepared(rows: list[dict[str, Any]], b: Benchmark, source: str) -> list[dict[str, Any]]:
    """The rows in our schema, where the record says that they need more than other names."""
    if not b.prepare or not rows or "problem" in rows[0] or ("prompt" in rows[0] and "tests" in rows[0]):
        return rows
    try:
        return PREPARE[b.prepare](rows)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"benchmark {b.name}: the rows of {source} are not those of {b.prepare}: {error!r}") from None


def to_problem(row: dict[str, Any], number: int, b: Benchmark, source: str) -> tuple[Problem, str | None]:
    """(problem, canonical program or None) of a row. ConfigError names a column that is missing."""

    def get(*names: str) -> Any:
        for name in (*names, *(b.columns[n] for n in names if n in b.columns)):
            if (value := column_value(row, name)) is not None:
                return value
        return None

    def need(what: str, value: Any) -> Any:
        if value is None:
            wanted = b.columns.get(what, what)
            if held := [name for name in (what, wanted) if name in row]:
                raise ConfigError(
                    f"benchmark {b.name}: {source}, row {number} has no value in {held[0]!r}: mend or remove the row"
                )
            raise ConfigError(
                f"benchmark {b.name}: {source}, row {number} has no {wanted!r} (it has {', '.join(map(str, row))}): name it by "
                f"columns: {{{what}: YOURS}} in a record"
            )
        return value

    prompt, messages = read_prompt(need("problem", get("problem", "prompt")), "problem", source, number)
    if not prompt.strip():
        raise ConfigError(f"benchmark {b.name}: {source}, row {number} has an empty problem: mend or remove the row")
    name = get("id")
    name = str(name) if isinstance(name, str | int | float) and str(name).strip() else str(number)
    if b.verifier == "code":
        extra_info = {"tests": need("tests", get("tests")), "entry_point": get("entry_point")}
        if (seconds := get("timeout")) is not None:
            extra_info["timeout"] = seconds
        solution = get("solution", "canonical_solution") if row.get("canonical_passes", True) else None
        if solution is not None and extra_info["entry_point"] and f"def {extra_info['entry_point']}" in prompt:
            solution = prompt + solution  # the body of the function that the prompt begins
        return Problem(name, prompt, "", extra_info, messages), None if solution is None else f"```python\n{solution}\n```"
    answer = need("answer", get("answer"))
    if isinstance(answer, list):
        answer = ", ".join(map(str, answer))
    answer = text_of(answer, "answer", source, number)
    return Problem(name, prompt, answer.strip(), messages=messages), None


def answers_found(problems: Sequence[Problem], pattern: str, where: str) -> tuple[list[Problem], bool]:
    """(problems whose answers are the pattern's first group, True), or the problems as they are and False where no answer has
    the pattern, as in rows that hold plain answers. ConfigError where only some have it."""
    found = [re.search(pattern, p.answer) for p in problems]
    answers = [match.group(1) if match else None for match in found]
    if not any(found):
        return list(problems), False
    if None in answers:
        number = answers.index(None)
        raise ConfigError(
            f"{where}, row {number + 1}: answer_pattern {pattern!r} finds no answer in {problems[number].answer[-80:]!r}, and "
            "finds one in other rows: change the pattern or mend the row"
        )
    return [replace(p, answer=(a or "").strip()) for p, a in zip(problems, answers, strict=True)], True


def with_unique_ids(problems: Iterable[Problem]) -> list[Problem]:
    """The problems, a repeated id made unique by its place."""
    seen: set[str] = set()
    unique = []
    for number, p in enumerate(problems):
        name = f"{p.id}#{number}" if p.id in seen else p.id
        seen.add(name)
        unique.append(replace(p, id=name))
    return unique


def digest(problems: Sequence[Problem]) -> str:
    """A hash of all that a result depends on: prompts, answers, tests, in their order; not ids."""
    whole = hashlib.sha256()
    for p in problems:
        whole.update(json.dumps([p.prompt, p.answer, p.extra_info, *p.messages], sort_keys=True, default=str).encode() + b"\n")
    return whole.hexdigest()
