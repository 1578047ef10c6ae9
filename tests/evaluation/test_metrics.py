"""The mathematics of evaluations against counting, enumeration and simulation."""

import itertools
import time
from collections import Counter
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minirl.advantages import Group, diversity
from minirl.evaluation.metrics import (
    bootstrap,
    interval,
    majority_at_k,
    mean_intervals,
    paired_difference,
    pass_at_k,
    powers,
    problem_metrics,
)


@pytest.mark.parametrize("n", [1, 5, 9])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_response(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations(range(n), k))  # the first c responses are right
        assert pass_at_k(n, c, k) == pytest.approx(sum(min(s) < c for s in subsets) / len(subsets), abs=1e-15)


def test_pass_at_k_is_exact_where_floating_point_products_are_not():
    # 1 of a million responses right: k / n exactly, which 1 - (1 - k/n) misses in its last digits
    assert pass_at_k(10**6, 1, 3) == 3e-6
    n, c, k = 10_000, 37, 4_096
    assert pass_at_k(n, c, k) == float(1 - Fraction(comb(n - c, k), comb(n, k)))
    assert pass_at_k(n, n - k + 1, k) == 1.0
    for wrong in ((4, 2, 0), (4, 5, 1), (4, 2, 5)):
        with pytest.raises(ValueError, match="pass@k needs"):
            pass_at_k(*wrong)


def test_pass_at_k_is_unbiased():
    rng = np.random.default_rng(0)
    p, n, k = 0.15, 12, 4
    estimates = [pass_at_k(n, c, k) for c in rng.binomial(n, p, 20_000)]
    assert np.mean(estimates) == pytest.approx(1 - (1 - p) ** k, abs=4 * np.std(estimates) / 20_000**0.5)


def test_powers_end_with_n():
    assert [powers(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def brute_majority(right, wrong, silent, k):
    answers = ["right"] * right + [i for i, size in enumerate(wrong) for _ in range(size)] + [None] * silent
    total = Fraction(0)
    for drawn in itertools.combinations(answers, k):
        votes = Counter(a for a in drawn if a is not None)
        winners = [a for a in votes if votes[a] == max(votes.values())]
        total += Fraction("right" in winners, len(winners) or 1)
    return float(total / comb(len(answers), k))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4), st.lists(st.integers(1, 3), max_size=3), st.integers(0, 2), st.data())
def test_majority_is_the_mean_over_all_draws(right, wrong, silent, data):
    n = right + sum(wrong) + silent
    if n:
        k = data.draw(st.integers(1, n))
        assert majority_at_k(right, wrong, silent, k) == pytest.approx(brute_majority(right, wrong, silent, k), abs=1e-12)


def test_many_different_answers_cost_no_more_than_few_and_stay_exact():
    start = time.perf_counter()
    n, right = 1024, 24
    for k in (2, 3):  # by hand: all drawn answers are different, unless the right one is drawn twice
        ways = [comb(right, t) * comb(n - right, k - t) for t in range(k + 1)]
        win = sum(ways[2:]) + ways[1] / k  # one right vote ties with k - 1 others
        assert majority_at_k(right, [1] * (n - right), 0, k) == pytest.approx(win / comb(n, k), abs=1e-12)
    assert majority_at_k(1, [1] * (n - 1), 0, n) == pytest.approx(1 / n, abs=1e-12)
    assert majority_at_k(right, [1] * (n - right), 0, 512) == pytest.approx(1.0, abs=1e-3)
    assert time.perf_counter() - start < 4


def test_majority_by_hand():
    assert majority_at_k(1, [1], 0, 2) == pytest.approx(0.5), "a tie is won half the time"
    assert majority_at_k(1, [], 3, 4) == pytest.approx(1.0), "those without an answer do not vote"
    assert majority_at_k(0, [2], 1, 3) == 0.0
    assert majority_at_k(3, [2, 2], 0, 1) == pytest.approx(3 / 7), "one vote is the accuracy"
    assert majority_at_k(600, [400], 0, 1000) == pytest.approx(1.0), "no overflow, no underflow"
    assert majority_at_k(300, [300], 0, 599) == pytest.approx(0.5)


def sample(status, key=None, label="", finish="stop", tokens=10):
    return {"status": status, "key": key, "label": label, "finish": finish, "tokens": tokens}


def test_metrics_of_one_problem_by_hand():
    wrong = [sample("wrong", "7", "7"), sample("wrong", "7", "7"), sample("wrong", "8", "8")]
    row = problem_metrics(
        [sample("right", "5"), *wrong, sample("wrong", None, "<no answer>", "length", 30), sample("error", tokens=0)], [1, 2, 5]
    )
    assert (row["right"], row["wrong"], row["errors"]) == (1, 4, 1)
    assert row["accuracy"] == row["pass@1"] == pytest.approx(1 / 5), "an error is no wrong answer"
    assert row["pass@2"] == pytest.approx(1 - comb(4, 2) / comb(5, 2))
    assert row["maj@5"] == 0.0
    assert row["maj@2"] == pytest.approx(brute_majority(1, [2, 1], 1, 2))
    assert row["error_diversity"] == pytest.approx(3 / 4), "7, 8 and no answer among four wrong ones"
    assert (row["no_answer"], row["truncated"], row["tokens"]) == (1 / 6, 1 / 6, 70 / 6)


def test_error_diversity_is_that_of_training():
    labels = ["a", "b", "a", "", "c", "a"]
    row = problem_metrics([sample("right", "1"), *(sample("wrong", x, x) for x in labels)], [1])
    group = Group(np.array([1.0] + [0.0] * 6), np.array([True] + [False] * 6), ["", *labels])
    assert row["error_diversity"] == diversity([group])["error_diversity"]


def test_what_is_not_defined_is_nan_and_left_out():
    errors = problem_metrics([sample("error"), sample("error")], [1])
    assert np.isnan(errors["accuracy"])
    assert np.isnan(errors["pass@1"])
    code = problem_metrics([sample("right"), sample("wrong", None, "WrongAnswer")], [1, 2])
    assert np.isnan(code["maj@2"]), "programs have no answer to vote for"
    assert code["pass@2"] == 1.0
    nan, half = float("nan"), np.array([0.25, 0.75])
    found = mean_intervals({"a": np.array([nan, 0.5]), "b": np.array([nan, nan]), "c": half}, 0)
    assert found["a"] == {"mean": 0.5, "low": 0.5, "high": 0.5, "problems": 1}
    assert found["b"] == {"mean": None, "low": None, "high": None, "problems": 0}
    assert found["c"] == {"mean": 0.5, "low": 0.25, "high": 0.75, "problems": 2}
    unknown = problem_metrics([sample("right", "1", finish=None, tokens=None)], [1])
    assert np.isnan(unknown["tokens"])
    assert np.isnan(unknown["truncated"])


def test_bootstrap_intervals_cover_what_they_should():
    """Accuracy of 60 problems with 4 samples each, problems of every difficulty: the truth is 0.4."""
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(400):
        difficulty = rng.beta(0.8, 1.2, 60)
        low, high = interval(bootstrap(rng.binomial(4, difficulty) / 4, trial, 500))
        covered += low <= 0.4 <= high
    # 95% of 400 is 380; the percentile interval is known to fall a little short, chance adds 2 x 4.4
    assert 364 <= covered <= 392


def test_bootstrap_is_seeded_paired_and_takes_columns():
    values = np.random.default_rng(0).random((50, 3))
    together = bootstrap(values, 7, 1000)
    assert together.shape == (1000, 3)
    np.testing.assert_allclose(together[:, 1], bootstrap(values[:, 1], 7, 1000))
    assert together.std(0) == pytest.approx(values.std(0) / 50**0.5, rel=0.1)


def test_paired_difference_against_counting():
    # four problems that all rise by 1/2: of 16 sign patterns 2 are as large
    rise = paired_difference([(np.zeros(4), np.full(4, 0.5))], 0)
    assert (rise["mean"], rise["low"], rise["high"], rise["problems"]) == (0.5, 0.5, 0.5, 4)
    assert rise["p"] == pytest.approx(2 / 16, abs=0.01)
    assert paired_difference([(np.ones(5), np.ones(5))], 0)["p"] == 1.0
    # two benchmarks: the mean of their means
    two = paired_difference([(np.zeros(4), np.full(4, 0.5)), (np.zeros(10), np.full(10, 0.1))], 0)
    assert two["mean"] == pytest.approx(0.3)
    assert paired_difference([(np.array([0, np.nan]), np.array([1.0, 1.0]))], 0)["problems"] == 1
    with pytest.raises(ValueError, match="both models"):
        paired_difference([(np.array([np.nan]), np.array([1.0]))], 0)


def test_p_values_are_uniform_without_a_difference():
    rng = np.random.default_rng(5)
    found = [paired_difference([(rng.random(25), rng.random(25))], i)["p"] for i in range(40)]
    assert np.mean(np.array(found) < 0.2) == pytest.approx(0.2, abs=3 * (0.2 * 0.8 / 40) ** 0.5)
