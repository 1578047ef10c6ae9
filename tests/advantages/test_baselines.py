"""Other people's base estimators against golden values worked out without minirl: N = 10, std with ddof 1, + 1e-6."""

from dataclasses import replace

import numpy as np
import pytest

from minirl.advantages import (
    GPG,
    NGRPO,
    NSR,
    OPO,
    PKPO,
    PSR,
    QAE,
    RLOO,
    Group,
    MaxRL,
    PassK,
    ReinforcePP,
    Unlikely,
    WReinforce,
    build,
)
from tests.advantages.groups import G0, G1, G3, group

# (estimator, (right, wrong) of G1, of G3, of G0); None where there is no such response
GOLDEN = [
    (RLOO(), (1, -0.11111), (0.77778, -0.33333), (None, 0)),
    (MaxRL(), (9, -1), (2.33333, -1), (None, 0)),
    (PassK(k=4), (1.22474, -0.13608), (0.44721, -0.19166), (None, 0)),
    (PassK(k=8), (0.5, -0.05556), (0, 0), (None, 0)),
    (PKPO(k=8, baseline="sloo"), (0.8, -0.16790), (-0.08889, -0.08889), (None, 0)),
    (PKPO(k=8, baseline="sloo-1"), (0.8, 0), (0.02222, 0), (None, 0)),
    (WReinforce(), (0.1, -1), (0.1, -1), (None, -1)),
    (NSR(), (0, -1), (0, -1), (None, -1)),
    (PSR(), (1, 0), (1, 0), (None, 0)),
    (NGRPO(), (2.02259, -0.44947), (1.26131, -0.72075), (None, -0.30151)),
    (QAE(K=0.4), (3.16227, 0), (2.07019, 0), (None, 0)),
    # c / N > 1 - K: the baseline is 1, and the wrong ones are punished: -1 / std
    (QAE(K=0.8), (3.16227, 0), (0, -2.07019), (None, 0)),
    (GPG(), (0.9, -0.1), (0.7, -0.3), (None, 0)),
]


@pytest.mark.parametrize(("estimator", "g1", "g3", "g0"), GOLDEN)
def test_golden_values(estimator, g1, g3, g0):
    for g, (right, wrong) in ((G1, g1), (G3, g3), (G0, g0)):
        expected = np.where(g.correct, np.nan if right is None else right, wrong)
        assert estimator(g) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "g", "expected"),
    [
        ("maxrl+edas", G1, {"a": -1.07354, "b": -1.02117, "c": -0.82117, "d": -0.82117, "": 9}),
        ("wreinforce+edas", G0, {"a": -1.02817, "b": -0.95774}),
        ("ngrpo+edas", G0, {"a": -0.31001, "b": -0.28877}),
        ("ngrpo+edas", group("aaaaaaaaaa", 0), {"a": -0.36181}),
    ],
)
def test_golden_values_under_edas(name, g, expected):
    assert build(name)(g) == pytest.approx([expected[label] for label in g.labels], abs=1e-5)


def test_passk_is_the_mean_over_all_subsets():
    """The advantage of a group of subsets, each with the reward of its best response, given back to its members."""
    from itertools import combinations

    for c in (1, 2, 4):
        g, k = group("w" * (7 - c), c), 3
        subsets = list(combinations(range(7), k))
        rewards = np.array([max(g.correct[list(s)]) for s in subsets], dtype=float)
        scaled = (rewards - rewards.mean()) / rewards.std()
        expected = [np.mean([a for a, s in zip(scaled, subsets, strict=True) if i in s]) for i in range(7)]
        assert PassK(k=k)(g) == pytest.approx(expected)


def test_ngrpo_keeps_groups_that_are_all_wrong_and_drops_those_all_right():
    assert [NGRPO().keeps(g) for g in (G0, G1, group("", 3))] == [True, True, False]
    assert [build("dapo+edas").keeps(g) for g in (G0, G1, group("", 3))] == [False, True, False]
    assert build("ngrpo+edas").keeps(G0), "a wrapper keeps what its base keeps"


def test_halves_of_w_reinforce_leave_the_other_half_out_of_the_loss():
    assert NSR().weights(G3).tolist() == [1] * 7 + [0] * 3
    assert build("psr+fgrpo").weights(G3).tolist() == [0] * 7 + [1] * 3
    assert WReinforce().weights(G3).tolist() == [1] * 10


def test_unlikely_by_hand():
    # right responses of rank 7, 8, 9, the likeliest last: arrays of unequal length, so that the sum over tokens is what counts
    logprobs = [np.full(n, total / n) for n, total in zip([1, 2] * 5, range(-20, -10), strict=True)]
    g = replace(G3, logprobs=logprobs)
    assert Unlikely()(g)[[7, 8, 9, 0]] == pytest.approx([1.51312, 1.44846, 1.38380, -0.62077], abs=1e-5)
    with pytest.raises(ValueError, match=r"Group\.logprobs"):
        Unlikely()(G3)


def test_opo_by_hand():
    # rewards 1, 0, 0 with 4, 1, 3 tokens: baseline 4 / 8
    g = replace(group("ab", 1), lengths=np.array([1, 3, 4]))
    assert OPO()(g) == pytest.approx([-0.5, -0.5, 0.5])
    assert OPO()(replace(g, lengths=np.array([2, 2, 2]))) == pytest.approx([-1 / 3, -1 / 3, 2 / 3]), "equal lengths: the mean"


def test_reinforce_pp_is_whitened_over_the_tokens_of_the_batch():
    # one group 1, 0 with 1 and 3 tokens, another all wrong with 2 + 2: centred +-.5 and 0
    groups = [replace(group("a", 1), lengths=np.array([3, 1])), replace(group("ab", 0), lengths=np.array([2, 2]))]
    tokens = np.array([-0.5] * 3 + [0.5] + [0.0] * 4)
    expected = (np.array([-0.5, 0.5]) - tokens.mean()) / tokens.std(ddof=1)
    estimator = ReinforcePP().fitted(groups)
    assert estimator(groups[0]) == pytest.approx(expected)
    assert estimator(groups[1]) == pytest.approx([-tokens.mean() / tokens.std(ddof=1)] * 2)
    assert build("reinforce_pp+edas").fitted(groups).base == estimator, "a wrapper shapes what is whitened"


def test_gpg_scales_up_for_the_groups_that_teach_nothing():
    estimator = GPG().fitted([G1, G0, group("", 3), G3])
    assert estimator(G1) == pytest.approx(2 * (G1.rewards - 0.1))
    assert GPG().fitted([G0])(G0).tolist() == [0.0] * 10


def test_a_negative_mean_is_refused():
    with pytest.raises(ValueError, match="maxrl divides by the mean reward"):
        MaxRL()(Group(np.array([-1.0, 0.0]), np.array([False, False]), ["a", "b"]))
