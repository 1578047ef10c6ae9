"""Half a minute of benchmarks/fuzz.py, and that it notices what it looks for."""

import json
import subprocess
import sys

import pytest

from benchmarks import fuzz
from minirl.verify.math.verifier import MathVerifier
from minirl.verify.types import ERROR, RIGHT, Verdict
from tests.conftest import ROOT


@pytest.mark.slow
@pytest.mark.timeout(400)  # a core that others use makes an answer take several times its 50 ms
def test_half_a_minute_of_random_cases_finds_nothing():
    command = [sys.executable, "-m", "benchmarks.fuzz", "--seconds", "30", "--slow", "0.25", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=390, check=False)
    report = json.loads(done.stdout)
    assert {part: found["first"] for part, found in report.items() if found["findings"] and "kinds" not in found} == {}
    assert done.returncode == 0
    assert all(found["cases"] > 10 for found in report.values()), "else it tried nothing"


def raises(*_):
    raise KeyError("gone")


@pytest.mark.parametrize(
    "judged", [raises, lambda *_: Verdict(ERROR), lambda *_: Verdict("wrong"), lambda *_: fuzz.time.sleep(0)]
)
def test_a_grader_that_fails_is_found(judged, monkeypatch):
    monkeypatch.setattr(MathVerifier, "__call__", judged)
    _, findings = fuzz.run_part("grader", 0, iter(range(5)), float("inf"))
    assert findings


def one_sided(self, problem, response):
    return Verdict(RIGHT if response < problem.answer else "wrong")


def test_slowness_and_one_sidedness_are_found(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(fuzz.time, "process_time", lambda: next(clock))
    monkeypatch.setattr(
        MathVerifier, "__call__", lambda self, problem, response: Verdict(RIGHT if response < problem.answer else "wrong")
    )
    _, findings = fuzz.run_part("grader", 0, iter(range(8)), float("inf"))
    assert any(" s for " in text for text in findings)
    assert any("the other way round" in text for text in findings)


def test_a_case_comes_again_by_its_number():
    assert [fuzz.answer(fuzz.generator("grader", 3, 5)) for _ in range(2)] == [fuzz.answer(fuzz.generator("grader", 3, 5))] * 2
    assert fuzz.program(fuzz.generator("sandbox", 0, 1)) != fuzz.program(fuzz.generator("sandbox", 0, 2))
