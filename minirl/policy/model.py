"""Loads the model, and changes how it computes, for speed or exactness; its weights stay those of a Hugging Face model."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer, Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from minirl.config.options import EMBEDDED, Config, ModelConfig, PlanConfig
from minirl.data.prompts import Prompt
from minirl.policy import plan
from minirl.policy.attention import packed_attention
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError

transformers_logging.disable_progress_bar()  # it would print over the run's own


def model_source(config: ModelConfig) -> str:
    """The folder or Hub name to load from."""
    from minirl.tiny import make as tiny

    return str(tiny.FOLDER) if config.path == EMBEDDED else config.path


def load(kind: Any, config: ModelConfig, **arguments: Any) -> Any:
    """`kind.from_pretrained` of the configured model. ConfigError when it is not there, cannot be read, or lacks weights."""
    source, weights = model_source(config), kind is AutoModelForCausalLM
    if weights:
        arguments["output_loading_info"] = True
    try:
        loaded = kind.from_pretrained(source, revision=config.revision, trust_remote_code=config.trust_remote_code, **arguments)
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        hint = (
            "config.json, weights and tokenizer are whole, and model.attention known"
            if Path(source).exists()
            else "the path or Hub name is right"
        )
        if "trust_remote_code" in str(error):
            hint = "its code can be trusted, then set model.trust_remote_code=true"
        raise ConfigError(
            f"cannot load model.path={config.path!r}: {' '.join(str(error).split())[:300]}; check that {hint}"
        ) from None
    if not weights:
        return loaded
    model, info = loaded
    if missing := sorted(info["missing_keys"]):  # transformers gives them random values and goes on
        raise ConfigError(
            f"model.path={config.path!r} lacks {len(missing)} of the model's weights, first {missing[0]}: its files are cut "
            "or of another kind of model, such as an adapter that was not merged"
        )
    return model


def check_ids(config: ModelConfig, prompts: Sequence[Prompt]) -> None:
    """ConfigError for a prompt with a token that the model has no embedding for. Reads the model's config only."""
    rows = getattr(model_config(config).get_text_config(), "vocab_size", math.inf)
    for prompt in prompts:
        if (highest := max(prompt.ids)) >= rows:
            raise ConfigError(
                f"the tokenizer of model.path={config.path!r} makes token {highest} of problem {prompt.problem.id}, but the "
                f"model has embeddings for {rows} tokens only: take the model's own tokenizer, or resize its embeddings"
            )


def load_tokenizer(config: ModelConfig) -> Any:
    """The model's tokenizer."""
    return load(AutoTokenizer, config)


def model_config(config: ModelConfig) -> Any:
    """The model's own config; no weights are read."""
    return load(AutoConfig, config)


def check_context(config: Config, longest_prompt: int) -> None:
    """ConfigError when prompt and response do not fit the model's positions. Reads the model's config only."""
    response = max(config.rollout.max_response_tokens, config.eval.max_response_tokens or 0)
    limit = getattr(model_config(config.model), "max_position_embeddings", None)
    if limit is not None and longest_prompt + response > limit:
        raise ConfigError(
            f"prompts of up to {longest_prompt} tokens and responses of {response} exceed the model's {limit} positions: lower "
            "data.max_prompt_tokens or rollout.max_response_tokens (and eval.max_response_tokens)"
        )


def model_plan(config: Config, ranks: Ranks | None = None) -> list[str]:
    """Size and memory of the model, for people, from its config alone: on the GPUs of `ranks`, else on those of config.plan."""
    if ranks is not None and ranks.gpu_gib is not None:
        config = replace(config, plan=PlanConfig(ranks.size, ranks.gpu_gib, ranks.zero))
    return plan.report(config, plan.measure(model_config(config.model)))


def load_model(config: ModelConfig) -> Any:
    """The causal language model with float32 weights."""
    packed = config.attention == "packed"
    model = load(AutoModelForCausalLM, config, dtype=torch.float32, attn_implementation="sdpa" if packed else config.attention)
    if packed:
        model.set_attn_implementation("packed")  # leaves a model as it is that does not know the interface
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, name, None) not in (None, 1, 1.0):
            raise ConfigError(
                f"model.path={config.path!r} transforms its logits ({name}), which the log-prob head does not know yet"
            )
    if type(output := model.get_output_embeddings()) is not torch.nn.Linear:
        raise ConfigError(f"model.path={config.path!r} has an output layer that is no linear one: {type(output).__name__}")
    return with_fused_norms(with_exact_frequencies(model))


def with_exact_frequencies(model: Any) -> Any:
    """The model with rotary frequencies in float32, as sampling engines have them. Made under ZeRO-3, or cast with the model,
    they are rounded to bfloat16, and angles with them, the more the later the position."""
    for module in model.modules():
        if any("inv_freq" in name for name, _ in module.named_buffers(recurse=False)):
            for name, buffer in type(module)(module.config).named_buffers():
                setattr(module, name, buffer.to(getattr(module, name).device))
    return model


def with_fused_norms(model: Any) -> Any:
    """The model with RMS norms by torch's function, one kernel on a GPU, wherever a module computes just that."""
    known: dict[type, bool] = {}
    for module in model.modules():
        if hasattr(module, "variance_epsilon") and [name for name, _ in module.named_parameters()] == ["weight"]:
            if type(module) not in known:
                known[type(module)] = is_rms_norm(module)
            if known[type(module)]:
                module.forward = MethodType(fused_norm, module)
    return model


def is_rms_norm(module: Any) -> bool:
    """Whether it computes x / sqrt(mean(x^2) + variance_epsilon) * weight (Zhang and Sennrich 2019), found by trying; one that
    takes a gate besides is another."""
    if len(inspect.signature(module.forward).parameters) != 1:
        return False
    size = getattr(module.weight, "ds_shape", module.weight.shape)[-1]
    x, weight = torch.linspace(-1e-3, 2e-3, size), torch.linspace(0.5, 1.5, size)  # small, so that the epsilon shows
    with torch.no_grad():
        own = torch.func.functional_call(module, {"weight": weight}, (x,))
    return own.shape == x.shape and torch.allclose(own, rms_norm(x, x.shape, weight, module.variance_epsilon))


def fused_norm(module: Any, x: Tensor) -> Tensor:
    """The forward pass of an RMS norm, in the precision of its weight: torch's kernel wants both alike."""
    return rms_norm(x.to(module.weight.dtype), module.weight.shape, module.weight, module.variance_epsilon)


def compile_layers(model: Any) -> None:
    """Compiles the decoder's layers for passes without a cache; the attention itself, and sampling, stay as they are.

    The first pass with gradient and the first without take some 20 seconds longer on a CPU, where a C++ compiler is needed.
    ConfigError for a model without layers that transformers could recompute. A copy of the model would use this one's weights.
    """
    # Layers share one program for each kind of mask, gradient and layer; else one too many would go uncompiled, unseen.
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    # The attention loops over runs of segments, which are others in each micro-batch: traced, each number would be a program.
    AttentionInterface.register("packed", torch.compiler.disable(packed_attention))
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]  # what is repeated
    if not layers:
        raise ConfigError(f"model.compile_layers=true finds no layers in {type(model).__name__}: set it to false")
    for layer in layers:
        layer.forward = compiled(layer.forward)  # type: ignore[method-assign]


def compiled(own: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's forward pass, compiled where there is no cache."""
    fast = torch.compile(own, dynamic=True)

    def forward(*arguments: Any, **more: Any) -> Any:
        # By type, since transformers 5.24 gave it another name.
        cached = any(isinstance(value, Cache) for value in (*arguments, *more.values()))
        return (own if cached else fast)(*arguments, **more)

    return forward
