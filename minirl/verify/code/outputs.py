"""Whether the output of a stdin/stdout program is the expected one. Linear in both texts, whatever a program prints."""

import math
import re
from decimal import Decimal, InvalidOperation

# A real number in a text; longer tokens than this are compared as text only.
NUMBER = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d{1,3})?")
NUMBER_CHARACTERS = 400


def same_output(expected: str, got: str, tolerance: float = 1e-6) -> bool:
    """Whether a judge would take it: the same tokens, white space aside; real numbers within the tolerance.

    A token is compared as a number only where the expected one is written as a real number (with a point or exponent).
    """
    wanted, found = expected.split(), got.split()
    return len(wanted) == len(found) and all(w == f or _close(w, f, tolerance) for w, f in zip(wanted, found, strict=True))


def same_lines(expected: str, got: str, tolerance: float = 0.0) -> bool:
    """Whether LiveCodeBench's judge would take it: the same lines, white space around them aside, or lines of numbers
    that are the same exactly (1.0 is 1). tolerance: for those that are real numbers; the judge of that set has none."""
    wanted, found = ([line.strip() for line in text.strip().split("\n")] for text in (expected, got))
    return len(wanted) == len(found) and all(
        w == f or _same_numbers(w, f, tolerance) for w, f in zip(wanted, found, strict=True)
    )


def _same_numbers(wanted: str, found: str, tolerance: float) -> bool:
    pairs = wanted.split(), found.split()
    if len(pairs[0]) != len(pairs[1]):
        return False
    return all(_same_number(w, f, tolerance) for w, f in zip(*pairs, strict=True))


def _same_number(wanted: str, found: str, tolerance: float) -> bool:
    try:
        if Decimal(wanted) == Decimal(found):
            return True
    except InvalidOperation:
        return False
    return tolerance > 0.0 and _close(wanted, found, tolerance)


def _close(wanted: str, found: str, tolerance: float) -> bool:
    if max(len(wanted), len(found)) > NUMBER_CHARACTERS or wanted.lstrip("+-").isdigit():
        return False
    if not (NUMBER.fullmatch(wanted) and NUMBER.fullmatch(found)):
        return False
    return math.isclose(float(wanted), float(found), rel_tol=tolerance, abs_tol=tolerance)
