"""The reports of a run while it trains: console lines, diagnoses, metrics.jsonl and rollouts/."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minirl.config.options import Config, RolloutConfig
from minirl.utils.console import Activity, append_line, must_write, replace_file, say
from minirl.utils.errors import RunError
from minirl.watch.diagnoses import Diagnosis, diagnose, newly_seen
from minirl.watch.trackers import Trackers

HEADER_EVERY = 25  # steps between two headers: one is always on the screen
COLUMNS = (  # (name, width, what it means)
    ("acc", 5, "share of right responses, of all sampled (dynamic sampling has dropped none yet)"),
    ("reward", 6, "mean reward of all sampled"),
    ("groups", 9, "trained on / sampled"),
    ("signal", 6, "share of the sampled groups that can teach: rewards differ"),
    ("entropy", 7, "of the policy, nats a token"),
    ("kl", 7, "from the policy that sampled to the one after the step, nats a token"),
    ("clip", 5, "share of tokens at which the ratio is clipped"),
    ("grad", 6, "gradient norm before clipping"),
    ("tokens", 6, "mean length of a response"),
    ("cut", 4, "share of responses cut at the length limit"),
    ("time", 6, "of the step, seconds"),
    ("tok/s", 6, "response tokens sampled a second of the whole step"),
)


class Reporter:
    """Prints and writes metrics, diagnoses, evaluations and responses. Writes nothing on ranks other than the first (folder
    None). diagnoses: those seen so far, each printed once."""

    def __init__(self, folder: Path | None, config: Config) -> None:
        self.folder, self.config, self.steps, self.epochs = folder, config, config.run.steps, config.algorithm.epochs
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.history: list[dict[str, float]] = []
        self.diagnoses: list[Diagnosis] = []
        self.printed = 0  # steps, by this process
        quiet = folder is None or not sys.stderr.isatty()
        self.bar = tqdm(total=self.steps, unit="step", disable=quiet, leave=False, dynamic_ncols=True)
        self.activity = Activity(self.bar) if folder is not None else None

    def resume(self, step: int, evaluations: list[tuple[int, dict[str, float]]], length: int) -> None:
        """Continues after `step`: removes what was written after it, and the final report of a shorter run.

        length: bytes of metrics.jsonl up to `step`.
        """
        self.evaluations = list(evaluations)
        self.trackers = Trackers(self.folder, self.config, step)
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
        self.history = read_metrics(self.folder)
        self.diagnoses = diagnose(self.history, self.config)

    def begin(self, work: str) -> None:
        """Says what the run does from now on, should it take long."""
        if self.activity:
            self.activity.begin(work)

    def sampled(self, responses: int, of: int) -> None:
        """Counts what this rank samples: responses so far, of how many."""
        if self.activity:
            self.activity.done, self.activity.of = responses, of

    def drawn(self, tokens: int) -> None:
        """Counts sampled tokens, those since the last call."""
        if self.activity:
            self.activity.tokens += tokens

    def close(self) -> None:
        """Removes the progress bar and closes the trackers."""
        if self.activity:
            self.activity.close()
        self.trackers.close()

    def written(self) -> int:
        """Bytes of metrics.jsonl so far; 0 on ranks other than the first."""
        return (self.folder / "metrics.jsonl").stat().st_size if self.folder else 0

    def step(
        self, step: int, metrics: dict[str, float], seconds: dict[str, float], responses: Sequence[dict[str, Any]]
    ) -> None:
        """Appends a step to metrics.jsonl, prints its line and writes `responses`, JSON objects, to rollouts/."""
        if self.folder is None:
            return
        sampled = metrics.get("sampling/new_tokens", metrics["sampling/tokens"])
        metrics = {
            **metrics,
            **{f"time/{key}": value for key, value in seconds.items()},
            "speed/tokens": sampled / max(seconds["step"], 1e-9),
            "speed/sample": sampled / max(seconds["sample"], 1e-9),
            "speed/update": metrics["sampling/trained_tokens"] * self.epochs / max(seconds["update"], 1e-9),
        }
        append_line(self.folder / "metrics.jsonl", json.dumps({"step": step, **metrics}))
        self.history.append({"step": step, **metrics})
        self.trackers.log(step, metrics)
        self.trackers.groups(step, responses)
        if responses:
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in responses)
            try:
                replace_file(self.folder / "rollouts" / f"step{step:06d}.jsonl", "".join(lines))
            except OSError as error:
                say(f"warning: the responses of step {step} could not be saved for reading: {error}; the run continues")
        if self.printed % HEADER_EVERY == 0:
            say(("" if self.printed else legend() + "\n") + console_header(self.steps))
        say(console_line(step, self.steps, metrics))
        self.printed += 1
        self.bar.update()
        for diagnosis in newly_seen(self.history, self.config, {d.name for d in self.diagnoses}):
            self.diagnoses.append(diagnosis)
            say(f"warning: step {step}, {diagnosis.name}: {diagnosis.text}")

    def evaluation(self, step: int, result: dict[str, float], seconds: float) -> None:
        """Adds an evaluation to `evaluations` and prints it. seconds: that it took."""
        self.evaluations.append((step, result))
        self.trackers.log(step, {f"eval/{name}": value for name, value in result.items()})
        if self.folder is not None:
            more = f", pass@{result['k']} {result['pass@k']:.3f}" if result["k"] > 1 else ""
            say(
                f"eval after step {step}: pass@1 {result['pass@1']:.3f}{more}, error diversity {result['error_diversity']:.3f} "
                f"({result['problems']} problems x {result['samples']}, {seconds:.1f} s)"
            )


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of a run folder's metrics.jsonl."""
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def legend() -> str:
    """What the columns of the console mean, a line each."""
    lines = ["the columns (all numbers are in metrics.jsonl):"]
    return "\n".join([*lines, *(f"  {name:<8} {meaning}" for name, _, meaning in COLUMNS)])


def step_width(steps: int) -> int:
    """Columns of "step/steps"."""
    return max(len("step"), 2 * len(str(steps)) + 1)


def console_header(steps: int) -> str:
    """The names of the columns, over those of `console_line`."""
    return "step".rjust(step_width(steps)) + " " + " ".join(f"{name:>{width}}" for name, width, _ in COLUMNS)


def console_line(step: int, steps: int, m: dict[str, float]) -> str:
    """The console line of a step: at most 100 columns for runs of up to 999,999 steps."""
    values: tuple[float | str, ...] = (
        m["reward/accuracy"], m["reward/mean"], f"{m['sampling/batch_groups']:.0f}/{m['sampling/groups']:.0f}",
        f"{m['groups/informative']:.0%}", m["policy/entropy"], m["policy/approx_kl"],
        m["policy/clip_high"] + m["policy/clip_low"], m["optimizer/grad_norm"], m["response/tokens"],
        f"{m['response/truncated']:.0%}", m["time/step"], m["speed/tokens"],
    )  # fmt: skip
    cells = (fitted(value, width) for value, (_, width, _) in zip(values, COLUMNS, strict=True))
    return f"{step}/{steps}".rjust(step_width(steps)) + " " + " ".join(cells)


def fitted(value: float | str, width: int) -> str:
    """A cell of `width` columns: a number with at most three digits after the point, as many as fit; a small or large one with
    an exponent."""
    if isinstance(value, str):
        return value.rjust(width)
    if value == 0 or abs(value) >= 0.0095:
        texts = [f"{value:,.0f}"] if abs(value) >= 100 else [f"{value:.{digits}f}" for digits in (3, 2, 1, 0)]
    else:
        texts = [f"{value:.1e}".replace("e-0", "e-")]
    texts += [f"{value / 1e3:.0f}k"] if abs(value) >= 1e3 else []
    texts += [f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")]
    return next((text for text in texts if len(text) <= width), texts[-1]).rjust(width)


def check_logprob_diff(metrics: dict[str, float], config: RolloutConfig) -> None:
    """RunError when log-probs of sampler and trainer differ too much: the rollouts are then off-policy. A step without the
    metric, none of whose tokens the step's own version sampled, says nothing of it."""
    if "policy/rollout_logprob_diff_mean" not in metrics:
        return
    mean, most = metrics["policy/rollout_logprob_diff_mean"], metrics["policy/rollout_logprob_diff_max"]
    if not mean <= config.logprob_diff_stop:  # a NaN too
        raise RunError(
            f"sampler and trainer log-probs of the same tokens differ by {mean:.2g} nats on average ({most:.2g} at most), more "
            f"than rollout.logprob_diff_stop={config.logprob_diff_stop}: the engine holds other weights, another temperature "
            "or another precision than the trainer; with rollout.engine=transformers the two cannot differ"
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
