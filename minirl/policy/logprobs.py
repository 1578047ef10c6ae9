"""Log-probs and entropies of response tokens, without ever holding all logits in memory."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from minirl.loss import logprobs_and_entropy

# Elements of a logits chunk by device: 2**26 float32 are 256 MiB. The backward pass adds up the weight gradients of chunks, in
# bfloat16 on a GPU, where few large ones are faster and more exact; a CPU's caches prefer small ones.
LOGITS_CHUNK = {"cpu": 2**26, "cuda": 2**28}
# Programs of a compiled function that torch may make before it gives up: of the head one for each combination of entropies,
# gradient and number of rows (one, or more), which reaches torch's default of 8.
PROGRAMS = 64


class LogprobHead(torch.nn.Module):
    """A causal language model whose forward pass returns log-probs. Only hidden states that predict response tokens go
    through the output layer."""

    def __init__(self, model: Any, temperature: float, vocabulary: int, entropy_grad: bool, compiled: bool = False) -> None:
        """vocabulary: higher ids are padding and get no probability; entropy_grad: whether entropies have a gradient."""
        super().__init__()
        self.model = model
        self.output = LogprobOutput(model.get_output_embeddings(), temperature, vocabulary, entropy_grad, compiled)

    def forward(
        self, inputs: dict[str, Any], logit_index: Tensor, targets: Tensor, entropy: bool = True, top_k: int = 0
    ) -> tuple[Tensor, ...]:
        """(float[T] log-probs, float[T] entropies, zeros unless `entropy`, with top_k float[T, top_k] log-probs of the
        likeliest tokens), nats, of the tempered distribution over the tokenizer's ids. For the arguments see `MicroBatch`."""
        hidden = self.model.base_model(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)[logit_index]
        return self.output(hidden, targets, entropy, top_k)


class LogprobOutput(torch.nn.Module):
    """The model's output layer and the log-probs of its logits, in nearly equal chunks of at most LOGITS_CHUNK elements.

    If there are several, the backward pass recomputes each, so that memory does not grow with tokens times vocabulary. All
    chunks are one call of the module: ZeRO-3 gathers its weights at each call, which all ranks must make equally often, and
    their numbers of chunks differ.
    """

    def __init__(self, layer: torch.nn.Linear, temperature: float, vocabulary: int, entropy_grad: bool, compiled: bool) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.temperature, self.vocabulary, self.entropy_grad = temperature, vocabulary, entropy_grad
        self.reduce = torch.compile(logprobs_and_entropy, dynamic=True) if compiled else logprobs_and_entropy
        if compiled:
            torch._dynamo.config.recompile_limit = PROGRAMS

    def forward(self, hidden: Tensor, targets: Tensor, entropy: bool, top_k: int = 0) -> tuple[Tensor, ...]:
        """What `LogprobHead.forward` returns, from hidden states float[T, H]."""
        count = self.chunks(len(hidden), hidden.device.type)
        if count == 1:
            return self.chunk(hidden, targets, entropy, top_k)
        chunks = [
            checkpoint(self.chunk, h, t, entropy, top_k, use_reentrant=False)
            for h, t in zip(hidden.tensor_split(count), targets.tensor_split(count), strict=True)
        ]
        return tuple(map(torch.cat, zip(*chunks, strict=True)))

    def chunks(self, tokens: int, device: str) -> int:
        """The number of chunks for so many response tokens."""
        rows = max(1, LOGITS_CHUNK[device] // getattr(self.weight, "ds_shape", self.weight.shape)[0])
        return max(1, -(-tokens // rows))

    def chunk(self, hidden: Tensor, targets: Tensor, entropy: bool, top_k: int) -> tuple[Tensor, ...]:
        """`forward` for one chunk."""
        logits = linear(hidden, self.weight, self.bias)[:, : self.vocabulary]
        return self.reduce(logits, targets, self.temperature, entropy, self.entropy_grad, top_k)
