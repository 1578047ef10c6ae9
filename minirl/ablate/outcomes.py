"""What the runs of a comparison gave, read from their folders into one plain tree, from which every table can be made again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minirl.ablate.cells import Cell
from minirl.advantages import rho
from minirl.evaluation.held_out import Evaluation, read
from minirl.utils.errors import ConfigError

# Of metrics.jsonl: the curves that are kept.
CURVES = (
    "reward/mean", "reward/accuracy", "response/tokens", "response/truncated", "groups/informative", "groups/error_diversity",
    "groups/pair_diversity", "groups/unique_wrong", "batch/diverse_groups", "batch/unique_wrong", "batch/pair_diversity",
    "batch/branch_a", "batch/branch_b", "batch/branch_c", "batch/delta", "policy/entropy", "policy/approx_kl",
    "policy/clip_high", "policy/clip_low", "optimizer/grad_norm", "sampling/groups", "sampling/batch_groups",
    "sampling/tokens", "time/step",
)  # fmt: skip


def outcome(cell: Cell) -> dict[str, Any]:
    """A finished cell: {arm, seed, steps, seconds, tokens, training_seconds, before, after, curves, evaluations}.

    before, after: {metrics, n, right}: responses with a verdict and right ones of each problem; n is one number where all
    problems have the same. ConfigError when a file is missing or damaged.
    """
    try:
        summary = json.loads((cell.folder / "summary.json").read_text(encoding="utf-8"))
        lines = (cell.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        history = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise ConfigError(f"the run of {cell.name} in {cell.folder} cannot be read: {error}") from None
    files = sorted((cell.folder / "evaluations").glob("step*.json"))
    evaluations = [(int(path.stem[4:]), read(path)[0]) for path in files]
    if len(evaluations) < 2:
        raise ConfigError(
            f"{cell.folder}/evaluations has {len(evaluations)} files: the evaluations before and after are needed"
        )
    return {
        "arm": cell.arm.name, "seed": cell.seed, "steps": len(history), "seconds": summary["seconds"],
        "tokens": int(sum(row["sampling/tokens"] for row in history)),
        "training_seconds": round(sum(row["time/step"] for row in history), 1),
        "before": counted(evaluations[0][1]), "after": counted(evaluations[-1][1]),
        "curves": {key: [rounded(row[key]) for row in history] for key in CURVES if all(key in row for row in history)},
        "evaluations": [[step, e.metrics["pass@1"], e.metrics["pass@k"]] for step, e in evaluations],
    }  # fmt: skip


def rounded(value: float) -> float:
    """Four significant digits: enough for a curve, and small in a repository."""
    return float(f"{value:.4g}")


def counted(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation's metrics and counts a problem."""
    n = [p["n"] for p in evaluation.problems]
    return {
        "metrics": {name: rounded(value) if np.isfinite(value) else None for name, value in evaluation.metrics.items()},
        "n": n if len(set(n)) > 1 else n[0],
        "right": [p["right"] for p in evaluation.problems],
    }


def verdicts(part: dict[str, Any]) -> NDArray[np.int64]:
    """int[P]: responses with a verdict of each problem. part: of `counted`."""
    return np.broadcast_to(np.array(part["n"], np.int64), len(part["right"]))


def problem_ids(cells: Sequence[Cell]) -> list[str]:
    """The held-out problems that all cells were evaluated on. ConfigError when they differ."""
    known = {tuple(p["id"] for p in read(cell.evaluation)[0].problems) for cell in cells}
    if len(known) != 1:
        raise ConfigError("the runs were evaluated on different held-out problems, which cannot be compared")
    return list(known.pop())


def scores(part: dict[str, Any], k: int) -> NDArray[np.float64]:
    """float[P]: unbiased pass@k of each problem (k = 1: its accuracy); NaN with fewer than k verdicts. part: of `counted`."""
    pairs = zip(verdicts(part).tolist(), part["right"], strict=True)
    return np.array([rho(n, right, k) if n >= k else np.nan for n, right in pairs])


def compared(results: dict[str, Any]) -> list[str]:
    """The arms that are compared: the baseline, and the others with a finished run."""
    finished = {run["arm"] for run in results["runs"]}
    return [arm for arm in results["arms"] if arm in finished or arm == results["baseline"]]


def paired(results: dict[str, Any]) -> list[int]:
    """The seeds that every compared arm has finished; none if nothing is compared with the baseline."""
    arms = compared(results)
    seeds = [{run["seed"] for run in results["runs"] if run["arm"] == arm} for arm in arms]
    return sorted(set.intersection(*seeds)) if len(arms) > 1 else []


def left_out(results: dict[str, Any]) -> list[str]:
    """What was run or asked for and is not compared, in words."""
    arms, seeds = compared(results), set(paired(results))
    words = [f"{arm} (no finished run)" for arm in results["arms"] if arm not in arms]
    alone = [run for run in results["runs"] if run["seed"] not in seeds]
    return words + [f"{run['arm']}, seed {run['seed']} (another arm has not finished this seed)" for run in alone]


def table(results: dict[str, Any], arm: str, k: int) -> NDArray[np.float64]:
    """float[S, P]: pass@k after training of an arm's paired seeds, a row a seed; only of the problems that have k verdicts in
    every compared arm and seed, so that all numbers of a column are of the same problems."""
    seeds, arms = paired(results), compared(results)
    runs = {(run["arm"], run["seed"]): scores(run["after"], k) for run in results["runs"] if run["seed"] in seeds}
    whole = np.isfinite(np.stack([runs[other, seed] for other in arms for seed in seeds])).all(0)
    return np.stack([runs[arm, seed][whole] for seed in seeds])


def load(path: Path) -> dict[str, Any]:
    """The results.json of a comparison. ConfigError when it cannot be read."""
    remedy = "run the comparison's command again, which makes it from the finished runs"
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the results {path}: {error}; {remedy}") from None
    needed = ("baseline", "arms", "budget", "task", "model", "differing", "failed", "until", "last_look", "problems", "runs")
    if missing := [key for key in needed if not isinstance(results, dict) or key not in results]:
        raise ConfigError(f"{path} is not what a comparison writes ({', '.join(missing)} missing): {remedy}")
    return results
