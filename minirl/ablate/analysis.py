"""The numbers of a comparison's report, from the tree of results.json alone."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minirl.ablate.outcomes import compared, paired, table, verdicts
from minirl.ablate.statistics import FIRST_LOOK, Difference, at_equal_accuracy, corrected, difference, holm, sentence
from minirl.analysis.breakthroughs import mcnemar_p
from minirl.evaluation.metrics import powers

Results = dict[str, Any]
DIVERSITY = ("groups/pair_diversity", "groups/unique_wrong")  # compared at equal accuracy


def runs_of(results: Results, arm: str) -> list[dict[str, Any]]:
    """An arm's runs of the paired seeds, by seed."""
    seeds = set(paired(results))
    return sorted((run for run in results["runs"] if run["arm"] == arm and run["seed"] in seeds), key=lambda run: run["seed"])


def last_quarter(run: dict[str, Any], key: str) -> float:
    """The mean of a curve over the last quarter of the run's steps."""
    values = run["curves"].get(key, [])
    return float(np.mean(values[-max(1, len(values) // 4) :])) if values else float("nan")


def whole(run: dict[str, Any], key: str) -> float:
    """The mean of a curve over all steps."""
    return float(np.mean(run["curves"].get(key, [float("nan")])))


# Numbers a run, besides the held-out ones: what they are called, and how they come from a run.
SCALARS: dict[str, Callable[[dict[str, Any]], float]] = {
    "diverse groups of the batch, last quarter": lambda run: last_quarter(run, "batch/diverse_groups"),
    "diverse groups of the batch, whole run": lambda run: whole(run, "batch/diverse_groups"),
    "different wrong answers a group, last quarter": lambda run: last_quarter(run, "batch/unique_wrong"),
    "pair diversity of the batch, last quarter": lambda run: last_quarter(run, "batch/pair_diversity"),
    "entropy, nats, last quarter": lambda run: last_quarter(run, "policy/entropy"),
    "tokens a response, last quarter": lambda run: last_quarter(run, "response/tokens"),
    "groups sampled a step, whole run": lambda run: whole(run, "sampling/groups"),
    "generated tokens, millions": lambda run: run["tokens"] / 1e6,
    "training time, s": lambda run: run["training_seconds"],
}


def analyse(results: Results) -> dict[str, Any]:
    """{seeds, ks, arms, held_out, scalars, equal_accuracy, breakthroughs, verdicts}; see the functions below."""
    seeds, baseline, last = paired(results), results["baseline"], results["last_look"]
    empty: dict[str, Any] = {key: {} for key in ("arms", "held_out", "scalars", "equal_accuracy", "breakthroughs")}
    if not seeds:
        return empty | {"seeds": [], "ks": [], "verdicts": []}
    others = [arm for arm in compared(results) if arm != baseline]
    ks = [k for k in powers(most_verdicts(results)) if table(results, baseline, k).size]
    held_out = {k: against(others, baseline, lambda arm, k=k: table(results, arm, k), last) for k in ks}  # type: ignore[misc]
    scalars, equal = {}, {}
    if len(seeds) > 1:
        for name, of in SCALARS.items():
            numbers = {arm: np.array([[of(run)] for run in runs_of(results, arm)]) for arm in [baseline, *others]}
            if all(np.isfinite(column).all() for column in numbers.values()):
                scalars[name] = against(others, baseline, numbers.__getitem__, last)
        equal = {key: equal_accuracy(results, others, baseline, key) for key in DIVERSITY}
    return {
        "seeds": seeds,
        "ks": ks,
        "arms": {arm: summary(results, arm, ks) for arm in [baseline, *others]},
        "held_out": held_out,
        "scalars": scalars,
        "equal_accuracy": equal,
        "breakthroughs": breakthroughs(results, others, baseline),
        "verdicts": [sentence(arm, baseline, held_out[1][arm]) for arm in others],
    }


def most_verdicts(results: Results) -> int:
    """The largest k of pass@k that every run has for some problem."""
    return min(int(verdicts(run["after"]).max()) for run in results["runs"])


def against(
    arms: Sequence[str], baseline: str, values: Callable[[str], NDArray[np.float64]], last: int | None = None
) -> dict[str, Difference]:
    """{arm: its difference to the baseline}, corrected for the number of arms. values: float[S, P] of an arm.

    last: the most seeds, if the comparison is looked at after every one: the intervals then hold after each look.
    """
    base = values(baseline)
    found = [difference(values(arm), base, last if last and len(base) >= FIRST_LOOK else None) for arm in arms]
    return dict(zip(arms, corrected(found), strict=True))


def narrow(results: Results, points: float) -> bool:
    """Whether every arm's interval for pass@1 is at most `points` to each side; never before FIRST_LOOK seeds."""
    baseline, arms = results["baseline"], compared(results)
    if len(paired(results)) < FIRST_LOOK or len(arms) < len(results["arms"]):
        return False
    others = [arm for arm in arms if arm != baseline]
    found = against(others, baseline, lambda arm: table(results, arm, 1), results["last_look"])
    # An interval without any width says that nothing varied, not that all is known.
    return all(0 < 100 * d.half_width <= points for d in found.values())


def summary(results: Results, arm: str, ks: Sequence[int]) -> dict[str, Any]:
    """An arm's means over its paired seeds: {before, before_k: pass@1 and pass@k, after: {k: (mean, standard deviation over
    seeds)}, steps: numbers of steps, scalars}."""
    runs = runs_of(results, arm)
    after = {k: table(results, arm, k).mean(1) for k in ks}
    return {
        "after": {k: (float(np.mean(v)), float(np.std(v, ddof=1)) if len(v) > 1 else None) for k, v in after.items()},
        "before": float(np.mean([run["before"]["metrics"]["pass@1"] for run in runs])),
        "before_k": float(np.mean([run["before"]["metrics"]["pass@k"] for run in runs])),
        "steps": sorted({run["steps"] for run in runs}),
        "scalars": {name: float(np.mean([of(run) for run in runs])) for name, of in SCALARS.items()},
    }


def equal_accuracy(results: Results, arms: Sequence[str], baseline: str, key: str) -> dict[str, Any]:
    """{arm: (difference of the measure between runs when they are equally accurate, the range of training accuracy), or the
    reason why there is none}; corrected for the number of arms."""

    def curves(arm: str) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        return [(np.array(r["curves"]["reward/accuracy"]), np.array(r["curves"][key])) for r in runs_of(results, arm)]

    found: dict[str, Any] = {}
    for arm in arms:
        try:
            found[arm] = at_equal_accuracy(curves(arm), curves(baseline))
        except (ValueError, KeyError) as error:
            found[arm] = f"none: {error}"
    known = [arm for arm in arms if not isinstance(found[arm], str)]
    for arm, one in zip(known, corrected([found[arm][0] for arm in known]), strict=True):
        found[arm] = one, found[arm][1]
    return found


def breakthroughs(results: Results, arms: Sequence[str], baseline: str) -> dict[str, Any]:
    """{arm: {hard, both, arm_only, baseline_only, neither, p, problems}}: problems that no response solved before training, by
    whether one does after, over all paired seeds.

    p: exact McNemar test, a binomial test of the problems that one arm alone solved, by Holm over arms; the pairs are within
    a seed, so seeds are its strata. It takes the problems of all seeds as independent: where seeds share problems that are hard
    to move, it is too small. rate: the difference of the solved share, float[S, 1] a seed, by `against`; problems: different
    problems among the hard ones.
    """
    base, rows = runs_of(results, baseline), dict[str, Any]()
    shares: dict[str, list[list[float]]] = {arm: [] for arm in [baseline, *arms]}
    for arm in arms:
        counts, ids = np.zeros((2, 2), int), set()
        shares[baseline] = []
        for run, other in zip(runs_of(results, arm), base, strict=True):
            hard = (np.array(other["before"]["right"]) == 0) & (verdicts(other["before"]) > 0)
            solved, of_base = (np.array(x["after"]["right"])[hard] > 0 for x in (run, other))
            ids |= set(np.flatnonzero(hard))
            np.add.at(counts, (solved.astype(int), of_base.astype(int)), 1)
            for name, one in ((arm, solved), (baseline, of_base)):
                shares[name].append([float(one.mean()) if len(one) else float("nan")])
        only, base_only = int(counts[1, 0]), int(counts[0, 1])
        p = mcnemar_p(only, base_only)
        rows[arm] = {"hard": int(counts.sum()), "both": int(counts[1, 1]), "arm_only": only, "baseline_only": base_only,
                     "neither": int(counts[0, 0]), "p": p, "problems": len(ids), "rate": None}  # fmt: skip
    for arm, p in zip(arms, holm([rows[arm]["p"] for arm in arms]), strict=True):
        rows[arm]["p"] = p
    if len(base) > 1 and np.isfinite(np.array(list(shares.values()))).all():
        for arm, d in against(arms, baseline, lambda name: np.array(shares[name]), results["last_look"]).items():
            rows[arm]["rate"] = d
    return rows


def plain(value: Any) -> Any:
    """`value` with every Difference as a mapping, for JSON."""
    if isinstance(value, Difference):
        return asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
