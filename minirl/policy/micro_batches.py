"""Micro-batches: what one forward pass over rollouts takes, packed or padded."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minirl.policy.attention import Padded, Segment
from minirl.rollout.types import Rollout


@dataclass
class MicroBatch:
    """What one forward and backward pass reads, on its device: T response tokens in all, response after response.

    indices: place of each rollout in what was split; inputs: of the model; logit_index: int[T], which of its outputs (rows end
    to end) predicts each response token; targets: int[T], the tokens. The rest is set by `add_loss_inputs`: float[T] each, and
    versions int[T]; old_logprobs and ref_logprobs stay None where the rollouts have none. selected: bool[T], tokens that the
    policy loss treats otherwise, where it has chosen some.
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

    def add_loss_inputs(self, weights: Sequence[float]) -> None:
        """Sets all that the loss reads besides; weights: of each token of a response, one a rollout of what was split."""
        self.token_weights = self.flat([weights[i] for i in self.indices])
        self.advantages = self.flat([r.advantages for r in self.rollouts])
        self.rollout_logprobs = self.flat([r.completion.logprobs for r in self.rollouts])
        self.versions = self.flat([r.version for r in self.rollouts])
        for name in ("old_logprobs", "ref_logprobs"):
            values = [getattr(r, name) for r in self.rollouts]
            if values and all(v is not None for v in values):
                setattr(self, name, self.flat(values))

    def flat(self, values: Sequence[Any]) -> Tensor:
        """float[T] from one number or one array float[T_i] a rollout; of no rollouts, float[1], a 0."""
        lengths = [r.length for r in self.rollouts] or [1]
        if all(np.ndim(v) == 0 for v in values):
            tokens = np.repeat(np.array(values or [0], dtype=np.float32), lengths)
        else:
            tokens = np.concatenate([np.full(n, v, dtype=np.float32) for v, n in zip(values, lengths, strict=True)])
        return to_device(tokens, self.targets.device)

    def split(self, values: Tensor) -> list[np.ndarray]:
        """One array float32[T_i] a rollout from float[T]."""
        lengths = [r.length for r in self.rollouts]
        return np.split(values.float().cpu().numpy(), np.cumsum(lengths)[:-1]) if lengths else []


def to_device(values: np.ndarray, device: Any) -> Tensor:
    """A tensor of `values`; to a GPU from pinned memory, without waiting for the copy."""
    tensor = torch.from_numpy(values)
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def packed_micro_batch(
    all_rollouts: Sequence[Rollout], indices: list[int], device: Any = "cpu", layout: Any = Padded
) -> MicroBatch:
    """The rollouts at `indices`, end to end in one row, each prompt once. With none, one token whose only value is 0: a rank
    without work must still take part in every collective call of the forward and backward pass. layout: of the attention."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for i in indices:
        groups.setdefault(tuple(all_rollouts[i].prompt_ids), []).append(i)
    ids: list[Any] = []
    positions: list[Any] = []
    logit_index: list[Any] = []
    segments: list[Segment] = []
    end = 0
    for prompt, members in groups.items():
        start, length = end, len(prompt)
        ids.append(prompt)
        positions.append(np.arange(length))
        end += length
        if len(members) > 1:
            segments.append(Segment(start, length))
        for i in members:
            # The token at c + 1 is predicted at c, a response's first at the prompt's last; its own last predicts none.
            response = all_rollouts[i].completion.ids[:-1]
            ids.append(response)
            positions.append(np.arange(length, length + len(response)))
            logit_index.append(np.concatenate([[start + length - 1], np.arange(end, end + len(response))]))
            if len(members) == 1:
                segments.append(Segment(start, length + len(response)))
            elif len(response):
                segments.append(Segment(end, len(response), start, length))
            end += len(response)
    if not indices:
        ids, positions, logit_index, segments = [[0]], [np.zeros(1)], [np.zeros(1)], [Segment(0, 1)]
    rollouts = [all_rollouts[i] for members in groups.values() for i in members]
    targets: list[Any] = [r.completion.ids for r in rollouts] or [[0]]
    row, position, index, target = (
        to_device(np.concatenate(x).astype(np.int64), device) for x in (ids, positions, logit_index, targets)
    )
    inputs = {"input_ids": row[None], "position_ids": position[None], "layout": layout(segments, device)}
    return MicroBatch(rollouts, [i for members in groups.values() for i in members], inputs, index, target)


def padded_micro_batch(all_rollouts: Sequence[Rollout], indices: list[int], device: Any = "cpu") -> MicroBatch:
    """The rollouts at `indices` as rows padded on the right; with none, one row of two tokens whose only value is 0."""
    rollouts = [all_rollouts[i] for i in indices]
    sequences = [[*r.prompt_ids, *r.completion.ids.tolist()] for r in rollouts] or [[0, 0]]
    prompts = [len(r.prompt_ids) for r in rollouts] or [1]
    width = max(map(len, sequences))
    ids = torch.tensor([s + [0] * (width - len(s)) for s in sequences])
    # From lengths, never from the pad id: pad and end-of-text are the same token in many models.
    mask = (torch.arange(width) < torch.tensor([[len(s)] for s in sequences])).long()
    rows = enumerate(zip(sequences, prompts, strict=True))
    logit_index = torch.cat([torch.arange(i * width + p - 1, i * width + len(s) - 1) for i, (s, p) in rows])
    targets = ids.flatten()[logit_index + 1]
    inputs = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
    return MicroBatch(rollouts, indices, inputs, logit_index.to(device), targets.to(device))
