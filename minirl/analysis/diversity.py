"""Does error diversity before training say what training will improve: improvement rate by quartile of diversity."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minirl.analysis.output import Table
from minirl.analysis.samples import Attempts, Problems
from minirl.config import ConfigError
from minirl.evaluation.metrics import RESAMPLES, Floats, interval
from minirl.evaluation.report import percent

COHORTS = {"all": "all problems below 100%", "zero": "problems at 0%"}


def error_diversity(attempts: Attempts) -> float:
    """Different wrong answers / wrong ones, 0 < d <= 1."""
    return len({row["label"] for row in attempts.wrong}) / len(attempts.wrong)


def pass_rate(attempts: Attempts) -> float:
    """Right samples / samples with a verdict; NaN without any."""
    return len(attempts.right) / attempts.judged if attempts.judged else float("nan")


def quartile_weights(diversity: Floats) -> Floats:
    """float[4, P]: how far each of P problems is in each quartile of rising diversity; columns sum to 1, rows to P / 4.

    Problems of equal diversity on both sides of a boundary are shared out evenly: the mean over all orders of ties, so that the
    order of the problems does not matter and P need not be a multiple of 4.
    """
    _, place, counts = np.unique(diversity, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    edges = np.arange(5) * len(diversity) / 4
    overlap = np.minimum(ends, edges[1:, None]) - np.maximum(ends - counts, edges[:-1, None])
    return (np.clip(overlap, 0, None) / counts)[:, place]


def quartile_means(diversity: Floats, values: Floats) -> Floats:
    """float[4]: mean of `values` over the problems of each quartile."""
    return quartile_weights(diversity) @ values * 4 / len(values)


def quartiles(diversity: Floats, before: Floats, after: Floats, *, seed: int, resamples: int = RESAMPLES) -> dict[str, Any]:
    """Improvement rate, the share of problems whose pass rate rose, by quartile; bootstrap over problems, cut anew each time."""
    improved = (after > before).astype(float)
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(improved), (resamples, len(improved)))
    replicates = np.array([quartile_means(diversity[i], improved[i]) for i in draws])
    entries = []
    for q, rate in enumerate(quartile_means(diversity, improved)):
        low, high = interval(replicates[:, q])
        entries.append({"mean": float(rate), "low": low, "high": high})
    low, high = interval(replicates[:, 3] - replicates[:, 0])
    return {
        "problems": len(improved),
        "improved": entries,
        "top_minus_bottom": {"mean": entries[3]["mean"] - entries[0]["mean"], "low": low, "high": high},
        "diversity": quartile_means(diversity, diversity),
        "pass_rate_before": quartile_means(diversity, before),
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
            result["methods"][label][cohort] = quartiles(diversities, *rates, seed=seed)
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
            inside.append([label, COHORTS[cohort], "mean pass rate, %", *(f"{100 * x:.1f}" for x in found["pass_rate_before"])])
    left = [f"{n} of {label}" for label, n in result["left_out"].items() if n]
    return [
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
        sizes = []
        for i, label in enumerate(labels):
            found = result["methods"][label][cohort]
            if found is None:
                continue
            sizes.append(found["problems"])
            means, errors = bars(found["improved"])
            axis.bar(np.arange(4) + (i - (len(labels) - 1) / 2) * width, means, width, yerr=errors, capsize=3, label=label)
        axis.set_title(f"{title} ({', '.join(map(str, sorted(set(sizes)))) or 'fewer than 4'})")
        axis.set_xticks(range(4), ["Q1\nleast diverse", "Q2", "Q3", "Q4\nmost diverse"])
        axis.set(xlabel="error diversity before training", ylim=(0, 105))
    axes[0].set_ylabel("improved, % of problems")
    axes[0].legend()
    return figure


def bars(entries: Sequence[Mapping[str, float]]) -> tuple[list[float], list[list[float]]]:
    """Heights and error bars, in percent, of {mean, low, high}."""
    means = [100 * e["mean"] for e in entries]
    down = [max(0.0, m - 100 * e["low"]) for m, e in zip(means, entries, strict=True)]
    up = [max(0.0, 100 * e["high"] - m) for m, e in zip(means, entries, strict=True)]
    return means, [down, up]
