"""Does error diversity before training predict what training improves: improvement rate by quartile of diversity."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minirl.analysis.output import Table
from minirl.analysis.samples import Attempts, Problems
from minirl.evaluation.metrics import RESAMPLES, Floats, interval
from minirl.evaluation.report import percent
from minirl.utils.errors import ConfigError

COHORTS = {"all": "all problems below 100%", "zero": "problems at 0%"}


def error_diversity(attempts: Attempts) -> float:
    """Different wrong answers / wrong ones, 0 < d <= 1."""
    return len({row["label"] for row in attempts.wrong}) / len(attempts.wrong)


def pass_rate(attempts: Attempts) -> float:
    """Right samples / samples with a verdict; NaN without any."""
    return len(attempts.right) / attempts.judged if attempts.judged else float("nan")


def quartile_means(diversity: Floats, values: Floats, counts: Floats) -> Floats:
    """float[R, 4]: means of values float[P] over four equal quartiles of rising diversity float[P], R times; problem p is there
    counts[r, p] times.

    Problems of equal diversity on both sides of a boundary are shared out evenly: the mean over all orders of ties, so that the
    order of the problems does not matter and their number need not be a multiple of 4.
    """
    group = np.unique(diversity, return_inverse=True)[1]
    tied = np.eye(group.max() + 1)[group]  # float[P, U], U different diversities
    size, total = counts @ tied, (counts * values) @ tied
    ends = size.cumsum(axis=1)[:, None]
    edges = (ends[:, :, -1:] / 4) * np.arange(5)[:, None]
    overlap = np.minimum(ends, edges[:, 1:]) - np.maximum(ends - size[:, None], edges[:, :-1])
    share = np.clip(overlap, 0, None) / np.maximum(size, 1)[:, None]
    return (share * total[:, None]).sum(axis=2) / edges[:, 1]


def quartile_ranges(diversity: Floats) -> list[tuple[float, float]]:
    """(least, most) diversity of the problems in each of the four quartiles of float[P]; a problem that a boundary cuts is in
    both."""
    ordered, count = np.sort(diversity), len(diversity)
    return [(float(ordered[count * q // 4]), float(ordered[-(-count * (q + 1) // 4) - 1])) for q in range(4)]


def alike(found: Mapping[str, Any]) -> str:
    """Why the quartiles of a cohort do not differ in how diverse errors are; "" where they do."""
    least, most = found["diversity_range"][0][0], found["diversity_range"][3][1]
    if least == most:
        return f"Every problem has the error diversity {least:.3g}, so the quartiles are four shares of the same problems"
    if found["most_classes"] == 1:
        return (
            "No problem has two different wrong answers, so diversity is 1 / wrong answers and its quartiles are of pass rates"
        )
    return ""


def quartiles(diversity: Floats, before: Floats, after: Floats, *, seed: int, resamples: int = RESAMPLES) -> dict[str, Any]:
    """Improvement rate, the share of problems whose pass rate rose, by quartile; bootstrap over problems, each cut anew."""
    improved, single = (after > before).astype(float), np.ones((1, len(before)))
    rng = np.random.default_rng(seed)
    draws = []
    for start in range(0, resamples, 500):
        counts = rng.multinomial(len(before), single[0] / len(before), min(500, resamples - start))
        draws.append(quartile_means(diversity, improved, counts.astype(np.float64)))
    replicates = np.concatenate(draws)
    replicates = np.column_stack([replicates, replicates[:, 3] - replicates[:, 0]])
    rates = quartile_means(diversity, improved, single)[0]
    entries = []
    for mean, replicate in zip([*rates, rates[3] - rates[0]], replicates.T, strict=True):
        low, high = interval(replicate)
        entries.append({"mean": float(mean), "low": low, "high": high})
    return {
        "problems": len(improved),
        "improved": entries[:4],
        "top_minus_bottom": entries[4],
        "diversity": quartile_means(diversity, diversity, single)[0],
        "diversity_range": quartile_ranges(diversity),
        "pass_rate_before": quartile_means(diversity, before, single)[0],
    }


def analyse(before: Problems, methods: Mapping[str, Problems], seed: int) -> dict[str, Any]:
    """{method: {cohort: quartiles}}, None for a cohort of fewer than four. left_out: below 100%, but not classifiable."""
    result: dict[str, Any] = {"methods": {}, "left_out": {}}
    for label, after in methods.items():
        below = [key for key, attempts in before.items() if attempts.judged and pass_rate(attempts) < 1]
        usable = [key for key in below if before[key].wrong and after[key].judged]
        result["left_out"][label] = len(below) - len(usable)
        if len(usable) < 4:
            raise ConfigError(
                f"{label}: {len(usable)} problems have wrong answers before and a verdict after; quartiles need 4"
            )
        cohorts = {"all": usable, "zero": [key for key in usable if not before[key].right]}
        result["methods"][label] = {}
        for cohort, keys in cohorts.items():
            if len(keys) < 4:
                result["methods"][label][cohort] = None
                continue
            diversities = np.array([error_diversity(before[k]) for k in keys])
            rates = [np.array([pass_rate(problems[k]) for k in keys]) for problems in (before, after)]
            classes = max(len({row["label"] for row in before[k].wrong}) for k in keys)
            result["methods"][label][cohort] = quartiles(diversities, *rates, seed=seed) | {"most_classes": classes}
    return result


def tables(result: Mapping[str, Any]) -> list[str | Table]:
    """Improvement rates, and what the quartiles consist of."""
    heads = ["Q1 (least diverse)", "Q2", "Q3", "Q4 (most diverse)"]
    rates: Table = [["method", "cohort", "problems", *heads, "Q4 - Q1"]]
    inside: Table = [["method", "cohort", "of each quartile", *heads]]
    for label, cohorts in result["methods"].items():
        for cohort, found in cohorts.items():
            if found is None:
                rates.append([label, COHORTS[cohort], "fewer than 4", *["–"] * 5])
                continue
            cells = [percent(entry) for entry in (*found["improved"], found["top_minus_bottom"])]
            rates.append([label, COHORTS[cohort], str(found["problems"]), *cells])
            inside.append([label, COHORTS[cohort], "mean error diversity", *(f"{x:.3f}" for x in found["diversity"])])
            spread = [f"{least:.3f} to {most:.3f}" for least, most in found["diversity_range"]]
            inside.append([label, COHORTS[cohort], "range of error diversity", *spread])
            inside.append([label, COHORTS[cohort], "mean pass rate, %", *(f"{100 * x:.1f}" for x in found["pass_rate_before"])])
    unreadable = {
        f"Not to be read from {COHORTS[cohort]} of {label}: whether diversity matters. {why}."
        for label, cohorts in result["methods"].items()
        for cohort, found in cohorts.items()
        if found is not None and (why := alike(found))
    }
    left = [f"{n} of {label}" for label, n in result["left_out"].items() if n]
    return [
        *sorted(unreadable),
        "Problems in four equal parts by error diversity before training (unique wrong answers / wrong answers). Improvement "
        "rate: percent of problems whose pass rate rose, with 95% bootstrap intervals over problems.",
        rates,
        "Before training. Where a problem has few wrong answers its diversity is high by arithmetic: compare pass rates before "
        "reading the first cohort; the second has none.",
        inside,
        *(["Left out, without a verdict or without an error class: " + ", ".join(left) + "."] if left else []),
    ]


def draw(result: Mapping[str, Any], plt: Any) -> Any:
    """The figure. plt: matplotlib.pyplot."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharey=True)
    labels = list(result["methods"])
    width = 0.8 / len(labels)
    for axis, (cohort, title) in zip(axes, COHORTS.items(), strict=True):
        sizes: list[int] = []
        ticks = ["Q1", "Q2", "Q3", "Q4"]
        for i, label in enumerate(labels):
            found = result["methods"][label][cohort]
            if found is None:
                continue
            if not sizes:
                ticks = [f"Q{q}\n{low:.2f} to {high:.2f}" for q, (low, high) in enumerate(found["diversity_range"], 1)]
            sizes.append(found["problems"])
            means, errors = bars(found["improved"])
            axis.bar(np.arange(4) + (i - (len(labels) - 1) / 2) * width, means, width, yerr=errors, capsize=3, label=label)
        axis.set_title(f"{title} ({', '.join(map(str, sorted(set(sizes)))) or 'none'})")
        axis.set_xticks(range(4), ticks)
        if not sizes:
            axis.text(1.5, 50, "fewer than 4 problems", ha="center")
        axis.set(xlabel="quartile of error diversity before training, and its range", xlim=(-0.6, 3.6), ylim=(0, 105))
    axes[0].set_ylabel("improved, % of problems")
    axes[0].legend()
    return figure


def bars(entries: Sequence[Mapping[str, float]]) -> tuple[list[float], list[list[float]]]:
    """Heights and error bars, in percent, of {mean, low, high}."""
    means = [100 * e["mean"] for e in entries]
    down = [max(0.0, m - 100 * e["low"]) for m, e in zip(means, entries, strict=True)]
    up = [max(0.0, 100 * e["high"] - m) for m, e in zip(means, entries, strict=True)]
    return means, [down, up]
