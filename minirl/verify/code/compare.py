"""Whether a value is the expected one, for tests that call a function. Runs in the judge's process."""

import math
import sys
from collections.abc import Iterable
from typing import Any


def same(expected: Any, got: Any, tolerance: float) -> bool:
    """Equality by exact type, with three allowances: floats within the tolerance (absolute or relative), an integer
    where a float is expected, and a tuple where a list is expected (tests written in JSON have no tuples). Kinds of
    dictionaries count as dictionaries, named tuples as tuples."""
    if type(expected) is float and type(got) in (float, int):
        try:
            return math.isclose(expected, got, rel_tol=tolerance, abs_tol=tolerance) or (expected != expected and got != got)
        except OverflowError:
            return False
    if isinstance(expected, (list, tuple)) and isinstance(got, tuple if isinstance(expected, tuple) else (list, tuple)):
        return len(expected) == len(got) and all(same(e, g, tolerance) for e, g in zip(expected, got, strict=True))
    if isinstance(expected, dict) and isinstance(got, dict):
        return typed(expected) == typed(got) and all(same(value, got[key], tolerance) for key, value in expected.items())
    if type(got) is not type(expected):
        return False
    return typed(expected) == typed(got) if isinstance(expected, (set, frozenset)) else bool(expected == got)


def typed(items: Iterable[Any]) -> set[tuple[type, Any]]:
    return {(type(item), item) for item in items}


def brief(value: Any) -> str:
    digits = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(4300)  # the text of longer integers takes a time that grows with their square
        return repr(value)[:120]
    except Exception:  # noqa: BLE001 - such integers, or a candidate's own object, which may do anything
        return f"<{type(value).__name__}>"
    finally:
        sys.set_int_max_str_digits(digits)
