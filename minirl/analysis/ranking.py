"""Whether the microscope predicted a comparison: Spearman's rank correlation of what it saw with the final accuracies."""

import json
from collections.abc import Mapping, Sequence
from math import atanh, sqrt, tanh
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minirl.ablate.outcomes import paired, table
from minirl.analysis.microscope import between, cell
from minirl.analysis.output import Table
from minirl.utils.errors import ConfigError, require

PREDICTORS = {"norm": "norm", "snr": "signal / noise", "gain": "gain", "cosine": "cosine to the first"}
FEWEST = 4  # estimators; with fewer there is no interval


def load(microscope: Path, results: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """(microscope.json of a folder or file, {estimator: final accuracy} of a JSON file: that mapping, or the results.json of a
    comparison, whose arms have the mean pass@1 of the seeds that all have finished). ConfigError for another content."""
    path = microscope / "microscope.json" if microscope.is_dir() else microscope
    found, accuracies = read(path), read(results)
    if isinstance(accuracies, dict) and {"arms", "runs"} <= accuracies.keys():
        accuracies = {arm: float(np.nanmean(table(accuracies, arm, 1))) for arm in accuracies["arms"] if paired(accuracies)}
    require(isinstance(found, dict) and "estimators" in found, f"{path} is no microscope.json")
    numbers = isinstance(accuracies, dict) and all(type(value) in (int, float) for value in accuracies.values())
    require(numbers, f'{results} must hold {{"estimator": final accuracy, ...}} or be of a comparison')
    return found, accuracies


def read(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def analyse(found: Mapping[str, Any], accuracies: Mapping[str, float]) -> dict[str, Any]:
    """The rank correlations of each predictor with the accuracies, over the estimators that both know. ConfigError for none."""
    names = [name for name in found["estimators"] if name in accuracies]
    require(bool(names), f"no estimator in common: {', '.join(found['estimators'])} and {', '.join(accuracies)}")
    rows = {}
    for name in names:
        seen = found["estimators"][name]
        values = {"norm": seen["norm"], "snr": seen["snr"]["mean"], "gain": seen["gain"], "cosine": seen["cosine"]["mean"]}
        rows[name] = {"accuracy": accuracies[name], **{key: np.nan if v is None else v for key, v in values.items()}}
    y = [row["accuracy"] for row in rows.values()]
    correlations = {key: rank_correlation([row[key] for row in rows.values()], y) for key in PREDICTORS}
    unmatched = [name for name in (*found["estimators"], *accuracies) if name not in names]
    return {"estimators": rows, "correlations": correlations, "unmatched": unmatched}


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> dict[str, float]:
    """{mean, low, high}: Spearman's rho of n pairs, without those that have a NaN, with a 95% interval by Fisher's z and the
    variance (1 + rho^2 / 2) / (n - 3) (Bonett and Wright 2000). NaN for fewer than four pairs and for values all equal."""
    pairs = np.array([pair for pair in zip(x, y, strict=True) if not np.isnan(pair).any()]).reshape(-1, 2)
    n = len(pairs)
    if n < FEWEST or (np.ptp(pairs, axis=0) == 0).any():
        return dict.fromkeys(("mean", "low", "high"), float("nan"))
    rho = float(np.clip(np.corrcoef(ranks(pairs[:, 0]), ranks(pairs[:, 1]))[0, 1], -1, 1))
    most = 1 - 12 / (n * (n**2 - 1))  # with one neighbouring pair swapped: at 1 itself the formula has no width
    inner = min(max(rho, -most), most)
    margin = 1.96 * sqrt((1 + inner**2 / 2) / (n - 3))
    return {"mean": rho, "low": min(rho, tanh(atanh(inner) - margin)), "high": max(rho, tanh(atanh(inner) + margin))}


def ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """float[n]: ranks from 1, equal values with the mean of theirs."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") + 1) / 2


def verdict(correlation: Mapping[str, float]) -> str:
    """What the interval says."""
    if np.isnan(correlation["mean"]):
        return f"cannot be told: it takes {FEWEST} estimators with different values"
    if correlation["low"] > 0:
        return "predicts the ranking"
    return "predicts the reverse" if correlation["high"] < 0 else "not distinguishable from no relation"


def tables(result: dict[str, Any]) -> list[str | Table]:
    """The verdict on each predictor, and the values."""
    rows = [
        [PREDICTORS[key], between(correlation, "+.2f"), verdict(correlation)]
        for key, correlation in result["correlations"].items()
    ]
    values = [
        [name, cell(row["accuracy"], ".4f"), *(cell(row[key], ".4g") for key in PREDICTORS)]
        for name, row in result["estimators"].items()
    ]
    shown: list[str | Table] = [
        f"Spearman's rank correlation with the final accuracy over {len(values)} estimators, 95% intervals, each by itself.",
        [["seen in the microscope", "rank correlation", "verdict"], *rows],
        [["estimator", "accuracy", *PREDICTORS.values()], *values],
    ]
    if result["unmatched"]:
        shown.append(f"Only in one of the two: {', '.join(result['unmatched'])}.")
    return shown


def draw(result: dict[str, Any], plt: Any) -> Any:
    """Accuracy against each predictor. plt: matplotlib.pyplot."""
    figure, axes = plt.subplots(1, len(PREDICTORS), figsize=(14, 3.6), layout="constrained", sharey=True)
    for axis, (key, name) in zip(axes, PREDICTORS.items(), strict=True):
        for estimator, row in result["estimators"].items():
            axis.scatter(row[key], row["accuracy"], s=14, color="C0")
            axis.annotate(f" {estimator}", (row[key], row["accuracy"]), fontsize=7)
        axis.set(xlabel=name, title=f"rho {between(result['correlations'][key], '+.2f')}")
    axes[0].set_ylabel("final accuracy")
    return figure
