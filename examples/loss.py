"""A policy loss of your own: the clipped surrogate of the squared-distance kind (no clip, a pull back to ratio 1).

python train.py --algorithm.loss=examples/loss.py:Pulled --loss.custom='{strength: 0.5}'
"""

from dataclasses import dataclass

from minirl.advantages import option
from minirl.losses import Clip, PolicyLoss, TokenLoss, Tokens


@dataclass(frozen=True)
class Pulled(PolicyLoss):
    """-ratio * A + strength * (log ratio)^2 / 2."""

    strength: float = option(0.1, "of the pull back to the policy before the update")

    def __call__(self, tokens: Tokens, clip: Clip) -> TokenLoss:
        """tokens: log-probs and advantages float[T] of the responses' tokens; clip: the run's clip range, not used here."""
        log_ratio = tokens.log_ratio
        return TokenLoss.of(tokens, -log_ratio.exp() * tokens.advantages + self.strength * log_ratio**2 / 2)
