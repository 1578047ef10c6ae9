"""Benchmarks as small records, and the problems they name.

A record is one entry of configs/benchmarks.yaml or of a file of the user's: where the rows come from, how a prompt is made of a
row, how to sample, how to verify, which metric the main table shows. Nothing here knows a model.
"""

import hashlib
import json
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from minirl.advantages import option
from minirl.config.command_line import coerce, read_yaml
from minirl.config.options import DataConfig, VerifierConfig, items
from minirl.data.problems import GENERATORS, rows_to_problems, same_problem, same_text, unreadable_answers
from minirl.data.rows import column_value, read_rows
from minirl.evaluation.hub_rows import PREPARE
from minirl.rollout.types import SamplingParams
from minirl.utils.errors import ConfigError, require
from minirl.verify.rewards import reward_file
from minirl.verify.types import Problem

Rows = Sequence[dict[str, Any] | None]  # of a file, None for an empty line
METRIC = re.compile(r"accuracy|(pass|maj)@[1-9]\d*")
# Keys of a record that set an option of training's own data, verifier or sampling section: key -> (section, option).
SHARED = {
    **{key: ("data", key) for key in ("task", "subset", "answer_pattern", "template", "system", "chat", "chat_arguments")},
    **{key: ("verifier", key) for key in ("grader", "answer", "timeout")},
    **{key: ("sampling", key) for key in ("temperature", "top_p", "top_k", "max_tokens")},
    "split": ("data", "test_split"), "verifier": ("verifier", "name"), "samples": ("sampling", "n"),
}  # fmt: skip


@dataclass(frozen=True)
class Benchmark:
    """One record: its own keys, and options of training's sections under the keys of SHARED, with other defaults."""

    name: str
    title: str = option("", "heading of its column in tables; empty: the name")
    suites: list[str] = items([], "suites that it belongs to")
    in_average: bool = option(True, "counts in the average over benchmarks")
    file: str = option("", ".jsonl or .parquet file, looked for in --data-dir first")
    hub: str = option("", "Hub data set, read when there is no file")
    revision: str | None = option(None, "revision of the Hub data set")
    prepare: str = option("", "converter for Hub rows that need more than other column names: livecodebench, codeforces")
    columns: dict[str, Any] = items({}, "other column names, {ours: theirs}; ours: problem, answer, tests, entry_point ...")
    rows: int = option(0, "expected number of rows; 0: unknown")
    sha256: str = option("", "expected hash of the problems (prompts, answers, tests)")
    metric: str = option("accuracy", "metric of the main table: accuracy (mean over samples), pass@K or maj@K")
    as_published: dict[str, Any] = items({}, "keys that --as-published changes, to those of the paper that is compared with")
    # Prompts are never dropped for their length: a benchmark without some of its problems is another one.
    data: DataConfig = field(default_factory=lambda: DataConfig(task="dataset", max_prompt_tokens=10**9))
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(32, 0.7, max_tokens=32768, top_p=0.95, top_k=40))

    @property
    def metric_k(self) -> int:
        """The K of the metric; 1 for accuracy."""
        return int(self.metric.partition("@")[2] or 1)

    def keys(self) -> dict[str, Any]:
        """The record as its flat keys, except the name."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if "help" in f.metadata}
        return own | {key: getattr(getattr(self, section), name) for key, (section, name) in SHARED.items()}


@dataclass(frozen=True)
class Loaded:
    """A benchmark with its problems.

    indices: their positions in the whole data set; sha256, rows: of the whole data set; chosen: how many problems were asked
    for; solutions: a response whose verdict must be right (gold answer or canonical program), None where there is none.
    """

    benchmark: Benchmark
    problems: list[Problem]
    indices: list[int]
    solutions: list[str | None]
    source: str
    sha256: str
    rows: int
    chosen: int
    notes: list[str]

    def wanted(self) -> list[tuple[str, int, int]]:
        """(benchmark, index, sample) of every response that is wanted."""
        return [(self.benchmark.name, i, j) for i in self.indices for j in range(self.benchmark.sampling.n)]

    def record(self) -> dict[str, Any]:
        """All that shapes the result, for results.json."""
        path = reward_file(self.benchmark.verifier.name)
        described = {
            "source": self.source, "rows": self.rows, "sha256": self.sha256, "chosen": self.chosen,
            "problems": len(self.problems),
        }  # fmt: skip
        if path and path.is_file():  # a missing one is the verifier's to report
            described["verifier_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        return {k: v for k, v in self.benchmark.keys().items() if k not in ("file", "suites", "as_published")} | described


def read_records(path: Path) -> dict[str, Benchmark]:
    """The records of a YAML file, by name. Unknown keys and values of the wrong type are a ConfigError."""
    entries = read_yaml(path).get("benchmarks")
    if not isinstance(entries, dict) or not entries:
        raise ConfigError(f"{path} must hold 'benchmarks:' with a record under each name, not {entries!r}")
    made = {str(name): record(str(name), entry) for name, entry in entries.items()}
    for name, b in made.items():
        record(name, b.as_published, b)  # a key that it cannot set is found now
    return made


def record(name: str, entry: Any, base: Benchmark | None = None) -> Benchmark:
    """The Benchmark of flat keys and their values, over those of `base`. ConfigError for an unknown key or a wrong type."""
    base = base or Benchmark(name)
    known = [*base.keys()]
    if not isinstance(entry, dict):
        raise ConfigError(f"benchmark {name}: an entry is a mapping of {', '.join(known)}, not {entry!r}")
    changes: dict[str, dict[str, Any]] = {"": {}, "data": {}, "verifier": {}, "sampling": {}}
    for key, value in entry.items():
        if key not in known:
            raise ConfigError(f"benchmark {name}: unknown key {key!r}; known are {', '.join(known)}")
        section, option_name = SHARED.get(key, ("", key))
        owner = type(getattr(base, section)) if section else Benchmark
        kind = typing.get_type_hints(owner)[option_name]
        changes[section][option_name] = coerce(value, kind, f"benchmark {name}: {key}")
    own = changes.pop("")
    sections = {section: replace(getattr(base, section), **values) for section, values in changes.items()}
    made = replace(base, name=name, **own, **sections)
    check(made)
    return made


def check(b: Benchmark) -> None:
    """ConfigError for the first value that cannot work."""
    d, s, tasks = b.data, b.sampling, (*GENERATORS, "dataset")
    for right, message in (
        (s.n >= 1, f"samples must be at least 1, not {s.n}"),
        (s.temperature >= 0, f"temperature must be at least 0, not {s.temperature}"),
        (s.temperature > 0 or s.n == 1, f"temperature 0 is greedy: samples must be 1, not {s.n}"),
        (0 < s.top_p <= 1, f"top_p must be in (0, 1], not {s.top_p}"),
        (s.top_k >= 0, f"top_k must be at least 0, not {s.top_k}"),
        (s.max_tokens >= 1, f"max_tokens must be at least 1, not {s.max_tokens}"),
        ("{problem}" in d.template, f"template must contain {{problem}}, not just {d.template!r}"),
        (d.task in tasks, f"task is one of {', '.join(tasks)}, not {d.task!r}"),
        (d.task in GENERATORS or b.file or b.hub, "it names no task, file or hub to take problems from"),
        (b.prepare in ("", *PREPARE), f"prepare is one of {', '.join(PREPARE)}, not {b.prepare!r}"),
        (METRIC.fullmatch(b.metric), f"metric is accuracy, pass@K or maj@K, not {b.metric!r}"),
        (b.metric_k <= s.n, f"{b.metric} needs at least {b.metric_k} samples, not {s.n}"),
    ):
        require(bool(right), f"benchmark {b.name}: {message}")
    if d.answer_pattern is not None:
        pattern = f"benchmark {b.name}: answer_pattern {d.answer_pattern!r}"
        answers = d.task not in GENERATORS and b.verifier.name != "code"
        require(answers, f"benchmark {b.name}: answer_pattern needs rows with answers: leave it out")
        try:
            groups = re.compile(d.answer_pattern).groups
        except re.error as error:
            raise ConfigError(f"{pattern} is no regular expression: {error}") from None
        require(groups > 0, f"{pattern} has no group: put ( ) around the answer")


def from_file(file: str) -> Benchmark:
    """A record for a file of the user's, named like the file: code when its first row has tests, else mathematics."""
    path = Path(file).expanduser()
    if path.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"--data {file} must be a .jsonl or .parquet file")
    rows = full(read_rows(str(path), None, ""))
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
    """The problems of `b`, the first `limit` of them. ConfigError, with the remedy, when they cannot be had."""
    notes: list[str] = []
    solutions: list[str | None] = []
    if b.data.task in GENERATORS:
        problems, source = GENERATORS[b.data.task]("test"), f"task {b.data.task}"
        lines = list(range(1, len(problems) + 1))
    else:
        rows, source = rows_of(b, data_dir)
        lines = lines_of(rows)
        problems, solutions = to_problems(rows, b, source)
        problems = with_unique_ids(problems)
    matched = True
    if pattern := b.data.answer_pattern:
        problems, matched = answers_found(problems, pattern, f"benchmark {b.name}: {source}", lines)
    sha256 = digest(problems)
    if not matched and sha256 != b.sha256:
        notes.append(f"{b.name}: answer_pattern {pattern!r} is in no answer of {source}: answers are taken whole")
    if b.rows and len(problems) != b.rows:
        notes.append(
            f"{b.name} has {len(problems)} rows in {source}, {b.rows} are expected: part of it is missing or it has changed"
        )
    elif b.sha256 and sha256 != b.sha256:
        notes.append(f"{b.name} in {source} is not the text that the record knows (sha256 {sha256[:12]}, not {b.sha256[:12]})")
    count = len(problems) if limit is None else min(limit, len(problems))
    if repeated := len(problems) - len({same_problem(p) for p in problems}):
        notes.append(f"{b.name}: {repeated} of {len(problems)} problems are repetitions; each counts")
    if b.verifier.name != "code":
        solutions = [f"\\boxed{{{p.answer}}}" if b.verifier.answer == "boxed" else p.answer for p in problems]
    if b.verifier.name == "math":
        if empty := [number for number, p in zip(lines, problems, strict=True) if not p.answer]:
            raise ConfigError(f"benchmark {b.name}: {source}, row {empty[0]} has an empty answer: mend or remove the row")
        notes += unreadable_answers(problems[:count], b.name)
    return Loaded(b, problems[:count], list(range(count)), solutions[:count], source, sha256, len(problems), count, notes)


def full(rows: Rows) -> list[dict[str, Any]]:
    """The rows without those of empty lines."""
    return [row for row in rows if row is not None]


def lines_of(rows: Rows) -> list[int]:
    """The number of each row in its file, from 1, empty lines counted."""
    return [number for number, row in enumerate(rows, 1) if row is not None]


def rows_of(b: Benchmark, data_dir: Path | None) -> tuple[Rows, str]:
    """(rows, where they were found): a file in `data_dir`, a file, the Hub. None is an empty line: rows count as in a file."""
    for path in ([data_dir / b.file] if data_dir else []) + [Path(b.file).expanduser()]:
        if b.file and path.is_file():
            return prepared(read_rows(str(path), None, ""), b, path.name), path.name
    schema = "{problem, answer}" if b.verifier.name == "math" else "{prompt, tests, entry_point}"
    remedy = f"give a folder that holds {b.file} (rows {schema}) by --data-dir, or leave it out by --skip {b.name}"
    if not b.hub:
        missing = f"{data_dir} has no {b.file}" if data_dir else f"there is no {b.file}"
        raise ConfigError(f"benchmark {b.name}: {missing}, and no public data set is known for it: {remedy}")
    source = f"{b.hub}@{b.revision or 'main'}"
    try:
        rows = read_rows(b.hub, b.data.subset, b.data.test_split, b.revision)
    except ConfigError as error:
        raise ConfigError(f"benchmark {b.name}: {error}; without network, {remedy}") from None
    return prepared(rows, b, source), source


def prepared(rows: Rows, b: Benchmark, source: str) -> Rows:
    """The rows through the converter that the record names in `prepare`, unless they are in our schema already."""
    there = full(rows)
    if not b.prepare or not there or "problem" in there[0] or ("prompt" in there[0] and "tests" in there[0]):
        return rows
    try:
        return PREPARE[b.prepare](there)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"benchmark {b.name}: the rows of {source} are not those of {b.prepare}: {error!r}") from None


ALSO = {"problem": "prompt", "solution": "canonical_solution"}  # names that public data sets use


def our_columns(row: dict[str, Any], number: int, b: Benchmark, source: str) -> dict[str, Any]:
    """A row under our column names, None for what it lacks. ConfigError names a column that is missing or empty."""

    def get(ours: str) -> Any:
        names = [ours, *([ALSO[ours]] if ours in ALSO else [])]
        values = (column_value(row, name) for name in (*names, *(b.columns[n] for n in names if n in b.columns)))
        return next((value for value in values if value is not None), None)

    found = {ours: get(ours) for ours in ("id", "problem", "answer", "tests", "entry_point", "timeout", "solution")}
    where = f"benchmark {b.name}: {source}, row {number}"
    for ours in ("problem", "tests" if b.verifier.name == "code" else "answer"):
        theirs = b.columns.get(ours, ours)
        if found[ours] is None and (held := [name for name in (ours, theirs) if name in row]):
            raise ConfigError(f"{where} has no value in {held[0]!r}: mend or remove the row")
        if found[ours] is None:
            has = ", ".join(map(str, row))
            raise ConfigError(f"{where} has no {theirs!r} (it has {has}): name it by columns: {{{ours}: YOURS}} in a record")
    if not isinstance(found["id"], str | int | float) or not str(found["id"]).strip():
        found["id"] = number
    if isinstance(found["answer"], list):
        found["answer"] = ", ".join(map(str, found["answer"]))
    return found


def to_problems(rows: Rows, b: Benchmark, source: str) -> tuple[list[Problem], list[str | None]]:
    """(problems, their canonical programs where the rows have one) of the rows of a data set. ConfigError names a bad row."""
    code = b.verifier.name == "code"
    columns = [None if row is None else our_columns(row, number, b, source) for number, row in enumerate(rows, 1)]
    problems = rows_to_problems(columns, DataConfig(answer_column="" if code else "answer"), f"benchmark {b.name}: {source}")
    if empty := [number for number, p in zip(lines_of(rows), problems, strict=True) if not same_text(p.prompt)]:
        raise ConfigError(f"benchmark {b.name}: {source}, row {empty[0]} has an empty problem: mend or remove the row")
    if not code:
        return problems, [None] * len(problems)
    solutions: list[str | None] = []
    for i, (p, one, row) in enumerate(zip(problems, full(columns), full(rows), strict=True)):
        extra_info = {"tests": one["tests"], "entry_point": one["entry_point"]}
        problems[i] = replace(p, extra_info=extra_info | ({} if one["timeout"] is None else {"timeout": one["timeout"]}))
        program = one["solution"] if row.get("canonical_passes", True) else None
        if program is not None and one["entry_point"] and f"def {one['entry_point']}" in p.prompt:
            program = p.prompt + program  # the body of the function that the prompt begins
        solutions.append(None if program is None else f"```python\n{program}\n```")
    return problems, solutions


def answers_found(problems: Sequence[Problem], pattern: str, where: str, lines: Sequence[int]) -> tuple[list[Problem], bool]:
    """(problems whose answers are the pattern's first group, True), or the problems as they are and False where no answer has
    the pattern, as in rows that hold plain answers. lines: row numbers. ConfigError where only some have it."""
    found = [re.search(pattern, p.answer) for p in problems]
    answers = [match.group(1) if match else None for match in found]
    if not any(found):
        return list(problems), False
    if None in answers:
        number = answers.index(None)
        raise ConfigError(
            f"{where}, row {lines[number]}: answer_pattern {pattern!r} finds no answer in {problems[number].answer[-80:]!r}, "
            "and finds one in other rows: change the pattern or mend the row"
        )
    return [replace(p, answer=(a or "").strip()) for p, a in zip(problems, answers, strict=True)], True


def with_unique_ids(problems: Iterable[Problem]) -> list[Problem]:
    """The problems, a repeated id made unique by its position."""
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
