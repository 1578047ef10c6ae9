"""The loss against hand calculation, and its independence of how a mini-batch is cut."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minirl.config.options import LOSS_AGG_MODES, ROLLOUT_IS
from minirl.loss import (
    importance_weights,
    kl,
    logprobs_and_entropy,
    overlong_penalty,
    token_weights,
)
from minirl.losses import PPO, Clip, Tokens


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
            parts.append(weights[i] * PPO()(Tokens(parameter * sequences[i], sequences[i], advantages), Clip()).loss)
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


def test_importance_weights_of_whole_sequences_by_hand():
    # two responses: ratios 2, 2 (product 4, geometric mean 2) and 0.5, 1, 1 (product 0.5, geometric mean 0.794)
    ratio = torch.tensor([2.0, 2.0, 0.5, 1.0, 1.0])
    weights = lambda how, low, high: importance_weights(ratio.log(), torch.zeros(5), how, low, high, [2, 3]).tolist()  # noqa: E731
    assert weights("sequence_truncate", 0.5, 3.0) == pytest.approx([3, 3, 0.5, 0.5, 0.5])
    assert weights("sequence_mask", 0.4, 3.0) == pytest.approx([0, 0, 0.5, 0.5, 0.5])
    assert weights("sequence_mask", 0.6, 5.0) == pytest.approx([4, 4, 0, 0, 0])
    assert weights("sequence_reject", 0.7, 1.5) == [0, 0, 1, 1, 1]
    assert weights("sequence_reject", 0.9, 2.1) == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("how", ROLLOUT_IS)
def test_importance_weights_are_one_where_sampler_and_trainer_agree(how):
    assert importance_weights(torch.randn(5), torch.randn(5), "none", 0.5, 2).tolist() == [1] * 5
    same = torch.randn(7)
    assert importance_weights(same, same, how, 0.5, 2.0, [3, 4]).tolist() == [1] * 7
    assert importance_weights(same[:1], same[:1], how, 0.5, 2.0, []).tolist() == [1], "a rank without work"


def test_truncated_weights_carry_no_gradient():
    old = torch.tensor([-1.0], requires_grad=True)
    assert not importance_weights(old, torch.tensor([-1.2]), "truncate", 0.5, 2.0).requires_grad


def test_logprobs_and_entropy_by_hand():
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.9, 0.05, 0.05]])
    logprobs, entropy = logprobs_and_entropy(probabilities.log() + 7.0, torch.tensor([0, 2]))
    assert logprobs.tolist() == pytest.approx([math.log(0.5), math.log(0.05)], rel=1e-5)
    assert entropy.tolist() == pytest.approx([1.5 * math.log(2), -(0.9 * math.log(0.9) + 0.1 * math.log(0.05))], rel=1e-5)


def test_the_likeliest_tokens_by_hand():
    probabilities = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.2, 0.7]])
    top = logprobs_and_entropy(probabilities.log() - 3.0, torch.tensor([0, 2]), entropy=False, top_k=2)[2]
    assert top.flatten().tolist() == pytest.approx([math.log(p) for p in (0.5, 0.3, 0.7, 0.2)], rel=1e-5)
    assert logprobs_and_entropy(probabilities.log(), torch.tensor([0, 2]), top_k=9)[2].shape == (2, 3), "the whole vocabulary"


def test_entropy_gradient_only_when_asked():
    logits = torch.randn(2, 3, requires_grad=True)
    assert logprobs_and_entropy(logits, torch.tensor([0, 1]))[1].requires_grad
    assert not logprobs_and_entropy(logits, torch.tensor([0, 1]), entropy_grad=False)[1].requires_grad
    assert not logprobs_and_entropy(logits, torch.tensor([0, 1]), entropy=False)[1].any()


def test_overlong_penalty_by_hand():
    # limit 100, buffer 20: free up to 80, -0.5 at 90, -1 from 100 on
    assert [overlong_penalty(n, 100, 20) for n in (10, 80, 90, 100, 120)] == [0.0, 0.0, -0.5, -1.0, -1.0]
    assert overlong_penalty(100, 100, 0) == 0.0
