"""Grades answers to mathematics problems, with one of three graders:

exact       equality of canonical keys (minirl/verify/canonical.py), the default
mathruler   the verdicts of mathruler 0.1.0, the grader of the EDAS paper, wherever it terminates
math_verify the verdicts of math-verify 0.9.0

An answer in training is the content of the last complete box. The label of a wrong answer is its canonical key,
whatever the grader, so that classes of errors are the same for every order of the rollouts.
"""

import re
import time
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from itertools import permutations
from typing import Any

from minirl.verify.math import extract, values
from minirl.verify.math.canonical import canonical_key, nesting, read
from minirl.verify.math.clean import clean
from minirl.verify.math.latex import MAX_DEPTH, Node, Unreadable, parse
from minirl.verify.math.trees import Tree
from minirl.verify.types import EMPTY_ANSWER, NO_ANSWER, RIGHT, WRONG, Problem, Verdict

# Beyond these the other graders may not come back: their answer is then decided by their own text comparison only.
MAX_LENGTH = 2000
MAX_NUMBER_LOG2 = 2e6
MAX_POLYNOMIAL_POWER = 200


def exact(answer: str, gold: str) -> bool:
    return canonical_key(answer) == canonical_key(gold)


def mathruler(answer: str, gold: str) -> bool:
    from mathruler import grader

    if terminates(answer) and terminates(gold):
        return bool(grader.grade_answer(answer, gold))
    # The part of grade_answer that comes before sympy.
    if grader.normalize_answer(answer) == grader.normalize_answer(gold):
        return True
    return len(answer) <= MAX_LENGTH and grader._normalize(answer) == grader._normalize(gold)


def math_verify(answer: str, gold: str) -> bool:
    import math_verify as library

    if not (terminates(answer) and terminates(gold)):
        return answer.strip() == gold.strip()
    # No timeouts of its own: they need signals, which fail outside the main thread. The pool has a deadline.
    parsed = [library.parse(f"${text}$", parsing_timeout=None, raise_on_error=True) for text in (gold, answer)]
    return bool(library.verify(*parsed, timeout_seconds=None, raise_on_error=True))


GRADERS: dict[str, Callable[[str, str], bool]] = {"exact": exact, "mathruler": mathruler, "math_verify": math_verify}


REPEATED = re.compile(r"[\]'\"]\s*\*|,[^()]*\)\s*\*|\*\s*[\['\"]|\*\s*\([^()]*,")  # [1]*10**9 is a list to sympy
TOWER = re.compile(r"\^.*\^|\^\W*\d{4}|\d{4}\)*\s*!|!.*!|\)\s*!|[eE]\+?\d{6}")


def terminates(text: str) -> bool:
    """Whether sympy can be trusted with a text: it is not too long, and no number or power in it is too large."""
    if len(text) > MAX_LENGTH or nesting(text) > MAX_DEPTH:
        return False
    if not re.search(r"[\^!]|\*\*|binom|[eE]\+?\d{6}", text):
        return not (REPEATED.search(text) and re.search(r"\d{5}", text))
    cleaned = clean(text)
    if REPEATED.search(cleaned):
        return False
    return all(map(small, re.split(r"[=<>≤≥≠≈,;]", cleaned)))


def small(expression: str) -> bool:
    if not re.search(r"[\^!eE]|binom", expression):
        return True
    try:
        return log2_bound(parse(expression)) <= MAX_NUMBER_LOG2
    except Unreadable:
        return not TOWER.search(expression)


def log2_bound(node: Node) -> float:
    """An upper bound of log2 of all numbers that evaluating a tree makes; infinite when a power is too large."""
    if node[0] == "num":
        return float(values.bits(node[1]))
    if node[0] == "sym":
        return 2.0
    parts = [log2_bound(part) for part in node[1:] if isinstance(part, tuple)]
    if node[0] == "pow":
        if node[2][0] == "num" and values.symbols(node[1]) and abs(node[2][1]) > MAX_POLYNOMIAL_POWER:
            return float("inf")
        return parts[0] * 2.0 ** min(parts[1], 500)
    if node[0] == "fn" and node[1] in ("!", "!!", "binom"):
        return parts[0] * 2.0 ** min(parts[0], 500)
    return sum(parts) + len(parts)


@lru_cache(maxsize=65_536)
def check_gold(answer: str) -> str | None:
    """A sentence that says why a gold answer is unfit, None when it can be read. Words are readable as words."""
    if not answer.strip():
        return "the gold answer is empty"
    tree = read(answer)
    if (
        tree.kind == "text"
        and re.search(r"[\d\\=+^/]", tree.key.removeprefix("text:"))
        and not re.match("base |.*:", tree.key[5:])
    ):
        return f"the gold answer {answer!r} cannot be read as mathematics; only the same text will be right"
    return None


class MathVerifier:
    """Scores responses whose answer stands in a box, or is all there is. See the module's docstring for the graders."""

    def __init__(self, grader: str = "exact", answer: str = "boxed"):
        if grader not in GRADERS:
            raise ValueError(f"unknown grader {grader!r}: use one of {', '.join(GRADERS)}")
        self.grader = grader
        self.grade = GRADERS[grader]
        if answer not in ("boxed", "whole"):
            raise ValueError(f"the answer is the last box (boxed) or the whole response (whole), not {answer!r}")
        self.extract: Callable[[str], str | None] = extract.boxed if answer == "boxed" else str.strip

    def __call__(self, problem: Problem, response: str) -> Verdict:
        start = time.perf_counter()
        answer = self.extract(response)
        if not answer:
            label = NO_ANSWER if answer is None else EMPTY_ANSWER
            return Verdict(WRONG, label, seconds=time.perf_counter() - start)
        key = canonical_key(answer)
        right = self.grade(answer, problem.answer)
        return Verdict(RIGHT if right else WRONG, "" if right else key, key, seconds=time.perf_counter() - start)

    def self_test(self) -> None:
        """Raises RuntimeError when the grader cannot tell right from wrong here (math-verify #50: a grader whose errors
        are swallowed outside the main thread gives every answer 0)."""
        for answer, gold, expected in SELF_TEST:
            if self.grade(answer, gold) is not expected:
                raise RuntimeError(f"grader {self.grader}: {answer!r} against {gold!r} is not judged {expected}")


SELF_TEST = [
    ("0.5", "1/2", True),
    ("0.5", "1/3", False),
    ("x+1", "1+x", True),
    ("x+1", "x+2", False),
    ("7", "7", True),
    ("7", "8", False),
]


# Rows of (gold, pred) texts with the settings that a benchmark names for them.


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
        numbers = extract.NUMBER.findall(text)
        last = numbers[-1].rstrip(",") if numbers else text
        return re.sub(r"^([-+]?\d+),(\d{1,2})$", r"\1.\2", last)
    if "latex" in types and "expr" not in types and extract.boxed(text) is None and not extract.MATH.search(text):
        return None
    return extract.answer(text)


def anonymous(text: str) -> str:
    """Single-letter names replaced in the order in which they first stand."""
    names: dict[str, str] = {}
    return re.sub(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])", lambda m: names.setdefault(m.group(), "uvwxyzpqr"[len(names) % 9]), text)
