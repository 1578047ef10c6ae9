"""Policy losses against hand calculation, and what holds for all of them."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from minirl.losses import (
    CISPO,
    GMPO,
    GSPO,
    LOSSES,
    PPO,
    SAPO,
    Clip,
    ClipCov,
    KLCov,
    Reinforce,
    SimKO,
    Tokens,
    build_loss,
    covariance,
)  # fmt: skip


def test_clipped_surrogate_by_hand():
    #                     inside  too high, A>0   too high, A<0   too low, A<0   too low, A>0   dual clip
    ratio = torch.tensor([1.1,    1.5,            1.5,            0.5,           0.5,           10.0])  # fmt: skip
    advantage = torch.tensor([2.0, 2.0, -2.0, -2.0, 2.0, -2.0])
    out = PPO()(Tokens(ratio.log(), torch.zeros(6), advantage), Clip(low=0.2, high=0.28, dual=3.0))
    assert out.loss.tolist() == pytest.approx([-2.2, -2 * 1.28, 3.0, 2 * 0.8, -1.0, 6.0], rel=1e-5)
    assert out.clipped_high.tolist() == [False, True, False, False, False, False]
    assert out.clipped_low.tolist() == [False, False, False, True, False, False]
    assert out.clipped_dual.tolist() == [False, False, False, False, False, True]
    without = PPO()(Tokens(ratio.log(), torch.zeros(6), advantage), Clip(0.2, 0.28, None))
    assert without.loss[5].item() == pytest.approx(20.0, rel=1e-5)


def test_clipped_tokens_have_no_gradient_and_others_have():
    logprobs = torch.tensor([1.5, 1.5, 0.5, 10.0, 1.0]).log().requires_grad_()
    advantage = torch.tensor([1.0, -1.0, -1.0, -1.0, 1.0])
    PPO()(Tokens(logprobs, torch.zeros(5), advantage), Clip()).loss.sum().backward()
    assert logprobs.grad is not None
    # d(-ratio * A)/d logp = -ratio * A where nothing clips
    assert logprobs.grad.tolist() == pytest.approx([0.0, 1.5, 0.0, 0.0, -1.0])


def test_log_ratios_far_out_stay_finite():
    logprobs = torch.tensor([200.0, -200.0], requires_grad=True)
    loss = PPO()(Tokens(logprobs, torch.zeros(2), torch.tensor([-1.0, 1.0])), Clip(dual=None)).loss
    assert torch.isfinite(loss).all()
    assert loss[0].item() == pytest.approx(math.exp(20))


def gradient(loss, logprobs, old, advantages, lengths, clip=Clip(), selected=None, weights=None):  # noqa: B008
    """(float[T] loss, float[T] gradient of its weighted sum by the log-probs)."""
    logprobs = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    others = (torch.tensor(x, dtype=torch.float64) for x in (old, advantages))
    # Entropies that are all equal: no token is a fork, and SimKO is PPO; its own tests are below.
    flat = (torch.zeros(len(old), dtype=torch.float64), torch.zeros(len(old), 3, dtype=torch.float64))
    made = loss(Tokens(logprobs, *others, lengths, None if selected is None else torch.tensor(selected), *flat), clip)
    weights = torch.ones(len(made.loss)) if weights is None else torch.tensor(weights)
    (slope,) = torch.autograd.grad((made.loss * weights).sum(), logprobs)
    return made.loss.detach().numpy(), slope.numpy()


@pytest.mark.parametrize("name", LOSSES)
def test_at_the_policy_that_sampled_every_loss_is_the_policy_gradient(name):
    """Before the first step pi is pi_old, and all of them must push along A times the gradient of log pi."""
    rng = np.random.default_rng(0)
    logprobs, advantages = rng.normal(-1, 0.5, 9), np.repeat(rng.normal(0, 1, 3), (2, 3, 4))
    loss = build_loss(name)
    low, high = loss.clip_low or 0.2, loss.clip_high or 0.2
    weights = np.repeat([1 / 2, 1 / 3, 1 / 4], (2, 3, 4))  # seq-mean-token-mean: GSPO and GMPO are made for it
    _, slope = gradient(loss, logprobs, logprobs, advantages, [2, 3, 4], Clip(low, high), weights=weights)
    assert slope == pytest.approx(-advantages * weights)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_does_not_depend_on_the_other_responses(name):
    rng = np.random.default_rng(1)
    logprobs, old = rng.normal(-1, 0.5, (2, 9))
    advantages, selected = rng.normal(0, 1, 9), rng.random(9) < 0.3
    together = gradient(build_loss(name), logprobs, old, advantages, [2, 3, 4], selected=selected)
    for begin, end in ((0, 2), (2, 5), (5, 9)):
        part = slice(begin, end)
        alone = gradient(build_loss(name), logprobs[part], old[part], advantages[part], [end - begin], selected=selected[part])
        for a, b in zip(alone, together, strict=True):
            assert a == pytest.approx(b[part])


@pytest.mark.parametrize("name", LOSSES)
def test_a_rank_without_work_and_log_ratios_far_out(name):
    loss, slope = gradient(build_loss(name), [0.0], [0.0], [0.0], [])
    assert (loss.tolist(), slope.tolist()) == ([0.0], [0.0])
    loss, slope = gradient(build_loss(name), [200.0, -200.0, 200.0], [0.0, 0.0, 0.0], [-1.0, 1.0, 1.0], [2, 1])
    assert np.isfinite(loss).all()
    assert np.isfinite(slope).all()


def test_gspo_by_hand():
    # ratios 2 and 0.5 of one response have geometric mean 1: nothing is clipped, where PPO would clip both
    log = np.log([2.0, 0.5])
    loss, slope = gradient(GSPO(), log, [0, 0], [1.0, 1.0], [2], Clip(0.1, 0.1))
    assert loss == pytest.approx([-1, -1])
    assert slope == pytest.approx([-1, -1])
    # geometric mean 2 is above 1.1: clipped, no gradient
    loss, slope = gradient(GSPO(), np.log([4.0, 1.0]), [0, 0], [1.0, 1.0], [2], Clip(0.1, 0.1))
    assert loss == pytest.approx([-1.1, -1.1])
    assert slope.tolist() == [0, 0]


def test_gmpo_by_hand():
    # log-ratios 1 and 0, A > 0: the first is clipped to 0.4, so exp(0.2); only the second token has a gradient
    loss, slope = gradient(GMPO(), [1.0, 0.0], [0, 0], [2.0, 2.0], [2], Clip(0.4, 0.4), weights=[0.5, 0.5])
    assert loss == pytest.approx([-2 * math.exp(0.2)] * 2)
    assert slope == pytest.approx([0, -math.exp(0.2)])
    # A < 0: nothing is clipped upwards, the smaller objective is that of the larger ratio
    loss, _ = gradient(GMPO(), [1.0, 0.0], [0, 0], [-2.0, -2.0], [2], Clip(0.4, 0.4))
    assert loss == pytest.approx([2 * math.exp(0.5)] * 2)


def test_cispo_by_hand():
    # the weight is capped at 1 + 1, and has no gradient of its own
    loss, slope = gradient(CISPO(), np.log([3.0, 0.5]), [0, 0], [1.0, -2.0], [2], Clip(1.0, 1.0))
    assert loss == pytest.approx([-2 * math.log(3), 0.5 * 2 * math.log(0.5)])
    assert slope == pytest.approx([-2.0, 1.0])


def test_sapo_by_hand():
    # A > 0, tau 1: slope -A r sigmoid'(r - 1) 4; A < 0, tau 2
    r = np.array([2.0, 0.5])
    gate = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    loss, slope = gradient(SAPO(tau_pos=1.0, tau_neg=2.0), np.log(r), [0, 0], [1.0, -1.0], [2])
    assert loss == pytest.approx([-4 * gate(1), 2 * gate(-1)])
    assert slope == pytest.approx([-2 * 4 * gate(1) * (1 - gate(1)), 0.5 * 4 * gate(-1) * (1 - gate(-1))])


def test_reinforce_by_hand():
    loss, slope = gradient(Reinforce(), [-1.0, -2.0], [5.0, 5.0], [3.0, -1.0], [2])
    assert loss.tolist() == [3.0, -2.0]
    assert slope.tolist() == [-3.0, 1.0]


def test_covariance_is_centred_over_the_mini_batch():
    # A - mean: -1, 0, 1; log pi - mean: -2, 1, 1
    assert covariance(np.array([0.0, 1.0, 2.0]), np.array([-3.0, 0.0, 0.0])).tolist() == [2.0, 0.0, 1.0]


def test_kl_cov_penalises_the_largest_covariances():
    a, p = np.array([0.0, 1.0, 2.0, 1.0]), np.array([-3.0, 0.0, 0.0, 1.0])
    rng = np.random.default_rng(0)
    assert KLCov(share=0.5).select(a, p, rng).tolist() == [True, False, True, False]
    assert KLCov(share=1e-9).select(a, p, rng).sum() == 1, "at least one"
    log = np.log([1.5, 0.5])
    loss, slope = gradient(KLCov(coef=2.0), log, [0, 0], [1.0, 1.0], [2], selected=[True, False])
    assert loss == pytest.approx([-1.5 + 2 * math.log(1.5), -0.5])
    assert slope == pytest.approx([-1.5 + 2, -0.5])


def test_clip_cov_draws_inside_its_band_and_takes_the_gradient_away():
    rng = np.random.default_rng(0)
    a, p = rng.normal(0, 1, 1000), rng.normal(0, 1, 1000)
    loss = ClipCov(share=0.01, low=0.5, high=1.5)
    selected = loss.select(a, p, np.random.default_rng([7, 3]))
    cov = (a - a.mean()) * (p - p.mean())
    assert selected.sum() == 10
    assert ((cov[selected] > 0.5) & (cov[selected] < 1.5)).all()
    assert np.array_equal(selected, loss.select(a, p, np.random.default_rng([7, 3]))), "named by seed and version"
    assert not np.array_equal(selected, loss.select(a, p, np.random.default_rng([7, 4])))
    assert not ClipCov(low=1e9, high=2e9).select(a, p, rng).any(), "nothing in the band"
    _, slope = gradient(ClipCov(), [0.0, 0.0], [0, 0], [1.0, 1.0], [2], selected=[True, False])
    assert slope.tolist() == [0.0, -1.0]


def test_names_and_classes_of_the_user_s_own(tmp_path):
    assert build_loss("ppo") == PPO()
    with pytest.raises(ValueError, match=r"unknown loss 'pop'.*ppo.*gspo.*file\.py:Class"):
        build_loss("pop")
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from minirl.losses import PolicyLoss, TokenLoss\n"
        "@dataclass(frozen=True)\n"
        "class Half(PolicyLoss):\n"
        "    scale: float = 0.5\n"
        "    def __call__(self, tokens, clip):\n"
        "        return TokenLoss.of(tokens, -self.scale * tokens.advantages * tokens.logprobs)\n"
        "class Other: pass\n"
    )
    loss, _ = gradient(build_loss(f"{tmp_path}/mine.py:Half"), [-1.0], [-1.0], [4.0], [1])
    assert loss.tolist() == [2.0]
    for name, problem in (("none.py:Half", "no file"), ("mine.py:Full", "no class 'Full'"), ("mine.py:Other", "a subclass of")):
        with pytest.raises(ValueError, match=problem):
            build_loss(f"{tmp_path}/{name}")


def test_the_names_are_there_without_torch():
    program = "import sys, minirl.losses, minirl.advantages, minirl.config.command_line; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def simko(loss, logits, ids, old, advantages, lengths):
    """(float[T] loss, float[T, V] gradient of its sum by the logits) of sampled tokens `ids`."""
    logits = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    everything = logits.log_softmax(-1)
    logprobs = everything[torch.arange(len(ids)), torch.tensor(ids)]
    entropies = -(everything.exp() * everything).sum(-1)
    others = (torch.tensor(x, dtype=torch.float64) for x in (old, advantages))
    made = loss(Tokens(logprobs, *others, lengths, None, entropies, everything.topk(loss.top_k).values), Clip(0.2, 0.2))
    (slope,) = torch.autograd.grad(made.loss.sum(), logits)
    return made.loss.detach().numpy(), slope.numpy()


def test_simko_shares_a_reward_among_the_likeliest_tokens_and_punishes_the_likeliest_more():
    # two responses of two tokens; the second token of each has the larger entropy: there it forks
    logits = [[5.0, 0, 0], [1.0, 0.5, 0], [5.0, 0, 0], [1.0, 0.5, 0]]
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    old = np.log(p[:, 0])  # the ratio is 1, and the likeliest token was sampled everywhere
    loss, slope = simko(SimKO(top_k=2, alpha=0.4, tau=0.5, penalty=1.5), logits, [0, 0, 0, 0], old, [1, 1, -1, -1], [2, 2])
    assert loss == pytest.approx([-1, -1, 1, 1.5])
    # d log p_j / d logits = one-hot_j - p
    assert slope[0] == pytest.approx(-([1, 0, 0] - p[0]))
    assert slope[1] == pytest.approx(-([0.6 + 0.2, 0.2, 0] - p[1]))
    assert slope[2] == pytest.approx([1, 0, 0] - p[2])
    assert slope[3] == pytest.approx(1.5 * ([1, 0, 0] - p[3]))


def test_simko_leaves_a_wrong_answer_s_rare_token_alone():
    logits = [[5.0, 0, 0], [1.0, 0.5, 0]]
    old = torch.tensor(logits).log_softmax(-1)[:, 1].numpy()
    loss, _ = simko(SimKO(tau=0.5, penalty=1.5), logits, [1, 1], old, [-1, -1], [2])
    assert loss == pytest.approx([1, 1])


def test_simko_is_the_paper_s_mixture_of_ratios():
    """The ratio of a fork of a right response is (1 - alpha) r + alpha / K sum over k of sg(r / r_k) r_k, and is clipped."""
    rng = np.random.default_rng(0)
    logits, before = rng.normal(0, 1, (6, 5)), rng.normal(0, 1, (6, 5))
    ids, advantages, alpha, count = [0, 1, 2, 3, 4, 0], torch.tensor([1.0, 1, 1, 2, 2, 2], dtype=torch.float64), 0.3, 2
    new = torch.tensor(logits, requires_grad=True)
    lp, lp_before = new.log_softmax(-1), torch.tensor(before).log_softmax(-1)
    row = torch.arange(6)
    r = (lp - lp_before)[row, ids].exp()
    top = lp.topk(count).indices
    r_k = (lp - lp_before).gather(-1, top).exp()
    mixed = (1 - alpha) * r + alpha / count * ((r[:, None] / r_k).detach() * r_k).sum(-1)
    entropies = -(lp.exp() * lp).sum(-1)
    forks = torch.cat([part > part.quantile(0.5) for part in entropies.split(3)])
    ratio = mixed.where(forks, r)
    expected = -(ratio * advantages).minimum(ratio.clamp(0.8, 1.2) * advantages)
    (slope,) = torch.autograd.grad(expected.sum(), new)
    old = lp_before[row, ids].numpy()
    loss, ours = simko(SimKO(top_k=count, alpha=alpha, tau=0.5), logits, ids, old, advantages.numpy(), [3, 3])
    assert loss == pytest.approx(expected.detach().numpy())
    assert ours == pytest.approx(slope.numpy())
    assert forks.any()


def test_simko_needs_the_likeliest_tokens():
    with pytest.raises(ValueError, match="top_logprobs"):
        SimKO()(Tokens(torch.zeros(1), torch.zeros(1), torch.ones(1), [1]), Clip())
