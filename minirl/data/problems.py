"""Problems from a generator, a function of the user, a file or the Hub: training and held-out sets that share none."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minirl.advantages import place_of
from minirl.config.options import DataConfig
from minirl.data import arithmetic, fewshot, rules
from minirl.data.messages import read_prompt
from minirl.data.rows import column_value, read_rows, text_of
from minirl.utils.errors import ConfigError
from minirl.verify.rewards import load_function
from minirl.verify.types import Problem, VerifierError

GENERATORS = {"arithmetic": arithmetic.problems, "fewshot": fewshot.problems, "rules": rules.problems}


def load_problems(config: DataConfig) -> tuple[list[Problem], list[Problem], list[str]]:
    """(train, test, notes to print). Needs neither model nor tokenizer, so that bad data ends a run at once."""
    notes: list[str] = []
    if config.task != "dataset":
        train, test = (generated(config, split, notes) for split in ("train", "test"))
        held_out = {same_problem(p) for p in test}
        if shared := [p.id for p in train if same_problem(p) in held_out]:
            raise ConfigError(f"data.task={config.task} has {len(shared)} problems in both splits, such as {shared[0]!r}")
        return train, test, notes

    def read(source: str, split: str) -> list[Problem]:
        return distinct(rows_to_problems(read_rows(source, config.subset, split), config, source), notes)

    rest = read(config.train, config.train_split)
    if config.test:
        test = read(config.test, config.test_split)
    else:
        size = config.test_size or max(1, min(128, len(rest) // 10))
        if len(rest) <= size:
            raise ConfigError(f"{config.train} has {len(rest)} problems, too few to hold out data.test_size={size}: lower it")
        # By digest, so that shuffling or adding rows changes the split as little as possible.
        test = sorted(rest, key=digest)[:size]
    held_out = {same_problem(p) for p in test}
    train = [p for p in rest if same_problem(p) not in held_out]
    if config.test and len(train) < len(rest):
        notes.append(f"{len(rest) - len(train)} training problems that the test set has too were dropped")
    if not train:
        raise ConfigError(f"{config.train}: the test set has every training problem, none is left to train on")
    # By digest, since evaluations take the first n problems and a file may be sorted by difficulty.
    return train, sorted(test, key=digest), notes


def generated(config: DataConfig, split: str, notes: list[str]) -> list[Problem]:
    """The problems of a split, "train" or "test", of a generated task or of the user's own (file.py:function)."""
    if config.task in GENERATORS:
        return GENERATORS[config.task](split)
    try:
        made = list(load_function(config.task)(split))
    except VerifierError as error:
        raise ConfigError(f"data.task={config.task}: {error}") from None
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"data.task={config.task} failed for {split!r}: {said}{place_of(error)}") from error
    rows = [row for row in made if not isinstance(row, Problem)]
    if wrong := [row for row in rows if not isinstance(row, dict)]:
        raise ConfigError(f"data.task={config.task} returns Problems or rows (dicts), not a {type(wrong[0]).__name__}")
    for number, problem in enumerate(made, 1):
        if isinstance(problem, Problem):
            check_fields(problem, f"data.task={config.task}, problem {number} of {split!r} (id {problem.id!r})")
    problems = rows_to_problems(rows, config, f"{config.task} ({split})") if rows or not made else []
    return distinct([*(p for p in made if isinstance(p, Problem)), *problems], notes)


def check_fields(problem: Problem, what: str) -> None:
    """ConfigError for a field that does not have the type of Problem's. what: words that name the problem."""
    kinds = {"id": str, "prompt": str, "answer": str, "extra_info": dict, "messages": list}
    for name, kind in kinds.items():
        if not isinstance(value := getattr(problem, name), kind):
            raise ConfigError(
                f"{what}: {name} must be of type {kind.__name__}, not {type(value).__name__} ({str(value)[:80]!r})"
            )


def same_text(text: str) -> str:
    """`text` with each run of white space as one space."""
    return " ".join(text.split())


def same_problem(problem: Problem) -> str:
    """What duplicates have in common: the text, or the whole conversation, with white space folded."""
    if len(problem.messages) <= 1:
        return same_text(problem.prompt)
    return same_text(" ".join(f"{message['role']}: {message['content']}" for message in problem.messages))


def digest(problem: Problem) -> bytes:
    """SHA-256 of a problem's text, a sort key independent of the order in its file."""
    return hashlib.sha256(same_problem(problem).encode()).digest()


def unreadable_answers(problems: Sequence[Problem], what: str) -> list[str]:
    """Notes, with examples, on gold answers that are lists and on those that the mathematics verifier cannot parse."""
    from minirl.verify.math.verifier import check_gold, note_list

    lists = [note for p in problems if (note := note_list(p.answer))]
    notes = [f"{len(lists)} of {len(problems)} {what} problems have a list as gold answer; {lists[0]}"] if lists else []
    found = [(p.id, reason) for p in problems if (reason := check_gold(p.answer))]
    if not found:
        return notes
    shown = "; ".join(f"{name}: {reason}" for name, reason in found[:5])
    return [
        *notes,
        f"{len(found)} of {len(problems)} {what} problems have a gold answer that only the same text will match: {shown}",
    ]


def rows_to_problems(rows: Sequence[dict[str, Any] | None], config: DataConfig, source: str) -> list[Problem]:
    """The problems in `rows`, by the config's columns. Rows are numbered from 1, empty lines included."""
    if not any(rows):
        raise ConfigError(f"{source} has no rows")
    extra = {column.split("=")[0]: column.split("=")[-1] for column in config.extra_info_columns}
    try:
        pattern = re.compile(config.answer_pattern) if config.answer_pattern else None
    except re.error as error:
        raise ConfigError(f"data.answer_pattern {config.answer_pattern!r} is not a regular expression: {error}") from None
    problems = []
    for number, row in enumerate(rows, 1):
        if row is None:
            continue
        prompt, messages = read_prompt(needed(row, config.prompt_column, source, number), config.prompt_column, source, number)
        answer = ""
        if column := config.answer_column:
            answer = text_of(needed(row, column, source, number), column, source, number)
        if pattern:
            found = pattern.search(answer)
            if not found or not found.groups() or found.group(1) is None:
                raise ConfigError(
                    f"{source}, row {number}: data.answer_pattern={config.answer_pattern!r} finds no group in the answer "
                    f"{answer[-80:]!r}; null takes answers whole"
                )
            answer = found.group(1)
        extra_info = {name: needed(row, column, source, number) for name, column in extra.items()}
        name = number if row.get("id") is None else row["id"]
        problems.append(Problem(str(name), prompt, answer.strip(), extra_info, messages))
    return problems


def needed(row: dict[str, Any], column: str, source: str, number: int) -> Any:
    """A column's value; ConfigError when the row has none."""
    if (value := column_value(row, column)) is not None:
        return value
    if column in row:
        raise ConfigError(f"{source}, row {number} has no value in column {column!r}: mend or remove the row")
    raise ConfigError(
        f"{source}, row {number} has no column {column!r} (it has {', '.join(map(str, row))}): set data.prompt_column, "
        "data.answer_column or data.extra_info_columns"
    )


def distinct(problems: list[Problem], notes: list[str]) -> list[Problem]:
    """The problems without duplicates, with unique ids. Duplicates whose answers or extra_info (tests, say) differ are dropped
    altogether."""
    seen: dict[str, Problem] = {}
    ids: set[str] = set()
    disputed: set[str] = set()
    for number, p in enumerate(problems):
        first = seen.setdefault(same_problem(p), replace(p, id=f"{p.id}#{number}") if p.id in ids else p)
        ids.add(first.id)
        if first.answer != p.answer or repr(first.extra_info) != repr(p.extra_info):  # by repr: it may hold arrays or NaN
            disputed.add(same_problem(p))
    if len(seen) < len(problems):
        notes.append(f"{len(problems) - len(seen)} repeated problems were dropped")
    if disputed:
        first = seen[min(disputed)]
        notes.append(
            f"{len(disputed)} problems with several different answers or extra_info were dropped, such as {first.id}: "
            f"{first.prompt[:60]!r}"
        )
    return [p for text, p in seen.items() if text not in disputed]
