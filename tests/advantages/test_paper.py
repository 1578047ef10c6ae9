"""Estimators against hand-worked vectors and their promises."""

import itertools
from math import comb, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minirl.advantages import DAPO, EDAS, GRPO, PKPO, EntropyShaped, Group, rho, surprise
from tests.advantages.groups import group

# (wrong labels, right, beta, A right, A wrong before, A of each class after): arXiv 2605.17333's formulas by hand, N = 10
GOLDEN = [
    ("aaaaaaaaa", 1, 0.2, 2.84604, -0.31623, {"a": -0.37947}),
    ("aaaaaaaaa", 1, 0.3, 2.84604, -0.31623, {"a": -0.41109}),
    ("aaaaaaaab", 1, 0.2, 2.84604, -0.31623, {"a": -0.32953, "b": -0.20982}),
    ("aaabbbccc", 1, 0.2, 2.84604, -0.31623, {"a": -0.31623, "b": -0.31623, "c": -0.31623}),
    ("abcdefghi", 1, 0.2, 2.84604, -0.31623, dict.fromkeys("abcdefghi", -0.31623)),
    ("aaaab", 5, 0.2, 0.94868, -0.94868, {"a": -1.01405, "b": -0.68719}),
    ("aab", 7, 0.2, 0.62106, -1.44913, {"a": -1.57104, "b": -1.20532}),
    ("aa", 8, 0.2, 0.47434, -1.89736, {"a": -2.27683}),
    ("ab", 8, 0.2, 0.47434, -1.89736, {"a": -1.89736, "b": -1.89736}),
    ("a", 9, 0.2, 0.31623, -2.84604, {"a": -2.84604}),
]


@pytest.mark.parametrize(("wrong", "right", "beta", "a_right", "before", "after"), GOLDEN)
@pytest.mark.parametrize("base", [GRPO(), DAPO()])
def test_golden_vectors_of_edas(wrong, right, beta, a_right, before, after, base):
    g = group(wrong, right)
    plain = base(g)
    assert plain == pytest.approx([before] * len(wrong) + [a_right] * right, abs=2e-5)
    shaped = EDAS(alpha=0.4, beta=beta, kappa=2.0, base=base)(g)
    assert shaped == pytest.approx([after[label] for label in wrong] + [a_right] * right, abs=2e-5)


def test_grpo_by_hand():
    # mean 0.5, std of (1, 0, 0, 1) with ddof 1 is sqrt(1/3)
    g = Group(np.array([1.0, 0.0, 0.0, 1.0]), np.array([True, False, False, True]), ["", "x", "y", ""])
    assert GRPO()(g) == pytest.approx(np.array([0.5, -0.5, -0.5, 0.5]) / (3**-0.5 + 1e-6))
    assert GRPO(std=False)(g) == pytest.approx([0.5, -0.5, -0.5, 0.5])


@pytest.mark.parametrize("estimator", [GRPO(), GRPO(std=False), DAPO(), PKPO(), EDAS(), EDAS(base=PKPO())])
@pytest.mark.parametrize(
    "g", [group("", 1), group("a", 0), group("aabb", 0), group("", 5), Group(np.array([]), np.array([], bool), [])]
)
def test_groups_without_signal_have_no_advantage(estimator, g):
    assert np.array_equal(estimator(g), np.zeros(len(g.rewards)))


def test_equal_rewards_that_are_not_exact_floats_have_no_advantage():
    g = Group(np.full(10, 0.1) * 3, np.ones(10, bool), [""] * 10)
    assert np.array_equal(GRPO()(g), np.zeros(10))


def test_a_response_without_verdict_counts_nowhere():
    nan = float("nan")
    g = Group(np.array([nan, 1.0, 0.0, 0.0]), np.array([False, True, False, False]), ["boom", "", "x", "x"])
    without = Group(np.array([1.0, 0.0, 0.0]), np.array([True, False, False]), ["", "x", "x"])
    for estimator in (GRPO(), DAPO(), PKPO(k=2), EDAS()):
        assert estimator(g) == pytest.approx([0.0, *estimator(without)])
    alone = Group(np.array([nan] * 7 + [1.0]), np.array([False] * 7 + [True]), ["boom"] * 7 + [""])
    assert np.array_equal(GRPO()(alone), np.zeros(8))
    assert np.array_equal(EDAS(base=PKPO())(Group(np.array([nan, nan]), np.zeros(2, bool), ["", ""])), np.zeros(2))


# ---- PKPO ------------------------------------------------------------------------------------------------------------------


def test_pkpo_rewards_of_the_paper():
    # n = 10, k = 8: the wrong reward for c = 0 .. 4; the right one is k / n
    for c, wrong in enumerate([0.0, 0.62222, 0.77778, 0.8, 0.8]):
        a = PKPO(k=8)(group("w" * (10 - c), c))
        assert a[0] - a[-1] == pytest.approx((wrong - 0.8) if c else 0.0, abs=1e-5)
        assert a.sum() == pytest.approx(0, abs=1e-12)


def test_pkpo_reward_is_the_share_of_k_subsets_with_a_right_answer():
    # k/n * P(a random k-subset that holds response i has a right one), by enumeration
    n, k = 7, 3
    for c in range(1, n):
        correct = [i < c for i in range(n)]
        rewards = []
        for i in range(n):
            subsets = [s for s in itertools.combinations(range(n), k) if i in s]
            rewards.append(k / n * np.mean([any(correct[j] for j in s) for s in subsets]))
        expected = np.array(rewards) - np.mean(rewards)
        g = Group(np.array(correct, float), np.array(correct), ["" if r else "w" for r in correct])
        assert PKPO(k=k)(g) == pytest.approx(expected)
        # eq. 29 by enumeration: less the mean reward of the others in the group without this response
        sloo = []
        for i in range(n):
            rest = [j for j in range(n) if j != i]
            subsets = list(itertools.combinations(rest, k))
            hit = [any(correct[j] for j in s) for s in subsets]
            others = [k / (n - 1) * np.mean([h for h, s in zip(hit, subsets, strict=True) if j in s]) for j in rest]
            sloo.append(rewards[i] - np.mean(others))
        assert PKPO(k=k, baseline="sloo")(g) == pytest.approx(sloo)
        # eq. 33: a right response counts in the subsets that only it solves, less those of size k - 1 without it
        right = comb(n - c, k - 1) / comb(n, k)
        assert PKPO(k=k, baseline="sloo-1")(g) == pytest.approx([right if r else 0.0 for r in correct])
        # and by enumeration: the best reward of each k-subset that holds it, less that of the same subset without it
        gains = []
        for i in range(n):
            subsets = [s for s in itertools.combinations(range(n), k) if i in s]
            gains.append(sum(any(correct[j] for j in s) - any(correct[j] for j in s if j != i) for s in subsets) / comb(n, k))
        assert PKPO(k=k, baseline="sloo-1")(g) == pytest.approx(gains)


def test_pkpo_is_not_grpo_unless_standardised():
    g = group("wwwwwwww", 2)
    assert PKPO()(g) != pytest.approx(GRPO()(g), rel=0.1)
    assert PKPO(std=True)(g) == pytest.approx(GRPO()(g), rel=1e-3)
    assert np.allclose(PKPO()(group("wwwwwww", 3)), 0)


@given(st.integers(1, 60), st.data())
def test_rho_is_unbiased_pass_at_k(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert rho(n, c, k) == pytest.approx(1 - np.prod([(n - c - i) / (n - i) for i in range(k)]) if n - c >= k else 1.0)
    assert 0 <= rho(n, c, k) <= 1


def test_rho_of_known_values_and_bad_input():
    assert rho(10, 3, 8) == 1.0
    assert rho(32, 1, 16) == 0.5
    assert rho(10_000, 1, 5_000) == pytest.approx(0.5)
    assert rho(5, 2, 2) == pytest.approx(1 - comb(3, 2) / comb(5, 2))
    with pytest.raises(ValueError, match="k=6"):
        rho(5, 2, 6)


# ---- EDAS ------------------------------------------------------------------------------------------------------------------

LABELS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12)


@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=40))
def test_surprise_sums_to_zero_and_stays_in_range(labels):
    t = surprise(labels)
    assert t.sum() == pytest.approx(0, abs=1e-9)
    assert np.all(np.abs(t) <= 1 + 1e-12)


@given(LABELS, st.integers(1, 8), st.floats(0, 5), st.floats(0, 5), st.floats(1.01, 10), st.randoms())
def test_edas_promises(wrong, right, alpha, beta, kappa, rng):
    g = group("".join(wrong), right)
    edas = EDAS(alpha, beta, kappa)
    plain, shaped = edas.base(g), edas(g)
    assert np.array_equal(shaped[g.correct], plain[g.correct]), "right responses are untouched"
    assert np.all(shaped[g.wrong] < 0), "a wrong response stays punished"
    assert np.all(np.abs(shaped[g.wrong]) >= (1 - 1 / kappa) * np.abs(plain[g.wrong]) - 1e-12)
    assert np.all(np.abs(shaped - plain) <= np.abs(plain) / kappa + 1e-12)
    order = list(range(len(plain)))
    rng.shuffle(order)
    permuted = Group(g.rewards[order], g.correct[order], [g.labels[i] for i in order])
    assert edas(permuted) == pytest.approx(shaped[order])


@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 4))
def test_equal_sized_classes_change_nothing(classes, size, right):
    g = group("abcde"[:classes] * size, right)
    assert EDAS()(g) == pytest.approx(GRPO()(g), abs=1e-12)


def test_the_clip_of_edas_binds_with_a_large_alpha():
    g = group("aaaab", 5)
    plain, shaped = GRPO()(g), EDAS(alpha=3.0, kappa=4.0)(g)
    # T_b = (ln 5 - H) / ln 5 = 0.689 -> delta 3 * 0.689 |A| > |A| / 4; T_a = -0.172 -> 0.517 |A| > |A| / 4
    assert shaped[4] == pytest.approx(plain[4] * 3 / 4)
    assert shaped[0] == pytest.approx(plain[0] * 5 / 4)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-1, 0)), min_size=2, max_size=8), st.integers(1, 4))
def test_edas_with_length_shaped_rewards(wrong, right):
    rewards = np.array([penalty for _, penalty in wrong] + [1.0] * right)
    correct = np.array([False] * len(wrong) + [True] * right)
    g = Group(rewards, correct, [label for label, _ in wrong] + [""] * right)
    plain, shaped = GRPO()(g), EDAS(alpha=2.0, beta=2.0)(g)
    assert np.all(np.sign(shaped) == np.sign(plain))
    assert np.all(np.abs(shaped) >= np.abs(plain) / 2 - 1e-12)
    # S is the mean |A| over wrong responses: independent recomputation for one of several classes
    labels = [label for label, _ in wrong]
    if len(set(labels)) > 1:
        p = {label: labels.count(label) / len(labels) for label in labels}
        entropy = -sum(q * log(q) for q in p.values())
        delta = 2.0 * np.abs(plain[: len(wrong)]).mean() * (-log(p[labels[0]]) - entropy) / log(len(labels))
        changed = plain[0] + np.sign(delta) * min(abs(delta), abs(plain[0]) / 2)
        assert shaped[0] == pytest.approx(changed if plain[0] < 0 else plain[0])


def test_branches():
    edas = EDAS()
    for wrong, branch in [("", "A"), ("a", "A"), ("aa", "B"), ("ab", "C"), ("aab", "C")]:
        g = group(wrong, 3)
        assert edas.delta(edas.base(g), g)[1] == branch


# ---- entropy ---------------------------------------------------------------------------------------------------------------


def test_entropy_shaped_by_hand():
    # A = (+0.5, -0.5) without std; alpha .4, kappa 2: bonus min(.4 H, .25)
    g = group("a", 1, entropies=[np.array([0.1, 2.0]), np.array([0.0, 0.5, 9.0])])
    shaped = EntropyShaped(base=DAPO(std=False))(g)
    assert shaped[0] == pytest.approx([-0.5 + 0.04, -0.5 + 0.25])
    assert shaped[1] == pytest.approx([0.5, 0.7, 0.75])


def test_entropy_shaped_leaves_zero_at_zero_and_needs_entropies():
    g = group("aa", 0, entropies=[np.array([3.0]), np.array([3.0, 1.0])])
    assert [a.tolist() for a in EntropyShaped()(g)] == [[0.0], [0.0, 0.0]]
    with pytest.raises(ValueError, match="entropies"):
        EntropyShaped()(group("a", 1))


@given(LABELS, st.integers(1, 5), st.floats(0, 3))
def test_entropy_shaping_never_changes_a_sign(wrong, right, h):
    n = len(wrong) + right
    g = group("".join(wrong), right, entropies=[np.full(3, h)] * n)
    for shaped, plain in zip(EntropyShaped(base=EDAS(base=DAPO()))(g), EDAS(base=DAPO())(g), strict=True):
        assert np.all(np.sign(shaped) == np.sign(plain))


@pytest.mark.parametrize("bad", [{"kappa": 1.0}, {"alpha": -0.1}, {"beta": -1.0}])
def test_edas_refuses_strengths_that_could_reward_a_wrong_answer(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        EDAS(**bad)


def test_pkpo_refuses_rewards_it_is_not_defined_for():
    with pytest.raises(ValueError, match="pkpo is defined for rewards"):
        PKPO(k=2)(Group(np.array([0.5, 0.0]), np.array([False, False]), ["a", "b"]))
