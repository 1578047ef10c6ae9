"""The report of a finished run, from its run folder: summary.json, report.md and curves.png."""

import io
import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from minirl.advantages import rho
from minirl.config.command_line import resolve
from minirl.config.options import Config, every_option
from minirl.evaluation.held_out import read
from minirl.evaluation.metrics import Floats, mean_intervals, powers
from minirl.utils.console import must_write, replace_file, say
from minirl.verify.types import NO_ANSWER
from minirl.watch.diagnoses import Diagnosis
from minirl.watch.limit import sentence

Evaluations = list[tuple[int, dict[str, float]]]  # (step, held-out metrics)
History = Sequence[Mapping[str, float]]
Problems = Sequence[Mapping[str, Any]]  # of evaluations/stepNNNNNN.json
ALWAYS = (  # options that the settings list even at their default
    "model.path", "data.task", "algorithm.estimator", "algorithm.loss", "rollout.prompts", "rollout.group_size",
    "rollout.temperature", "rollout.max_response_tokens", "optimizer.lr", "run.seed",
)  # fmt: skip
NAMES = {
    "pass@1": "pass@1", "pass@k": "pass@{k}", "error_diversity": "error diversity", "no_answer": "no answer",
    "truncated": "truncated", "mean_tokens": "tokens a response",
}  # fmt: skip
FEW = 20  # problems, below which a bootstrap over them has intervals that are far too narrow


def write_report(
    folder: Path, config: Config, evaluations: Evaluations, diagnoses: Sequence[Diagnosis], seconds: float,
    fingerprint: Mapping[str, str],
) -> None:  # fmt: skip
    """Writes the three files and prints the table of first and last evaluation. seconds: total run time; fingerprint: what the
    run was made with, by content."""
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    (_, before), (last, after) = evaluations[0], evaluations[-1]
    summary = {"estimator": config.algorithm.estimator, "seed": config.run.seed, "steps": len(history)}
    summary |= {"seconds": round(seconds, 1), "before": before, "after": after, "fingerprint": dict(fingerprint)}
    problems = [read(folder / "evaluations" / f"step{step:06d}.json")[0].problems for step in (0, last)]
    table = before_after(before, after, changes(problems[0], problems[1], int(before["k"]), config.run.seed))
    text = report_text(folder, config, history, before, table, diagnoses, seconds)
    picture = io.BytesIO()
    draw_curves(history, evaluations, problems, config, picture)
    with must_write(folder):
        replace_file(folder / "curves.png", picture.getvalue())
        replace_file(folder / "report.md", text)
        # Last: it marks the run as finished.
        replace_file(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    say(f"\n{table}\n\n{len(history)} steps in {seconds:.0f} s; report, curves and model are in {folder}")


def report_text(
    folder: Path, config: Config, history: History, before: Mapping[str, float], table: str, diagnoses: Sequence[Diagnosis],
    seconds: float,
) -> str:  # fmt: skip
    """report.md."""
    e = config.eval
    found = [f"* step {d.step}, {d.name}: {d.text}" for d in diagnoses] or ["No fault was seen."]
    parts = [
        f"# {config.algorithm.estimator}, seed {config.run.seed}",
        f"{len(history)} steps in {seconds:.0f} s. {sentence(history)}".rstrip(),
        "The same run again:",
        f"```bash\npython train.py {shlex.quote(f'{folder}/config.yaml')} --run-dir runs/again\n```",
        "## Held-out problems",
        f"{before['problems']:.0f} problems, {e.samples} responses each, at temperature {e.temperature:g}. Intervals: 95%, of "
        "the change on the same problems, by a bootstrap over problems (of error diversity: over those with wrong answers both "
        "times). They say nothing of other seeds: another run of the same settings may end elsewhere.",
        table,
        "![curves](curves.png)",
        "## Training accuracy and held-out accuracy",
        training_accuracy(config, history, before),
        "## Diagnoses",
        "\n".join(found),
        "## Settings",
        settings(config),
    ]
    if example := example_group(folder):
        parts += ["## A group", example]
    return "\n\n".join(parts) + "\n"


def settings(config: Config) -> str:
    """A Markdown table of the options that differ from their defaults, and of a few others."""
    usual = {key: value for key, value, _ in every_option(resolve(Config()))}
    rows = [
        f"| {key} | {value} | {'' if value == usual[key] else usual[key]} |"
        for key, value, _ in every_option(config)
        if (value != usual[key] and key not in ("run.dir", "run.resume", "data.template_date")) or key in ALWAYS
    ]
    return "\n".join(["| option | value | default, where it differs |", "|---|---|---|", *rows])


# ---- before and after -------------------------------------------------------------------------------------------------------


def before_after(
    before: Mapping[str, float], after: Mapping[str, float], intervals: Mapping[str, tuple[float, float, float]]
) -> str:
    """A Markdown table of the held-out numbers before and after training. intervals: of `changes`."""
    names = {key: name.format(k=before["k"]) for key, name in NAMES.items() if key != "pass@k" or before["k"] > 1}
    rows = [f"| {'held out':<17} | before | after  | change | 95% interval     |", "|---|---|---|---|---|"]
    for key, name in names.items():
        change, low, high = intervals.get(key, (after[key] - before[key], np.nan, np.nan))
        interval = "" if np.isnan(low) else "no variation" if low == high else f"{low:+.3f} to {high:+.3f}"
        rows.append(f"| {name:<17} | {before[key]:<6.3f} | {after[key]:<6.3f} | {change:+.3f} | {interval:<16} |")
    if before["problems"] < FEW:
        rows.append(f"\n{before['problems']:.0f} problems are too few to say anything of others; {FEW} or more are needed.")
    return "\n".join(rows)


def changes(before: Problems, after: Problems, k: int, seed: int) -> dict[str, tuple[float, float, float]]:
    """(mean, low, high) of the change of each number that problems have, on the problems of both evaluations."""
    then, now = ({p["id"]: numbers(p, k) for p in problems} for problems in (before, after))
    both = [problem for problem in then if problem in now]
    if not both:
        return {}
    columns = {key: np.array([now[p][key] - then[p][key] for p in both]) for key in then[both[0]]}
    found = mean_intervals(columns, seed)
    return {key: (f["mean"], f["low"], f["high"]) for key, f in found.items() if f["problems"]}  # type: ignore[misc]


def numbers(problem: Mapping[str, Any], k: int) -> dict[str, float]:
    """The held-out numbers of one problem, by the keys of an evaluation's metrics; NaN where one is not defined."""
    n, wrong = problem["n"], {label: count for label, count in problem["wrong"].items() if label}
    none = float("nan")
    return {
        "pass@1": problem["right"] / n if n else none,
        "pass@k": rho(n, problem["right"], min(k, n)) if n else none,
        "error_diversity": len(wrong) / sum(wrong.values()) if wrong else none,
        "no_answer": wrong.get(NO_ANSWER, 0) / n if n else none,
        "mean_tokens": problem["tokens"],
    }


def pass_curve(problems: Problems, samples: int, seed: int) -> tuple[list[int], Floats]:
    """(ks, float[3, K]): pass@k with its 95% interval over problems, at the powers of two up to `samples`."""
    judged = [p for p in problems if p["n"] >= samples] or [p for p in problems if p["n"]]
    ks = powers(min((p["n"] for p in judged), default=1))
    columns = {str(k): np.array([rho(p["n"], p["right"], k) for p in judged]) for k in ks}
    found = mean_intervals(columns, seed)
    return ks, np.array([[found[str(k)][part] for k in ks] for part in ("mean", "low", "high")], dtype=np.float64)


# ---- text -------------------------------------------------------------------------------------------------------------------


def training_accuracy(config: Config, history: History, before: Mapping[str, float]) -> str:
    """Why the training accuracy of the first steps is not the held-out accuracy before training."""
    rows, r, e = history[:3], config.rollout, config.eval
    groups = sum(row["sampling/groups"] for row in rows)
    first = sum(row["reward/accuracy"] * row["sampling/groups"] for row in rows) / max(groups, 1.0)
    reasons = ["the policy has already learned in the later of these steps"]
    if config.model.path == "embedded-arithmetic" and config.data.task == "arithmetic":
        reasons.append(
            "the embedded model has seen the training problems in its warm start, with right and wrong answers, and the "
            "held-out ones never"
        )
    elif config.model.path != f"embedded-{config.data.task}":
        reasons.append("the problems are others: the model may have seen those to train on, and either set may be harder")
    if (r.temperature, 1.0, 0, r.max_response_tokens) != (e.temperature, e.top_p, e.top_k, e.max_response_tokens):
        reasons.append(
            f"responses are sampled otherwise (temperature {r.temperature:g} and {e.temperature:g} held out, top_p 1 and "
            f"{e.top_p:g}, top_k 0 and {e.top_k}, at most {r.max_response_tokens} and {e.max_response_tokens} tokens)"
        )
    reasons.append(
        f"chance: {groups:.0f} training problems and {before['problems']:.0f} held-out ones differ by a few points either way"
    )
    dynamic = config.algorithm.requirements.dynamic_sampling
    return (
        f"In the first {len(rows)} steps {first:.1%} of the training responses are right, of the held-out ones before training "
        f"{before['pass@1']:.1%}. Training accuracy is that of all groups sampled in a step"
        + (", before dynamic sampling drops any, so that dropping is not the reason" if dynamic else "")
        + f". What differs: {'; '.join(reasons)}. Progress is what the held-out numbers say."
    )


def example_group(folder: Path) -> str:
    """A group of the newest rollouts/ with right and wrong responses, if there is one, as a Markdown table."""
    for path in sorted((folder / "rollouts").glob("step*.jsonl"), reverse=True)[:20]:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        groups = [list(group) for _, group in groupby(rows, key=lambda row: row["group"])]
        mixed = [g for g in groups if len({row["status"] for row in g}) > 1]
        if not mixed:
            continue
        group = max(mixed, key=lambda g: len({row["label"] for row in g}))
        before = list(group[0].get("before", {}))  # the parts of the estimator that come before its last wrapper
        lines = [
            f"Of step {int(path.stem[4:])}, to the prompt {quoted(group[0]['prompt'], 300)}, whose gold answer is "
            f"{quoted(group[0]['gold'], 80)}. An advantage above 0 makes the response likelier. Wrong responses with one label "
            "made the same error. `python -m minirl.view` shows more of it.\n",
            f"| {' | '.join(['response', 'verdict', 'label', 'reward', *before, 'advantage'])} |",
            "|---|---|---|---|" + "---|" * len(before) + "---|",
        ]
        order = sorted(group, key=lambda row: (row["status"] != "right", row["label"]))
        return "\n".join([*lines, *(example_row(row, before) for row in order)])
    return ""


def example_row(row: Mapping[str, Any], before: Sequence[str]) -> str:
    """A response as a row of the table, with the advantages after the parts `before` the last wrapper. One that differs from
    token to token is shown by its mean."""

    def mean(advantage: Any) -> str:
        return "not trained on" if advantage is None else f"{float(np.mean(advantage)):+.3f}"

    shown = " | ".join(mean(advantage) for advantage in (*(row["before"][name] for name in before), row["advantage"]))
    reward = "none" if row["reward"] is None else f"{row['reward']:.3g}"
    label = quoted(row["label"], 40) if row["label"] else ""
    return f"| {quoted(row['response'], 120)} | {row['status']} | {label} | {reward} | {shown} |"


def quoted(text: str, most: int) -> str:
    """Any text as code in one cell of a Markdown table, cut to its last `most` characters."""
    text = " ".join(text.split())
    text = text if len(text) <= most else f"... {text[-most:]}"
    text = text.replace("|", "\\|").replace("`", "'")
    return f"`{text}`" if text else "(empty)"


# ---- the picture ------------------------------------------------------------------------------------------------------------


def draw_curves(history: History, evaluations: Evaluations, problems: Sequence[Problems], config: Config, path: Any) -> None:
    """Draws eight panels into the file `path`. problems: of the first and the last evaluation."""
    from matplotlib.figure import Figure  # without pyplot, which would choose a window system

    a, r = config.algorithm, config.rollout
    panels: list[tuple[str, dict[str, str]]] = [
        ("share of right responses", {"reward/accuracy": "training problems, all sampled"}),
        ("pass@k, held out", {}),
        ("groups", {"groups/informative": "with signal", "groups/error_diversity": "error diversity"}),
        ("EDAS branches, groups a batch", {f"batch/branch_{x}": f"branch {x.upper()}" for x in "abc"}),
        ("entropy, nats a token", {"policy/entropy": "policy"}),
        ("KL within a step, nats a token", {"policy/approx_kl": "old to new policy"}),
        ("gradient norm before clipping", {"optimizer/grad_norm": "gradient norm"}),
        ("tokens a response", {"response/tokens": "mean length"}),
    ]
    figure = Figure(figsize=(17, 7.5), layout="constrained")
    steps = [row["step"] for row in history]
    for axis, (name, keys) in zip(figure.subplots(2, 4).flat, panels, strict=True):
        for key, label in keys.items():
            axis.plot(steps, smooth([row[key] for row in history]), label=label)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("step")
        if name == panels[0][0]:
            axis.plot([s for s, _ in evaluations], [e["pass@1"] for _, e in evaluations], "o-", label="held-out problems")
        if name == panels[1][0]:
            draw_pass_curves(axis, problems, config)
        axis.legend(fontsize=8)
    figure.suptitle(
        f"{a.estimator}, seed {config.run.seed}: {config.model.path} on {config.data.task}, {r.prompts} prompts x "
        f"{r.group_size} responses a step, learning rate {config.optimizer.lr:g}; curves are means over 9 steps, bands 95% "
        "intervals over problems"
    )
    figure.savefig(path, dpi=90)


def draw_pass_curves(axis: Any, problems: Sequence[Problems], config: Config) -> None:
    """pass@k before and after training over k, with bands."""
    for label, found in zip(("before", "after"), problems, strict=True):
        ks, (mean, low, high) = pass_curve(found, config.eval.samples, config.run.seed)
        (line,) = axis.plot(ks, mean, "o-", label=label)
        axis.fill_between(ks, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ks, [str(k) for k in ks])
    axis.minorticks_off()
    axis.set_xlabel("k")


def smooth(values: Sequence[float], width: int = 9) -> list[float]:
    """Running mean over the last `width` values."""
    return [sum(part) / len(part) for i in range(len(values)) for part in [values[max(0, i - width + 1) : i + 1]]]
