"""train.update against an independent formula: every option of the loss, through micro-batches, by its gradient."""

import numpy as np
import pytest
import torch

import train
from minirl.config.command_line import load
from minirl.losses import LOSSES
from minirl.policy.policy import Policy
from minirl.rollout.types import Batch, Completion, Rollout
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.verify.types import Verdict

TOK = tiny.tokenizer()


def batch():
    """Two groups of three ragged rollouts: one truncated, one without verdict; no log-probs are the policy's."""
    rng = np.random.default_rng(3)
    groups = []
    for number in range(2):
        group = []
        for i, (prompt, response) in enumerate([(5, 3), (2, 6), (7, 4)]):
            finish = "length" if (number, i) == (0, 1) else "stop"
            sample = Completion(
                rng.integers(0, 22, response, dtype=np.int32), rng.normal(-3, 1, response).astype(np.float32), finish
            )
            reward = float("nan") if (number, i) == (1, 2) else 0.0
            ids = rng.integers(0, 22, prompt).tolist()
            group.append(Rollout(number, "", "", ids, sample, 0, "", Verdict("wrong", "a"), reward))
            group[-1].advantages = rng.normal(0, 2, response)
            group[-1].old_logprobs = rng.normal(-3, 1, response).astype(np.float32)
            group[-1].ref_logprobs = rng.normal(-3, 1, response).astype(np.float32)
        groups.append(group)
    return groups


def expected(policy, rollouts, low=0.2, high=0.28, dual=3.0, weight=None, kl=None, kl_coef=0.0, bonus=0.0, correct=None,
             drop=lambda r: False):  # fmt: skip
    """The gradient by the formula, one sequence at a time, with nothing shared with the code under test but the model."""
    policy.model.zero_grad()
    kept = [r for r in rollouts if not np.isnan(r.reward) and not drop(r)]
    tokens = sum(len(r.completion.ids) for r in kept)
    total = torch.tensor(0.0)
    for r in kept:
        ids = torch.tensor([r.prompt_ids + r.completion.ids.tolist()])
        logits = policy.model(ids).logits[0, len(r.prompt_ids) - 1 : -1]
        p = logits.softmax(-1)
        logp = p.log()[torch.arange(len(r.completion.ids)), torch.tensor(r.completion.ids.tolist())]
        old, sampler, reference = map(torch.tensor, (r.old_logprobs, r.completion.logprobs, r.ref_logprobs))
        for t in range(len(r.completion.ids)):
            a, ratio = float(r.advantages[t]), torch.exp(logp[t] - old[t])
            value = torch.min(ratio * a, torch.clip(ratio, 1 - low, 1 + high) * a)
            if dual is not None and a < 0:
                value = torch.max(value, torch.tensor(dual * a))
            loss = -value * (correct(torch.exp(old[t] - sampler[t])) if correct else 1.0)
            if kl:
                loss = loss + kl_coef * kl(logp[t], reference[t])
            loss = loss + bonus * (p[t] * p[t].log()).sum()
            total = total + loss * (1 / tokens if weight is None else weight(len(r.completion.ids), len(kept)))
    total.backward()
    return [p.grad.clone() for p in policy.model.parameters()]


CASES = {
    "plain": ([], {}),
    "no dual clip": (["--algorithm.dual_clip=null"], {"dual": None}),
    "clip range": (["--algorithm.clip_low=0.05", "--algorithm.clip_high=0.5"], {"low": 0.05, "high": 0.5}),
    "seq-mean-token-mean": (["--algorithm.loss_agg_mode=seq-mean-token-mean"], {"weight": lambda length, n: 1 / (n * length)}),
    "seq-mean-token-sum-norm": (["--algorithm.loss_agg_mode=seq-mean-token-sum-norm"],
                                {"weight": lambda length, n: 1 / (n * 24)}),
    "k3": (["--algorithm.kl_coef=0.3"], {"kl": lambda p, q: torch.exp(q - p) - 1 - (q - p), "kl_coef": 0.3}),
    "k2": (["--algorithm.kl_coef=0.3", "--algorithm.kl_estimator=k2"],
           {"kl": lambda p, q: (p - q) ** 2 / 2, "kl_coef": 0.3}),
    "entropy bonus": (["--algorithm.entropy_coef=0.2"], {"bonus": 0.2}),
    "truncated importance": (["--algorithm.rollout_is=truncate", "--algorithm.rollout_is_high=1.5"],
                             {"correct": lambda w: min(w, 1.5)}),
    "masked importance": (["--algorithm.rollout_is=mask"], {"correct": lambda w: w if 0.5 <= w <= 2.0 else 0.0}),
    "truncated responses left out": (["--algorithm.mask_truncated=true"], {"drop": lambda r: r.completion.finish == "length"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("budget", [30, 1000])
def test_the_gradient_is_the_formula_s(case, budget, monkeypatch):
    options, formula = CASES[case]
    config = load(
        [*options, "--rollout.prompts=2", "--algorithm.mini_batch_prompts=2", f"--optimizer.micro_batch_tokens={budget}"]
    )
    policy = Policy(config, Ranks(), len(TOK))
    groups = batch()
    wanted = expected(policy, [r for g in groups for r in g], **formula)
    policy.model.zero_grad()
    got = []
    monkeypatch.setattr(policy, "step", lambda lr: got.extend(p.grad.clone() for p in policy.model.parameters()) or 1.0)
    train.update(policy, Batch(groups, [], groups), 1e-3, config)
    assert len(got) == len(wanted)
    scale = max(g.abs().max().item() for g in wanted)
    for a, b in zip(got, wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-5 * scale), case


def steps_of(config, groups, monkeypatch):
    """The gradients of all optimizer steps of one update, the weights never changing."""
    policy = Policy(config, Ranks(), len(TOK))
    taken = []

    def step(lr):
        taken.append([p.grad.clone() for p in policy.model.parameters()])
        policy.model.zero_grad()
        return 1.0

    monkeypatch.setattr(policy, "step", step)
    stats = train.update(policy, Batch(groups, [], groups), 1e-3, config)
    return taken, stats, policy


def test_mini_batches_hold_whole_groups_and_epochs_repeat_them(monkeypatch):
    config = load(["--rollout.prompts=2", "--algorithm.mini_batch_prompts=1", "--algorithm.epochs=2"])
    groups = batch()
    taken, stats, policy = steps_of(config, groups, monkeypatch)
    assert len(taken) == len(stats.grad_norms) == 4
    for index, group in enumerate([*groups, *groups]):
        for a, b in zip(taken[index], expected(policy, group), strict=True):
            assert torch.allclose(a, b, atol=1e-4)


def test_a_short_last_mini_batch_is_scaled_down(monkeypatch):
    config = load(["--rollout.prompts=4", "--algorithm.mini_batch_prompts=4"])
    groups = batch()
    taken, _, policy = steps_of(config, groups, monkeypatch)
    for a, b in zip(taken[0], expected(policy, [r for g in groups for r in g]), strict=True):
        assert torch.allclose(a, b / 2, atol=1e-4), "two of four groups"


def test_the_sampler_s_logprobs_are_the_old_ones_when_asked():
    config = load(["--algorithm.old_logprobs=rollout"])
    groups = batch()
    train.compute_logprobs(Policy(config, Ranks(), len(TOK)), Batch(groups, [], groups), config.build_estimator(), config)
    assert all(np.array_equal(r.old_logprobs, r.completion.logprobs) for g in groups for r in g)


def test_a_batch_whose_responses_are_all_left_out_takes_no_step(monkeypatch):
    config = load(["--rollout.prompts=2", "--algorithm.mini_batch_prompts=2"])
    groups = batch()
    for rollout in (r for g in groups for r in g):
        rollout.reward = float("nan")
    taken, stats, _ = steps_of(config, groups, monkeypatch)
    assert taken == []
    assert stats.skipped == 1


def gradients(config, groups, monkeypatch):
    """The gradient of one optimizer step over `groups`."""
    taken, _, _ = steps_of(config, groups, monkeypatch)
    return taken[0]


@pytest.mark.parametrize("loss", LOSSES)
def test_no_policy_loss_depends_on_micro_batches(loss, monkeypatch):
    """Clip-Cov and KL-Cov choose tokens by means over the whole mini-batch, the others look at whole responses at most."""
    options = [f"--algorithm.loss={loss}", "--rollout.prompts=2", "--algorithm.mini_batch_prompts=2"]
    options += ["--loss.clip_cov.share=0.3", "--loss.clip_cov.low=0", "--loss.kl_cov.share=0.3"]
    options += ["--algorithm.rollout_is=sequence_truncate"]
    small, large = (
        gradients(load([*options, f"--optimizer.micro_batch_tokens={budget}"]), batch(), monkeypatch) for budget in (20, 1000)
    )
    scale = max(g.abs().max().item() for g in large)
    assert scale > 0
    for a, b in zip(small, large, strict=True):
        assert torch.allclose(a, b, atol=1e-5 * scale)


def test_a_response_of_weight_zero_is_in_no_count_and_others_count_by_their_weight(monkeypatch):
    config = load(["--rollout.prompts=2", "--algorithm.mini_batch_prompts=2"])
    weighted, dropped, doubled = batch(), batch(), batch()
    weighted[0][0].weight = 0.0
    dropped[0][0].reward = float("nan")
    for a, b in zip(*(gradients(config, groups, monkeypatch) for groups in (weighted, dropped)), strict=True):
        assert torch.equal(a, b)
    for rollout in (r for group in doubled for r in group):
        rollout.weight = 2.0
    for a, b in zip(*(gradients(config, groups, monkeypatch) for groups in (doubled, batch())), strict=True):
        assert torch.allclose(a, 2 * b, atol=1e-6)


def test_all_old_log_probs_are_there_for_a_loss_that_selects_by_them():
    config = load(["--algorithm.loss=kl_cov", "--rollout.prompts=2", "--algorithm.mini_batch_prompts=2"])
    groups = batch()
    for rollout in (r for group in groups for r in group):
        rollout.old_logprobs = None
    policy = Policy(config, Ranks(), len(TOK))
    train.compute_logprobs(policy, Batch(groups, [], groups), config.build_estimator(), config)
    assert all(r.old_logprobs is not None for group in groups for r in group)


def test_the_kl_in_the_reward_is_summed_over_a_response():
    config = load(["--algorithm.kl_reward_coef=0.5", "--algorithm.estimator=rloo"])
    groups = batch()[:1]
    for rollout, reward in zip(groups[0], (1.0, 0.0, 0.0), strict=True):
        rollout.reward = reward
    taken = [r.reward - 0.5 * float((r.old_logprobs.astype(float) - r.ref_logprobs).sum()) for r in groups[0]]
    train.compute_advantages(config.build_estimator(), Batch(groups, [], groups), config, 0.0)
    for i, rollout in enumerate(groups[0]):
        others = [x for j, x in enumerate(taken) if j != i]
        assert float(rollout.advantages) == pytest.approx(taken[i] - np.mean(others))
        assert rollout.weight == 1.0
