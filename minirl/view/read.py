"""Reads a run folder for the page, also while the run is going on and when it is larger than memory.

Files are read one after the other and what they hold is compressed at once. If it is more than a page can take, steps are left
out evenly, counted from the last one, and `Contents.notes` says so.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from minirl.config.command_line import load
from minirl.utils.errors import ConfigError
from minirl.watch.diagnoses import diagnose

Row = dict[str, Any]
CURVE_POINTS = 2000  # of a curve: no screen is wider
RESPONSE_CHARACTERS = 6000  # of a response: longer ones lose their middle
SHARED = ("group", "prompt", "gold", "chosen", "dropped", "branch")  # what all responses of a group have alike


@dataclass
class Contents:
    """What a page shows of a run. curves: {metric: a value a step}, "step" among them; held_out: metrics of evaluations with
    their step; steps: {step, groups: what the list of groups needs, packed: `pack` of the groups}; diagnoses: {step, name,
    text}, None where nobody looked; notes: sentences about what was left out or could not be read."""

    name: str
    options: dict[str, Any]
    curves: dict[str, list[float | None]] = field(default_factory=dict)
    held_out: list[Row] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    diagnoses: list[Row] | None = None
    notes: list[str] = field(default_factory=list)
    finished: bool = False


def read_run(folder: Path, budget: int) -> Contents:
    """The contents of a run folder; budget: characters that its groups may take in the page. ConfigError for another folder."""
    config = folder / "config.yaml"
    try:
        options = yaml.safe_load(config.read_text(encoding="utf-8"))
        assert isinstance(options, dict)
    except (OSError, ValueError, AssertionError, yaml.YAMLError) as error:
        raise ConfigError(f"{folder} is no run folder of train.py: it has no readable config.yaml ({error})") from None
    contents = Contents(folder.resolve().name, flat(options), finished=(folder / "summary.json").is_file())
    history = list(objects(folder / "metrics.jsonl", contents.notes))
    contents.curves = curves(history, contents.notes)
    for path in sorted((folder / "evaluations").glob("step*.json")):
        with suppress(FileNotFoundError):  # removed by a run that resumed from before it
            try:
                metrics = json.loads(path.read_text(encoding="utf-8"))["metrics"]
                contents.held_out.append({"step": int(path.stem[4:])} | numbers(metrics))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                contents.notes.append(f"{path.name} of evaluations/ is damaged and left out ({error!r}).")
    contents.steps = thinned(sorted((folder / "rollouts").glob("step*.jsonl")), budget, contents.notes)
    try:
        found = diagnose(history, load([str(config)]))
        contents.diagnoses = [{"step": d.step, "name": d.name, "text": d.text} for d in found]
    except ConfigError as error:  # such as an estimator's file that is elsewhere now
        contents.notes.append(f"No diagnoses: the config cannot be read ({error}).")
    except KeyError as error:
        contents.notes.append(f"No diagnoses: metrics.jsonl, of another version, has no {error}.")
    return contents


def numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    """`metrics` with null for what is not finite, which JSON has no number for."""
    return {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in metrics.items()}


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{section.key: value} of a config."""
    made: dict[str, Any] = {}
    for key, value in tree.items():
        made |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return made


def objects(path: Path, notes: list[str]) -> Iterator[Row]:
    """The JSON objects of a file's lines, those that are whole. A last line without end is being written; others are noted."""
    broken = 0
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    value = json.loads(line)
                except ValueError:
                    broken += line.endswith(b"\n")
                    continue
                if isinstance(value, dict):
                    yield value
                else:
                    broken += 1
    except FileNotFoundError:  # not written yet, or removed by a run that resumed from before it
        return
    if broken:
        notes.append(f"{broken} lines of {path.name} are no JSON objects and are left out.")


def curves(history: Sequence[Row], notes: list[str]) -> dict[str, list[float | None]]:
    """{metric: a value a step} with five significant digits, None where a step has none or it is not finite."""
    stride = -(-len(history) // CURVE_POINTS) or 1
    rows = history[::-1][::stride][::-1]
    if stride > 1:
        notes.append(f"The curves show every {ordinal(stride)} of {len(history):,} steps.")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [short(row.get(name)) for row in rows] for name in names}


def short(value: Any) -> float | None:
    """A number with five significant digits; None for anything else, NaN and infinity among them."""
    if not isinstance(value, int | float) or value != value or value in (float("inf"), float("-inf")):
        return None
    return value if isinstance(value, int) else float(f"{value:.5g}")


def thinned(files: Sequence[Path], budget: int, notes: list[str]) -> list[Row]:
    """The `steps` of `Contents` from the files of rollouts/: all, or every second, fourth ... so that they fit the budget."""
    stride, size, cut, kept = 1, 0, 0, dict[int, Row]()
    for i, path in enumerate(reversed(files)):  # from the last step, which a person wants to see first
        if i % stride:
            continue
        groups, shortened = groups_of(objects(path, notes))
        if not groups:
            continue
        packed, all_groups = pack(groups), len(groups)
        while len(packed) > budget and len(groups) > 1:
            groups = groups[: len(groups) // 2]
            packed = pack(groups)
        if len(groups) < all_groups:
            notes.append(f"Of the {all_groups} groups of {path.stem} only {len(groups)} are here: more would not fit the page.")
        cut += shortened
        kept[i] = {"step": int(path.stem[4:]), "groups": [listed(group) for group in groups], "packed": packed}
        size += len(packed)
        while size > budget and len(kept) > 1:
            stride *= 2
            kept = {j: step for j, step in kept.items() if j % stride == 0}
            size = sum(len(step["packed"]) for step in kept.values())
    if stride > 1:
        notes.append(f"Groups are here of every {ordinal(stride)} of {len(files):,} saved steps: more would not fit the page.")
    if cut:
        notes.append(f"{cut:,} responses of more than {RESPONSE_CHARACTERS:,} characters have lost their middle.")
    return list(kept.values())[::-1]


def groups_of(rows: Iterator[Row]) -> tuple[list[Row], int]:
    """(the groups of a step with their responses, how many of these were shortened)."""
    groups, cut = list[Row](), 0
    for _, members in groupby(rows, key=lambda row: row.get("group")):
        responses = list(members)
        group = {key: responses[0][key] for key in SHARED if key in responses[0]}
        for row in responses:
            text = row.get("response", "")
            if len(text) > RESPONSE_CHARACTERS:
                half, cut = RESPONSE_CHARACTERS // 2, cut + 1
                gone = f"\n[... {len(text) - 2 * half:,} characters are left out here ...]\n"
                row["response"] = text[:half] + gone + text[-half:]
        group["responses"] = [{k: v for k, v in row.items() if k not in SHARED} for row in responses]
        groups.append(group)
    return groups, cut


def listed(group: Row) -> Row:
    """What the list of groups needs of one: number, key of its prompt, right and all responses, the rule that chose it."""
    statuses = [row.get("status") for row in group["responses"]]
    key = hashlib.sha256(group.get("prompt", "").encode(errors="backslashreplace")).hexdigest()[:12]
    return {
        "number": group.get("group", -1), "key": key, "right": statuses.count("right"), "of": len(statuses),
        "chosen": group.get("chosen", ""), "dropped": bool(group.get("dropped")),
    }  # fmt: skip


def pack(value: Any) -> str:
    """JSON, deflated, as base64: what the page unpacks when it needs it."""
    return base64.b64encode(zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 9)).decode()


def ordinal(n: int) -> str:
    """2nd, 3rd, 4th ..."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
