"""Rewards of the user's own: what they get, what they may return, how they combine, and how their faults are told."""

import pickle
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from minirl.verify.pool.pool import VerifierPool
from minirl.verify.registry import combine, load_verifier
from minirl.verify.rewards import as_verdict, load_function, reward_of
from minirl.verify.types import ERROR, RIGHT, WRONG, Problem, Verdict, VerifierError

SOURCE = """
from dataclasses import dataclass
from minirl.verify import Verdict

def length(problem, response, rollout):
    return len(response) / 10

def same(problem, response, rollout):
    right = response == problem.answer
    return Verdict("right" if right else "wrong", label="" if right else response, key=response)

def record(problem, response, rollout):
    return {"status": "wrong", "label": "late", "reward": -0.5}

def short(problem, response, rollout):
    return 1.0 if rollout["tokens"] < 5 else 0.0

def fails(problem, response, rollout):
    raise KeyError("nothing there")

def text(problem, response, rollout):
    return "one"

def infinite(problem, response, rollout):
    return float("inf")

def error(problem, response, rollout):
    return Verdict("error", detail="no judge today")

def hungry(problem, response, rollout):
    return len(bytearray(5 << 30))

not_a_function = 3
"""
PROBLEM = Problem("algebra/7", "1 + 1?", "2")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "mine.py"
    path.write_text(SOURCE)
    return str(path)


def test_a_number_is_the_reward(file):
    with VerifierPool(f"{file}:length", workers=1) as pool:
        verdicts = pool.grade([(PROBLEM, "x" * 4), (PROBLEM, "x" * 20)])
    assert [(v.status, v.reward) for v in verdicts] == [(WRONG, 0.4), (RIGHT, 2.0)]


def test_a_record_says_all(file):
    verify = load_verifier(f"{file}:same")
    assert verify(PROBLEM, "2") == Verdict(RIGHT, key="2")
    assert verify(PROBLEM, "3") == Verdict(WRONG, label="3", key="3")
    assert load_verifier(f"{file}:record")(PROBLEM, "") == Verdict(WRONG, label="late", reward=-0.5)


def test_facts_of_the_rollout_reach_the_function_through_the_pool(file):
    with VerifierPool(f"{file}:short", workers=2) as pool:
        futures = [pool.submit(PROBLEM, "same text", {"tokens": tokens}) for tokens in (3, 7, 4)]
        assert [future.result().reward for future in futures] == [1.0, 0.0, 1.0]


def test_a_fault_names_the_function_the_problem_and_the_rollout(file):
    with VerifierPool(f"{file}:fails", workers=1) as pool:
        verdict = pool.submit(PROBLEM, "2", {"step": 12, "sample": 5}).result()
    assert verdict.status == ERROR
    for word in ("mine.py:fails", "algebra/7", "'step': 12", "'sample': 5", "KeyError", "nothing there"):
        assert word in verdict.detail


@pytest.mark.parametrize(("name", "words"), [("text", "number"), ("infinite", "finite")])
def test_a_result_that_is_no_reward_is_an_error(file, name, words):
    verdict = load_verifier(f"{file}:{name}")(PROBLEM, "2")
    assert verdict.status == ERROR
    assert words in verdict.detail


def test_results_that_are_no_rewards():
    with pytest.raises(ValueError, match="status"):
        as_verdict(Verdict("good"))
    with pytest.raises(TypeError):
        as_verdict({"status": RIGHT, "colour": "red"})
    with pytest.raises(ValueError, match="finite"):
        as_verdict({"status": RIGHT, "reward": float("nan")})
    with pytest.raises(TypeError):
        as_verdict(None)
    with pytest.raises(ValueError, match="no reward"):
        reward_of(Verdict(ERROR))
    assert (reward_of(Verdict(RIGHT)), reward_of(Verdict(WRONG)), reward_of(Verdict(WRONG, reward=0.3))) == (1, 0, 0.3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("label=['a']", "label must be a text, not ['a']"),
        ("label=None", "label must be a text, not None"),
        ("key=7", "key must be a text, not 7"),
        ("detail=b'x'", "detail must be a text, not b'x'"),
        ("terms={'t': float('nan')}", "the term 't' must be finite, not nan"),
        ("terms={'t': 'high'}", "the term 't' must be a number, not str"),
        ("terms={3: 1.0}", "terms must be a mapping from names to numbers, not {3: 1.0}"),
        ("terms=[1.0]", "terms must be a mapping from names to numbers, not [1.0]"),
        ("seconds='1'", "seconds must be a number, not str"),
    ],
)
def test_a_record_with_a_field_of_another_type_is_an_error_of_the_function(tmp_path, fields, words):
    (tmp_path / "mine.py").write_text(f"def odd(problem, response, rollout):\n    return dict(status='wrong', {fields})\n")
    verdict = load_verifier(f"{tmp_path}/mine.py:odd")(PROBLEM, "2")
    assert (verdict.status, verdict.label, verdict.terms) == (ERROR, "", {})
    assert "mine.py:odd failed on problem algebra/7" in verdict.detail
    assert words in verdict.detail


def test_terms_of_a_record_become_floats():
    terms = as_verdict({"status": WRONG, "terms": {"t": Fraction(1, 4), "u": True}}).terms
    assert terms == {"t": 0.25, "u": 1.0}
    assert [type(value) for value in terms.values()] == [float, float]


def test_rewards_combine_with_weights_and_the_first_decides(file):
    rewards = [(f"{file}:same", 1.0), (f"{file}:length", 0.5), (f"{file}:short", -0.25)]
    with VerifierPool("combine", {"rewards": rewards}, workers=1) as pool:
        verdict = pool.submit(PROBLEM, "3", {"tokens": 1}).result()
        assert pool.submit(PROBLEM, "2", {"tokens": 9}).result().reward == pytest.approx(1.0 + 0.5 * 0.1)
    assert (verdict.status, verdict.label, verdict.key) == (WRONG, "3", "3")
    assert verdict.reward == pytest.approx(0.5 * 0.1 - 0.25)


def test_the_terms_of_a_combined_reward_are_kept(file):
    rewards = [(f"{file}:same", 1.0), (f"{file}:length", 0.5), (f"{file}:length", -0.25)]
    with VerifierPool("combine", {"rewards": rewards}, workers=1) as pool:
        verdict = pool.submit(PROBLEM, "2", {}).result()
    assert verdict.terms == {f"{file}:same": 1.0, f"{file}:length": 0.1, f"{file}:length#2": 0.1}
    assert verdict.reward == pytest.approx(1.0 + 0.05 - 0.025)
    assert pickle.loads(pickle.dumps(verdict)) == verdict
    assert Verdict(RIGHT).terms == {}
    assert hash(verdict) == hash(verdict)


class Scalar:
    def __init__(self, value):
        self.value = value

    def __float__(self):
        return self.value


@pytest.mark.parametrize(
    ("number", "reward"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array(0.5), 0.5),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(3), 3.0),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
        (True, 1.0),
        (Scalar(0.75), 0.75),
    ],
)
def test_scalars_of_any_library_are_numbers(number, reward):
    for verdict in (
        as_verdict(number),
        as_verdict({"status": WRONG, "reward": number}),
        as_verdict(Verdict(WRONG, reward=number)),
    ):
        assert (type(verdict.reward), verdict.reward) == (float, reward)
    assert as_verdict(number).status == (RIGHT if reward >= 1 else WRONG)


@pytest.mark.parametrize(
    "result",
    [np.array([0.5]), np.array([True]), torch.tensor([1.0]), torch.ones(1, 1), [1.0], (1.0,), "1.0", 1j, np.complex64(1), None],
)
def test_arrays_lists_and_texts_are_no_numbers(result):
    with pytest.raises(TypeError, match="must return a number"):
        as_verdict(result)


@pytest.mark.parametrize("result", [np.float32("nan"), np.float64("inf"), torch.tensor(float("-inf")), Decimal("NaN")])
def test_scalars_that_are_not_finite_are_refused(result):
    with pytest.raises(ValueError, match="finite"):
        as_verdict(result)


def test_an_error_of_a_part_is_an_error_of_the_whole(file):
    verdict = combine([(f"{file}:same", 1.0), (f"{file}:error", 0.1)])(PROBLEM, "2", {})
    assert verdict.status == ERROR
    assert "mine.py:error" in verdict.detail
    assert "no judge today" in verdict.detail


def test_memory_is_limited_whatever_the_verifier_is_called(file):
    for name, options in ((f"{file}:hungry", {}), ("combine", {"rewards": [("math", 1.0), (f"{file}:hungry", 0.1)]})):
        with VerifierPool(name, options, workers=1) as pool:
            verdict = pool.submit(PROBLEM, "\\boxed{2}").result()
        assert verdict.status == ERROR
        assert "MemoryError" in verdict.detail


def test_code_may_be_a_part(file):
    problem = Problem("p", "", "", {"tests": "assert f(2) == 4", "entry_point": "f"})
    response = "```python\ndef f(x): return x * x\n```"
    with VerifierPool("combine", {"rewards": [("code", 1.0), (f"{file}:length", 0.01)]}, workers=1) as pool:
        good, bad = pool.grade([(problem, response), (problem, "```python\nf = 1 / 0\n```")])
    assert (good.status, bad.status, bad.label) == (RIGHT, WRONG, "ZeroDivisionError")
    assert good.reward == pytest.approx(1.0 + 0.001 * len(response))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("{file}:nothing", "no function 'nothing'"),
        ("{file}:not_a_function", "no function"),
        ("{folder}/other.py:f", "no file"),
        ("{folder}/broken.py:f", "SyntaxError"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(file, name, words, tmp_path):
    (tmp_path / "broken.py").write_text("def f(:")
    with pytest.raises(VerifierError, match=words):
        load_verifier(name.format(file=file, folder=tmp_path))


@pytest.mark.parametrize("rewards", [[], [("math",)], [(3, 1.0)], [("math", "much")]])
def test_a_bad_combination_is_refused(rewards):
    with pytest.raises(VerifierError):
        combine(rewards)


def test_unknown_options_are_refused(file):
    with pytest.raises(VerifierError, match="does not take"):
        load_verifier("code", colour="red")
    with pytest.raises(VerifierError, match="does not take"):
        load_verifier(f"{file}:length", colour="red")


def test_the_example_of_the_documentation_works(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "verifiers_code.md").read_text()
    (tmp_path / "rewards.py").write_text(text.split("```python\n")[1].split("```")[0])
    with VerifierPool(f"{tmp_path}/rewards.py:brief", workers=1) as pool:
        futures = [pool.submit(PROBLEM, response, {"limit": 5}) for response in ("so 2", "it must be 2", "it is 3")]
        verdicts = [future.result() for future in futures]
    assert [(v.status, v.reward, v.label) for v in verdicts] == [
        (RIGHT, 1, ""),
        (WRONG, 0.5, ""),
        (WRONG, None, "it is 3"),
    ]


def test_a_file_with_a_dataclass_whose_annotations_are_texts_loads(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass Half:\n"
        "    of: float = 2.0\n\ndef half(problem, response, rollout):\n    return 1 / Half().of\n"
    )
    assert load_function(f"{tmp_path}/mine.py:half")(None, "", {}) == 0.5
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(VerifierError, match="does not load: ZeroDivisionError"):
        load_function(f"{tmp_path}/broken.py:half")
    assert not [name for name in sys.modules if name.startswith("minirl_own_") and "broken" in name]
