"""The reports of a run while it trains: console lines, warnings, metrics.jsonl and rollouts/."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minirl.config.options import Config, RolloutConfig
from minirl.utils.console import append_line, must_write, replace_file, say
from minirl.utils.errors import RunError


class Reporter:
    """Prints and writes metrics, evaluations and responses. Writes nothing on ranks other than the first (folder None)."""

    def __init__(self, folder: Path | None, steps: int, epochs: int = 1) -> None:
        self.folder, self.steps, self.epochs = folder, steps, epochs
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.bar = tqdm(total=steps, unit="step", disable=folder is None or not sys.stderr.isatty(), leave=False)

    def resume(self, step: int, evaluations: list[tuple[int, dict[str, float]]], length: int) -> None:
        """Continues after `step`: removes what was written after it, and the final report of a shorter run.

        length: bytes of metrics.jsonl up to `step`.
        """
        self.evaluations = list(evaluations)
        self.bar.update(step)
        if self.folder is None:
            return
        with must_write(self.folder / "metrics.jsonl"), (self.folder / "metrics.jsonl").open("ab") as file:
            file.truncate(length)
        for path in (*(self.folder / "rollouts").glob("step*.jsonl"), *(self.folder / "evaluations").glob("step*.json")):
            if int(path.stem[4:]) > step:
                path.unlink()
        for name in ("summary.json", "report.md", "curves.png"):
            (self.folder / name).unlink(missing_ok=True)

    def written(self) -> int:
        """Bytes of metrics.jsonl so far; 0 on ranks other than the first."""
        return (self.folder / "metrics.jsonl").stat().st_size if self.folder else 0

    def step(
        self, step: int, metrics: dict[str, float], seconds: dict[str, float], responses: Sequence[dict[str, Any]]
    ) -> None:
        """Appends a step to metrics.jsonl, prints its line and writes `responses`, JSON objects, to rollouts/."""
        if self.folder is None:
            return
        metrics = {
            **metrics,
            **{f"time/{key}": value for key, value in seconds.items()},
            "speed/tokens": metrics["sampling/tokens"] / max(seconds["step"], 1e-9),
            "speed/sample": metrics["sampling/tokens"] / max(seconds["sample"], 1e-9),
            "speed/update": metrics["sampling/trained_tokens"] * self.epochs / max(seconds["update"], 1e-9),
        }
        append_line(self.folder / "metrics.jsonl", json.dumps({"step": step, **metrics}))
        if responses:
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in responses)
            try:
                replace_file(self.folder / "rollouts" / f"step{step:06d}.jsonl", "".join(lines))
            except OSError as error:
                say(f"warning: the responses of step {step} could not be saved for reading: {error}; the run continues")
        say(console_line(step, self.steps, metrics))
        self.bar.update()

    def evaluation(self, step: int, result: dict[str, float]) -> None:
        """Adds an evaluation to `evaluations` and prints it."""
        self.evaluations.append((step, result))
        if self.folder is not None:
            more = f", pass@{result['k']} {result['pass@k']:.3f}" if result["k"] > 1 else ""
            say(
                f"eval after step {step}: pass@1 {result['pass@1']:.3f}{more}, error diversity {result['error_diversity']:.3f} "
                f"({result['problems']} problems x {result['samples']})"
            )


def console_line(step: int, steps: int, m: dict[str, float]) -> str:
    """The console line of a step."""
    clipped = m["policy/clip_high"] + m["policy/clip_low"]
    return (
        f"{step:>{len(str(steps))}}/{steps} reward {m['reward/mean']:.3f} acc {m['reward/accuracy']:.3f} | groups "
        f"{m['sampling/batch_groups']:.0f} of {m['sampling/groups']:.0f} informative {m['groups/informative']:.2f} diverse "
        f"{m['batch/diverse_groups']:.0f} unique {m['batch/unique_wrong']:.1f} A/B/C {m['batch/branch_a']:.0f}/"
        f"{m['batch/branch_b']:.0f}/{m['batch/branch_c']:.0f} delta {m['batch/delta']:.3f} | entropy {m['policy/entropy']:.3f} "
        f"kl {m['policy/approx_kl']:.4f} clip {clipped:.3f} lr {m['optimizer/lr']:.1e} grad {m['optimizer/grad_norm']:.2f} | "
        f"len {m['response/tokens']:.1f} cut {m['response/truncated']:.0%} errors {m['verify/errors']:.0f} | "
        f"{m['time/step']:.2f} s, tok/s sample {m['speed/sample']:,.0f} update {m['speed/update']:,.0f}"
    )


def warn(step: int, metrics: dict[str, float], config: Config) -> None:
    """Prints a warning for a small batch, skipped optimizer steps, or missing error labels."""
    wanted, got = config.rollout.prompts, metrics["sampling/batch_groups"]
    if got < wanted:
        say(
            f"warning: step {step} has {got:.0f} of {wanted} groups: of {metrics['sampling/groups']:.0f} sampled, only "
            f"{metrics['groups/informative']:.0%} have rewards that differ" + ("; the update was skipped" if not got else "")
        )
    if metrics["optimizer/nonfinite"]:
        say(
            f"warning: step {step}: the loss or gradient of {metrics['optimizer/nonfinite']:.0f} optimizer steps was not "
            "finite; they were skipped"
        )
    if step == 1 and "edas" in config.algorithm.estimator and metrics["response/unlabelled"]:
        say(
            f"warning: the verifier gives no error label for {metrics['response/unlabelled']:.0%} of the responses, and EDAS "
            "leaves those alone: a reward function can return a Verdict with a label"
        )


def check_logprob_diff(metrics: dict[str, float], config: RolloutConfig) -> None:
    """Warns or ends the run when log-probs of sampler and trainer differ: the rollouts are then off-policy."""
    mean, most = metrics["policy/rollout_logprob_diff_mean"], metrics["policy/rollout_logprob_diff_max"]
    text = f"sampler and trainer log-probs of the same tokens differ by {mean:.2g} nats on average ({most:.2g} at most)"
    if not mean <= config.logprob_diff_stop:  # a NaN too
        raise RunError(
            f"{text}, more than rollout.logprob_diff_stop={config.logprob_diff_stop}: the engine holds other weights, another "
            "temperature or another precision than the trainer; with rollout.engine=transformers the two cannot differ"
        )
    if mean > config.logprob_diff_warn:
        say(
            f"warning: {text}, more than rollout.logprob_diff_warn={config.logprob_diff_warn}; "
            "algorithm.rollout_is=truncate corrects for it"
        )


def check_signal(empty: int, metrics: dict[str, float], limit: int) -> None:
    """RunError when the last `limit` batches had no signal. empty: batches in a row without."""
    if limit and empty >= limit:
        raise RunError(
            f"{empty} batches in a row had no group with rewards that differ, so nothing was learned: of the last responses "
            f"{metrics['reward/accuracy']:.0%} were right, {metrics['response/no_answer']:.0%} gave no answer and "
            f"{metrics['response/truncated']:.0%} were cut at rollout.max_response_tokens, and {metrics['verify/errors']:.0f} "
            "had no verdict; look at rollouts/, change the problems, the template or rollout.max_response_tokens, raise "
            "rollout.group_size, or set rollout.max_empty_steps (0: never end)"
        )
