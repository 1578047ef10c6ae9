"""Do the intervals of a comparison hold? By simulation of training runs: python -m benchmarks.comparison [--quick] [--write]

Two arms, each trained from S seeds, are tested on the same P problems with n samples each, and minirl.ablate.statistics says
what it says. A problem's chance of being solved is Beta distributed; its logit moves by independent normal effects: of the seed
in both arms (the pair has the same start, prompts and sampling seeds), of the seed in one arm, of the problem in one arm (an
estimator that suits some problems more than others) and of both; the rest is binomial. Without a difference the arms are
exchangeable, so the true difference is 0; else one arm's logit is shifted, and the truth is an integral over all effects.

Percentages of the repetitions; their standard error is 0.5 at 5% of 2,000. nominal: the power that the rule has by theory for
the variance components of that world (measured on two thousand seeds); t: that of noncentral t with Satterthwaite's degrees of
freedom of the true components, which no rule attains that has to estimate them. --write: into docs/comparisons.md.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from pathlib import Path

import numpy as np
from scipy.special import expit, logit, ndtr, stdtrit
from scipy.stats import beta, chi2, nct

from minirl.ablate.statistics import (
    ALPHA,
    FIRST_LOOK,
    Curve,
    Variance,
    at_equal_accuracy,
    corrected,
    difference,
    nominal_level,
    sequential,
    t_quantile,
    variance_of,
)
from minirl.advantages import Floats
from minirl.evaluation.metrics import interval

SEEDS = (3, 6, 12)
PROBLEMS, SAMPLES = 256, 8
LAST = 12  # seeds of sequential looks
WIDTH = 0.03  # 3 points from end to end, where sequential simulations stop
PAGE = Path(__file__).resolve().parents[1] / "docs" / "comparisons.md"
BEGIN, END = "<!-- python -m benchmarks.comparison --write -->", "<!-- end -->"
Rng = np.random.Generator


@dataclass(frozen=True)
class World:
    """Standard deviations of the effects on the logit: of a seed in both arms, a seed in one, a problem in one, both in one.
    collapse: how far a run in ten falls; shift: the true difference, on the logit; difficulty: a and b of the Beta."""

    both: float = 0.15
    seed: float = 0.07
    problem: float = 0.3
    rest: float = 0.3
    collapse: float = 0.0
    shift: float = 0.0
    difficulty: tuple[float, float] = (0.8, 0.8)


WORLDS = {
    "mixed": World(),
    "seeds differ": World(seed=0.12, problem=0.05),
    "problems differ": World(seed=0.01, problem=0.6),
    "pairs share nothing": World(both=0.0, seed=sqrt(0.15**2 + 0.07**2)),
    "1 run in 10 collapses": World(collapse=0.7),
}


def arms(world: World, seeds: int, rng: Rng, problems: int = PROBLEMS, count: int = 2) -> list[Floats]:
    """Arms, float[S, P], of shares of right samples; the first is the shifted one."""
    base = logit(np.clip(rng.beta(*world.difficulty, problems), 1e-12, 1 - 1e-12)) + world.both * rng.normal(size=(seeds, 1))

    def arm(shift: float) -> Floats:
        run = world.seed * rng.normal(size=(seeds, 1)) - world.collapse * (rng.random((seeds, 1)) < 0.1) + shift
        own = world.problem * rng.normal(size=problems) + world.rest * rng.normal(size=(seeds, problems))
        return rng.binomial(SAMPLES, expit(base + run + own)) / SAMPLES

    return [arm(0.0 if i else world.shift) for i in range(count)]


def truth(world: World) -> float:
    """E arm - E baseline: quantiles of the Beta times Gauss-Hermite nodes of all normal effects times collapse or none."""
    base = logit(beta.ppf((np.arange(2000) + 0.5) / 2000, *world.difficulty))
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    spread = sqrt(world.both**2 + world.seed**2 + world.problem**2 + world.rest**2)

    def mean(shift: float) -> float:
        levels = base[:, None] + spread * nodes + shift
        chances = 0.9 * expit(levels) + 0.1 * expit(levels - world.collapse)
        return float((chances @ weights).mean() / weights.sum())

    return mean(world.shift) - mean(0.0)


@cache
def components(world: World) -> tuple[float, float, float]:
    """Variances of a_s, b_p and c_sp of the differences, on large arrays."""
    rng, parts = np.random.default_rng(1), []
    for _ in range(4):
        arm, base = arms(world, 500, rng, 1000)
        v = variance_of(arm - base)
        assert v.seed_sd is not None
        assert v.problem_sd is not None
        parts.append((v.seed_sd**2, v.problem_sd**2, v.seeds * 500 * 1000 - 1000 * v.seed_sd**2))
    seed, problem, rest = np.mean(parts, axis=0)
    return float(seed), float(problem), float(rest)


def of_mean(parts: tuple[float, float, float], seeds: int) -> tuple[float, float]:
    """The variance of a mean over S seeds and PROBLEMS problems: of seeds and the rest, of problems."""
    seed, problem, rest = parts
    return seed / seeds + rest / (seeds * PROBLEMS), problem / PROBLEMS


def nominal_power(delta: float, seed_part: float, problem_part: float, seeds: int) -> float:
    """Of the rule: the variance of the seeds is estimated, chi-square with S - 1 degrees of freedom, that of problems known."""
    draws = chi2.ppf((np.arange(4000) + 0.5) / 4000, seeds - 1) / (seeds - 1)
    square = seed_part * draws * t_quantile(ALPHA, seeds - 1) ** 2 + problem_part * t_quantile(ALPHA, PROBLEMS - 1) ** 2
    sd = sqrt(seed_part + problem_part)
    return float((ndtr((delta - np.sqrt(square)) / sd) + ndtr((-delta - np.sqrt(square)) / sd)).mean())


def t_power(delta: float, seed_part: float, problem_part: float, seeds: int) -> float:
    """Of a t-test with Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946) of the true components."""
    total = seed_part + problem_part
    df = total**2 / (seed_part**2 / (seeds - 1) + problem_part**2 / (PROBLEMS - 1))
    t = t_quantile(ALPHA, df)  # type: ignore[arg-type]
    return float(nct.sf(t, df, delta / sqrt(total)) + nct.cdf(-t, df, delta / sqrt(total)))


def shifted(world: World, seeds: int, power: float = 0.7) -> World:
    """The world with a difference that the rule finds about as often as `power` says."""
    seed_part, problem_part = of_mean(components(world), seeds)
    low, high = 0.0, 10 * sqrt(seed_part + problem_part)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if nominal_power(middle, seed_part, problem_part, seeds) < power else (low, middle)
    return replace(world, shift=0.1 * high / truth(replace(world, shift=0.1)))


def share(values: list[bool]) -> str:
    return f"{100 * np.mean(values):.1f}"


def fixed(repetitions: int, seeds: tuple[int, ...]) -> Iterator[list[str]]:
    """Fixed seeds: one row a world and number of seeds."""
    for name, world in WORLDS.items():
        for S in seeds:
            rng = np.random.default_rng(S)
            none = [difference(*arms(world, S, rng)) for _ in range(repetitions)]
            other = shifted(world, S)
            delta, parts = truth(other), of_mean(components(other), S)
            some = [difference(*arms(other, S, rng)) for _ in range(repetitions)]
            yield [
                name, f"{S}", share([d.p <= ALPHA for d in none]), share([d.low <= delta <= d.high for d in some]),
                f"{100 * np.median([d.half_width for d in some]):.1f}", f"{100 * delta:.1f}",
                share([d.p <= ALPHA for d in some]), f"{100 * nominal_power(delta, *parts, S):.1f}",
                f"{100 * t_power(delta, *parts, S):.1f}",
                f"{np.median([d.pairing or np.nan for d in none]):.1f}",
                f"{np.median([d.seed_pairing or np.nan for d in none]):.1f}",
            ]  # fmt: skip


def until(repetitions: int) -> Iterator[list[str]]:
    """Looks after 3, 4 ... LAST seeds: one row a world."""
    for name, world in WORLDS.items():
        rng = np.random.default_rng(7)
        found, repeated, stopped, used = [], [], [], []
        for i in range(repetitions):
            arm, base = arms(world, LAST, rng)
            looks = [sequential(arm[:S], base[:S], WIDTH, LAST) for S in range(FIRST_LOOK, LAST + 1)]
            found.append(any(not d.low <= 0 <= d.high for d, _ in looks))
            if i < repetitions // 4:
                repeated.append(any(difference(arm[:S], base[:S]).p <= ALPHA for S in range(FIRST_LOOK, LAST + 1)))
            last = next((d for d, done in looks if done), looks[-1][0])
            stopped.append(not last.low <= 0 <= last.high)
            used.append(last.seeds)
        yield [name, share(found), share(stopped), f"{np.mean(used):.1f}", share([s < LAST for s in used]), share(repeated)]


def percentile_bootstrap(arm: Floats, base: Floats, rng: Rng) -> tuple[float, float]:
    """Seeds and problems drawn with replacement (the pigeonhole bootstrap, Owen, Ann. Appl. Stat. 1, 2007)."""
    S, P = arm.shape
    seeds, problems = (rng.multinomial(n, np.full(n, 1 / n), 400) / n for n in (S, P))
    return interval(np.einsum("rp,rp->r", seeds @ (arm - base), problems))


def around(mean: float, half: float) -> tuple[float, float]:
    return mean - half, mean + half


def satterthwaite(mean: float, v: Variance, S: int, P: int) -> tuple[float, float]:
    total = v.seeds + v.problems
    df = total**2 / (v.seeds**2 / (S - 1) + v.problems**2 / (P - 1))
    return around(mean, -stdtrit(df, ALPHA / 2) * sqrt(total))


def tried(repetitions: int, seeds: tuple[int, ...]) -> Iterator[list[str]]:
    """False positives of other rules, where seeds matter more than problems and where they matter less."""

    def seeds_only(arm: Floats, base: Floats, rng: Rng) -> tuple[float, float]:
        means = (arm - base).mean(1)
        return around(means.mean(), t_quantile(ALPHA, len(means) - 1) * means.std(ddof=1) / sqrt(len(means)))

    def problems_only(arm: Floats, base: Floats, rng: Rng) -> tuple[float, float]:
        means = (arm - base).mean(0)
        return around(means.mean(), t_quantile(ALPHA, len(means) - 1) * means.std(ddof=1) / sqrt(len(means)))

    def quasi_f(arm: Floats, base: Floats, rng: Rng) -> tuple[float, float]:
        return satterthwaite((arm - base).mean(), variance_of(arm - base), *arm.shape)

    def ours(arm: Floats, base: Floats, rng: Rng) -> tuple[float, float]:
        d = difference(arm, base)
        return d.low, d.high

    rules: dict[str, Callable[[Floats, Floats, Rng], tuple[float, float]]] = {
        "over problems only": problems_only, "bootstrap of seeds and problems, percentiles": percentile_bootstrap,
        "t over the seeds' means": seeds_only, "both variances, Satterthwaite": quasi_f, "Banerjee (taken)": ours,
    }  # fmt: skip
    rows = [[name] for name in rules]
    for world in (WORLDS["seeds differ"], WORLDS["problems differ"]):
        for S in seeds:
            rng = np.random.default_rng(S)
            data = [arms(world, S, rng) for _ in range(repetitions)]
            for row, rule in zip(rows, rules.values(), strict=True):
                intervals = [rule(arm, base, rng) for arm, base in data]
                row.append(share([not low <= 0 <= high for low, high in intervals]))
    yield from rows


RATIOS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)


def largest(seeds: tuple[int, ...]) -> Iterator[list[str]]:
    """False positives at the worst of RATIOS, the problems' share of the variance, which is known as if P were large."""
    z = t_quantile(ALPHA, 10**9)
    for S in seeds:
        t, chances = t_quantile(ALPHA, S - 1), (np.arange(4000) + 0.5) / 4000
        worst = np.zeros(3)
        for ratio in RATIOS:
            v = (1 - ratio) * chi2.ppf(chances, S - 1) / (S - 1)
            of_seeds = v / (v + ratio)
            satterthwaite = -stdtrit((S - 1) / of_seeds**2, ALPHA / 2) if ratio < 1 else z
            halves = (
                satterthwaite * np.sqrt(v + ratio),
                (of_seeds * t + (1 - of_seeds) * z) * np.sqrt(v + ratio),
                np.sqrt(t**2 * v + z**2 * ratio),
            )
            worst = np.maximum(worst, [2 * ndtr(-half).mean() for half in halves])
        yield [f"{S}", *(f"{100 * w:.1f}" for w in worst)]


def borders(paths: int, maxima: tuple[int, ...]) -> Iterator[list[str]]:
    """Any of the looks after 3, 4 ... last seeds wrong, at the worst of RATIOS (that after six seeds), with the problems'
    quantile at 5% and at 2.5%."""
    for last in maxima:
        rng, n = np.random.default_rng(last), np.arange(FIRST_LOOK, last + 1)
        draws, common = rng.normal(size=(paths, last)), rng.normal(size=(paths, 1))
        means = (draws.cumsum(1) / np.arange(1, last + 1))[:, FIRST_LOOK - 1 :]
        variances = ((draws**2).cumsum(1)[:, FIRST_LOOK - 1 :] - n * means**2) / (n - 1) / n
        level = nominal_level(ALPHA, last)
        of_seeds = stdtrit(n - 1, level / 2) ** 2 * variances
        row = [f"{last}", f"{100 * level:.2f}"]
        for of_problems in (ALPHA, ALPHA / 2):
            z, worst = t_quantile(of_problems, 10**9), 0.0
            for ratio in RATIOS[:-1]:
                sd = sqrt(ratio / (1 - ratio) / 6)
                half = np.sqrt(of_seeds + (z * sd) ** 2)
                worst = max(worst, float((np.abs(means + sd * common) > half).any(1).mean()))
            row.append(f"{100 * worst:.1f}")
        yield row


def mixture(S: int, g: float = 10.0) -> float:
    """Half-width over standard error of the t-mixture confidence sequence whose prior on mean / sd is normal with variance g:
    the t at which the Bayes factor sqrt(1 + S g)^-1 ((1 + t^2/f) / (1 + t^2/(f (1 + S g))))^(S/2), f = S - 1, is 1 / ALPHA."""
    grown = (sqrt(1 + S * g) / ALPHA) ** (2 / S)
    return sqrt((S - 1) * (grown - 1) / (1 - grown / (1 + S * g)))


def quantiles(seeds: tuple[int, ...]) -> Iterator[list[str]]:
    """Half-widths over the standard error of the seeds' mean."""
    yield ["one look", *(f"{t_quantile(ALPHA, S - 1):.2f}" for S in seeds)]
    for last in (12, 20):
        level = nominal_level(ALPHA, last)
        yield [f"looks after 3 ... {last}", *(f"{t_quantile(level, S - 1):.2f}" if last >= S else "" for S in seeds)]
    yield ["t-mixture, no end", *(f"{mixture(S):.2f}" for S in seeds)]


def many(repetitions: int, seeds: tuple[int, ...], others: int = 6) -> Iterator[list[str]]:
    """`others` arms against one baseline, none different: how often any is found."""
    for S in seeds:
        rng, plain, holm, missed = np.random.default_rng(S), [], [], []
        for _ in range(repetitions):
            *rest, base = arms(WORLDS["mixed"], S, rng, count=others + 1)
            found = [difference(arm, base) for arm in rest]
            after = corrected(found)
            plain.append(any(d.p <= ALPHA for d in found))
            holm.append(any(d.p <= ALPHA for d in after))
            missed.append(any(not d.low <= 0 <= d.high for d in after))
        yield [f"{S}", share(plain), share(holm), share(missed)]


def curves(rng: Rng, seeds: int, steps: float, gain: float = 0.0) -> list[Curve]:
    """Runs of 30 evaluations that approach their last accuracy within about `steps`. Diversity falls with the true accuracy, by
    the same rule in both arms but for `gain`; both are measured with noise."""
    made = []
    for _ in range(seeds):
        accuracy = 0.35 + (0.27 + 0.01 * rng.normal()) * (1 - np.exp(-np.arange(30) / steps))
        diversity = 0.9 - 0.8 * (accuracy - 0.35) + 0.02 * rng.normal() + gain
        made.append((accuracy + 0.015 * rng.normal(size=30), diversity + 0.02 * rng.normal(size=30)))
    return made


def equal_accuracy(repetitions: int, seeds: tuple[int, ...]) -> Iterator[list[str]]:
    """One arm learns faster. Differences of diversity at the same steps, and at the same accuracy."""
    for S in seeds:
        for gain in (0.0, 0.03):
            rng, same_step, found = np.random.default_rng(S), [], []
            for _ in range(repetitions):
                fast, slow = curves(rng, S, 5, gain), curves(rng, S, 12)
                same_step.append(np.mean([a[1] - b[1] for a, b in zip(fast, slow, strict=True)]))
                found.append(at_equal_accuracy(fast, slow)[0])
            yield [
                f"{S}", f"{100 * gain:.1f}", f"{100 * np.mean(same_step):.2f}", f"{100 * np.mean([d.mean for d in found]):.2f}",
                share([d.low <= gain <= d.high for d in found]),
            ]  # fmt: skip


def table(header: str, rows: Iterator[list[str]]) -> str:
    names = header.split(", ")
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *rows))


def report(repetitions: int, seeds: tuple[int, ...] = SEEDS) -> Iterator[str]:
    """All tables, one after the other."""
    few, least = repetitions // 2, repetitions // 4
    per_seeds = ", ".join(f"{world} {S}" for world in ("seeds", "problems") for S in seeds)
    yield f"Fixed seeds, {repetitions} repetitions (two worlds each: without and with a difference):\n\n" + table(
        "world, S, false positives, coverage, half-width, true difference, power, nominal, t, pairing, of seeds",
        fixed(repetitions, seeds),
    )
    said = f"{2 * repetitions} repetitions (last column: {few}), until {100 * WIDTH:.0f} points wide"
    yield f"Looks after 3, 4 ... {LAST} seeds, no difference, {said}:\n\n" + table(
        "world, any look wrong, wrong when stopped, seeds used, stopped early, `difference` at every look: wrong",
        until(2 * repetitions),
    )
    yield f"False positives of other rules, {least} repetitions:\n\n" + table(f"rule, {per_seeds}", tried(least, seeds))
    yield "Largest share of false positives for any ratio of the variances of problems and seeds, by integral:\n\n" + table(
        "S, Satterthwaite, Cochran and Cox, Banerjee", largest((2, *seeds))
    )
    yield "Half-width over the standard error of the seeds' mean:\n\n" + table(
        "seeds, 3, 4, 5, 6, 8, 12, 20", quantiles((3, 4, 5, 6, 8, 12, 20))
    )
    yield f"Largest share of runs with any look wrong for any ratio, {20 * repetitions:,} paths:\n\n" + table(
        "looks after 3 to, level of a look, problems at 5%, problems at 2.5%", borders(20 * repetitions, (6, 12, 20, 30))
    )
    yield f"Six arms against one baseline, none different, {few} repetitions: any found:\n\n" + table(
        "S, uncorrected, Holm, outside an interval", many(few, seeds)
    )
    yield f"Diversity, one arm learning faster, {few} repetitions:\n\n" + table(
        "S, true difference, at the same step, at equal accuracy, coverage", equal_accuracy(few, seeds)
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="20 repetitions of 3 and 6 seeds: seconds, and says nothing")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    args = parser.parse_args(arguments)
    parts = []
    for part in report(20, (3, 6)) if args.quick else report(2000):
        print(part, end="\n\n", flush=True)
        parts.append(part)
    if args.write:
        text = PAGE.read_text()
        start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
        PAGE.write_text(text[:start] + "\n\n" + "\n\n".join(parts) + "\n\n" + text[end:])


if __name__ == "__main__":
    main(sys.argv[1:])
