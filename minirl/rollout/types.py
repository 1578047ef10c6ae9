"""Rollouts, and the interfaces between a sampling engine and the policy."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from minirl.verify.types import Verdict

STOP, LENGTH = "stop", "length"


@dataclass(frozen=True)
class SamplingParams:
    """How to sample `n` responses to each prompt. top_k 0 and top_p 1 are off; temperature 0 is greedy. Training leaves both
    off, since the trainer's log-probs are of the full distribution."""

    n: int
    temperature: float
    max_tokens: int
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class Completion:
    """One response. ids: int32[T], the stop token included; logprobs: float32[T], nats, under the sampling distribution;
    finish: "stop", or "length" when the length limit cut it, or "" while it is unfinished; versions: int32[T], of the policy
    that sampled each token, None where that is one and the same."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish: str
    versions: NDArray[np.int32] | None = None


class EnginePolicy(Protocol):
    """What an engine needs of the policy. version: optimizer steps so far; model: a transformers model, or only its configs
    for an engine that loads the weights itself; vocabulary: higher ids are padding; autocast: the context of its forward
    passes."""

    version: int
    model: Any
    vocabulary: int
    ranks: Any
    autocast: Callable[[], AbstractContextManager[Any]]

    def weights(self) -> Iterator[list[tuple[str, Any]]]:
        """All weights as (name, tensor), in buckets; every rank must go through all of them."""
        ...


class Engine(Protocol):
    """Samples responses. Token ids in and out; nothing is detokenised or re-tokenised.

    version: of the policy whose weights it holds; ranks_per_engine: ranks that form one engine (tensor parallelism).
    """

    version: int
    ranks_per_engine: int
    progress: Callable[[int], None]  # called while it samples, with the number of tokens since the last call

    def generate(
        self, prompts: Sequence[list[int]], params: SamplingParams, seeds: Sequence[int], keep: int | None = None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Yields (index of the prompt, its `params.n` completions), each group as soon as it is finished, in any order.

        seeds: one 63-bit seed for each prompt; completion j depends on (seed, j) alone. keep: how many groups to yield, those
        that finish first and on a tie come first in `prompts`; the others are aborted.
        """
        ...

    def extend(
        self, rollouts: Sequence["Rollout"], keys: Sequence[tuple[int, int]], params: SamplingParams, tokens: int
    ) -> list[Completion]:
        """The next tokens of each unfinished response, at most `tokens` and not beyond `params.max_tokens` in all; these new
        ones only, with the finish "length" at either limit.

        keys: (seed of the prompt, place in its group) of each response; they and the number of its tokens so far seed it.
        """
        ...

    def sync(self, policy: EnginePolicy) -> None:
        """Loads the policy's weights, takes its version and drops all caches of the old weights. Wakes the engine up."""
        ...

    def sleep(self) -> None:
        """Frees memory until the next `sync`, where supported."""
        ...


@dataclass
class Rollout:
    """A completion with its prompt, verdict and reward. group: draw number of its prompt, the group's id; version: of the
    policy that sampled it, or its last token; old_logprobs, entropies: of the trainer before the update, ref_logprobs: of the
    reference model, float32[T] each, nats; advantages: float64[T] or one number for all tokens; weight: of the response in the
    loss, 0 leaves it out."""

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
    def versions(self) -> NDArray[np.int32] | int:
        """Of the policy that sampled each token: int32[T] or one number for all."""
        return self.version if self.completion.versions is None else self.completion.versions

    @property
    def truncated(self) -> bool:
        """Whether the length limit cut the response."""
        return self.completion.finish == LENGTH


@dataclass
class Batch:
    """The groups of a step. groups: to train on; surplus: carried over to the next step, unfinished ones too with
    rollout.ahead; generated: all that were sampled in this one, with rollout.continuous those drawn up to the batch's last;
    metrics: of sampling itself."""

    groups: list[list[Rollout]]
    surplus: list[list[Rollout]]
    generated: list[list[Rollout]]
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Response tokens that were sampled in the step, for whatever batch."""
        return int(self.metrics.get("sampling/new_tokens", sum(r.length for group in self.generated for r in group)))
