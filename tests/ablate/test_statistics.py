"""Differences between arms against scipy's tests, sums written out, integrals and simulations of their own."""

from dataclasses import replace
from math import inf, nan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks import comparison
from minirl.ablate.statistics import (
    Variance,
    at_accuracy,
    at_equal_accuracy,
    corrected,
    difference,
    half_width,
    nominal_level,
    p_value,
    sentence,
    sequential,
    variance_of,
)


def crossed(rng, S, P, seed=0.0, problem=0.0, rest=0.0):
    """float[S, P] of normal effects of seeds, problems and both."""
    effects = seed * rng.normal(size=(S, 1)) + problem * rng.normal(size=P)
    return effects + rest * rng.normal(size=(S, P))


# ---- one difference --------------------------------------------------------------------------------------------------------


def test_the_variance_of_two_seeds_and_two_problems_by_hand():
    # d = [[1, 3], [5, 9]]: row means 2 and 7, column means 3 and 6, mean 4.5, residuals +-0.5
    # MS_seeds = 2 * 12.5 = 25, MS_problems = 2 * 4.5 = 9, MS_rest = 4 * 0.25 / 1 = 1
    found = variance_of(np.array([[1.0, 3.0], [5.0, 9.0]]))
    assert found == Variance(seeds=25 / 4, problems=8 / 4, seed_sd=sqrt(24 / 2), problem_sd=sqrt(8 / 2))


def test_variances_are_unbiased():
    rng = np.random.default_rng(0)
    found = [variance_of(crossed(rng, 6, 40, 0.3, 0.5, 0.4)) for _ in range(3000)]
    assert np.mean([v.seeds for v in found]) == pytest.approx(0.3**2 / 6 + 0.4**2 / 240, rel=0.05)
    assert np.mean([v.problems for v in found]) == pytest.approx(0.5**2 / 40, rel=0.05)
    assert np.mean([v.seed_sd**2 for v in found]) == pytest.approx(0.3**2, rel=0.05)


def test_without_differences_between_problems_it_is_the_paired_t_test_over_seeds():
    rng = np.random.default_rng(1)
    arm, base = rng.normal(0.3, 1, (5, 1)), rng.normal(0, 1, (5, 1))
    theirs = stats.ttest_rel(arm[:, 0], base[:, 0])
    for repeated in (1, 7):  # equal problems add nothing
        found = difference(arm.repeat(repeated, 1), base.repeat(repeated, 1))
        assert found.p == pytest.approx(theirs.pvalue, rel=1e-6)
        assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval()))
        assert (found.seeds, found.problems) == (5, repeated)
    assert difference(arm, base).over == "seeds"


def test_one_seed_speaks_of_problems_only_and_says_so():
    rng = np.random.default_rng(2)
    arm, base = rng.normal(0.3, 0.5, (1, 90)), rng.normal(0, 0.5, (1, 90))
    found, theirs = difference(arm, base), stats.ttest_rel(arm[0], base[0])
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-6)
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval()))
    assert (found.over, found.variance.seed_sd, found.variance.seeds) == ("problems", None, 0)
    assert "1 seed: over problems only, which says nothing of other seeds" in sentence("a", "b", found)


@given(st.integers(2, 6), st.integers(2, 30), st.integers(0, 2**32 - 1), st.floats(-2, 2))
def test_p_is_below_five_percent_where_the_interval_leaves_out_zero(S, P, seed, shift):
    rng = np.random.default_rng(seed)
    arm, base = crossed(rng, S, P, 1, 1, 1) + shift, crossed(rng, S, P, 1, 1, 1)
    found, turned = difference(arm, base), difference(base, arm)
    assert (found.p <= 0.05) == (not found.low <= 0 <= found.high)
    assert (turned.mean, turned.low, turned.p) == pytest.approx((-found.mean, -found.high, found.p))
    assert half_width(found.p, found.variance, S, P) == pytest.approx(abs(found.mean), rel=1e-5)
    order = rng.permutation(P)
    assert difference(arm[::-1][:, order], base[::-1][:, order]).low == pytest.approx(found.low)


@pytest.mark.parametrize("S", [2, 3, 6, 12])
def test_an_interval_misses_at_most_one_time_in_twenty_whatever_the_ratio_of_the_variances(S):
    """An integral: the variance of problems is known (P is large), that of seeds has chi-square's distribution."""
    chi_square = stats.chi2.ppf((np.arange(400) + 0.5) / 400, S - 1) / (S - 1)
    for of_problems in (0.0, 0.1, 0.5, 0.9, 1.0):
        halves = [half_width(0.05, Variance((1 - of_problems) * x, of_problems, 0, 0), S, 10**6) for x in chi_square]
        missed = np.mean(2 * stats.norm.sf(halves))
        assert missed < 0.0505
        if of_problems in (0.0, 1.0):
            assert missed == pytest.approx(0.05, abs=5e-4), "exact where one of them is 0"


def test_pairing_is_the_variance_of_arms_apart_over_that_of_the_pairs():
    rng = np.random.default_rng(3)
    shared = crossed(rng, 200, 300, 0.04, 0.3)
    arm, base = (shared + crossed(rng, 200, 300, 0.03, 0.1) for _ in range(2))
    found = difference(arm, base)
    # apart: 2 ((0.04^2 + 0.03^2) / 200 + (0.3^2 + 0.1^2) / 300); paired: 2 (0.03^2 / 200 + 0.1^2 / 300)
    assert found.pairing == pytest.approx((0.0025 / 200 + 0.1 / 300) / (0.0009 / 200 + 0.01 / 300), rel=0.25)
    assert found.seed_pairing == pytest.approx(0.0025 / 0.0009, rel=0.25)
    same = difference(base, base)
    assert (same.mean, same.low, same.high, same.p, same.pairing) == (0, 0, 0, 1, None)


def test_a_problem_without_a_verdict_anywhere_is_left_out_of_both():
    rng = np.random.default_rng(4)
    arm, base = rng.random((3, 5)), rng.random((3, 5))
    arm[1, 2], base[0, 4] = nan, inf
    assert difference(arm, base) == difference(arm[:, [0, 1, 3]], base[:, [0, 1, 3]])


def test_data_from_which_nothing_follows_are_refused():
    ones = np.ones((3, 4))
    with pytest.raises(ValueError, match=r"not shapes \(3, 4\) and \(2, 4\)"):
        difference(ones, ones[:2])
    with pytest.raises(ValueError, match="not shapes"):
        difference(ones[0], ones[0])
    lost = ones.copy()
    lost[1] = nan
    with pytest.raises(ValueError, match="no problem of 4 has a number in all 3 seeds"):
        difference(lost, ones)
    with pytest.raises(ValueError, match="one seed and one problem"):
        difference(ones[:1, :1], ones[:1, :1])
    with pytest.raises(ValueError, match="after 3 to 12 seeds, not after 2"):
        sequential(ones[:2], ones[:2], 0.1, 12)


# ---- several, and in words -------------------------------------------------------------------------------------------------


def made(mean, p, half=0.01, seeds=7, **changes):
    rng = np.random.default_rng(5)
    found = difference(rng.random((seeds, 9)), rng.random((seeds, 9)))
    return replace(found, mean=mean, low=mean - half, high=mean + half, p=p, **changes)


def test_holm_by_hand():
    found = corrected([made(0, p) for p in (0.01, 0.04, 0.03, 0.005)])
    # ascending: 4 * .005 = .02, 3 * .01 = .03, 2 * .03 = .06, 1 * .04 = .04, but no less than .06
    assert [d.p for d in found] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [d.comparisons for d in found] == [4] * 4
    assert [d.p for d in corrected([made(0, 0.9), made(0, 0.8)])] == [1, 1]
    assert corrected([]) == []


def test_corrected_intervals_are_those_of_a_fraction_of_the_level():
    rng = np.random.default_rng(6)
    arms, base = rng.normal(size=(3, 5, 1)), rng.normal(size=(5, 1))
    plain = [difference(arm, base) for arm in arms]
    for arm, found in zip(arms, corrected(plain), strict=True):
        theirs = stats.ttest_rel(arm[:, 0], base[:, 0]).confidence_interval(1 - 0.05 / 3)
        assert (found.low, found.high) == pytest.approx(tuple(theirs))
    alone = corrected(plain[:1])[0]
    assert (alone.low, alone.p) == (plain[0].low, plain[0].p)


def test_sentences():
    assert sentence("dapo+edas", "dapo", made(0.013, 0.001, 0.005)) == "dapo+edas is above dapo by 1.3 +- 0.5 points (7 seeds)"
    assert sentence("a", "b", made(-0.013, 0.001, 0.005, 3)) == "a is below b by 1.3 +- 0.5 points (3 seeds)"
    assert (
        sentence("dapo+edas", "dapo", made(-0.006, 0.4, 0.0143, 3))
        == "dapo+edas and dapo are not distinguishable: the difference is at most 2.0 points (95%; 3 seeds)"
    ), "2.03 points, as the tables round it"
    assert sentence("a", "b", made(0.00012, 0.01, 0.00004)) == "a is above b by 0.012 +- 0.004 points (7 seeds)"
    assert sentence("a", "b", made(0.009, 0.04, 0.01, comparisons=3)) == (
        "a is above b by 0.9 +- 1.0 points, interval over 0 but p = 0.04 by Holm (7 seeds, 3 comparisons)"
    )


# ---- looks after every seed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "last"), [(0.05, 6), (0.05, 12), (0.01, 12), (0.05, 20)])
@pytest.mark.parametrize("of_problems", [0.0, 0.3, 0.9])
def test_looks_after_every_seed_miss_at_most_as_often_as_they_say(alpha, last, of_problems):
    """Draws and sums of its own. of_problems: the share of the problems' variance in that of the mean of six seeds."""
    rng, runs, n = np.random.default_rng(8), 20_000, np.arange(1, last + 1)
    draws, fixed = rng.normal(size=(runs, last)), sqrt(of_problems / (1 - of_problems) / 6)
    missed, common = np.zeros(runs, bool), fixed * rng.normal(size=runs)
    for S in n[2:]:
        means, variances = draws[:, :S].mean(1) + common, draws[:, :S].var(1, ddof=1) / S
        of_seeds = half_width(alpha, Variance(1.0, 0.0, 0, 0), S, 10**6, last)
        others = half_width(alpha, Variance(0.0, fixed**2, 0, 0), S, 10**6, last)
        missed |= means**2 > of_seeds**2 * variances + others**2
    assert missed.mean() < alpha + 3 * sqrt(alpha * (1 - alpha) / runs)
    if of_problems == 0:
        assert missed.mean() > alpha - 4 * sqrt(alpha * (1 - alpha) / runs) - 0.001, "it wastes nothing"


def test_with_one_look_the_level_is_the_level():
    assert nominal_level(0.05, 3) == pytest.approx(0.05, abs=0.003)
    assert nominal_level(0.05, 20) < nominal_level(0.05, 12) < nominal_level(0.05, 3)


def test_a_sequential_interval_ends_when_it_is_narrow_enough():
    rng = np.random.default_rng(9)
    arm, base = crossed(rng, 12, 200, 0.01, 0.05, 0.2) + 0.02, crossed(rng, 12, 200, 0.01, 0.05, 0.2)
    found = [sequential(arm[:S], base[:S], 0.06, 12) for S in range(3, 13)]
    assert [done for _, done in found] == [d.high - d.low <= 0.06 for d, _ in found]
    assert not found[0][1]
    assert found[-1][1]
    for S, (d, _) in enumerate(found, 3):
        fixed = difference(arm[:S], base[:S])
        assert d.low < fixed.low, "looking costs width"
        assert d.p > fixed.p
        assert (d.mean, d.last) == (fixed.mean, 12)
        assert (d.p <= 0.05) == (not d.low <= 0 <= d.high)
    assert p_value(1.0, Variance(1e-12, 0.0, 0, 0), 5, 9, 12) == 1e-4, "no rarer than the simulation knows"


# ---- equal accuracy --------------------------------------------------------------------------------------------------------


def test_a_curve_over_accuracy_pools_what_falls():
    # 0.5 then 0.3 is a fall: both become 0.4, and 2 and 4 become 3
    x, y = at_accuracy((np.array([0.1, 0.5, nan, 0.3, 0.6]), np.array([1.0, 2.0, 9.0, 4.0, 5.0])))
    assert x == pytest.approx([0.1, 0.4, 0.6])
    assert y == pytest.approx([1, 3, 5])
    with pytest.raises(ValueError, match="a run of 1 evaluations has none"):
        at_accuracy((np.array([nan]), np.array([1.0])))


def test_equal_accuracy_compares_curves_where_both_have_been():
    slow = np.linspace(0.2, 0.6, 9)  # diversity 1 - accuracy
    fast = np.linspace(0.3, 0.8, 4)  # diversity 1 - accuracy + 0.1 + (accuracy - 0.3)
    arm = [(fast, 1.1 - 0.3 + 0 * fast + gain) for gain in (0.0, 0.02)]
    found, (low, high) = at_equal_accuracy(arm, [(slow, 1 - slow)] * 2)
    assert (low, high) == pytest.approx((0.3, 0.6))
    assert found.mean == pytest.approx(0.8 + 0.01 - 0.55), "the mean of 1 - accuracy over 0.3 to 0.6 is 0.55"
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, 1) * 0.01)
    assert (found.seeds, found.over) == (2, "seeds")
    apart = [*arm, (fast + 0.5, fast)]
    assert at_equal_accuracy(apart, [(slow, 1 - slow)] * 3)[0] == found, "a pair that shares no accuracy is left out"
    with pytest.raises(ValueError, match="1 of 2 seeds share a range of accuracy"):
        at_equal_accuracy(apart[1:], [(slow, 1 - slow)] * 2)
    with pytest.raises(ValueError, match="not 3 and 2 curves"):
        at_equal_accuracy(apart, [(slow, 1 - slow)] * 2)


def test_a_faster_run_with_the_same_trade_is_no_more_diverse():
    rng = np.random.default_rng(10)
    found, _ = at_equal_accuracy(comparison.curves(rng, 200, 5), comparison.curves(rng, 200, 12))
    assert abs(found.mean) < 0.006
    assert (
        np.mean([y.mean() for _, y in comparison.curves(rng, 200, 5)])
        < np.mean([y.mean() for _, y in comparison.curves(rng, 200, 12)]) - 0.03
    ), "while at the same step it is less so"


# ---- the simulation --------------------------------------------------------------------------------------------------------


def test_the_simulated_truth_is_the_mean_of_many_runs():
    for world in (comparison.World(shift=0.4), comparison.World(collapse=0.7, shift=0.4)):
        rng = np.random.default_rng(11)
        found = [np.subtract(*comparison.arms(world, 40, rng, 2000)).mean() for _ in range(30)]
        assert np.mean(found) == pytest.approx(comparison.truth(world), abs=4 * np.std(found) / sqrt(30))
        assert comparison.truth(replace(world, shift=0.0)) == 0


def test_nominal_power_is_that_of_noncentral_t_where_problems_do_not_differ():
    for S in (3, 6, 12):
        assert comparison.nominal_power(0.03, 1e-4, 0.0, S) == pytest.approx(comparison.t_power(0.03, 1e-4, 0.0, S), abs=0.003)
    assert comparison.nominal_power(0.0, 1e-4, 1e-4, 3) < 0.05


def test_false_positives_coverage_and_power_in_a_small_simulation():
    world, rng, S = comparison.WORLDS["mixed"], np.random.default_rng(12), 6
    wrong = [difference(*comparison.arms(world, S, rng)).p <= 0.05 for _ in range(400)]
    assert np.mean(wrong) < 0.05 + 3 * sqrt(0.05 * 0.95 / 400)
    other = comparison.shifted(world, S)
    delta, parts = comparison.truth(other), comparison.of_mean(comparison.components(other), S)
    found = [difference(*comparison.arms(other, S, rng)) for _ in range(400)]
    assert np.mean([d.low <= delta <= d.high for d in found]) > 0.95 - 3 * sqrt(0.05 * 0.95 / 400)
    power = comparison.nominal_power(delta, *parts, S)
    assert power == pytest.approx(0.7, abs=0.03)
    assert np.mean([d.p <= 0.05 for d in found]) == pytest.approx(power, abs=0.05 + 3 * sqrt(0.21 / 400))


def test_the_sequence_without_an_end_stops_where_its_bayes_factor_is_twenty():
    """The factor as an integral: noncentral t over a normal prior on mean / sd, against central t."""
    for S in (3, 6, 12):
        t, effects = comparison.mixture(S), np.linspace(-40, 40, 8001)
        given = stats.nct.pdf(t, S - 1, effects * sqrt(S)) * stats.norm.pdf(effects, 0, sqrt(10))
        assert np.trapezoid(np.nan_to_num(given), effects) / stats.t.pdf(t, S - 1) == pytest.approx(20, rel=0.01)


@pytest.mark.slow
def test_the_command_prints_every_table(capsys):
    for part in comparison.report(8, (3,)):
        print(part)
    out = capsys.readouterr().out
    assert out.count("\n| --- ") == 8
    assert all(world in out for world in comparison.WORLDS)
