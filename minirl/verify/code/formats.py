"""The tests of a problem, in the forms of the data sets; and how long they may take."""

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from minirl.verify.types import Problem


@dataclass(frozen=True)
class Tests:
    """kind: "script", "calls" or "program", with the field that belongs to it.

    by_lines: output as LiveCodeBench takes it. wrapped: the expected values of a problem are all lists of one value, as APPS,
    TACO and DeepCoder write the value itself; either is right.
    """

    kind: str
    entry_point: str | None = None
    script: str = ""
    calls: list[tuple[list[Any], dict[str, Any], Any]] = field(default_factory=list)
    programs: list[tuple[str, str]] = field(default_factory=list)
    by_lines: bool = False
    wrapped: bool = False


@contextlib.contextmanager
def integers_of_any_length() -> Iterator[None]:
    """Python refuses to read integers of more than 4,300 digits, against slow input; tests are no such input."""
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(digits)


def parse_tests(problem: Problem) -> Tests:
    """The tests of a problem. ValueError says what is wrong with them."""
    with integers_of_any_length():
        return _parse_tests(problem)


def _parse_tests(problem: Problem) -> Tests:
    tests, entry_point = problem.extra_info.get("tests"), problem.extra_info.get("entry_point")
    if isinstance(tests, str) and tests.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(json.JSONDecodeError):  # a script may begin with a bracket too
            tests = json.loads(tests)
    if isinstance(tests, str) and tests.strip():
        return Tests("script", entry_point, script=tests)
    if isinstance(tests, list) and tests and all(isinstance(test, str) for test in tests):  # MBPP's list of asserts
        return Tests("script", entry_point, script="\n".join(tests))
    if isinstance(tests, dict) and isinstance(tests.get("functional"), str):  # Code-R1's name for a script
        return Tests("script", entry_point, script=tests["functional"])
    if isinstance(tests, dict):
        entry_point = tests.get("fn_name") or tests.get("entry_point") or entry_point
        inputs, outputs = tests.get("inputs"), tests.get("outputs", tests.get("expected"))
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
            raise ValueError("tests need inputs and outputs, lists of the same length, not empty")
        if tests.get("type") in ("stdin_stdout", "stdin") or (tests.get("type") is None and not entry_point):
            return Tests("program", programs=[(_text(i), _text(o)) for i, o in zip(inputs, outputs, strict=True)])
        calls: list[tuple[list[Any], dict[str, Any], Any]] = [(i, {}, o) for i, o in zip(inputs, outputs, strict=True)]
        wrapped = True
    elif isinstance(tests, list) and tests and all(isinstance(test, dict) for test in tests):
        entry_point = tests[0].get("fn_name") or entry_point
        wrapped = False
        if all("expected" in test for test in tests):
            calls = [(test.get("args", []), test.get("kwargs", {}), test["expected"]) for test in tests]
        elif all(test.get("testtype", test.get("type", "stdin")) in ("stdin", "stdin_stdout") for test in tests):
            programs = [(_text(test["input"]), _text(test["output"])) for test in tests]
            return Tests("program", programs=programs, by_lines="type" not in tests[0])
        else:
            calls = [(_arguments(test["input"]), {}, _value(test["output"])) for test in tests]
            wrapped = "testtype" not in tests[0]
    else:
        raise ValueError(f"tests must be Python source, an object or a list of one kind, not {type(tests).__name__}")
    if not isinstance(entry_point, str):
        raise ValueError("tests that call a function need entry_point")
    if not all(isinstance(arguments, (list, tuple)) for arguments, _, _ in calls):
        raise ValueError("the inputs of a call must be a list of its arguments")
    wrapped = wrapped and all(isinstance(expected, list) and len(expected) == 1 for _, _, expected in calls)
    return Tests("calls", entry_point, calls=calls, wrapped=wrapped)


def _arguments(value: Any) -> Any:
    """LiveCodeBench writes each argument as a line of JSON; others write a list."""
    return [json.loads(line) for line in value.splitlines() if line.strip()] if isinstance(value, str) else value


def _value(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    if isinstance(value, list):  # some sets keep the lines apart
        return "\n".join(map(str, value))
    if not isinstance(value, str):
        raise ValueError(f"stdin and stdout must be text, not {type(value).__name__}")
    return value


def time_limit(problem: Problem, default: float) -> float:
    """The tests' own limit in seconds, or the default."""
    value = problem.extra_info.get("timeout")
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"timeout must be a number of seconds above 0, not {value!r}")
    return float(value)


def tolerance_of(problem: Problem) -> float | None:
    """How far a real number may be from the expected one, absolute or relative, where the problem says so."""
    value = problem.extra_info.get("tolerance")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"tolerance must be a number from 0 on, not {value!r}")
    return float(value)
