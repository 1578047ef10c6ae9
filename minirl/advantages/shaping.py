"""Wrappers that a comparison puts beside EDAS, and the controls without which a claim about EDAS cannot be read."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minirl.advantages.group import Estimator, Floats, Group, Requirements, Wrapper, option
from minirl.advantages.paper import EDAS, GRPO


@dataclass(frozen=True)
class FGRPO(Wrapper):
    """F-GRPO: A (1 - c/N)^gamma, so that prompts that are mostly solved count less."""

    name, source = "fgrpo", "arXiv 2602.06717"

    gamma: Any = option(1.0, "0: no change; the larger, the less solved prompts count", minimum=0)
    base: Estimator = field(default=GRPO(), kw_only=True)

    def __call__(self, group: Group) -> Floats:
        return self.advantages(group) * (1 - group.accuracy) ** group.now(self.gamma)


@dataclass(frozen=True)
class LEAD(Wrapper):
    """GRPO-LEAD's difficulty weight: A > 0 times w(c/N), A < 0 times w(1 - c/N), w(x) = .4 + 1.1 / (1 + exp(10 (x - .75)))."""

    name, source = "lead", "arXiv 2504.09696"

    least: Any = option(
        0.4, "weight where nothing is left to learn: right answers to easy prompts, wrong ones to hard", minimum=0
    )
    most: Any = option(1.5, "weight at the other end", minimum=0)
    midpoint: Any = option(0.75, "accuracy at which the weight of a right answer is between the two")
    steepness: Any = option(10.0, "of the logistic curve between them", minimum=0)
    base: Estimator = field(default=GRPO(), kw_only=True)

    def __call__(self, group: Group) -> Floats:
        advantages = self.advantages(group)
        least, most, midpoint, steepness = map(group.now, (self.least, self.most, self.midpoint, self.steepness))
        x = np.where(advantages > 0, group.accuracy, 1 - group.accuracy)
        return advantages * (least + (most - least) / (1 + np.exp(steepness * (x - midpoint))))


@dataclass(frozen=True)
class Explore(Wrapper):
    """Batch exploration: wrong responses get A + c b_i, b_i = -(others of the group with the same wrong answer) / N.

    The nearest relative of EDAS: it punishes repetition too, by a count instead of a surprise, whatever the size of A.
    """

    name, source = "explore", "arXiv 2509.06941"

    c: Any = option(0.5, "strength", minimum=0)
    base: Estimator = field(default=GRPO(), kw_only=True)

    def __call__(self, group: Group) -> Floats:
        labels = [label if counts else None for label, counts in zip(group.labels, group.classified, strict=True)]
        counts = Counter(labels)
        repeats = np.array([0 if label is None else counts[label] - 1 for label in labels])
        return self.advantages(group) - group.now(self.c) * repeats / max(1, group.valid.sum())


@dataclass(frozen=True)
class ACE(Wrapper):
    """Asymmetric confidence-aware error penalty: wrong responses with A < 0 get A (1 + alpha softplus(s_i)), s_i the log of
    pi / pi_ref of the whole response before the update."""

    name, source = "ace", "arXiv 2602.21420"

    alpha: Any = option(1.0, "strength", minimum=0)
    per_token: bool = option(False, "s is the mean over the response's tokens instead of their sum")
    base: Estimator = field(default=GRPO(), kw_only=True)

    @property
    def requirements(self) -> Requirements:
        return replace(self.base.requirements, needs_logprobs=True, needs_ref_logprobs=True)

    def __call__(self, group: Group) -> Floats:
        if group.logprobs is None or group.ref_logprobs is None:
            raise ValueError("ace needs Group.logprobs and Group.ref_logprobs")
        ratios = [np.subtract(p, q, dtype=np.float64) for p, q in zip(group.logprobs, group.ref_logprobs, strict=True)]
        s = np.array([x.sum() / (max(1, len(x)) if self.per_token else 1) for x in ratios])
        advantages = self.advantages(group)
        penalty = 1 + group.now(self.alpha) * np.logaddexp(0, s)
        return np.where(group.wrong & (advantages < 0), advantages * penalty, advantages)


# ---- controls: EDAS's options, one thing changed ---------------------------------------------------------------------------


@dataclass(frozen=True)
class ShuffledEDAS(EDAS):
    """EDAS's changes before the clip by kappa, dealt at random to the wrong responses with A < 0, which alone are changed: same
    sizes, same sum, nothing about diversity.

    The deal depends on the run's seed and the group's draw number only, so it is the same after resuming and in a replay.
    """

    name, source = "edas-shuffled", "control"

    def delta(self, advantages: Floats, group: Group) -> tuple[Floats, str]:
        delta, branch = super().delta(advantages, group)
        dealt = group.classified & (advantages < 0)
        delta[dealt] = np.random.default_rng([group.seed, group.number]).permutation(delta[dealt])
        return delta, branch


@dataclass(frozen=True)
class InvertedEDAS(EDAS):
    """EDAS with -alpha: rare wrong answers are punished more, repeated ones less."""

    name, source = "edas-inverted", "control"

    def delta(self, advantages: Floats, group: Group) -> tuple[Floats, str]:
        delta, branch = super().delta(advantages, group)
        return (-delta if branch == "C" else delta), branch


@dataclass(frozen=True)
class OnlyB(EDAS):
    """EDAS with alpha 0: branch B, error perseveration, alone."""

    name, source = "edas-b", "control"

    def delta(self, advantages: Floats, group: Group) -> tuple[Floats, str]:
        return replace(EDAS(self.alpha, self.beta, self.kappa), alpha=0).delta(advantages, group)


@dataclass(frozen=True)
class OnlyC(EDAS):
    """EDAS with beta 0: branch C, diversity, alone."""

    name, source = "edas-c", "control"

    def delta(self, advantages: Floats, group: Group) -> tuple[Floats, str]:
        return replace(EDAS(self.alpha, self.beta, self.kappa), beta=0).delta(advantages, group)


SHAPINGS: tuple[type[Wrapper], ...] = (FGRPO, LEAD, Explore, ACE)
CONTROLS: tuple[type[EDAS], ...] = (ShuffledEDAS, InvertedEDAS, OnlyB, OnlyC)
