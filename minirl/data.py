"""Problems from a generator, a file or the Hub, and the seeded order in which a run draws them.

Every problem is turned into token ids once, here; nothing is re-tokenised later. Train and test never share a prompt.
"""

import codecs
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError

from minirl.config import ConfigError, DataConfig
from minirl.tasks import Problem, arithmetic, fewshot

GENERATORS = {"arithmetic": arithmetic.problems, "fewshot": fewshot.problems}


@dataclass(frozen=True)
class Prompt:
    """A problem ready to be sampled: its text after the template, and that text's token ids."""

    problem: Problem
    text: str
    ids: list[int]


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
        if len(train) <= config.test_size:
            raise ConfigError(
                f"{config.train} has {len(train)} problems, too few to hold out data.test_size={config.test_size}: lower it"
            )
        # By content, not by position: the split stays the same when rows are shuffled or added.
        held_out = {p.id for p in sorted(train, key=digest)[: config.test_size]}
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
    from minirl.verify.math import check_gold

    found = [(p.id, reason) for p in problems if (reason := check_gold(p.answer))]
    if not found:
        return []
    shown = "; ".join(f"{name}: {reason}" for name, reason in found[:5])
    return [f"{len(found)} of {len(problems)} {what} problems have a gold answer that only the same text will match: {shown}"]


def read_rows(source: str, subset: str | None, split: str, revision: str | None = None) -> Sequence[dict[str, Any] | None]:
    """The rows of a .jsonl or .parquet file, or of a Hub data set; None for an empty line."""
    path = Path(source)
    if path.suffix in (".jsonl", ".parquet"):
        if not path.is_file():
            raise ConfigError(f"there is no data file {source}")
        if path.suffix == ".parquet":
            import pyarrow.parquet

            try:
                return pyarrow.parquet.read_table(path).to_pylist()
            except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
                raise ConfigError(f"{source} is not a readable parquet file: {error}") from None
        return read_jsonl(path)
    from datasets import load_dataset

    try:
        return list(load_dataset(source, subset, split=split, revision=revision))
    except Exception as error:  # noqa: BLE001 - the library raises a dozen kinds for a missing or unreachable data set
        raise ConfigError(
            f"cannot load {source!r} (subset {subset}, split {split}) from the Hub: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}; a local file must end in .jsonl or .parquet"
        ) from None


def read_jsonl(path: Path, columns: Sequence[str] = ()) -> list[dict[str, Any] | None]:
    """The objects of a JSONL file, None for an empty line; a line that is not one, or lacks one of `columns`, is named."""
    rows: list[dict[str, Any] | None] = []
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            rows.append(None)
            continue
        try:
            row = json.loads(line.decode("utf-8"), object_pairs_hook=once)
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
            cut = number == len(lines) and ": the file seems to be cut off there"
            raise ConfigError(f"{path}, line {number} is not JSON ({error}){cut or ''}: mend or remove it") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, line {number} is a JSON {type(row).__name__}, not an object")
        if missing := [column for column in columns if column not in row]:
            raise ConfigError(f"{path}, line {number}: lacks the columns {', '.join(missing)}")
        rows.append(row)
    return rows


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError when a key stands in it twice, of which one would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"key {twice!r} stands in it twice")
    return found


def rows_to_problems(rows: Sequence[dict[str, Any] | None], config: DataConfig, source: str) -> list[Problem]:
    """Problems of data rows, by the config's column mapping. Rows are counted from 1, empty lines included."""
    if not any(rows):
        raise ConfigError(f"{source} has no rows")
    facts_of = {column.split("=")[0]: column.split("=")[-1] for column in config.fact_columns}
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
            if cell(row, column) is None:
                if column in row:
                    raise ConfigError(f"{source}, row {number} has no value in column {column!r}: mend or remove the row")
                raise ConfigError(
                    f"{source}, row {number} has no column {column!r} (it has {', '.join(map(str, row))}): set "
                    "data.prompt_column, data.answer_column or data.fact_columns"
                )
        answer = text_of(cell(row, config.answer_column), config.answer_column, source, number) if config.answer_column else ""
        if pattern:
            found = pattern.search(answer)
            if not found or not found.groups():
                raise ConfigError(f"{source}, row {number}: data.answer_pattern finds no group in the answer {answer[-80:]!r}")
            answer = found.group(1)
        facts = {name: cell(row, column) for name, column in facts_of.items()}
        prompt = text_of(said(cell(row, config.prompt_column)), config.prompt_column, source, number)
        problems.append(Problem(str(row.get("id", number)), prompt, answer.strip(), facts))
    return problems


def cell(row: dict[str, Any], column: str) -> Any:
    """A column's value; "a.b" is key b of column a. None when it is not there."""
    value: Any = row
    for key in column.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return row.get(column, value)


def said(prompt: Any) -> Any:
    """The last user message of a list of messages (verl's format); anything else as it is."""
    if isinstance(prompt, list) and all(isinstance(m, dict) for m in prompt):
        return next((m.get("content") for m in reversed(prompt) if m.get("role") == "user"), None)
    return prompt


def text_of(value: Any, column: str, source: str, row: int) -> str:
    """A text or a number as text; ConfigError for anything else, and for characters that are no text."""
    if not isinstance(value, str | int | float):
        raise ConfigError(
            f"{source}, row {row}: column {column!r} holds a {type(value).__name__}, not a text: name the part that is one, "
            f"as in {column}.key"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{source}, row {row}: column {column!r} holds {value}, which is no number: mend or remove the row")
    text = str(value)
    if odd := re.search("[\0\ud800-\udfff]", text):
        raise ConfigError(
            f"{source}, row {row}: column {column!r} has the character {odd[0]!r} at place {odd.start() + 1}, not text: "
            "mend or remove the row"
        )
    return text


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
            p = Problem(f"{p.id}#{number}", p.prompt, p.answer, p.facts)
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


def encode_prompts(
    problems: Sequence[Problem], tokenizer: Any, config: DataConfig, notes: list[str], what: str
) -> list[Prompt]:
    """The problems as token ids, through the template and, if asked, the tokenizer's chat template; long ones are dropped."""
    if config.chat and not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "the tokenizer has no chat template: use a chat model, or set data.chat=false and write the whole prompt in "
            "data.template"
        )
    texts = []
    for p in problems:
        # Not str.format: problems are full of braces.
        text = config.template.replace("{problem}", p.prompt)
        if config.chat:
            messages = [{"role": "system", "content": config.system}] if config.system else []
            messages.append({"role": "user", "content": text})
            try:
                text = tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, **config.chat_arguments
                )
            except (TemplateError, TypeError) as error:
                raise ConfigError(
                    f"the chat template refuses the messages of problem {p.id}: {error}; see data.system"
                ) from None
        texts.append(text)
    # A chat template writes its own special tokens: adding them again would double the BOS.
    ids = tokenizer(texts, add_special_tokens=not config.chat)["input_ids"] if texts else []
    prompts = [Prompt(*row) for row in zip(problems, texts, ids, strict=True)]
    kept = [p for p in prompts if 0 < len(p.ids) <= config.max_prompt_tokens]
    if not any(p.ids for p in prompts):
        raise ConfigError("the tokenizer turns every prompt into nothing: the model folder lacks its tokenizer files")
    if not kept:
        shortest = min(len(p.ids) for p in prompts)
        raise ConfigError(
            f"every {what} prompt is longer than data.max_prompt_tokens={config.max_prompt_tokens} (the shortest has "
            f"{shortest} tokens): raise it"
        )
    if len(kept) < len(prompts):
        notes.append(
            f"{len(prompts) - len(kept)} of {len(prompts)} {what} prompts are empty or longer than data.max_prompt_tokens="
            f"{config.max_prompt_tokens} and were dropped"
        )
    odd = [p for p in kept[:500] if same_text(tokenizer.decode(p.ids)) != same_text(p.text)]
    if odd:
        notes.append(
            f"{len(odd)} of the first {min(500, len(kept))} {what} prompts do not survive tokenising, such as "
            f"{odd[0].text[:80]!r}, which the model sees as {tokenizer.decode(odd[0].ids)[:80]!r}"
        )
    return kept


class Order:
    """An endless seeded order over `size` items: one permutation an epoch. `position` counts draws and is all its state."""

    def __init__(self, size: int, seed: int, position: int = 0) -> None:
        self.size, self.seed, self.position = size, seed, position
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    def draw(self, count: int) -> list[tuple[int, int]]:
        """The next `count` pairs (draw number, item index). Draw numbers never repeat in a run: they name groups and seeds."""
        drawn = []
        for number in range(self.position, self.position + count):
            epoch, place = divmod(number, self.size)
            if epoch != self._epoch:
                self._epoch, self._permutation = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.size)
            drawn.append((number, int(self._permutation[place])))
        self.position += count
        return drawn
