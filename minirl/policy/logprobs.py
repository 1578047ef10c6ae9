"""What a forward pass over rollouts takes and gives: micro-batches, packed or padded, and log-probs of their responses."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from minirl.loss import logprobs_and_entropy
from minirl.policy.attention import Layout, Unpackable
from minirl.policy.micro_batches import MicroBatch, padded_micro_batch
from minirl.rollout.types import STOP, Completion, Rollout
from minirl.verify.types import Verdict

# Elements of a logits chunk: 2**26 float32 are 256 MiB. Larger ones are recomputed in the backward pass instead of kept.
LOGITS_CHUNK = 2**26


class LogprobHead(torch.nn.Module):
    """A causal language model whose forward gives log-probs of response tokens: only their positions reach the output layer."""

    def __init__(self, model: Any, temperature: float, vocabulary: int, entropy_grad: bool, compiled: bool = False) -> None:
        """vocabulary: ids from there on get no probability; entropy_grad: whether entropies carry a gradient."""
        super().__init__()
        self.model = model
        self.output = ScoringOutput(model.get_output_embeddings(), temperature, vocabulary, entropy_grad, compiled)

    def forward(
        self, inputs: dict[str, Any], logit_index: Tensor, targets: Tensor, entropy: bool = True
    ) -> tuple[Tensor, Tensor]:
        """(float[T] log-probs, float[T] entropies, zeros unless `entropy`), nats, of the tempered distribution over the
        tokenizer's ids."""
        hidden = self.model.base_model(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)[logit_index]
        return self.output(hidden, targets, entropy)


class ScoringOutput(torch.nn.Module):
    """The output layer together with what is made of its logits, on the layer's own weights.

    Logits come in chunks of LOGITS_CHUNK, computed again in the backward pass where there are several: memory does not grow
    with tokens times vocabulary. All chunks are one call of one module, since ZeRO-3 gathers a module's weights at each call on
    all ranks together, and ranks differ in their number of chunks.
    """

    def __init__(self, layer: torch.nn.Linear, temperature: float, vocabulary: int, entropy_grad: bool, compiled: bool) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.temperature, self.vocabulary, self.entropy_grad = temperature, vocabulary, entropy_grad
        self.reduce = torch.compile(logprobs_and_entropy, dynamic=True) if compiled else logprobs_and_entropy

    def forward(self, hidden: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies, float[T], of hidden states float[T, H]."""
        size = max(1, LOGITS_CHUNK // getattr(self.weight, "ds_shape", self.weight.shape)[0])
        if len(hidden) <= size:
            return self.score(hidden, targets, entropy)
        chunks = [
            checkpoint(self.score, h, t, entropy, use_reentrant=False)
            for h, t in zip(hidden.split(size), targets.split(size), strict=True)
        ]
        return torch.cat([c[0] for c in chunks]), torch.cat([c[1] for c in chunks])

    def score(self, hidden: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor]:
        """Those of one chunk."""
        logits = linear(hidden, self.weight, self.bias)[:, : self.vocabulary]
        return self.reduce(logits, targets, self.temperature, entropy, self.entropy_grad)


def why_not_packed(
    logprobs: Callable[[MicroBatch], Tensor], pack: Callable[[Sequence[Rollout], list[int]], MicroBatch], config: Any,
    tolerance: float,
) -> str | None:  # fmt: skip
    """What keeps a model from being packed, found by trying; None when nothing does.

    Two responses to one prompt and one to another must have the same log-probs packed and padded, to `tolerance` nats on
    average, and a hundredth of it where only the tokens of another sequence change: the kernels do the same for the others
    then, so even half precision shows the smallest leak. Every layer of the transformers `config` must have attended by the
    layout: a recurrent layer would mix sequences unseen.
    """
    # From the middle of the vocabulary: special tokens, at its ends, are so unlikely that half precision says little of them.
    tokens = [(config.vocab_size // 2 + t) % config.vocab_size for t in range(16)]

    def trial(prompt: list[int], ids: list[int]) -> Rollout:
        sample = Completion(np.array(ids, np.int32), np.zeros(len(ids), np.float32), STOP)
        return Rollout(0, "", "", prompt, sample, 0, "", Verdict("wrong"), 0.0)

    rollouts = [trial(tokens[:5], tokens[5:9]), trial(tokens[:5], tokens[9:15]), trial(tokens[7:10], tokens[:6])]
    # Once the first response is another, once the other prompt with its response.
    changed = [
        [trial(tokens[:5], tokens[1:5]), *rollouts[1:]],
        [*rollouts[:2], trial(tokens[10:13], tokens[3:9])],
    ]
    batch = pack(rollouts, [0, 1, 2])
    with torch.no_grad():
        try:
            packed = logprobs(batch)
            beside = [logprobs(pack(others, [0, 1, 2])) for others in changed]
        except torch.OutOfMemoryError:
            raise
        except (Unpackable, TypeError, ValueError, RuntimeError) as error:  # of layers or a kernel that do not take the row
            return " ".join(str(error).split())[:300]
        padded = logprobs(padded_micro_batch(rollouts, batch.indices, batch.targets.device))
    layout: Layout = batch.inputs["layout"]
    if layout.calls != config.num_hidden_layers:
        return f"{layout.calls} of its {config.num_hidden_layers} layers attend through transformers' attention interface"
    difference = float((packed - padded).abs().mean())
    if difference > tolerance:
        return f"log-probs differ by {difference:.2g} nats"
    first, last = rollouts[0].length, rollouts[2].length  # tokens that were changed, at the ends of the row
    leak = max(float((packed - beside[0])[first:].abs().max()), float((packed - beside[1])[:-last].abs().max()))
    return f"log-probs change by {leak:.2g} nats with the tokens of another sequence" if leak > tolerance / 100 else None
