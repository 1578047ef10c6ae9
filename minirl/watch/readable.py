"""What a step writes to rollouts/, for people and for `python -m minirl.view`: which groups, and what of each response.

Of the `run.save_rollouts` groups of a step are, in this order and each only once,

    changed      the trained group whose advantages the estimator's wrappers changed most, by the mean over its responses of
                 |after - before|; where nothing is shaped, the one with the most different wrong answers
    unselected   the group whose draw number is a multiple of rollout.prompts: chosen whatever its responses are, so it shows
                 what is usual, and two runs with the same seed save the same prompts
    dropped      the first group that was sampled and not trained on, with the reason
    next         the other groups of the batch in the order drawn, then the others that were dropped

Nothing here is random. Ties go to the group drawn first.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from minirl.advantages import Estimator, Floats, Group, Wrapper, surprise
from minirl.advantages.registry import innermost_edas
from minirl.config.options import Config
from minirl.rollout.sampler import as_group, verdict_reward
from minirl.rollout.types import Batch, Rollout

TOKENS = 512  # tokens of a response whose own values are written; its text is written whole
Row = dict[str, Any]
# (draw number, place in its group) -> float[2, T]: entropy, log of new / old probability at the response's first update, nats
TokenValues = dict[tuple[int, int], np.ndarray]


@dataclass(frozen=True)
class Chosen:
    """A group to write. why: the rule above that chose it; dropped: why it was not trained on, "" where it was; group: what the
    estimator saw of it, None where it was not trained on."""

    rollouts: Sequence[Rollout]
    why: str
    dropped: str
    group: Group | None


class Readable:
    """Chooses the groups of one batch and explains their advantages. progress: of the run; carried: groups carried over to the
    next step; the batch has its advantages."""

    def __init__(self, batch: Batch, carried: Sequence[Sequence[Rollout]], progress: float, config: Config) -> None:
        self.config, self.progress, a = config, progress, config.algorithm
        groups = [as_group(rollouts, progress, config.run.seed, a.kl_reward_coef) for rollouts in batch.groups]
        self.estimator = config.build_estimator().fitted(groups)
        self.chosen = self.choose(batch, groups, carried, config.run.save_rollouts)

    def choose(self, batch: Batch, groups: Sequence[Group], carried: Sequence[Sequence[Rollout]], count: int) -> list[Chosen]:
        """`count` groups, by the rules above; fewer where there are fewer."""
        trained = {group.number: i for i, group in enumerate(groups)}
        reason = self.reasons(carried)
        rest = [rollouts for rollouts in batch.generated if rollouts[0].group not in trained]
        everything = {rollouts[0].group: rollouts for rollouts in (*batch.groups, *rest)}
        by_rule: list[tuple[str, int]] = []
        if groups and count:
            by_rule.append(("changed", max(groups, key=self.interest).number))
        usual = [number for number in sorted(everything) if number % self.config.rollout.prompts == 0]
        by_rule += [("unselected", number) for number in usual[:1]]
        by_rule += [("dropped", rollouts[0].group) for rollouts in rest[:1]]
        by_rule += [("next", number) for number in everything]
        first = dict[int, str]()
        for why, number in by_rule:
            first.setdefault(number, why)
        return [
            Chosen(
                everything[number],
                why,
                "" if number in trained else reason(everything[number]),
                groups[trained[number]] if number in trained else None,
            )
            for number, why in list(first.items())[:count]
        ]

    def interest(self, group: Group) -> float:
        """How much the wrappers changed a group's advantages, on average; without wrappers, its classes of wrong answers."""
        first, last = parts(self.estimator)[0], self.estimator
        if first is last:
            return len({label for label, counts in zip(group.labels, group.classified, strict=True) if counts})
        changes = zip(first(group), last(group), strict=True)
        return float(np.mean([np.mean(np.abs(after - before)) for before, after in changes]))

    def reasons(self, carried: Sequence[Sequence[Rollout]]) -> Callable[[Sequence[Rollout]], str]:
        """The function that says why a group was not trained on."""
        keeps, later = self.config.keeps(self.progress), {rollouts[0].group for rollouts in carried}

        def reason(rollouts: Sequence[Rollout]) -> str:
            group = as_group(rollouts)
            right, valid = int(group.right.sum()), int(group.valid.sum())
            if group.number in later:
                return "carried over to the next batch: this one was full"
            if keeps(group):
                return "left over: the batch was full"
            if not valid:
                return "no response has a verdict"
            if right in (0, valid):
                return f"all {valid} responses are {'right' if right else 'wrong'}: nothing to compare"
            return "no signal for this estimator: its rule for dynamic sampling drops the group"

        return reason

    def rows(self, values: TokenValues, tokenizer: Any) -> list[Row]:
        """A JSON object for each response of the chosen groups. values: what the update saw of their tokens."""
        made = []
        for chosen in self.chosen:
            explained = self.explain(chosen)
            for i, (r, why) in enumerate(zip(chosen.rollouts, explained, strict=True)):
                made.append(readable(r) | why | tokens(r, values.get((r.group, i)), tokenizer))
        return made

    def explain(self, chosen: Chosen) -> list[Row]:
        """Why each response has its advantage.

        before: advantages after each part of the estimator but the last; class_size of class_of: wrong responses of its class,
        of all that have a class; branch, surprise (the paper's T), change and clipped (by kappa): of EDAS; shaping: what the
        run added to the verifier's reward; left_out: why the loss does not count the response. What does not apply is absent.
        """
        rollouts, group = chosen.rollouts, chosen.group or as_group(chosen.rollouts)
        rows: list[Row] = [{"chosen": chosen.why} | ({"dropped": chosen.dropped} if chosen.dropped else {}) for _ in rollouts]
        labels = [label for label, counts in zip(group.labels, group.classified, strict=True) if counts]
        sizes = Counter(labels)
        for row, r, reward, label, classed in zip(rows, rollouts, group.rewards, group.labels, group.classified, strict=True):
            if classed:
                row |= {"class_size": sizes[label], "class_of": len(labels)}
            length = r.reward - verdict_reward(r.verdict)
            shaping = {"overlong": number(length), "reference kl": number(reward - r.reward)}
            row |= {"shaping": shaping} if any(shaping.values()) else {}
            row |= {"left_out": left_out} if (left_out := self.left_out(r)) else {}
        if chosen.group is None:
            return rows
        for part in parts(self.estimator)[:-1]:
            for row, advantage in zip(rows, part(group), strict=True):
                row.setdefault("before", {})[part.name or type(part).__name__] = number(advantage)
        if (edas := innermost_edas(self.estimator)) is None:
            return rows
        before = edas.advantages(group)
        (delta, branch), change = edas.delta(before, group), edas.change(before, group)
        rare: Floats = np.full(len(rows), np.nan)
        if branch == "C":
            rare[group.classified] = surprise(labels)
        clipped = (before < 0) & (np.abs(change) < np.abs(delta) * (1 - 1e-9))
        for row, got, cut, t in zip(rows, change, clipped, rare, strict=True):
            row["branch"] = branch
            if "class_size" in row and branch != "A":
                row |= {"change": number(got), "clipped": bool(cut)}
                row |= {} if np.isnan(t) else {"surprise": number(t)}
        return rows

    def left_out(self, r: Rollout) -> str:
        """Why the loss counts no token of the response; "" where it does."""
        if np.isnan(r.reward):
            return "it has no verdict"
        if not r.weight:
            return "the estimator gives it the weight 0"
        return "it was truncated (algorithm.mask_truncated)" if self.config.algorithm.mask_truncated and r.truncated else ""


def parts(estimator: Estimator) -> list[Estimator]:
    """The base, and what each wrapper makes of what is inside it; the last is the whole."""
    return [*parts(estimator.base), estimator] if isinstance(estimator, Wrapper) else [estimator]


def readable(r: Rollout) -> Row:
    """A rollout as a readable JSON object."""
    advantage = None if r.advantages is None else np.round(np.asarray(r.advantages, dtype=np.float64), 5).tolist()
    return {
        "group": r.group, "prompt": r.prompt, "gold": r.gold, "response": r.text, "status": r.verdict.status,
        "label": r.verdict.label, "key": r.verdict.key, "reward": None if np.isnan(r.reward) else r.reward,
        "advantage": advantage, "tokens": r.length, "finish": r.completion.finish, "version": r.version,
        "detail": r.verdict.detail,
    } | ({"terms": r.verdict.terms} if r.verdict.terms else {})  # fmt: skip


def tokens(r: Rollout, values: np.ndarray | None, tokenizer: Any) -> Row:
    """The first `TOKENS` tokens of a response: pieces, their texts; in nats, logprobs, the sampler's; where they are known,
    entropies of the policy, log_ratio of new to old probability at the first update with the response, and sampler_ratio of
    old (trainer's) to sampler's. A list of zeros only is left out."""
    numbers = {"logprobs": r.completion.logprobs}
    if r.old_logprobs is not None:
        numbers["sampler_ratio"] = r.old_logprobs - r.completion.logprobs
    if values is not None:
        numbers["entropies"], numbers["log_ratio"] = values
    elif r.entropies is not None:
        numbers["entropies"] = r.entropies
    lists = {name: number(array[:TOKENS], 4) for name, array in numbers.items()}
    return {"pieces": pieces(r.completion.ids[:TOKENS].tolist(), tokenizer)} | {k: v for k, v in lists.items() if any(v)}


def pieces(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text of each token alone. A tokenizer that marks a leading space by U+2581 drops it there; it is put back."""
    marks = tokenizer.convert_ids_to_tokens(ids)
    texts = [tokenizer.decode([i]) for i in ids]
    return [
        f" {text}" if isinstance(mark, str) and mark.startswith("\u2581") and not text.startswith(" ") else text
        for mark, text in zip(marks, texts, strict=True)
    ]


def number(value: Any, digits: int = 5) -> Any:
    """A number or an array, rounded to so many decimals, as JSON; None where it is not finite."""
    if not isinstance(value, float) and np.ndim(value):
        return [number(x, digits) for x in np.asarray(value, dtype=np.float64).tolist()]
    return round(float(value), digits) + 0.0 if isfinite(value) else None  # + 0.0: no -0.0
