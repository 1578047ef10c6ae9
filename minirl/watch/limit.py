"""What a step needs at the limit of its hardware, and what it loses: arithmetic on the step's own lengths, no measurement.

A phase needs the longer of its products at the peak rate and its memory traffic at the peak bandwidth (roofline: Williams,
Waterman and Patterson 2009). Counted are a decoder's products and attention, its weights and its KV cache; norms, activations,
sampling and everything on the host are not, so no program reaches the limit. Sizes are those of Llama- and Qwen-like models.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minirl.policy.plan import Model


@dataclass(frozen=True)
class Hardware:
    """One device. flops: products a second; bandwidth: bytes a second of its memory; link: bytes a second to the others."""

    name: str
    flops: float
    bandwidth: float
    link: float = 450e9


# Published peaks, dense bfloat16, by a part of the name that torch gives; the first that matches.
KNOWN = (
    Hardware("H200", 989e12, 4.8e12),
    Hardware("H100", 989e12, 3.35e12),
    Hardware("A100", 312e12, 2.04e12, 300e9),
)


def hardware_of(name: str) -> Hardware | None:
    """The known device whose name is in `name`, as torch gives it; None for others."""
    return next((known for known in KNOWN if known.name in name), None)


@dataclass(frozen=True)
class Group:
    """Responses to one prompt. prompt: its tokens; lengths: of the responses; kept: whether it is trained on."""

    prompt: int
    lengths: Sequence[int]
    kept: bool = True


@dataclass(frozen=True)
class Setting:
    """How a step is computed. devices: in all; slots: sequences that an engine decodes at once; bytes: of a number in weights,
    cache and products; recompute: gradient checkpointing; passes: over the batch in the update; scored: share of the batch
    whose log-probs are computed before the update; tensor_parallel: devices of an engine; frozen: whether only adapters are
    trained."""

    devices: int
    slots: int
    bytes: int = 2
    recompute: bool = False
    passes: int = 1
    scored: float = 0.0
    tensor_parallel: int = 1
    frozen: bool = False

    @property
    def forwards(self) -> int:
        """The least that forward and backward pass cost, in forward passes: a backward pass takes one for the gradients of
        activations and one for those of weights, which frozen ones do not have."""
        return 2 if self.frozen else 3


def body_parameters(model: Model) -> int:
    """Parameters of the layers' matrices, which every token is multiplied with."""
    attention = 2 * model.hidden * model.head_dim * (model.heads + model.kv_heads)
    return model.layers * (attention + 3 * model.hidden * model.mlp)


def forward_flops(model: Model, tokens: float, pairs: float, predicted: float) -> float:
    """FLOP of a forward pass. pairs: of a query and a key that it sees; predicted: tokens that go through the output layer."""
    products = 2 * body_parameters(model) * tokens + 2 * model.hidden * model.vocabulary * predicted
    return products + 4 * model.layers * model.heads * model.head_dim * pairs


def trainer_flops(model: Model, groups: Sequence[Group]) -> float:
    """FLOP of one forward pass of the trainer over groups: a prompt once, the last token of a response predicts nothing."""
    tokens = pairs = predicted = 0.0
    for group in groups:
        lengths = np.asarray(group.lengths, float)
        tokens += group.prompt + (lengths - 1).sum()
        pairs += group.prompt**2 / 2 + ((lengths - 1) * (group.prompt + lengths / 2)).sum()
        predicted += lengths.sum()
    return forward_flops(model, tokens, pairs, predicted)


def alive(lengths: Sequence[int], slots: int) -> tuple[np.ndarray, np.ndarray]:
    """(sequences decoded, their tokens so far), both int64[passes], of an engine that starts the next sequence, longest first,
    when one ends."""
    order = sorted(lengths, reverse=True)
    free: list[int] = []
    starts = []
    for length in order:
        start = heapq.heappop(free) if len(free) == slots else 0
        starts.append(start)
        heapq.heappush(free, start + length)
    ends = np.array(starts) + np.array(order)
    count, first = np.zeros(ends.max() + 1, np.int64), np.zeros(ends.max() + 1, np.int64)
    np.add.at(count, starts, 1)
    np.add.at(count, ends, -1)
    np.add.at(first, starts, starts)
    np.add.at(first, ends, -np.array(starts))
    count, first = count.cumsum()[:-1], first.cumsum()[:-1]
    return count, count * np.arange(len(count)) - first


def pass_seconds(
    model: Model, hardware: Hardware, setting: Setting, count: np.ndarray, keys: np.ndarray, host: float = 0.0
) -> np.ndarray:
    """float[passes]: seconds of an engine's passes. count: sequences of each; keys: tokens that these attend to, in all."""
    matrices = body_parameters(model) + model.hidden * model.vocabulary
    token_bytes = 2 * model.layers * model.kv_heads * model.head_dim * setting.bytes
    reading = (matrices * setting.bytes + keys * token_bytes) / (hardware.bandwidth * setting.tensor_parallel)
    flops = forward_flops(model, 1, 0, 1) * count + forward_flops(model, 0, 1, 0) * keys
    return np.maximum(reading, flops / (hardware.flops * setting.tensor_parallel)) + host * count


def decode_seconds(
    model: Model, hardware: Hardware, groups: Sequence[Group], setting: Setting, host: float = 0.0,
) -> tuple[float, float]:  # fmt: skip
    """(seconds with every pass as full as the slots allow, seconds of passes to the last token) of sampling on all engines.

    Groups are dealt to the engines by their tokens, as evenly as whole groups can be. A pass reads the weights once and the KV
    cache of its sequences. The difference of the two is the tail. host: seconds that the engine's own work adds to a pass for
    each sequence, 0 at the limit.
    """
    if not groups:
        return 0.0, 0.0
    engines = max(1, setting.devices // setting.tensor_parallel)
    shares: list[list[Group]] = [[] for _ in range(engines)]
    loads = [(0, i) for i in range(engines)]
    for group in sorted(groups, key=lambda g: -sum(g.lengths)):
        load, i = heapq.heappop(loads)
        shares[i].append(group)
        heapq.heappush(loads, (load + sum(group.lengths), i))
    speed, bandwidth = hardware.flops * setting.tensor_parallel, hardware.bandwidth * setting.tensor_parallel
    matrices = body_parameters(model) + model.hidden * model.vocabulary
    token_bytes = 2 * model.layers * model.kv_heads * model.head_dim * setting.bytes
    token_flops, pair_flops = forward_flops(model, 1, 0, 1), forward_flops(model, 0, 1, 0)
    full, last, prompts = 0.0, 0.0, 0.0
    for share in (share for share in shares if share):
        count, tokens = alive([length for g in share for length in g.lengths], setting.slots)
        mean_prompt = sum(g.prompt * sum(g.lengths) for g in share) / sum(sum(g.lengths) for g in share)
        keys = tokens + count * mean_prompt
        computing = (token_flops * count + pair_flops * keys) / speed
        last = max(last, float(pass_seconds(model, hardware, setting, count, keys, host).sum()))
        most = min(setting.slots, sum(len(g.lengths) for g in share))
        traffic = (matrices * setting.bytes * count.sum() / most + keys.sum() * token_bytes) / bandwidth
        full += (max(traffic, float(computing.sum())) + host * count.sum()) / engines
        filled = sum(forward_flops(model, g.prompt, g.prompt**2 / 2, 0) for g in share)
        prompts = max(prompts, filled / speed)
    return full + prompts, max(full, last) + prompts


def step_limit(
    model: Model, hardware: Hardware, generated: Sequence[Group], trained: Sequence[Group], setting: Setting,
) -> dict[str, float]:  # fmt: skip
    """Seconds of a step's phases at the limit, and seconds lost by its choices even there. generated: all groups that were
    sampled; trained: those of the batch.

    limit/generation, old_logprobs, update, sync, step: for what is trained on, sampled with no tail, nothing recomputed.
    lost/tail: passes with fewer sequences than slots, to the last token. lost/waste: sampling what is not trained on.
    lost/recomputation: the second forward pass of gradient checkpointing.
    """
    peak = hardware.flops * setting.devices
    full, last = decode_seconds(model, hardware, generated, setting)
    tokens, used = (sum(sum(g.lengths) for g in groups) for groups in (generated, [g for g in generated if g.kept]))
    useful = full * used / max(tokens, 1)
    forward = trainer_flops(model, trained) / peak
    weights = (body_parameters(model) + 2 * model.hidden * model.vocabulary) * setting.bytes
    shared = setting.devices > 1
    phases = {
        "generation": useful,
        "old_logprobs": setting.scored * forward,
        "update": setting.forwards * forward * setting.passes,
        "sync": weights / (hardware.link if shared else hardware.bandwidth / 2),
    }
    return {
        **{f"limit/{name}": seconds for name, seconds in phases.items()},
        "limit/step": sum(phases.values()),
        "lost/tail": last - full,
        "lost/waste": full - useful,
        "lost/recomputation": forward * setting.passes if setting.recompute else 0.0,
    }


def meter(limit: dict[str, float], seconds: dict[str, float], padding: float = 0.0) -> dict[str, float]:
    """`step_limit` with a step's measured seconds: limit/share, of the limit that was reached; lost/padding: seconds of the
    update on tokens that are padding, a share `padding` of those computed; lost/host: all the rest, in which kernels that are
    slower than the peak are too. The limit and what is lost add up to the step's seconds.

    seconds: measured, by the names of metrics.jsonl: step, sample, old_logprobs, update, sync.
    """
    whole = seconds["step"]
    lost = {"lost/padding": padding * (limit["limit/update"] + limit["lost/recomputation"]) / max(1e-9, 1 - padding)}
    known = limit["limit/step"] + sum(v for k, v in (limit | lost).items() if k.startswith("lost/"))
    return limit | lost | {"limit/share": limit["limit/step"] / max(whole, 1e-9), "lost/host": whole - known}


def sentence(history: Sequence[Mapping[str, float]]) -> str:
    """The meter of a run in one sentence; "" where no step trained. history: the lines of metrics.jsonl."""
    rows = [row for row in history if "speed/limit_share" in row]
    if not rows:
        return ""
    mean = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0] if key.startswith("time/")}
    lost = [(seconds, key.removeprefix("time/lost_")) for key, seconds in mean.items() if key.startswith("time/lost_")]
    shown = ", ".join(f"{cause} {s:.2g} s" for s, cause in sorted(lost, reverse=True) if s >= 0.01 * mean["time/step"])
    return (
        f"A step took {mean['time/step']:.2g} s, of which its own lengths need {mean['time/limit'] / mean['time/step']:.0%} at "
        f"the limit of this hardware; lost: {shown or 'nothing'} (docs/reading-metrics.md)."
    )
