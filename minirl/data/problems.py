"""Problems from a generator, a file or the Hub, and the seeded order in which a run draws them.

Every problem is turned into token ids once, here; nothing is re-tokenised later. Train and test never share a prompt.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from minirl.config.options import DataConfig
from minirl.data import arithmetic, fewshot
from minirl.data.rows import column_value, last_user_message, read_rows, text_of
from minirl.utils.errors import ConfigError
from minirl.verify.types import Problem

GENERATORS = {"arithmetic": arithmetic.problems, "fewshot": fewshot.problems}


def load_problems(config: DataConfig) -> tuple[list[Problem], list[Problem], list[str]]:
    """(train, test, notes for people). Needs no model and no tokenizer, so bad data ends a run before anything is loaded."""
    notes: list[str] = []
    if config.task in GENERATORS:
        generate = GENERATORS[config.task]
        return generate("train"), generate("test"), notes
    train = distinct(rows_to_problems(read_rows(config.train, config.subset, config.train_split), config, config.train), notes)
    if config.test:
        test = distinct(rows_to_problems(read_rows(config.test, config.subset, config.test_split), config, config.test), notes)
        asked = {same_text(p.prompt) for p in test}
        kept = [p for p in train if same_text(p.prompt) not in asked]
        if len(kept) < len(train):
            notes.append(f"{len(train) - len(kept)} training problems that the test set has too were dropped")
        train = kept
    else:
        size = config.test_size or max(1, min(128, len(train) // 10))
        if len(train) <= size:
            raise ConfigError(f"{config.train} has {len(train)} problems, too few to hold out data.test_size={size}: lower it")
        # By content, not by position: the split stays the same when rows are shuffled or added.
        held_out = {p.id for p in sorted(train, key=digest)[:size]}
        test = [p for p in train if p.id in held_out]
        train = [p for p in train if p.id not in held_out]
    if not train:
        raise ConfigError(f"{config.train}: no training problem is left beside the test set")
    # Evaluations take the first so many: a file may be sorted by difficulty.
    return train, sorted(test, key=digest), notes


def same_text(text: str) -> str:
    """`text` with white space folded: what makes two prompts the same problem."""
    return " ".join(text.split())


def digest(problem: Problem) -> bytes:
    """An order by content that has nothing to do with the file's."""
    return hashlib.sha256(same_text(problem.prompt).encode()).digest()


def unreadable_answers(problems: Sequence[Problem], what: str) -> list[str]:
    """A note on gold answers that the mathematics verifier cannot read, with the first of them by id; [] when all are fine."""
    from minirl.verify.math.verifier import check_gold

    found = [(p.id, reason) for p in problems if (reason := check_gold(p.answer))]
    if not found:
        return []
    shown = "; ".join(f"{name}: {reason}" for name, reason in found[:5])
    return [f"{len(found)} of {len(problems)} {what} problems have a gold answer that only the same text will match: {shown}"]


def rows_to_problems(rows: Sequence[dict[str, Any] | None], config: DataConfig, source: str) -> list[Problem]:
    """Problems of data rows, by the config's column mapping. Rows are counted from 1, empty lines included."""
    if not any(rows):
        raise ConfigError(f"{source} has no rows")
    facts_of = {column.split("=")[0]: column.split("=")[-1] for column in config.extra_info_columns}
    columns = [config.prompt_column, *([config.answer_column] if config.answer_column else []), *facts_of.values()]
    try:
        pattern = re.compile(config.answer_pattern) if config.answer_pattern else None
    except re.error as error:
        raise ConfigError(f"data.answer_pattern {config.answer_pattern!r} is not a regular expression: {error}") from None
    problems = []
    for number, row in enumerate(rows, 1):
        if row is None:
            continue
        for column in columns:
            if column_value(row, column) is None:
                if column in row:
                    raise ConfigError(f"{source}, row {number} has no value in column {column!r}: mend or remove the row")
                raise ConfigError(
                    f"{source}, row {number} has no column {column!r} (it has {', '.join(map(str, row))}): set "
                    "data.prompt_column, data.answer_column or data.extra_info_columns"
                )
        answer = (
            text_of(column_value(row, config.answer_column), config.answer_column, source, number)
            if config.answer_column
            else ""
        )
        if pattern:
            found = pattern.search(answer)
            if not found or not found.groups():
                raise ConfigError(f"{source}, row {number}: data.answer_pattern finds no group in the answer {answer[-80:]!r}")
            answer = found.group(1)
        extra_info = {name: column_value(row, column) for name, column in facts_of.items()}
        prompt = text_of(last_user_message(column_value(row, config.prompt_column)), config.prompt_column, source, number)
        problems.append(Problem(str(row.get("id", number)), prompt, answer.strip(), extra_info))
    return problems


def distinct(problems: list[Problem], notes: list[str]) -> list[Problem]:
    """The problems without repeated texts, ids made unique. A text with several answers is not kept: one of them is wrong."""
    seen: dict[str, Problem] = {}
    ids: set[str] = set()
    disputed: set[str] = set()
    for number, p in enumerate(problems):
        text = same_text(p.prompt)
        if text in seen:
            if seen[text].answer != p.answer:
                disputed.add(text)
            continue
        if p.id in ids:
            p = Problem(f"{p.id}#{number}", p.prompt, p.answer, p.extra_info)
        ids.add(p.id)
        seen[text] = p
    if len(seen) < len(problems):
        notes.append(f"{len(problems) - len(seen)} repeated problems were dropped")
    if disputed:
        first = seen[min(disputed)]
        notes.append(
            f"{len(disputed)} problems with several different answers were dropped, such as {first.id}: {first.prompt[:60]!r}"
        )
    return [p for text, p in seen.items() if text not in disputed]
