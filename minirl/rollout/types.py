"""What a rollout is, and what every engine that samples them promises."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from minirl.verify.types import Verdict

STOP, LENGTH = "stop", "length"


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. top_k 0 and top_p 1 are off; temperature 0 is greedy. Training uses neither top_k nor top_p: they would
    make the sampling distribution another one than the trainer's."""

    n: int
    temperature: float
    max_tokens: int
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class Completion:
    """One response. ids: int32[T], the stop token included; logprobs: float32[T], nats, of the distribution it was really
    drawn from; finish: "stop", or "length" when it was cut."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish: str


class Engine(Protocol):
    """Samples responses. Token ids in and out; nothing is detokenised or re-tokenised.

    version: optimizer steps of the policy whose weights it holds; ranks_per_engine: ranks that sample together as one.
    """

    version: int
    ranks_per_engine: int
    progress: Callable[[int], None]  # called while it samples, with the number of tokens since the last call

    def generate(
        self, prompts: Sequence[list[int]], sampling: SamplingParams, seeds: Sequence[int], keep: int | None = None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Yields (index of the prompt, its `sampling.n` samples), each group as soon as it is finished, in any order.

        seeds: one 63-bit seed a prompt; sample j of a prompt depends on (seed, j), not on its neighbours or its rank.
        keep: ends with so many whole groups, the first to finish, of equals those first in `prompts`; the others are given up.
        """
        ...

    def sync(self, policy: Any) -> None:
        """Takes over the policy's weights and version; nothing of the old weights is left. Wakes the engine up."""
        ...

    def sleep(self) -> None:
        """Gives up its memory until the next `sync`, where it can."""
        ...


@dataclass
class Rollout:
    """A sample with its place in the run. group: draw number of its prompt, the only thing groups are formed by; version:
    optimizer steps of the policy that sampled it; old_logprobs, entropies, ref_logprobs: float32[T], nats, of the
    trainer before the update and of the reference model; advantages: float64[T] or one number for all tokens; weight: of the
    response in the loss, 0 leaves it out."""

    group: int
    prompt: str
    gold: str
    prompt_ids: list[int]
    completion: Completion
    version: int
    text: str
    verdict: Verdict
    reward: float
    old_logprobs: NDArray[np.float32] | None = None
    entropies: NDArray[np.float32] | None = None
    ref_logprobs: NDArray[np.float32] | None = None
    advantages: NDArray[np.float64] | None = None
    weight: float = 1.0

    @property
    def length(self) -> int:
        """Response tokens."""
        return len(self.completion.ids)

    @property
    def truncated(self) -> bool:
        """Whether the length limit cut the response."""
        return self.completion.finish == LENGTH


@dataclass
class Batch:
    """What one step sampled, as groups: all rollouts of a prompt. groups: those to train on; surplus: kept for the next step;
    generated: all that were sampled in this step."""

    groups: list[list[Rollout]]
    surplus: list[list[Rollout]]
    generated: list[list[Rollout]]
