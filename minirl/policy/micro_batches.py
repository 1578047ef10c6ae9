"""Micro-batches: the tensors of one forward and backward pass over rollouts, packed or padded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from minirl.policy.attention import Layout, Padded, Segment
from minirl.rollout.types import Rollout
from minirl.utils.memory import to_device


@dataclass
class MicroBatch:
    """The tensors of one forward and backward pass, on its device; T response tokens in all, response after response.

    indices: of the rollouts in their batch; inputs: of the model; logit_index: int[T], which of its outputs (rows end to end)
    predicts each response token; targets: int[T], these tokens. The others, float[T] each, are inputs of the loss, set by
    `add_loss_inputs`; old_logprobs and ref_logprobs stay None where the rollouts have none. selected:
    bool[T], the tokens that the policy loss has selected; top_logprobs: float[T, K], of the likeliest tokens there, set by
    `Policy.logprobs` for a policy loss that reads them.
    """

    rollouts: list[Rollout]
    indices: list[int]
    inputs: dict[str, Any]
    logit_index: Tensor
    targets: Tensor
    token_weights: Tensor = field(init=False)
    advantages: Tensor = field(init=False)
    rollout_logprobs: Tensor = field(init=False)
    versions: Tensor = field(init=False)
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    selected: Tensor | None = None
    top_logprobs: Tensor | None = None

    def add_loss_inputs(self, weights: Sequence[Any]) -> None:
        """Sets the inputs of the loss. weights: token weights of each rollout of the batch, a number or float[T_i]."""
        self.token_weights = self.flat([weights[i] for i in self.indices])
        self.advantages = self.flat([r.advantages for r in self.rollouts])
        self.rollout_logprobs = self.flat([r.completion.logprobs for r in self.rollouts])
        self.versions = self.flat([r.versions for r in self.rollouts])
        for name in ("old_logprobs", "ref_logprobs"):
            values = [getattr(r, name) for r in self.rollouts]
            if values and all(v is not None for v in values):
                setattr(self, name, self.flat(values))

    def flat(self, values: Sequence[Any]) -> Tensor:
        """float[T] from a number or an array float[T_i] for each rollout; [0] without rollouts."""
        parts = [np.full(r.length, v, dtype=np.float32) for r, v in zip(self.rollouts, values, strict=True)]
        return to_device(np.concatenate(parts or [np.zeros(1, np.float32)]), self.targets.device)

    def split(self, values: Tensor) -> list[np.ndarray]:
        """The inverse: an array float32[T_i] for each rollout from float[T]."""
        ends = np.cumsum([r.length for r in self.rollouts])
        return np.split(values.float().cpu().numpy(), ends[:-1]) if self.rollouts else []


def packed_micro_batch(
    batch: Sequence[Rollout], indices: Sequence[int], device: Any = "cpu",
    layout: Callable[[list[Segment], Any], Layout] = Padded,
) -> MicroBatch:  # fmt: skip
    """The rollouts of `batch` at `indices`, end to end in one row, each prompt once. Without indices, a dummy token of weight
    0: a rank without work must still take part in the collective calls of the forward and backward pass."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i in indices:
        groups.setdefault(tuple(batch[i].prompt_ids), []).append(i)
    order = [i for members in groups.values() for i in members]
    responses = [(prompt, [batch[i].completion.ids for i in members]) for prompt, members in groups.items()]
    row, positions, logit_index, targets = list[Any](), list[Any](), list[Any](), list[Any]()
    segments: list[Segment] = []
    end = 0
    for prompt, siblings in responses or [((0,), [np.zeros(1, np.int32)])]:
        start, length = end, len(prompt)
        row.append(prompt)
        positions.append(np.arange(length))
        end += length
        if len(siblings) > 1:
            segments.append(Segment(start, length))
        for ids in siblings:
            # The prompt's last token predicts the first one of the response; the response's last token predicts nothing and
            # is left out.
            tokens = len(ids) - 1
            row.append(ids[:-1])
            positions.append(length + np.arange(tokens))
            logit_index.append(np.concatenate([[start + length - 1], end + np.arange(tokens)]))
            targets.append(ids)
            if len(siblings) == 1:
                segments.append(Segment(start, length + tokens))
            elif tokens:
                segments.append(Segment(end, tokens, start, length))
            end += tokens
    columns = (row, positions, logit_index, targets)
    input_ids, position_ids, index, target = (to_device(np.concatenate(x).astype(np.int64), device) for x in columns)
    inputs = {"input_ids": input_ids[None], "position_ids": position_ids[None], "layout": layout(segments, device)}
    return MicroBatch([batch[i] for i in order], order, inputs, index, target)


def padded_micro_batch(batch: Sequence[Rollout], indices: Sequence[int], device: Any = "cpu") -> MicroBatch:
    """The rollouts of `batch` at `indices` as rows padded on the right; without indices, a dummy row of weight 0."""
    rollouts = [batch[i] for i in indices]
    rows = [[*r.prompt_ids, *r.completion.ids] for r in rollouts] or [[0, 0]]
    prompts = np.array([[len(r.prompt_ids)] for r in rollouts] or [[1]])
    lengths = np.array([[len(row)] for row in rows])
    column = np.arange(lengths.max())
    # From lengths, never from the pad id: padding and end-of-text are the same token in many models.
    mask = column < lengths
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate(rows)
    logit_index = np.flatnonzero((prompts - 1 <= column) & (column < lengths - 1))
    inputs = {"input_ids": to_device(ids, device), "attention_mask": to_device(mask.astype(np.int64), device)}
    index, targets = to_device(logit_index, device), to_device(ids.ravel()[logit_index + 1], device)
    return MicroBatch(rollouts, list(indices), inputs, index, targets)
