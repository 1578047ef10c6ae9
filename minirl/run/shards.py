"""Saves each rank's part of the trained float32 weights and of AdamW's state as slices of parameters, by name: of all weights,
or of the adapters alone where only those are trained.

The files do not depend on the layout, so any number of ranks can load them, whether one process, DDP or ZeRO.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from minirl.policy.optimizer import moments, scales, state_at
from minirl.policy.policy import Policy
from minirl.utils.errors import ConfigError

KINDS = {torch.float32: "F32", torch.uint8: "U8"}  # safetensors' names of what is saved


@dataclass(frozen=True)
class Slice:
    """Elements start ... start + size - 1 of the flattened parameter `name`, which this rank holds from `offset` on in `flat`,
    a float32 tensor of the optimizer."""

    name: str
    start: int
    size: int
    flat: Tensor
    offset: int

    def of(self, tensor: Tensor) -> Tensor:
        """A view of this slice in `tensor`, which is `flat` or has its layout."""
        return tensor.detach().view(-1)[self.offset : self.offset + self.size]


def trained(model: Any) -> Iterator[tuple[str, Any]]:
    """The parameters that are not frozen, by name."""
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def slices(policy: Policy, share: bool) -> tuple[Any, list[Slice]]:
    """(torch's optimizer, this rank's slices). share: split what every rank holds whole, so that each saves a part."""
    rank, size = policy.ranks.rank, policy.ranks.size
    zero: Any = policy.head.optimizer if policy.ranks.zero is not None else policy.optimizer
    held = []
    masters: dict[int, Tensor] = {}  # float32 copies that DeepSpeed keeps of bfloat16 parameters without ZeRO
    if hasattr(zero, "fp32_groups"):
        for halves, wholes in zip(zero.fp16_groups, zero.fp32_groups, strict=True):
            masters |= {id(p): master for p, master in zip(halves, wholes, strict=True)}
    for name, p in trained(policy.model):
        if hasattr(p, "ds_id"):  # ZeRO-3: equal parts, the last one padded
            if zero.swap_optimizer:
                raise ConfigError("checkpoints of an optimizer on NVMe are not supported: offload it to the cpu, or not at all")
            group, offset, part = zero.grad_position[zero.get_param_id(p)]
            start = min(part * rank, p.ds_numel)
            flat = zero.fp32_partitioned_groups_flat[group]
            held.append(Slice(name, start, min(part, p.ds_numel - start), flat, offset))
        elif hasattr(p, "_hp_mapping"):  # ZeRO-1 and -2
            if p._hp_mapping is not None:
                ours, whole = p._hp_mapping.hp_fragment_address, p._hp_mapping.lp_fragment_address
                flat = zero.optimizer.param_groups[p._hp_mapping.param_group_index]["params"][0]
                held.append(Slice(name, whole.start, whole.numel, flat, ours.start))
        else:
            start = p.numel() * rank // size if share else 0
            end = p.numel() * (rank + 1) // size if share else p.numel()
            held.append(Slice(name, start, end - start, masters.get(id(p), p), start))
    return getattr(zero, "optimizer", zero), [s for s in held if s.size]


def pack(policy: Policy, copy: bool) -> dict[str, Tensor]:
    """This rank's part by name, float32, and uint8 for moments in 8 bits. copy: to host memory; else views, which change with
    the next optimizer step."""
    optimizer, held = slices(policy, share=True)
    tensors = {}
    for s in held:
        tensors[f"weight:{s.start}:{s.name}"] = s.of(s.flat)
        state = optimizer.state.get(s.flat)
        if state:
            tensors[f"step:{s.start}:{s.name}"] = torch.as_tensor(state["step"], dtype=torch.float32)
            tensors |= {f"{kind}:{s.start}:{s.name}": s.of(moment) for kind, moment in moments(state).items()}
            if s.start == 0:  # no part of them belongs to a slice alone: the first one has all
                tensors |= {f"{kind}:0:{s.name}": scale for kind, scale in scales(state).items()}
    if policy.version and held and len(tensors) == len(held):
        raise RuntimeError("the optimizer's state is not where it is looked for: this version of DeepSpeed is not supported")
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()} if copy else tensors


def serialised(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The content of a safetensors file of float32 and uint8 tensors, piece by piece.

    safetensors' own functions make one or two copies of all tensors. The format: the length of a JSON header, 8 bytes little
    endian; the header, padded to a multiple of 8; the numbers, here the longer ones first, so that all are aligned.
    """
    header, end = dict[str, Any](), 0
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))
    for name, tensor in tensors.items():
        start, end = end, end + tensor.element_size() * tensor.numel()
        header[name] = {"dtype": KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        yield tensor.detach().contiguous().cpu().reshape(-1).numpy().data.cast("B")


@torch.no_grad()
def unpack(policy: Policy, paths: Sequence[Path]) -> None:
    """Loads weights and optimizer state from the files of all ranks into `policy`. Every rank calls it. ConfigError when they
    are not of the parameters that `policy` trains."""
    files = Files(paths)
    files.check(policy.model)
    optimizer, held = slices(policy, share=False)
    for s in held:
        s.of(s.flat).copy_(files.read("weight", s.name, s.start, s.size))
        if ("exp_avg", s.name) not in files.parts:
            continue  # saved before the first optimizer step
        state = state_at(optimizer, s.flat, int(files.step(s.name)))
        for kind, moment in moments(state).items():
            values = files.read(kind, s.name, s.start, s.size)
            if values.dtype != moment.dtype:
                raise ConfigError(
                    f"the checkpoint has {kind} of {s.name!r} as {values.dtype} and the optimizer as {moment.dtype}: it is of "
                    "another optimizer (optimizer.name)"
                )
            s.of(moment).copy_(values)
        for kind, scale in scales(state).items():
            scale.copy_(files.read(kind, s.name, 0, scale.numel()))
    zero: Any = policy.head.optimizer if policy.ranks.zero is not None else None
    if policy.ranks.zero == 3:
        for group in range(len(zero.fp32_partitioned_groups_flat)):
            zero._reassign_or_swap_out_partitioned_parameters(group)
        if kept := zero.persistent_parameters:  # small parameters, whole on every rank
            kept[0].partition(kept)
            kept[0].all_gather(kept)
    elif zero is not None:
        for name, p in trained(policy.model):
            p.copy_(files.read("weight", name, 0, p.numel()).view_as(p))


class Files:
    """Reads any part of a parameter from the slices in several safetensors files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.parts: dict[tuple[str, str], list[tuple[int, Any, str]]] = {}
        for path in paths:
            file = safetensors.safe_open(path, "pt")
            for key in file.keys():  # noqa: SIM118 - it is no dict
                kind, start, name = key.split(":", 2)
                self.parts.setdefault((kind, name), []).append((int(start), file, key))

    def check(self, model: Any) -> None:
        """ConfigError for weights in the files that are none of those that `model` trains, or longer ones. Those that are
        missing, or cut, are found by `read`."""
        sizes = {name: getattr(p, "ds_numel", p.numel()) for name, p in trained(model)}
        for (kind, name), parts in self.parts.items():
            end = max(start + file.get_slice(key).get_shape()[0] for start, file, key in parts) if kind == "weight" else 0
            if end > sizes.get(name, 0):
                raise ConfigError(
                    f"the checkpoint has {end} elements of {name!r}, of which {sizes.get(name, 0)} are trained: it is of "
                    "another model, or of other adapters (model.lora)"
                )

    def step(self, name: str) -> Tensor:
        """Optimizer steps that parameter `name` has taken."""
        _, file, key = self.parts["step", name][0]
        return file.get_tensor(key)

    def read(self, kind: str, name: str, start: int, size: int) -> Tensor:
        """float32[size]: elements from `start` of the flattened parameter. ConfigError when they are not all there."""
        found = sorted(self._overlapping(kind, name, start, start + size), key=lambda part: part[0])
        values = torch.cat([tensor for _, tensor in found]) if found else torch.empty(0)
        if len(values) != size:
            raise ConfigError(
                f"the checkpoint has {len(values)} of {size} elements of {kind} of parameter {name!r}: it is of another "
                "model, or of other adapters (model.lora)"
            )
        return values

    def _overlapping(self, kind: str, name: str, start: int, end: int) -> Iterator[tuple[int, Tensor]]:
        for first, file, key in self.parts.get((kind, name), []):
            part = file.get_slice(key)
            low, high = max(start, first), min(end, first + part.get_shape()[0])
            if low < high:
                yield low, part[low - first : high - first]
