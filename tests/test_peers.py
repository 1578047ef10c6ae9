"""Advantages, losses and gradients beside TRL's and verl's own functions on the same tensors.

Skipped where they are not installed: pip install 'minirl-llm[peers]' && pip install --no-deps verl==0.9.1. What differs, and
why: docs/algorithms/losses.md.
"""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from minirl.advantages import GPG, GRPO, OPO, RLOO, ReinforcePP
from minirl.loss import importance_weights, kl, token_weights
from minirl.losses import CISPO, GMPO, GSPO, PPO, SAPO, Clip, ClipCov, KLCov, Reinforce, Tokens
from minirl.rollout.sampler import as_group
from minirl.rollout.types import Completion, Rollout
from minirl.verify.types import Verdict
from tests.advantages.groups import group

pytestmark = pytest.mark.filterwarnings("ignore")  # the peers' own
LENGTHS = [3, 7, 1, 5]
MASK = torch.tensor([[1.0] * n + [0.0] * (7 - n) for n in LENGTHS])
MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@pytest.fixture(scope="module")
def core():
    """verl's algorithms."""
    version = pytest.importorskip("verl", reason="verl is not installed: pip install --no-deps verl==0.9.1").__version__
    if not version.startswith("0.9."):
        pytest.skip(f"verl {version} is not the version that this was written against, 0.9.1")
    from verl.trainer.ppo import core_algos

    return core_algos


@pytest.fixture(scope="module")
def trainer():
    """TRL's trainer, whose loss is a method."""
    version = pytest.importorskip("trl", reason="trl is not installed: pip install 'minirl-llm[peers]'").__version__
    if version != "1.16.0":
        pytest.skip(f"trl {version} is not the version that this was written against, 1.16.0")
    from trl.trainer.grpo_trainer import GRPOTrainer

    return GRPOTrainer


def padded(flat):
    """float[responses, longest] of a flat tensor of response tokens."""
    return torch.nn.utils.rnn.pad_sequence(list(torch.as_tensor(flat).split(LENGTHS)), batch_first=True)


@pytest.fixture(params=[0, 1])
def tensors(request):
    """(log-probs with gradient, old ones, advantages), flat, one advantage a response."""
    rng = np.random.default_rng(request.param)
    old = torch.tensor(rng.normal(-1, 0.5, sum(LENGTHS)))
    logprobs = (old + torch.tensor(rng.normal(0, 0.4, sum(LENGTHS)))).requires_grad_()
    advantages = torch.tensor(np.repeat(rng.normal(0, 1, len(LENGTHS)), LENGTHS))
    return logprobs, old, advantages


def ours(loss, tensors, clip, mode, selected=None):
    """(loss, gradient) of a mini-batch."""
    logprobs, old, advantages = tensors
    weights = torch.tensor(np.repeat(token_weights(LENGTHS, mode, 7), LENGTHS))
    total = (weights * loss(Tokens(logprobs, old, advantages, LENGTHS, selected), clip).loss).sum()
    return total.item(), torch.autograd.grad(total, logprobs)[0]


def agree(mine, theirs, logprobs, value=True):
    """The same gradient, and the same loss if `value`."""
    total, slope = mine
    if value:
        assert total == pytest.approx(theirs.item(), rel=1e-6, abs=1e-9)
    assert torch.allclose(slope, torch.autograd.grad(theirs, logprobs)[0], rtol=1e-5, atol=1e-9)


# ---- verl ------------------------------------------------------------------------------------------------------------------


def actor(**options):
    from verl.workers.config import ActorConfig

    return ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **options)


def policy_loss(**options):
    from verl.workers.config import PolicyLossConfig

    return PolicyLossConfig(**options)


def verl_loss(core, name, tensors, mode, config, **more):
    logprobs, old, advantages = tensors
    function = core.get_policy_loss_fn(name)
    return function(padded(old), padded(logprobs), padded(advantages), MASK, loss_agg_mode=mode, config=config, **more)[0]


VERL = [
    ("vanilla", PPO(), {}, MODES),
    ("gspo", GSPO(), {}, MODES),
    ("cispo", CISPO(), {}, MODES),
    ("gpg", Reinforce(), {}, MODES),
    ("geo_mean", GMPO(), {}, MODES[1:2]),
    ("sapo", SAPO(tau_pos=0.8, tau_neg=1.3), {"tau_pos": 0.8, "tau_neg": 1.3}, MODES[1:2]),
]


@pytest.mark.parametrize(("name", "loss", "options", "mode"), [(n, x, o, m) for n, x, o, modes in VERL for m in modes])
def test_losses_are_verl_s(core, tensors, name, loss, options, mode):
    config = actor(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0, **options)
    agree(ours(loss, tensors, Clip(0.2, 0.28, 3.0), mode), verl_loss(core, name, tensors, mode, config), tensors[0])


def test_kl_cov_is_verl_s_with_the_present_log_probs_in_its_covariance(core, tensors):
    logprobs, _, advantages = tensors
    config = actor(policy_loss=policy_loss(kl_cov_ratio=0.3, ppo_kl_coef=1.0))
    loss = KLCov(share=0.3, coef=1.0)
    selected = loss.select(advantages.numpy(), logprobs.detach().numpy(), np.random.default_rng(0))
    mine = ours(loss, tensors, Clip(), "token-mean", torch.tensor(selected))
    theirs = verl_loss(core, "kl_cov", tensors, "token-mean", config)
    agree(mine, theirs, logprobs)


def test_clip_cov_is_verl_s_where_the_whole_band_is_drawn(core, tensors):
    logprobs, _, advantages = tensors
    band = policy_loss(clip_cov_ratio=1.0, clip_cov_lb=0.05, clip_cov_ub=5.0)
    config = actor(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28, policy_loss=band)
    loss = ClipCov(share=1.0, low=0.05, high=5.0)
    selected = torch.tensor(loss.select(advantages.numpy(), logprobs.detach().numpy(), np.random.default_rng(0)))
    assert 0 < selected.sum() < len(selected)
    mine = ours(loss, tensors, Clip(0.2, 0.28), "token-mean", selected)
    # Not the value: a token that PPO has clipped already, and has no gradient, is a constant there and 0 here.
    agree(mine, verl_loss(core, "clip_cov", tensors, "token-mean", config), logprobs, value=False)


@pytest.mark.parametrize("how", ["truncate", "mask", "sequence_truncate", "sequence_mask"])
def test_importance_weights_are_verl_s(core, tensors, how):
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    logprobs, old, _ = tensors
    mine = importance_weights(logprobs, old, how, 0.7, 1.3, LENGTHS)
    level = "sequence" if "sequence" in how else "token"
    threshold = 1.3 if "truncate" in how else "0.7_1.3"
    theirs, _ = compute_rollout_correction_weights(padded((logprobs - old).detach()), MASK, level, threshold)
    assert torch.allclose(padded(mine), theirs)


def test_rejection_is_verl_s_with_the_bounds_of_the_inverse_ratio(core, tensors):
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_rejection_mask

    logprobs, old, _ = tensors
    low, high = 0.9, 1.1
    mine = importance_weights(logprobs, old, "sequence_reject", low, high, LENGTHS)
    theirs, _ = compute_rollout_rejection_mask(padded((logprobs - old).detach()), MASK, "seq_mean_k1", f"{1 / high}_{1 / low}")
    assert torch.allclose(padded(mine), theirs.to(mine.dtype))
    assert 0 < theirs.sum() < MASK.sum()


@pytest.mark.parametrize(("mine", "theirs"), [("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl")])
def test_kl_estimates_are_verl_s_up_to_its_clamp(core, tensors, mine, theirs):
    logprobs, old, _ = (x.detach() for x in tensors)
    assert torch.allclose(kl(logprobs, old, mine), core.kl_penalty_forward(logprobs, old, theirs))


def test_the_kl_in_the_reward_is_the_sum_of_verl_s_on_the_tokens(core):
    trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", reason="verl's trainer needs ray", exc_type=ImportError)
    from verl import DataProto

    old, reference = np.random.default_rng(0).normal(-1, 0.5, (2, sum(LENGTHS))).astype(np.float32)
    scores, rollouts = torch.zeros_like(MASK), []
    ends = np.cumsum(LENGTHS)[:-1]
    for i, (p, q) in enumerate(zip(np.split(old, ends), np.split(reference, ends), strict=True)):
        scores[i, LENGTHS[i] - 1] = float(i % 2)
        sample = Completion(np.zeros(len(p), np.int32), p, "stop")
        rollouts.append(Rollout(0, "", "", [1], sample, 0, "", Verdict("right" if i % 2 else "wrong", "a"), float(i % 2)))
        rollouts[-1].old_logprobs, rollouts[-1].ref_logprobs = p, q
    tensors = {
        "response_mask": MASK,
        "token_level_scores": scores,
        "old_log_probs": padded(old),
        "ref_log_prob": padded(reference),
    }
    data, _ = trainer.apply_kl_penalty(DataProto.from_dict(tensors=tensors), core.FixedKLController(0.1))
    theirs = data.batch["token_level_rewards"].sum(-1).tolist()
    assert as_group(rollouts, kl_reward_coef=0.1).rewards == pytest.approx(theirs, abs=1e-6)


def verl_advantages(function, groups, **more):
    """float[N] a group: verl's function on them, one reward at the last token."""
    lengths = [int(n) for g in groups for n in g.lengths]
    mask = torch.tensor([[1.0] * n + [0.0] * (9 - n) for n in lengths])
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = torch.tensor(
        np.concatenate([g.rewards for g in groups])
    ).float()
    index = np.repeat(np.arange(len(groups)), [len(g.rewards) for g in groups])
    advantages, _ = function(token_level_rewards=rewards, response_mask=mask, index=index, **more)
    return np.split(advantages[:, 0].numpy(), np.cumsum([len(g.rewards) for g in groups])[:-1])


GROUPS = [
    replace(group(wrong, right), lengths=np.random.default_rng(right).integers(1, 9, len(wrong) + right))
    for wrong, right in (("aab", 1), ("ab", 3), ("abcd", 0), ("", 4))
]


@pytest.mark.parametrize(
    ("name", "estimator", "more"),
    [
        ("compute_grpo_outcome_advantage", GRPO(), {}),
        ("compute_grpo_outcome_advantage", GRPO(std=False), {"norm_adv_by_std_in_grpo": False}),
        ("compute_rloo_outcome_advantage", RLOO(), {}),
        ("compute_opo_outcome_advantage", OPO(), {}),
        ("compute_reinforce_plus_plus_baseline_outcome_advantage", ReinforcePP(), {}),
    ],
)
def test_advantages_are_verl_s(core, name, estimator, more):
    fitted = estimator.fitted(GROUPS)
    for g, theirs in zip(GROUPS, verl_advantages(getattr(core, name), GROUPS, **more), strict=True):
        assert fitted(g) == pytest.approx(theirs, abs=1e-5)


def test_gpg_s_scale_counts_groups_where_verl_counts_right_responses(core):
    # verl: all responses over those whose reward is not 0; ours, the paper's: all groups over those that teach
    groups = [*GROUPS, GROUPS[0]]  # 21 / 9 and 5 / 3
    fitted = GPG().fitted(groups)
    for g, theirs in zip(groups, verl_advantages(core.compute_gpg_outcome_advantage, groups), strict=True):
        assert fitted(g) / (5 / 3) * (21 / 9) == pytest.approx(theirs, abs=1e-6)


# ---- TRL -------------------------------------------------------------------------------------------------------------------


def trl_loss(trainer, tensors, kind, low=0.2, high=0.28, **options):
    """The loss that TRL's own method makes of the same tensors: the model's part, its log-probs, is given."""
    logprobs, old, advantages = tensors
    arguments = {"delta": None, "sapo_temperature_pos": 0.8, "sapo_temperature_neg": 1.3, "use_bias_correction_kl": False}
    accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
    settings = {
        "args": SimpleNamespace(steps_per_generation=1, **arguments), "aux_loss_enabled": False, "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None, "importance_sampling_level": "token", "beta": 0.0, "loss_type": kind,
        "epsilon_low": low, "epsilon_high": high, "use_vllm": False, "max_completion_length": 7, "accelerator": accelerator,
        "current_gradient_accumulation_steps": 1, "_entropy_bonus_enabled": False, "model": SimpleNamespace(training=True),
        "_metrics": {"train": defaultdict(list)},
    } | options  # fmt: skip
    entropies = torch.zeros_like(MASK)
    settings["_get_per_token_logps_and_entropies"] = lambda *a, **k: (padded(logprobs), entropies, None)
    inputs = {
        "prompt_ids": torch.zeros(4, 1), "prompt_mask": torch.ones(4, 1), "completion_ids": torch.zeros(4, 7),
        "completion_mask": MASK, "advantages": padded(advantages)[:, 0], "old_per_token_logps": padded(old),
        "num_items_in_batch": MASK.sum(),
    }  # fmt: skip
    if "ref" in options:
        inputs["ref_per_token_logps"] = padded(options["ref"])
    return trainer._compute_loss(SimpleNamespace(**settings), None, inputs)


@pytest.mark.parametrize(
    ("kind", "loss", "clip", "mode", "options"),
    [
        ("grpo", PPO(), Clip(0.2, 0.28, None), "seq-mean-token-mean", {}),
        ("dapo", PPO(), Clip(0.2, 0.28, None), "token-mean", {}),
        ("bnpo", PPO(), Clip(0.2, 0.28, None), "token-mean", {}),
        ("dr_grpo", PPO(), Clip(0.2, 0.28, None), "seq-mean-token-sum-norm", {}),
        (
            "grpo",
            GSPO(),
            Clip(0.1, 0.15),
            "seq-mean-token-mean",
            {"importance_sampling_level": "sequence", "low": 0.1, "high": 0.15},
        ),
        # TRL's epsilon_high is the cap of the weight itself, and there is no lower bound
        ("cispo", CISPO(), Clip(1.0, 0.3), "token-mean", {"high": 1.3}),
        ("sapo", SAPO(tau_pos=0.8, tau_neg=1.3), Clip(), "seq-mean-token-mean", {}),
    ],
)
def test_losses_are_trl_s(trainer, tensors, kind, loss, clip, mode, options):
    agree(ours(loss, tensors, clip, mode), trl_loss(trainer, tensors, kind, **options), tensors[0])


def test_the_kl_term_is_trl_s(trainer, tensors):
    logprobs, old, _ = tensors
    reference = old + 0.1 * torch.arange(len(old))
    plain, slope = ours(PPO(), tensors, Clip(0.2, 0.28, None), "token-mean")
    term = 0.3 * kl(logprobs, reference, "k3").mean()
    mine = plain + term.item(), slope + torch.autograd.grad(term, logprobs)[0]
    agree(mine, trl_loss(trainer, tensors, "dapo", beta=0.3, ref=reference), logprobs)
