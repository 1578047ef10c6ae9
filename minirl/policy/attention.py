"""Attention over packed sequences, as an implementation of transformers' attention interface called "packed".

A packed row is segments of tokens end to end, each a prompt, a response, or both. A token attends to the earlier tokens of its
segment and to the segment's prefix (a prompt that several responses share), never to anything else. A `Layout` computes that:
`Padded` with scaled dot-product attention on any device, or `Varlen` (varlen.py) with flash attention on a GPU. Without a
layout (sampling with a KV cache, padded rows) transformers' sdpa does.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from minirl.utils.memory import to_device

# Segments are padded together where the shortest has at least this share of the longest one's keys; measured on CPUs.
SIMILAR_LENGTH = 0.7


class Unpackable(Exception):
    """Packed attention does not support a feature of the model's attention; the message names it."""


class Segment(NamedTuple):
    """Tokens start ... start + length - 1 of a packed row, which also attend to the tokens of a prefix."""

    start: int
    length: int
    prefix_start: int = 0
    prefix_length: int = 0


class Layout(ABC):
    """The segments of a packed row, prepared for a kernel. calls: number of `attend` calls, one for each layer."""

    calls = 0

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """float[T, H, E] from q float[T, H, D], k float[T, G, D] and v float[T, G, E]; scale None is 1 / sqrt(D)."""


class Rectangle(NamedTuple):
    """Segments of similar length, padded to R rows. queries: int[R * Q], keys: int[R * K], positions in the packed row;
    visible: bool[R, 1, Q, K], the attention mask; real: int[S], indices of the queries that are not padding."""

    rows: int
    queries: Tensor
    keys: Tensor
    visible: Tensor
    real: Tensor


class Padded(Layout):
    """One scaled dot-product attention call for each rectangle of segments of similar length."""

    def __init__(self, segments: Sequence[Segment], device: Any) -> None:
        table = np.array(segments, dtype=np.int64)
        width, shares = table[:, 1] + table[:, 3], table[:, 3] > 0
        # Segments with a prefix are kept apart: they have far fewer queries than others with as many keys.
        order = np.lexsort((-width, shares))
        cuts = [0]
        for i, segment in enumerate(order):
            first = order[cuts[-1]]
            if width[segment] < SIMILAR_LENGTH * width[first] or shares[segment] != shares[first]:
                cuts.append(i)
        self.rectangles: list[Rectangle] = []
        positions = []
        for members in np.split(order, cuts[1:]):
            start, length, prefix_start, prefix = (column[:, None] for column in table[members].T)
            query, key = np.arange(length.max()), np.arange(width[members].max())
            queries = np.where(query < length, start + query, 0).ravel()
            own = np.where(key < prefix + length, start + key - prefix, 0)
            keys = np.where(key < prefix, prefix_start + key, own).ravel()
            visible = (key <= (prefix + query)[:, :, None])[:, None]
            real = np.flatnonzero(query < length)
            positions.append(queries[real])
            self.rectangles.append(Rectangle(len(members), *(to_device(x, device) for x in (queries, keys, visible, real))))
        # int[T]: where each token's output is among those of all rectangles, end to end.
        self.order = to_device(np.argsort(np.concatenate(positions)), device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        outputs = []
        for r in self.rectangles:
            queries, keys, values = (
                x.flatten(1).index_select(0, index).view(r.rows, -1, *x.shape[1:]).transpose(1, 2)
                for x, index in ((q, r.queries), (k, r.keys), (v, r.keys))
            )
            out = scaled_dot_product_attention(queries, keys, values, r.visible, scale=scale, enable_gqa=True)
            outputs.append(out.transpose(1, 2).reshape(-1, q.shape[1] * v.shape[2]).index_select(0, r.real))
        return torch.cat(outputs).index_select(0, self.order).view(*q.shape[:2], v.shape[2])


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None,
    dropout: float = 0.0, layout: Layout | None = None, **more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' attention interface: query [B, H, L, D], key and value [B, G, L, D] -> [B, L, H, D]; a layout has B = 1."""
    if layout is not None:
        refused = [name for name in ("sliding_window", "softcap", "s_aux", "position_bias") if more.get(name) is not None]
        if refused or dropout:
            raise Unpackable(f"its attention has {', '.join(refused) or 'dropout'}")
        layout.calls += 1
        # Under autocast, models with query and key norms pass float32 queries and keys but bfloat16 values.
        q, k, v = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
        return layout.attend(q, k, v, scaling)[None], None
    rows, heads, width, size = query.shape
    if width > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more)
    # Decoding: query heads that share a key head become its queries, so that the KV cache is not repeated for each of them.
    folded = query.reshape(rows, key.shape[1], -1, size) * (size**-0.5 if scaling is None else scaling)
    scores = folded @ key.transpose(-1, -2)
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -torch.inf)
    out = scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    return out.reshape(rows, 1, heads, size), None


def packed_mask(*, q_length: int, kv_length: int, attention_mask: Tensor | None = None, **more: Any) -> Tensor | None:
    """transformers' mask interface: no mask where there is no padding, as in packed rows."""
    if attention_mask is None and q_length in (1, kv_length):
        return None
    return sdpa_mask(q_length=q_length, kv_length=kv_length, attention_mask=attention_mask, **more)


AttentionInterface.register("packed", packed_attention)
AttentionMaskInterface.register("packed", packed_mask)
