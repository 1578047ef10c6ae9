"""The five estimators that the EDAS paper compares, from the plainest on: GRPO, DAPO, PKPO, entropy shaping, EDAS.

The paper: "Leveraging Error Diversity in Group Rollouts for Reinforcement Learning" (arXiv 2605.17333). Pure numpy: no torch,
no communication, no randomness. docs/algorithms/ explains each with numbers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import comb, log
from typing import Any

import numpy as np

from minirl.advantages.group import Estimator, Floats, Group, Requirements, Wrapper, check, option


@dataclass(frozen=True)
class GRPO(Estimator):
    """A_i = (r_i - mean) / (std + 1e-6), over one group, std with ddof 1; without std it is Dr. GRPO.

    A group of one, or one whose rewards are all equal, gives 0.
    """

    name, source = "grpo", "arXiv 2402.03300; Dr. GRPO 2503.20783"
    requirements = Requirements(False, clip_low=0.2, clip_high=0.2, loss_agg_mode="seq-mean-token-mean")

    std: bool = option(True, "divide by the group's standard deviation; false is Dr. GRPO")

    def __call__(self, group: Group) -> Floats:
        """float[N] advantages of `group`."""
        return centred(group.rewards, self.std)


@dataclass(frozen=True)
class DAPO(GRPO):
    """GRPO's advantage; clip-higher, dynamic sampling and the token-mean loss are asked of the run."""

    name, source = "dapo", "arXiv 2503.14476"
    requirements = Requirements(dynamic_sampling=True, clip_low=0.2, clip_high=0.28, loss_agg_mode="token-mean")


@dataclass(frozen=True)
class PKPO(Estimator):
    """Pass@k policy optimisation for binary rewards: the k-subset reward of each response, less a baseline.

    Right: k/n. Wrong: k/n * rho(n-1, c, k-1), rho(n, c, k) = 1 - C(n-c, k) / C(n, k), the chance that k of n hold one of the
    c right ones. Dividing by the std would undo the method (a two-valued group is affine invariant): off by default.
    """

    name, source = "pkpo", "arXiv 2505.15201"

    k: Any = option(8, "the k of pass@k, at most the samples of a group", at_least=1)
    baseline: str = option(
        "mean", "mean: the group's; sloo, the paper's: the others' without it; sloo-1: right C(n-c, k-1) / C(n, k), wrong 0",
        choices=("mean", "sloo", "sloo-1"),
    )  # fmt: skip
    std: bool = option(False, "divide by the standard deviation, which turns the method back into GRPO for few right answers")

    @property
    def requirements(self) -> Requirements:
        return replace(GRPO.requirements, min_group_size=max(2, round(max(self.values("k"))) + (self.baseline == "sloo")))

    def __call__(self, group: Group) -> Floats:
        """float[N] advantages of `group`; with fewer than k valid responses k is their number. ValueError for rewards other
        than 1 for right and 0 for wrong."""
        binary(group, "pkpo")
        n, c = int(group.valid.sum()), int(group.right.sum())
        if n == 0:
            return np.zeros(len(group.rewards))
        k = min(round(group.now(self.k)), n)
        if self.baseline == "sloo-1":
            return np.where(group.right, comb(n - c, k - 1) / comb(n, k), 0.0)
        rewards = np.where(group.valid, np.where(group.correct, *subset_rewards(n, c, k)), np.nan)
        if self.baseline == "mean" or n == 1:
            return centred(rewards, self.std)
        others = [mean_reward(n - 1, c - right, min(k, n - 1)) for right in (True, False)]
        return np.where(group.valid, rewards - np.where(group.correct, *others), 0.0)


def subset_rewards(n: int, c: int, k: int) -> tuple[float, float]:
    """(right, wrong): PKPO's reward of a response among n with c right ones. Unbiased: their sum over a group, each times the
    gradient of its log-prob, has the gradient of pass@k as its mean (eq. 8)."""
    return k / n, k / n * rho(n - 1, min(c, n - 1), k - 1)  # with c = n no response is wrong


def mean_reward(n: int, c: int, k: int) -> float:
    """The mean of PKPO's rewards over a group of n responses, c of them right; 0 for c < 0, which does not occur."""
    right, wrong = subset_rewards(n, max(c, 0), k)
    return (c * right + (n - c) * wrong) / n


def binary(group: Group, name: str) -> None:
    """ValueError unless right responses have reward 1 and wrong ones 0."""
    check(
        np.array_equal(group.rewards[group.valid], group.correct[group.valid].astype(float)),
        f"{name} is defined for rewards 1 (right) and 0 (wrong), not {group.rewards.tolist()}: use grpo or dapo",
    )


def centred(rewards: Floats, std: bool) -> Floats:
    """float[N]: rewards minus their mean, over their std (ddof 1) if asked; NaN rewards are left out and get 0."""
    valid = ~np.isnan(rewards)
    advantages = np.zeros(len(rewards))
    known = rewards[valid]
    if len(known) > 1 and np.ptp(known) > 0:  # ptp, not std: float noise in the mean must not look like a signal
        deviations = known - known.mean()
        advantages[valid] = deviations / (known.std(ddof=1) + 1e-6) if std else deviations
    return advantages


def rho(n: int, c: int, k: int) -> float:
    """The chance that k of n responses, c of them right, hold a right one: unbiased pass@k (Chen et al. 2021)."""
    if not 0 <= c <= n or not 0 <= k <= n:
        raise ValueError(f"pass@k needs 0 <= c <= n and 0 <= k <= n, not n={n}, c={c}, k={k}")
    return (comb(n, k) - comb(n - c, k)) / comb(n, k)  # integers up to one division: correctly rounded


@dataclass(frozen=True)
class EntropyShaped(Wrapper):
    """Entropy-shaped advantage: A_t + min(alpha * H_t, |A_t| / kappa) at each token t; A_t = 0 stays 0."""

    name, source = "entropy", "arXiv 2506.14758"

    alpha: Any = option(0.4, "weight of the policy's entropy", at_least=0)
    kappa: Any = option(2.0, "a change is at most |A| / kappa; more than 1", above=1)
    base: Estimator = field(default=DAPO(), kw_only=True)

    @property
    def requirements(self) -> Requirements:
        return replace(self.base.requirements, needs_entropy=True)

    def __call__(self, group: Group) -> list[Floats]:
        """N arrays float[T_i]; raises ValueError when the group came without entropies."""
        if group.entropies is None:
            raise ValueError("the entropy-shaped advantage needs Group.entropies")
        alpha, kappa = group.now(self.alpha), group.now(self.kappa)
        advantages = self.base(group)
        return [a + np.minimum(alpha * h, np.abs(a) / kappa) for a, h in zip(advantages, group.entropies, strict=True)]


@dataclass(frozen=True)
class EDAS(Wrapper):
    """Error diversity advantage shaping: repeated wrong answers are punished more, rare ones less; the right are untouched.

    A wrong response keeps at least (1 - 1/kappa) of its advantage's magnitude and never changes sign. One whose advantage is
    not negative, as graded or shaped rewards can make it, stays as it is: no wrong answer is ever rewarded more.
    """

    name, source = "edas", "arXiv 2605.17333"

    alpha: Any = option(0.4, "strength where wrong answers differ (branch C)", at_least=0)
    beta: Any = option(0.2, "strength where all wrong answers are equal (branch B); the authors' launcher has 0.3", at_least=0)
    kappa: Any = option(2.0, "a change is at most |A| / kappa; more than 1: a wrong answer must stay punished", above=1)
    base: Estimator = field(default=GRPO(), kw_only=True)

    def __call__(self, group: Group) -> Floats:
        """float[N]: the base's advantages, those of wrong responses shaped."""
        advantages = self.advantages(group)
        return advantages + self.change(advantages, group)

    def change(self, advantages: Floats, group: Group) -> Floats:
        """float[N], what is added to the base's `advantages`: `delta`, at most |A| / kappa, where A is negative."""
        delta, _ = self.delta(advantages, group)
        bounded = np.sign(delta) * np.minimum(np.abs(delta), np.abs(advantages) / group.now(self.kappa))
        return np.where(advantages < 0, bounded, 0.0)

    def delta(self, advantages: Floats, group: Group) -> tuple[Floats, str]:
        """(float[N] change before the clip, branch): A at most one wrong, B all wrong answers equal, C they differ."""
        labels = [label for label, counts in zip(group.labels, group.classified, strict=True) if counts]
        if len(labels) <= 1:
            return np.zeros(len(advantages)), "A"
        scale = np.abs(advantages[group.classified]).mean()
        if len(set(labels)) == 1:
            return np.where(group.classified, -group.now(self.beta) * scale, 0.0), "B"
        delta = np.zeros(len(advantages))
        delta[group.classified] = group.now(self.alpha) * scale * surprise(labels)
        return delta, "C"


def surprise(labels: Sequence[str]) -> Floats:
    """float[n], T_i = (-ln p_i - H) / ln n for n > 1 labels: how much rarer than average each label is; sums to 0."""
    counts, n = Counter(labels), len(labels)
    entropy = -sum(c / n * log(c / n) for c in counts.values())
    return np.array([(-log(counts[label] / n) - entropy) / log(n) for label in labels])
