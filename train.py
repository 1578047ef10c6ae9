"""minirl: sample -> verify -> advantages -> update -> push the weights, until the steps are done.

    accelerate launch train.py                                    # the embedded model on this machine, minutes
    accelerate launch train.py configs/NAME.yaml --algorithm.estimator=grpo+edas --run-dir runs/mine   # again: it resumes
    torchrun --nproc_per_node 2 train.py                          # two ranks on a CPU
    python train.py --replay runs/mine/step12                     # one saved step again, next to its numbers
    python train.py --help                                        # every option

This file is the algorithm. What surrounds it (data, ranks, run folder, resuming, guards, evaluation, saving, stopping) is in
minirl/run. Every rank holds the whole batch; ranks differ in the prompts they sample and the micro-batches they compute.
"""

import gc
import os
import sys
from dataclasses import replace
from math import ceil
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin on a shared machine cost up to 46x
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
gc.disable()  # looking for garbage among what is imported takes a tenth of the start and finds none

from minirl.run.inputs import Inputs, inputs_of, read_inputs

if __name__ == "__main__":
    # Before torch is imported: help, and a mistake in the options or the data, should not take seconds.
    INPUTS = inputs_of("train.py", sys.argv[1:])

from torch import Tensor

from minirl.advantages import Estimator, has_signal
from minirl.config.options import AlgorithmConfig, Config
from minirl.loss import Clip, TokenLoss, clipped_surrogate, importance_weights, kl, overlong_penalty, token_weights
from minirl.policy.micro_batches import MicroBatch
from minirl.rollout.sampler import as_group
from minirl.rollout.types import Batch, Rollout, SamplingParams
from minirl.run.lifecycle import open_run, plan_lines
from minirl.run.metrics import UpdateStats
from minirl.run.run import Run
from minirl.utils.console import say
from minirl.utils.errors import ConfigError, RunError, RunFinished
from minirl.verify.types import VerifierError

gc.enable()


def train(inputs: Inputs) -> None:
    """One run, from its inputs to its report; or one saved step of it again, which is the same loop over what was recorded."""
    with open_run(inputs) as run:
        for step in run.steps():  # between steps: evaluate, check, save, stop
            with step.timed("rollout"):
                batch = collect_batch(run)
            with step.timed("old_logprobs"):
                compute_logprobs(run.policy, batch, run.estimator, run.config)
            compute_advantages(run.estimator, batch)
            with step.timed("update"):
                stats = update(run.policy, batch, step.lr, run.config)
            with step.timed("sync"):
                run.sampler.engine.sync(run.policy)
            step.finish(batch, stats)


def collect_batch(run: Run) -> Batch:
    """Samples and verifies groups until `rollout.prompts` of them are there to train on.

    Without dynamic sampling: one generation batch as it comes. With it, groups that are all right or all wrong are dropped and
    more prompts are sampled, as many as the share kept so far lets expect, up to `max_generation_batches`.
    """
    r, dynamic = run.config.rollout, run.config.algorithm.requirements.dynamic_sampling
    params = SamplingParams(r.group_size, r.temperature, r.max_response_tokens)
    kept, generated = list(run.state.surplus), list[list[Rollout]]()
    expected = 1 / r.oversample if dynamic else 1.0  # share of groups that will be kept
    for _ in range(r.max_generation_batches if dynamic else 1):
        missing = r.prompts - len(kept)
        if missing <= 0:
            break
        wanted = min(ceil(missing / expected), ceil(max(2, r.oversample) * r.prompts))
        drawn = run.order.draw(r.draws(wanted))
        keep = min(wanted, len(drawn))  # the others, which take longest, are aborted
        groups = run.sampler.groups([run.prompts[i] for _, i in drawn], [number for number, _ in drawn], params, keep=keep)
        for rollout in (rollout for group in groups for rollout in group):
            rollout.reward += overlong_penalty(rollout.length, r.max_response_tokens, run.config.algorithm.overlong_buffer)
        generated += groups
        kept += [group for group in groups if not dynamic or has_signal(as_group(group))]
        expected = max(0.1, (len(kept) - len(run.state.surplus)) / len(generated)) if dynamic else 1.0
    run.sampler.engine.sleep()
    if len(kept) < r.prompts and r.when_exhausted == "error":
        raise RunError(
            f"only {len(kept)} of {r.prompts} groups have right and wrong responses after {len(generated)} sampled in "
            f"{r.max_generation_batches} generation batches: the problems are too easy or too hard for the model; raise "
            "rollout.group_size or rollout.max_generation_batches, or set rollout.when_exhausted=smaller"
        )
    # Carried once and at most half a batch: the next one is mostly of its own policy, and nothing gets older than one batch.
    fresh = [group for group in kept[r.prompts :] if group[0].version == run.policy.version]
    return Batch(kept[: r.prompts], fresh[: r.prompts // 2] if r.carry_over else [], generated)


def compute_logprobs(policy: Any, batch: Batch, estimator: Estimator, config: Config) -> None:
    """Log-probs of the batch before the update: the denominator of the ratio; and the reference's, where there is one.

    Those of the first mini-batch are not needed where its own forward pass gives them and nothing else reads them.
    """
    a, entropy = config.algorithm, estimator.requirements.needs_entropy
    redundant = a.epochs == 1 and a.rollout_is == "none" and not entropy and not config.rollout.carry_over
    first = len(batch.groups) if a.old_logprobs == "rollout" else a.mini_batch_prompts if redundant else 0
    with policy.computing():
        policy.compute_logprobs([r for group in batch.groups[:first] for r in group], old=False)
        policy.compute_logprobs([r for group in batch.groups[first:] for r in group], old=True, entropy=entropy)
    if a.old_logprobs == "rollout":
        for rollout in (r for group in batch.groups for r in group):
            rollout.old_logprobs = rollout.completion.logprobs


def compute_advantages(estimator: Estimator, batch: Batch) -> None:
    """Gives each rollout its advantage, a whole group at a time. RunError when the estimator is not made for these rewards."""
    for group in batch.groups:
        try:
            advantages = estimator(as_group(group))
        except ValueError as error:
            raise RunError(str(error)) from error
        for rollout, advantage in zip(group, advantages, strict=True):
            rollout.advantages = advantage


def update(policy: Any, batch: Batch, lr: float, config: Config) -> UpdateStats:
    """The optimizer steps of one batch: mini-batches of whole groups, the old log-probs frozen throughout.

    Where the batch could not be filled, the last mini-batch is smaller and its loss is scaled down by as much.
    """
    a = config.algorithm
    stats = UpdateStats(policy.version, a.old_logprobs == "trainer", skipped=int(not batch.groups))
    for start in list(range(0, len(batch.groups), a.mini_batch_prompts)) * a.epochs:
        groups = batch.groups[start : start + a.mini_batch_prompts]
        # A response without verdict teaches nothing; a truncated one does unless the config says otherwise.
        rollouts = [r for group in groups for r in group if r.reward == r.reward and not (a.mask_truncated and r.truncated)]
        if not rollouts:
            stats.skipped += 1
            continue
        weights = token_weights([r.length for r in rollouts], a.requirements.loss_agg_mode, config.rollout.max_response_tokens)
        weights = [weight * len(groups) / a.mini_batch_prompts for weight in weights]
        with policy.computing():
            for micro in policy.gradient_steps(rollouts, weights):
                logprobs, entropy = policy.logprobs(micro)
                token_loss = policy_loss(logprobs, entropy, micro, a)
                policy.accumulate((micro.token_weights * token_loss.loss).sum())
                stats.add(micro, logprobs, entropy, token_loss)
            stats.end(policy.step(lr))
        if policy.nonfinite >= config.optimizer.max_nonfinite:
            break
    return stats


def policy_loss(logprobs: Tensor, entropy: Tensor, micro: MicroBatch, a: AlgorithmConfig) -> TokenLoss:
    """The loss a token, float[T]: clipped surrogate, weighted for the gap between sampler and trainer, entropy bonus, KL."""
    old = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
    clip = Clip(a.requirements.clip_low, a.requirements.clip_high, a.dual_clip)
    surrogate = clipped_surrogate(logprobs, old, micro.advantages, clip)
    rollout_is = importance_weights(old, micro.rollout_logprobs, a.rollout_is, a.rollout_is_low, a.rollout_is_high)
    loss = rollout_is * surrogate.loss - a.entropy_coef * entropy
    if a.kl_coef == 0 or micro.ref_logprobs is None:
        return replace(surrogate, loss=loss, rollout_is=rollout_is)
    ref_kl = kl(logprobs, micro.ref_logprobs, a.kl_estimator)
    return replace(surrogate, loss=loss + a.kl_coef * ref_kl, rollout_is=rollout_is, ref_kl=ref_kl)


def main(config: Config, inputs: Inputs | None = None) -> int:
    """The exit code of a run: 0 finished, 2 bad input, 1 a run that could not continue. inputs: those of `config`, if read."""
    try:
        inputs = inputs or read_inputs(config)
        if config.dry_run:
            for line in plan_lines(inputs):
                say(line)
        else:
            train(inputs)
    except RunFinished:
        return 0
    except (ConfigError, VerifierError, RunError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2
    except KeyboardInterrupt:
        print("train.py: interrupted; start the same command again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(INPUTS.config, INPUTS))
