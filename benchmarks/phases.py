"""What a CPU's phases should take, by a model of their kernels, beside what they take: python -m benchmarks.phases
[--quick] [--only NAME] [--json] [--results FILE]

Phases of a training step by the product's own code, in float32 on one thread: sampling with transformers, old log-probs, update
(loss, backward pass, AdamW), and, where vLLM is there, the push of weights to its engine. A phase is run once while its kernel
calls are counted; then, without looking at how long it takes, its seconds are predicted as the sum of

products    matrix products and attention: FLOP of each, over the rate that a product of these shapes reaches alone
memory      every other kernel: bytes read and written, over the rate of kernels of its kind at that size, alone: sums and
            products element by element; exp and its like; gathering of rows; copies
calls       kernel calls, views too, times the seconds a call costs the host: Python, transformers, autograd, dispatch
responses   responses, times what one costs the host outside of kernels

The last two are measured with a model of width 16, whose kernels do nearly nothing, in the same phase. No constant comes from
the phases that are checked. Where a constant is measured, operands rotate through as much memory as the phase touches, so that
they come from the same cache, or from memory.
Seconds are of the processor, the best of several. roofline: the limit that a run's meter shows (minirl/watch/limit.py), which
has products and weights alone, at this machine's peaks.
"""

import argparse
import importlib.util
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from transformers import Qwen3Config, Qwen3ForCausalLM

import train
from benchmarks import update
from benchmarks.common import finish, result_options, table, tokenizer_of
from minirl.config.command_line import load
from minirl.policy import plan
from minirl.policy.policy import Policy
from minirl.rollout.hf import TransformersEngine
from minirl.rollout.types import Batch, SamplingParams
from minirl.utils.distributed import Ranks
from minirl.watch import limit
from minirl.watch.meter import best_seconds, measured_hardware

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward")  # fmt: skip
KINDS = {
    "exp": ("exp", "silu", "silu_backward", "_softmax", "_log_softmax", "logsumexp", "sin", "cos", "cumsum", "searchsorted"),
    "rows": ("index_select", "index_add", "index_add_", "index", "index_put", "embedding", "embedding_dense_backward", "gather",
             "scatter_add", "repeat_interleave", "masked_fill", "where"),
    "copies": ("copy_",),  # whose targets are not memory that was just freed, as results of other kernels are
}  # fmt: skip
SIZES = (2**12, 2**15, 2**18, 2**21, 2**24)  # bytes of a kernel's tensors at which the constants are measured
MODELS = {"128 wide": (128, 4, 4, 32, 512), "512 wide": (512, 4, 8, 64, 1536), "1,024 wide": (1024, 2, 8, 128, 3072)}
WITHIN = 0.15  # what a prediction may be off
TINY = (16, 4, 2, 32, 16)
# prompts, samples, tokens of a response, tokens of a prompt
WORKS = {"8 x 8 x 16": (8, 8, 16, 8), "64 x 8 x 16": (64, 8, 16, 8), "2 x 8 x 128": (2, 8, 128, 32)}


def best(work: Callable[[], Any], seconds: float) -> float:
    """The shortest of as many calls as fit, processor seconds, after one that warms up."""
    work()
    return best_seconds(work, seconds)


class Counted(TorchDispatchMode):
    """Counts kernel calls. products: {(name, what it was called with): calls}, tensors by shape and stride; traffic:
    {(kind, bytes of the call): calls}; calls: all of them, views too."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.products: dict[Any, int] = defaultdict(int)
        self.traffic: dict[tuple[str, int], int] = defaultdict(int)
        self.memory: dict[int, int] = defaultdict(int)  # bytes at each address

    def __torch_dispatch__(self, kernel: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = kernel(*args, **(kwargs or {}))
        self.calls += 1
        for x in (x for x in tree_flatten((args, kwargs, out))[0] if isinstance(x, Tensor)):
            self.memory[x.data_ptr()] = max(self.memory[x.data_ptr()], x.numel() * x.element_size())
        schema, name = kernel._schema, kernel._schema.name.split("::")[1]
        if name in PRODUCTS:
            described = tree_map(lambda x: Shape(x) if isinstance(x, Tensor) else x, (args, kwargs or {}))
            self.products[(kernel, repr(described))] += 1
            self.examples[(kernel, repr(described))] = described
            return out
        if any(r.alias_info and not r.alias_info.is_write for r in schema.returns):
            return out  # a view
        written = [a for a, s in zip(args, schema.arguments, strict=False) if s.alias_info and s.alias_info.is_write]
        size = sum(
            x.numel() * x.element_size() for x in tree_flatten((args, kwargs, written or out))[0] if isinstance(x, Tensor)
        )
        kind = next((k for k, names in KINDS.items() if name in names), "elements")
        self.traffic[(kind, size)] += 1
        return out

    @property
    def footprint(self) -> int:
        """Bytes of all tensors, memory that was used again counted once, as a power of two from 2^20 to 2^28."""
        return 2 ** int(np.clip(round(np.log2(sum(self.memory.values()))), 20, 28))

    def kernel_seconds(self) -> tuple[float, float]:
        """(products, memory), see above."""
        memory = sum(n * traffic_seconds(*key, self.footprint) for key, n in self.traffic.items())
        return interpolated(self.products, self.footprint), memory

    examples: ClassVar[dict[Any, Any]] = {}


class Shape:
    """A tensor's shape, strides and type."""

    def __init__(self, tensor: Tensor) -> None:
        self.size, self.stride, self.dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype

    def __repr__(self) -> str:
        return f"{self.size}{self.stride}{self.dtype}"

    def made(self) -> Tensor:
        if self.dtype == torch.bool:
            return torch.ones(self.size, dtype=torch.bool)
        if not self.dtype.is_floating_point:
            return torch.zeros(self.size, dtype=self.dtype)
        room = 1 + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        return (torch.rand(max(1, room)) / 8).to(self.dtype).as_strided(self.size, self.stride)


def flops_of(name: str, described: Any) -> float:
    """FLOP of a product; of attention those of a square without mask."""
    sizes = [x.size for x in tree_flatten(described)[0] if isinstance(x, Shape)]
    if name in ("mm", "bmm"):
        return 2 * float(np.prod(sizes[0])) * sizes[1][-1]
    if name in ("addmm", "baddbmm"):
        return 2 * float(np.prod(sizes[1])) * sizes[2][-1]
    start = 1 if name.endswith("backward") else 0
    (rows, heads, queries, width), keys = sizes[start], sizes[start + 1][2]
    return (10 if start else 4) * float(rows * heads * queries * keys * width)


@cache
def product_seconds(kernel: Any, key: str, footprint: int) -> float:
    """Of one product alone."""
    described = Counted.examples[(kernel, key)]
    tensors = [x for x in tree_flatten(described)[0] if isinstance(x, Shape)]
    size = sum(4 * int(np.prod(x.size)) for x in tensors)
    copies = [
        tree_map(lambda x: x.made() if isinstance(x, Shape) else x, described)
        for _ in range(max(1, min(64, footprint // size)))
    ]

    def run() -> None:
        for args, kwargs in copies:
            kernel(*args, **kwargs)

    with torch.no_grad():
        return best(run, 0.03) / len(copies)


@cache
def traffic_curve(kind: str, footprint: int) -> tuple[Sequence[float], Sequence[float]]:
    """(bytes, seconds) of a call of that kind at each of SIZES."""
    found = []
    for size in SIZES:
        rows, copies = max(1, size // 3 // 4 // 128), max(1, min(256, footprint // size))
        inputs = [(torch.rand(rows, 128), torch.rand(rows, 128)) for _ in range(copies)]
        index = torch.randperm(rows)

        def run(inputs: Any = inputs, index: Tensor = index) -> None:
            for a, b in inputs:
                if kind == "elements":
                    a * b
                elif kind == "exp":
                    torch.exp(a)
                elif kind == "rows":
                    a.index_select(0, index)
                else:
                    b.copy_(a)

        moved = 4 * 128 * rows * (2 if kind in ("exp", "rows") else 3)  # as `Counted` counts them
        found.append((moved, best(run, 0.05) / copies))
    call = best(lambda: [EMPTY * EMPTY for _ in range(100)], 0.02) / 100  # the host's part, counted as a call
    return [s for s, _ in found], [max(0.0, t - call) for _, t in found]


EMPTY = torch.zeros(1)


def traffic_seconds(kind: str, size: float, footprint: int) -> float:
    sizes, seconds = traffic_curve(kind, footprint)
    if size > sizes[-1]:
        return seconds[-1] * size / sizes[-1]
    return float(np.interp(size, [0, *sizes], [0, *seconds]))


def interpolated(products: dict[Any, int], footprint: int) -> float:
    """Seconds of all products: of a kernel that meets many shapes eight are measured, the others interpolated by their FLOP."""
    total = 0.0
    groups: dict[Any, list[Any]] = defaultdict(list)
    for (kernel, key), calls in products.items():
        described = Counted.examples[(kernel, key)]
        name = kernel._schema.name.split("::")[1]
        varying = len(tree_flatten(described)[0][0].size) > 2
        groups[(kernel, "" if varying else key)].append((flops_of(name, described), calls, key))
    for (kernel, _), members in groups.items():
        members.sort()
        chosen = sorted({round(i) for i in np.linspace(0, len(members) - 1, 8)})
        known = [(members[i][0], product_seconds(kernel, members[i][2], footprint)) for i in chosen]
        total += sum(calls * float(np.interp(flops, *zip(*known, strict=True))) for flops, calls, _ in members)
    return total


def policy_of(folder: Path, shape: tuple[int, ...], work: tuple[int, ...]) -> Policy:
    hidden, layers, heads, head_dim, mlp = shape
    tokenizer = tokenizer_of(None)
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads // 2,
        head_dim=head_dim, intermediate_size=mlp, vocab_size=len(tokenizer), tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    options = [
        f"--model.path={folder}", "--algorithm.estimator=grpo", f"--rollout.prompts={work[0]}",
        f"--algorithm.mini_batch_prompts={work[0]}", "--optimizer.micro_batch_tokens=2048",
    ]  # fmt: skip
    return Policy(load(options), Ranks(), len(tokenizer))


def phases(policy: Policy, work: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """The phases of a step of that work, each a call."""
    prompts, samples, longest, prompt = work
    vocabulary = policy.vocabulary
    groups = update.rollouts({"tokens": prompts * samples * longest, "length": longest, "tail": False}, vocabulary)[:prompts]
    for rollout in (r for group in groups for r in group):
        rollout.prompt_ids = rollout.prompt_ids[:prompt]
    flat, batch = [r for group in groups for r in group], Batch(groups, [], groups)
    engine = TransformersEngine(policy.model, [], vocabulary, 512, policy.autocast)

    def sample() -> None:
        list(engine.generate([g[0].prompt_ids for g in groups], SamplingParams(samples, 1.0, longest), list(range(prompts))))

    made = {
        "sampling": sample,
        "old log-probs": lambda: policy.compute_logprobs(flat, old=True),
        "update": lambda: train.update(policy, batch, 1e-6, policy.config),
    }
    if importlib.util.find_spec("vllm"):
        made["push"] = partial(push, policy, prompt)
    return made


def push(policy: Policy, prompt: int) -> None:
    """The policy's weights to vLLM's engine, which is built at the first call."""
    if not hasattr(policy, "vllm"):
        from minirl.rollout.vllm import VllmEngine

        policy.vllm = VllmEngine(policy.config, policy, [], prompt)
    policy.vllm.sync(policy)


def roofline(policy: Policy, work: tuple[int, ...], here: limit.Hardware) -> dict[str, float]:
    """Seconds of each phase at the limit that a run's meter shows."""
    prompts, samples, longest, prompt = work
    groups = [limit.Group(prompt, [longest] * samples)] * prompts
    found = limit.step_limit(plan.sizes_of(policy.model), here, groups, groups, limit.Setting(1, 512, 4, scored=1))
    names = {"sampling": "generation", "old log-probs": "old_logprobs", "update": "update", "push": "sync"}
    return {phase: found[f"limit/{name}"] for phase, name in names.items()}


def counted(phase: Callable[[], Any]) -> Counted:
    with Counted() as counter:
        phase()
    return counter


@cache
def host(phase: str) -> tuple[float, float]:
    """(seconds a call, seconds a response) outside of kernels: two numbers of responses of the model of width 16."""
    rows = []
    for work in ((2, 2, 8, 8), (32, 8, 8, 8)):
        with tempfile.TemporaryDirectory() as folder:
            policy = policy_of(Path(folder), TINY, work)
            run = phases(policy, work)[phase]
            run()
            counter = counted(run)
            kernels = sum(counter.kernel_seconds())
            rows.append((counter.calls, work[0] * work[1], best(run, 1.0) - kernels))
    (calls, few, short), (more, many, longer) = rows
    a_response = max(0.0, (longer / more - short / calls) / (many / more - few / calls))
    return (short - a_response * few) / calls, a_response


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """How many of the predictions are within WITHIN of what was measured."""
    right = sum(abs(row["predicted / measured"] - 1) <= WITHIN for row in rows)
    return f"{right} of {len(rows)} rows within {WITHIN:.0%}"


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest model and work only")
    parser.add_argument("--only", default="", help="only rows whose name has this in it")
    result_options(parser)
    a = parser.parse_args()
    torch.set_num_threads(1)
    here, rows = measured_hardware(), list[dict[str, Any]]()
    for (wide, shape), (name, work) in ((m, w) for m in MODELS.items() for w in WORKS.items()):
        if a.only not in f"{wide} {name}" or (a.quick and rows):
            continue
        with tempfile.TemporaryDirectory() as folder:
            policy = policy_of(Path(folder), shape, work)
            for phase, run in phases(policy, work).items():
                if phase == "push" and name != next(iter(WORKS)):
                    continue  # which does not depend on the work
                run()
                counter = counted(run)
                products, memory = counter.kernel_seconds()
                call, response = host(phase)
                calls, responses = counter.calls * call, work[0] * work[1] * response
                predicted = products + memory + calls + responses
                measured = best(run, 2.0)
                rows.append({
                    "model": wide, "work": name, "phase": phase, "measured ms": 1e3 * measured, "predicted ms": 1e3 * predicted,
                    "predicted / measured": predicted / measured, "products": 1e3 * products, "memory": 1e3 * memory,
                    "calls": 1e3 * calls, "responses": 1e3 * responses,
                    "roofline / measured": roofline(policy, work, here)[phase] / measured,
                })  # fmt: skip
                print(table(rows[-1:]), flush=True)
    if not a.json:
        print(table(rows))
        print(verdict(rows))
    finish("phases", rows, a.results, a.json)


if __name__ == "__main__":
    main()
