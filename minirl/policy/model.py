"""Loads, checks and writes the model, and replaces parts of its computation by faster or more exact ones."""

import inspect
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer, Cache
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from minirl.config.options import Config, ModelConfig, PlanConfig
from minirl.data.prompts import Prompt
from minirl.policy import plan
from minirl.policy.attention import packed_attention
from minirl.policy.logprobs import PROGRAMS
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError, HubError, RunError
from minirl.utils.hub import hub_is_offline

transformers_logging.disable_progress_bar()  # it would overwrite the run's own


def model_source(config: ModelConfig) -> str:
    """The folder or Hub name to load from."""
    from minirl.tiny import make as tiny

    return str(tiny.FOLDERS.get(config.path, config.path))


def load(kind: Any, config: ModelConfig, **arguments: Any) -> Any:
    """`kind.from_pretrained` of the configured model. ConfigError when it is not there, cannot be read, or lacks weights."""
    source, weights = model_source(config), kind is AutoModelForCausalLM
    missing_here = not Path(source).exists() and hub_is_offline()
    if weights:
        arguments["output_loading_info"] = True
    try:
        loaded = kind.from_pretrained(source, revision=config.revision, trust_remote_code=config.trust_remote_code, **arguments)
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        hint = "the path or Hub name is right"
        if "trust_remote_code" in str(error):
            hint = "its code can be trusted, then set model.trust_remote_code=true"
        elif Path(source).exists():
            hint = "config.json, weights and tokenizer are whole, and model.attention known"
        raise (HubError if missing_here else ConfigError)(
            f"cannot load model.path={config.path!r}: {' '.join(str(error).split())[:300]}; check that {hint}"
        ) from None
    if not weights:
        return loaded
    model, info = loaded
    if getattr(model, "_hf_peft_config_loaded", False):  # transformers has put it onto the base model that it names
        raise ConfigError(
            f"model.path={config.path!r} is an adapter: merge it into its base model first (peft's merge_and_unload), and name "
            "the folder of the merged model"
        )
    if missing := sorted(info["missing_keys"]):  # transformers initialises them at random, without an error
        raise ConfigError(
            f"model.path={config.path!r} lacks {len(missing)} of the model's weights, first {missing[0]}: its files are cut "
            "or of another kind of model, such as an adapter that was not merged"
        )
    return model


def check_ids(config: ModelConfig, prompts: Sequence[Prompt]) -> None:
    """ConfigError for a prompt with a token id beyond the model's embeddings. Reads only the model's config."""
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


def check_dense(config: Config) -> None:
    """ConfigError for a mixture of experts with vLLM, which loads the weights of each expert by names of its own, while
    transformers keeps those of a layer in one tensor. Reads only the model's config."""
    described = model_config(config.model).get_text_config()
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    experts = max(getattr(described, name, None) or 0 for name in names)
    if experts > 1 and config.rollout.engine == "vllm":
        raise ConfigError(
            f"model.path={config.model.path!r} is a mixture of {experts} experts, whose weights cannot be loaded into vLLM "
            "while training: take a dense model, or set rollout.engine=transformers"
        )


def check_context(config: Config, longest_prompt: int) -> None:
    """ConfigError when prompt and response exceed the model's context length. Reads only the model's config."""
    response = max(config.rollout.max_response_tokens, config.eval.max_response_tokens or 0)
    limit = getattr(model_config(config.model), "max_position_embeddings", None)
    if limit is not None and longest_prompt + response > limit:
        raise ConfigError(
            f"prompts of up to {longest_prompt} tokens and responses of {response} exceed the model's {limit} positions: lower "
            "data.max_prompt_tokens or rollout.max_response_tokens (and eval.max_response_tokens)"
        )


def planned(config: Config, ranks: Ranks) -> Config:
    """`config` with config.plan of the ranks' GPUs, where they have some, and what is left to the memory plan chosen."""
    if ranks.gpu_gib is None:
        return plan.fitted(config, None)
    config = replace(config, plan=PlanConfig(ranks.size, ranks.gpu_gib, ranks.zero))
    return plan.fitted(config, plan.measure(model_config(config.model), config.model.lora))


def model_plan(config: Config, ranks: Ranks | None = None) -> list[str]:
    """Lines on size and memory of the model, from its config: on the GPUs of `ranks`, or those of config.plan without any."""
    if ranks is not None and ranks.gpu_gib is not None:
        config = replace(config, plan=PlanConfig(ranks.size, ranks.gpu_gib, ranks.zero))
    return plan.report(config, plan.measure(model_config(config.model), config.model.lora))


def load_model(config: ModelConfig) -> Any:
    """The causal language model with float32 weights; with those in the compute precision where LoRA freezes them."""
    packed = config.attention == "packed"
    dtype = torch.bfloat16 if config.lora.r and config.dtype == "bfloat16" else torch.float32
    model = load(AutoModelForCausalLM, config, dtype=dtype, attn_implementation="sdpa" if packed else config.attention)
    if packed:
        model.set_attn_implementation("packed")  # no effect on a model without the attention interface
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, name, None) not in (None, 1, 1.0):
            raise ConfigError(
                f"model.path={config.path!r} transforms its logits ({name}), which the log-prob head does not know yet"
            )
    if type(output := model.get_output_embeddings()) is not torch.nn.Linear:
        raise ConfigError(f"model.path={config.path!r} has an output layer that is no linear one: {type(output).__name__}")
    return with_fused_norms(with_exact_frequencies(model))


def write_model(model: Any, weights: dict[str, Tensor], folder: Path, tokenizer: Any) -> None:
    """Writes an ordinary Hugging Face folder, whole or not at all. RunError when it cannot be written."""
    temporary = folder.with_name(f"{folder.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
        temporary.mkdir(parents=True)
        # Not model.save_pretrained, which imports DeepSpeed wherever it is installed, at the end of a long run.
        model.config.dtype, model.config.architectures = next(iter(weights.values())).dtype, [type(model).__name__]
        model.config.save_pretrained(temporary)
        model.generation_config.save_pretrained(temporary)
        weights = revert_weight_conversion(model, weights)  # transformers renames and fuses the weights of some models
        save_torch_state_dict(weights, temporary, max_shard_size="50GB", metadata={"format": "pt"})
        tokenizer.save_pretrained(temporary)
        shutil.rmtree(folder, ignore_errors=True)  # left by the run before it was resumed
        temporary.rename(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(f"cannot write {folder}: {error}; mend that and start the same command again") from error


def pair_cost(model: Any) -> float:
    """FLOPs of a query-key pair relative to a token's others: 4 * layers * attention width for a pair, 2 * parameters for a
    token."""
    c = model.config
    width = c.num_attention_heads * (getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads)
    return 2 * c.num_hidden_layers * width / sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())


def choose_deterministic_kernels() -> None:
    """Chooses deterministic kernels. To be called before the first one runs."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"  # read by transformers
    torch.backends.cudnn.deterministic = True
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # never read


def with_exact_frequencies(model: Any) -> Any:
    """The model with rotary frequencies in float32, as in sampling engines. ZeRO-3 and casts of the model round them to
    bfloat16, an error of the angles that grows with the position."""
    for module in model.modules():
        if any("inv_freq" in name for name, _ in module.named_buffers(recurse=False)):
            for name, buffer in type(module)(module.config).named_buffers():
                setattr(module, name, buffer.to(getattr(module, name).device))
    return model


def with_fused_norms(model: Any) -> Any:
    """The model with torch's fused RMS norm in each module that computes just that."""
    known: dict[type, bool] = {}
    for module in model.modules():
        if hasattr(module, "variance_epsilon") and [name for name, _ in module.named_parameters()] == ["weight"]:
            if type(module) not in known:
                known[type(module)] = is_rms_norm(module)
            if known[type(module)]:
                module.forward = MethodType(fused_norm, module)
    return model


def is_rms_norm(module: Any) -> bool:
    """Whether a module computes x / sqrt(mean(x^2) + variance_epsilon) * weight (Zhang and Sennrich 2019), by trying it."""
    if len(inspect.signature(module.forward).parameters) != 1:  # it also takes a gate
        return False
    size = getattr(module.weight, "ds_shape", module.weight.shape)[-1]
    x, weight = torch.linspace(-1e-3, 2e-3, size), torch.linspace(0.5, 1.5, size)  # small, so that the epsilon shows
    with torch.no_grad():
        own = torch.func.functional_call(module, {"weight": weight}, (x,))
    return own.shape == x.shape and torch.allclose(own, rms_norm(x, x.shape, weight, module.variance_epsilon))


def fused_norm(module: Any, x: Tensor) -> Tensor:
    """The forward pass of an RMS norm, in the dtype of its weight: torch's kernel takes no mixed ones."""
    with torch.autocast(x.device.type, enabled=False):  # on a GPU it would make the result float32, and double what is kept
        return rms_norm(x.to(module.weight.dtype), module.weight.shape, module.weight, module.variance_epsilon)


def compile_layers(model: Any) -> None:
    """Compiles the decoder's layers for passes without a KV cache. Packed attention and sampling are not compiled.

    On a CPU this needs a C++ compiler, and the first passes with and without gradient take some 20 seconds longer. A copy of
    the compiled model would use this one's weights. ConfigError for a model without decoder layers as transformers marks them.
    """
    # Each combination of mask, gradient and type of layer is one program. Beyond the limit further ones would silently run
    # uncompiled.
    torch._dynamo.config.recompile_limit = PROGRAMS
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    # Not compiled: it loops over the rectangles of a layout, and each number of them would be another program.
    AttentionInterface.register("packed", torch.compiler.disable(packed_attention))
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(f"model.compile_layers=true finds no layers in {type(model).__name__}: set it to false")
    for layer in layers:
        layer.forward = compiled(layer.forward)  # type: ignore[method-assign]


def compiled(eager: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's forward pass, compiled for calls without a KV cache."""
    fast = torch.compile(eager, dynamic=True)

    def forward(*arguments: Any, **more: Any) -> Any:
        # By type, since transformers 5.24 renamed the argument.
        cached = any(isinstance(value, Cache) for value in (*arguments, *more.values()))
        return (eager if cached else fast)(*arguments, **more)

    return forward
