"""Sizes, steps and memory of a run, from its config and the model's config: `train.py --dry-run`. No weights are loaded.

Memory is in GiB for each GPU. Weights, optimizer (AdamW's two float32 moments: Rajbhandari et al. 2020, "ZeRO"), gradients and
the reduce bucket are exact; gathered weights are DeepSpeed's maximum; activations are what autograd keeps of Llama- and
Qwen-like layers; logits are an estimate. Not counted: the CUDA context, NCCL's buffers, fragmentation. Offloading the optimizer
is not taken into account.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from minirl.config.options import Config, LoraConfig
from minirl.policy import lora
from minirl.policy.logprobs import LOGITS_CHUNK

GIB = 2**30
# DeepSpeed's defaults, kept by configs/accelerate/: elements of reduce_bucket_size and stage3_max_live_parameters.
REDUCE_BUCKET, LIVE_PARAMETERS = 500_000_000, 1_000_000_000
# Bytes of AdamW's two moments: float32, or codes of a byte with a float32 scale for each 256 of them.
MOMENTS_BYTES = {"adamw": 8, "adamw_8bit": 2 * (1 + 4 / 256)}
# Token budgets of a micro-batch that `fitted` tries, and the share of a GPU's memory that it fills: the rest is for the CUDA
# context, NCCL and fragmentation.
BUDGETS, ROOM = (65_536, 49_152, 32_768, 24_576, 16_384, 12_288, 8192, 4096), 0.9


@dataclass(frozen=True)
class Model:
    """Sizes of a model. parameters: tied ones count once, adapters aside; mlp: width of an MLP; head_norms: whether queries and
    keys are normalised; adapters: parameters of LoRA adapters, 0 where all parameters are trained; adapter_width: the sum of
    their ranks."""

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    head_norms: bool
    adapters: int = 0
    adapter_width: int = 0


def measure(config: Any, adapters: LoraConfig | None = None) -> Model:
    """The sizes of the model of a transformers config, which is built on the meta device. ConfigError for adapters that it
    cannot have."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    sizes = sizes_of(model)
    if adapters is None or not adapters.r:
        return sizes
    layers = [model.get_submodule(name) for name in lora.targets(model, adapters)]
    trained = sum(adapters.r * (layer.in_features + layer.out_features) for layer in layers)
    return replace(sizes, adapters=trained, adapter_width=adapters.r * len(layers))


def sizes_of(model: Any) -> Model:
    """The sizes of a transformers model, sharded or not, without those of its adapters."""
    config = model.config
    heads = config.num_attention_heads
    return Model(
        parameters=sum(getattr(w.base, "ds_numel", w.base.numel()) for _, w in lora.weights_of(model)),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        mlp=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        head_norms=any("q_norm" in name for name, _ in model.named_parameters()),
    )


def kept_by_layer(model: Model, half: bool, autocast: bool) -> int:
    """Bytes for each token that autograd keeps of one layer on a GPU: inputs of its norms and projections; queries, keys,
    values and output of the attention; the MLP's gate, its activation, up and their product.

    half: computing in bfloat16; autocast: with float32 weights, where each projection keeps its own cast of its input. With
    adapters, what is between A and B too; A keeps the input of its layer, as a trained layer does.
    """
    c, norm = 2 if half else 4, 4 if autocast or not half else 2
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    normed = norm * (2 * model.hidden + model.head_norms * (queries + keys))
    read = c * model.hidden * (5 if autocast else 2)
    return normed + read + c * (2 * queries + 2 * keys) + 4 * c * model.mlp + c * model.adapter_width // model.layers


def run_plan(config: Config, train_size: int, test_size: int, ranks: int) -> list[str]:
    """Lines on estimator, data, steps and rollouts of a run. train_size: 0 for data that are not known."""
    r, a, run = config.rollout, config.algorithm, config.run
    rollouts = r.prompts * r.group_size
    steps = r.prompts // a.mini_batch_prompts * a.epochs
    drawn = r.draws(r.prompts)
    total = run.steps if run.epochs is None or not train_size else min(run.steps, ceil(run.epochs * train_size / drawn))
    data, passes = "data not known", ""
    if train_size:
        data = f"data {train_size:,} problems to train on, {test_size:,} held out"
        passes = (
            f", {total * drawn / train_size:.2f} passes over the data (with dynamic sampling more passes, or fewer steps where "
            "run.epochs limits them)"
        )
    return [
        f"estimator {a.estimator}: clip -{a.clip_low:g}/+{a.clip_high:g}, {a.loss_agg_mode}, "
        f"dynamic sampling {'on' if a.dynamic_sampling else 'off'}",
        f"{data}; {ranks} rank{'s' if ranks > 1 else ''}",
        f"one step {r.prompts} prompts x {r.group_size} samples = {rollouts:,} rollouts of at most {r.max_response_tokens:,} "
        f"tokens ({rollouts * r.max_response_tokens:,}), {steps} optimizer step{'s' if steps > 1 else ''} of "
        f"{a.mini_batch_prompts * r.group_size:,} rollouts",
        f"run {total:,} steps = {total * rollouts:,} rollouts, {total * steps:,} optimizer steps{passes}",
    ]


def memory(config: Config, model: Model, longest: int) -> dict[str, float]:
    """GiB for each GPU, by part. longest: tokens of the longest prompt and response; "engine": vLLM's while it samples. With
    adapters weights are frozen, in the compute precision, and whatever training needs is theirs only.

    ZeRO shards optimizer and master weights from stage 1, gradients from 2, weights in 3. From stage 1 gradients are reduced in
    a bucket of fixed size; in stage 3 whole weights are gathered for their use, some of them ahead.
    """
    n, stage, v = model.parameters, -1 if config.plan.zero is None else config.plan.zero, config.rollout.vllm
    half, deepspeed = config.model.dtype == "bfloat16", stage >= 0
    trained = model.adapters or n
    autocast = half and not deepspeed and trained == n
    compute = 4 if autocast or not half else 2  # bytes a weight
    copy = 2 if half and deepspeed else 4  # bytes a trained weight, besides its float32 master
    tokens = max(config.optimizer.micro_batch_tokens or BUDGETS[0], longest)

    def sharded(size: float, least: int) -> float:
        return size / (config.plan.gpus if stage >= least else 1)

    layer = kept_by_layer(model, half, autocast)
    layers = model.layers * (model.hidden * compute if config.model.gradient_checkpointing else layer)
    recomputed = layer if config.model.gradient_checkpointing else 0
    parts = {
        "weights": sharded(n * compute, 3),
        "adapters": sharded(model.adapters * copy, 3),
        "master weights": sharded(trained * 4, 1) if copy == 2 else 0,
        "optimizer": sharded(trained * MOMENTS_BYTES[config.optimizer.name], 1),
        "gradients": sharded(trained * (4 if stage >= 2 else copy), 2),  # summed in float32 there
        "reduce bucket": REDUCE_BUCKET * copy * (2 if stage == 2 else 1) if stage >= 1 else 0,  # two that overlap
        "gathered weights": min(n, LIVE_PARAMETERS) * compute if stage == 3 else 0,
        "reference": n * (2 if half else 4) if config.needs_reference and not model.adapters else 0,
        "activations": tokens * (layers + recomputed) + (2 * trained if half and not deepspeed else 0),  # with autocast's casts
        "logits": 3 * 4 * min(tokens * model.vocabulary, LOGITS_CHUNK["cuda"]),
    }
    result = {name: size / GIB for name, size in parts.items()}
    if config.rollout.engine == "vllm":
        result["engine"] = v.gpu_memory_utilization * config.plan.gpu_gib
        result["engine weights"] = n * (2 if half else 4) / v.tensor_parallel / GIB
        result["KV cache"] = result["engine"] - result["engine weights"]
    return result


def peak(parts: dict[str, float], config: Config) -> tuple[float, float, float]:
    """(GiB while updating, while sampling, the most at any time) of the parts of `memory`. An engine that sleeps gives its
    memory back while updating."""
    engine = parts.get("engine", 0.0)
    updating = sum(parts.values()) - sum(parts.get(name, 0.0) for name in ("engine", "engine weights", "KV cache"))
    sampling = updating - sum(parts[name] for name in ("gathered weights", "activations", "logits")) + engine
    asleep = engine and config.rollout.vllm.sleep
    return updating, sampling, max(updating, sampling) if asleep else updating + engine


def fitted(config: Config, model: Model | None) -> Config:
    """`config` with a gradient_checkpointing and a micro_batch_tokens that are null set by the memory of config.plan's GPUs:
    the most tokens that fit without recomputing, which costs a quarter of the update; where even the longest sequence does not
    fit, the most with it. model: None on a CPU, where nothing is recomputed and budgets are small."""
    again, budget = config.model.gradient_checkpointing, config.optimizer.micro_batch_tokens
    if again is not None and budget is not None:
        return config

    def chosen(recompute: bool, tokens: int) -> Config:
        return replace(
            config,
            model=replace(config.model, gradient_checkpointing=recompute),
            optimizer=replace(config.optimizer, micro_batch_tokens=tokens),
        )

    if model is None:
        return chosen(bool(again), budget or 16_384)
    longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    budgets = (budget,) if budget is not None else tuple(max(b, longest) for b in BUDGETS)
    tries = [chosen(way, tokens) for way in ((False, True) if again is None else (again,)) for tokens in budgets]

    def need(c: Config) -> float:
        updating, sampling, most = peak(memory(c, model, longest), c)
        return updating if most == max(updating, sampling) else most  # what sampling needs, this choice does not change

    return next((c for c in tries if need(c) <= ROOM * config.plan.gpu_gib), tries[-1])


def kv_tokens(parts: dict[str, float], config: Config, model: Model) -> int:
    """Capacity of the engine's KV cache, in tokens."""
    token_bytes = 2 * model.layers * model.kv_heads * model.head_dim * (2 if config.model.dtype == "bfloat16" else 4)
    return max(0, int(parts["KV cache"] * GIB * config.rollout.vllm.tensor_parallel / token_bytes))


def report(config: Config, model: Model) -> list[str]:
    """Lines on the model, its memory and the KV cache, with warnings where memory does not suffice."""
    longest, p = config.data.max_prompt_tokens + config.rollout.max_response_tokens, config.plan
    asked, config = config, fitted(config, model)
    parts = memory(config, model, longest)
    engine = parts.get("engine", 0.0)
    asleep = engine and config.rollout.vllm.sleep
    updating, sampling, most = peak(parts, config)
    shown = ", ".join(f"{name} {value:.1f}" for name, value in parts.items() if value)
    lines = [
        f"model {model.parameters / 1e9:.3f}B parameters, {model.layers} layers of {model.hidden}, vocabulary "
        f"{model.vocabulary:,}" + (f"; trained {model.adapters / 1e6:.1f}M in adapters" if model.adapters else ""),
        f"memory, GiB a GPU, {p.gpus} GPUs of {p.gpu_gib:g} GiB with {'no ZeRO' if p.zero is None else f'ZeRO-{p.zero}'}: "
        f"{shown}",
        f"peak {most:.1f} GiB without CUDA's and NCCL's own: updating {updating:.1f}, "
        f"{f'sampling {sampling:.1f}' if asleep else f'engine {engine:.1f}'}",
    ]
    if engine:
        held = kv_tokens(parts, config, model)
        lines.append(f"KV cache {held:,} tokens: {held // longest:,} of the longest sequences ({longest:,}) at once")
        if held < longest:
            lines.append(
                f"WARNING: the KV cache cannot hold one sequence of {longest:,} tokens: raise "
                "rollout.vllm.gpu_memory_utilization"
            )
    if asked is not config:
        lines.append(
            f"chosen by memory: micro-batches of {config.optimizer.micro_batch_tokens:,} tokens, activations "
            f"{'recomputed' if config.model.gradient_checkpointing else 'kept'}"
        )
    if p.zero is not None and config.optimizer.name == "adamw_8bit":
        lines.append(
            "WARNING: optimizer.name=adamw_8bit does not work under DeepSpeed: set plan.zero=null, and launch without it"
        )
    if most > 0.95 * p.gpu_gib:
        lines.append(
            f"WARNING: {most:.1f} GiB do not fit a GPU of {p.gpu_gib:g} GiB: more GPUs, ZeRO-3, a smaller "
            "optimizer.micro_batch_tokens, model.gradient_checkpointing=true, adapters (model.lora.r), or a smaller "
            "rollout.vllm.gpu_memory_utilization"
        )
    return lines
