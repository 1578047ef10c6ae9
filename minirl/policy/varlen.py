"""Packed attention on a GPU in half precision: one call of torch's `varlen_attn` (flash attention) a layer."""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from minirl.policy.attention import Layout, Segment, Unpackable
from minirl.utils.memory import to_device

# torch 2.11 accepts fewer key heads than query heads as they are; later versions have an argument for it.
GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


class Varlen(Layout):
    """Cumulative lengths of the segments' queries and keys; a segment's keys are its prefix's, then its own."""

    def __init__(self, segments: Sequence[Segment], device: Any) -> None:
        start, length, prefix_start, prefix = np.array(segments, dtype=np.int64).T
        total = prefix + length
        ends_q, ends_k = (np.concatenate([[0], x.cumsum()]).astype(np.int32) for x in (length, total))
        self.ends_q, self.ends_k = to_device(ends_q, device), to_device(ends_k, device)
        self.longest_q, self.longest_k = int(length.max()), int(total.max())
        self.keys: Tensor | None = None  # int[all keys]: positions in the row; None where the keys are the row itself
        if prefix.any():
            within = np.arange(total.sum()) - np.repeat(ends_k[:-1], total)
            shared, own = np.repeat(prefix_start, total) + within, np.repeat(start - prefix, total) + within
            self.keys = to_device(np.where(within < np.repeat(prefix, total), shared, own), device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        if v.shape[-1] != q.shape[-1]:
            raise Unpackable(f"its heads have {q.shape[-1]} numbers in queries and {v.shape[-1]} in values")
        if self.keys is not None:
            k, v = k.index_select(0, self.keys), v.index_select(0, self.keys)
        # Causal with more keys than queries: flash attention lets the last query see all keys.
        return varlen_attn(  # type: ignore[return-value]  # a pair only where asked for
            q.contiguous(), k.contiguous(), v.contiguous(), self.ends_q, self.ends_k, self.longest_q, self.longest_k,
            scale=scale, window_size=(-1, 0), **GROUPED,
        )  # fmt: skip
