"""LoRA (Hu et al. 2021, arXiv 2106.09685), through peft: small adapters are trained in place of the model's weights.

An adapted linear layer computes W x + (lora_alpha / r) B A x. W is frozen; A is random and B zero at the start, so that
training begins at the base model. Engines and exports get the merged weights W + (lora_alpha / r) B A under the base model's
names and never see an adapter. With its adapters off the policy is the base model, the reference model of a KL.

Adapters have no dropout: the trainer's log-probs would be those of another model than the one that sampled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minirl.config.options import LoraConfig
from minirl.utils.errors import ConfigError, require
from minirl.utils.versions import require_installed


def targets(model: Any, config: LoraConfig) -> list[str]:
    """Names of the linear layers of a transformers model that get an adapter, in order. ConfigError for a name of
    `target_modules` that no linear layer but the output layer has."""
    output = model.get_output_embeddings()
    linear = [name for name, module in model.named_modules() if type(module) is torch.nn.Linear and module is not output]
    kinds = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in linear)) or "none"
    if config.target_modules == ["all-linear"]:
        require(bool(linear), f"model.lora.r={config.r} finds no linear layers in {type(model).__name__}: set it to 0")
        return linear
    ends = {target: [name for name in linear if f".{name}".endswith(f".{target}")] for target in config.target_modules}
    for target, found in ends.items():
        if not found:
            raise ConfigError(
                f"model.lora.target_modules has {target!r}, and no layer of {type(model).__name__} that can have an adapter is "
                f"called so: known are {kinds}, and all-linear alone for all of them"
            )
    return [name for name in linear if any(name in found for found in ends.values())]


def add_adapters(model: Any, config: LoraConfig, seed: int, dtype: torch.dtype = torch.float32) -> None:
    """Puts adapters into a transformers model, in place, and freezes all other weights.

    seed: of the adapters' A, which do not depend on other random numbers; dtype: of the adapters. ConfigError when peft is
    missing or `targets` are.
    """
    require_installed("peft", f"model.lora.r={config.r}")
    import peft

    names = targets(model, config)
    settings = peft.LoraConfig(r=config.r, lora_alpha=config.lora_alpha, target_modules=names)
    with torch.random.fork_rng(devices=[]):
        peft.inject_adapter_in_model(settings, model)
        layers = adapted_layers(model)
        if list(layers) != names:
            raise RuntimeError("peft has put adapters into other layers than it was told to: this version is not supported")
        torch.default_generator.manual_seed(seed)
        for layer in layers.values():
            for part in (layer.lora_A, layer.lora_B):
                part.float()  # peft gives them the precision of the base
            layer.reset_lora_parameters("default", True)
            for part in (layer.lora_A, layer.lora_B):
                part.to(dtype)
            # peft would convert each layer's inputs to float32, copies that autograd keeps; autocast does what is needed.
            layer.cast_input_dtype_enabled = False


def adapted_layers(model: Any) -> dict[str, Any]:
    """The layers with an adapter by name, in order."""
    wrapped = ((name, module) for name, module in model.named_modules() if hasattr(module, "base_layer"))
    return {name: module for name, module in wrapped if hasattr(module, "lora_A")}


class Weight(NamedTuple):
    """A weight of the base model, and its layer's adapter. adapter: (A float[r, in], B float[out, r]) or (); scale: see the
    head of this file."""

    base: torch.nn.Parameter
    adapter: tuple[torch.nn.Parameter, ...] = ()
    scale: float = 0.0

    def merged(self) -> Tensor:
        """The weight with which a layer without adapter computes the same: summed in float32 and rounded once, to the base's
        precision. Where B is zero it is the base's, to the bit."""
        base = self.base.detach()
        if not self.adapter or not self.adapter[1].any():
            return base
        a, b = (parameter.detach().float() for parameter in self.adapter)
        return torch.addmm(base.float(), b, a, alpha=self.scale).to(base.dtype)


def weights_of(model: Any) -> Iterator[tuple[str, Weight]]:
    """All weights of a model under the names that they have without adapters, tied ones once. Under ZeRO-3 they are sharded."""
    layers = adapted_layers(model)
    adapters = {id(p) for layer in layers.values() for p in (*layer.lora_A.parameters(), *layer.lora_B.parameters())}
    for name, parameter in model.named_parameters():
        if id(parameter) in adapters:
            continue
        owner, _, kind = name.rpartition(".")
        layer = layers.get(plain := owner.removesuffix(".base_layer"))
        if layer is None:
            yield name, Weight(parameter)
        elif kind == "bias":
            yield f"{plain}.bias", Weight(parameter)
        else:
            adapter = (layer.lora_A["default"].weight, layer.lora_B["default"].weight)
            yield f"{plain}.weight", Weight(parameter, adapter, layer.scaling["default"])


@contextmanager
def adapters_off(model: Any) -> Iterator[None]:
    """In this context the model computes as the base model does, to the bit."""
    layers = adapted_layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def without_adapters(model: Any, head: Callable[..., Any]) -> Callable[..., Any]:
    """`head`, which computes with `model`, as it is with the model's adapters off."""

    def forward(*arguments: Any) -> Any:
        with adapters_off(model):
            return head(*arguments)

    return forward
