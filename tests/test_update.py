"""train.update against an independent formula: every option of the loss, through micro-batches, by its gradient."""

import numpy as np
import pytest
import torch

import train
from minirl.config.command_line import load
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
                                {"weight": lambda length, n: 1 / (n * 12)}),
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
