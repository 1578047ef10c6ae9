"""Scores the rows of a JSONL file, through the same pool as training does:

    python -m minirl.verify FILE.jsonl [--grader exact|mathruler|math_verify] [--json]
    python -m minirl.verify FILE.jsonl --code [--json]

Rows of mathematics: gold, pred, and expected (true or false) where a label is known. Rows of code: prompt, tests,
response, and entry_point, timeout, expected where they apply. Exit code 2, and one sentence, for a file or a row that
cannot be read; 1 when the verifier cannot work here.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from minirl.verify.code.sandbox import Sandbox
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.registry import load_verifier
from minirl.verify.types import ERROR, RIGHT, TIMEOUT, WRONG, Problem, Verdict, VerifierError


class BadRow(ValueError):
    """A file or a row that cannot be scored; the text is the sentence for the user."""


class RowVerifier:
    """The verifier "rows": judges problem.extra_info, a row with gold and pred, with the settings that the row names."""

    def __init__(self, grader: str = "exact") -> None:
        self.grader = grader
        self.self_test = getattr(load_verifier("math", grader=grader), "self_test", None)

    def __call__(self, problem: Problem, response: str) -> Verdict:
        from minirl.verify.math.verifier import grade_row

        return grade_row(problem.extra_info, self.grader)


def unfit_setting(row: dict[str, Any]) -> str | None:
    """What is wrong with the settings that a row of mathematics names; None when nothing is."""
    tolerance, precision = (0 if row.get(name) is None else row[name] for name in ("abs_tolerance", "precision"))
    try:
        numbers = [Fraction(str(number)) for number in (tolerance if isinstance(tolerance, list) else [tolerance])]
    except (ValueError, ZeroDivisionError):
        numbers = []
    if not numbers or min(numbers) < 0:
        return f"'abs_tolerance' must be a number of 0 or more, or a list of such, not {tolerance!r}"
    if not re.fullmatch(r"\d{1,3}", str(precision)):
        return f"'precision' must be a number of decimals, not {precision!r}"
    return None


def read_rows(path: Path, code: bool) -> list[dict[str, Any]]:
    """The rows of the file, each with what it must have. BadRow says what is wrong, and in which line."""
    needed = {"prompt": str, "tests": (str, dict, list), "response": str} if code else {"gold": str, "pred": str}
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRow(f"{path} cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadRow(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise BadRow(f"{path}, line {number}: a row must be an object, not {type(row).__name__}")
        for name, kind in needed.items():
            if not isinstance(row.get(name), kind):  # type: ignore[arg-type]
                there = f"has {type(row[name]).__name__}" if name in row else "has nothing"
                raise BadRow(f"{path}, line {number}: {name!r} must be text{' or tests' * (name == 'tests')}, the row {there}")
        if not isinstance(row.get("expected", True), bool):
            raise BadRow(f"{path}, line {number}: 'expected' must be true or false, not {row['expected']!r}")
        if not code and (unfit := unfit_setting(row)):
            raise BadRow(f"{path}, line {number}: {unfit}")
        rows.append(row)
    if not rows:
        raise BadRow(f"{path} has no rows")
    return rows


def score(rows: list[dict[str, Any]], options: argparse.Namespace) -> tuple[list[Verdict], float]:
    """The verdicts, and the seconds they took without the start of the workers."""
    names = [str(row.get("id", number)) for number, row in enumerate(rows)]
    if options.code:
        items = [(Problem(n, row["prompt"], "", row), row["response"]) for n, row in zip(names, rows, strict=True)]
    else:
        items = [(Problem(n, "", row["gold"], row), row["pred"]) for n, row in zip(names, rows, strict=True)]
    settings: dict[str, Any] = {} if options.code else {"grader": options.grader}
    with VerifierPool("code" if options.code else "rows", settings, options.workers, options.timeout) as pool:
        start = time.monotonic()
        return pool.grade(items), time.monotonic() - start


def summary(rows: list[dict[str, Any]], verdicts: list[Verdict], seconds: float) -> dict[str, Any]:
    """Counts; and agreement with the labels, where rows have them."""
    found: dict[str, Any] = {"rows": len(rows)}
    statuses = Counter(verdict.status for verdict in verdicts)
    found |= {status: statuses[status] for status in (RIGHT, WRONG, ERROR)}
    found["timeout"] = sum(verdict.label == TIMEOUT for verdict in verdicts)
    labelled = [(row["expected"], v.status) for row, v in zip(rows, verdicts, strict=True) if "expected" in row]
    if labelled:
        found["labelled"] = len(labelled)
        found["agreement"] = sum(status == (RIGHT if expected else WRONG) for expected, status in labelled)
        found["false right"] = sum(not expected and status == RIGHT for expected, status in labelled)
        found["false wrong"] = sum(expected and status == WRONG for expected, status in labelled)
    return found | {"seconds": round(seconds, 3), "per second": round(len(rows) / seconds, 1)}


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        number = kind(text)
        if not 0 < number < float("inf"):
            raise argparse.ArgumentTypeError(f"must be more than 0, not {text}")
        return number

    read.__name__ = "number"  # argparse says: invalid number value
    return read


def main(arguments: list[str] | None = None) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m minirl.verify", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="a file of JSON rows, one a line")
    parser.add_argument("--grader", choices=["exact", "mathruler", "math_verify"], default="exact")
    parser.add_argument("--code", action="store_true", help="rows of code: prompt, tests, response")
    parser.add_argument("--json", action="store_true", help="one JSON object with the verdict of every row")
    parser.add_argument("--workers", type=positive(int), default=2, help="worker processes (2)")
    parser.add_argument("--timeout", type=positive(float), default=5.0, help="seconds for a row that names no limit (5)")
    options = parser.parse_args(arguments)
    try:
        rows = read_rows(options.file, options.code)
        verdicts, seconds = score(rows, options)
        report = summary(rows, verdicts, seconds)
        if options.code:
            with Sandbox() as sandbox:
                report["sandbox"] = sandbox.describe()
    except BadRow as error:
        print(error, file=sys.stderr)
        return 2
    except VerifierError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        keys = ("status", "label", "key", "reward", "seconds", "detail")
        listed = [{key: getattr(verdict, key) for key in keys} for verdict in verdicts]
        report["verdicts"] = [{"id": row.get("id", n)} | v for n, (row, v) in enumerate(zip(rows, listed, strict=True))]
        print(json.dumps(report))
        return 0
    for name, value in report.items():
        print(f"{name:12} {value}")
    for label, count in Counter(v.label for v in verdicts if v.status == WRONG).most_common(10 if options.code else 0):
        print(f"  {label:20} {count}")
    for verdict in [v for v in verdicts if v.status == ERROR][:5]:
        print(f"  error: {verdict.detail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
