"""One row a technique, with it and without it in turns in one process: python -m benchmarks.techniques [--quick] [--json]
[--only NAME] [--results FILE]

Both sides go through the product's code: an option, or a small replacement that stands here. They must come to the same gradient
norms or samples, else the row fails. Processor milliseconds on one thread, the smallest of 2 to 6 turns after one that warms
up; MiB: growth of the process's memory at its highest. A 1M model in float32 with random weights; "vocabulary 151,936": the
same model with Qwen3's. Work is prompts x samples x longest response; update means scoring, loss, backward pass and AdamW at a
learning rate of 0; tail: log-normal lengths with a quarter of the longest as mean. On a GPU, in bfloat16 and wall time: the
rows of the update, 0.6B.
"""

import argparse
import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
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
from benchmarks.common import finish, random_model, table
from minirl import attention, scoring
from minirl.config import load
from minirl.data import Order, Prompt
from minirl.distributed import Ranks
from minirl.packing import packed_micro_batches
from minirl.policy import Policy
from minirl.rollout import Rollout, Sample, Sampling, transformers
from minirl.rollout.sampler import Sampler
from minirl.tasks import Problem
from minirl.verify import Verdict
from minirl.verify.pool import VerifierPool

GPU = torch.cuda.is_available()
SHORT, LONG, FEW = ((16, 512, 64), (8, 2048, 64), (4, 512, 64)) if GPU else ((64, 16, 8), (8, 256, 32), (4, 16, 64))
SAMPLES, WHOLE = update.SAMPLES, "vocabulary 151,936"
TIME = "wall ms" if GPU else "ms"
MICRO_BATCH = Policy.micro_batch
Groups = list[list[Rollout]]
Side = Callable[[], Any]


class Row(NamedTuple):
    """make: the two sides, off and on; unit: that of the time a side takes, or of the number that it gives; memory: whether its
    highest memory is a row too."""

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
        rollout.old_log_probs = None
    train.score_old_policy(policy, batch, policy.config.build_strategy(), policy.config)
    return train.update(policy, batch, 0.0, policy.config).grad_norms


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


def with_last_tokens(policy: Policy, rollouts: Any, indices: list[int]) -> scoring.MicroBatch:
    """A packed micro-batch in which the last token of each response goes through the model too."""
    longer = {i: replace(rollouts[i].sample, ids=np.append(rollouts[i].sample.ids, 0)) for i in indices}
    batch = MICRO_BATCH(policy, {i: replace(rollouts[i], sample=s) for i, s in longer.items()}, indices)  # type: ignore[arg-type]
    last = np.cumsum([r.length for r in batch.rollouts]) - 1
    kept = torch.from_numpy(np.delete(np.arange(len(batch.targets)), last)).to(batch.targets.device)
    own = [rollouts[i] for i in batch.indices]
    return replace(batch, rollouts=own, places=batch.places[kept], targets=batch.targets[kept])


def products(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float | None, enable_gqa: bool) -> Tensor:
    """Scaled dot-product attention written out."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v


def plain_head(policy: Policy, batch: scoring.MicroBatch) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies from the logits of all tokens."""
    with policy.autocast():
        logits = policy.model(**batch.inputs, use_cache=False).logits[0]
    logps = (logits[:, : policy.vocabulary].float() / policy.config.rollout.temperature).log_softmax(-1)
    with torch.no_grad():
        entropies = -(logps.exp() * logps).sum(-1)
    return logps[batch.places, batch.targets], entropies[batch.places]


def score(policy: Policy, batch: Groups, entropy: bool) -> Any:
    """The old log-probs of a batch, with entropies or without."""
    policy.score([r for group in batch for r in group], old=True, entropy=entropy)
    return np.concatenate([r.old_log_probs for group in batch for r in group])  # type: ignore[arg-type]


def sampled_by(policy: Policy, batch: Groups) -> Groups:
    """`batch` as if this policy had sampled it: the sampler's log-probs are the trainer's."""
    score(policy, batch, False)
    return [[replace(r, sample=replace(r.sample, log_probs=r.old_log_probs)) for r in group] for group in batch]


def decode(policy: Policy, lengths: np.ndarray, prompt: int, each: int = SAMPLES, kept: bool = False) -> Any:
    """The sampled ids, end to end. lengths: forced, int[rows]; each: responses to a pass over a prompt, the others get one of
    their own; kept: ended rows stay in the batch."""
    rows, rng = len(lengths), np.random.default_rng(0)
    prompts = rng.integers(4, policy.vocabulary, (rows // SAMPLES, prompt)).repeat(SAMPLES // each, 0).tolist()
    engine = Forced(policy.model, [], 0, policy.vocabulary, rows)
    engine.stop_ids = torch.tensor([], dtype=torch.long)
    engine.lengths = torch.from_numpy(np.full(rows, lengths.max()) if kept else lengths)
    seeds = np.arange(rows // SAMPLES).repeat(SAMPLES // each).tolist()
    made = engine.generate(prompts, Sampling(each, 1.0, int(lengths.max())), seeds)
    samples = [s.ids for _, group in sorted(made, key=lambda g: g[0]) for s in group]
    return np.concatenate([ids[:n] for ids, n in zip(samples, lengths, strict=True)])


def fresh_uniforms(seeds: Any, samples: int, tokens: int) -> np.ndarray:
    """transformers.uniforms with a new generator each row."""
    keys = [np.array([seed, j], np.uint64) for seed in seeds for j in range(samples)]
    return np.stack([np.random.Generator(np.random.Philox(key=key)).random(tokens) for key in keys])


def verifying(policy: Policy, folder: Path, prompts: int) -> tuple[Side, Side]:
    """Sampling in four batches with a reward that takes 2 ms, milliseconds; off: verification begins after the last."""
    (folder / "slow.py").write_text("import time\ndef slow(*of):\n    time.sleep(0.002)\n    return 1.0\n")
    tokenizer = train.load_tokenizer(policy.config.model)
    work = [Prompt(Problem("", "", str(i)), "", [4 + i % 16, 5, 6, 7]) for i in range(prompts)]
    ids: dict[int, Any] = {}

    def side(late: bool) -> float:
        with VerifierPool(f"{folder / 'slow.py'}:slow", {}, 1) as pool:
            engine = transformers.TransformersEngine(policy.model, [], 0, policy.vocabulary, prompts * SAMPLES // 4)
            sampler = Sampler(engine, tokenizer, pool, policy.ranks, 0)
            sampler.groups(work[:1], [0], Sampling(1, 1.0, 1))  # until the pool has begun
            generate = engine.generate
            engine.generate = (lambda *a: iter(list(generate(*a)))) if late else generate  # type: ignore[method-assign]
            begin = time.perf_counter()
            made = sampler.groups(work, range(prompts), Sampling(SAMPLES, 1.0, 64))
            seconds = time.perf_counter() - begin
        ids[late] = np.concatenate([r.sample.ids for group in made for r in group])
        assert all(r.reward == 1 for group in made for r in group) and same(ids[late], ids.get(not late, ids[late]))
        return 1e3 * seconds

    return partial(side, True), partial(side, False)


def prompts_a_group(carry: bool) -> float:
    """Prompts sampled for each group trained on, over 200 steps of 64 groups, where half of all have a signal."""
    options = ["--algorithm.estimator=dapo", "--algorithm.old_log_probs=sampler", "--rollout.prompts=64"]
    config = load([*options, f"--rollout.carry_over={str(carry).lower()}"])
    rng, order, carried = np.random.default_rng(0), Order(10_000, 0), Groups()
    engine = SimpleNamespace(version=0)

    def drawn(prompts: Any, numbers: Any, sampling: Any, keep: int) -> Groups:
        def rollout(number: int, status: str) -> Rollout:
            sample = Sample(np.zeros(2, np.int32), np.zeros(2, np.float32), "stop")
            return Rollout(number, "", "", [1], sample, engine.version, "", Verdict(status), float(status == "right"))

        return [[rollout(n, "right"), rollout(n, "wrong" if rng.random() < 0.5 else "right")] for n in numbers]

    sampler: Any = SimpleNamespace(engine=engine, groups=drawn)
    for engine.version in range(200):
        batch, carried, _ = train.fill_batch(sampler, [None] * order.size, order, carried, engine.version, config)  # type: ignore[list-item]
        assert len(batch) == 64
    return order.position / (200 * 64)


def fullest(policy: Policy, batch: Groups, balanced: bool) -> float:
    """Attention and other work of the fullest of 8 ranks over the mean; unbalanced: groups are dealt in the order drawn."""
    flat = [r for group in batch for r in group]
    shares = [[i for i in range(len(flat)) if i // SAMPLES % 8 == rank] for rank in range(8)]
    if balanced:
        shares = [[i for micro in share for i in micro] for share in pack(policy, batch)]
    lengths, prompt = np.array([r.length - 1 for r in flat]), len(flat[0].prompt_ids)
    work = lengths * (1 + policy.pair_cost * (prompt + lengths / 2)) + prompt / SAMPLES
    return max(work[share].sum() for share in shares) / (work.sum() / 8)


def pack(policy: Policy, batch: Groups) -> list[list[list[int]]]:
    """The micro-batches of 8 ranks."""
    flat = [r for group in batch for r in group]
    lengths = [len(r.prompt_ids) for r in flat], [r.length for r in flat]
    return packed_micro_batches([r.group for r in flat], *lengths, 16_384, 8, policy.pair_cost)


# ---- the rows --------------------------------------------------------------------------------------------------------------


def rows(folder: Path, quick: bool) -> Iterator[Row]:
    """All rows; what they need is made when they are measured."""
    short, long, few = ((size[0] // (4 if quick else 1), *size[1:]) for size in (SHORT, LONG, FEW))
    dtype, ranks = "bfloat16" if GPU else "float32", Ranks("bfloat16" if GPU else "float32")

    @cache
    def policy(*options: str, shape: str = "0.6b" if GPU else "1m") -> Policy:
        if not (folder / shape).exists():
            random_model(folder / shape, shape, dtype)
        fixed = f"model.path={folder / shape}", f"model.dtype={dtype}", "rollout.prompts=64", "algorithm.mini_batch_prompts=64"
        config = load([f"--{option}" for option in ("algorithm.estimator=grpo", *fixed, *options)])
        return Policy(config, ranks, len(train.load_tokenizer(config.model)))

    whole = partial(policy, shape="0.6b" if GPU else "20m")
    padded = "model.attention=sdpa"

    def updates(name: str, size: Any, tail: bool, off: Any = (), on: Any = (), swap: Any = None, of: Any = policy,
                memory: bool = False) -> Row:  # fmt: skip
        """An update whose sides differ by options, or where `swap` (object, name, value) holds for the off side."""

        def make() -> tuple[Side, Side]:
            batch = sampled_by(of(), groups(size, tail, of().vocabulary))
            sides = partial(step, of(*off), batch), partial(step, of(*on), batch)
            return (patched(*swap, sides[0]), sides[1]) if swap else sides

        return Row(name, work("update", size, tail) + (f", {WHOLE}" if of is whole else ""), make, memory=memory)

    for size, tail in ((short, False), (short, True), (long, True)):
        yield updates("packed, not padded rows", size, tail, [padded], memory=True)
    for size, tail in ((short, False), (long, True)):
        make = partial(lambda s, t: unshared(policy(), groups(s, t, policy().vocabulary)), size, tail)
        yield Row("+ prompts shared", work("update", size, tail), make)
    yield updates("+ last tokens left out", short, True, swap=(Policy, "micro_batch", with_last_tokens))
    if not GPU:  # there, attention is one call of another kernel
        yield updates("segments of like length a call, not all", long, True, swap=(attention, "LIKE", 0.0))
        swap = (attention, "scaled_dot_product_attention", products)
        yield updates("sdpa for segments, not written out", long, True, swap=swap)
    yield updates("micro-batches of 2,048 tokens, not 16,384", short, False, [], ["optimizer.micro_batch_tokens=2048"],
                  memory=True)  # fmt: skip
    half = f"algorithm.mini_batch_prompts={short[0] // 2}"
    yield updates("no old log-probs of the first of 2 mini-batches", short, True, [half, "algorithm.correction=truncate"], [half])
    sampler = "algorithm.old_log_probs=sampler"
    yield updates("old log-probs of the sampler, not the trainer", short, True, [half], [half, sampler])
    yield updates("activations recomputed", long, True, [], ["model.gradient_checkpointing=true"], memory=True)
    swap = (Policy, "log_probs", plain_head)
    yield updates("head over response tokens, not all logits", few, True, swap=swap, of=whole, memory=True)
    swap = (scoring, "LOGITS_CHUNK", 2**60)
    yield updates("head in chunks of 2^26 logits, not one", (few[0] * 2, *few[1:]), False, swap=swap, of=whole, memory=True)

    def entropies() -> tuple[Side, Side]:
        batch = groups(few, True, whole().vocabulary)
        return partial(score, whole(), batch, True), partial(score, whole(), batch, False)

    yield Row("old log-probs without entropies", work("score", few, True) + f", {WHOLE}", entropies)
    if GPU:  # there, vLLM samples
        return

    def decodes(name: str, size: Any, tail: bool, off: Any, on: Any = None, swap: Any = None, options: Any = ()) -> Row:
        """A decode whose off side has other arguments, options or, while it runs, `swap`."""

        def make() -> tuple[Side, Side]:
            lengths = np.array([r.length for group in groups(size, tail, policy().vocabulary) for r in group])
            sides = partial(decode, policy(*options), lengths, size[2], **off), partial(decode, policy(), lengths, size[2])
            return (patched(*swap, sides[0]), sides[1]) if swap else sides

        return Row(name, work("decode", size, tail), make)

    plain = (transformers, "GrowingLayer", lambda room: DynamicLayer())
    yield decodes("cache with room, not transformers' own", (few[0], 128 if quick else 512, 8), False, {}, swap=plain)
    yield decodes("cache with room, not transformers' own", short, False, {}, swap=plain)
    yield decodes("query heads folded, not sdpa", short, False, {}, options=[padded])
    uniforms = transformers.uniforms
    again = (transformers, "uniforms", lambda seeds, n, tokens: uniforms(seeds[::SAMPLES], SAMPLES, tokens))
    yield decodes("prompts run once a group", (*short[:2], 64), False, {"each": 1}, swap=again)
    yield decodes("ended rows dropped", long, True, {"kept": True})
    seeds = range(short[0])
    sides = partial(fresh_uniforms, seeds, SAMPLES, 16), partial(uniforms, seeds, SAMPLES, 16)
    yield Row("no new generator a row", f"uniforms {short[0] * SAMPLES} x 16", lambda: sides)
    yield Row("verified while sampling goes on", "a reward of 2 ms, 4 batches", lambda: verifying(policy(), folder, 16), "wall ms")
    counts = partial(prompts_a_group, False), partial(prompts_a_group, True)
    yield Row("surplus groups carried over", "200 steps, half of groups kept", lambda: counts, "prompts/group")
    many = partial(groups, (320, 256, 32), True, 22)
    balance = lambda: (partial(fullest, policy(), many(), False), partial(fullest, policy(), many(), True))  # noqa: E731
    yield Row("balanced over 8 ranks, not as drawn", "packing 320 x 8 tail", balance, "fullest/mean")


def work(what: str, size: tuple[int, int, int], tail: bool) -> str:
    """In words."""
    return f"{what} {size[0]}x{SAMPLES}x{size[1]}{' tail' if tail else ''}, prompt {size[2]}"


# ---- measuring -------------------------------------------------------------------------------------------------------------


def same(off: Any, on: Any) -> bool:
    """Whether both sides came to the same: numbers but for rounding, sampled ids but for ties."""
    off, on = np.asarray(off), np.asarray(on)
    if on.dtype.kind == "i":
        return off.shape == on.shape and float(np.mean(off == on)) > 0.99
    return off.shape == on.shape and np.allclose(off, on, rtol=0.05 if GPU else 1e-3, atol=1e-4)


def memory(key: str) -> float:
    """MiB of this process now (VmRSS) or at its highest since `measured` began (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024


def measured(side: Side) -> tuple[float, float, Any]:
    """(milliseconds, MiB, result) of one run."""
    if GPU:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, begin = torch.cuda.memory_allocated(), time.perf_counter()
        result = side()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin), (torch.cuda.max_memory_allocated() - before) / 2**20, result
    ctypes.CDLL(None).malloc_trim(0)  # Linux: give back what is free, and forget the highest
    Path("/proc/self/clear_refs").write_text("5")
    held, begin = memory("VmRSS"), time.process_time()
    result = side()
    return 1e3 * (time.process_time() - begin), memory("VmHWM") - held, result


def measure(row: Row, turns: int, seconds: float) -> list[dict[str, Any]]:
    """The row, and one more of its memory where that counts: up to `turns` turns, at least two, for about `seconds`."""
    sides, counts = row.make(), row.unit not in (TIME, "ms")
    got: list[list[tuple[float, float, Any]]] = []
    begin = time.monotonic()
    while len(got) < 3 or (len(got) <= turns and time.monotonic() - begin < seconds):
        got.append([measured(side) for side in sides])
    if not counts and not same(got[0][0][2], got[0][1][2]):
        sys.exit(f"techniques.py: {row.technique}: the sides differ: {got[0][0][2]} without it, {got[0][1][2]} with it")
    made = []
    for place, unit in ((2 if counts else 0, row.unit), (1, "MiB"))[: 1 + row.memory]:
        off, on = (min(float(turn[side][place]) for turn in got[1:]) for side in (0, 1))
        made.append({"technique": row.technique, "work": row.work, "unit": unit, "off": off, "on": on, "off/on": off / on})
    return made


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a quarter of the prompts, two turns")
    parser.add_argument("--only", default="", help="rows whose technique contains this")
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of a table")
    parser.add_argument("--results", help="file for one more JSON line; else benchmarks/results.jsonl")
    options = parser.parse_args()
    torch.set_num_threads(1)
    made: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="techniques-") as folder:
        for row in rows(Path(folder), options.quick):
            if options.only in row.technique:
                made += measure(row, *((2, 0) if options.quick else (6, 6)))
                print(f"{len(made)} rows", end="\r", file=sys.stderr)
    if not made:
        parser.error(f"no technique contains {options.only!r}")
    if not options.json:
        print(table(made))
    finish("techniques", made, options.results, options.json)


if __name__ == "__main__":
    main()
