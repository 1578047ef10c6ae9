"""Verdicts on rows of benchmarks of verifiers: (gold, pred) texts, often without a box, with settings of their own.

No part of the grader that trains: minirl/verify/math grades a boxed answer with one convention for all. The rows of
others name a tolerance, a number of decimals, or what may be extracted; here they are judged as they ask.
"""

import re
import time
from fractions import Fraction
from itertools import permutations
from typing import Any

from minirl.verify.math import extract, values
from minirl.verify.math.canonical import canonical_key, read
from minirl.verify.math.trees import Tree
from minirl.verify.math.verifier import GRADERS
from minirl.verify.types import EMPTY_ANSWER, NO_ANSWER, RIGHT, WRONG, Verdict

NUMBER = re.compile(r"(?<![A-Za-z\d])[-+]?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?![A-Za-z\d])|[-+]?\.\d+")


def close(gold: Tree, answer: Tree, tolerances: list[Fraction]) -> bool:
    """Equality up to an absolute tolerance for each number: one for all, or one for each element of the gold answer."""
    if gold.key == answer.key:
        return True
    if gold.kind == "number" == answer.kind:
        if isinstance(gold.value, Fraction) and isinstance(answer.value, Fraction):
            return abs(gold.value - answer.value) <= tolerances[0]
        return abs(values.real(gold.value) - values.real(answer.value)) <= values.real(tolerances[0])
    if gold.kind != answer.kind or not gold.items or len(gold.items) != len(answer.items):
        return False
    each = tolerances if len(tolerances) == len(gold.items) else tolerances[:1] * len(gold.items)
    orders = permutations(answer.items) if gold.kind == "set" and len(gold.items) <= 6 else [answer.items]
    same_brackets = gold.kind != "sequence" or (gold.key[0] + gold.key[-1] == answer.key[0] + answer.key[-1])
    return same_brackets and any(
        all(close(g, a, [t]) for g, a, t in zip(gold.items, order, each, strict=True)) for order in orders
    )


def grade_row(row: dict[str, Any], grader: str = "exact") -> Verdict:
    """Verdict on a row with texts "gold" and "pred", each with or without a box.

    Settings that the row may name, of which the other graders know none: abs_tolerance (a number, or one for each
    element), precision (decimals: numbers are equal that differ by half a unit of that decimal or less), strict "False"
    (names of variables do not count), set_relation "False" (an inequality is no interval), match_types ["expr"] (the
    last number of the text, which may have a decimal comma) and ["latex"] (formulas only).
    """
    start = time.perf_counter()
    gold, answer = reading(row["gold"], row), reading(row["pred"], row)
    if not answer or gold is None:
        return Verdict(WRONG, NO_ANSWER if answer is None else EMPTY_ANSWER, seconds=time.perf_counter() - start)
    right = GRADERS[grader](answer, gold)
    if grader == "exact":
        right = with_settings(row, answer, gold, right)
    key = canonical_key(answer)
    return Verdict(RIGHT if right else WRONG, "" if right else key, key, seconds=time.perf_counter() - start)


def with_settings(row: dict[str, Any], answer: str, gold: str, right: bool) -> bool:
    if str(row.get("set_relation")) == "False" and COMPARISON.search(answer) and not COMPARISON.search(gold):
        return False
    tolerance = row.get("abs_tolerance")
    if tolerance is None and row.get("precision") is not None:
        tolerance = f"5e-{int(row['precision']) + 1}"
    if not right and tolerance is not None:
        listed = tolerance if isinstance(tolerance, list) else [tolerance]
        right = close(read(gold), read(answer), [Fraction(str(t)) for t in listed])
    if not right and str(row.get("strict")) == "False":
        right = canonical_key(anonymous(answer)) == canonical_key(anonymous(gold))
    return right


COMPARISON = re.compile(r"[<>≤≥]|\\(?:lt|gt|leq?|geq?)(?:slant)?(?![a-z])")


def reading(text: str, row: dict[str, Any]) -> str | None:
    types = str(row.get("match_types", ""))
    if "expr" in types and "latex" not in types:
        numbers = NUMBER.findall(text)
        last = numbers[-1].rstrip(",") if numbers else text
        return re.sub(r"^([-+]?\d+),(\d{1,2})$", r"\1.\2", last)
    if "latex" in types and "expr" not in types and extract.boxed(text) is None and not extract.MATH.search(text):
        return None
    if extract.boxed(text) is None and (unclosed := re.search(r"\\boxed\s*\{(.*)$", text[-extract.MAX_TEXT :])):
        return unclosed.group(1)  # a slip of a data set; in a response it would be a part of an answer
    return extract.answer(text)


def anonymous(text: str) -> str:
    """Single-letter names replaced in the order in which they first stand."""
    names: dict[str, str] = {}
    return re.sub(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])", lambda m: names.setdefault(m.group(), "uvwxyzpqr"[len(names) % 9]), text)
