"""Verdicts on Python programs: extract the code of a response, run it in the sandbox, name the first error.

A problem's extra_info say how it is tested:
* tests: Python source with asserts, or a list of such lines (entry_point: the function; `check(candidate)` or `test_...`
  functions are called);
* tests: {"type": "call", "inputs": [[argument, ...], ...], "outputs": [...]} with entry_point (or fn_name inside);
* tests: {"type": "stdin_stdout", "inputs": [text, ...], "outputs": [text, ...]};
* tests: a list of {"input", "output", "testtype": "stdin" or "functional"} (LiveCodeBench), or of
  {"args", "kwargs", "expected"}.
Structured tests may be JSON text. timeout: seconds for all tests of a problem, or for each stdin/stdout test. tolerance:
how far real numbers may be from the expected ones.

Right means that every test passed. The label of a wrong response: the exception type that compiling raised or the first
failing test met (SyntaxError, IndexError ...), WRONG_ANSWER, TIMEOUT, MEMORY_LIMIT, OUTPUT_LIMIT, CRASHED or NO_CODE.
"""

import ast
import re
import time
import warnings

from minirl.verify.code.extract import extract_code
from minirl.verify.code.formats import Tests, parse_tests, time_limit, tolerance_of
from minirl.verify.code.needed import CODE_CHARACTERS
from minirl.verify.code.outputs import same_lines, same_output
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

START_SECONDS = 5.0  # what the pool allows beside the tests' own limit: starting, killing, and a busy machine
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


def prelude_of(prompt: str, entry_point: str | None) -> str:
    """Imports and helpers that a prompt written in Python defines beside its entry point; "" for other prompts.

    They are part of the question: the candidate may use them, and the tests use these and not the candidate's.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of strange escapes in somebody's strings
            body = ast.parse(prompt).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    named = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == entry_point]
    nodes = [node for node in body if isinstance(node, kept) and node not in named]
    return "\n".join(ast.unparse(node) for node in nodes) if named else ""


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


class CodeVerifier:
    """The verifier "code". timeout: seconds where the tests name none; sandbox: a mode of minirl/verify/code/sandbox.py.

    tolerance: for real numbers, absolute or relative, where the problem names none. Without it 1e-6, but exact where tests
    have LiveCodeBench's form of stdin and stdout, as in its judge.
    """

    def __init__(
        self, timeout: float = 5.0, memory_mb: int = 2048, sandbox: str | None = None, tolerance: float | None = None
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
            tolerance = tolerance_of(problem)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return Verdict(ERROR, detail=f"problem {problem.id} cannot be tested: {type(error).__name__}: {error}")
        tolerance = self.tolerance if tolerance is None else tolerance
        wanted = tests.entry_point or " ".join(re.findall(r"([^\W\d]\w*+)\s*+\(", tests.script))
        code = extract_code(response, problem.prompt, wanted, tests.kind == "program")
        if code is None:
            return Verdict(WRONG, NO_CODE, detail="no Python code in the response")
        if len(code) > CODE_CHARACTERS:
            return Verdict(WRONG, OUTPUT_LIMIT, detail=f"{len(code)} characters of code")
        run = self._programs if tests.kind == "program" else self._tests
        status, label, detail = run(problem, tests, code, seconds, tolerance)
        detail = detail.encode("utf-8", "replace").decode()  # half characters of a program must not reach the run's files
        return Verdict(status, label, seconds=time.monotonic() - start, detail=detail)

    def _tests(
        self, problem: Problem, tests: Tests, code: str, seconds: float, tolerance: float | None
    ) -> tuple[str, str, str]:
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
            tolerance=1e-6 if tolerance is None else tolerance,
            wrapped=tests.wrapped,
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

    def _programs(
        self, problem: Problem, tests: Tests, code: str, seconds: float, tolerance: float | None
    ) -> tuple[str, str, str]:
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
            exact, close = (0.0, 1e-6) if tolerance is None else (tolerance, tolerance)
            if not (same_lines(expected, got, exact) if tests.by_lines else same_output(expected, got, close)):
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
