"""The task rules: its answers by hand, its split, and the statistics of its careless teacher."""

import hashlib
import random
import re
from collections import Counter

import pytest

from minirl.data import rules
from minirl.tiny.make import careless_way
from minirl.verify.math.verifier import MathVerifier
from minirl.verify.types import RIGHT

TRAIN, TEST = rules.problems("train"), rules.problems("test")


@pytest.mark.parametrize(
    ("letter", "digits", "steps", "answer"),
    [
        ("E", (3, 5, 2), "3+5=8;8*2=16;", 16),  # (a + b) c
        ("B", (3, 5, 2), "3*5=15;15+2=17;", 17),  # ab + c
        ("A", (3, 5, 2), "3*2=6;6+5=11;", 11),  # ac + b
        ("F", (3, 5, 2), "5*2=10;10+3=13;", 13),  # bc + a
        ("D", (3, 5, 2), "3*5=15;15-2=13;", 13),  # ab - c
        ("K", (3, 5, 2), "3+2=5;5*5=25;", 25),  # (a + c) b
        ("C", (3, 5, 2), "5+2=7;7*3=21;", 21),  # (b + c) a
        ("D", (1, 1, 9), "1*1=1;1-9=-8;", -8),
    ],
)
def test_the_way_and_the_answer_by_hand(letter, digits, steps, answer):
    assert rules.work(rules.RULES[letter].procedures[0], digits) == (steps, answer)
    problem = rules.problem(letter, digits)
    assert (problem.prompt, problem.answer) == (f"{letter}{digits[0]}{digits[1]}{digits[2]}=", str(answer))
    assert MathVerifier()(problem, f"{steps}\\boxed{{{answer}}}").status == RIGHT


def test_every_answer_follows_from_its_problem_by_an_independent_formula():
    formulas = (
        lambda a, b, c: (a + b) * c, lambda a, b, c: a * b + c, lambda a, b, c: a * c + b, lambda a, b, c: b * c + a,
        lambda a, b, c: a * b - c, lambda a, b, c: (a + c) * b, lambda a, b, c: (b + c) * a,
    )  # fmt: skip
    for p in TRAIN + TEST:
        letter, a, b, c = re.fullmatch("([A-X])([1-9])([1-9])([1-9])=", p.prompt).groups()
        assert int(p.answer) == formulas[rules.RULES[letter].procedures[0]](int(a), int(b), int(c))


def test_the_split_is_whole_disjoint_and_stays_what_the_shipped_model_was_made_with():
    assert (len(TEST), len(TRAIN) + len(TEST)) == (512, 17_496)
    assert len({p.prompt for p in TRAIN + TEST}) == 24 * 9**3
    assert {p.prompt[0] for p in TRAIN} == {p.prompt[0] for p in TEST} == set("ABCDEFGHIJKLMNOPQRSTUVWX")
    assert rules.problems("train") == TRAIN, "the same at every call"
    digest = hashlib.sha256("".join(p.prompt for p in TEST).encode()).hexdigest()
    assert digest.startswith("168034ddd11fbc60"), "other held-out problems: the embedded model has seen them"
    with pytest.raises(ValueError, match="'validation'"):
        rules.problems("validation")


def test_the_rules_are_what_the_task_promises():
    assert len(rules.RULES) == 24
    for rule in rules.RULES.values():
        assert sorted(rule.procedures) == list(range(7)), "the right one and six misconceptions"
        assert 0.002 <= rule.right <= 0.7
        assert 0.75 <= rule.dominant <= 0.97
    assert {rule.procedures[0] for rule in rules.RULES.values()} == set(range(7)), "every procedure is right somewhere"


def test_the_careless_teacher_by_monte_carlo():
    """Wrong answers that are wrong ways, in the amounts that the task is made for: few right, a third of the problems at 0 of
    32, half of the groups of ten with a signal, and in those about two different wrong answers."""
    rng, n = random.Random(0), 2000
    asked = rng.choices(TRAIN, k=n)
    answers = [[re.search(r"\{(.+)\}", careless_way(p.prompt, rng))[1] for _ in range(32)] for p in asked]
    right = [[answer == p.answer for answer in drawn] for p, drawn in zip(asked, answers, strict=True)]
    groups = [
        Counter(answer for answer in drawn[:10] if answer != p.answer)
        for p, drawn, found in zip(asked, answers, right, strict=True)
        if 0 < sum(found[:10]) < 10
    ]
    # Standard errors: .005, .011, .011, .016, .03
    assert sum(map(sum, right)) / (32 * n) == pytest.approx(0.164, abs=0.02)
    assert sum(not any(found) for found in right) / n == pytest.approx(0.34, abs=0.045)
    assert len(groups) / n == pytest.approx(0.50, abs=0.045)
    assert sum(len(wrong) > 1 for wrong in groups) / len(groups) == pytest.approx(0.57, abs=0.065)
    assert sum(map(len, groups)) / len(groups) == pytest.approx(1.73, abs=0.12)


def test_its_share_of_right_answers_by_an_exact_sum():
    """The chance of a right answer, summed over procedures, several of which can give the same result; a slip is wrong."""
    total = 0.0
    for p in TRAIN:
        rule, digits = rules.RULES[p.prompt[0]], tuple(map(int, p.prompt[1:4]))
        shares = [rule.dominant * (1 - rule.dominant) ** i for i in range(6)]
        chances = [rule.right, *((1 - rule.right) * share / sum(shares) for share in shares)]
        results = [str(rules.work(procedure, digits)[1]) for procedure in rule.procedures]
        total += sum(chance for chance, result in zip(chances, results, strict=True) if result == p.answer)
    assert 0.97 * total / len(TRAIN) == pytest.approx(0.164, abs=0.005)
