"""What surrounds a policy loss (losses.py), as pure functions on flat tensors of response tokens: weights of tokens, KL,
importance weights, log-probs of logits. No torch.distributed here: counts are passed in.

Every aggregation is a weight a token, made from whole-mini-batch counts before any micro-batch is cut:
loss = sum_t weight_t * loss_t. So the gradient cannot depend on micro-batches or ranks. Shapes: T response tokens of a
micro-batch, all sequences laid end to end; log-probs and entropies in nats.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def token_weights(lengths: Sequence[int], loss_agg_mode: str, constant: float = 0.0) -> list[float]:
    """The weight of each token of each sequence, float[N], for the N sequences of one whole mini-batch (all ranks).

    lengths: int[N] response tokens, 0 for a sequence that is left out of the loss and of every count.
    "token-mean": 1 / all tokens. "seq-mean-token-mean": 1 / (sequences * own length). "seq-mean-token-sum-norm": 1 / (sequences
    * constant), as in Dr. GRPO, where the constant is the longest response allowed. A mini-batch that is left out whole has
    weights 0.
    """
    tokens, sequences = sum(lengths), sum(length > 0 for length in lengths)
    if loss_agg_mode == "seq-mean-token-sum-norm" and constant <= 0:
        raise ValueError(f"loss_agg_mode {loss_agg_mode!r} needs a positive constant, not {constant}")
    denominators = {
        "token-mean": lambda length: tokens,
        "seq-mean-token-mean": lambda length: sequences * length,
        "seq-mean-token-sum-norm": lambda length: sequences * constant,
    }
    if loss_agg_mode not in denominators:
        raise ValueError(f"unknown loss_agg_mode {loss_agg_mode!r}: known are {', '.join(denominators)}")
    return [1 / denominators[loss_agg_mode](length) if length else 0.0 for length in lengths]


def kl(logprobs: Tensor, other_logprobs: Tensor, estimator: str) -> Tensor:
    """float[T], estimate of KL(policy || other) on tokens sampled from the policy (Schulman, "Approximating KL divergence").

    k1 = log p/q, unbiased; k2 = (log p/q)^2 / 2; k3 = q/p - 1 - log q/p, unbiased and never negative. That is of values: the
    gradient of k1 as it stands is 0 on average, so k1 carries the score-function gradient, k1 times that of log p, which on
    average is the KL's own, as is k2's; k3's is another divergence's.
    """
    log_ratio = (logprobs - other_logprobs).clamp(-20, 20)
    if estimator == "k1":
        value = log_ratio.detach()
        return value + value * (logprobs - logprobs.detach())
    if estimator == "k2":
        return log_ratio.square() / 2
    if estimator == "k3":
        return (-log_ratio).exp() - 1 + log_ratio
    raise ValueError(f"unknown KL estimator {estimator!r}: known are k1, k2, k3")


def importance_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, rollout_is: str, low: float, high: float, lengths: Sequence[int] = ()
) -> Tensor:
    """float[T], without gradient: trainer's old probability over the sampler's, for the gap between the two.

    "none": 1. On each token: "truncate": min(ratio, high), truncated importance sampling (Yao et al. 2025); "mask": ratio
    inside [low, high], 0 outside (IcePop). On whole responses of `lengths` tokens, whose ratio is the product of their tokens':
    the unbiased one, of large variance: "sequence_truncate" and "sequence_mask" (Liu et al. 2025), the same of that ratio;
    "sequence_reject": 1 where the geometric mean of the tokens' ratios is inside [low, high], 0 outside.
    """
    log_ratio = (old_logprobs - rollout_logprobs).detach()
    level, _, how = rollout_is.rpartition("_")
    if rollout_is not in ("none", "truncate", "mask", "sequence_truncate", "sequence_mask", "sequence_reject"):
        raise ValueError(
            f"unknown importance correction {rollout_is!r}: known are none, truncate, mask, sequence_truncate, sequence_mask, "
            "sequence_reject"
        )
    if level:
        parts = log_ratio.split(list(lengths) or [len(log_ratio)])
        values = [part.mean() if how == "reject" else part.sum() for part in parts]
        log_ratio = torch.cat([value.expand(len(part)) for value, part in zip(values, parts, strict=True)])
    ratio = log_ratio.clamp(-20, 20).exp()
    if how == "none":
        return torch.ones_like(ratio)
    if how == "truncate":
        return ratio.clamp(max=high)
    return torch.where((ratio >= low) & (ratio <= high), torch.ones_like(ratio) if how == "reject" else ratio, 0.0)


def logprobs_and_entropy(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, entropy: bool = True, entropy_grad: bool = True, top_k: int = 0
) -> tuple[Tensor, ...]:
    """(float[T] log-prob of each target, float[T] full-vocabulary entropy), nats, of softmax(logits / temperature), and with
    top_k float[T, top_k], the log-probs of the likeliest tokens, the likeliest first.

    logits: [T, V], any precision, computed in float32; targets: int[T]. entropy: False gives zeros, for one pass over the
    logits less; entropy_grad: whether it carries a gradient, which an entropy bonus needs and a log does not.
    """
    logits = logits.float() / temperature
    normaliser = logits.logsumexp(-1)
    chosen = logits.gather(-1, targets[:, None])[:, 0] - normaliser
    top = (logits.topk(min(top_k, logits.shape[-1])).values - normaliser[:, None],) if top_k else ()
    if not entropy:
        return chosen, torch.zeros_like(normaliser), *top
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropies = normaliser - (logits.softmax(-1) * logits).sum(-1)
    return chosen, entropies, *top


def overlong_penalty(length: int, maximum: int, buffer: int) -> float:
    """DAPO's soft overlong punishment in [-1, 0]: 0 up to maximum - buffer tokens, then linear down to -1 at the maximum."""
    if buffer <= 0:
        return 0.0
    return min(0.0, max(-1.0, (maximum - buffer - length) / buffer))
