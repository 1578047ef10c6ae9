"""Base estimators that a comparison puts beside the paper's five: other baselines, scales and rewards of a group.

Right and wrong responses are c and N - c of the N that have a verdict; responses without one count nowhere and get 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, comb, sqrt
from typing import Any

import numpy as np

from minirl.advantages.group import Estimator, Floats, Group, Requirements, check, differ, option
from minirl.advantages.paper import DAPO, GRPO, binary, centred, rho


@dataclass(frozen=True)
class RLOO(Estimator):
    """A_i = r_i minus the mean reward of the others = (r_i - mean) N / (N - 1)."""

    name, source = "rloo", "arXiv 2402.14740"

    def __call__(self, group: Group) -> Floats:
        n = group.valid.sum()
        return centred(group.rewards, std=False) * (n / (n - 1) if n > 1 else 0.0)


@dataclass(frozen=True)
class MaxRL(Estimator):
    """A_i = (r_i - mean) / mean, 0 where the mean is 0: the likelihood of a right answer, to the order N of its expansion."""

    name, source = "maxrl", "arXiv 2602.02710"

    def __call__(self, group: Group) -> Floats:
        known = group.rewards[group.valid]
        sound = not (known < 0).any()  # of rewards from 0 on A is at most N - 1; others may have a mean near 0
        check(sound, f"maxrl divides by the mean reward, which must not be negative, nor any of {known}: use grpo or rloo")
        mean = known.mean() if len(known) else 0.0
        return centred(group.rewards, std=False) / mean if mean > 0 else np.zeros(len(group.rewards))


@dataclass(frozen=True)
class PassK(Estimator):
    """The pass@k advantage over random k-subsets, analytically: R = 1 - C(N-c,k) / C(N,k), s = sqrt(R (1 - R)); right
    (1 - R) / s, wrong (1 - R - C(N-c-1,k-1) / C(N-1,k-1)) / s; 0 where s is 0."""

    name, source = "passk", "arXiv 2508.10751"

    k: Any = option(4, "the k of pass@k, at most the samples of a group", minimum=1, whole=True)

    @property
    def requirements(self) -> Requirements:
        return replace(GRPO.requirements, min_group_size=max(2, round(max(self.values("k")))))

    def __call__(self, group: Group) -> Floats:
        binary(group, "passk")
        n, c = int(group.valid.sum()), int(group.right.sum())
        k = min(round(group.now(self.k)), n)
        mean = rho(n, c, k)
        if not 0 < mean < 1:
            return np.zeros(len(group.rewards))
        wrong = 1 - mean - comb(n - c - 1, k - 1) / comb(n - 1, k - 1)
        return np.where(group.right, 1 - mean, np.where(group.wrong, wrong, 0.0)) / sqrt(mean * (1 - mean))


@dataclass(frozen=True)
class WReinforce(Estimator):
    """Right +weight, wrong -1, no baseline: every group teaches, also one that is all wrong."""

    name, source = "wreinforce", "arXiv 2506.01347"

    weight: Any = option(0.1, "advantage of a right response, the paper's lambda", minimum=0)

    def __call__(self, group: Group) -> Floats:
        return np.where(group.right, group.now(self.weight), np.where(group.wrong, -1.0, 0.0))


@dataclass(frozen=True)
class NSR(Estimator):
    """Negative sample reinforcement: wrong -1; right responses are in no count of the loss."""

    name, source = "nsr", "arXiv 2506.01347"

    def __call__(self, group: Group) -> Floats:
        return np.where(group.wrong, -1.0, 0.0)

    def weights(self, group: Group) -> Floats:
        return group.wrong.astype(float)


@dataclass(frozen=True)
class PSR(Estimator):
    """Positive sample reinforcement: right +1; wrong responses are in no count of the loss."""

    name, source = "psr", "arXiv 2506.01347"

    def __call__(self, group: Group) -> Floats:
        return group.right.astype(float)

    def weights(self, group: Group) -> Floats:
        return group.right.astype(float)


@dataclass(frozen=True)
class NGRPO(Estimator):
    """GRPO with one more, virtual, reward of 1 in mean and std: a group that is all wrong is punished, one all right is not."""

    name, source = "ngrpo", "arXiv 2509.18851"
    requirements = replace(DAPO.requirements, clip_low=0.16, clip_high=0.24)

    def __call__(self, group: Group) -> Floats:
        return centred(np.append(group.rewards, 1.0), std=True)[:-1]

    def keeps(self, group: Group) -> bool:
        return bool(group.wrong.any())


@dataclass(frozen=True)
class Unlikely(Estimator):
    """GRPO on r_i (1 - beta rank_i / N) for right responses: of the right ones, those the policy finds likely earn less.

    rank: responses of the group with a lower log-prob, summed over their tokens, before the update.
    """

    name, source = "unlikely", "arXiv 2506.02355"
    requirements = replace(GRPO.requirements, needs_logprobs=True)

    beta: Any = option(0.25, "share of its reward that the likeliest response loses, nearly", minimum=0)

    def __call__(self, group: Group) -> Floats:
        check(group.logprobs is not None, "unlikely needs Group.logprobs")
        total = np.array([np.sum(x, dtype=np.float64) for x in group.logprobs or ()])
        rank = np.array([(total[group.valid] < x).sum() for x in total])
        factor = 1 - group.now(self.beta) * rank / max(1, group.valid.sum())
        return centred(np.where(group.right, group.rewards * factor, group.rewards), std=True)


@dataclass(frozen=True)
class QAE(Estimator):
    """(r_i - the group's K-quantile) / (std + 1e-6). Of binary rewards the quantile is 0 where c / N <= 1 - K, and then wrong
    responses get 0; else 1, and then the right ones do."""

    name, source = "qae", "arXiv 2509.22611"
    requirements = DAPO.requirements

    K: Any = option(0.4, "the quantile, in (0, 1)", above=0, below=1)

    def __call__(self, group: Group) -> Floats:
        known = np.sort(group.rewards[group.valid])
        if not differ(known):
            return np.zeros(len(group.rewards))
        quantile = known[max(0, ceil(group.now(self.K) * len(known) - 1e-9) - 1)]  # 0.7 * 10 is 7.000000000000001
        return np.where(group.valid, (group.rewards - quantile) / (known.std(ddof=1) + 1e-6), 0.0)


@dataclass(frozen=True)
class OPO(Estimator):
    """A_i = r_i minus the mean reward weighted by length, sum l_j r_j / sum l_j: the baseline of least variance where a
    gradient's squared norm grows with the length."""

    name, source = "opo", "arXiv 2505.23585"

    def __call__(self, group: Group) -> Floats:
        check(group.lengths is not None, "opo needs Group.lengths")
        known, lengths = group.rewards[group.valid], np.asarray(group.lengths)[group.valid]
        if not differ(known) or not lengths.any():
            return np.zeros(len(group.rewards))
        return np.where(group.valid, group.rewards - np.average(known, weights=lengths), 0.0)


@dataclass(frozen=True)
class ReinforcePP(Estimator):
    """REINFORCE++ with a baseline: r_i minus the group's mean, then whitened over the tokens of the whole batch."""

    name, source = "reinforce_pp", "arXiv 2501.03262"

    mean: float = 0.0
    deviation: float = 1.0

    def __call__(self, group: Group) -> Floats:
        return np.where(group.valid, (centred(group.rewards, std=False) - self.mean) / self.deviation, 0.0)

    def fitted(self, groups: Sequence[Group]) -> "ReinforcePP":
        """With mean and std of the batch's advantages, each response as often as it has tokens, or once without lengths."""
        values = [centred(g.rewards, std=False)[g.valid] for g in groups]
        lengths = [np.ones(g.valid.sum()) if g.lengths is None else g.lengths[g.valid] for g in groups]
        if not values or (tokens := np.concatenate(lengths).sum()) < 2:
            return self
        a, weight = np.concatenate(values), np.concatenate(lengths)
        mean = (a * weight).sum() / tokens
        variance = ((a - mean) ** 2 * weight).sum() / (tokens - 1)
        return replace(self, mean=float(mean), deviation=sqrt(variance + 1e-8))


@dataclass(frozen=True)
class GPG(Estimator):
    """Group policy gradient: (r_i - mean) * alpha, alpha = B / (B - M) for M of the batch's B groups with equal rewards, so
    that they do not dilute the mean over the batch; -A log pi instead of a ratio."""

    name, source = "gpg", "arXiv 2504.02546"
    requirements = replace(GRPO.requirements, loss="reinforce", loss_agg_mode="token-mean")

    alpha: float = 1.0

    def __call__(self, group: Group) -> Floats:
        return centred(group.rewards, std=False) * self.alpha

    def fitted(self, groups: Sequence[Group]) -> "GPG":
        """With the alpha of the batch."""
        teach = sum(bool(centred(g.rewards, std=False).any()) for g in groups)
        return replace(self, alpha=len(groups) / teach if teach else 1.0)


BASELINES: tuple[type[Estimator], ...] = (
    RLOO, MaxRL, PassK, WReinforce, NSR, PSR, NGRPO, Unlikely, QAE, OPO, ReinforcePP, GPG,
)  # fmt: skip
