"""The optimizer: AdamW (Loshchilov and Hutter 2019), or AdamW with its two moments in 8 bits (Dettmers et al. 2022, arXiv
2110.02861) by bitsandbytes, and where its state is.

8-bit moments are codes, one byte an element, and for each 256 of them a float32 scale; those of tensors with fewer than 4,096
elements stay float32.
"""

from typing import Any

import torch
from torch import Tensor

from minirl.config.options import OptimizerConfig
from minirl.utils.versions import require_installed

MOMENTS = {"exp_avg": "state1", "exp_avg_sq": "state2"}  # torch's names of AdamW's moments: bitsandbytes' names
SCALES = {"exp_avg_scale": "absmax1", "exp_avg_sq_scale": "absmax2"}


def build_optimizer(parameters: list[torch.nn.Parameter], o: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer that `o.name` names. ConfigError when its package is missing."""
    settings: dict[str, Any] = {"lr": o.lr, "betas": (o.betas[0], o.betas[1]), "weight_decay": o.weight_decay}
    if o.name == "adamw":
        return torch.optim.AdamW(parameters, **settings, fused=True)
    require_installed("bitsandbytes", f"optimizer.name={o.name}")
    import bitsandbytes

    return bitsandbytes.optim.AdamW8bit(parameters, **settings)


def moments(state: dict[str, Any]) -> dict[str, Tensor]:
    """The two moments of one tensor by torch's names, shaped as the tensor; codes where they are in 8 bits."""
    return {name: state[other if other in state else name] for name, other in MOMENTS.items()}


def scales(state: dict[str, Any]) -> dict[str, Tensor]:
    """The scales of 8-bit moments, float32[ceil(elements / 256)] each; none for float32 ones."""
    return {name: state[other] for name, other in SCALES.items() if other in state}


def state_at(optimizer: Any, tensor: Tensor, step: int) -> dict[str, Any]:
    """The optimizer's state of one of its tensors, made as its first step would if it is not there yet, and set to `step`."""
    state = optimizer.state[tensor]
    if not state and hasattr(optimizer, "init_state"):  # bitsandbytes
        optimizer.init_state(optimizer.param_groups[0], tensor, 0, 0)
    elif not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=tensor.device)
        state |= {name: torch.zeros_like(tensor) for name in MOMENTS}
    if isinstance(state["step"], Tensor):
        state["step"].fill_(step)
    else:
        state["step"] = step
    return state
