"""Grades the rows of a JSONL file as training grades responses, through the same pool:

    python -m minirl.verify FILE.jsonl [--grader exact|mathruler|math_verify] [--lenient] [--json]
    python -m minirl.verify FILE.jsonl --code [--json]

Rows of mathematics: problem (may be left out), answer (the right one; "gold" is read too), and response or pred. A
response is a whole response, and its answer is what stands in its last complete box. A pred is an answer, and is
compared as it stands, without a box around it. --lenient reads both as benchmarks of texts without boxes do: boxes,
else what follows "answer is", "A:" or "####", else the last formula, else the last number, never a part of one.
Rows of code: problem (or prompt), tests, response, and entry_point, timeout where they apply. Rows of either kind may
have id, and expected (true or false): the rows that disagree with it are named.

Exit code 2, and one sentence, for a file or a row that cannot be read; 1 when the verifier cannot work here.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minirl.verify.code.sandbox import Sandbox
from minirl.verify.math.verifier import GRADERS, MathVerifier
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import ERROR, RIGHT, TIMEOUT, WRONG, Problem, Verdict, VerifierError

SHOWN = 20  # rows that disagree with their label; --json has all
Row = dict[str, Any]
COLUMNS = {"math": (("answer", "gold"), ("response", "pred")), "code": (("prompt",), ("tests",), ("response",))}


class BadRow(ValueError):
    """A file or a row that cannot be scored; the text is the sentence for the user."""


def column(row: Row, *names: str) -> Any:
    """The value of the first of the columns that the row has."""
    return next((row[name] for name in names if name in row), None)


LINE = "__line__"  # of the file, from 1, in each row


def read_rows(path: Path, code: bool) -> list[Row]:
    """The rows of the file, each with what it must have. BadRow says what is wrong, and in which line."""
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
        if code and "prompt" not in row and "problem" in row:
            row["prompt"] = row["problem"]
        for names in COLUMNS["code" if code else "math"]:
            kinds = (str, dict, list) if "tests" in names else str
            if not isinstance(found := column(row, *names), kinds):
                there = f"has {type(found).__name__}" if any(name in row for name in names) else "has nothing"
                wanted = " or ".join(map(repr, names))
                raise BadRow(f"{path}, line {number}: {wanted} must be text{' or tests' * ('tests' in names)}, the row {there}")
        if not isinstance(row.get("expected", True), bool):
            raise BadRow(f"{path}, line {number}: 'expected' must be true or false, not {row['expected']!r}")
        rows.append(row | {LINE: number})
    if not rows:
        raise BadRow(f"{path} has no rows")
    return rows


def settings(row: Row, options: argparse.Namespace) -> dict[str, Any]:
    """Options of the mathematics verifier for a row: of a response those of training, a pred is all answer."""
    if "response" in row:
        return {"grader": options.grader, "answer": "lenient" if options.lenient else "boxed"}
    return {"grader": options.grader, "answer": "lenient" if options.lenient else "whole", "after": None}


def score(rows: list[Row], options: argparse.Namespace) -> tuple[list[Verdict], float]:
    """The verdicts, and the seconds they took without the start of the workers."""
    names = [str(row.get("id", number)) for number, row in enumerate(rows)]
    if options.code:
        items = [(Problem(n, row["prompt"], "", row), row["response"]) for n, row in zip(names, rows, strict=True)]
        groups: list[tuple[dict[str, Any], list[int]]] = [({}, list(range(len(rows))))]
    else:
        texts = [(str(row.get("problem", "")), column(row, "answer", "gold"), column(row, "response", "pred")) for row in rows]
        items = [(Problem(n, p, gold, row), text) for n, row, (p, gold, text) in zip(names, rows, texts, strict=True)]
        wanted = [settings(row, options) for row in rows]
        kinds = [settings(row, options) for row in ({"response": ""}, {"pred": ""})]
        groups = [(kind, [i for i, other in enumerate(wanted) if other == kind]) for kind in kinds if kind in wanted]
    verdicts: dict[int, Verdict] = {}
    seconds = 0.0
    for kind, places in groups:
        with VerifierPool("code" if options.code else "math", kind, options.workers, options.timeout) as pool:
            start = time.monotonic()
            verdicts |= zip(places, pool.grade([items[place] for place in places]), strict=True)
            seconds += time.monotonic() - start
    return [verdicts[place] for place in range(len(rows))], seconds


def disagreements(rows: list[Row], verdicts: list[Verdict], options: argparse.Namespace) -> list[str]:
    """A sentence for each row whose verdict is not the expected one: which row, what was compared, what was judged."""
    found = []
    for row, verdict in zip(rows, verdicts, strict=True):
        if "expected" not in row or verdict.status == (RIGHT if row["expected"] else WRONG):
            continue
        name = f"row {row[LINE]}" + (f" ({row['id']})" if "id" in row else "")
        if options.code:
            compared = f" [{verdict.label}] {verdict.detail}".rstrip() if verdict.label or verdict.detail else ""
        else:
            text, gold = column(row, "response", "pred"), column(row, "answer", "gold")
            answer = MathVerifier(**settings(row, options)).answer_of(text)
            compared = f": {'no answer' if answer is None else repr(answer[:200])} against {gold[:200]!r}"
            compared += f", read as {verdict.key[:80]}" if verdict.key is not None else ""
        found.append(f"{name} is judged {verdict.status}, expected {RIGHT if row['expected'] else WRONG}{compared}")
    return found


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
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m minirl.verify", description=__doc__, formatter_class=formatter)
    parser.add_argument("file", type=Path, help="a file of JSON rows, one a line")
    parser.add_argument("--grader", choices=list(GRADERS), default="exact")
    parser.add_argument("--lenient", action="store_true", help="also answers that stand in no box")
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
    told = disagreements(rows, verdicts, options)
    print("".join(f"  {sentence}\n" for sentence in told[:SHOWN]), end="")
    if len(told) > SHOWN:
        print(f"  and {len(told) - SHOWN} more; --json has the verdict of every row")
    return 0


if __name__ == "__main__":
    sys.exit(main())
