"""Statistics of a comparison of training runs: pure functions of numpy arrays, no randomness but a fixed simulation, no files.

An arm of a comparison is float[S, P]: a number (accuracy, pass@k ...) of each of P held-out problems after each of S training
runs, which differ by their seed. The baseline has the same seeds and problems, in the same order. All numbers here are those of
d = arm - baseline, whose mean over seeds s and problems p is modelled as

    d[s, p] = delta + a_s + b_p + c_sp            (two crossed random factors; c holds the noise of finitely many samples too)

so an interval for delta speaks of other seeds *and* other problems. docs/comparisons.md says what holds, shown by simulation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, log10, sqrt

import numpy as np
from scipy.optimize import brentq, isotonic_regression
from scipy.special import stdtr, stdtrit

from minirl.advantages import Floats

ALPHA = 0.05  # 95% intervals; the share of false positives that is allowed
FIRST_LOOK = 3  # seeds: with two, a t-quantile for repeated looks is beyond 60
LAST_LOOK = 20  # seeds, unless the caller has another maximum
PATHS = 100_000  # of the simulation behind `nominal_level`
Curve = tuple[Floats, Floats]  # accuracy and another measure, both float[T] over the evaluations of one run


@dataclass(frozen=True)
class Variance:
    """What moves the mean of float[S, P]. seeds, problems: variances of the mean due to new seeds (with what is left besides
    the two factors) and to new problems; seed_sd, problem_sd: standard deviations of a_s and b_p, None
    where there is one."""

    seeds: float
    problems: float
    seed_sd: float | None
    problem_sd: float | None


@dataclass(frozen=True)
class Difference:
    """Arm minus baseline, in the unit of the data.

    low, high: a 95% interval for the difference over new seeds and new problems; p: two-sided, of no difference. Both follow
    from one rule, so that p <= 0.05 exactly where the interval leaves out 0, until `corrected` makes p Holm's.
    problems: those with a number everywhere; over: what the interval and p speak of: "seeds and problems"; with one seed
    "problems" (nothing is known of other seeds); with one number a seed "seeds".
    pairing: variance of the difference if seeds and problems of the two arms were drawn apart, over that of the difference as
    it is; seed_pairing: the same where only the seeds are drawn apart. Both are rough with few seeds; None without a variance.
    comparisons: among how many this was corrected; last: the number of seeds until which one may look after every seed, or None
    if the number of seeds was fixed.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: int
    problems: int
    over: str
    pairing: float | None
    seed_pairing: float | None
    variance: Variance
    comparisons: int = 1
    last: int | None = None

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def variance_of(values: Floats) -> Variance:
    """By the mean squares of the crossed analysis of variance of values float[S, P]:

    E MS_seeds = P var(a) + var(c), E MS_problems = S var(b) + var(c), E MS_rest = var(c); the variance of the mean is
    var(a)/S + var(b)/P + var(c)/(SP) (Searle, Casella, McCulloch: Variance Components, 1992, ch. 4). Estimates below 0
    count as 0.
    """
    S, P = values.shape
    rows, columns = values.mean(1), values.mean(0)
    if S == 1:
        return Variance(0.0, float(columns.var(ddof=1) / P), None, float(columns.std(ddof=1)))
    seeds = P * rows.var(ddof=1)
    if P == 1:
        return Variance(float(seeds / S), 0.0, float(rows.std(ddof=1)), None)
    problems = S * columns.var(ddof=1)
    rest = ((values - rows[:, None] - columns + values.mean()) ** 2).sum() / ((S - 1) * (P - 1))
    of_problems = max(0.0, float(problems - rest))
    return Variance(float(seeds / (S * P)), of_problems / (S * P), sqrt(max(0.0, seeds - rest) / P), sqrt(of_problems / S))


def t_quantile(alpha: float, df: int) -> float:
    """The two-sided one: |t| is larger with chance alpha."""
    return -float(stdtrit(df, alpha / 2))


def half_width(alpha: float, variance: Variance, seeds: int, problems: int, last: int | None = None) -> float:
    """Of an interval that misses the true difference with a chance of at most alpha.

    sqrt(t_s^2 V_seeds + t_p^2 V_problems), t_s and t_p the quantiles of t with S - 1 and P - 1 degrees of freedom: Banerjee's
    interval (Sankhya 22, 1960), which holds for all ratios of the two variances, since the chance of a miss is convex in the
    squared half-width. With `last`, t_s is the quantile of `nominal_level` and t_p that of alpha / 2: then the chance that any
    of the intervals after 3, 4 ... last seeds misses is at most alpha.
    """
    of_seeds, of_problems = (nominal_level(alpha, last), alpha / 2) if last else (alpha, alpha)
    square = 0.0
    if variance.seeds:
        square += variance.seeds * t_quantile(of_seeds, seeds - 1) ** 2
    if variance.problems:
        square += variance.problems * t_quantile(of_problems, problems - 1) ** 2
    return sqrt(square)


@cache
def smallest_levels(last: int) -> Floats:
    """float[PATHS], ascending: the smallest p of t-tests after 3, 4 ... last draws of one normal distribution with mean 0. The
    t statistic does not depend on its variance, so neither do these."""
    draws, n = np.random.default_rng(0).standard_normal((PATHS, last)), np.arange(1, last + 1)
    means = draws.cumsum(1) / n
    squares = (draws**2).cumsum(1) - n * means**2
    smallest = np.ones(PATHS)
    for k in range(FIRST_LOOK, last + 1):
        t = means[:, k - 1] / np.sqrt(squares[:, k - 1] / (k - 1) / k)
        smallest = np.minimum(smallest, 2 * stdtr(k - 1, -np.abs(t)))
    return np.sort(smallest)


def nominal_level(alpha: float, last: int) -> float:
    """The level of a t-test after each of 3, 4 ... last seeds such that any of them rejects wrongly with chance alpha: Pocock's
    constant level (Biometrika 64, 1977), for t. By simulation, two standard errors on the safe side."""
    safe = alpha - 2 * sqrt(alpha * (1 - alpha) / PATHS)
    return float(smallest_levels(last)[max(1, int(safe * PATHS)) - 1])


def p_value(mean: float, variance: Variance, seeds: int, problems: int, last: int | None = None) -> float:
    """The alpha whose interval ends at 0. No less than 0.0001 with `last`, whose simulation says nothing of rarer things."""

    def beyond(log_alpha: float) -> float:
        return half_width(10**log_alpha, variance, seeds, problems, last) - abs(mean)

    least = -4.0 if last else -15.0
    if beyond(0.0) >= 0:
        return 1.0
    return 10 ** (least if beyond(least) <= 0 else brentq(beyond, least, 0.0, xtol=1e-10))


def ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def difference(arm: Floats, baseline: Floats, last: int | None = None) -> Difference:
    """Of arm and baseline, float[S, P] of the same seeds and problems; NaN: no verdict. A problem that lacks a number anywhere
    is left out. last: for looks after every seed, see `sequential`. ValueError for data from which nothing follows."""
    arm, baseline = np.asarray(arm, np.float64), np.asarray(baseline, np.float64)
    if arm.ndim != 2 or arm.shape != baseline.shape:
        raise ValueError(f"arm and baseline must have the same seeds and problems, not shapes {arm.shape} and {baseline.shape}")
    whole = np.isfinite(arm).all(0) & np.isfinite(baseline).all(0)
    arm, baseline = arm[:, whole], baseline[:, whole]
    S, P = arm.shape
    if S < 1 or P < 1:
        raise ValueError(f"no problem of {whole.size} has a number in all {S} seeds of both: leave out a seed without them")
    if S == P == 1:
        raise ValueError("one seed and one problem have no variance: a comparison needs two seeds or two problems")
    if last and not FIRST_LOOK <= S <= last:
        raise ValueError(f"looks are after {FIRST_LOOK} to {last} seeds, not after {S}")
    mean, variance = float((arm - baseline).mean()), variance_of(arm - baseline)
    apart = [variance_of(x) for x in (arm, baseline)]
    seed_part = sum(v.seeds for v in apart)
    half = half_width(ALPHA, variance, S, P, last)
    return Difference(
        mean, mean - half, mean + half, p_value(mean, variance, S, P, last), S, P,
        over="problems" if S == 1 else "seeds" if P == 1 else "seeds and problems",
        pairing=ratio(seed_part + sum(v.problems for v in apart), variance.seeds + variance.problems),
        seed_pairing=ratio(seed_part, variance.seeds), variance=variance, last=last,
    )  # fmt: skip


def holm(p: Sequence[float]) -> list[float]:
    """The p-values of several comparisons, corrected for their number by Holm's rule (Scand. J. Statist. 6, 1979)."""
    adjusted, at_least = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        adjusted[i] = at_least = max(at_least, min(1.0, (len(p) - rank) * p[i]))
    return adjusted


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """The same with p by `holm` and intervals by Bonferroni, however they depend on each other: with
    a chance of at least 95% all intervals hold at once, and with as much no difference that is 0 gets a p <= 0.05. Holm's rule
    finds a little more than the intervals: one may reach over 0 though p is below 0.05."""
    m, adjusted = len(differences), holm([d.p for d in differences])
    halves = [half_width(ALPHA / m, d.variance, d.seeds, d.problems, d.last) for d in differences]
    return [
        replace(d, p=p, low=d.mean - half, high=d.mean + half, comparisons=m)
        for d, p, half in zip(differences, adjusted, halves, strict=True)
    ]


def sequential(arm: Floats, baseline: Floats, width: float, last: int = LAST_LOOK) -> tuple[Difference, bool]:
    """The difference after S seeds, and whether its interval, from end to end, is at most `width` (in the unit of the data).

    May be looked at after every seed from the third to `last`, and seeds may stop being added for any reason: with a chance of
    at least 95% none of the intervals misses. The price of looking is their width.
    """
    found = difference(arm, baseline, last)
    return found, found.high - found.low <= width


def rounded(points: float, half: float) -> str:
    """A number in points with one digit after the point, more where the half-width is below a tenth."""
    digits = 1 if half >= 0.1 or not half else min(6, ceil(-log10(half) - 1e-9))
    return f"{points:.{digits}f}"


def sentence(name: str, baseline: str, found: Difference) -> str:
    """What may be said of the difference between two arms whose data are shares: in points, hundredths."""
    mean, low, high, half = (100 * x for x in (found.mean, found.low, found.high, found.half_width))
    runs = f"{found.seeds} seeds" if found.seeds > 1 else "1 seed: over problems only, which says nothing of other seeds"
    runs += f", {found.comparisons} comparisons" if found.comparisons > 1 else ""
    if not half:
        return f"{name} and {baseline} cannot be compared: no number varied, so nothing follows ({runs})"
    if found.p > ALPHA:
        most = rounded(max(abs(low), abs(high)), half)
        return f"{name} and {baseline} are not distinguishable: the difference is at most {most} points (95%; {runs})"
    size = f"{rounded(abs(mean), half)} +- {rounded(half, half)} points"
    if low <= 0 <= high:
        size += f", interval over 0 but p = {found.p:.2g} by Holm"
    return f"{name} is {'above' if mean > 0 else 'below'} {baseline} by {size} ({runs})"


def at_accuracy(curve: Curve) -> Curve:
    """A curve as a function of accuracy: (accuracy, measure), accuracy ascending.

    Accuracy is replaced by the closest curve that never falls (isotonic least squares), the measure by its mean over each flat
    piece: sorting noisy accuracies instead would take a lucky evaluation for a later stage of training.
    """
    accuracy, measure = (np.asarray(x, np.float64) for x in curve)
    known = np.isfinite(accuracy) & np.isfinite(measure)
    if not known.any():
        raise ValueError(f"a run of {len(accuracy)} evaluations has none with both an accuracy and the measure to compare")
    rising = isotonic_regression(accuracy[known])
    starts = rising.blocks[:-1]
    return rising.x[starts], np.add.reduceat(measure[known], starts) / np.diff(rising.blocks)


def at_equal_accuracy(
    arm: Sequence[Curve], baseline: Sequence[Curve], points: int = 101
) -> tuple[Difference, tuple[float, float]]:
    """The mean difference of a measure (diversity, say) between runs when they are equally accurate, and those accuracies.

    arm, baseline: a curve a seed, in the same order. Of each seed the two curves are interpolated as functions of accuracy,
    and their difference averaged evenly over the accuracies that both went through; the interval is one over seeds, for these
    problems. A seed whose runs share no accuracy is left out and lowers `seeds`; ValueError if fewer than two are left. The
    range is the mean one.
    """
    if len(arm) != len(baseline):
        raise ValueError(f"arm and baseline must have the same seeds, not {len(arm)} and {len(baseline)} curves")
    pairs, ranges = [], []
    for curves in zip(arm, baseline, strict=True):
        (x, y), (base_x, base_y) = map(at_accuracy, curves)
        low, high = max(x[0], base_x[0]), min(x[-1], base_x[-1])
        if low < high:
            grid = np.linspace(low, high, points)
            pairs.append([np.trapezoid(np.interp(grid, *curve)) / (points - 1) for curve in ((x, y), (base_x, base_y))])
            ranges.append((low, high))
    if len(pairs) < 2:
        raise ValueError(f"{len(pairs)} of {len(arm)} seeds share a range of accuracy; an interval over seeds needs two")
    low, high = np.mean(ranges, axis=0)
    values = np.array(pairs)
    return difference(values[:, :1], values[:, 1:]), (float(low), float(high))
