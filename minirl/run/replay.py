"""Recomputes a saved step of a run from its recorded responses: `train.py --replay RUN/stepN`.

The loop of train.py runs unchanged; its engine returns the recorded responses instead of sampling.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from minirl.config.command_line import load
from minirl.config.options import Config
from minirl.data.prompts import Order, Prompt
from minirl.policy.micro_batches import MicroBatch
from minirl.policy.policy import Policy
from minirl.rollout.sampler import TRAINING, Sampler, stable_seed
from minirl.rollout.types import Batch, Completion, Rollout, SamplingParams
from minirl.run.batches import SavedStep, read_step
from minirl.run.checkpoint import restore, weights_digest
from minirl.run.folder import differences
from minirl.run.manifest import damage, name_of
from minirl.run.metrics import UpdateStats, batch_metrics
from minirl.run.run import Run, Step
from minirl.utils.console import say
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError, RunError
from minirl.verify.pool.pool import VerifierPool

# Relative tolerance of metrics: other numbers of ranks or micro-batches change the order of summation.
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}


def open_replay(config: Config, ranks: Ranks, prompts: Sequence[Prompt], tokenizer: Any, pool: VerifierPool) -> "Replay":
    """The replay of the step that config.replay names. ConfigError when it is missing or of another run."""
    saved = read_step(config)
    config, changed = recorded_config(config, saved)
    policy = policy_before(saved, config, ranks, len(tokenizer))
    engine = RecordedEngine(saved, config.run.seed)
    sampler = Sampler(engine, tokenizer, pool, ranks, config.run.seed, config.rollout.stop, config.verifier.labeller)
    order = RecordedOrder(len(prompts), config.run.seed, saved)
    return Replay(config, ranks, prompts, policy, sampler, order, saved.before, saved, changed)


@dataclass
class Replay(Run):
    """saved: the step to recompute; changed: options that differ from the run's, as "key: old -> new"."""

    saved: SavedStep
    changed: list[str]

    def steps(self) -> Iterator[Step]:
        """The saved step alone."""
        yield Step(self, self.saved.number)

    def finish_step(self, step: Step, batch: Batch, stats: UpdateStats) -> None:
        """Compares metrics with the saved ones. RunError when they differ and no option was changed."""
        carried = [] if self.saved.last else batch.surplus
        metrics = batch_metrics(batch, carried, self.order.position - self.saved.before.position, step.progress, self.config)
        if not isinstance(self.policy, RecordedPolicy):
            metrics |= self.checks(batch) | stats.metrics(self.ranks) | {"optimizer/lr": step.lr}
        different = compare(self.saved, batch.generated, metrics, self.config) if self.ranks.main else []
        if self.ranks.main and self.changed:
            say(f"with {'; '.join(self.changed)}")
        if self.ranks.gather([different])[0] and not self.changed:
            names = ", ".join(different)
            raise RunError(f"step {step.number} of {self.saved.run} does not come out again: {names}")


def recorded_config(config: Config, step: SavedStep) -> tuple[Config, list[str]]:
    """(`config` with the run.steps and run.epochs of `step`, on which learning rate and end depend, unless it changes them;
    options that differ from the run's, as "key: old -> new")."""
    today = load([str(step.run / "config.yaml")])
    changed = [text for kind in differences(today, config) for text in kind]
    run = replace(config.run)
    if run.steps == today.run.steps:
        run.steps = step.steps
    if run.epochs == today.run.epochs:
        run.epochs = step.epochs
    return replace(config, run=run), changed


class RecordedEngine:
    """An `Engine` that returns the responses of a saved step instead of sampling."""

    def __init__(self, step: SavedStep, seed: int) -> None:
        """seed: the run's; with a draw number it gives the seed by which `generate` looks up a group."""
        self.version, self.ranks_per_engine = step.before.version, 1
        self.progress: Callable[[int], None] = lambda tokens: None
        self.groups = {stable_seed(seed, TRAINING, group[0].group): group for group in step.generated}

    def generate(
        self, prompts: Sequence[list[int]], sampling: SamplingParams, seeds: Sequence[int], keep: int | None = None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """See `Engine.generate`; nothing is aborted."""
        for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            yield i, [rollout.completion for rollout in self.recorded(seed, prompt, sampling.n)]

    def extend(
        self, rollouts: Sequence[Rollout], keys: Sequence[tuple[int, int]], params: SamplingParams, tokens: int
    ) -> list[Completion]:
        """See `Engine.extend`: all that was recorded, of whatever version."""
        return [self.rest(r, *key, params.n) for r, key in zip(rollouts, keys, strict=True)]

    def rest(self, rollout: Rollout, seed: int, j: int, n: int) -> Completion:
        """The recorded tokens that an unfinished response lacks."""
        done, whole = rollout.completion, self.recorded(seed, rollout.prompt_ids, n)[j].completion
        if not np.array_equal(whole.ids[: len(done.ids)], done.ids):
            raise ConfigError("the saved step does not continue the responses that it says were begun before it")
        rest = slice(len(done.ids), None)
        return Completion(
            whole.ids[rest], whole.logprobs[rest], whole.finish, None if whole.versions is None else whole.versions[rest]
        )

    def recorded(self, seed: int, prompt: list[int], n: int) -> list[Rollout]:
        """The recorded group of `n` responses to a prompt. ConfigError when the step sampled other prompts."""
        group = self.groups.get(seed)
        if group is None or group[0].prompt_ids != prompt or len(group) != n:
            raise ConfigError(
                "the saved step has other prompts or another number of samples: data, template, tokenizer, run.seed and "
                "rollout.group_size must be those of the run"
            )
        return group

    def sync(self, policy: Any) -> None:
        """No weights to load."""

    def sleep(self) -> None:
        """No memory to free."""


class RecordedOrder(Order):
    """The prompts that a saved step drew, without those that it aborted."""

    def __init__(self, size: int, seed: int, step: SavedStep) -> None:
        super().__init__(size, seed, step.before.position)
        self.end, self.kept = step.end, {group[0].group for group in step.generated}

    def draw(self, count: int) -> list[tuple[int, int]]:
        """See `Order.draw`; fewer where the step drew or kept fewer."""
        return [(number, i) for number, i in super().draw(min(count, self.end - self.position)) if number in self.kept]


class RecordedPolicy:
    """Replaces a policy whose weights were not saved: returns the saved log-probs and does not update."""

    def __init__(self, step: SavedStep) -> None:
        self.version, self.nonfinite = step.before.version, step.before.nonfinite
        self.saved = {group[0].group: group for group in step.generated}

    def compute_logprobs(self, rollouts: Sequence[Rollout], old: bool, entropy: bool = False) -> None:
        """See `Policy.compute_logprobs`. Groups that were carried over have theirs already."""
        for number, group in groupby(rollouts, key=lambda r: r.group):
            for r, saved in zip(group, self.saved.get(number, ()), strict=False):
                r.old_logprobs, r.ref_logprobs, r.entropies = saved.old_logprobs, saved.ref_logprobs, saved.entropies

    def gradient_steps(self, rollouts: Sequence[Rollout], weights: Sequence[float]) -> Iterator[MicroBatch]:
        """No micro-batches."""
        return iter(())

    def step(self, lr: float) -> float:
        """No step: there is no gradient."""
        return float("nan")

    def computing(self) -> Any:
        """See `Policy.computing`."""
        return nullcontext()


def policy_before(step: SavedStep, config: Config, ranks: Ranks, vocabulary: int) -> "Policy | RecordedPolicy":
    """The policy as it was before the step, or a RecordedPolicy if its weights were not saved.

    ConfigError when the starting model, needed as policy, as reference or beneath adapters, is not the run's.
    """
    checkpoint = step.run / "checkpoints" / name_of(step.before.step)
    reason = ranks.first(damage(checkpoint, ranks.rank, ranks.size))
    if reason and step.before.step:
        if ranks.main:
            say(f"no weights from before step {step.number} ({checkpoint}: {reason}): verification and advantages only")
        return RecordedPolicy(step)
    policy = Policy(config, ranks, vocabulary)
    if (reason or policy.reference or config.model.lora.r) and weights_digest(policy) != step.origin:
        raise ConfigError(f"model.path={config.model.path!r} holds other weights than those that {step.run} started with")
    if not reason:
        restore(policy, checkpoint, step.before.version)
    policy.nonfinite = step.before.nonfinite
    if ranks.main:
        say(f"weights from before step {step.number}: {checkpoint if not reason else 'the starting model'}")
    return policy


def compare(step: SavedStep, generated: Sequence[Sequence[Rollout]], metrics: dict[str, float], config: Config) -> list[str]:
    """Prints saved and recomputed verdicts, advantages and metrics; returns the names of the metrics that differ."""
    old, new = ([r for group in groups for r in group] for groups in (step.generated, generated))
    pairs = list(zip(old, new, strict=False))
    verdicts = [(a, b) for a, b in pairs if outcome(a) != outcome(b)]
    say(f"{len(new)} responses of {len(generated)} groups verified again: {len(verdicts)} verdicts differ")
    for a, b in verdicts[:5]:
        say(f"  group {a.group}, {a.text[-40:]!r}: {outcome(a)} -> {outcome(b)}")
    advantage_diffs = [
        float(np.max(np.abs(a.advantages - b.advantages)))
        for a, b in pairs
        if a.advantages is not None and b.advantages is not None
    ]
    if advantage_diffs:
        say(f"advantages of {len(advantage_diffs)} responses differ by {max(advantage_diffs):.2g} at most")
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
    """The parts of a verdict that matter for the update, the reward -inf for NaN so that two of them are equal."""
    return r.verdict.status, r.verdict.label, r.verdict.key, -np.inf if np.isnan(r.reward) else r.reward


def same(a: float, b: float, tolerance: float) -> bool:
    """Whether two metrics are equal up to a relative `tolerance` or 1e-6, or both NaN."""
    return a == b or (a != a and b != b) or abs(a - b) <= max(tolerance * max(abs(a), abs(b)), 1e-6)
