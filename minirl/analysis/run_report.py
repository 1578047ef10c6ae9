"""The report of a finished run, from its run folder: summary.json, report.md and curves.png."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minirl.config.options import Config
from minirl.utils.console import must_write, replace_file, say

Evaluations = list[tuple[int, dict[str, float]]]  # (step, held-out metrics)


def write_report(folder: Path, config: Config, evaluations: Evaluations, seconds: float) -> None:
    """Writes the three files and prints the table of first and last evaluation. seconds: total run time."""
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    before, after = evaluations[0][1], evaluations[-1][1]
    estimator, seed, steps = config.algorithm.estimator, config.run.seed, len(history)
    summary = {"estimator": estimator, "seed": seed, "steps": steps, "seconds": round(seconds, 1)}
    table = before_after(before, after)
    text = (
        f"# {estimator}, seed {seed}\n\n{steps} steps in {seconds:.0f} s; model `{config.model.path}`, task "
        f"`{config.data.task}`.\n\n{table}\n\n![curves](curves.png)\n"
    )
    picture = io.BytesIO()
    draw_curves(history, evaluations, estimator, picture)
    with must_write(folder):
        replace_file(folder / "curves.png", picture.getvalue())
        replace_file(folder / "report.md", text)
        # Last: it marks the run as finished.
        replace_file(folder / "summary.json", json.dumps(summary | {"before": before, "after": after}, indent=2) + "\n")
    say(f"\n{table}\n\n{steps} steps in {seconds:.0f} s; report, curves and model are in {folder}")


def before_after(before: dict[str, float], after: dict[str, float]) -> str:
    """A Markdown table of the held-out numbers before and after training."""
    names = {
        "pass@1": "pass@1", "pass@k": f"pass@{before['k']}", "error_diversity": "error diversity", "no_answer": "no answer",
        "truncated": "truncated", "mean_tokens": "tokens a response",
    }  # fmt: skip
    rows = [f"| {'held out':<17} | before | after  | change  |", "|---|---|---|---|"]
    if before["k"] == 1:
        del names["pass@k"]
    rows += [f"| {names[k]:<17} | {before[k]:<6.3f} | {after[k]:<6.3f} | {after[k] - before[k]:+.3f}  |" for k in names]
    return "\n".join(rows)


def draw_curves(history: list[dict[str, float]], evaluations: Evaluations, title: str, path: Any) -> None:
    """Draws six panels of training curves into the file `path`."""
    from matplotlib.figure import Figure  # without pyplot, which would choose a window system

    panels: list[tuple[str, list[str]]] = [
        ("accuracy", ["reward/accuracy"]),
        ("groups", ["groups/informative", "groups/error_diversity"]),
        ("EDAS branches in the batch", ["batch/branch_a", "batch/branch_b", "batch/branch_c"]),
        ("entropy, nats", ["policy/entropy"]),
        ("KL to old policy, nats", ["policy/approx_kl"]),
        ("gradient norm", ["optimizer/grad_norm"]),
    ]
    figure = Figure(figsize=(14, 7), layout="constrained")
    steps = [m["step"] for m in history]
    for axis, (name, keys) in zip(figure.subplots(2, 3).flat, panels, strict=True):
        for key in keys:
            axis.plot(steps, smooth([m[key] for m in history]), label=key)
        if name == "accuracy":
            axis.plot([s for s, _ in evaluations], [e["pass@1"] for _, e in evaluations], "o-", label="held-out pass@1")
        axis.set_title(name)
        axis.set_xlabel("step")
        axis.legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=90)


def smooth(values: Sequence[float], width: int = 9) -> list[float]:
    """Running mean over the last `width` values."""
    return [sum(part) / len(part) for i in range(len(values)) for part in [values[max(0, i - width + 1) : i + 1]]]
