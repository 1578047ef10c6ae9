"""Sampling without waiting, simulated: python -m benchmarks.continuous [CONFIG.yaml] [--option=--section.key=value ...]

The seconds that a step's sampling takes on the GPUs of the config's plan section: in whole generation batches, as train.py
sizes them, or with groups begun one by one (`rollout.continuous`) and more or less begun beyond the batch (`rollout.ahead`).
The scheduler is the product's own (minirl/rollout/continuous.py); engines are a clock that is advanced by what each pass reads
and computes (minirl/watch/limit.py), at the shares of the peaks in benchmarks/limit.py, and by the host's work for each
sequence and request. Lengths are log-normal, then cut.
    --mean 2048 --sigma 1   of a response before it is cut      --shared 0   share of sigma^2 that a group's responses share
    --prompt 150            tokens of a prompt                  --kept 0.5 0.85   shares of groups that are kept
    --ahead 0 0.25 0.5 1    rollout.ahead                       --steps 12   the first third is left out: the lead grows
    --request 0.0002        seconds on the host to hand an engine one unfinished response again, at each slice
seconds: of sampling; of them, again: keys and values of carried tokens computed anew, tail: passes without a response, of as
many as were sampled at once at most; old: share of the tokens trained on that an older version sampled; trained, drawn: mean
tokens of the responses that are trained on, and of all that could be drawn.
"""

import argparse
import heapq
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.common import SHAPES, finish, qwen3_config, result_options, table
from benchmarks.limit import PRACTICE
from minirl.config.command_line import load
from minirl.config.options import Config
from minirl.data.prompts import Order
from minirl.policy import plan
from minirl.rollout.continuous import Continuous
from minirl.rollout.types import LENGTH, STOP, Batch, Completion, Rollout
from minirl.watch import limit

BLOCK = 16  # tokens of a block of vLLM's prefix cache: what is beyond the last whole one is computed again at each slice


class World:
    """What is given: the lengths of the responses to each draw, which groups are kept, and what engines cost."""

    def __init__(self, config: Config, model: plan.Model, hardware: limit.Hardware, kept: float, a: argparse.Namespace) -> None:
        r, p = config.rollout, config.plan
        self.config, self.model, self.engines = config, model, p.gpus // r.vllm.tensor_parallel
        self.hardware = replace(
            hardware, flops=hardware.flops * PRACTICE["products"], bandwidth=hardware.bandwidth * PRACTICE["bandwidth"]
        )
        self.setting = limit.Setting(
            p.gpus, r.max_sequences, 2 if config.model.dtype == "bfloat16" else 4, tensor_parallel=r.vllm.tensor_parallel
        )
        self.prompt, self.request = a.prompt, a.request
        draws = math.ceil(r.prompts * (a.steps + 4) * 2.5 / kept)
        rng = np.random.default_rng(0)
        noise = math.sqrt(a.shared) * rng.standard_normal((draws, 1))
        noise = noise + math.sqrt(1 - a.shared) * rng.standard_normal((draws, r.group_size))
        lengths = np.exp(math.log(a.mean) - a.sigma**2 / 2 + a.sigma * noise)
        self.lengths = lengths.clip(1, r.max_response_tokens).round().astype(int)
        self.kept = rng.random(draws) < kept
        self.order = Order(draws, 0)
        ids = [0] * a.prompt
        problem = SimpleNamespace(answer="")
        self.prompts: list[Any] = [SimpleNamespace(text="", ids=ids, problem=problem)] * draws

    def passes(self, count: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """float[passes]: seconds of one engine's passes."""
        return limit.pass_seconds(self.model, self.hardware, self.setting, count, keys, PRACTICE["host"])

    def prefill(self, tokens: np.ndarray | list[int]) -> float:
        """Seconds in which one engine computes keys and values of sequences of so many tokens."""
        n = np.asarray(tokens, float)
        flops = limit.forward_flops(self.model, n.sum(), (n**2).sum() / 2, 0)
        return flops / (self.hardware.flops * self.setting.tensor_parallel)


class Simulated(Continuous):
    """One step: the product's scheduler on engines that are a clock. seconds: of sampling; of them, again: carried tokens
    computed anew, tail: passes without a response."""

    def __init__(self, world: World, version: int, carried: list[list[Rollout]], share: float) -> None:
        self.world, self.seconds, self.again, self.tail = world, 0.0, 0.0, 0.0
        ranks = SimpleNamespace(size=world.engines, rank=0, gather=list)
        engine = SimpleNamespace(ranks_per_engine=1, version=version, sleep=lambda: None)
        sampler: Any = SimpleNamespace(
            ranks=ranks, engine=engine, seed=0, labeller=None, seconds={"sample": 0.0, "verify": 0.0}, watch=lambda *_: None
        )
        super().__init__(
            sampler, world.order, world.prompts, world.config, carried, share, lambda group: True, lambda length: 0.0
        )
        self.reports = False  # nothing to verify: the world knows what is kept

    def is_kept(self, group: list[Rollout]) -> bool:
        return not self.dynamic or bool(self.world.kept[group[0].group])

    def extended(self, rows: Any, tokens: int) -> list[tuple[tuple[int, int], Completion]]:
        """All engines at once; the slowest decides when the slice ends."""
        world, slowest, again = self.world, 0.0, 0.0
        sampled = list[tuple[tuple[int, int], Completion]]()
        for engine in range(self.engines):
            mine = [(k, j) for k, j in rows if self.engine_of[k] == engine]
            so_far = np.array([self.groups[k][j].length for k, j in mine], int)
            whole = np.array([world.lengths[self.groups[k][0].group, j] for k, j in mine], int)
            new = np.minimum(whole - so_far, tokens)
            count = (new[:, None] > np.arange(tokens)).sum(0)
            count = count[count > 0]
            keys = count * (world.prompt + (so_far.mean() if len(mine) else 0) + np.arange(len(count)))
            begun = len({k for (k, _), n in zip(mine, so_far, strict=True) if n == 0})
            rest = so_far[so_far > 0] + world.prompt
            anew = world.prefill(rest if not self.passes else np.full(len(rest), BLOCK / 2))
            seconds = (
                float(world.passes(count, keys).sum())
                + anew
                + world.prefill([world.prompt] * begun)
                + world.request * len(mine)
            )
            slowest, again = max(slowest, seconds), max(again, anew * (not self.passes))
            for row, n, is_last in zip(mine, new.tolist(), (so_far + new == whole).tolist(), strict=True):
                zeros = np.zeros(n, np.int32)
                sampled.append((row, Completion(zeros, zeros, STOP if is_last else LENGTH)))
        self.seconds += slowest
        self.again += again
        self.rows = max(self.rows, len(rows))
        lengths = [len(piece.ids) for _, piece in sampled]
        self.tail += slowest * (1 - sum(lengths) / (passes * self.rows)) if (passes := max(lengths, default=0)) else 0.0
        return sampled


def one_by_one(world: World, steps: int) -> list[dict[str, float]]:
    """A row each step with rollout.continuous."""
    made, carried, share, version = list[dict[str, float]](), list[list[Rollout]](), 0.0, 0
    a = world.config.algorithm
    for _ in range(steps):
        step = Simulated(world, version, carried, share)
        batch: Batch = step.batch()
        carried, share = batch.surplus, len(batch.groups) / len(batch.generated)
        trained, discarded = [r for group in batch.groups for r in group], batch.metrics["sampling/discarded_tokens"]
        used = discarded + sum(r.length for group in batch.generated for r in group)
        versions = np.concatenate([r.completion.versions for r in trained])  # type: ignore[misc]
        made.append({
            "seconds": step.seconds, "again": step.again, "Mtokens": step.sampled / 1e6, "used": used / 1e6,
            "discarded": discarded / max(1, step.sampled),
            "tail": step.tail,
            "old": float((versions < version).mean()),
            "steps behind": float((version - versions).mean()) / (world.config.rollout.prompts // a.mini_batch_prompts),
            "trained": float(np.mean([r.length for r in trained])),
        })  # fmt: skip
        version += world.config.rollout.prompts // a.mini_batch_prompts * a.epochs
    return made


def whole_batches(world: World, steps: int) -> list[dict[str, float]]:
    """A row each step with generation batches one after another, each to its last token, sized as by `collect_batch`."""
    r = world.config.rollout
    made, carried, next_draw = list[dict[str, float]](), list[int](), 0
    for _ in range(steps):
        kept, groups, expected, seconds, tokens, tail = list(carried), 0, 1 / r.oversample, 0.0, 0, 0.0
        while len(kept) < r.prompts:
            wanted = min(math.ceil((r.prompts - len(kept)) / expected), math.ceil(max(2, r.oversample) * r.prompts))
            drawn = np.arange(next_draw, next_draw + r.draws(wanted))
            next_draw += len(drawn)
            slowest, empty, came = 0.0, 0.0, list[int]()
            for engine in range(world.engines):
                share = len(range(engine, wanted, world.engines))
                first, took, lost, sampled = batch_on_one(world, drawn[engine :: world.engines], share)
                came += first
                tokens += sampled
                slowest, empty = max((slowest, empty), (took, lost))
            kept += [k for k in sorted(came) if world.kept[k]]  # in the order drawn, as the sampler returns them
            seconds, tail, groups = seconds + slowest, tail + empty, groups + wanted
            expected = max(0.1, (len(kept) - len(carried)) / groups)
        trained = world.lengths[kept[: r.prompts]]
        old = world.lengths[kept[: len(carried)]].sum() / trained.sum()
        made.append({
            "seconds": seconds, "again": 0.0, "Mtokens": tokens / 1e6, "used": tokens / 1e6, "discarded": 0.0, "tail": tail,
            "old": float(old),
            "steps behind": float(old), "trained": float(trained.mean()),
        })  # fmt: skip
        carried = kept[r.prompts :][: r.prompts // 2] if r.carry_over else []
    return made


def batch_on_one(world: World, drawn: np.ndarray, keep: int) -> tuple[list[int], float, float, int]:
    """(the `keep` groups that finish first, seconds until then, of them without a response, tokens) of an engine that begins
    the next response of the groups drawn when one ends."""
    if not keep:
        return [], 0.0, 0.0, 0
    lengths = world.lengths[drawn].reshape(-1)
    free, starts = list[int](), list[int]()
    for length in lengths.tolist():
        starts.append(heapq.heappop(free) if len(free) == world.setting.slots else 0)
        heapq.heappush(free, starts[-1] + length)
    ends = np.array(starts) + lengths
    whole = ends.reshape(len(drawn), -1).max(1)
    first = np.argsort(whole, kind="stable")[:keep]
    last = int(whole[first].max(initial=0))
    begin, end = np.minimum(starts, last), np.minimum(ends, last)
    count, so_far = np.zeros(last + 1, np.int64), np.zeros(last + 1, np.int64)
    np.add.at(count, begin, 1)
    np.add.at(count, end, -1)
    np.add.at(so_far, begin, begin)
    np.add.at(so_far, end, -begin)
    count, so_far = count.cumsum()[:-1], so_far.cumsum()[:-1]
    keys = count * (np.arange(last) + world.prompt) - so_far
    seconds = world.passes(count, keys)
    tail = float((seconds * (1 - count / count.max())).sum())
    whole_seconds = float(seconds.sum()) + world.prefill([world.prompt] * len(drawn))
    return drawn[first].tolist(), whole_seconds, tail, int((end - begin).sum())


def mean_row(rows: list[dict[str, float]]) -> dict[str, float]:
    """The mean over the steps after the first third, scaled to the tokens that these used: what is begun beyond their batches
    grows or shrinks by chance."""
    steady = rows[len(rows) // 3 :]
    mean = {name: float(np.mean([row[name] for row in steady])) for name in rows[0]}
    scale = mean.pop("used") / mean["Mtokens"]
    return mean | {name: mean[name] * scale for name in ("seconds", "again", "tail", "Mtokens")}


def compare(a: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each way and share of kept groups. less: of the config's own way, of which there is the first row."""
    own = load([a.config, *a.option])
    size = next((size for size in SHAPES if f"qwen3-{size}" in own.model.path.lower()), "8b")
    model, hardware = plan.measure(qwen3_config(size)), limit.hardware_of(a.gpu)
    assert hardware is not None, a.gpu
    corrected = replace(own.algorithm, old_logprobs="rollout", rollout_is="none")
    rows = []
    for kept in a.kept:
        first = 0.0
        carry = own.rollout.carry_over
        ways = {"batches, as the preset": {}, "batches, carry_over": {"carry_over": True}}
        ways["batches, abort_longest 0.2"] = {"abort_longest": 0.2}
        ways |= {f"continuous, ahead {x:g}": {"continuous": True, "ahead": x, "carry_over": False} for x in a.ahead}
        for name, changes in ways.items():
            if changes.get("carry_over") and carry:
                continue  # the preset's own
            rollout = replace(own.rollout, **changes)
            world = World(replace(own, rollout=rollout, algorithm=corrected), model, hardware, kept, a)
            row = mean_row(one_by_one(world, a.steps) if rollout.continuous else whole_batches(world, a.steps))
            first = first or row["seconds"]
            less = f"{1 - row['seconds'] / first:.0%}"
            rows.append({"kept": kept, "way": name, "less": less, **row, "drawn": world.lengths.mean()})
    return rows


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default=str(Path(__file__).parents[1] / "configs" / "qwen3-8b-math.yaml"))
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--mean", type=float, default=2048)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--shared", type=float, default=0.0)
    parser.add_argument("--prompt", type=int, default=150)
    parser.add_argument("--kept", type=float, nargs="+", default=[0.5, 0.85])
    parser.add_argument("--ahead", type=float, nargs="+", default=[0, 0.25, 0.5, 1])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--request", type=float, default=0.0002)
    parser.add_argument("--gpu", default="H200")
    result_options(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    options = arguments()
    made = compare(options)
    if not options.json:
        print(table(made))
    finish("continuous", made, options.results, options.json)
