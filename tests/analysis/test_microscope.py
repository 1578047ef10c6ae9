"""Numbers that are made of gradients, against ones worked out by hand and by simulation."""

import numpy as np
import pytest

from minirl.analysis.microscope import cosine_interval, gain, quadratic, shares, short, signal_to_noise
from minirl.rollout.types import Completion, Rollout
from minirl.verify.types import RIGHT, WRONG, Verdict


def test_signal_to_noise_by_hand():
    """Parts (1, 0), (3, 0), (2, 3): sum (6, 3), 45; squares 1 + 9 + 13 = 23; noise 3/2 (23 - 45/3) = 12; 45 / 12 - 1 = 2.75."""
    parts = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]])
    assert signal_to_noise(parts @ parts.T)["mean"] == pytest.approx(2.75)


@pytest.mark.parametrize("parts", [np.ones((5, 3)), np.zeros((5, 3)), np.eye(2)])
def test_without_noise_or_with_two_groups_there_is_no_ratio(parts):
    assert all(np.isnan(value) for value in signal_to_noise(parts @ parts.T).values())


@pytest.mark.parametrize("truth", [0.0, 1.0, 3.0])
def test_the_ratio_is_right_on_average_and_its_interval_covers(truth):
    """Parts of 32 groups with unit noise in 20 directions: noise 32 * 20, signal (32 m)^2."""
    rng, found = np.random.default_rng(0), []
    mean = np.zeros(20)
    mean[0] = np.sqrt(truth * 32 * 20) / 32
    for _ in range(400):
        parts = rng.standard_normal((32, 20)) + mean
        found.append(signal_to_noise(parts @ parts.T))
    values = np.array([f["mean"] for f in found])
    assert values.mean() == pytest.approx(truth, abs=0.06 * (1 + truth))
    assert np.mean([f["low"] <= truth <= f["high"] for f in found]) > 0.92


def test_quadratic_is_the_inner_product_of_the_resampled_sums():
    rng = np.random.default_rng(0)
    a, b, counts = rng.standard_normal((4, 7)), rng.standard_normal((4, 7)), rng.integers(0, 3, (5, 4))
    assert quadratic(a @ b.T, counts) == pytest.approx(((counts @ a) * (counts @ b)).sum(-1))


def test_the_interval_of_a_cosine():
    """One group points along (1, 0) for both, the other along (0, 1) and (0, -1): resamples have cosines 1, 0 and -1."""
    a, b = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 0.0], [0.0, -1.0]])
    counts = np.array([[2, 0], [1, 1], [0, 2]] * 20)
    assert cosine_interval(a @ a.T, b @ b.T, a @ b.T, counts) == {"low": -1.0, "high": 1.0}
    nothing = np.zeros((2, 2))
    assert all(np.isnan(v) for v in cosine_interval(nothing, nothing, nothing, counts).values())


def test_shares_sum_to_one_and_can_be_negative():
    """Parts 3, -1, 2 on a line: 3/4, -1/4, 2/4."""
    parts = np.array([[3.0], [-1.0], [2.0]])
    assert shares(parts @ parts.T) == pytest.approx([0.75, -0.25, 0.5])


def rollout(status, group=0, reward=0.0):
    completion = Completion(np.array([1, 2], np.int32), np.zeros(2, np.float32), "stop")
    return Rollout(group, "p", "g", [1], completion, 0, "t", Verdict(status, "", None, 0.0), reward)


def test_gain_is_the_covariance_of_right_and_change():
    """Group of changes .2 (right), 0 (wrong), -.1 (wrong): (.2 - mean .1/3) * 1 / 2 with mean c 1/3: sum (c - 1/3) d =
    .2 * 2/3 + .1 / 3 = 1/6, over N - 1 = 2: 1/12. The other group is all wrong: 0. Without verdict: counts nowhere."""
    groups = [
        [rollout(RIGHT), rollout(WRONG), rollout(WRONG), rollout("error", reward=float("nan"))],
        [rollout(WRONG, 1), rollout(WRONG, 1)],
    ]
    moves = [np.array([0.1, 0.1]), np.zeros(2), np.array([-0.1, 0.0]), np.array([9.0, 9.0]), np.ones(2), np.zeros(2)]
    assert gain(groups, moves) == pytest.approx(1 / 24)


def test_long_texts_lose_their_middle():
    assert short("a  b\nc") == "a b c"
    assert short("x" * 30, 10) == "xxxx…xxxxx"
