"""Verdicts on Python programs: extract the code of a response, run it in the sandbox, name the first error.

A problem's extra_info say how it is tested:
* tests: Python source with asserts, or a list of such lines (entry_point: the function; `check(candidate)` or `test_...`
  functions are called);
* tests: {"type": "call", "inputs": [[argument, ...], ...], "outputs": [...]} with entry_point (or fn_name inside);
* tests: {"type": "stdin_stdout", "inputs": [text, ...], "outputs": [text, ...]};
* tests: a list of {"input", "output", "testtype": "stdin" or "functional"} (LiveCodeBench), or of
  {"args", "kwargs", "expected"}.
Structured tests may be JSON text. timeout: seconds for all tests of a problem, or for each stdin/stdout test.

Right means that every test passed. The label of a wrong response: the exception type that compiling raised or the first
failing test met (SyntaxError, IndexError ...), WRONG_ANSWER, TIMEOUT, MEMORY_LIMIT, OUTPUT_LIMIT, CRASHED or NO_CODE.
"""

import ast
import contextlib
import json
import math
import re
import textwrap
import time
import warnings
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from minirl.verify.code.sandbox import Sandbox
from minirl.verify.types import (
    CRASHED,
    ERROR,
    MEMORY_LIMIT,
    NO_CODE,
    OUTPUT_LIMIT,
    RIGHT,
    TIMEOUT,
    WRONG,
    WRONG_ANSWER,
    Problem,
    Verdict,
)

CODE_CHARACTERS = 200_000  # longer code is not compiled
START_SECONDS = 5.0  # what the pool allows beside the tests' own limit: starting, killing, and a busy machine
FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([^\n`]*)\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
CODE_LINE = re.compile(r"^(def |class |import |from \w+ import |@|async def )", re.MULTILINE)
# What runners of call tests (LeetCode's, LiveCodeBench's) offer to a solution, as far as the standard library goes.
CALLS_PRELUDE = """\
import bisect, collections, functools, heapq, itertools, math, random, re, string
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
from builtins import *

class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next

class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right
"""
ENDINGS = {"SIGXCPU": TIMEOUT, "SIGKILL": MEMORY_LIMIT, "SIGXFSZ": OUTPUT_LIMIT}
RENAMED = {"MemoryError": MEMORY_LIMIT, "TooLarge": OUTPUT_LIMIT}


@dataclass(frozen=True)
class Tests:
    """kind: "script", "calls" or "program", with the field that belongs to it. by_lines: output as LiveCodeBench takes it."""

    kind: str
    entry_point: str | None = None
    script: str = ""
    calls: list[tuple[list[Any], dict[str, Any], Any]] = field(default_factory=list)
    programs: list[tuple[str, str]] = field(default_factory=list)
    by_lines: bool = False


def extract_code(response: str, prompt: str = "") -> str | None:
    """The program in a response, or None.

    The last fenced block marked as Python, else the last unmarked one (a fence that never closes ends with the text).
    Without any fence: the whole text if it compiles, else the prompt with it if the prompt is Python and both together
    compile, else the text from its first line that starts a definition or an import.
    """
    blocks = [(language.strip().lower(), body) for _, language, body in FENCE.findall(response)]
    if blocks:
        python = [body for language, body in blocks if language.split(" ")[0] in ("python", "py", "python3")]
        unmarked = [body for language, body in blocks if not language]
        found = textwrap.dedent((python or unmarked or [""])[-1])  # blocks in lists are indented as a whole
        return found if found.strip() else None
    if not response.strip() or len(response) > CODE_CHARACTERS:
        return None
    if _defines_something(response):
        return response
    if _defines_something(prompt) and _defines_something(prompt + response):
        return prompt + response
    start = CODE_LINE.search(response)
    return response[start.start() :] if start else None


def _defines_something(text: str) -> bool:
    """Whether it compiles and holds a statement that is more than a word of prose or a number."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of strange escapes in somebody's strings
            body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call) for node in body)


def prelude_of(prompt: str, entry_point: str | None) -> str:
    """Imports and helpers that a prompt written in Python defines beside its entry point; "" for other prompts.

    They are part of the question: the candidate may use them, and the tests use these and not the candidate's.
    """
    try:
        body = ast.parse(prompt).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    named = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == entry_point]
    nodes = [node for node in body if isinstance(node, kept) and node not in named]
    return "\n".join(ast.unparse(node) for node in nodes) if named else ""


def parse_tests(problem: Problem) -> Tests:
    """The tests of a problem. ValueError says what is wrong with them."""
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
    elif isinstance(tests, list) and tests and all(isinstance(test, dict) for test in tests):
        if all("expected" in test for test in tests):
            calls = [(test.get("args", []), test.get("kwargs", {}), test["expected"]) for test in tests]
        elif all(test.get("testtype", "stdin") == "stdin" for test in tests):
            programs = [(_text(test["input"]), _text(test["output"])) for test in tests]
            return Tests("program", programs=programs, by_lines=True)
        else:
            lines = [[json.loads(line) for line in test["input"].splitlines() if line.strip()] for test in tests]
            calls = [(line, {}, json.loads(test["output"])) for line, test in zip(lines, tests, strict=True)]
    else:
        raise ValueError(f"tests must be Python source, an object or a list of one kind, not {type(tests).__name__}")
    if not isinstance(entry_point, str):
        raise ValueError("tests that call a function need entry_point")
    if not all(isinstance(arguments, (list, tuple)) for arguments, _, _ in calls):
        raise ValueError("the inputs of a call must be a list of its arguments")
    return Tests("calls", entry_point, calls=calls)


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


def pool_deadline(problem: Problem, default: float) -> float:
    """Seconds after which even the sandbox must have answered; problems that cannot be read are answered at once."""
    try:
        tests = parse_tests(problem)
        return max(1, len(tests.programs)) * (time_limit(problem, default) + 0.1) + START_SECONDS
    except (ValueError, KeyError, TypeError, AttributeError):
        return default + START_SECONDS


def label_of(exception: str) -> str:
    """The label of an exception type. A program may give its types any name, so only plain names stand."""
    return RENAMED.get(exception, exception if exception.isidentifier() else "Exception")


def same_output(expected: str, got: str, tolerance: float = 1e-6) -> bool:
    """Whether a judge would take it: the same tokens, white space aside; real numbers within the tolerance.

    A token is compared as a number only where the expected one is written as a real number (with a point or exponent).
    """
    wanted, found = expected.split(), got.split()
    return len(wanted) == len(found) and all(w == f or _close(w, f, tolerance) for w, f in zip(wanted, found, strict=True))


def same_lines(expected: str, got: str) -> bool:
    """Whether LiveCodeBench's judge would take it: the same lines, white space around them aside, or lines of numbers
    that are the same exactly (1.0 is 1)."""
    wanted, found = ([line.strip() for line in text.strip().split("\n")] for text in (expected, got))
    return len(wanted) == len(found) and all(w == f or _same_decimals(w, f) for w, f in zip(wanted, found, strict=True))


def _same_decimals(wanted: str, found: str) -> bool:
    try:
        return [Decimal(word) for word in wanted.split()] == [Decimal(word) for word in found.split()]
    except InvalidOperation:
        return False


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")


def _close(wanted: str, found: str, tolerance: float) -> bool:
    if wanted.lstrip("+-").isdigit() or not (NUMBER.fullmatch(wanted) and NUMBER.fullmatch(found)):
        return False
    return math.isclose(float(wanted), float(found), rel_tol=tolerance, abs_tol=tolerance)


class CodeVerifier:
    """The verifier "code". timeout: seconds where the tests name none; sandbox: a mode of minirl/verify/sandbox.py."""

    def __init__(
        self, timeout: float = 5.0, memory_mb: int = 2048, sandbox: str | None = None, tolerance: float = 1e-6
    ) -> None:
        self.timeout, self.tolerance = timeout, tolerance
        self.sandbox = Sandbox(sandbox, memory_bytes=memory_mb << 20)

    def describe(self) -> str:
        return self.sandbox.describe()

    def close(self) -> None:
        self.sandbox.close()

    def __call__(self, problem: Problem, response: str) -> Verdict:
        start = time.monotonic()
        try:
            tests, seconds = parse_tests(problem), time_limit(problem, self.timeout)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return Verdict(ERROR, detail=f"problem {problem.id} cannot be tested: {type(error).__name__}: {error}")
        code = extract_code(response, problem.prompt)
        if code is None:
            return Verdict(WRONG, NO_CODE, detail="no Python code in the response")
        if len(code) > CODE_CHARACTERS:
            return Verdict(WRONG, OUTPUT_LIMIT, detail=f"{len(code)} characters of code")
        run = self._programs if tests.kind == "program" else self._tests
        status, label, detail = run(problem, tests, code, seconds)
        detail = detail.encode("utf-8", "replace").decode()  # half characters of a program must not reach the run's files
        return Verdict(status, label, seconds=time.monotonic() - start, detail=detail)

    def _tests(self, problem: Problem, tests: Tests, code: str, seconds: float) -> tuple[str, str, str]:
        entry, prelude = tests.entry_point, prelude_of(problem.prompt, tests.entry_point)
        in_class = re.search(r"^class Solution\b", code, re.MULTILINE) is not None
        if tests.kind == "calls" and entry and "." not in entry and in_class:
            entry = entry if re.search(rf"^def {re.escape(entry)}\b", code, re.MULTILINE) else f"Solution.{entry}"
        if tests.kind == "calls":
            prelude = CALLS_PRELUDE + prelude
        outcome = self.sandbox.run_tests(
            code,
            entry_point=entry,
            tests=tests.script if tests.kind == "script" else None,
            cases=tests.calls,
            prelude=prelude,
            prompt=problem.prompt,
            tolerance=self.tolerance,
            seconds=seconds,
        )
        status, detail = outcome["status"], outcome.get("detail", "")
        if status == "right":
            return RIGHT, "", ""
        if status == "error":
            return ERROR, "", f"problem {problem.id}: {detail}"
        if status == "timeout":
            return WRONG, TIMEOUT, f"not done after {seconds:g} s"
        if status == "gone":
            ending = outcome.get("ending", "")
            return WRONG, ENDINGS.get(ending, CRASHED), f"the program ended before it answered: {ending or 'unknown'}"
        return WRONG, label_of(outcome["label"]), detail

    def _programs(self, problem: Problem, tests: Tests, code: str, seconds: float) -> tuple[str, str, str]:
        for number, (stdin, expected) in enumerate(tests.programs):
            outcome = self.sandbox.run_program(code, stdin, seconds)
            status, ending = outcome["status"], outcome.get("ending", "")
            if status == "error":
                return ERROR, "", f"problem {problem.id}: {outcome['detail']}"
            if status == "timeout":
                return WRONG, TIMEOUT, f"test {number}: not done after {seconds:g} s"
            if status == "output limit":
                return WRONG, OUTPUT_LIMIT, f"test {number}: more than {self.sandbox.output_bytes} bytes of output"
            if status == "raised":
                return WRONG, label_of(outcome["label"]), f"test {number}: {outcome['detail']}"
            if ending != "exit code 0":
                return (
                    WRONG,
                    ENDINGS.get(ending, CRASHED),
                    f"test {number}: the program ended with {ending or 'nothing'}",
                )
            got = outcome["output"]
            if not (same_lines(expected, got) if tests.by_lines else same_output(expected, got, self.tolerance)):
                return WRONG, WRONG_ANSWER, f"test {number}: expected {expected[:80]!r}, got {got[:80]!r}"
        return RIGHT, "", ""

    def self_test(self) -> bool:
        """Whether a right program passes, and a wrong one, a raising one and one that only exits well do not."""
        call = Problem("self-test", "", "", {"tests": "assert f(2) == 4\nassert f(3) == 9", "entry_point": "f"})
        program = Problem("self-test", "", "", {"tests": {"type": "stdin_stdout", "inputs": ["2\n"], "outputs": ["4"]}})
        expected = [
            (call, "def f(x):\n    return x * x", RIGHT, ""),
            (call, "def f(x):\n    return x + x", WRONG, WRONG_ANSWER),
            (call, "def f(x):\n    raise OSError", WRONG, "OSError"),
            (call, "import os\nos._exit(0)", WRONG, CRASHED),
            (program, "print(int(input()) ** 2)", RIGHT, ""),
            (program, "print(int(input()) + 1)", WRONG, WRONG_ANSWER),
        ]
        verdicts = [self(problem, f"```python\n{code}\n```") for problem, code, _, _ in expected]
        return all((v.status, v.label) == (e[2], e[3]) for v, e in zip(verdicts, expected, strict=True))


def confinement() -> str:
    """What confines programs on this machine, for people."""
    verifier = CodeVerifier()
    try:
        return verifier.describe()
    finally:
        verifier.close()
