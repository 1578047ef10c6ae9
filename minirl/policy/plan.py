"""What a run will need, from its config and the model's config alone: `train.py --dry-run`. Pure arithmetic, no weights.

Memory is in GiB a GPU. Weights, optimizer, gradients and the reduce bucket are exact counts; gathered weights are what
DeepSpeed allows itself at most; activations are what autograd keeps of Llama- and Qwen-like layers, logits an estimate of the
right size. Not counted: the CUDA context, NCCL's buffers, gaps between allocations. An optimizer that the launcher offloads is
counted as if it were not.
Constants: bfloat16 2 bytes, float32 4; AdamW two float32 moments (Rajbhandari et al. 2020, "ZeRO").
"""

from dataclasses import dataclass
from math import ceil
from typing import Any

from minirl.config.options import Config

GIB = 2**30
# DeepSpeed's defaults, which configs/accelerate/ leaves: elements of reduce_bucket_size and stage3_max_live_parameters.
REDUCE_BUCKET, LIVE_PARAMETERS = 500_000_000, 1_000_000_000


@dataclass(frozen=True)
class Model:
    """The sizes that matter, read off a transformers config. parameters: all of them, tied ones once; mlp: width of a layer's
    MLP; head_norms: whether queries and keys are normalised."""

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    head_norms: bool


def measure(config: Any) -> Model:
    """The sizes of the model that a transformers config describes, by building it without memory."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    parameters = sum(p.numel() for p in model.parameters())
    mlp = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    head_norms = any("q_norm" in name for name, _ in model.named_parameters())
    sizes = (config.num_hidden_layers, config.hidden_size, config.vocab_size, heads, kv_heads, head_dim, mlp, head_norms)
    return Model(parameters, *sizes)


def kept_by_layer(model: Model, half: bool, autocast: bool) -> int:
    """Bytes a token that the backward pass of one layer needs on a GPU: what its norms and products read, queries, keys, values
    and result of the attention, gate, its activation, up and their product of the MLP.

    half: computing in bfloat16; autocast: over float32 weights, when each product keeps a cast of its own.
    """
    c, norm = 2 if half else 4, 4 if autocast or not half else 2
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    normed = norm * (2 * model.hidden + model.head_norms * (queries + keys))
    read = c * model.hidden * (5 if autocast else 2)
    return normed + read + c * (2 * queries + 2 * keys) + 4 * c * model.mlp


def run_plan(config: Config, train_size: int, test_size: int, ranks: int) -> list[str]:
    """Lines with the sizes that follow from the config, for people."""
    r, a, run = config.rollout, config.algorithm, config.run
    rollouts = r.prompts * r.group_size
    steps = r.prompts // a.mini_batch_prompts * a.epochs
    drawn = r.draws(r.prompts)
    total = run.steps if run.epochs is None else min(run.steps, ceil(run.epochs * train_size / drawn))
    return [
        f"estimator {a.estimator}: clip -{a.clip_low:g}/+{a.clip_high:g}, {a.loss_agg_mode}, "
        f"dynamic sampling {'on' if a.dynamic_sampling else 'off'}",
        f"data {train_size:,} problems to train on, {test_size:,} held out; {ranks} rank{'s' if ranks > 1 else ''}",
        f"one step {r.prompts} prompts x {r.group_size} samples = {rollouts:,} rollouts of at most {r.max_response_tokens:,} "
        f"tokens ({rollouts * r.max_response_tokens:,}), {steps} optimizer step{'s' if steps > 1 else ''} of "
        f"{a.mini_batch_prompts * r.group_size:,} rollouts",
        f"run {total:,} steps = {total * rollouts:,} rollouts, {total * steps:,} optimizer steps, "
        f"{total * drawn / train_size:.2f} passes over the data (with dynamic sampling more passes, or fewer steps "
        "where run.epochs limits them)",
    ]


def memory(config: Config, model: Model, longest: int) -> dict[str, float]:
    """GiB a GPU by part; longest: tokens of the longest prompt and response. "engine" is what vLLM takes while it samples.

    ZeRO shards the optimizer and master weights from stage 1, gradients from 2, weights from 3. From stage 1 on gradients go
    through a bucket of fixed size; in stage 3 whole weights are gathered around their use, some ahead of it.
    """
    p, n, z, gpus = config.plan, model.parameters, config.plan.zero, config.plan.gpus
    half = config.model.dtype == "bfloat16"
    compute = 2 if half and z is not None else 4
    tokens = max(config.optimizer.micro_batch_tokens, longest)

    def shard(stage: int) -> int:
        return gpus if z is not None and z >= stage else 1

    autocast = half and z is None
    layer = kept_by_layer(model, half, autocast)
    states = model.layers * model.hidden * (2 if half and not autocast else 4)  # of recomputed layers only their inputs
    activations = tokens * (states + layer if config.model.gradient_checkpointing else model.layers * layer)
    logits = 3 * 4 * min(tokens * model.vocabulary, 2**26)
    parts = {
        "weights": n * compute / shard(3),
        "master weights": n * 4 / shard(1) if compute == 2 else 0,
        "optimizer": n * 8 / shard(1),
        "gradients": n * (4 if z is not None and z >= 2 else compute) / shard(2),  # summed in float32 there
        "reduce bucket": REDUCE_BUCKET * compute if z is not None and z >= 1 else 0,
        "gathered weights": min(n, LIVE_PARAMETERS) * compute if z == 3 else 0,
        "reference": n * (2 if half else 4) if config.needs_reference else 0,
        "activations": activations + (2 * n if autocast else 0),  # with the weights' casts
        "logits": logits,
    }
    result = {name: value / GIB for name, value in parts.items()}
    v = config.rollout.vllm
    if config.rollout.engine == "vllm":
        result["engine"] = v.gpu_memory_utilization * p.gpu_gib
        result["engine weights"] = n * (2 if half else 4) / v.tensor_parallel / GIB
        result["KV cache"] = result["engine"] - result["engine weights"]
    return result


def kv_tokens(parts: dict[str, float], config: Config, model: Model) -> int:
    """Tokens that the engine's KV cache holds."""
    a_token = 2 * model.layers * model.kv_heads * model.head_dim * (2 if config.model.dtype == "bfloat16" else 4)
    return int(parts["KV cache"] * GIB * config.rollout.vllm.tensor_parallel / a_token)


def report(config: Config, model: Model) -> list[str]:
    """Lines for people, with a warning where it cannot fit."""
    longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    parts = memory(config, model, longest)
    p = config.plan
    states = sum(parts[k] for k in ("weights", "master weights", "optimizer", "gradients", "reduce bucket", "reference"))
    training = states + parts["gathered weights"] + parts["activations"] + parts["logits"]
    engine = parts.get("engine", 0.0)
    zero = "no ZeRO" if p.zero is None else f"ZeRO-{p.zero}"
    shown = ", ".join(f"{name} {value:.1f}" for name, value in parts.items() if value)
    lines = [
        f"model {model.parameters / 1e9:.3f}B parameters, {model.layers} layers of {model.hidden}, vocabulary "
        f"{model.vocabulary:,}",
        f"memory, GiB a GPU, {p.gpus} GPUs of {p.gpu_gib:g} GiB with {zero}: {shown}",
    ]
    asleep = engine and config.rollout.vllm.sleep
    peak = max(training, states + engine) if asleep else training + engine
    sampling = f", sampling {states + engine:.1f}" if asleep else f", engine {engine:.1f}"
    lines.append(f"peak {peak:.1f} GiB without CUDA's and NCCL's own: updating {training:.1f}{sampling}")
    if engine:
        held = kv_tokens(parts, config, model)
        lines.append(
            f"KV cache {max(0, held):,} tokens: {max(0, held) // longest:,} of the longest sequences ({longest:,}) at once"
        )
        if held < longest:
            lines.append(
                f"WARNING: the KV cache cannot hold one sequence of {longest:,} tokens: raise "
                "rollout.vllm.gpu_memory_utilization"
            )
    if peak > 0.95 * p.gpu_gib:
        lines.append(
            f"WARNING: {peak:.1f} GiB do not fit a GPU of {p.gpu_gib:g} GiB: more GPUs, ZeRO-3, a smaller "
            "optimizer.micro_batch_tokens, model.gradient_checkpointing=true, or a smaller rollout.vllm.gpu_memory_utilization"
        )
    return lines
