"""Policy losses by name: what is made of a token's log-probs and advantage. The default is PPO's clipped surrogate.

Each is a frozen dataclass with `__call__`: pure, on flat tensors of the response tokens of a micro-batch, whole responses laid
end to end. What a loss reads of a whole mini-batch it gets from `select`, before that is cut, so that the gradient depends on
neither micro-batches nor ranks. This module does not import torch, so that `--help` can list all without it.

A new one is a class in a file of your own (`--algorithm.loss=file.py:Class`), or here, with its name in LOSSES.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from minirl.advantages import check, option, own_class

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Clip:
    """Ranges of the clipped surrogate: ratio in [1 - low, 1 + high]; dual > 1 bounds the loss of negative advantages."""

    low: float = 0.2
    high: float = 0.2
    dual: float | None = 3.0


@dataclass(frozen=True)
class Tokens:
    """What a loss reads of a micro-batch: float[T] log-probs, nats, of the policy, with gradient, and of the policy before the
    update, and advantages; lengths: tokens of each response; selected: bool[T], what `PolicyLoss.select` gave, or None;
    entropies: float[T], of the policy; top_logprobs: float[T, K], its log-probs of the likeliest tokens there, with gradient,
    the likeliest first, for a loss that sets `PolicyLoss.top_k`."""

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    lengths: Sequence[int] = ()
    selected: Tensor | None = None
    entropies: Tensor | None = None
    top_logprobs: Tensor | None = None

    @property
    def log_ratio(self) -> Tensor:
        """float[T], log pi / pi_old, clamped to +-20 before anyone takes its exp."""
        return (self.logprobs - self.old_logprobs).clamp(-20, 20)

    def mean(self, values: Tensor) -> Tensor:
        """float[T]: at each token, the mean of `values` over the tokens of its response."""
        return self.over_responses(values, lambda part: part.mean())

    def over_responses(self, values: Tensor, reduce: Any) -> Tensor:
        """float[T]: at each token, `reduce` of the part of `values` that its response has."""
        import torch

        parts = values.split(list(self.lengths) or [len(values)])  # a rank without work computes one token of no response
        return torch.cat([reduce(part).expand(len(part)) for part in parts])


@dataclass(frozen=True)
class TokenLoss:
    """A loss a token with what it was made of.

    loss: float[T]; clipped_high, clipped_low, clipped_dual: bool[T], where each clip took the gradient away; old_logprobs,
    rollout_is, ref_kl: float[T], the denominator of the ratio, the importance weight and the KL to the reference.
    """

    loss: Tensor
    clipped_high: Tensor
    clipped_low: Tensor
    clipped_dual: Tensor
    old_logprobs: Tensor
    rollout_is: Tensor
    ref_kl: Tensor

    @classmethod
    def of(cls, tokens: Tokens, loss: Tensor, **clipped: Tensor) -> TokenLoss:
        """With importance weight 1 and KL 0; a mask that is not given is false everywhere."""
        zeros = loss.new_zeros(len(loss))
        masks = {"clipped_high": zeros.bool(), "clipped_low": zeros.bool(), "clipped_dual": zeros.bool()} | clipped
        return cls(loss, **masks, old_logprobs=tokens.old_logprobs, rollout_is=zeros + 1, ref_kl=zeros)


def clipped_surrogate(tokens: Tokens, ratio: Tensor, clip: Clip) -> TokenLoss:
    """PPO's clipped surrogate a token (Schulman et al. 2017), clip-higher (DAPO) and dual clip (Ye et al. 2020). ratio:
    float[T]."""
    advantages = tokens.advantages
    objective = (ratio * advantages).minimum(ratio.clamp(1 - clip.low, 1 + clip.high) * advantages)
    high = (ratio > 1 + clip.high) & (advantages > 0)
    low = (ratio < 1 - clip.low) & (advantages < 0)
    if clip.dual is None:
        return TokenLoss.of(tokens, -objective, clipped_high=high, clipped_low=low)
    floor = clip.dual * advantages
    dual = (advantages < 0) & (objective < floor)
    return TokenLoss.of(tokens, -floor.where(dual, objective), clipped_high=high, clipped_low=low, clipped_dual=dual)


@dataclass(frozen=True)
class PolicyLoss:
    """(Tokens, Clip) -> TokenLoss. clip_low, clip_high, loss_agg_mode: what it asks of the run in place of the estimator, which
    the config can override; needs_old_logprobs: `select` reads them for every response of a mini-batch; top_k: how many of
    the likeliest tokens' log-probs it reads."""

    name: ClassVar[str] = ""
    source: ClassVar[str] = ""
    clip_low: ClassVar[float | None] = None
    clip_high: ClassVar[float | None] = None
    loss_agg_mode: ClassVar[str | None] = None
    needs_old_logprobs: ClassVar[bool] = False
    top_k: ClassVar[int] = 0

    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss:
        """The loss of each token. TypeError for a subclass that does not say what it is."""
        raise TypeError(f"{type(self).__name__} does not define __call__")

    def select(
        self, advantages: NDArray[np.floating], old_logprobs: NDArray[np.floating], rng: np.random.Generator
    ) -> NDArray[np.bool_]:
        """bool[T]: tokens of a whole mini-batch, of all ranks, that the loss treats otherwise. See needs_old_logprobs."""
        raise TypeError(f"{type(self).__name__} has needs_old_logprobs and does not define select")


@dataclass(frozen=True)
class PPO(PolicyLoss):
    """-min(r A, clip(r, 1 - low, 1 + high) A), for A < 0 at most -dual A; r is the ratio to the policy before the update."""

    name, source = "ppo", "Schulman et al. 2017, DAPO 2503.14476, dual clip 1912.09729"

    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss:
        return clipped_surrogate(tokens, tokens.log_ratio.exp(), clip)


@dataclass(frozen=True)
class Reinforce(PolicyLoss):
    """-A log pi: no ratio, no clip; the plain policy gradient, and GPG's loss."""

    name, source = "reinforce", "Williams 1992, GPG 2504.02546"

    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss:
        return TokenLoss.of(tokens, -tokens.advantages * tokens.logprobs)


@dataclass(frozen=True)
class GSPO(PolicyLoss):
    """PPO's clip on one ratio a response, exp of the mean log-ratio of its tokens; at each token the gradient is that of its
    own log-prob, so that advantages may differ from token to token. No dual clip."""

    name, source = "gspo", "arXiv 2507.18071"
    clip_low, clip_high, loss_agg_mode = 3e-4, 4e-4, "seq-mean-token-mean"

    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss:
        log_ratio = tokens.logprobs - tokens.logprobs.detach() + tokens.mean(tokens.log_ratio).detach()
        return clipped_surrogate(tokens, log_ratio.exp(), replace(clip, dual=None))


@dataclass(frozen=True)
class GMPO(PolicyLoss):
    """-A exp(mean over the response of its tokens' log-ratios), each first clipped to [-low, high] where that lowers the
    objective; A the mean over the response."""

    name, source = "gmpo", "arXiv 2507.20673"
    clip_low, clip_high, loss_agg_mode = 0.4, 0.4, "seq-mean-token-mean"

    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss:
        sign, log_ratio = tokens.advantages.sign(), tokens.log_ratio
        clipped = sign * (sign * log_ratio).minimum(sign * log_ratio.clamp(-clip.low, clip.high))
        loss = -tokens.mean(tokens.advantages) * tokens.mean(clipped).exp()
        high, low = (log_ratio > clip.high) & (sign > 0), (log_ratio < -clip.low) & (sign < 0)
        return TokenLoss.of(tokens, loss, clipped_high=high, clipped_low=low)


@dataclass(frozen=True)
class CISPO(PolicyLoss):
    """-sg(clip(r, 1 - low, 1 + high)) A log pi: no token loses its gradient, its weight is bounded. low 1: no lower bound."""

    name, source = "cispo", "arXiv 2506.13585"
    clip_low, clip_high, loss_agg_mode = 1.0, 4.0, "token-mean"

    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss:
        weight = tokens.log_ratio.exp().clamp(1 - clip.low, 1 + clip.high).detach()
        return TokenLoss.of(tokens, -weight * tokens.advantages * tokens.logprobs)


@dataclass(frozen=True)
class SAPO(PolicyLoss):
    """-A sigmoid(tau (r - 1)) 4 / tau: a soft gate in place of the clip, tighter for A <= 0; its gradient is PPO's at r = 1."""

    name, source = "sapo", "arXiv 2511.20347"
    loss_agg_mode = "seq-mean-token-mean"

    tau_pos: float = option(1.0, "temperature of the gate for A > 0", minimum=1e-6)
    tau_neg: float = option(1.05, "temperature of the gate for the others", minimum=1e-6)

    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss:
        positive = (tokens.advantages > 0).to(tokens.advantages.dtype)
        tau = self.tau_pos * positive + self.tau_neg * (1 - positive)
        return TokenLoss.of(tokens, -tokens.advantages * (tau * (tokens.log_ratio.exp() - 1)).sigmoid() * 4 / tau)


def covariance(advantages: NDArray[np.floating], logprobs: NDArray[np.floating]) -> NDArray[np.float64]:
    """float[T]: (A - mean A) (log pi - mean log pi), means over all T tokens: what drives the policy's entropy down."""
    a, p = advantages.astype(np.float64), logprobs.astype(np.float64)
    return (a - a.mean()) * (p - p.mean())


@dataclass(frozen=True)
class ClipCov(PolicyLoss):
    """PPO's clip, and no gradient at `share` of the tokens, drawn among those of a covariance between `low` and `high`."""

    name, source = "clip_cov", "arXiv 2505.22617"
    needs_old_logprobs = True

    share: float = option(2e-4, "of all tokens of a mini-batch, at least one", minimum=0)
    low: float = option(1.0, "covariance above which tokens are drawn")
    high: float = option(5.0, "covariance below which tokens are drawn")

    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss:
        surrogate = clipped_surrogate(tokens, tokens.log_ratio.exp(), replace(clip, dual=None))
        return surrogate if tokens.selected is None else replace(surrogate, loss=surrogate.loss * ~tokens.selected)

    def select(
        self, advantages: NDArray[np.floating], old_logprobs: NDArray[np.floating], rng: np.random.Generator
    ) -> NDArray[np.bool_]:
        cov = covariance(advantages, old_logprobs)
        candidates = np.flatnonzero((cov > self.low) & (cov < self.high))
        selected = np.zeros(len(cov), dtype=bool)
        selected[rng.permutation(candidates)[: max(1, int(self.share * len(cov)))]] = True
        return selected


@dataclass(frozen=True)
class KLCov(PolicyLoss):
    """-r A without a clip, and coef |log r| more at the `share` of the tokens that have the largest covariance."""

    name, source = "kl_cov", "arXiv 2505.22617"
    needs_old_logprobs = True

    share: float = option(2e-4, "of all tokens of a mini-batch, at least one", minimum=0)
    coef: float = option(1.0, "weight of the penalty", minimum=0)

    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss:
        loss = -tokens.log_ratio.exp() * tokens.advantages
        penalty = 0 if tokens.selected is None else self.coef * tokens.log_ratio.abs() * tokens.selected
        return TokenLoss.of(tokens, loss + penalty)

    def select(
        self, advantages: NDArray[np.floating], old_logprobs: NDArray[np.floating], rng: np.random.Generator
    ) -> NDArray[np.bool_]:
        selected = np.zeros(len(advantages), dtype=bool)
        order = np.argsort(-covariance(advantages, old_logprobs), kind="stable")
        selected[order[: max(1, int(self.share * len(order)))]] = True
        return selected


@dataclass(frozen=True)
class SimKO(PolicyLoss):
    """PPO's clip, with other gradients where a response forks, at its tokens of entropy above the quantile `tau`: for A > 0 a
    share `alpha` goes to the `top_k` likeliest tokens alike; for A < 0 the likeliest token is punished `penalty` times."""

    name, source = "simko", "arXiv 2510.14807"

    top_k: int = option(3, "likeliest tokens that share a reward", minimum=1)  # type: ignore[misc]
    alpha: float = option(0.01, "their share of it", minimum=0, maximum=1)
    tau: float = option(0.8, "quantile of the entropies of a response above which it forks", minimum=0, maximum=1)
    penalty: float = option(1.1, "times the advantage of the likeliest token, where it is negative", minimum=0)

    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss:
        if tokens.entropies is None or tokens.top_logprobs is None:
            raise ValueError("simko reads Tokens.entropies and Tokens.top_logprobs")
        entropies, old, advantages = tokens.entropies.detach(), tokens.logprobs.detach(), tokens.advantages
        forks = entropies > tokens.over_responses(entropies, lambda part: part.quantile(self.tau))
        # The paper mixes the ratio with those of the likeliest tokens, each rescaled, without gradient, to the ratio's value:
        # so the value stays, and the gradient is the ratio times that of the mixed log-probs.
        shared = self.alpha * (tokens.top_logprobs.mean(-1) - tokens.logprobs) * (forks & (advantages > 0))
        punished = forks & (advantages < 0) & (old >= tokens.top_logprobs[:, 0])
        log_ratio = tokens.log_ratio + shared - shared.detach()
        scaled = replace(tokens, advantages=advantages.where(~punished, self.penalty * advantages))
        return clipped_surrogate(scaled, log_ratio.exp(), replace(clip, dual=None))


LOSSES: dict[str, type[PolicyLoss]] = {
    cls.name: cls for cls in (PPO, Reinforce, GSPO, GMPO, CISPO, SAPO, ClipCov, KLCov, SimKO)
}
LOSSES_WITH_OPTIONS = {name: cls for name, cls in LOSSES.items() if fields(cls)}


def build_loss(name: str, options: Any = None) -> PolicyLoss:
    """The policy loss called `name`, or that of the user's own, file.py:Class. options: as of `minirl.advantages.build`."""
    if ".py:" in name:
        try:
            return own_class(name, PolicyLoss)(**(options.custom if options is not None else {}))
        except TypeError as error:
            raise ValueError(f"loss.custom={options.custom} does not fit {name}: {error}") from None
    check(name in LOSSES, f"unknown loss {name!r}: known are {', '.join(LOSSES)}, or file.py:Class")
    return getattr(options, name, None) or LOSSES[name]()
