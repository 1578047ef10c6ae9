"""What the loop of train.py works with: a run, and one step of it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from minirl.config.options import Config
from minirl.data.prompts import Order, Prompt
from minirl.policy.policy import learning_rate
from minirl.rollout.engines import stop_ids
from minirl.rollout.sampler import Sampler
from minirl.rollout.types import Batch
from minirl.run.checkpoint import State
from minirl.run.metrics import UpdateStats, check_metrics
from minirl.utils.distributed import Ranks


@dataclass
class Run(ABC):
    """A training run (training.py) or a replay of one step (replay.py). state: before the current step."""

    config: Config
    ranks: Ranks
    prompts: Sequence[Prompt]
    policy: Any
    sampler: Sampler
    order: Order
    state: State

    def __post_init__(self) -> None:
        self.estimator = self.config.build_estimator()
        self.tokens, self.training_seconds = self.state.tokens, self.state.training_seconds

    def over(self, step: int) -> bool:
        """Whether `step` is the last one, by run.steps, run.epochs, run.tokens or run.seconds."""
        run = self.config.run
        spent = (
            (self.order.position / self.order.size, run.epochs),
            (self.tokens, run.tokens),
            (self.training_seconds, run.seconds),
        )
        return step >= run.steps or any(limit is not None and value >= limit for value, limit in spent)

    def checks(self, batch: Batch) -> dict[str, float]:
        """The `check_metrics` of a step's batch, before `state` is that after the step."""
        first, last = self.state.position // self.order.size, (self.order.position - 1) // self.order.size
        return check_metrics(batch.generated, self.repeated_prompts, self.stop_ids, max(1, last - first + 1))

    @cached_property
    def stop_ids(self) -> list[int]:
        """The token ids that end a response; with rollout.stop the whole vocabulary is read for them."""
        return stop_ids(self.sampler.tokenizer, self.policy.model.generation_config, self.config.rollout.stop)

    @cached_property
    def repeated_prompts(self) -> float:
        """The share of the training prompts that equal an earlier one, by token ids."""
        return 1 - len({tuple(p.ids) for p in self.prompts}) / max(len(self.prompts), 1)

    def begin(self, step: int, part: str) -> None:  # noqa: B027 - nothing, unless somebody watches
        """Called when a part of a step begins, for those who watch."""

    @abstractmethod
    def steps(self) -> Iterator["Step"]:
        """The remaining steps. Work between two of them is done when the next one is requested."""

    @abstractmethod
    def finish_step(self, step: "Step", batch: Batch, stats: UpdateStats) -> None:
        """Reports and saves the results of a step. RunError when the run cannot continue."""


@dataclass
class Step:
    """A step. number: counted from 1; lr: learning rate; seconds: of each part."""

    run: Run
    number: int
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lr = learning_rate(self.number, self.run.config.optimizer, self.run.config.run.steps)
        self.begin = time.perf_counter()
        self.run.sampler.pop_timings()  # drops those of an evaluation

    @property
    def progress(self) -> float:
        """Of the run: 0 at its first step, 1 at its last, so that a schedule's two values are those of these steps."""
        return (self.number - 1) / max(1, self.run.config.run.steps - 1)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the time of the block to seconds[part]."""
        self.run.begin(self.number, part)
        begin = time.perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - begin

    def finish(self, batch: Batch, stats: UpdateStats) -> None:
        """Ends the step and passes its results to the run."""
        # The first rank's time counts, so that all ranks end at the same step.
        seconds = self.run.ranks.gather([time.perf_counter() - self.begin])[0]
        self.seconds |= self.run.sampler.pop_timings() | {"step": seconds}
        self.run.tokens += batch.tokens
        self.run.training_seconds += seconds
        self.run.finish_step(self, batch, stats)
