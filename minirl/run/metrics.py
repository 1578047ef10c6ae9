"""The metrics of a step, with the same names for every estimator."""

import operator
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from minirl.advantages import diversity, edas_of
from minirl.config.options import Config
from minirl.loss import kl
from minirl.losses import TokenLoss
from minirl.policy.micro_batches import MicroBatch
from minirl.rollout.sampler import as_group
from minirl.rollout.types import STOP, Batch, Rollout
from minirl.utils.distributed import Ranks
from minirl.verify.types import EMPTY_ANSWER, ERROR, NO_ANSWER, RIGHT, TIMEOUT, WRONG

SUMS = (
    "tokens", "entropy", "approx_kl", "ref_kl", "clip_high", "clip_low", "clip_dual", "rollout_is_weight", "rollout_is_masked",
    "old_tokens", "version_lag",
    "rollout_logprob_diff_mean", "rollout_kl", "known_entropy", "trainer_nll", "rollout_nll", "trainer_nll_squared",
    "rollout_nll_squared", "known_tokens",
)  # fmt: skip
# Means over tokens with trainer log-probs at the weights that sampled.
KNOWN_ONLY = SUMS[SUMS.index("rollout_logprob_diff_mean") : -1]


def batch_metrics(
    batch: Batch, carried: Sequence[Sequence[Rollout]], drawn: int, progress: float, config: Config
) -> dict[str, float]:
    """Metrics of all groups generated in a step (reward/, response/, groups/) and of those trained on (batch/).

    carried: groups carried over to the next step; drawn: prompts drawn; progress: of the run. reward/std: over all responses.
    sampling/wasted_groups: generated but neither trained on nor carried over; sampling/aborted_groups, aborted_share: aborted,
    of those drawn, and in no other metric. The KL in the reward is in that of batch/ alone, where log-probs are known."""
    rollouts = [r for g in batch.generated for r in g]
    scored = [r for r in rollouts if not np.isnan(r.reward)]
    edas, keeps = edas_of(config.build_estimator(), config.estimator.edas), config.keeps(progress)
    seed, coef = config.run.seed, config.algorithm.kl_reward_coef
    generated = diversity([as_group(g, progress, seed) for g in batch.generated], edas, keeps)
    same = len(batch.generated) == len(batch.groups) and all(map(operator.is_, batch.generated, batch.groups)) and not coef
    trained = generated if same else diversity([as_group(g, progress, seed, coef) for g in batch.groups], edas, keeps)
    labels = [r.verdict.label for r in rollouts]
    fresh = {g[0].group for g in batch.generated}
    used = sum(g[0].group in fresh for g in (*batch.groups, *carried))
    return {
        "reward/mean": mean([r.reward for r in scored]),
        "reward/std": float(np.std([r.reward for r in scored])) if scored else 0.0,
        **{
            f"reward/terms/{name}": mean(
                [r.verdict.terms[name] for r in scored if name in r.verdict.terms]
            )  # none of a timeout
            for name in dict.fromkeys(name for r in scored for name in r.verdict.terms)
        },
        "reward/accuracy": mean([r.verdict.status == RIGHT for r in scored]),
        "response/tokens": mean([r.length for r in rollouts]),
        "response/truncated": mean([r.truncated for r in rollouts]),
        "response/no_answer": mean([label == NO_ANSWER for label in labels]),
        "response/empty_answer": mean([label == EMPTY_ANSWER for label in labels]),
        "response/unlabelled": mean([not r.verdict.label for r in rollouts if r.verdict.status == WRONG]),
        "verify/timeouts": float(sum(label == TIMEOUT for label in labels)),
        "verify/errors": float(sum(r.verdict.status == ERROR for r in rollouts)),
        **{f"groups/{key}": value for key, value in generated.items()},
        **{f"batch/{key}": value for key, value in trained.items()},
        "sampling/groups": float(len(batch.generated)),
        "sampling/batch_groups": float(len(batch.groups)),
        "sampling/carried_groups": float(sum(g[0].group not in fresh for g in batch.groups)),
        "sampling/wasted_groups": float(len(batch.generated) - used),
        "sampling/aborted_groups": float(drawn - len(batch.generated)),
        "sampling/aborted_share": (drawn - len(batch.generated)) / max(drawn, 1),
        "sampling/tokens": float(sum(r.length for r in rollouts)),
        "sampling/trained_tokens": float(sum(r.length for g in batch.groups for r in g)),
    }


def check_metrics(
    generated: Sequence[Sequence[Rollout]], repeated_prompts: float, ends: Collection[int], passes: int
) -> dict[str, float]:
    """Metrics that tell faults of the set-up, the order of prompts and the engine, of all groups generated in a step.

    response/past_end: share of responses that go on after an end token; response/without_end: of those that ended by
    themselves, share whose last token is not an end token; both are 0 in a sound run. response/distinct: mean over groups of
    different responses / group size. response/same_label: the mean share, over groups with wrong responses, of the one error
    label that most of them share. data/repeated_prompts: share of the training prompts that equal an earlier one, by token ids;
    sampling/repeated_prompts: share of the groups whose prompt was sampled before in this step, more often than the `passes`
    over the training prompts that it drew from explain.
    """
    end = np.array(sorted(ends), dtype=np.int32)
    rollouts = [r for group in generated for r in group]
    stopped = [r.completion.ids[-1:] for r in rollouts if r.completion.finish == STOP]
    times = Counter(tuple(group[0].prompt_ids) for group in generated)
    labels: Counter[str] = Counter()
    for group in (found for g in generated if (found := [r.verdict.label for r in g if r.verdict.status == WRONG])):
        labels.update({label: count / len(group) for label, count in Counter(group).items() if label})
    some_wrong = sum(any(r.verdict.status == WRONG for r in g) for g in generated)
    return {
        "response/past_end": mean([bool(np.isin(r.completion.ids[:-1], end).any()) for r in rollouts]),
        "response/without_end": mean([not np.isin(last, end).any() for last in stopped]),
        "response/distinct": mean([len({r.completion.ids.tobytes() for r in g}) / len(g) for g in generated]),
        "response/same_label": max(labels.values(), default=0.0) / max(some_wrong, 1),
        "data/repeated_prompts": repeated_prompts,
        "sampling/repeated_prompts": sum(max(0, n - passes) for n in times.values()) / max(len(generated), 1),
    }


def mean(values: Sequence[float]) -> float:
    """The mean, 0 for no values."""
    return float(np.mean(values)) if values else 0.0


def ends(rollouts: Sequence[Rollout]) -> list[int]:
    """Where one response ends and the next begins in float[T] of `rollouts`."""
    return np.cumsum([r.length for r in rollouts])[:-1].tolist()


@dataclass
class UpdateStats:
    """Sums over this rank's tokens in the optimizer steps of one batch, and `metrics`, their means over all ranks.

    version: of the policy before the update; recomputed: whether old_logprobs are the trainer's at that version; skipped:
    mini-batches without rollouts; nonfinite: optimizer steps skipped for a non-finite gradient.
    """

    version: int = 0
    recomputed: bool = True
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0.0))
    diff_max: float = 0.0
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0
    nonfinite: int = 0
    current: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (sums, diff_max) of each micro-batch
    passed: list[tuple[list[Rollout], Tensor]] = field(default_factory=list)  # rollouts of each, float[2, T] of their tokens

    def add(self, micro: MicroBatch, logprobs: Tensor, entropy: Tensor, of: TokenLoss) -> None:
        """Adds a micro-batch; all tensors are float[T]. The sums stay on the GPU, so that nothing waits for it."""
        logprobs, counted = logprobs.detach(), micro.token_weights > 0
        # The trainer's log-probs at the weights that sampled: old_logprobs, or those of the first optimizer step.
        same_weights = of.old_logprobs if self.recomputed else logprobs
        known = counted & (micro.versions == self.version)
        if not self.recomputed and self.grad_norms:
            known = torch.zeros_like(known)
        difference = (same_weights - micro.rollout_logprobs).abs()
        self.passed.append((micro.rollouts, torch.stack([entropy.detach(), logprobs - of.old_logprobs])))
        values = {
            "tokens": (counted, counted),
            "entropy": (entropy.detach(), counted),
            "approx_kl": (kl(of.old_logprobs, logprobs, "k3"), counted),  # KL(old || new)
            "ref_kl": (of.ref_kl.detach(), counted),
            "clip_high": (of.clipped_high, counted),
            "clip_low": (of.clipped_low, counted),
            "clip_dual": (of.clipped_dual, counted),
            "rollout_is_weight": (of.rollout_is, counted),
            "rollout_is_masked": (of.rollout_is == 0, counted),
            "old_tokens": (micro.versions < self.version, counted),
            "version_lag": (self.version - micro.versions, counted),
            "rollout_logprob_diff_mean": (difference, known),
            "rollout_kl": (kl(micro.rollout_logprobs, same_weights, "k3"), known),
            "known_entropy": (entropy.detach(), known),
            "trainer_nll": (-same_weights, known),
            "rollout_nll": (-micro.rollout_logprobs, known),
            "trainer_nll_squared": (same_weights**2, known),
            "rollout_nll_squared": (micro.rollout_logprobs**2, known),
            "known_tokens": (known, known),
        }
        ordered = [values[key] for key in SUMS]
        sums = torch.stack([torch.where(where, value, 0).sum(dtype=torch.float64) for value, where in ordered])
        self.current.append((sums, torch.where(known, difference, 0).max()))

    def end(self, norm: float) -> None:
        """Ends an optimizer step. If `norm`, the gradient's, is not finite, it was skipped and its tokens do not count."""
        parts, self.current = self.current, []
        if not np.isfinite(norm):
            self.nonfinite += 1
            return
        self.grad_norms.append(norm)
        self.diff_max = max(self.diff_max, *(float(largest) for _, largest in parts))
        for key, value in zip(SUMS, torch.stack([sums for sums, _ in parts]).sum(0).tolist(), strict=True):
            self.sums[key] += value

    def pop_tokens(self, groups: Sequence[Sequence[Rollout]], ranks: Ranks) -> dict[tuple[int, int], np.ndarray]:
        """{(draw number, place in the group): float32[2, T]} of the responses of `groups`, the same on every rank: entropy and
        log of new / old probability at the first pass of the update over them. All else is forgotten."""
        where = {id(r): (r.group, i) for group in groups for i, r in enumerate(group)}
        found = [
            (where[id(r)], values)
            for rollouts, both in self.passed
            if any(id(r) in where for r in rollouts)
            for r, values in zip(rollouts, np.split(both.float().cpu().numpy(), ends(rollouts), axis=1), strict=True)
            if id(r) in where
        ]
        self.passed = []
        return dict(reversed(ranks.gather(found)))

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """Means over the tokens of all ranks.

        policy/rollout_logprob_diff_mean, _max: |trainer - sampler| log-prob, nats, at the weights that sampled; rollout_kl:
        KL(sampler || trainer); rollout_is_weight: mean importance weight; rollout_is_masked: share of tokens where it is 0;
        old_tokens: share of tokens sampled before the step's policy; version_lag: mean optimizer steps between the two.
        Of the same tokens as the first: rollout_spread: standard deviation of the sampler's log-probs / of the trainer's, about
        1 / temperature where the sampler's differs; nll_excess: trainer's mean -log-prob / mean entropy - 1, 0 on average where
        the sampler draws from the trainer's distribution and no group is dropped. Without any such token (rollout.ahead, with
        a batch wholly of older versions) these five were not measured and are left out.
        """
        sums = ranks.sum(self.sums)
        tokens, known, diff_max = max(1.0, sums.pop("tokens")), sums.pop("known_tokens"), max(ranks.gather([self.diff_max]))
        of_known = {key: sums.pop(key) for key in KNOWN_ONLY}
        return {
            **{f"policy/{key}": value / tokens for key, value in sums.items()},
            **(rollout_differences(of_known, known, diff_max) if known else {}),
            "optimizer/grad_norm": mean(self.grad_norms),
            "optimizer/steps": float(len(self.grad_norms)),
            "optimizer/skipped": float(self.skipped),
            "optimizer/nonfinite": float(self.nonfinite),
        }


def rollout_differences(sums: dict[str, float], known: float, diff_max: float) -> dict[str, float]:
    """The metrics of sampler against trainer, from the sums over `known` tokens, at least one; diff_max: nats."""
    means = {key: value / known for key, value in sums.items()}
    nll, entropy = means["trainer_nll"], means["known_entropy"]
    variances = means["rollout_nll_squared"] - means["rollout_nll"] ** 2, means["trainer_nll_squared"] - nll**2
    return {
        "policy/rollout_logprob_diff_mean": means["rollout_logprob_diff_mean"],
        "policy/rollout_kl": means["rollout_kl"],
        "policy/rollout_spread": float(np.sqrt(variances[0] / variances[1])) if min(variances) > 1e-6 else 1.0,
        "policy/nll_excess": nll / entropy - 1 if entropy > 1e-6 else 0.0,
        "policy/rollout_logprob_diff_max": diff_max,
    }
