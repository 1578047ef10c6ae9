"""Prints the accuracy table of docs/verifiers.md: mathruler, math-verify and minirl on labelled (gold, pred) texts.

    python -m benchmarks.verifier_accuracy [FOLDER]      # default ../shared/data

Each row is judged with the settings that it names (tolerance, decimals, formulas only, strict names). mathruler knows
no settings and no extraction but its own of boxes, so it is given what stands in the box, else the text, without the
dollar signs around it; "mathruler, our reading" judges the answers that minirl extracts.
math-verify is run twice: plainly, with one convention for all rows, and with each row's settings. Rows marked
config_dependent have labels that depend on settings; false rights on them are counted apart.

The second table is the speed of grading in a loop, one core: for each answer of a data set one response, half of them
with that answer and half with another of the set. Nothing is cached at the start.
"""

import argparse
import ast
import json
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from mathruler import grader as mathruler

from benchmarks.grade_rows import grade_row, reading
from minirl.verify.math.canonical import cached_key
from minirl.verify.math.verifier import MathVerifier
from minirl.verify.math.verifier import mathruler as bounded_mathruler
from minirl.verify.types import Problem

Row = dict[str, Any]
FILES = ("verifier_pairs.jsonl", "gsm8k_model_outputs.jsonl")


def mathruler_plain(row: Row) -> bool:
    texts = []
    for text in (row["pred"], row["gold"]):
        boxed = mathruler.extract_boxed_content(text)
        texts.append((text if boxed == "None" else boxed).strip("$"))
    return bounded_mathruler(*texts)


def mathruler_read(row: Row) -> bool:
    answer, gold = reading(row["pred"], row), reading(row["gold"], row)
    return bool(answer) and gold is not None and bounded_mathruler(str(answer), gold)


def formula(text: str) -> str:
    """math-verify finds formulas only between delimiters."""
    return text if any(mark in text for mark in ("$", "\\(", "\\[", "\\boxed")) else f"${text}$"


def math_verify_plain(row: Row) -> bool:
    whole = "\n" in row["pred"]
    return bool(verify(parse(formula(row["gold"])), parse(row["pred"] if whole else formula(row["pred"]))))


def math_verify_row(row: Row) -> bool:
    kinds = {"latex": LatexExtractionConfig(), "expr": ExprExtractionConfig()}
    configs = [kinds[name] for name in ast.literal_eval(row.get("match_types", "['latex', 'expr']"))]
    settings: dict[str, Any] = {}
    if "precision" in row:
        settings["float_rounding"] = int(row["precision"])
    if "strict" in row:
        settings["strict"] = row["strict"] == "True"
    if "set_relation" in row:
        settings["allow_set_relation_comp"] = row["set_relation"] == "True"
    texts = [row["gold"], row["pred"]]
    if "match_types" not in row and "\n" not in row["pred"]:
        texts = [formula(text) for text in texts]
    return bool(verify(*(parse(text, configs) for text in texts), **settings))


def ours(row: Row) -> bool:
    return grade_row(row).status == "right"


GRADERS: dict[str, Callable[[Row], bool]] = {
    "mathruler": mathruler_plain,
    "mathruler, our reading": mathruler_read,
    "math-verify": math_verify_plain,
    "math-verify, row settings": math_verify_row,
    "minirl exact": ours,
}


def score(rows: list[Row], judge: Callable[[Row], bool]) -> dict[str, Any]:
    """Counts over the rows: right (agrees with the label), false rights, false wrongs, and the seconds taken."""
    start = time.perf_counter()
    verdicts = [judge(row) for row in rows]
    seconds = time.perf_counter() - start
    pairs = list(zip(rows, verdicts, strict=True))
    return {
        "right": sum(row["expected"] == verdict for row, verdict in pairs),
        "false_right": sum(v and not r["expected"] and not r.get("config_dependent") for r, v in pairs),
        "false_right_config_dependent": sum(v and not r["expected"] and r.get("config_dependent", False) for r, v in pairs),
        "false_wrong": sum(row["expected"] and not verdict for row, verdict in pairs),
        "seconds": seconds,
    }


def speed(answers: list[str]) -> tuple[float, float]:
    """Answers a second of mathruler's grade_answer and of the exact grader (extraction, key and verdict)."""
    rng = random.Random(0)
    pairs = [(gold if rng.random() < 0.5 else rng.choice(answers), gold) for gold in answers]
    responses = [(Problem(str(i), "", gold), f"so it is \\boxed{{{given}}}.") for i, (given, gold) in enumerate(pairs)]
    verifier = MathVerifier()
    cached_key.cache_clear()
    start = time.perf_counter()
    for problem, response in responses:
        verifier(problem, response)
    middle = time.perf_counter()
    for pair in pairs:
        bounded_mathruler(*pair)
    return len(pairs) / (time.perf_counter() - middle), len(pairs) / (middle - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("folder", nargs="?", type=Path, default=default, help="folder of the two JSONL files")
    folder = parser.parse_args().folder
    logging.disable(logging.WARNING)
    print("| file | grader | right | false right | of config_dependent rows | false wrong | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in FILES:
        rows = [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        for grader, judge in GRADERS.items():
            judge(rows[0])  # imports and caches of the library itself are not part of the time
            s = score(rows, judge)
            print(
                f"| {name} | {grader} | {s['right']} of {len(rows)} | {s['false_right']} | "
                f"{s['false_right_config_dependent']} | {s['false_wrong']} | {s['seconds']:.2f} |"
            )
    print("\n| answers | mathruler | minirl exact |\n| --- | --- | --- |")
    for name in ("gsm8k_test.jsonl", "math500.jsonl"):
        answers = [json.loads(line)["answer"] for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        theirs, mine = speed(answers)
        print(f"| {name} | {theirs:,.0f} a second | {mine:,.0f} a second |")


if __name__ == "__main__":
    main()
