"""Group -> advantages: GRPO, DAPO, PKPO, entropy-shaped advantage and EDAS as small interchangeable classes.

A group is one prompt with its N responses, always whole. A estimator maps a `Group` to one advantage a response (float[N]) or
one a token (N arrays float[T_i]). Pure numpy: no torch, no communication, no randomness.

Source of every formula: "Leveraging Error Diversity in Group Rollouts for Reinforcement Learning" (arXiv 2605.17333), called
the paper below; docs/algorithms.md explains them with numbers.

A new estimator is one dataclass with `__call__` and one line in BASES (or WRAPPERS, if it reshapes another's advantages); its
`option` fields become `--estimator.<name>.<field>` by themselves.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import comb, log
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """All N responses to one prompt.

    rewards: float[N], NaN where the verifier had no verdict (such a response counts nowhere and gets advantage 0);
    correct: bool[N]; labels: N error classes E(y), read for wrong responses only, "" where the verifier gave none;
    scores: float[N] rewards before any shaping by length, the same as `rewards` if None;
    entropies: N arrays float[T_i] in nats, the policy's full-vocabulary entropy at each response token, or None.
    """

    rewards: Floats
    correct: NDArray[np.bool_]
    labels: Sequence[str]
    scores: Floats | None = None
    entropies: Sequence[NDArray[np.floating]] | None = None

    @property
    def valid(self) -> NDArray[np.bool_]:
        """bool[N]: responses that have a verdict."""
        return ~np.isnan(self.rewards)

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """bool[N]: responses judged wrong."""
        return self.valid & ~self.correct

    @property
    def classified(self) -> NDArray[np.bool_]:
        """bool[N]: wrong responses with an error class, the paper's W; all wrong ones if the verifier labels all."""
        return self.wrong & np.array([bool(label) for label in self.labels], dtype=bool)


@dataclass(frozen=True)
class Requirements:
    """What an estimator asks of the rest of the run; the config can override the first four.

    needs_entropy: whether `Group.entropies` is read; min_group_size: responses to a prompt at least.
    """

    dynamic_sampling: bool
    clip_low: float
    clip_high: float
    loss_agg_mode: str
    needs_entropy: bool = False
    min_group_size: int = 2


class Estimator(Protocol):
    """Advantages of one group: float[N], or N arrays float[T_i]."""

    @property
    def requirements(self) -> Requirements: ...

    def __call__(self, group: Group) -> Any: ...


def option(default: Any, text: str, **limits: Any) -> Any:
    """A dataclass field that is an option of the command line: its one-line meaning, and `choices` or `minimum` if any."""
    return field(default=default, metadata={"help": text, **limits})


# ---- base estimators -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GRPO:
    """A_i = (r_i - mean) / (std + 1e-6), over one group, std with ddof 1; without std it is Dr. GRPO.

    A group of one, or one whose rewards are all equal, gives 0.
    """

    std: bool = option(True, "divide by the group's standard deviation; false is Dr. GRPO")

    requirements = Requirements(False, clip_low=0.2, clip_high=0.2, loss_agg_mode="seq-mean-token-mean")

    def __call__(self, group: Group) -> Floats:
        """float[N] advantages of `group`."""
        return centred(group.rewards, self.std)


@dataclass(frozen=True)
class DAPO(GRPO):
    """GRPO's advantage; clip-higher, dynamic sampling and the token-mean loss are asked of the run."""

    requirements = Requirements(dynamic_sampling=True, clip_low=0.2, clip_high=0.28, loss_agg_mode="token-mean")


@dataclass(frozen=True)
class PKPO:
    """Pass@k policy optimisation for binary rewards: the k-subset reward of each response, then centred.

    Right: k/n. Wrong: k/n * rho(n-1, c, k-1), rho(n, c, k) = 1 - C(n-c, k) / C(n, k), the chance that k of n hold one of the
    c right ones. Dividing by the std would undo the method (a two-valued group is affine invariant): off by default.
    """

    k: int = option(8, "the k of pass@k, at most the samples of a group", minimum=1)
    leave_one_out: bool = option(False, "baseline: mean of the other responses instead of the group's mean")
    std: bool = option(False, "divide by the standard deviation, which turns the method back into GRPO for few right answers")

    @property
    def requirements(self) -> Requirements:
        return replace(GRPO.requirements, min_group_size=max(2, self.k))

    def __call__(self, group: Group) -> Floats:
        """float[N] advantages of `group`; with fewer than k valid responses k is their number. ValueError for rewards other
        than 1 for right and 0 for wrong."""
        check(
            np.array_equal(group.rewards[group.valid], group.correct[group.valid].astype(float)),
            f"pkpo is defined for rewards 1 (right) and 0 (wrong), not {group.rewards.tolist()}: use grpo or dapo",
        )
        n, c = int(group.valid.sum()), int((group.valid & group.correct).sum())
        if n == 0:
            return np.zeros(len(group.rewards))
        k = min(self.k, n)
        right, wrong = k / n, k / n * rho(n - 1, min(c, n - 1), k - 1)  # with c = n no response is wrong
        rewards = np.where(group.valid, np.where(group.correct, right, wrong), np.nan)
        advantages = centred(rewards, self.std)
        return advantages * n / (n - 1) if self.leave_one_out and n > 1 else advantages


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


# ---- wrappers --------------------------------------------------------------------------------------------------------------


class Wrapper:
    """An estimator that reshapes the advantages of another one, its `base`, and asks of the run what that asks."""

    base: Estimator

    @property
    def requirements(self) -> Requirements:
        return self.base.requirements


@dataclass(frozen=True)
class EDAS(Wrapper):
    """Error diversity advantage shaping: repeated wrong answers are punished more, rare ones less; the right are untouched.

    A wrong response keeps at least (1 - 1/kappa) of its advantage's magnitude and never changes sign.
    """

    alpha: float = option(0.4, "strength where wrong answers differ (branch C)")
    beta: float = option(0.2, "strength where all wrong answers are the same (branch B); the authors' DAPO launcher has 0.3")
    kappa: float = option(2.0, "a change is at most |A| / kappa; more than 1")
    base: Estimator = GRPO()

    def __post_init__(self) -> None:
        check(self.alpha >= 0 and self.beta >= 0, f"edas.alpha and edas.beta must be at least 0, not {self.alpha}, {self.beta}")
        check(self.kappa > 1, f"edas.kappa must be above 1, not {self.kappa}: a wrong answer must stay punished")

    def __call__(self, group: Group) -> Floats:
        """float[N]: the base's advantages, those of wrong responses shaped."""
        advantages = self.base(group)
        if not isinstance(advantages, np.ndarray):
            raise TypeError("edas shapes one advantage a response: write entropy after edas, as in dapo+edas+entropy")
        delta, _ = self.delta(advantages, group)
        return advantages + np.sign(delta) * np.minimum(np.abs(delta), np.abs(advantages) / self.kappa)

    def delta(self, advantages: Floats, group: Group) -> tuple[Floats, str]:
        """(float[N] change before the clip, branch): A at most one wrong, B all wrong answers equal, C they differ."""
        delta = np.zeros(len(advantages))
        labels = [label for label, counts in zip(group.labels, group.classified, strict=True) if counts]
        if len(labels) <= 1:
            return delta, "A"
        scale = np.abs(advantages[group.classified]).mean()
        if len(set(labels)) == 1:
            delta[group.classified] = -self.beta * scale
            return delta, "B"
        delta[group.classified] = self.alpha * scale * surprise(labels)
        return delta, "C"


def surprise(labels: Sequence[str]) -> Floats:
    """float[n], T_i = (-ln p_i - H) / ln n for n > 1 labels: how much rarer than average each label is; sums to 0."""
    counts, n = Counter(labels), len(labels)
    entropy = -sum(c / n * log(c / n) for c in counts.values())
    return np.array([(-log(counts[label] / n) - entropy) / log(n) for label in labels])


@dataclass(frozen=True)
class EntropyShaped(Wrapper):
    """Entropy-shaped advantage: A_t + min(alpha * H_t, |A_t| / kappa) at each token t; A_t = 0 stays 0."""

    alpha: float = option(0.4, "weight of the policy's entropy")
    kappa: float = option(2.0, "a change is at most |A| / kappa; more than 1")
    base: Estimator = DAPO()

    def __post_init__(self) -> None:
        check(self.alpha >= 0, f"entropy.alpha must be at least 0, not {self.alpha}")
        check(self.kappa > 1, f"entropy.kappa must be above 1, not {self.kappa}")

    @property
    def requirements(self) -> Requirements:
        return replace(self.base.requirements, needs_entropy=True)

    def __call__(self, group: Group) -> list[Floats]:
        """N arrays float[T_i]; raises ValueError when the group came without entropies."""
        if group.entropies is None:
            raise ValueError("the entropy-shaped advantage needs Group.entropies")
        advantages = self.base(group)
        return [
            a + np.minimum(self.alpha * h, np.abs(a) / self.kappa) for a, h in zip(advantages, group.entropies, strict=True)
        ]


# ---- names -----------------------------------------------------------------------------------------------------------------

BASES: dict[str, Any] = {"grpo": GRPO, "dapo": DAPO, "pkpo": PKPO}
WRAPPERS: dict[str, Any] = {"edas": EDAS, "entropy": EntropyShaped}
PAPER = ("grpo", "dapo", "pkpo", "grpo+edas", "dapo+edas", "dapo+entropy")


def check(condition: bool, message: str) -> None:
    """ValueError with `message` unless `condition`."""
    if not condition:
        raise ValueError(message)


def build(name: str, options: Any = None) -> Estimator:
    """The estimator called `name`: a base, then wrappers, joined by "+", as in "dapo+edas".

    options: an object with one instance of each class under its name (the config's `estimator` section), or None for defaults.
    Raises ValueError that lists what is known.
    """
    known = f"known are {', '.join(PAPER)}, and any of {', '.join(BASES)} followed by +{' or +'.join(WRAPPERS)}"
    first, *rest = name.split("+")
    check(first in BASES and all(part in WRAPPERS for part in rest), f"unknown estimator {name!r}: {known}")
    check(len(set(rest)) == len(rest), f"estimator {name!r} names a part twice")
    check("entropy" not in rest[:-1], f"estimator {name!r}: entropy works on tokens and must come last")
    estimator = getattr(options, first) if options is not None else BASES[first]()
    for part in rest:
        wrapper = getattr(options, part) if options is not None else WRAPPERS[part]()
        estimator = replace(wrapper, base=estimator)
    return estimator


def has_signal(group: Group) -> bool:
    """Whether the group's scores are not all equal (for right and wrong: its accuracies): what dynamic sampling keeps."""
    scores = group.rewards if group.scores is None else group.scores
    return len(set(scores[group.valid].tolist())) > 1


def base_estimator(estimator: Any) -> Any:
    """The base estimator inside any wrappers."""
    return base_estimator(estimator.base) if hasattr(estimator, "base") else estimator


# ---- what every run reports, whichever estimator acts ----------------------------------------------------------------------


def diversity(groups: Sequence[Group], edas: EDAS | None = None) -> dict[str, float]:
    """Error-diversity metrics of a batch, measured the same for every estimator, whether it acts on them or not.

    informative: share of groups with a signal; diverse_groups: groups with K > 1 classes of wrong answers; unique_wrong: mean K
    over groups; error_diversity: mean K / N_w over groups with a wrong answer; branch_a/b/c: EDAS branches (B and C also where
    no answer is right and EDAS changes nothing); delta: mean |change after the clip| that `edas` makes, or would make, to its
    base's advantages, over wrong responses.
    """
    edas = edas or EDAS()
    branches: Counter[str] = Counter()
    unique, ratios, deltas = [], [], []
    for group in groups:
        wrong = int(group.classified.sum())
        unique.append(len({label for label, counts in zip(group.labels, group.classified, strict=True) if counts}))
        if wrong:
            ratios.append(unique[-1] / wrong)
        advantages = edas.base(group)
        branches[edas.delta(advantages, group)[1]] += 1
        deltas.extend(np.abs(edas(group) - advantages)[group.wrong])
    return {
        "informative": float(np.mean([has_signal(g) for g in groups])) if groups else 0.0,
        "diverse_groups": float(sum(k > 1 for k in unique)),
        "unique_wrong": float(np.mean(unique)) if unique else 0.0,
        "error_diversity": float(np.mean(ratios)) if ratios else 0.0,
        "branch_a": float(branches["A"]),
        "branch_b": float(branches["B"]),
        "branch_c": float(branches["C"]),
        "delta": float(np.mean(deltas)) if deltas else 0.0,
    }
