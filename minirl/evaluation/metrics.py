"""Metrics of evaluations with their uncertainty: pure numpy, no torch, no files.

"Over problems" means that problems are the sample: they are resampled, and the responses to each stay together.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from math import lgamma, log, log1p
from statistics import fmean as mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minirl.advantages import rho
from minirl.rollout.types import LENGTH
from minirl.verify.types import EMPTY_ANSWER, ERROR, NO_ANSWER, NO_CODE, RIGHT, TIMEOUT, WRONG

Floats = NDArray[np.float64]
RESAMPLES = 10_000
NOT_FOUND = (NO_ANSWER, EMPTY_ANSWER, NO_CODE)  # labels of responses without anything to judge


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that k of n responses, c of them right, hold a right one: 1 - C(n-c, k) / C(n, k), unbiased (Chen et al. 2021,
    arXiv 2107.03374). Integers until the last division, so it is correctly rounded for any n. ValueError unless 1 <= k <= n."""
    if k < 1:
        raise ValueError(f"pass@k needs k >= 1, not {k}")
    return rho(n, c, k)


def powers(n: int) -> list[int]:
    """1, 2, 4 ... and n itself."""
    return sorted({1 << i for i in range(n.bit_length())} | {n})


def majority_at_k(right: int, wrong: Sequence[int], silent: int, k: int) -> float:
    """The expected accuracy of a majority vote of k responses drawn without replacement from all n.

    right: right responses, which are one answer; wrong: how often each wrong answer was given; silent: responses without an
    answer, which count among the k but do not vote. Answers with equally many votes win with equal chance; where no one
    votes the vote is wrong. Exact up to rounding (1e-11): draws without replacement are independent binomial counts given their
    sum, and the winner's count t splits the event. Answers given equally often are one power, so many cost no more than one.
    """
    n = right + sum(wrong) + silent
    if not 1 <= k <= n:
        raise ValueError(f"maj@k needs 1 <= k <= n, not n={n}, k={k}")
    p, sizes = k / n, Counter(wrong)
    total = 0.0
    for t in range(1, min(k, right) + 1):
        rivals = {size: count for size, count in sizes.items() if size >= t}
        rest = silent + sum(size * count for size, count in sizes.items() if size < t)  # stays below t however it is split
        level = min(sum(rivals.values()), (k - t) // t)  # rivals that can have t votes too
        points = rest + t * sum(rivals.values()) + 1
        if points <= k - t:
            continue
        # The generating function of the votes for others at roots of unity, times y for each rival with t votes; j such rivals
        # leave the right answer a chance of 1 / (1 + j), the integral of y^j over [0, 1].
        y, weights = unit_interval(level // 2 + 1)
        shift = np.exp(-2j * np.pi * t * np.fft.rfftfreq(points))
        votes = np.fft.rfft(binomial(rest, p), points)[None]
        for size, count in rivals.items():
            chance = binomial(size, p)
            votes = votes * (np.fft.rfft(chance[:t], points) + np.multiply.outer(y * chance[t], shift)) ** count
        total += float(binomial(right, p)[t] * np.fft.irfft(weights @ votes, points)[k - t])
    return min(1.0, max(0.0, total / float(binomial(n, p)[k])))


@cache
def unit_interval(nodes: int) -> tuple[Floats, Floats]:
    """(nodes, weights) that integrate polynomials of degree < 2 * nodes over [0, 1] (Gauss-Legendre). More than 256 are never
    needed: those are right to 1e-15 for the powers up to 8,000."""
    x, weights = np.polynomial.legendre.leggauss(min(nodes, 256))
    return (x + 1) / 2, weights / 2


def binomial(n: int, p: float) -> Floats:
    """float[n + 1]: the chances of 0 ... n successes, 0 < p <= 1, by logarithms, so that nothing overflows."""
    if p == 1.0:
        return np.eye(1, n + 1, n)[0]
    log_factorial = np.array([lgamma(i + 1) for i in range(n + 1)])
    s = np.arange(n + 1)
    return np.exp(log_factorial[n] - log_factorial - log_factorial[::-1] + s * log(p) + (n - s) * log1p(-p))


def problem_metrics(samples: Sequence[Mapping[str, Any]], ks: Sequence[int]) -> dict[str, float]:
    """The metrics of one problem from its samples (rows of samples.jsonl); NaN where one is not defined.

    accuracy: mean over samples with a verdict (avg@n); pass@k, maj@k: of pass_at_k and majority_at_k, NaN with fewer than k
    verdicts (maj@k also where the verifier names no answers, as for code); error_diversity: different wrong answers / wrong
    ones, as in training; no_answer, truncated: shares of all samples; tokens: mean length; right, wrong, errors: counts.
    """
    statuses = Counter(s["status"] for s in samples)
    judged = [s for s in samples if s["status"] != ERROR]
    labels = [s["label"] for s in judged if s["status"] == WRONG and s["label"]]
    right, n = statuses[RIGHT], len(judged)
    votes = Counter(s["key"] for s in judged if s["status"] == WRONG and s["key"] is not None)
    silent = statuses[WRONG] - votes.total()
    named = all(s["key"] is not None for s in judged if s["status"] == RIGHT)
    named &= all(s["key"] is not None or s["label"] in NOT_FOUND or s["label"] == TIMEOUT for s in judged)
    nan = float("nan")
    row = {
        "accuracy": right / n if n else nan,
        "error_diversity": len(set(labels)) / len(labels) if labels else nan,
        "no_answer": mean(s["label"] in NOT_FOUND for s in samples),
        "truncated": nan if any(s["finish"] is None for s in samples) else mean(s["finish"] == LENGTH for s in samples),
        "tokens": nan if any(s["tokens"] is None for s in samples) else mean(s["tokens"] for s in samples),
    }
    for k in ks:
        row[f"pass@{k}"] = pass_at_k(n, right, k) if k <= n else nan
        row[f"maj@{k}"] = majority_at_k(right, list(votes.values()), silent, k) if k <= n and named else nan
    return row | {"right": right, "wrong": statuses[WRONG], "errors": statuses[ERROR]}


def bootstrap(values: Floats, seed: int, resamples: int = RESAMPLES) -> Floats:
    """float[R] (or [R, M]): means of `values`, float[P] (or [P, M]), over P problems drawn with replacement."""
    rng, count = np.random.default_rng(seed), len(values)
    means = []
    for start in range(0, resamples, 500):
        weights = rng.multinomial(count, np.full(count, 1 / count), min(500, resamples - start))
        means.append(weights @ values / count)
    return np.concatenate(means)


def interval(replicates: Floats, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval of bootstrap replicates float[R]."""
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def mean_intervals(columns: Mapping[str, Floats], seed: int) -> dict[str, dict[str, float | int | None]]:
    """{mean, low, high, problems} of each column, one number a problem: 95% percentile bootstrap over problems. NaNs are left
    out and lower `problems`; None where nothing is left."""
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}
    found: dict[str, dict[str, float | int | None]] = {}
    whole = {name: values for name, values in arrays.items() if len(values) and not np.isnan(values).any()}
    if whole:
        replicates = bootstrap(np.stack(list(whole.values()), axis=1), seed)
        for (name, values), means in zip(whole.items(), replicates.T, strict=True):
            found[name] = described(values, means)
    for name in arrays.keys() - whole.keys():
        kept = arrays[name][~np.isnan(arrays[name])]
        found[name] = described(kept, bootstrap(kept, seed) if len(kept) else None)
    return {name: found[name] for name in columns}


def described(values: Floats, replicates: Floats | None) -> dict[str, float | int | None]:
    """{mean, low, high, problems} of values float[P] and the bootstrap replicates of their mean."""
    if replicates is None:
        return {"mean": None, "low": None, "high": None, "problems": 0}
    low, high = interval(replicates)
    return {"mean": float(values.mean()), "low": low, "high": high, "problems": len(values)}


def paired_difference(pairs: Sequence[tuple[Floats, Floats]], seed: int) -> dict[str, float | int]:
    """{mean, low, high, p, problems} of (second minus first) on the same problems.

    pairs: one (float[P], float[P]) a benchmark; with several, the mean of the benchmarks' means. Interval: paired bootstrap
    within each benchmark. p: two-sided sign-flip permutation test of no difference, (1 + as large) / (1 + permutations).
    """
    differences = [second - first for first, second in pairs]
    differences = [d[~np.isnan(d)] for d in differences]
    if not all(len(d) for d in differences):
        raise ValueError("a benchmark without a problem that both models have a verdict for")
    observed = float(np.mean([d.mean() for d in differences]))
    replicates = np.mean([bootstrap(d, seed + i) for i, d in enumerate(differences)], axis=0)
    rng = np.random.default_rng(seed)
    flipped = np.zeros(RESAMPLES)
    for d in differences:
        signs = rng.integers(0, 2, (RESAMPLES, len(d)), dtype=np.int8) * 2 - 1
        flipped += signs @ d / len(d) / len(differences)
    # A tolerance: the observed arrangement itself must count as being as large.
    p = (1 + int((np.abs(flipped) >= abs(observed) - 1e-12).sum())) / (1 + RESAMPLES)
    low, high = interval(replicates)
    return {"mean": observed, "low": low, "high": high, "p": p, "problems": sum(map(len, differences))}
