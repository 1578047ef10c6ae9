"""What a rollout is, and what every engine that samples them promises."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from minirl.verify import Verdict

STOP, LENGTH = "stop", "length"


@dataclass(frozen=True)
class Sampling:
    """How to sample. top_k 0 and top_p 1 are off; temperature 0 is greedy. Training uses neither top_k nor top_p: they would
    make the sampling distribution another one than the trainer's."""

    samples: int
    temperature: float
    max_tokens: int
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class Sample:
    """One response. ids: int32[T], the stop token included; log_probs: float32[T], nats, of the distribution it was really
    drawn from; finish: "stop", or "length" when it was cut."""

    ids: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    finish: str


class Engine(Protocol):
    """Samples responses. Token ids in and out; nothing is detokenised or re-tokenised.

    version: optimizer steps of the policy whose weights it holds; ranks_per_engine: ranks that sample together as one.
    """

    version: int
    ranks_per_engine: int
    progress: Callable[[int], None]  # called while it samples, with the number of tokens since the last call

    def generate(
        self, prompts: Sequence[list[int]], sampling: Sampling, seeds: Sequence[int], keep: int | None = None
    ) -> Iterator[tuple[int, list[Sample]]]:
        """Yields (index of the prompt, its `sampling.samples` samples), each group as soon as it is finished, in any order.

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
    optimizer steps of the policy that sampled it; old_log_probs, entropies, reference_log_probs: float32[T], nats, of the
    trainer before the update and of the reference model; advantages: float64[T] or one number for all tokens."""

    group: int
    prompt: str
    gold: str
    prompt_ids: list[int]
    sample: Sample
    version: int
    text: str
    verdict: Verdict
    reward: float
    old_log_probs: NDArray[np.float32] | None = None
    entropies: NDArray[np.float32] | None = None
    reference_log_probs: NDArray[np.float32] | None = None
    advantages: NDArray[np.float64] | None = None

    @property
    def length(self) -> int:
        """Response tokens."""
        return len(self.sample.ids)

    @property
    def truncated(self) -> bool:
        """Whether the length limit cut the response."""
        return self.sample.finish == LENGTH


def stop_ids(tokenizer: Any, generation_config: Any, stop: Sequence[str]) -> list[int]:
    """Token ids that end a response: the tokenizer's and the model's end tokens, the special token with which the chat template
    closes a turn, and every token whose text contains a text of `stop`."""
    ends = generation_config.eos_token_id if generation_config is not None else None
    ids = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "the answer"}]
        closing = tokenizer.apply_chat_template(turns, tokenize=False).rpartition("the answer")[2]
        after = tokenizer(closing, add_special_tokens=False)["input_ids"][:1]
        # A base model's own end token is often another one than its template's (Qwen3-4B-Base: <|endoftext|>, <|im_end|>).
        ids |= {i for i in after if i in tokenizer.added_tokens_decoder and tokenizer.added_tokens_decoder[i].special}
    if stop:
        texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
        ids |= {i for i, text in enumerate(texts) if any(s in text for s in stop)}
    return sorted(ids)


def build_engine(config: Any, policy: Any, tokenizer: Any, longest_prompt: int) -> Engine:
    """The engine that `rollout.engine` names, holding the policy's weights."""
    ends = stop_ids(tokenizer, policy.model.generation_config, config.rollout.stop)
    if config.rollout.engine == "vllm":
        from minirl.rollout.vllm import VllmEngine

        return VllmEngine(config, policy, ends, longest_prompt)
    from minirl.rollout.transformers import TransformersEngine

    engine = TransformersEngine(policy.model, ends, 0, policy.vocabulary, config.rollout.max_sequences, policy.autocast)
    engine.sync(policy)
    return engine
