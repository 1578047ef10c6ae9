"""The sums over an update's tokens, against the same sums in numpy; batch_metrics is tested where runs are."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minirl.config.options import RolloutConfig
from minirl.losses import PPO, Clip, Tokens
from minirl.rollout.types import Completion, Rollout
from minirl.run.metrics import UpdateStats
from minirl.run.report import check_logprob_diff
from minirl.utils.distributed import Ranks
from minirl.utils.errors import RunError
from minirl.verify.types import Verdict

WAITS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}


class NoWaiting(TorchDispatchMode):
    """Refuses operations whose answer Python needs: on a GPU each waits for all work before it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in WAITS, f"{func} makes the host wait"
        return func(*args, **(kwargs or {}))


class Micro:
    """What `UpdateStats.add` reads of a micro-batch."""

    def __init__(self, weights, versions, rollout_logprobs):
        self.token_weights, self.versions, self.rollout_logprobs = weights, versions, rollout_logprobs
        self.rollouts: list = []


def micro_batch(rng, tokens):
    """The arguments of `UpdateStats.add`: some tokens count, some are of version 3, the present one."""
    old, new, sampler = (torch.tensor(rng.normal(-2, 0.5, tokens), dtype=torch.float32) for _ in range(3))
    counted, fresh = torch.tensor(rng.random(tokens) < 0.7), torch.tensor(rng.random(tokens) < 0.5)
    advantages = torch.tensor(rng.normal(0, 1, tokens), dtype=torch.float32)
    importance = torch.tensor(rng.choice([0.0, 1.0, 1.5], tokens), dtype=torch.float32)
    token_loss = replace(PPO()(Tokens(new, old, advantages), Clip()), rollout_is=importance, ref_kl=torch.rand(tokens))
    return Micro(counted * 0.1, 2.0 + fresh, sampler), new.requires_grad_(), torch.rand(tokens), token_loss


def test_sums_over_micro_batches_and_no_wait_for_any():
    rng = np.random.default_rng(0)
    batches = [micro_batch(rng, tokens) for tokens in (40, 7, 1)]
    stats = UpdateStats(version=3)
    with NoWaiting():
        for batch in batches:
            stats.add(*batch)
    stats.end(2.0)
    metrics = stats.metrics(Ranks())
    columns = [
        (m.token_weights > 0, m.versions == 3, new, of.old_logprobs, m.rollout_logprobs, entropy, of.rollout_is, of.ref_kl)
        for m, new, entropy, of in batches
    ]
    counted, fresh, new, old, sampler, entropy, importance, reference = (
        np.concatenate([x.detach().numpy() for x in column]).astype(float) for column in zip(*columns, strict=True)
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
    stats = UpdateStats(version=3)
    stats.add(*second)
    stats.end(float("nan"))
    micro, _, entropy, token_loss = first
    counted = micro.token_weights > 0
    for left_out in token_loss.old_logprobs, micro.rollout_logprobs, entropy:
        left_out[~counted] = torch.nan
    stats.add(*first)
    stats.end(1.0)
    assert (stats.nonfinite, stats.sums["tokens"]) == (1, int(counted.sum()))
    assert np.isfinite(list(stats.metrics(Ranks()).values())).all()
    assert stats.metrics(Ranks())["policy/entropy"] == pytest.approx(float(entropy[counted].mean()))


def test_without_logprobs_of_the_weights_that_sampled_there_is_no_difference():
    rng = np.random.default_rng(2)
    stats = UpdateStats(version=3, recomputed=False)
    first, later = micro_batch(rng, 10), micro_batch(rng, 10)
    stats.add(*first)
    stats.end(1.0)
    once = dict(stats.sums)
    micro, new, _, _ = first
    known = (micro.token_weights > 0) & (micro.versions == 3)
    expected = float((new.detach() - micro.rollout_logprobs)[known].abs().sum())
    assert once["rollout_logprob_diff_mean"] == pytest.approx(expected), "a first step is at the weights that sampled"
    stats.add(*later)
    stats.end(1.0)
    assert stats.sums["known_tokens"] == once["known_tokens"]
    assert stats.sums["rollout_logprob_diff_mean"] == once["rollout_logprob_diff_mean"]
    assert stats.sums["tokens"] > once["tokens"]


def test_a_batch_wholly_of_older_versions_reports_no_difference_rather_than_zero():
    micro, new, entropy, token_loss = micro_batch(np.random.default_rng(4), 12)
    micro.versions = torch.full_like(micro.versions, 3)
    found = []
    for version in (3, 4):
        stats = UpdateStats(version)
        stats.add(micro, new, entropy, token_loss)
        stats.end(1.0)
        found.append(stats.metrics(Ranks()))
    measured, unmeasured = found
    names = ("rollout_logprob_diff_mean", "rollout_logprob_diff_max", "rollout_kl", "rollout_spread", "nll_excess")
    assert measured.keys() - unmeasured.keys() == {f"policy/{name}" for name in names}
    assert not unmeasured.keys() - measured.keys()
    assert (unmeasured["policy/old_tokens"], unmeasured["policy/version_lag"]) == (1, 1)
    check_logprob_diff(unmeasured, RolloutConfig(logprob_diff_stop=1e-9))
    with pytest.raises(RunError, match="differ by"):
        check_logprob_diff(measured, RolloutConfig(logprob_diff_stop=1e-9))


def test_values_of_tokens_are_those_of_the_first_pass_over_a_response():
    rng = np.random.default_rng(1)
    completions = [Completion(np.zeros(n, np.int32), np.zeros(n, np.float32), "stop") for n in (3, 1, 2)]
    one, two, other = (
        Rollout(number, "", "", [1], completion, 0, "", Verdict("right"), 1.0)
        for number, completion in zip((7, 7, 8), completions, strict=True)
    )
    stats, wanted = UpdateStats(), {}
    for rollouts in ([other, two], [one], [one, two, other]):  # the last is a second epoch
        micro, new, entropy, token_loss = micro_batch(rng, sum(r.length for r in rollouts))
        micro.rollouts = rollouts
        stats.add(micro, new, entropy, token_loss)
        values, start = torch.stack([entropy, new.detach() - token_loss.old_logprobs]).numpy(), 0
        for r in rollouts:
            wanted.setdefault(id(r), values[:, start : start + r.length])
            start += r.length
    found = stats.pop_tokens([[one, two]], Ranks())
    assert found.keys() == {(7, 0), (7, 1)}
    np.testing.assert_array_equal(found[7, 0], wanted[id(one)])
    np.testing.assert_array_equal(found[7, 1], wanted[id(two)])
    assert stats.pop_tokens([[one, two]], Ranks()) == {}, "nothing is kept"
