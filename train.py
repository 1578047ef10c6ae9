"""minirl: sample -> verify -> advantages -> update -> sync the engine's weights, step after step.

    accelerate launch train.py                                    # trains the embedded tiny model, in minutes
    accelerate launch train.py configs/NAME.yaml --algorithm.estimator=grpo+edas --run-dir runs/mine   # repeated: resumes
    torchrun --nproc_per_node 2 train.py                          # two ranks on a CPU
    python train.py --replay runs/mine/step12                     # recomputes a saved step and compares its metrics
    python train.py --replay runs/mine/step12 --estimators all    # every estimator's gradient there (docs/microscope.md)
    python train.py --help                                        # every option

This file is the algorithm. What surrounds it (data, ranks, run folder, resuming, guards, evaluation, saving, stopping) is in
minirl/run. Every rank holds the whole batch; ranks differ in the prompts they sample and the micro-batches they compute.
"""

import gc
import os
import sys
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import ceil, isnan
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin on a shared machine cost up to 46x
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
gc.disable()  # garbage collection during the imports takes a tenth of the start-up time and frees nothing

from minirl.utils.interrupts import say_interrupts

if __name__ == "__main__":
    say_interrupts()

from minirl.run.inputs import Inputs, inputs_of, read_inputs

if __name__ == "__main__":
    # Before torch is imported, which takes seconds: --help and errors in options or data come at once.
    INPUTS = inputs_of("train.py", sys.argv[1:])

import numpy as np
from torch import Tensor

from minirl.advantages import Estimator, evaluated
from minirl.config.options import AlgorithmConfig, Config
from minirl.loss import importance_weights, kl, overlong_penalty, token_weights
from minirl.losses import Clip, PolicyLoss, TokenLoss, Tokens, loss_of, selected_by
from minirl.policy.micro_batches import MicroBatch
from minirl.rollout.continuous import continuous_batch
from minirl.rollout.sampler import as_group, check_full
from minirl.rollout.types import Batch, Rollout, SamplingParams
from minirl.run.dry_run import plan_lines
from minirl.run.lifecycle import open_run
from minirl.run.metrics import UpdateStats
from minirl.run.run import Run
from minirl.utils.console import leave, say
from minirl.utils.errors import ConfigError, RunError, RunFinished, ends_the_run
from minirl.verify.types import VerifierError
from minirl.watch.microscope import microscope

gc.enable()


def train(inputs: Inputs) -> None:
    """Trains until all steps are done; with --replay, the same loop runs one saved step on its recorded responses."""
    with open_run(inputs) as run:
        for step in run.steps():  # between steps: evaluate, check, save, stop
            with step.timed("rollout"):
                batch = collect_batch(run, step.progress)
            with step.timed("old_logprobs"):
                compute_logprobs(run.policy, batch, run.estimator, run.config)
            compute_advantages(run.estimator, batch, run.config, step.progress)
            with step.timed("update"):
                stats = update(run.policy, batch, step.lr, run.config)
            with step.timed("sync"):
                run.sampler.engine.sync(run.policy)
            step.finish(batch, stats)


def collect_batch(run: Run, progress: float) -> Batch:
    """Samples and verifies `rollout.prompts` groups to train on. progress: of the run, 0 to 1.

    Without dynamic sampling: one generation batch, of which every group is kept. With it, groups without signal (all right,
    or all wrong, or as the estimator says) are dropped and more batches sampled, sized by the share kept so far, up to
    `max_generation_batches`. With `rollout.continuous` groups are begun one by one instead, so that no engine waits.
    """
    r, dynamic = run.config.rollout, run.config.algorithm.requirements.dynamic_sampling
    keeps = run.config.keeps(progress)
    penalty = partial(overlong_penalty, maximum=r.max_response_tokens, buffer=run.config.algorithm.overlong_buffer)
    if r.continuous:
        given = run.sampler, run.order, run.prompts, run.config, run.state.surplus, run.state.kept_share
        return continuous_batch(*given, keeps, penalty)
    params = SamplingParams(r.group_size, r.temperature, r.max_response_tokens)
    kept, generated = list(run.state.surplus), list[list[Rollout]]()
    expected = 1 / r.oversample if dynamic else 1.0  # share of groups that will have signal
    for _ in range(r.max_generation_batches if dynamic else 1):
        missing = r.prompts - len(kept)
        if missing <= 0:
            break
        wanted = min(ceil(missing / expected), ceil(max(2, r.oversample) * r.prompts))
        drawn = run.order.draw(r.draws(wanted))
        keep = min(wanted, len(drawn))  # the other groups, the last to finish, are aborted
        groups = run.sampler.groups([run.prompts[i] for _, i in drawn], [number for number, _ in drawn], params, keep=keep)
        for rollout in (rollout for group in groups for rollout in group):
            rollout.reward += penalty(rollout.length)
        generated += groups
        kept += [group for group in groups if not dynamic or keeps(as_group(group))]
        expected = max(0.1, (len(kept) - len(run.state.surplus)) / len(generated)) if dynamic else 1.0
    run.sampler.engine.sleep()
    check_full(len(kept), len(generated), r)
    # Groups are carried over once, and fill at most half of the next batch, so that it stays mostly on-policy.
    fresh = [group for group in kept[r.prompts :] if group[0].version == run.policy.version]
    return Batch(kept[: r.prompts], fresh[: r.prompts // 2] if r.carry_over else [], generated)


def compute_logprobs(policy: Any, batch: Batch, estimator: Estimator, config: Config) -> None:
    """Sets the rollouts' old_logprobs, the denominator of the ratio, and with a reference model their ref_logprobs.

    The first mini-batch needs no old_logprobs where its own forward pass gives the same ones and nothing else reads them.
    """
    a, required, loss = config.algorithm, estimator.requirements, config.build_loss()
    read = required.needs_entropy or required.needs_logprobs or loss.needs_old_logprobs or a.kl_reward_coef > 0
    on_policy = a.epochs == 1 and a.rollout_is == "none" and not read and not config.rollout.carry_over
    skip = len(batch.groups) if a.old_logprobs == "rollout" else a.mini_batch_prompts if on_policy else 0
    with policy.computing():
        policy.compute_logprobs([r for group in batch.groups[:skip] for r in group], old=False)
        policy.compute_logprobs([r for group in batch.groups[skip:] for r in group], old=True, entropy=required.needs_entropy)
    if a.old_logprobs == "rollout":
        for rollout in (r for group in batch.groups for r in group):
            rollout.old_logprobs = rollout.completion.logprobs


def compute_advantages(estimator: Estimator, batch: Batch, config: Config, progress: float) -> None:
    """Gives each rollout its advantage and weight, a whole group at a time; progress: of the run, 0 to 1.

    RunError when the estimator is not made for these rewards, or fails.
    """
    groups = [as_group(rollouts, progress, config.run.seed, config.algorithm.kl_reward_coef) for rollouts in batch.groups]
    with ends_the_run():
        found = evaluated(config.algorithm.estimator, estimator, groups)
    for rollouts, (advantages, weights) in zip(batch.groups, found, strict=True):
        for rollout, advantage, weight in zip(rollouts, advantages, weights, strict=True):
            rollout.advantages, rollout.weight = advantage, float(weight)


def update(policy: Any, batch: Batch, lr: float, config: Config) -> UpdateStats:
    """The optimizer steps of one batch, one for each mini-batch of whole groups; old log-probs stay fixed.

    If the batch is not full, the last mini-batch is smaller and its loss is scaled by its share of a full one.
    """
    a, loss = config.algorithm, config.build_loss()
    stats = UpdateStats(policy.version, a.old_logprobs == "trainer", skipped=int(not batch.groups))
    # With the sampler's log-probs the first mini-batch alone shows how far they are from the trainer's: newest groups first.
    ordered, version = batch.groups, policy.version
    if a.old_logprobs == "rollout":
        ordered = sorted(ordered, key=lambda group: not any(np.any(r.versions == version) for r in group))
    for start in list(range(0, len(ordered), a.mini_batch_prompts)) * a.epochs:
        groups = ordered[start : start + a.mini_batch_prompts]
        # A response without verdict has the reward NaN.
        rollouts = [r for group in groups for r in group if not isnan(r.reward) and r.weight]
        rollouts = [r for r in rollouts if not (a.mask_truncated and r.truncated)]
        if not rollouts:
            stats.skipped += 1
            continue
        weights = token_weights([r.length for r in rollouts], a.requirements.loss_agg_mode, config.rollout.max_response_tokens)
        weights = [weight * len(groups) / a.mini_batch_prompts * r.weight for weight, r in zip(weights, rollouts, strict=True)]
        selected = select_tokens(loss, rollouts, [config.run.seed, policy.version])
        with policy.computing():
            for micro in policy.gradient_steps(rollouts, weights):
                if selected is not None:
                    micro.selected = micro.flat([selected[i] for i in micro.indices]).bool()
                logprobs, entropy = policy.logprobs(micro, top_k=loss.top_k)
                token_loss = policy_loss(loss, logprobs, entropy, micro, a)
                policy.accumulate((micro.token_weights * token_loss.loss).sum())
                stats.add(micro, logprobs, entropy, token_loss)
            stats.end(policy.step(lr))
        if policy.nonfinite >= config.optimizer.max_nonfinite:
            break
    return stats


def select_tokens(loss: PolicyLoss, rollouts: list[Rollout], seed: list[int]) -> list[np.ndarray] | None:
    """bool[T_i] a rollout of a mini-batch: the tokens that `loss` selects; None where it selects none."""
    if not loss.needs_old_logprobs:
        return None
    advantages = np.concatenate([np.broadcast_to(r.advantages, r.length) for r in rollouts])  # type: ignore[arg-type]
    old_logprobs = np.concatenate([r.old_logprobs for r in rollouts])  # type: ignore[misc]
    with ends_the_run():
        selected = selected_by(loss, advantages, old_logprobs, np.random.default_rng(seed))
    return np.split(selected, list(accumulate(r.length for r in rollouts))[:-1])


def policy_loss(loss: PolicyLoss, logprobs: Tensor, entropy: Tensor, micro: MicroBatch, a: AlgorithmConfig) -> TokenLoss:
    """The loss a token, float[T]: policy loss * rollout importance weight - entropy bonus + KL penalty."""
    old = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
    clip, lengths = Clip(a.requirements.clip_low, a.requirements.clip_high, a.dual_clip), [r.length for r in micro.rollouts]
    tokens = Tokens(logprobs, old, micro.advantages, lengths, micro.selected, entropy, micro.top_logprobs)
    with ends_the_run():
        made = loss_of(loss, tokens, clip)
    rollout_is = importance_weights(old, micro.rollout_logprobs, a.rollout_is, a.rollout_is_low, a.rollout_is_high, lengths)
    total = rollout_is * made.loss - a.entropy_coef * entropy
    if micro.ref_logprobs is None:
        return replace(made, loss=total, rollout_is=rollout_is)
    ref_kl = kl(logprobs, micro.ref_logprobs, a.kl_estimator)
    return replace(made, loss=total + a.kl_coef * ref_kl if a.kl_coef else total, rollout_is=rollout_is, ref_kl=ref_kl)


def main(config: Config, inputs: Inputs | None = None) -> int:
    """Runs a config and returns the exit code: 0 finished, 1 could not continue, 2 bad input. inputs: if read already."""
    try:
        inputs = inputs or read_inputs(config)
        if config.dry_run:
            for line in plan_lines(inputs):
                say(line)
        elif config.estimators:
            microscope(inputs, train)
        else:
            train(inputs)
    except RunFinished:
        return 0
    except (ConfigError, VerifierError, RunError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2
    return 0


if __name__ == "__main__":
    leave(main(INPUTS.config, INPUTS))
