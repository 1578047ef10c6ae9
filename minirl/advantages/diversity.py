"""What every run reports of a batch's wrong answers, whichever estimator acts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from minirl.advantages.group import Estimator, Floats, Group, has_signal
from minirl.advantages.own import failures_of
from minirl.advantages.paper import EDAS, GRPO
from minirl.advantages.registry import base_estimator


def diversity(
    groups: Sequence[Group], edas: EDAS | None = None, keeps: Callable[[Group], bool] = has_signal
) -> dict[str, float]:
    """Error-diversity metrics of a batch, measured the same for every estimator, whether it acts on them or not.

    informative: share of groups that dynamic sampling keeps by `keeps`; diverse_groups: groups with K > 1 classes of wrong
    answers; unique_wrong: mean K over groups; unique_wrong_of_two: over groups with at least two wrong responses, the paper's
    figure; error_diversity: mean K / N_w over groups with a wrong answer; pair_diversity: 1 - sum c_k (c_k - 1) / (N_w (N_w -
    1)), the chance that two wrong responses differ, mean over groups with two; it is unbiased and free of N_w, which the others
    are not. branch_a/b/c: EDAS branches (B and C also where no answer is right and EDAS changes nothing).

    Of the change that `edas` makes, or would make, to its base's advantages: delta: mean |change| over wrong responses;
    changes_clipped: share of the changes that the clip by kappa cut; positive_wrong: wrong responses with A > 0, which it
    leaves alone; after_before_p5, _p50, _p95: quantiles of A after / A before over wrong responses with A < 0, 1 where there
    are none. Where the base does not give a group one advantage a response, the group is measured on GRPO.
    """
    edas = edas or EDAS()
    if any(getattr(edas.base.requirements, needs) for needs in ("needs_entropy", "needs_logprobs", "needs_ref_logprobs")):
        edas = replace(edas, base=GRPO())  # log-probs are there for the groups that are trained on only
    base = measurable(edas.base, groups)
    branches: Counter[str] = Counter()
    lists: list[list[float]] = [[] for _ in range(7)]
    unique, several, ratios, pairs, deltas, cut, after_before = lists
    positive = 0
    for group in groups:
        counts = Counter(label for label, counts in zip(group.labels, group.classified, strict=True) if counts)
        wrong = counts.total()
        unique.append(len(counts))
        if wrong:
            ratios.append(len(counts) / wrong)
        if wrong > 1:
            several.append(len(counts))
            pairs.append(1 - sum(c * (c - 1) for c in counts.values()) / (wrong * (wrong - 1)))
        advantages = base(group)
        delta, branch = edas.delta(advantages, group)
        shaped = advantages + edas.change(advantages, group)
        change = shaped - advantages
        branches[branch] += 1
        deltas.extend(np.abs(change)[group.wrong])
        negative = group.wrong & (advantages < 0)
        positive += int((group.wrong & (advantages > 0)).sum())
        after_before.extend(shaped[negative] / advantages[negative])
        asked = negative & (delta != 0)
        cut.extend((np.abs(change) < np.abs(delta) * (1 - 1e-9))[asked])
    p5, p50, p95 = np.quantile(after_before, (0.05, 0.5, 0.95)).tolist() if after_before else (1.0, 1.0, 1.0)
    return {
        "informative": mean([keeps(g) for g in groups]),
        "diverse_groups": float(sum(k > 1 for k in unique)),
        "unique_wrong": mean(unique),
        "unique_wrong_of_two": mean(several),
        "error_diversity": mean(ratios),
        "pair_diversity": mean(pairs),
        "branch_a": float(branches["A"]),
        "branch_b": float(branches["B"]),
        "branch_c": float(branches["C"]),
        "delta": mean(deltas),
        "changes_clipped": mean(cut),
        "positive_wrong": float(positive),
        "after_before_p5": p5,
        "after_before_p50": p50,
        "after_before_p95": p95,
    }


def measurable(base: Estimator, groups: Sequence[Group]) -> Callable[[Group], Floats]:
    """float[N] of a group by `base`, fitted to `groups`, or by GRPO where that has none.

    Groups that are not trained on may be refused, or make code of the user's own fail: measuring them must not end a run that
    can go on. Where it is trained on such a group the same failure ends it.
    """

    try:
        with failures_of(base.name):
            fitted = base.fitted(groups)
    except (ValueError, TypeError):
        return GRPO()

    def of(group: Group) -> Floats:
        try:
            with failures_of(base.name):
                found = np.asarray(fitted(group), dtype=np.float64)
        except (ValueError, TypeError):
            return GRPO()(group)
        return found if found.shape == group.rewards.shape and np.isfinite(found).all() else GRPO()(group)

    return of


def mean(values: Sequence[float]) -> float:
    """The mean, 0 of nothing."""
    return float(np.mean(values)) if values else 0.0


def edas_of(estimator: object, options: EDAS) -> EDAS:
    """EDAS with `options`, on the base of `estimator`: what `diversity` measures by."""
    return replace(options, base=base_estimator(estimator))  # type: ignore[arg-type]
