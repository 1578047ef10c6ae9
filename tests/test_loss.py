"""The loss against hand calculation, and its independence of how a mini-batch is cut."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minirl.config.options import LOSS_AGG_MODES
from minirl.loss import (
    Clip,
    clipped_surrogate,
    importance_weights,
    kl,
    logprobs_and_entropy,
    overlong_penalty,
    token_weights,
)


def test_clipped_surrogate_by_hand():
    #                     inside  too high, A>0   too high, A<0   too low, A<0   too low, A>0   dual clip
    ratio = torch.tensor([1.1,    1.5,            1.5,            0.5,           0.5,           10.0])  # fmt: skip
    advantage = torch.tensor([2.0, 2.0, -2.0, -2.0, 2.0, -2.0])
    out = clipped_surrogate(ratio.log(), torch.zeros(6), advantage, Clip(low=0.2, high=0.28, dual=3.0))
    assert out.loss.tolist() == pytest.approx([-2.2, -2 * 1.28, 3.0, 2 * 0.8, -1.0, 6.0], rel=1e-5)
    assert out.clipped_high.tolist() == [False, True, False, False, False, False]
    assert out.clipped_low.tolist() == [False, False, False, True, False, False]
    assert out.clipped_dual.tolist() == [False, False, False, False, False, True]
    without = clipped_surrogate(ratio.log(), torch.zeros(6), advantage, Clip(0.2, 0.28, None))
    assert without.loss[5].item() == pytest.approx(20.0, rel=1e-5)


def test_clipped_tokens_have_no_gradient_and_others_have():
    logprobs = torch.tensor([1.5, 1.5, 0.5, 10.0, 1.0]).log().requires_grad_()
    advantage = torch.tensor([1.0, -1.0, -1.0, -1.0, 1.0])
    clipped_surrogate(logprobs, torch.zeros(5), advantage, Clip()).loss.sum().backward()
    assert logprobs.grad is not None
    # d(-ratio * A)/d logp = -ratio * A where nothing clips
    assert logprobs.grad.tolist() == pytest.approx([0.0, 1.5, 0.0, 0.0, -1.0])


def test_log_ratios_far_out_stay_finite():
    logprobs = torch.tensor([200.0, -200.0], requires_grad=True)
    loss = clipped_surrogate(logprobs, torch.zeros(2), torch.tensor([-1.0, 1.0]), Clip(dual=None)).loss
    assert torch.isfinite(loss).all()
    assert loss[0].item() == pytest.approx(math.exp(20))


def test_token_weights_by_hand():
    assert token_weights([1, 3], "token-mean") == [0.25, 0.25]
    assert token_weights([1, 3], "seq-mean-token-mean") == pytest.approx([0.5, 1 / 6])
    assert token_weights([1, 3], "seq-mean-token-sum-norm", 10) == pytest.approx([1 / 20, 1 / 20])
    # a response that is left out is in no count
    assert token_weights([0, 1, 3], "seq-mean-token-mean") == pytest.approx([0.0, 0.5, 1 / 6])
    assert token_weights([0, 0], "token-mean") == [0.0, 0.0]
    with pytest.raises(ValueError, match="token-mean"):
        token_weights([1], "mean")
    with pytest.raises(ValueError, match="positive"):
        token_weights([1], "seq-mean-token-sum-norm")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.sampled_from(LOSS_AGG_MODES), st.randoms())
def test_the_gradient_does_not_depend_on_how_a_mini_batch_is_cut(lengths, aggregation, rng):
    torch.manual_seed(sum(lengths))
    sequences = [torch.randn(n) for n in lengths]
    weights = token_weights(lengths, aggregation, 64)
    parameter = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def loss(indices: list[int]) -> torch.Tensor:
        parts = []
        for i in indices:
            advantages = torch.full((lengths[i],), 1.0 + i)
            parts.append(weights[i] * clipped_surrogate(parameter * sequences[i], sequences[i], advantages, Clip()).loss)
        return torch.cat(parts).sum()

    (whole,) = torch.autograd.grad(loss(list(range(len(lengths)))), parameter)
    order = list(range(len(lengths)))
    rng.shuffle(order)
    cut = rng.randint(0, len(order))
    pieces = [torch.autograd.grad(loss(part), parameter)[0] for part in (order[:cut], order[cut:]) if part]
    assert sum(pieces) == pytest.approx(whole.item(), rel=1e-5, abs=1e-9)


def test_kl_estimators_by_hand():
    p, q = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    assert kl(p, q, "k1").item() == pytest.approx(math.log(2))
    assert kl(p, q, "k2").item() == pytest.approx(math.log(2) ** 2 / 2)
    assert kl(p, q, "k3").item() == pytest.approx(0.5 - 1 + math.log(2))
    with pytest.raises(ValueError, match="k1, k2, k3"):
        kl(p, q, "k4")


def test_kl_estimators_have_the_right_mean():
    # Exact expectations over a distribution of 5 tokens: k1 and k3 are unbiased, k3 is never negative.
    torch.manual_seed(0)
    p, q = torch.randn(5).log_softmax(0), torch.randn(5).log_softmax(0)
    exact = (p.exp() * (p - q)).sum()
    assert (p.exp() * kl(p, q, "k1")).sum().item() == pytest.approx(exact.item(), rel=1e-5)
    assert (p.exp() * kl(p, q, "k3")).sum().item() == pytest.approx(exact.item(), rel=1e-5)
    assert (kl(p, q, "k3") >= 0).all()


@pytest.mark.parametrize("estimator", ["k1", "k2"])
def test_the_gradient_of_k1_and_k2_is_that_of_the_kl_on_average(estimator):
    torch.manual_seed(1)
    logits, q = torch.randn(5, dtype=torch.float64, requires_grad=True), torch.randn(5, dtype=torch.float64).log_softmax(0)
    p = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((p.exp() * (p - q)).sum(), logits, retain_graph=True)
    # tokens are drawn from p, so their probabilities are weights without a gradient
    (mean,) = torch.autograd.grad((p.exp().detach() * kl(p, q, estimator)).sum(), logits)
    assert torch.allclose(mean, exact)


def test_importance_weights_by_hand():
    old, sampler = torch.tensor([0.5, 0.5, 0.5]).log(), torch.tensor([0.5, 0.1, 2.5]).log()
    assert importance_weights(old, sampler, "none", 0.5, 2.0).tolist() == [1, 1, 1]
    assert importance_weights(old, sampler, "truncate", 0.5, 2.0).tolist() == pytest.approx([1, 2, 0.2])
    assert importance_weights(old, sampler, "mask", 0.5, 2.0).tolist() == pytest.approx([1, 0, 0])
    with pytest.raises(ValueError, match="truncate"):
        importance_weights(old, sampler, "tis", 0.5, 2.0)


def test_truncated_weights_carry_no_gradient():
    old = torch.tensor([-1.0], requires_grad=True)
    assert not importance_weights(old, torch.tensor([-1.2]), "truncate", 0.5, 2.0).requires_grad


def test_logprobs_and_entropy_by_hand():
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.9, 0.05, 0.05]])
    logprobs, entropy = logprobs_and_entropy(probabilities.log() + 7.0, torch.tensor([0, 2]))
    assert logprobs.tolist() == pytest.approx([math.log(0.5), math.log(0.05)], rel=1e-5)
    assert entropy.tolist() == pytest.approx([1.5 * math.log(2), -(0.9 * math.log(0.9) + 0.1 * math.log(0.05))], rel=1e-5)


def test_entropy_gradient_only_when_asked():
    logits = torch.randn(2, 3, requires_grad=True)
    assert logprobs_and_entropy(logits, torch.tensor([0, 1]))[1].requires_grad
    assert not logprobs_and_entropy(logits, torch.tensor([0, 1]), entropy_grad=False)[1].requires_grad
    assert not logprobs_and_entropy(logits, torch.tensor([0, 1]), entropy=False)[1].any()


def test_overlong_penalty_by_hand():
    # limit 100, buffer 20: free up to 80, -0.5 at 90, -1 from 100 on
    assert [overlong_penalty(n, 100, 20) for n in (10, 80, 90, 100, 120)] == [0.0, 0.0, -0.5, -1.0, -1.0]
    assert overlong_penalty(100, 100, 0) == 0.0
