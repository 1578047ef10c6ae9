"""Techniques on and off in turns, in one process: python -m benchmarks.techniques [--quick] [--json] [--only NAME]
[--results FILE]

Both sides go through the product's code: an option, or a small replacement that stands here. They must come to the same
gradient norms or samples, else the program ends. Milliseconds of the processor on one thread: medians of 2 to 15 turns after
one that warms up, and the median of their ratios. MiB: of tensors, at their highest. A 1M model in float32 with random weights,
or the same with Qwen3's vocabulary. Work is prompts x samples x longest response; tail: log-normal lengths, a quarter of the
longest as mean. update: old log-probs where they are needed, loss, backward pass and AdamW at a learning rate of 0. On a GPU:
the updates alone, 0.6B in bfloat16, wall time.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

import train
from benchmarks import update
from benchmarks.abort_longest import Forced
from benchmarks.common import finish, random_model, result_options, table
from minirl.config.command_line import load
from minirl.policy import attention
from minirl.policy import logprobs as scoring
from minirl.policy.micro_batches import MicroBatch
from minirl.policy.model import model_config
from minirl.policy.packing import packed_micro_batches
from minirl.policy.policy import Policy
from minirl.rollout import hf
from minirl.rollout.types import Batch, Rollout, SamplingParams
from minirl.utils.distributed import Ranks

GPU = torch.cuda.is_available()
SHORT, LONG, FEW = ((16, 512, 64), (8, 2048, 64), (4, 512, 64)) if GPU else ((64, 16, 8), (8, 256, 32), (4, 16, 64))
SAMPLES, WHOLE = update.SAMPLES, "vocabulary 151,936"
TIME = "wall ms" if GPU else "ms"
MICRO_BATCH = Policy.micro_batch
Groups = list[list[Rollout]]
Side = Callable[[], Any]


class Row(NamedTuple):
    """make: the two sides, off and on; unit: of the time that a side takes, or of the number it gives; memory: whether the most
    memory it holds is a row too."""

    technique: str
    work: str
    make: Callable[[], tuple[Side, Side]]
    unit: str = TIME
    memory: bool = False


class Own(int):
    """A token id that equals no other, not even itself elsewhere: prompts that begin with one are not shared."""

    __hash__, __eq__ = object.__hash__, object.__eq__


def groups(size: tuple[int, int, int], tail: bool, vocabulary: int) -> Groups:
    """Those of benchmarks/update.py: prompts, longest response, tokens of a prompt."""
    prompts, longest, prompt = size
    work = {"tokens": prompts * SAMPLES * longest, "length": longest, "tail": tail}
    made = update.rollouts(work, vocabulary)[:prompts]
    for rollout in (r for group in made for r in group):
        rollout.prompt_ids = rollout.prompt_ids[:prompt]
    return made


def step(policy: Policy, batch: Groups) -> list[float]:
    """Gradient norms of old log-probs and an update as train.py makes them; the learning rate of 0 keeps the weights."""
    policy.version = 0
    for rollout in (r for group in batch for r in group):
        rollout.old_logprobs = None
    whole = Batch(batch, [], batch)
    train.compute_logprobs(policy, whole, policy.config.build_estimator(), policy.config)
    return train.update(policy, whole, 0.0, policy.config).grad_norms


def patched(where: Any, name: str, value: Any, side: Side) -> Side:
    """`side` with another value of where.name while it runs."""

    def run() -> Any:
        with patch.object(where, name, value):
            return side()

    return run


# ---- the sides of rows that no option makes --------------------------------------------------------------------------------


def unshared(policy: Policy, batch: Groups) -> tuple[Side, Side]:
    """Each response with a prompt of its own."""
    own = [[replace(r, prompt_ids=[Own(r.prompt_ids[0]), *r.prompt_ids[1:]]) for r in group] for group in batch]
    return partial(step, policy, own), partial(step, policy, batch)


def with_last_tokens(policy: Policy, rollouts: Any, indices: list[int]) -> MicroBatch:
    """A packed micro-batch in which the last token of each response goes through the model too."""
    longer = {i: replace(rollouts[i].completion, ids=np.append(rollouts[i].completion.ids, 0)) for i in indices}
    batch = MICRO_BATCH(policy, {i: replace(rollouts[i], completion=s) for i, s in longer.items()}, indices)  # type: ignore[arg-type]
    last = np.cumsum([r.length for r in batch.rollouts]) - 1
    kept = torch.from_numpy(np.delete(np.arange(len(batch.targets)), last)).to(batch.targets.device)
    own = [rollouts[i] for i in batch.indices]
    return replace(batch, rollouts=own, logit_index=batch.logit_index[kept], targets=batch.targets[kept])


def products(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float | None, enable_gqa: bool) -> Tensor:
    """Scaled dot-product attention written out."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v


def plain_head(policy: Policy, batch: MicroBatch, *_: Any) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies from the logits of all tokens."""
    with policy.autocast():
        logits = policy.model(**batch.inputs, use_cache=False).logits[0]
    logprobs = (logits[:, : policy.vocabulary].float() / policy.config.rollout.temperature).log_softmax(-1)
    with torch.no_grad():
        entropies = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs[batch.logit_index, batch.targets], entropies[batch.logit_index]


def score(policy: Policy, batch: Groups, entropy: bool) -> Any:
    """The old log-probs of a batch, with entropies or without."""
    policy.compute_logprobs([r for group in batch for r in group], old=True, entropy=entropy)
    return np.concatenate([r.old_logprobs for group in batch for r in group])  # type: ignore[arg-type]


def sampled_by(policy: Policy, batch: Groups) -> Groups:
    """`batch` as if this policy had sampled it: the sampler's log-probs are the trainer's."""
    score(policy, batch, False)
    return [[replace(r, completion=replace(r.completion, logprobs=r.old_logprobs)) for r in group] for group in batch]


def decode(policy: Policy, lengths: np.ndarray, prompt: int, each: int = SAMPLES, kept: bool = False) -> Any:
    """The sampled ids, end to end. lengths: forced, int[rows]; each: responses to a pass over a prompt, the others get one of
    their own; kept: ended rows stay in the batch."""
    rows, rng = len(lengths), np.random.default_rng(0)
    prompts = rng.integers(4, policy.vocabulary, (rows // SAMPLES, prompt)).repeat(SAMPLES // each, 0).tolist()
    engine = Forced(policy.model, [], policy.vocabulary, rows)
    engine.stop_ids = torch.tensor([], dtype=torch.long)
    engine.lengths = torch.from_numpy(np.full(rows, lengths.max()) if kept else lengths)
    seeds = np.arange(rows // SAMPLES).repeat(SAMPLES // each).tolist()
    made = engine.generate(prompts, SamplingParams(each, 1.0, int(lengths.max())), seeds)
    samples = [s.ids for _, group in sorted(made, key=lambda g: g[0]) for s in group]
    return np.concatenate([ids[:n] for ids, n in zip(samples, lengths, strict=True)])


def fresh_uniforms(seeds: Any, samples: int, tokens: int) -> np.ndarray:
    """hf.uniforms with a new generator each row."""
    keys = [np.array([seed, j], np.uint64) for seed in seeds for j in range(samples)]
    return np.stack([np.random.Generator(np.random.Philox(key=key)).random(tokens) for key in keys])


def dealt(policy: Policy, batch: Groups, balanced: bool) -> list[list[int]]:
    """The responses of each of 8 ranks; unbalanced: groups as they were drawn."""
    flat = [r for group in batch for r in group]
    if not balanced:
        return [[i for i in range(len(flat)) if i // SAMPLES % 8 == rank] for rank in range(8)]
    lengths = [len(r.prompt_ids) for r in flat], [r.length for r in flat]
    ranks = packed_micro_batches([tuple(r.prompt_ids) for r in flat], *lengths, 16_384, 8, policy.pair_cost)
    return [[i for micro in rank for i in micro] for rank in ranks]


def fullest(policy: Policy, batch: Groups, balanced: bool) -> float:
    """The work, in tokens, of the fullest of 8 ranks over the mean."""
    flat = [r for group in batch for r in group]
    lengths, prompt = np.array([r.length - 1 for r in flat]), len(flat[0].prompt_ids)
    work = lengths * (1 + policy.pair_cost * (prompt + lengths / 2)) + prompt / SAMPLES
    return 8 * max(work[rank].sum() for rank in dealt(policy, batch, balanced)) / work.sum()


# ---- the rows --------------------------------------------------------------------------------------------------------------


def rows(folder: Path, quick: bool) -> Iterator[Row]:
    """All rows; what they need is made when they are measured."""
    short, long, few = ((size[0] // (4 if quick else 1), *size[1:]) for size in (SHORT, LONG, FEW))
    dtype, small, vast = ("bfloat16", "0.6b", "0.6b") if GPU else ("float32", "1m", "20m")
    ranks, padded = Ranks(dtype), "model.attention=sdpa"

    @cache
    def policy(*options: str, shape: str = small) -> Policy:
        if not (folder / shape).exists():
            random_model(folder / shape, shape, dtype)
        fixed = f"model.path={folder / shape}", f"model.dtype={dtype}", "rollout.prompts=64", "algorithm.mini_batch_prompts=64"
        config = load([f"--{option}" for option in ("algorithm.estimator=grpo", *fixed, *options)])
        return Policy(config, ranks, model_config(config.model).vocab_size)

    whole = partial(policy, shape=vast)

    def updates(name: str, size: Any, tail: bool, off: Any = (), on: Any = (), swap: Any = None, of: Any = policy,
                memory: bool = False) -> Row:  # fmt: skip
        """An update whose sides differ by options, or where `swap` (object, name, value) holds for the off side."""

        def make() -> tuple[Side, Side]:
            batch = sampled_by(of(), groups(size, tail, of().vocabulary))
            other = partial(step, of(*off), batch)
            return patched(*swap, other) if swap else other, partial(step, of(*on), batch)

        return Row(name, shown("update", size, tail) + (f", {WHOLE}" if of is whole else ""), make, memory=memory)

    for size, tail in ((short, False), (short, True), (long, True)):
        yield updates("packed, not padded rows", size, tail, [padded], memory=True)
    for size, tail in ((short, False), (long, True)):
        make = partial(lambda s, t: unshared(policy(), groups(s, t, policy().vocabulary)), size, tail)
        yield Row("prompts shared by their responses", shown("update", size, tail), make)
    yield updates("last tokens left out", short, True, swap=(Policy, "micro_batch", with_last_tokens))
    if not GPU:  # there, attention is one call of another kernel
        yield updates("segments of like length a call, not all", long, True, swap=(attention, "SIMILAR_LENGTH", 0.0))
        swap = (attention, "scaled_dot_product_attention", products)
        yield updates("sdpa for segments, not written out", long, True, swap=swap)
    half = f"algorithm.mini_batch_prompts={short[0] // 2}"
    needed, sampler = "algorithm.rollout_is=truncate", "algorithm.old_logprobs=rollout"
    yield updates("no old log-probs of the first of 2 mini-batches", short, True, [half, needed], [half])
    yield updates("old log-probs of the sampler, not the trainer", short, True, [half], [half, sampler])
    yield updates("activations recomputed", long, True, [], ["model.gradient_checkpointing=true"], memory=True)
    swap = (Policy, "logprobs", plain_head)
    yield updates("head over response tokens, not all logits", few, True, swap=swap, of=whole, memory=True)
    if not quick:  # less work is one micro-batch and one chunk
        swap = (scoring, "LOGITS_CHUNK", {"cpu": 2**60, "cuda": 2**60})
        more = (few[0] * 3 // 2, *few[1:])
        yield updates("head in chunks of logits, not one", more, False, swap=swap, of=whole, memory=True)
        budget = ["optimizer.micro_batch_tokens=2048"]
        yield updates("micro-batches of 2,048 tokens, not 16,384", short, False, on=budget, memory=True)
        for tail in (False, True):  # half a minute of compiling is in the turn that warms up
            yield updates("layers compiled", short, tail, budget, [*budget, "model.compile_layers=true"])

    def entropies() -> tuple[Side, Side]:
        batch = groups(few, True, whole().vocabulary)
        return partial(score, whole(), batch, True), partial(score, whole(), batch, False)

    yield Row("old log-probs without entropies", shown("score", few, True) + f", {WHOLE}", entropies)
    if GPU:  # there, vLLM samples
        return

    def decodes(name: str, size: Any, tail: bool, off: Any = None, swap: Any = None, options: Any = ()) -> Row:
        """A decode whose off side has other arguments, options or, while it runs, `swap`."""

        def make() -> tuple[Side, Side]:
            lengths = np.array([r.length for group in groups(size, tail, policy().vocabulary) for r in group])
            sides = (
                partial(decode, policy(*options), lengths, size[2], **(off or {})),
                partial(decode, policy(), lengths, size[2]),
            )
            return (patched(*swap, sides[0]), sides[1]) if swap else sides

        return Row(name, shown("decode", size, tail), make)

    plain = (hf, "GrowingLayer", lambda room: DynamicLayer())
    yield decodes("cache with room, not transformers' own", (few[0], 128 if quick else 512, 8), False, swap=plain)
    yield decodes("cache with room, not transformers' own", short, False, swap=plain)
    yield decodes("query heads folded, not sdpa", short, False, options=[padded])
    yield decodes("query heads folded, not sdpa", long, True, options=[padded])
    uniforms = hf.uniforms
    again = (hf, "uniforms", lambda seeds, n, tokens: uniforms(seeds[::SAMPLES], SAMPLES, tokens))
    yield decodes("prompts run once a group", (*short[:2], 64), False, {"each": 1}, swap=again)
    yield decodes("ended rows dropped", long, True, {"kept": True})
    seeds = range(short[0])
    sides = partial(fresh_uniforms, seeds, SAMPLES, 16), partial(uniforms, seeds, SAMPLES, 16)
    yield Row("no new generator a row", f"uniforms {short[0] * SAMPLES} x 16", lambda: sides)

    def ranks_of(what: Callable[..., Any]) -> tuple[Side, Side]:
        many = groups((320, 256, 32), True, policy().vocabulary)
        return partial(what, policy(), many, False), partial(what, policy(), many, True)

    balanced, packing = "balanced over 8 ranks, not as drawn", "packing 2,560 responses, tail"
    yield Row(balanced, packing, lambda: ranks_of(fullest), "fullest/mean")
    yield Row(balanced, packing, lambda: ranks_of(lambda *of: np.sort(np.concatenate(dealt(*of)))))


def shown(what: str, size: tuple[int, int, int], tail: bool) -> str:
    """A work in words."""
    return f"{what} {size[0]}x{SAMPLES}x{size[1]}{' tail' if tail else ''}, prompt {size[2]}"


# ---- measuring -------------------------------------------------------------------------------------------------------------


def same(off: Any, on: Any) -> bool:
    """Whether both sides came to the same: numbers but for rounding, sampled ids but for ties."""
    off, on = np.asarray(off), np.asarray(on)
    if on.dtype.kind == "i":
        return off.shape == on.shape and float(np.mean(off == on)) > 0.99
    return off.shape == on.shape and np.allclose(off, on, rtol=0.05 if GPU else 1e-3, atol=1e-4)


def peak(side: Side) -> float:
    """MiB of tensors that one run makes beside those there were before it, at its highest."""
    if GPU:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        side()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        side()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    return float(np.cumsum([e.nbytes() for e in events if e.name() == "[memory]"]).max()) / 2**20


def now() -> float:
    """Milliseconds: of this process on the processor, or of the wall once a GPU is done."""
    if GPU:
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() if GPU else time.process_time())


def timed(side: Side) -> tuple[float, Any]:
    """(milliseconds, result) of one run."""
    begin, result = now(), side()
    return now() - begin, result


def measure(row: Row, turns: int, seconds: float) -> list[dict[str, Any]]:
    """The row, and one more of its memory where that counts: up to `turns` turns, at least two, for about `seconds`."""
    off, on = row.make()
    pairs: list[tuple[float, float]] = []
    (_, first), (_, second) = timed(off), timed(on)
    if row.unit != TIME:
        pairs.append((first, second))
    elif not same(first, second):
        sys.exit(f"techniques.py: {row.technique}, {row.work}: {first} without it, {second} with it")
    begin = time.monotonic()
    while row.unit == TIME and (len(pairs) < 2 or (len(pairs) < turns and time.monotonic() - begin < seconds)):
        pairs.append((timed(off)[0], timed(on)[0]))
    units = {row.unit: pairs}
    if row.memory:
        units["MiB"] = [(peak(off), peak(on))]
    return [
        {
            "technique": row.technique, "work": row.work, "unit": unit, "off": statistics.median(a for a, _ in of),
            "on": statistics.median(b for _, b in of), "off/on": statistics.median(a / b for a, b in of),
        }
        for unit, of in units.items()
    ]  # fmt: skip


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a quarter of the prompts, two turns")
    parser.add_argument("--only", default="", help="rows whose technique contains this")
    result_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    made: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="techniques-") as folder:
        for row in rows(Path(folder), options.quick):
            if options.only in row.technique:
                made += measure(row, *((2, 0) if options.quick else (15, 4)))
                print(f"{len(made)} rows", end="\r", file=sys.stderr)
    if not made:
        parser.error(f"no technique contains {options.only!r}")
    if not options.json:
        print(table(made))
    finish("techniques", made, options.results, options.json)


if __name__ == "__main__":
    main()
