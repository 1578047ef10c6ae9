"""Tests whether a model can be packed: its code may mix sequences in ways that its config does not show."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minirl.policy.attention import Unpackable
from minirl.policy.micro_batches import MicroBatch, padded_micro_batch
from minirl.rollout.types import STOP, Completion, Rollout
from minirl.utils.compiling import is_compilers
from minirl.verify.types import Verdict


def why_not_packed(
    logprobs: Callable[[MicroBatch], Tensor], pack: Callable[[Sequence[Rollout], list[int]], MicroBatch], config: Any,
    tolerance: float,
) -> str | None:  # fmt: skip
    """The reason why a model cannot be packed; None when it can. `config` is the model's.

    Three responses, two of them to the same prompt, must have the same log-probs packed and padded, within `tolerance` nats on
    average. When only the tokens of another sequence change, they may change by at most a hundredth of that: kernels and shapes
    are then the same, so that half precision hides no leak. Every layer must have called the packed attention, since a
    recurrent layer would mix sequences without it.
    """
    # From the middle of the vocabulary: special tokens, at its ends, are too unlikely for the precision of bfloat16.
    tokens = [(config.vocab_size // 2 + t) % config.vocab_size for t in range(16)]

    def trial(prompt: list[int], ids: list[int]) -> Rollout:
        completion = Completion(np.array(ids, np.int32), np.zeros(len(ids), np.float32), STOP)
        return Rollout(0, "", "", prompt, completion, 0, "", Verdict("wrong"), 0.0)

    first, second, last = trial(tokens[:5], tokens[5:9]), trial(tokens[:5], tokens[9:15]), trial(tokens[7:10], tokens[:6])
    order = [0, 1, 2]
    batch = pack([first, second, last], order)
    with torch.no_grad():
        try:
            packed = logprobs(batch)
            other_first = logprobs(pack([trial(tokens[:5], tokens[1:5]), second, last], order))
            other_last = logprobs(pack([first, second, trial(tokens[10:13], tokens[3:9])], order))
        except (Unpackable, TypeError, ValueError, RuntimeError) as error:  # of layers or kernels that cannot run packed
            if isinstance(error, torch.OutOfMemoryError) or is_compilers(error):
                raise
            return " ".join(str(error).split())[:300]
        padded = logprobs(padded_micro_batch([first, second, last], order, batch.targets.device))
    if (calls := batch.inputs["layout"].calls) != config.num_hidden_layers:
        return f"{calls} of its {config.num_hidden_layers} layers attend through transformers' attention interface"
    if (difference := float((packed - padded).abs().mean())) > tolerance:
        return f"log-probs differ by {difference:.2g} nats"
    changes = (packed - other_first)[first.length :], (packed - other_last)[: -last.length]
    leak = max(float(change.abs().max()) for change in changes)
    return f"log-probs change by {leak:.2g} nats with the tokens of another sequence" if leak > tolerance / 100 else None
