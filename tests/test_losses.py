"""Policy losses against hand calculation, and what holds for all of them."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from minirl.losses import CISPO, GMPO, GSPO, LOSSES, PPO, SAPO, Clip, ClipCov, KLCov, Reinforce, Tokens, build_loss, covariance


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
    made = loss(Tokens(logprobs, *others, lengths, None if selected is None else torch.tensor(selected)), clip)
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
