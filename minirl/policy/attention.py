"""Attention over packed sequences, as an implementation of transformers' attention interface called "packed".

A packed row is segments of tokens end to end, each a prompt, a response, or both. A token attends to the tokens before it in
its segment and to the whole prefix that the segment names (a prompt that several responses share), never to anything else. On a
GPU in half precision that is one call of torch's `varlen_attn` a layer; elsewhere, scaled dot-product attention over segments
of like length, padded for that call alone. Without a layout (sampling with a cache, padded rows) it is transformers' own sdpa.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

# Segments share a padded call where the shorter needs at least this share of the longest's keys: measured on CPUs.
SIMILAR_LENGTH = 0.7
# torch 2.11 takes fewer key heads than query heads without being told; later ones want to be told.
GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


class Unpackable(Exception):
    """The model asks its attention for something that packing does not know; the message names it."""


class Segment(NamedTuple):
    """Tokens start ... start + length - 1 of a packed row, which also see those of a prefix."""

    start: int
    length: int
    prefix_start: int = 0
    prefix_length: int = 0


class Layout(ABC):
    """The segments of a packed row, ready for a kernel. calls: layers that have attended by it."""

    calls = 0

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """float[T, H, E] from q float[T, H, D], k float[T, G, D] and v float[T, G, E]; scale None is 1 / sqrt(D)."""


class Varlen(Layout):
    """For flash attention on a GPU: cumulative lengths, and keys with the prefix of each segment put before it."""

    def __init__(self, segments: Sequence[Segment], device: Any) -> None:
        start, length, prefix_start, prefix = np.array(segments, dtype=np.int64).T
        seen = prefix + length
        ends = [np.concatenate([[0], x.cumsum()]).astype(np.int32) for x in (length, seen)]
        self.ends_q, self.ends_k = (torch.from_numpy(x).to(device) for x in ends)
        self.longest_q, self.longest_k = int(length.max()), int(seen.max())
        self.keys: Tensor | None = None  # int[all keys]: their places in the row; None where they are the row
        if prefix.any():
            within = np.arange(seen.sum()) - np.repeat(ends[1][:-1], seen)
            before = np.repeat(prefix_start, seen) + within
            after = np.repeat(start - prefix, seen) + within
            self.keys = torch.from_numpy(np.where(within < np.repeat(prefix, seen), before, after)).to(device)

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


class Run(NamedTuple):
    """R segments of like length as rectangles. queries: int[R * Q], keys: int[R * K] places in the row; visible:
    bool[R, 1, Q, K]; real: int[S], which queries are no padding."""

    rows: int
    queries: Tensor
    keys: Tensor
    visible: Tensor
    real: Tensor


class Padded(Layout):
    """For scaled dot-product attention anywhere: runs of segments of like length."""

    def __init__(self, segments: Sequence[Segment], device: Any) -> None:
        table = np.array(segments, dtype=np.int64)
        width, shares = table[:, 1] + table[:, 3], table[:, 3] > 0
        # Prompts apart from the responses that share them: a response may have as many keys and far fewer queries.
        order = np.lexsort((-width, shares))
        cuts = [0]
        for place, row in enumerate(order):
            first = order[cuts[-1]]
            if width[row] < SIMILAR_LENGTH * width[first] or shares[row] != shares[first]:
                cuts.append(place)
        self.runs: list[Run] = []
        places = []
        for rows in np.split(order, cuts[1:]):
            start, length, prefix_start, prefix = (column[:, None] for column in table[rows].T)
            query, key = np.arange(length.max()), np.arange(width[rows].max())
            queries = np.where(query < length, start + query, 0).ravel()
            own = np.where(key < prefix + length, start + key - prefix, 0)
            keys = np.where(key < prefix, prefix_start + key, own).ravel()
            visible = key <= (prefix + query)[:, :, None]
            real = np.flatnonzero(query < length)
            places.append(queries[real])
            tensors = (torch.from_numpy(x).to(device) for x in (queries, keys, visible[:, None], real))
            self.runs.append(Run(len(rows), *tensors))
        # Where in the runs' outputs, end to end, each token of the row is.
        self.order = torch.from_numpy(np.argsort(np.concatenate(places))).to(device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        outputs = []
        for run in self.runs:
            queries, keys, values = (
                x.flatten(1).index_select(0, places).view(run.rows, -1, *x.shape[1:]).transpose(1, 2)
                for x, places in ((q, run.queries), (k, run.keys), (v, run.keys))
            )
            out = scaled_dot_product_attention(queries, keys, values, run.visible, scale=scale, enable_gqa=True)
            outputs.append(out.transpose(1, 2).reshape(-1, q.shape[1] * v.shape[2]).index_select(0, run.real))
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
        # Under autocast the norms before this give float32 beside a bfloat16 value.
        q, k, v = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
        return layout.attend(q, k, v, scaling)[None], None
    rows, heads, width, size = query.shape
    if width > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more)
    # One token a row: the query heads of a key head become its queries, so that the cache is not copied for each of them.
    folded = query.reshape(rows, key.shape[1], -1, size) * (size**-0.5 if scaling is None else scaling)
    scores = folded @ key.transpose(-1, -2)
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -torch.inf)
    out = scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    return out.reshape(rows, 1, heads, size), None


def packed_mask(*, q_length: int, kv_length: int, attention_mask: Tensor | None = None, **more: Any) -> Tensor | None:
    """transformers' mask interface: without padding none is needed, for packed rows least of all."""
    if attention_mask is None and q_length in (1, kv_length):
        return None
    return sdpa_mask(q_length=q_length, kv_length=kv_length, attention_mask=attention_mask, **more)


AttentionInterface.register("packed", packed_attention)
AttentionMaskInterface.register("packed", packed_mask)
