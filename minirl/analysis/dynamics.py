"""Training dynamics of two or more runs: diverse groups, different wrong answers, reward and EDAS branches, step by step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from minirl.analysis.output import Table
from minirl.analysis.run_report import smooth
from minirl.analysis.samples import Row, rows_with
from minirl.config.command_line import labelled
from minirl.utils.errors import ConfigError

# What is shown, under the names of metrics.jsonl; counts are of the batch that was trained on.
SERIES = {
    "diverse groups": "batch/diverse_groups",
    "unique wrong answers a group": "batch/unique_wrong",
    "unique wrong, groups with two wrong": "batch/unique_wrong_of_two",
    "reward": "reward/mean",
    "branch A (at most one wrong)": "batch/branch_a",
    "branch B (one error repeated)": "batch/branch_b",
    "branch C (several errors)": "batch/branch_c",
}
GENERATED = "diverse share of generated groups"
DRAWN = ("sampling/groups", "sampling/aborted_groups")  # all prompts drawn in a step
COUNTED = ("groups/diverse_groups", *DRAWN, "step")
UNREADABLE = (
    "Not to be read from these runs: diversity of errors, and what EDAS does with it. No group had two different wrong answers."
)
REWARD_SMOOTHING = 0.5  # the paper's
# Runs whose groups were drawn otherwise have counts that cannot be compared.
ALIKE = (
    ("rollout", "prompts"), ("rollout", "group_size"), ("data", "task"), ("data", "train"), ("data", "subset"),
    ("data", "train_split"), ("verifier", "name"),
)  # fmt: skip


def load_runs(inputs: Sequence[str]) -> tuple[dict[str, list[Any]], int]:
    """({label: float[steps, series and drawn prompts] of each of its runs}, groups in a batch).

    An input is a run folder or LABEL=FOLDER; folders with one label are seeds of one method. All are cut to the shortest.
    ConfigError when runs differ in what their counts depend on.
    """
    labels, tables, configs = [], [], []
    for text in inputs:
        label, path = labelled(text)
        config = path / "config.yaml"
        if not config.is_file() or not (path / "metrics.jsonl").is_file():
            raise ConfigError(f"{path} is not a run folder of train.py with a step: config.yaml or metrics.jsonl is missing")
        tree = yaml.safe_load(config.read_text(encoding="utf-8"))
        rows = rows_with(path / "metrics.jsonl", (*SERIES.values(), *COUNTED))
        if not rows:
            raise ConfigError(f"{path / 'metrics.jsonl'} has no step")
        labels.append(label or path.resolve().name)
        tables.append(np.array([columns(row) for row in rows]))
        configs.append({".".join(keys): tree[keys[0]][keys[1]] for keys in ALIKE})
    if len(set(labels)) < 2:
        raise ConfigError(f"training dynamics compare two or more runs; given {', '.join(labels)}")
    for text, settings in zip(inputs, configs, strict=True):
        for key, value in settings.items():
            if value != configs[0][key]:
                raise ConfigError(f"{text} has {key}={value!r}, {inputs[0]} has {configs[0][key]!r}: counts are not comparable")
    steps = min(map(len, tables))
    runs: dict[str, list[Any]] = {}
    for label, table in zip(labels, tables, strict=True):
        runs.setdefault(label, []).append(table[:steps])
    return runs, configs[0]["rollout.prompts"]


def columns(row: Row) -> list[float]:
    """One step: SERIES, the share of generated groups with several wrong answers, and the prompts drawn."""
    generated = row["sampling/groups"]
    share = row["groups/diverse_groups"] / generated if generated else float("nan")
    return [*(row[key] for key in SERIES.values()), share, sum(row[key] for key in DRAWN)]


def exponential(values: Sequence[float], weight: float = REWARD_SMOOTHING) -> list[float]:
    """Exponential smoothing: s_1 = x_1, s_t = weight s_(t-1) + (1 - weight) x_t."""
    found: list[float] = []
    for value in values:
        found.append(weight * found[-1] + (1 - weight) * value if found else value)
    return found


def course(curve: Sequence[float]) -> dict[str, Any]:
    """Start, minimum (and its step, from 1) and end of the running mean over 9 steps, and the decline from start to end in
    percent, None from 0."""
    means = smooth(curve)
    least = min(means)
    decline = 100 * (1 - means[-1] / means[0]) if means[0] else None
    return {"start": means[0], "minimum": least, "step": means.index(least) + 1, "end": means[-1], "decline": decline}


def epoch_means(tables: Sequence[Any], problems: int) -> list[float]:
    """Diverse groups a step in each epoch, mean over its steps, then over runs; a step is of its first prompt's epoch.

    tables: float[steps, columns] of each run; problems: in an epoch.
    """
    found: dict[int, list[float]] = {}
    for table in tables:
        drawn = table[:, -1]
        epochs = (drawn.cumsum() - drawn) // problems
        for epoch in np.unique(epochs):
            found.setdefault(int(epoch), []).append(float(table[epochs == epoch, 0].mean()))
    return [float(np.mean(found[epoch])) for epoch in sorted(found)]


def analyse(runs: Mapping[str, list[Any]], prompts: int, problems: int | None = None) -> dict[str, Any]:
    """Means over steps of each method, their range over its runs, and the ratio to the first method; the course of its diverse
    groups, by epochs of so many training `problems` where they are given."""
    if problems is not None and problems < 1:
        raise ConfigError(f"--problems is the number of training problems in an epoch, at least 1, not {problems}")
    names = [*SERIES, GENERATED]
    means = {label: np.array([np.nanmean(table, axis=0) for table in tables]) for label, tables in runs.items()}
    first = next(iter(means.values())).mean(axis=0)
    steps = len(next(iter(runs.values()))[0])
    result: dict[str, Any] = {"steps": steps, "groups_in_a_batch": prompts, "methods": {}}
    for label, of_runs in means.items():
        mean = of_runs.mean(axis=0)
        result["methods"][label] = {
            "runs": len(of_runs),
            "means": {
                name: {"mean": mean[i], "least": of_runs[:, i].min(), "most": of_runs[:, i].max(),
                       "ratio": mean[i] / first[i] if first[i] else None}
                for i, name in enumerate(names)
            },
            "steps": {name: np.mean([t[:, i] for t in runs[label]], axis=0) for i, name in enumerate(names)},
            "course": course(np.mean([t[:, 0] for t in runs[label]], axis=0).tolist()),
            "epochs": epoch_means(runs[label], problems) if problems else [],
        }  # fmt: skip
    return result


def tables(result: Mapping[str, Any]) -> list[str | Table]:
    """Means over steps, ratios."""
    methods = result["methods"]
    first = next(iter(methods))
    head = [f"mean over {result['steps']} steps", *methods, *(f"{m} / {first}" for m in methods if m != first)]
    table: Table = [head]
    for name in methods[first]["means"]:
        cells = []
        for found in methods.values():
            m = found["means"][name]
            spread = f" ({m['least']:.2f} to {m['most']:.2f})" if found["runs"] > 1 else ""
            cells.append(f"{m['mean']:.3f}{spread}")
        ratios = [found["means"][name]["ratio"] for label, found in methods.items() if label != first]
        table.append([name, *cells, *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios)])
    epochs = max(len(found["epochs"]) for found in methods.values())
    head = [
        "diverse groups",
        "start",
        "minimum (step)",
        "end",
        "decline, %",
        *(f"epoch {i + 1} (ratio)" for i in range(epochs)),
    ]
    courses: Table = [head]
    reference = [*methods[first]["epochs"], *[0.0] * epochs]
    for label, found in methods.items():
        c = found["course"]
        ends = [f"{c['start']:.1f}", f"{c['minimum']:.1f} ({c['step']})", f"{c['end']:.1f}"]
        decline = "–" if c["decline"] is None else f"{c['decline']:.1f}"
        means = [f"{x:.1f} ({x / y:.2f})" if y else f"{x:.1f}" for x, y in zip(found["epochs"], reference, strict=False)]
        courses.append([label, *ends, decline, *means, *[""] * (epochs - len(means))])
    runs = ", ".join(f"{label} {found['runs']}" for label, found in methods.items())
    diverse = any(found["means"]["diverse groups"]["mean"] for found in methods.values())
    return [
        *([] if diverse else [UNREADABLE]),
        f"Counts are of the {result['groups_in_a_batch']} groups trained on at a step, whatever the estimator does with them. "
        f"Runs: {runs}; in brackets the range over them. One run is no measure of chance: give several seeds as LABEL=FOLDER.",
        table,
        "Diverse groups in the course of training: running mean over 9 steps at the first step, at its minimum and at the last "
        f"step; means of epochs and, in brackets, their ratio to {first}"
        + ("." if epochs else " (by --problems N, the number of training problems)."),
        courses,
    ]


def draw(result: Mapping[str, Any], plt: Any) -> Any:
    """The figure. plt: matplotlib.pyplot."""
    methods = result["methods"]
    first, *others = methods
    figure, axes = plt.subplots(3, 3, figsize=(13, 10), layout="constrained")
    names = list(methods[first]["means"])
    steps = np.arange(1, result["steps"] + 1)
    for axis, name in zip(axes.flat, names, strict=False):
        smoothed = exponential if name == "reward" else smooth
        for label, found in methods.items():
            axis.plot(steps, smoothed(found["steps"][name].tolist()), label=label)
        axis.set(title=name, xlabel="step", ylim=(0, None))
    ratio = axes.flat[len(names)]
    ratio.axhline(1, color="0.6", linewidth=1, linestyle="--")
    for i, label in enumerate(others, 1):
        for name, style in (("diverse groups", "-"), ("unique wrong, groups with two wrong", ":")):
            below = np.array(smooth(methods[first]["steps"][name].tolist()))
            above = np.array(smooth(methods[label]["steps"][name].tolist()))
            values = np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0)
            ratio.plot(steps, values, style, color=f"C{i}", label=f"{label}: {name}")
    ratio.set(title=f"ratio to {first}", xlabel="step")
    ratio.legend(fontsize=7)
    axes.flat[0].legend(fontsize=8)
    figure.suptitle(f"running means over 9 steps; reward: exponential smoothing {REWARD_SMOOTHING:g}", fontsize=9)
    return figure
