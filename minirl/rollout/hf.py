"""The engine without vLLM: batched transformers decoding on the trainer's own weights. For CPUs and debugging.

Tokens are sampled by inverse CDF from one uniform number for each (seed of the prompt, completion, position), so a response
does not depend on the rest of its batch or on the number of ranks, up to rounding.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from minirl.rollout.types import LENGTH, STOP, Completion, EnginePolicy, Rollout, SamplingParams
from minirl.utils.memory import memory_suffices

ROOM = 256  # response tokens that a KV cache has room for at first; when full, it is copied into one of twice the size


# Parameters times rows of a decoding pass below which one thread is the fastest on a CPU: to hand parts of so small products to
# several costs more than they save (a 1M model: 64 rows 109 instead of 140 ms, measured with two).
SMALL_PASS = 2**28


class GrowingLayer(DynamicLayer):
    """A preallocated KV cache layer: each token is written once, where transformers' own layer copies all earlier ones."""

    def __init__(self, room: int) -> None:
        """room: tokens that are preallocated."""
        super().__init__()
        self.room, self.length = room, 0

    def update(self, key_states: Tensor, value_states: Tensor, *arguments: Any, **more: Any) -> tuple[Tensor, Tensor]:
        """float[rows, G, tokens so far, D] keys and values, with the new ones added."""
        start, end = self.length, self.length + key_states.shape[-2]
        if not self.is_initialized or end > self.room:
            self.room = max(end, 2 * self.room if self.is_initialized else self.room)
            old = self._written(start) if self.is_initialized else ()
            self.buffers = [x.new_empty(*x.shape[:2], self.room, x.shape[3]) for x in (key_states, value_states)]
            for buffer, kept in zip(self.buffers, old, strict=False):
                buffer[..., :start, :] = kept
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[..., start:end, :] = new
        return self._written(end)

    def _written(self, length: int) -> tuple[Tensor, Tensor]:
        keys, values = (buffer[..., :length, :] for buffer in self.buffers)
        self.length, self.keys, self.values = length, keys, values  # transformers reads the last two
        return keys, values

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times."""
        self.buffers = [buffer.repeat_interleave(repeats, 0) for buffer in self.buffers]
        self._written(self.length)

    def batch_select_indices(self, indices: Tensor) -> None:
        """The rows int[R] only."""
        self.buffers = [buffer.index_select(0, indices) for buffer in self.buffers]
        self._written(self.length)


class TransformersEngine:
    """Samples from `model`, a transformers causal language model that it shares with the trainer.

    stop_ids: token ids that end a response; vocabulary: higher ids (padding of the embeddings) are never sampled;
    max_sequences: rows decoded at once; autocast: the trainer's, so that both compute in the same precision.
    """

    def __init__(
        self, model: Any, stop_ids: Sequence[int], vocabulary: int, max_sequences: int,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:  # fmt: skip
        self.model, self.vocabulary, self.max_sequences, self.autocast = model, vocabulary, max_sequences, autocast
        self.stop_ids = torch.tensor(sorted(stop_ids))
        # Name of the argument since transformers 5.24, and before.
        self.cache = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self.parameters = sum(p.numel() for p in model.parameters())
        self.version, self.ranks_per_engine = 0, 1
        self.progress: Callable[[int], None] = lambda tokens: None

    def sync(self, policy: EnginePolicy) -> None:
        """The weights are shared with the policy; only the version changes."""
        self.version = policy.version

    def sleep(self) -> None:
        """Nothing to free: the weights are shared."""

    def generate(
        self, prompts: Sequence[list[int]], params: SamplingParams, seeds: Sequence[int], keep: int | None = None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """See `Engine.generate`. Batches hold prompts of similar length; a batch's groups are yielded when all are finished.

        `keep` is divided among the batches: that a group is in a later batch says nothing about its length.
        """
        self.model.eval()
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        keep = len(order) if keep is None else keep
        width = max(1, self.max_sequences // params.n)
        for start in range(0, len(order), width):
            batch = sorted(order[start : start + width])
            share = (start + len(batch)) * keep // len(order) - start * keep // len(order)
            if not share:
                continue
            rows = len(batch) * params.n
            with memory_suffices(partial(explain_memory, len(batch), params.n)), few_threads(rows * self.parameters):
                numbers = uniforms([seeds[i] for i in batch], params.n, params.max_tokens)
                limits = self.limits(rows, params)
                groups = self._batch([prompts[i] for i in batch], params, numbers, limits, share)
            yield from ((batch[i], completions) for i, completions in groups)

    def extend(
        self, rollouts: Sequence[Rollout], keys: Sequence[tuple[int, int]], params: SamplingParams, tokens: int
    ) -> list[Completion]:
        """See `Engine.extend`. The responses' tokens so far are computed anew; numbers are those of an uninterrupted one."""
        self.model.eval()
        one, pieces = replace(params, n=1, max_tokens=tokens), list[Completion]()
        for start in range(0, len(rollouts), self.max_sequences):
            part = rollouts[start : start + self.max_sequences]
            prefixes = [[*r.prompt_ids, *r.completion.ids.tolist()] for r in part]
            pairs = zip(part, keys[start : start + self.max_sequences], strict=True)
            numbers = np.array([uniforms_of(seed, j, r.length, tokens) for r, (seed, j) in pairs])
            limits = torch.tensor([min(tokens, params.max_tokens - r.length) for r in part])
            with memory_suffices(partial(explain_memory, len(part), 1)), few_threads(len(part) * self.parameters):
                found = dict(self._batch(prefixes, one, numbers, limits, len(part)))
            pieces += [found[i][0] for i in range(len(part))]
        return pieces

    @torch.no_grad()
    def _batch(
        self, prompts: list[list[int]], params: SamplingParams, uniform_numbers: np.ndarray, limits: Tensor, wanted: int
    ) -> list[tuple[int, list[Completion]]]:
        """(index in `prompts`, completions) of the `wanted` groups that finish first. uniform_numbers: float64[rows,
        params.max_tokens], limits: int[rows], length limit, of each completion."""
        device, n = self.model.device, params.n
        stop_ids = self.stop_ids.to(device)
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
        cache = DynamicCache(config=self.model.config)
        room = longest + min(params.max_tokens, ROOM)
        cache.layers = [GrowingLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
        # One prefill for each prompt; its cache is copied for the n completions.
        logits = self._forward(ids, mask, (mask.cumsum(-1) - 1).clamp(min=0), cache).repeat_interleave(n, 0)
        cache.batch_repeat_interleave(n)
        mask = mask.repeat_interleave(n, 0)
        position = mask.sum(-1, keepdim=True)

        rows = len(prompts) * n
        uniform = torch.from_numpy(uniform_numbers).to(device)
        tokens = torch.zeros(rows, params.max_tokens, dtype=torch.long, device=device)
        logprobs = torch.zeros(rows, params.max_tokens, device=device)
        lengths = limits.to(device)
        alive = torch.arange(rows, device=device)  # row of each sequence still in the batch
        done = torch.zeros(rows, dtype=torch.bool, device=device)
        for t in range(params.max_tokens):
            token, logprob = draw(logits, uniform[alive, t], params)
            running = alive[~done]
            tokens[running, t], logprobs[running, t] = token[~done], logprob[~done]
            self.progress(len(running))
            ended = ~done & torch.isin(token, stop_ids)
            lengths[alive[ended]] = t + 1
            done |= ended | (t + 1 >= lengths[alive])
            ends = lengths.view(-1, n).amax(1)  # longest response of each group; max_tokens while unfinished
            if (ends <= t + 1).sum() >= wanted:
                break
            if done.float().mean() > 0.25:  # copying the cache costs about as much as decoding a few finished rows
                keep = (~done).nonzero()[:, 0]
                cache.batch_select_indices(keep)
                alive, token, mask, position, done = alive[keep], token[keep], mask[keep], position[keep], done[keep]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
            logits = self._forward(token[:, None], mask, position, cache)
            position = position + 1

        first = sorted(range(len(prompts)), key=ends.tolist().__getitem__)[:wanted]
        stopped = torch.isin(tokens.gather(1, lengths[:, None] - 1)[:, 0], stop_ids).tolist()
        ids_out, logprobs_out = tokens.cpu().numpy().astype(np.int32), logprobs.cpu().numpy().astype(np.float32)
        completions = [
            Completion(ids_out[i, :length].copy(), logprobs_out[i, :length].copy(), STOP if stopped[i] else LENGTH)
            for i, length in enumerate(lengths.tolist())
        ]
        return [(i, completions[i * n : i * n + n]) for i in first]

    def limits(self, rows: int, params: SamplingParams) -> Tensor:
        """int[rows]: length limit of each row. A method so that benchmarks can set lengths."""
        return torch.full((rows,), params.max_tokens)

    def _forward(self, ids: Tensor, mask: Tensor, position: Tensor, cache: Any) -> Tensor:
        """float[rows, V] logits of the last position."""
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": position, self.cache: cache}
        with self.autocast():
            out = self.model(**inputs, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1, : self.vocabulary].float()


@contextmanager
def few_threads(size: int) -> Iterator[None]:
    """One thread inside where `size`, parameters times rows, is below SMALL_PASS."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if size < SMALL_PASS else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def explain_memory(prompts: int, n: int) -> tuple[str, str]:
    """(what was being computed, the remedy) when n responses to each of `prompts` prompts ran out of memory."""
    remedy = f"set rollout.max_sequences={prompts // 2 * n}"
    if prompts == 1:
        remedy = "lower rollout.group_size or rollout.max_response_tokens"
    return f"sampling {prompts * n} sequences at once", remedy


def uniforms(seeds: Sequence[int], n: int, tokens: int) -> np.ndarray:
    """float64[len(seeds) * n, tokens] in [0, 1): row (i, j) depends on (seeds[i], j) only."""
    bits = np.random.Philox(key=0)
    generator, state = np.random.Generator(bits), bits.state
    numbers = np.empty((len(seeds) * n, tokens))
    for row, (seed, j) in enumerate(product(seeds, range(n))):
        # Equal to a new Philox(key=[seed, j]), without the system call for entropy that making one costs.
        state["state"]["key"] = np.array([seed, j], dtype=np.uint64)
        bits.state = state
        generator.random(out=numbers[row])
    return numbers


def uniforms_of(seed: int, j: int, first: int, tokens: int) -> np.ndarray:
    """float64[tokens]: the numbers of row (seed, j) of `uniforms` from place `first` on."""
    bits = np.random.Philox(key=np.array([seed, j], dtype=np.uint64)).advance(first // 4)  # 4 numbers a count
    return np.random.Generator(bits).random(first % 4 + tokens)[first % 4 :]


def draw(logits: Tensor, uniform: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """(int[rows] tokens, float[rows] their log-probs under the sampling distribution, nats) from float[rows, V] logits.

    uniform: float64[rows] in [0, 1). At temperature 0 (greedy) log-probs are 0.
    """
    if params.temperature == 0:
        return logits.argmax(-1), logits.new_zeros(len(logits))
    logprobs = (logits / params.temperature).log_softmax(-1)
    if params.top_k or params.top_p < 1:
        logprobs = truncate(logprobs, params.top_k, params.top_p)
    cumulative = logprobs.double().exp().cumsum(-1)
    # Scaled by the total, so that rounding can never push the draw past the last token with any probability.
    token = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]
    token = token.clamp(max=logits.shape[-1] - 1)
    return token, logprobs.gather(-1, token[:, None])[:, 0]


def truncate(logprobs: Tensor, top_k: int, top_p: float) -> Tensor:
    """float[rows, V], renormalised: the top_k likeliest (0: all), then the fewest that reach probability top_p together."""
    ordered, index = logprobs.sort(-1, descending=True)
    drop = torch.zeros_like(ordered, dtype=torch.bool)
    if top_k:
        drop[:, top_k:] = True
    if top_p < 1:
        kept = ordered.masked_fill(drop, -torch.inf).softmax(-1)
        drop |= kept.cumsum(-1) - kept >= top_p  # a token is dropped when likelier ones already reach top_p
    kept = ordered.masked_fill(drop, -torch.inf).log_softmax(-1)
    return torch.empty_like(kept).scatter(-1, index, kept)
