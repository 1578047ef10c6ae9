"""Whole batches of a run, and a step taken again from one of them: `train.py --replay RUN/stepN`.

RUN/batches/stepNNNNNN holds what a step began with and what it sampled:

    step.json        where the run was before it: prompts drawn, policy version, skipped steps in a row; prompts drawn after it;
                     and what may be otherwise today: how long the run was to be, its starting model
    carried.npz      groups carried over from the batch before
    generated.npz    groups sampled and verified in it, with what the trainer added to them: log-probs, entropies, advantages

A replay samples nothing: an engine that remembers hands the saved responses to the same code that a run goes through.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minirl.config.command_line import load, run_of
from minirl.config.options import Config, RunConfig
from minirl.data.prompts import Order
from minirl.policy.policy import Policy
from minirl.rollout import records
from minirl.rollout.sampler import TRAINING, stable_seed
from minirl.rollout.types import Completion, Rollout, SamplingParams
from minirl.run.checkpoint import State, restore, weights_digest
from minirl.run.folder import differences
from minirl.run.manifest import damage, name_of, steps_of
from minirl.utils.console import discard, say
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError

# Relative difference up to which a number counts as the same: another number of ranks or micro-batches adds in another order.
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}


class Batches:
    """Keeps the whole batches of the newest steps, and of every step right after a checkpoint that is there.

    On ranks other than the first (folder None) it does nothing. A batch that cannot be written costs a warning, not the run.
    """

    def __init__(self, folder: Path | None, run: RunConfig, origin: str) -> None:
        """folder: the run's; run.save_batches: how many to keep, 0 for none but those of `save`; origin: digest of the starting
        model's weights."""
        self.folder, self.newest = folder, run.save_batches
        self.facts = {"steps": run.steps, "epochs": run.epochs, "origin": origin}

    def after_step(self, before: State, generated: Sequence[Sequence[Rollout]], end: int) -> None:
        """Saves the step after `before` and removes those that nothing keeps any longer."""
        if self.folder is None or not self.newest:
            return
        self.save(before, generated, end)
        for step, path in saved_steps(self.folder)[self.newest :]:
            if not (self.folder / "checkpoints" / name_of(step - 1)).exists():
                discard(path)

    def save(self, before: State, generated: Sequence[Sequence[Rollout]], end: int) -> None:
        """Writes the step after `before`: what it began with, the groups it sampled and `end`, the prompts drawn after it."""
        if self.folder is None:
            return
        final = self.folder / "batches" / name_of(before.step + 1)
        temporary = final.with_suffix(".tmp")
        where = self.facts | {
            "position": before.position,
            "version": before.version,
            "nonfinite": before.nonfinite,
            "end": end,
        }
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            (temporary / "step.json").write_text(json.dumps(where), encoding="utf-8")
            records.save(temporary / "carried.npz", before.surplus)
            records.save(temporary / "generated.npz", generated)
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            say(f"warning: the batch of step {before.step + 1} could not be saved for --replay: {error}; the run goes on")

    def forget_after(self, step: int) -> None:
        """Removes the batches of later steps, which the run will take again."""
        for later, path in saved_steps(self.folder) if self.folder else []:
            if later > step:
                discard(path)


def saved_steps(run: Path) -> list[tuple[int, Path]]:
    """(step, folder) of the batches that a run has kept, the newest first."""
    return steps_of(run / "batches")


@dataclass
class Step:
    """A step that was saved. run: folder; before: the run before it, with the groups carried over; generated: as it was;
    end: prompts drawn when it was over, those given up included; steps, epochs: of the config then; origin: digest of the
    starting model's weights."""

    run: Path
    before: State
    generated: list[list[Rollout]]
    end: int
    steps: int
    epochs: float | None
    origin: str

    @property
    def number(self) -> int:
        """The step's number."""
        return self.before.step + 1

    def metrics(self) -> dict[str, float]:
        """The step's line of metrics.jsonl."""
        path = self.run / "metrics.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            row = json.loads(line)
            if row["step"] == self.number:
                return row
        raise ConfigError(f"{path} has no step {self.number} to compare with")


def read_step(config: Config) -> Step:
    """The saved step that the config names. ConfigError when it is not there or damaged."""
    name = config.replay or ""
    run, digits = run_of(name), re.fullmatch(r"step(\d+)", Path(name).name)
    if digits is None:
        raise ConfigError(f"--replay takes a step of a run folder, such as runs/mine/step12, not {name!r}")
    number = int(digits[1])
    folder = run / "batches" / name_of(number)
    if not folder.is_dir():
        there = ", ".join(str(step) for step, _ in reversed(saved_steps(run))) or "none"
        raise ConfigError(
            f"{run} has not kept the batch of step {number}; it has {there}: run.save_batches says how many of the newest are "
            "kept, besides those right after a checkpoint"
        )
    try:
        where = json.loads((folder / "step.json").read_text(encoding="utf-8"))
        facts = {name: where.pop(name) for name in ("end", "steps", "epochs", "origin")}
        before = State(number - 1, **where, surplus=records.load(folder / "carried.npz"))
        return Step(run, before, records.load(folder / "generated.npz"), **facts)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"the batch in {folder} cannot be read: {error}") from None


def recorded_config(config: Config, step: Step) -> tuple[Config, list[str]]:
    """(`config` with the length that the run had at `step`, since schedule and end depend on it; what options of the replay
    change, as "key: old -> new")."""
    today = load([str(step.run / "config.yaml")])
    changed = [text for kind in differences(today, config) for text in kind]
    run = replace(config.run)
    if run.steps == today.run.steps:
        run.steps = step.steps
    if run.epochs == today.run.epochs:
        run.epochs = step.epochs
    return replace(config, run=run), changed


class RecordedEngine:
    """An `Engine` that hands out the responses of a saved step instead of sampling."""

    def __init__(self, step: Step, seed: int) -> None:
        """seed: the run's, which with the draw number names a prompt's samples."""
        self.version, self.ranks_per_engine = step.before.version, 1
        self.progress: Callable[[int], None] = lambda tokens: None
        self.groups = {stable_seed(seed, TRAINING, group[0].group): group for group in step.generated}

    def generate(
        self, prompts: Sequence[list[int]], sampling: SamplingParams, seeds: Sequence[int], keep: int | None = None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """See `Engine.generate`; nothing is given up again. ConfigError when the step has sampled something else."""
        for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            group = self.groups.get(seed)
            if group is None or group[0].prompt_ids != prompt or len(group) != sampling.n:
                raise ConfigError(
                    "the saved step has other prompts or another number of samples: data, template, tokenizer, run.seed and "
                    "rollout.group_size must be those of the run"
                )
            yield i, [rollout.completion for rollout in group]

    def sync(self, policy: Any) -> None:
        """There are no weights here."""

    def sleep(self) -> None:
        """Nothing to give up."""


class RecordedOrder(Order):
    """The order of a run from a saved step on, which ends with what the step has drawn, without what it gave up."""

    def __init__(self, size: int, seed: int, step: Step) -> None:
        super().__init__(size, seed, step.before.position)
        self.end, self.kept = step.end, {group[0].group for group in step.generated}

    def draw(self, count: int) -> list[tuple[int, int]]:
        """See `Order.draw`; fewer where the step has drawn no more or has given some up."""
        return [(number, i) for number, i in super().draw(min(count, self.end - self.position)) if number in self.kept]


def policy_before(step: Step, config: Config, ranks: Ranks, vocabulary: int) -> Policy | None:
    """The policy as it was before the step; None when the run has not kept it. ConfigError when it would begin with, or be
    held against, another starting model than the run's."""
    checkpoint = step.run / "checkpoints" / name_of(step.before.step)
    reason = ranks.first(damage(checkpoint, ranks.rank, ranks.size))
    if reason and step.before.step:
        if ranks.main:
            say(f"no weights from before step {step.number} ({checkpoint}: {reason}): verification and advantages only")
        return None
    policy = Policy(config, ranks, vocabulary)
    if (reason or policy.reference) and weights_digest(policy) != step.origin:
        raise ConfigError(f"model.path={config.model.path!r} holds other weights than those that {step.run} started with")
    if not reason:
        restore(policy, checkpoint, step.before.version)
    policy.nonfinite = step.before.nonfinite
    if ranks.main:
        say(f"weights from before step {step.number}: {checkpoint if not reason else 'the starting model'}")
    return policy


def restore_logprobs(step: Step, batch: Sequence[Sequence[Rollout]]) -> None:
    """Gives the rollouts of `batch` the log-probs and entropies that the step had computed for them."""
    saved = {group[0].group: group for group in step.generated}
    for group in batch:
        for rollout, old in zip(group, saved.get(group[0].group, group), strict=True):
            rollout.old_logprobs, rollout.entropies = old.old_logprobs, old.entropies
            rollout.ref_logprobs = old.ref_logprobs


def compare(step: Step, generated: Sequence[Sequence[Rollout]], metrics: dict[str, float], config: Config) -> list[str]:
    """Says, side by side, what the step had and what came out now; the names of the metrics that differ."""
    old, new = ([r for group in groups for r in group] for groups in (step.generated, generated))
    pairs = [(a, b) for a, b in zip(old, new, strict=False)]
    verdicts = [(a, b) for a, b in pairs if outcome(a) != outcome(b)]
    say(f"{len(new)} responses of {len(generated)} groups verified again: {len(verdicts)} verdicts differ")
    for a, b in verdicts[:5]:
        say(f"  group {a.group}, {a.text[-40:]!r}: {outcome(a)} -> {outcome(b)}")
    gaps = [
        float(np.max(np.abs(a.advantages - b.advantages)))
        for a, b in pairs
        if a.advantages is not None and b.advantages is not None
    ]
    if gaps:
        say(f"advantages of {len(gaps)} responses differ by {max(gaps):.2g} at most")
    saved, tolerance = step.metrics(), TOLERANCE[config.model.dtype]
    names = [name for name in metrics if name in saved]
    different = [name for name in names if not same(saved[name], metrics[name], tolerance)]
    say(f"\n{'metric':<28}{'saved':>14}{'replayed':>14}{'difference':>14}")
    for name in names:
        mark = "  <--" if name in different else ""
        say(f"{name:<28}{saved[name]:>14.6g}{metrics[name]:>14.6g}{metrics[name] - saved[name]:>14.2g}{mark}")
    equal = sum(saved[name] == metrics[name] for name in names)
    say(f"\n{len(names)} metrics: {equal} equal to the bit, {len(different)} differ by more than {tolerance:g}")
    return different


def outcome(r: Rollout) -> tuple[str, str, str | None, float]:
    """What a verdict means for the update. A missing reward is -inf here, so that two of them are equal."""
    return r.verdict.status, r.verdict.label, r.verdict.key, -np.inf if r.reward != r.reward else r.reward


def same(a: float, b: float, tolerance: float) -> bool:
    """Whether two metrics are equal up to a relative `tolerance` and what rounding leaves of a zero, or both not a number."""
    return a == b or (a != a and b != b) or abs(a - b) <= max(tolerance * max(abs(a), abs(b)), 1e-6)
