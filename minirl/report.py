"""The run folder: config.yaml, metrics.jsonl, rollouts/, model/, summary.json, report.md and curves.png; and the console."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tqdm import tqdm

from minirl.config import Config, ConfigError, RolloutConfig, RunError, as_tree
from minirl.distributed import is_main_process
from minirl.rollout import Rollout
from minirl.verify import VerifierError


def say(message: str) -> None:
    """One line on the console that does not break a progress bar."""
    tqdm.write(message, file=sys.stdout)
    sys.stdout.flush()


@contextmanager
def new_run_folder(config: Config) -> Iterator[Path | None]:
    """A new run folder, made now; None on ranks other than the first. ConfigError when it exists already or cannot be written.

    Bad input that shows only later takes the folder away again, so that the mended command can be repeated.
    """
    if not is_main_process():
        yield None
        return
    name = f"{config.algorithm.estimator}-seed{config.run.seed}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    folder = Path(config.run.dir or Path("runs") / name).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"the run folder {folder} exists and is not empty: choose another --run-dir or remove it; nothing was changed"
        )
    try:
        (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(as_tree(config), sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the run folder {folder}: {error.strerror or error}") from None
    try:
        yield folder
    except (ConfigError, VerifierError):
        shutil.rmtree(folder)
        raise


class Reporter:
    """Writes what a run says. On ranks other than the first (folder None) it does nothing."""

    def __init__(self, folder: Path | None, steps: int, epochs: int = 1) -> None:
        self.folder, self.steps, self.epochs = folder, steps, epochs
        self.history: list[dict[str, float]] = []
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.bar = tqdm(total=steps, unit="step", disable=folder is None or not sys.stderr.isatty(), leave=False)

    def step(
        self, step: int, metrics: dict[str, float], seconds: dict[str, float], groups: Sequence[Sequence[Rollout]]
    ) -> None:
        """Appends one step to metrics.jsonl, prints its line and writes `groups` for reading."""
        metrics = (
            metrics
            | {f"time/{key}": value for key, value in seconds.items()}
            | {
                "speed/tokens": metrics["sampling/tokens"] / seconds["step"],
                "speed/sample": metrics["sampling/tokens"] / max(seconds["sample"], 1e-9),
                "speed/update": metrics["sampling/trained_tokens"] * self.epochs / max(seconds["update"], 1e-9),
            }
        )
        self.history.append({"step": step, **metrics})
        if self.folder is None:
            return
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")
        if groups:
            with (self.folder / "rollouts" / f"step{step:06d}.jsonl").open("w", encoding="utf-8") as file:
                for rollout in (r for g in groups for r in g):
                    file.write(json.dumps(readable(rollout), ensure_ascii=False) + "\n")
        say(console_line(step, self.steps, metrics))
        self.bar.update()

    def evaluation(self, step: int, result: dict[str, float]) -> None:
        """Keeps and prints an evaluation."""
        self.evaluations.append((step, result))
        if self.folder is not None:
            say(
                f"eval after step {step}: pass@1 {result['pass@1']:.3f}, pass@{result['k']} {result['pass@k']:.3f}, error "
                f"diversity {result['error_diversity']:.3f} ({result['problems']} problems x {result['samples']})"
            )

    def finish(self, config: Config, before: dict[str, float], after: dict[str, float], seconds: float) -> None:
        """summary.json, report.md and curves.png, and the table on the console."""
        self.bar.close()
        if self.folder is None:
            return
        summary = {
            "estimator": config.algorithm.estimator, "seed": config.run.seed, "steps": len(self.history),
            "seconds": round(seconds, 1),
            "before": before, "after": after,
        }  # fmt: skip
        table = before_after(before, after)
        draw_curves(self.history, self.evaluations, config.algorithm.estimator, self.folder / "curves.png")
        (self.folder / "report.md").write_text(
            f"# {config.algorithm.estimator}, seed {config.run.seed}\n\n{len(self.history)} steps in {seconds:.0f} s; "
            f"model `{config.model.path}`, task `{config.data.task}`.\n\n{table}\n\n![curves](curves.png)\n",
            encoding="utf-8",
        )
        # Last: a run folder with a summary is a run that finished.
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        say(f"\n{table}\n\n{len(self.history)} steps in {seconds:.0f} s; report, curves and model are in {self.folder}")


def console_line(step: int, steps: int, m: dict[str, float]) -> str:
    """One step for people."""
    clipped = m["policy/clip_high"] + m["policy/clip_low"]
    return (
        f"{step:>{len(str(steps))}}/{steps} reward {m['reward/mean']:.3f} acc {m['reward/accuracy']:.3f} | groups "
        f"{m['sampling/batch_groups']:.0f} of {m['sampling/groups']:.0f} informative {m['groups/informative']:.2f} diverse "
        f"{m['batch/diverse_groups']:.0f} unique {m['batch/unique_wrong']:.1f} A/B/C {m['batch/branch_a']:.0f}/"
        f"{m['batch/branch_b']:.0f}/{m['batch/branch_c']:.0f} delta {m['batch/delta']:.3f} | entropy {m['policy/entropy']:.3f} "
        f"kl {m['policy/kl_old']:.4f} clip {clipped:.3f} lr {m['optimizer/lr']:.1e} grad {m['optimizer/grad_norm']:.2f} | len "
        f"{m['response/tokens']:.1f} cut {m['response/truncated']:.0%} errors {m['verify/errors']:.0f} | {m['time/step']:.2f} "
        f"s, tok/s sample {m['speed/sample']:,.0f} update {m['speed/update']:,.0f}"
    )


def warn(step: int, metrics: dict[str, float], config: Config) -> None:
    """Says what makes a step worth less than it looks."""
    wanted, got = config.rollout.prompts, metrics["sampling/batch_groups"]
    if got < wanted:
        say(
            f"warning: step {step} has {got:.0f} of {wanted} groups: of {metrics['sampling/groups']:.0f} sampled, only "
            f"{metrics['groups/informative']:.0%} have rewards that differ" + ("; the update was skipped" if not got else "")
        )
    if step == 1 and "edas" in config.algorithm.estimator and metrics["response/unlabelled"]:
        say(
            f"warning: the verifier gives no error label for {metrics['response/unlabelled']:.0%} of the responses, and EDAS "
            "leaves those alone: a reward function can return a Verdict with a label"
        )


def check_gap(metrics: dict[str, float], config: RolloutConfig) -> None:
    """Warns or ends the run when the sampler's log-probs are not the trainer's: the rollouts are then of another policy."""
    gap = metrics["policy/gap_mean"]
    text = (
        f"sampler and trainer log-probs differ by {gap:.2g} nats on average ({metrics['policy/gap_max']:.2g} at most) on the "
        "same tokens and weights"
    )
    if not gap <= config.gap_stop:  # a NaN too
        raise RunError(
            f"{text}, more than rollout.gap_stop={config.gap_stop}: the engine holds other weights, another temperature or "
            "another precision than the trainer; with rollout.engine=transformers there is no gap to compare with"
        )
    if gap > config.gap_warn:
        say(f"warning: {text}, more than rollout.gap_warn={config.gap_warn}; algorithm.correction=truncate weighs it")


def readable(r: Rollout) -> dict[str, Any]:
    """A rollout as a JSON object for people."""
    advantage = None if r.advantages is None else np.round(np.asarray(r.advantages, dtype=np.float64), 5).tolist()
    return {
        "group": r.group, "prompt": r.prompt, "gold": r.gold, "response": r.text, "status": r.verdict.status,
        "label": r.verdict.label, "key": r.verdict.key, "reward": None if np.isnan(r.reward) else r.reward,
        "advantage": advantage, "tokens": r.length, "finish": r.sample.finish, "version": r.version, "detail": r.verdict.detail,
    }  # fmt: skip


def before_after(before: dict[str, float], after: dict[str, float]) -> str:
    """A Markdown table of the held-out numbers before and after training."""
    names = {
        "pass@1": "pass@1", "pass@k": f"pass@{before['k']}", "error_diversity": "error diversity", "no_answer": "no answer",
        "truncated": "truncated", "mean_tokens": "tokens a response",
    }  # fmt: skip
    rows = [f"| {'held out':<17} | before | after  | change  |", "|---|---|---|---|"]
    rows += [f"| {names[k]:<17} | {before[k]:<6.3f} | {after[k]:<6.3f} | {after[k] - before[k]:+.3f}  |" for k in names]
    return "\n".join(rows)


def draw_curves(
    history: list[dict[str, float]], evaluations: list[tuple[int, dict[str, float]]], title: str, path: Path
) -> None:
    """Six small pictures of a run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels: list[tuple[str, list[str]]] = [
        ("accuracy", ["reward/accuracy"]),
        ("groups", ["groups/informative", "groups/error_diversity"]),
        ("EDAS branches in the batch", ["batch/branch_a", "batch/branch_b", "batch/branch_c"]),
        ("entropy, nats", ["policy/entropy"]),
        ("KL to old policy, nats", ["policy/kl_old"]),
        ("gradient norm", ["optimizer/grad_norm"]),
    ]
    figure, axes = plt.subplots(2, 3, figsize=(14, 7), layout="constrained")
    steps = [m["step"] for m in history]
    for axis, (name, keys) in zip(axes.flat, panels, strict=True):
        for key in keys:
            axis.plot(steps, smooth([m[key] for m in history]), label=key)
        if name == "accuracy":
            axis.plot([s for s, _ in evaluations], [e["pass@1"] for _, e in evaluations], "o-", label="held-out pass@1")
        axis.set_title(name)
        axis.set_xlabel("step")
        axis.legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def smooth(values: Sequence[float], width: int = 9) -> list[float]:
    """Running mean over the last `width` values."""
    return [sum(part) / len(part) for i in range(len(values)) for part in [values[max(0, i - width + 1) : i + 1]]]
