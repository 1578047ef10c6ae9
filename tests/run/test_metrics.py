"""The sums over an update's tokens, against the same sums in numpy; batch_metrics is tested where runs are."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minirl.loss import Clip, clipped_surrogate
from minirl.run.metrics import UpdateStats
from minirl.utils.distributed import Ranks

WAITS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}


class NoWaiting(TorchDispatchMode):
    """Refuses operations whose answer Python needs: on a GPU each waits for all work before it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in WAITS, f"{func} makes the host wait"
        return func(*args, **(kwargs or {}))


def micro_batch(rng, tokens):
    old, new, sampler = (torch.tensor(rng.normal(-2, 0.5, tokens), dtype=torch.float32) for _ in range(3))
    counted, fresh = torch.tensor(rng.random(tokens) < 0.7), torch.tensor(rng.random(tokens) < 0.5)
    advantages = torch.tensor(rng.normal(0, 1, tokens), dtype=torch.float32)
    importance = torch.tensor(rng.choice([0.0, 1.0, 1.5], tokens), dtype=torch.float32)
    surrogate = clipped_surrogate(new, old, advantages, Clip())
    entropy, reference = torch.rand(tokens), torch.rand(tokens)
    return counted, fresh, new.requires_grad_(), old, sampler, old, entropy, surrogate, importance, reference


def test_sums_over_micro_batches_and_no_wait_for_any():
    rng = np.random.default_rng(0)
    batches = [micro_batch(rng, tokens) for tokens in (40, 7, 1)]
    stats = UpdateStats()
    with NoWaiting():
        for batch in batches:
            stats.add(*batch)
    stats.end(2.0)
    metrics = stats.metrics(Ranks())
    counted, fresh, new, old, sampler, _, entropy, _, importance, reference = (
        np.concatenate([b[i].detach().numpy() if i != 7 else [] for b in batches]).astype(float) for i in range(10)
    )
    on, known = counted > 0, (counted > 0) & (fresh > 0)
    log_ratio = new - old
    assert metrics["policy/entropy"] == pytest.approx(entropy[on].mean())
    assert metrics["policy/approx_kl"] == pytest.approx((np.exp(log_ratio) - 1 - log_ratio)[on].mean(), rel=1e-5)
    assert metrics["policy/ref_kl"] == pytest.approx(reference[on].mean())
    assert metrics["policy/rollout_is_weight"] == pytest.approx(importance[on].mean())
    assert metrics["policy/rollout_is_masked"] == pytest.approx((importance[on] == 0).mean())
    gap = (old - sampler)[known]
    assert metrics["policy/rollout_logprob_diff_mean"] == pytest.approx(np.abs(gap).mean())
    assert metrics["policy/rollout_kl"] == pytest.approx((np.exp(gap) - 1 - gap).mean(), rel=1e-5)
    assert metrics["policy/rollout_logprob_diff_max"] == pytest.approx(np.abs(gap).max())
    assert metrics["optimizer/grad_norm"] == 2.0


def test_what_is_not_counted_may_be_nan_and_a_skipped_step_counts_nowhere():
    rng = np.random.default_rng(1)
    first, second = micro_batch(rng, 20), micro_batch(rng, 20)
    stats = UpdateStats()
    stats.add(*second)
    stats.end(float("nan"))
    for left_out in first[3], first[4], first[6]:
        left_out[~first[0]] = torch.nan
    stats.add(*first)
    stats.end(1.0)
    assert (stats.nonfinite, stats.sums["tokens"]) == (1, int(first[0].sum()))
    assert np.isfinite(list(stats.metrics(Ranks()).values())).all()
    assert stats.metrics(Ranks())["policy/entropy"] == pytest.approx(float(first[6][first[0]].mean()))


def test_without_logprobs_of_the_weights_that_sampled_there_is_no_gap():
    batch = list(micro_batch(np.random.default_rng(2), 10))
    batch[5] = None
    stats = UpdateStats()
    stats.add(*batch)
    stats.end(1.0)
    assert stats.sums["gap_tokens"] == stats.sums["gap"] == stats.gap_max == 0.0
