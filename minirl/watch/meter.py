"""How far a step was from the limit of its hardware, and where the rest went: `limit.py` on a run's own steps."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minirl.config.options import Config
from minirl.policy import plan
from minirl.rollout.types import Batch, Rollout
from minirl.watch import limit
from minirl.watch.limit import Group, Hardware, Setting


def best_seconds(work: Callable[[], Any], seconds: float) -> float:
    """The shortest of as many calls as fit in `seconds`, at least three; on a CPU with one thread in processor seconds, which
    other programs disturb less."""
    alone = not torch.cuda.is_available() and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    times, end = list[float](), time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begin = clock()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(clock() - begin)
    return min(times)


def measured_hardware(seconds: float = 1.0) -> Hardware:
    """This device: the best of products of two matrices, 1,024 wide in float32 on a CPU, 8,192 in bfloat16 on a GPU, and of
    products of a vector and a matrix much larger than the caches, whose bytes are read once, as those of weights and a KV cache
    are. seconds: for each."""
    gpu = torch.cuda.is_available()
    device, dtype, n = ("cuda", torch.bfloat16, 8192) if gpu else ("cpu", torch.float32, 1024)
    a, wide = torch.ones(n, n, device=device, dtype=dtype), torch.ones(2**12 if gpu else 2**10, 2**14, device=device)
    vector = torch.ones(len(wide), device=device)
    flops = 2 * n**3 / best_seconds(lambda: a @ a, seconds)
    bandwidth = 4 * wide.numel() / best_seconds(lambda: vector @ wide, seconds)
    return Hardware(torch.cuda.get_device_name() if gpu else "CPU", flops, bandwidth)


def groups_of(groups: Sequence[Sequence[Rollout]], kept: set[int]) -> list[Group]:
    """Sizes of groups of rollouts. kept: numbers of those that are trained on or carried over."""
    return [Group(len(g[0].prompt_ids), [r.length for r in g], g[0].group in kept) for g in groups if g]


def named(metered: dict[str, float]) -> dict[str, float]:
    """What `limit.meter` says, by the names of metrics.jsonl."""
    times = {f"time/{name.replace('/', '_').removesuffix('_step')}": value for name, value in metered.items()}
    share = times.pop("time/limit_share")
    return times | {"speed/limit_share": share}


class Meter:
    """The limit of one run's steps. The hardware, unless it is a GPU that limit.KNOWN has, is measured once, in a few tenths of
    a second."""

    def __init__(self, config: Config, policy: Any) -> None:
        self.config, self.policy, ranks = config, policy, policy.ranks
        self.model = plan.sizes_of(policy.model)
        known = limit.hardware_of(torch.cuda.get_device_name()) if ranks.device.type == "cuda" else None
        self.hardware = known or measured_hardware(0.1)

    def metrics(self, batch: Batch, seconds: dict[str, float]) -> dict[str, float]:
        """The meter's metrics of a step. seconds: measured, by the names of metrics.jsonl without time/.

        time/limit and time/limit_PHASE: see `limit.step_limit`; time/lost_CAUSE: see there and `limit.meter`;
        speed/limit_share: of the limit that was reached. Empty where nothing was trained on. Sampling is that of the batch's
        groups, with rollout.ahead in whichever step; tokens of groups that rollout.abort_longest ended are not known.
        """
        config, policy = self.config, self.policy
        trained = groups_of(batch.groups, {g[0].group for g in batch.groups})
        if not trained:
            return {}
        a, kept = config.algorithm, {g[0].group for g in (*batch.groups, *batch.surplus) if g}
        rollouts = [r for g in batch.groups for r in g]
        scored = sum(r.old_logprobs is not None for r in rollouts) / len(rollouts) if a.old_logprobs == "trainer" else 0.0
        setting = Setting(
            policy.ranks.size, config.rollout.max_sequences, 2 if config.model.dtype == "bfloat16" else 4,
            bool(policy.config.model.gradient_checkpointing), a.epochs, scored, config.rollout.vllm.tensor_parallel,
            config.model.lora.r > 0,
        )  # fmt: skip
        needed = sum(g.prompt + sum(g.lengths) - len(g.lengths) for g in trained) * a.epochs
        computed = max(1, policy.pop_updated_tokens() * policy.ranks.size)
        best = limit.step_limit(self.model, self.hardware, groups_of(batch.generated, kept), trained, setting)
        if config.rollout.continuous:  # no generation batch whose tail could be worked out, but its passes were counted
            full, empty = best["limit/generation"] + best["lost/waste"], batch.metrics["sampling/tail_share"]
            tokens = sum(r.length for group in batch.generated for r in group)
            best["lost/tail"] = full * empty / (1 - empty)
            best["lost/waste"] += full * batch.metrics["sampling/discarded_tokens"] / max(1, tokens)
        return named(limit.meter(best, seconds, max(0.0, 1 - needed / computed)))
