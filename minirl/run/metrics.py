"""What every step reports, under the same names for every estimator."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from minirl.advantages import EDAS, base_estimator, diversity
from minirl.config.options import Config
from minirl.loss import TokenLoss, kl
from minirl.rollout.sampler import as_group
from minirl.rollout.types import Rollout
from minirl.utils.distributed import Ranks
from minirl.verify.types import EMPTY_ANSWER, ERROR, NO_ANSWER, TIMEOUT, WRONG

SUMS = (
    "tokens", "entropy", "approx_kl", "ref_kl", "clip_high", "clip_low", "clip_dual", "importance", "rollout_is_masked",
    "gap", "gap_kl", "gap_tokens",
)  # fmt: skip


def batch_metrics(
    generated: Sequence[Sequence[Rollout]],
    batch: Sequence[Sequence[Rollout]],
    surplus: Sequence[Sequence[Rollout]],
    drawn: int,
    config: Config,
) -> dict[str, float]:
    """Metrics of all that was generated in a step (reward/, response/, groups/) and of what was trained on (batch/).

    sampling/wasted_groups: generated but neither trained on nor carried over. sampling/aborted_groups, aborted_share: of the
    `drawn` prompts, those whose sampling was given up; they are in no other metric.
    """
    made, trained = [as_group(g) for g in generated], [as_group(g) for g in batch]
    rollouts = [r for g in generated for r in g]
    scored = [r for r in rollouts if r.reward == r.reward]
    edas: EDAS = replace(config.estimator.edas, base=base_estimator(config.build_estimator()))
    of_made = diversity(made, edas)
    same = all(a is b for a, b in zip(generated, batch, strict=False)) and len(generated) == len(batch)
    of_trained = of_made if same else diversity(trained, edas)
    labels = [r.verdict.label for r in rollouts]
    fresh = {g[0].group for g in generated}
    used = sum(g[0].group in fresh for g in (*batch, *surplus))
    return {
        "reward/mean": mean([r.reward for r in scored]),
        "reward/accuracy": mean([r.verdict.status == "right" for r in scored]),
        "response/tokens": mean([r.length for r in rollouts]),
        "response/truncated": mean([r.truncated for r in rollouts]),
        "response/no_answer": mean([label == NO_ANSWER for label in labels]),
        "response/empty_answer": mean([label == EMPTY_ANSWER for label in labels]),
        "response/unlabelled": mean([r.verdict.status == WRONG and not r.verdict.label for r in rollouts]),
        "verify/timeouts": float(sum(label == TIMEOUT for label in labels)),
        "verify/errors": float(sum(r.verdict.status == ERROR for r in rollouts)),
        **{f"groups/{key}": value for key, value in of_made.items()},
        **{f"batch/{key}": value for key, value in of_trained.items()},
        "sampling/groups": float(len(generated)),
        "sampling/batch_groups": float(len(batch)),
        "sampling/carried_groups": float(sum(g[0].group not in fresh for g in batch)),
        "sampling/wasted_groups": float(len(generated) - used),
        "sampling/aborted_groups": float(drawn - len(generated)),
        "sampling/aborted_share": (drawn - len(generated)) / max(drawn, 1),
        "sampling/tokens": float(sum(r.length for r in rollouts)),
        "sampling/trained_tokens": float(sum(r.length for g in batch for r in g)),
    }


def mean(values: Sequence[float]) -> float:
    """The mean, 0 of nothing."""
    return float(np.mean(values)) if values else 0.0


@dataclass
class UpdateStats:
    """Sums over the tokens of one batch's optimizer steps, of this rank; `metrics` makes means over all ranks of them."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0.0))
    gap_max: float = 0.0
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0
    nonfinite: int = 0
    open: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (sums, gap_max) of the step in work

    def add(
        self, counted: Tensor, fresh: Tensor, logprobs: Tensor, old_logprobs: Tensor, rollout_logprobs: Tensor, before: Tensor | None,
        entropy: Tensor, surrogate: TokenLoss, importance: Tensor, ref_kl: Tensor,
    ) -> None:  # fmt: skip
        """Adds a micro-batch; all are float[T] or bool[T]. counted: tokens in the loss; fresh: of the present policy; before:
        the trainer's log-probs at the weights that sampled, where they are known. Waits for no GPU: numbers stay there."""
        logprobs = logprobs.detach()
        known = counted & fresh if before is not None else counted & False
        mine = logprobs if before is None else before
        gap = (mine - rollout_logprobs).abs()
        values = {
            "tokens": (counted, counted),
            "entropy": (entropy.detach(), counted),
            "approx_kl": (
                kl(old_logprobs, logprobs, "k3"),
                counted,
            ),  # of the old policy from the new, on tokens of the old one
            "ref_kl": (ref_kl.detach(), counted),
            "clip_high": (surrogate.clipped_high, counted),
            "clip_low": (surrogate.clipped_low, counted),
            "clip_dual": (surrogate.clipped_dual, counted),
            "importance": (importance, counted),
            "rollout_is_masked": (importance == 0, counted),
            "gap": (gap, known),
            "gap_kl": (kl(rollout_logprobs, mine, "k3"), known),
            "gap_tokens": (known, known),
        }
        ordered = [values[key] for key in SUMS]
        sums = torch.stack([torch.where(of, value, 0).sum(dtype=torch.float64) for value, of in ordered])
        self.open.append((sums, torch.where(known, gap, 0).max()))

    def end(self, norm: float) -> None:
        """An optimizer step with this gradient norm is over. One that is not finite was skipped: its tokens count nowhere."""
        done, self.open = self.open, []
        if not np.isfinite(norm):
            self.nonfinite += 1
            return
        self.grad_norms.append(norm)
        self.gap_max = max(self.gap_max, *(float(largest) for _, largest in done))
        for key, value in zip(SUMS, torch.stack([sums for sums, _ in done]).sum(0).tolist(), strict=True):
            self.sums[key] += value

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """Means over all tokens of all ranks. policy/rollout_logprob_diff_mean, gap_max: |trainer - sampler| log-prob, nats, at the weights that
        sampled; gap_kl: KL(sampler || trainer); rollout_is_masked: share of tokens that the correction masks."""
        sums = ranks.sum(self.sums)
        tokens, gap_tokens = max(1.0, sums.pop("tokens")), max(1.0, sums.pop("gap_tokens"))
        gap, gap_kl = sums.pop("gap") / gap_tokens, sums.pop("gap_kl") / gap_tokens
        return {
            **{f"policy/{key}": value / tokens for key, value in sums.items()},
            "policy/rollout_logprob_diff_mean": gap,
            "policy/rollout_kl": gap_kl,
            "policy/rollout_logprob_diff_max": max(ranks.gather([self.gap_max])),
            "optimizer/grad_norm": mean(self.grad_norms),
            "optimizer/steps": float(len(self.grad_norms)),
            "optimizer/skipped": float(self.skipped),
            "optimizer/nonfinite": float(self.nonfinite),
        }
