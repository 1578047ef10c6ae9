"""The microscope: one saved batch as every estimator sees it, `train.py --replay RUN/stepN --estimators all`.

For each estimator the loop of train.py runs on the recorded responses, with a policy that keeps the gradient, group by group,
and takes no optimizer step; so it is the gradient that a run with this estimator has there. It is that of the whole loss (KL
and entropy bonus too), at the weights before the step and before clipping, and the mean over the mini-batches of the batch.
With one mini-batch it is the gradient of the run's optimizer step. With several, the first one's is that of the first optimizer
step, and the others' leave out that the weights have moved since. minirl/analysis/microscope.py makes numbers of them.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from minirl.analysis import microscope as findings
from minirl.analysis.microscope import Seen
from minirl.analysis.output import save
from minirl.config.options import Config
from minirl.data.prompts import Prompt
from minirl.policy.micro_batches import MicroBatch
from minirl.policy.policy import Policy
from minirl.rollout.sampler import Sampler
from minirl.rollout.types import Batch, Rollout, SamplingParams
from minirl.run.batches import SavedStep, saved_steps
from minirl.run.inputs import Inputs
from minirl.run.lifecycle import open_run
from minirl.run.manifest import name_of
from minirl.run.metrics import UpdateStats
from minirl.run.replay import RecordedOrder, Replay
from minirl.run.run import Run, Step
from minirl.utils.console import say
from minirl.utils.errors import RunError, require

Train = Callable[[Inputs], None]
STEP = 1e-4  # length of the step whose effect on log-probs is shown, as a share of the length of the weights


def microscope(inputs: Inputs, train: Train) -> None:
    """Looks at the saved step with each of inputs.config.estimators, prints the tables and writes RUN/microscope/stepN/. train:
    that of train.py. ConfigError when the step has no weights or no estimator fits it."""
    given = inputs.config.estimators
    configs = {name: config for name, config in given.items() if isinstance(config, Config)}
    left_out = {name: reason for name, reason in given.items() if isinstance(reason, str)}
    # The reference model is loaded if any estimator needs it.
    opened = next((c for c in configs.values() if c.needs_reference), inputs.config)
    with open_run(replace(inputs, config=opened)) as opened_run:
        replay = cast(Replay, opened_run)
        check(replay, len(configs))
        seen, first = list[Seen](), None
        for name, look in looks(replay, inputs, configs, train):
            if isinstance(look, str):
                left_out[name] = look
            else:
                first = look.parts if first is None else first
                seen.append(look.seen(first))
                say(f"{name}: norm {np.linalg.norm(seen[-1].gradient):.4g}")
        require(bool(seen), f"no estimator fits this step: {'; '.join(f'{name}: {why}' for name, why in left_out.items())}")
        saved = replay.saved
        about = {"run": str(saved.run), "step": saved.number, "step_length": STEP, "left_out": left_out}
    folder = saved.run / "microscope" / f"step{saved.number}"
    save(folder, f"Step {saved.number} of {saved.run.name} under the microscope", findings, about | findings.analyse(seen))


def check(replay: Replay, estimators: int) -> None:
    """ConfigError unless gradients of so many estimators can be computed here."""
    saved, ranks, policy = replay.saved, replay.ranks, replay.policy
    require(
        ranks.size == 1 and ranks.zero is None,
        "--estimators works in one process without DeepSpeed: start it as python train.py --replay RUN/stepN --estimators ...",
    )
    require(
        isinstance(policy, Policy),
        f"a gradient needs the weights from before step {saved.number}, which {saved.run} has not kept; it has those of "
        f"steps: {', '.join(map(str, with_weights(saved))) or 'none'}",
    )
    parameters = sum(p.numel() for p in policy.head.parameters() if p.requires_grad)
    # Parts of the gradient by group: the first estimator's, the last one's, those being made, and their sum's copy.
    needed = 4 * parameters * (4 * replay.config.rollout.prompts + estimators) / 2**30
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    require(
        needed < memory,
        f"gradients of {parameters:,} parameters for {replay.config.rollout.prompts} groups, four times, and {estimators} "
        f"estimators take {needed:.0f} GiB of this machine's {memory:.0f}: name fewer estimators, or look at the first groups "
        "only, as with --rollout.prompts=4 --algorithm.mini_batch_prompts=4",
    )


def with_weights(saved: SavedStep) -> list[int]:
    """The saved steps of the run that have the weights from before them."""
    checkpoints = saved.run / "checkpoints"
    return sorted(step for step, _ in saved_steps(saved.run) if step == 1 or (checkpoints / name_of(step - 1)).exists())


def looks(replay: Replay, inputs: Inputs, configs: Mapping[str, Config], train: Train) -> Iterator[tuple[str, "Look | str"]]:
    """(estimator, its look at the saved step, or the reason for which it has none), one after the other."""
    sampler, reference = Remembered(replay.sampler), replay.policy.reference
    for name, config in configs.items():
        replay.policy.reference = reference if config.needs_reference else None
        order = RecordedOrder(len(replay.prompts), config.run.seed, replay.saved)
        state = replace(replay.state, surplus=[[replace(r) for r in group] for group in replay.state.surplus])
        config = replace(config, run=replay.config.run)
        policy = GradientPolicy(replay.policy)
        look = Look(config, replay.ranks, replay.prompts, policy, cast(Sampler, sampler), order, state, replay.saved.number)
        try:
            train(replace(inputs, config=config, run=look))
        except RunError as error:
            yield name, str(error)
        else:
            yield name, look if look.batch.groups else "it keeps no group of this step"


@dataclass
class Look(Run):
    """The run of one estimator over the saved step `number`. batch: what it trained on; parts: float32[G, P], a part
    of the gradient for each of its groups, which sum to it."""

    number: int
    batch: Batch = field(default_factory=lambda: Batch([], [], []))
    parts: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def steps(self) -> Iterator[Step]:
        """The saved step alone."""
        yield Step(self, self.number)

    def finish_step(self, step: Step, batch: Batch, stats: UpdateStats) -> None:
        """Keeps the batch and the gradient: the mean over mini-batches, skipped ones included."""
        kept, zeros = self.policy.parts, np.zeros(self.policy.size, np.float32)
        self.batch, numbers = batch, [group[0].group for group in batch.groups]
        self.parts = np.array([kept.get(number, zeros) for number in numbers]).reshape(-1, self.policy.size)
        self.parts /= max(1, self.policy.steps + stats.skipped)
        kept.clear()

    def seen(self, first: NDArray[np.float32]) -> Seen:
        """What is reported of it. first: the parts of the estimator that the others are compared with."""
        gradient = self.parts.sum(0, dtype=np.float64)
        logprobs, entropies = self.policy.moved(gradient, [replace(r) for group in self.batch.groups for r in group])
        return Seen(
            name=self.config.algorithm.estimator,
            settings={key: getattr(self.config.algorithm.requirements, key) for key in ("loss", "loss_agg_mode")},
            groups=self.batch.groups,
            gram=self.parts @ self.parts.T,
            cross=self.parts @ first.T,
            gradient=gradient.astype(np.float32),
            moves=logprobs,
            entropy=float(np.concatenate(entropies).mean()),
            text=self.sampler.tokenizer.decode,
        )


class Remembered:
    """A sampler that has each group verified once and then returns fresh copies of its rollouts."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler, self.known = sampler, dict[int, list[Rollout]]()

    def __getattr__(self, name: str) -> Any:
        """What rollout.continuous works with: it has responses verified one by one, equal ones of which the pool remembers."""
        return getattr(self.sampler, name)

    def groups(
        self, prompts: Sequence[Prompt], numbers: Sequence[int], params: SamplingParams, keep: int | None = None
    ) -> list[list[Rollout]]:
        """See `Sampler.groups`; nothing is aborted."""
        new = [i for i, number in enumerate(numbers) if number not in self.known]
        for group in self.sampler.groups([prompts[i] for i in new], [numbers[i] for i in new], params):
            self.known[group[0].group] = group
        return [[replace(r) for r in self.known[number]] for number in numbers]


class GradientPolicy:
    """Stands in for a policy: the gradient of each group of a mini-batch is kept, in `parts` by the group's number, and no
    optimizer step is taken. steps: mini-batches so far; size: P, parameters."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.version, self.nonfinite = policy, policy.version, 0
        self.weights = [p for p in policy.head.parameters() if p.requires_grad]
        self.size = sum(p.numel() for p in self.weights)
        self.parts: dict[int, NDArray[np.float32]] = {}
        self.steps = 0
        self.computing, self.compute_logprobs = policy.computing, policy.compute_logprobs
        self.logprobs, self.accumulate = policy.logprobs, policy.accumulate

    def gradient_steps(self, rollouts: Sequence[Rollout], weights: Sequence[float]) -> Iterator[MicroBatch]:
        """See `Policy.gradient_steps`; a micro-batch holds rollouts of one group only."""
        self.policy.head.train()
        self.policy.optimizer.zero_grad()
        for number, members in groupby(range(len(rollouts)), key=lambda i: rollouts[i].group):
            indices = list(members)
            for micro in self.policy.micro_batches([rollouts[i] for i in indices]):
                micro.indices = [indices[i] for i in micro.indices]
                micro.add_loss_inputs(weights)
                self.policy.micro = micro
                yield micro
            self.parts[number] = self.parts.get(number, np.float32(0)) + self.take_gradient()

    def take_gradient(self) -> NDArray[np.float32]:
        """float32[P], the gradient accumulated since the last call."""
        flat = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.weights]
        gradient = torch.cat([g.detach().float().flatten() for g in flat]).cpu().numpy()
        self.policy.optimizer.zero_grad()
        return gradient

    def step(self, lr: float) -> float:
        """No step. RunError when a gradient is not finite."""
        self.steps += 1
        if not all(np.isfinite(part).all() for part in self.parts.values()):
            raise RunError("its loss or gradient is not finite")
        return float("nan")

    def moved(
        self, gradient: NDArray[np.float64], rollouts: Sequence[Rollout]
    ) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
        """(by how much the log-probs of each rollout's tokens, float[T_i], change in a step against `gradient`; the same of
        entropies), nats. The step is STEP times as long as the weights; half the difference to a step the other way, which is
        free of curvature. The weights are afterwards what they were, to the bit."""
        if not (length := np.linalg.norm(gradient)) or not rollouts:
            zeros = [np.zeros(r.length) for r in rollouts]
            return zeros, zeros
        before = [p.detach().clone() for p in self.weights]
        scale = STEP * float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p) for p in before])))
        direction = torch.from_numpy(gradient / length).split([p.numel() for p in before])
        ends = []
        for sign in (-scale, scale):
            with torch.no_grad():
                for p, old, d in zip(self.weights, before, direction, strict=True):
                    p.copy_(old + sign * d.view_as(p).to(p.device, p.dtype))
            with self.policy.computing():
                self.policy.compute_logprobs(rollouts, old=True, entropy=True)
            ends.append([(r.old_logprobs, r.entropies) for r in rollouts])
        with torch.no_grad():
            for p, old in zip(self.weights, before, strict=True):
                p.copy_(old)
        changes: Any = [[(np.float64(x) - y) / 2 for x, y in zip(*pair, strict=True)] for pair in zip(*ends, strict=True)]
        return [logprobs for logprobs, _ in changes], [entropies for _, entropies in changes]
