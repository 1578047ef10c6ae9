"""Rows of a .jsonl or .parquet file or of a Hub data set, and the values of their columns."""

import codecs
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minirl.utils.errors import ConfigError, HubError
from minirl.utils.hub import hub_is_offline


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
    kind = HubError if hub_is_offline() else ConfigError  # before datasets is imported, which reads HF_HUB_OFFLINE then
    from datasets import load_dataset

    try:
        return list(load_dataset(source, subset, split=split, revision=revision))
    except Exception as error:  # noqa: BLE001 - the library raises a dozen kinds for a missing or unreachable data set
        raise kind(
            f"cannot load {source!r} (subset {subset}, split {split}) from the Hub: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}; a local file must end in .jsonl or .parquet"
        ) from None


def read_jsonl(path: Path, columns: Sequence[str] = ()) -> list[dict[str, Any] | None]:
    """The objects of a JSONL file, None for an empty line. ConfigError for any other line, or one that lacks `columns`."""
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
            row = json.loads(line.decode("utf-8"), object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
            cut = ": the file seems to be cut off there" if number == len(lines) else ""
            raise ConfigError(f"{path}, line {number} is not JSON ({error}){cut}: mend or remove it") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, line {number} is a JSON {type(row).__name__}, not an object")
        if missing := [column for column in columns if column not in row]:
            raise ConfigError(f"{path}, line {number}: lacks the columns {', '.join(missing)}")
        rows.append(row)
    return rows


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object from its pairs. ValueError for a repeated key, of which json would keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"key {twice!r} stands in it twice")
    return found


def column_value(row: dict[str, Any], column: str) -> Any:
    """A column's value, None if missing; "a.b" is the column of that name, or else key b of column a."""
    value: Any = row
    for key in column.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return row.get(column, value)


def text_of(value: Any, column: str, source: str, row: int) -> str:
    """A string or a number as text. ConfigError for anything else, and for null characters and lone surrogates."""
    if isinstance(value, bool):
        raise ConfigError(
            f"{source}, row {row}: column {column!r} holds {str(value).lower()}, which has no one text (True, true, yes ...): "
            "write the text that a response should give"
        )
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
