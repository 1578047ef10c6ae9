"""minirl, the whole algorithm: sample -> verify -> advantage -> update -> log, until the steps are done.

    accelerate launch train.py                                    # the embedded model on this machine, minutes
    accelerate launch train.py configs/NAME.yaml --algorithm.estimator=grpo+edas --run-dir runs/mine   # again: goes on
    torchrun --nproc_per_node 2 train.py                          # two ranks on a CPU
    python train.py --replay runs/mine/step12                     # one saved step again, beside its numbers
    python train.py --help                                        # every option

Every rank holds the whole batch of rollouts; ranks differ in the prompts they sample and the micro-batches they compute.
"""

import os
import sys
import time
from math import ceil

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin on a shared machine cost up to 46x
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from minirl.config.command_line import command_line
from minirl.config.options import Config
from minirl.rollout.types import SamplingParams
from minirl.utils.errors import ConfigError, RunError

if __name__ == "__main__":
    # Before torch is imported: help and a mistake on the command line should not take seconds.
    CONFIG = command_line("train.py", sys.argv[1:])

from minirl import loss as losses
from minirl.advantages import Estimator, has_signal
from minirl.data.problems import load_problems, unreadable_answers
from minirl.data.prompts import Order, Prompt, encode_prompts
from minirl.evaluation.held_out import evaluate
from minirl.policy.model import check_context, load_tokenizer, model_config, model_plan
from minirl.policy.plan import run_plan
from minirl.policy.policy import Policy, learning_rate
from minirl.rollout.engines import build_engine
from minirl.rollout.sampler import Sampler, as_group
from minirl.rollout.types import Rollout
from minirl.run.checkpoint import STARTING_WEIGHTS, Checkpoints, State, fingerprint
from minirl.run.folder import finished, run_folder
from minirl.run.metrics import UpdateStats, batch_metrics
from minirl.run.replay import (
    Batches,
    RecordedEngine,
    RecordedOrder,
    compare,
    policy_before,
    read_step,
    recorded_config,
    restore_logprobs,
)
from minirl.run.report import Reporter, check_logprob_diff, check_signal, warn
from minirl.run.signals import Stop
from minirl.utils.console import say
from minirl.utils.distributed import Ranks
from minirl.utils.versions import untried
from minirl.verify.code.verifier import confinement
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import VerifierError

Groups = list[list[Rollout]]


def train(config: Config) -> None:
    """One run, from the config to the report."""
    start = time.perf_counter()
    # Whatever can be wrong with the input is found before a model is loaded.
    train_problems, test_problems, notes = load_problems(config.data)
    if config.verifier.name == "math":
        notes += unreadable_answers(train_problems, "training") + unreadable_answers(test_problems, "held-out")
    tokenizer = load_tokenizer(config.model)
    prompts = encode_prompts(train_problems, tokenizer, config.data, notes, "training")
    test = encode_prompts(test_problems, tokenizer, config.data, notes, "held-out")
    longest = max(len(p.ids) for p in (*prompts, *test))
    check_context(config, longest)
    sizes = (len(prompts), len(test))
    if config.dry_run:
        for line in (*notes, *run_plan(config, *sizes, config.plan.gpus), *model_plan(config)):
            say(line)
        return
    v, ranks = config.verifier, Ranks(config.model.dtype)
    # One rank looks, before it writes: the others may come later.
    if sentence := ranks.gather([finished(config) if ranks.main else None])[0]:
        if ranks.main:
            say(sentence)
        ranks.close()
        return
    with (
        run_folder(config) as folder,
        VerifierPool(*v.pool(), v.workers, v.timeout) as pool,
        Stop(config.run.stop_after, start) as stop,
    ):
        if ranks.main:
            notes += untried("torch", *(["deepspeed"] if ranks.zero is not None else []))
            memory = model_plan(config, ranks) if ranks.gpu_gib else []  # on a GPU that is too small, the arithmetic first
            for line in (*notes, *run_plan(config, *sizes, ranks.size), *memory, f"run folder {folder}"):
                say(line)
            say(f"first prompt, as the model sees it: {tokenizer.decode(prompts[0].ids)!r}")
            if v.name == "code":
                say(confinement())
        marks = fingerprint(prompts, test, tokenizer, model_config(config.model), v)
        checkpoints = Checkpoints(config, ranks, folder, marks)
        state = checkpoints.newest()
        start -= state.seconds  # of earlier processes
        policy = Policy(config, ranks, len(tokenizer))
        checkpoints.load(policy, state)
        engine = build_engine(config, policy, tokenizer, longest)
        checkpoints.load_generators()
        sampler = Sampler(engine, tokenizer, pool, ranks, config.run.seed, config.rollout.stop)
        estimator = config.build_estimator()
        order = Order(len(prompts), config.run.seed, state.position)
        reporter = Reporter(folder, config.run.steps, config.algorithm.epochs)
        reporter.go_on(state.step, state.evaluations, state.metrics_bytes)
        batches = Batches(folder, config.run, checkpoints.marks[STARTING_WEIGHTS])
        batches.forget_after(state.step)

        step, surplus, stopped = state.step, state.surplus, stop.asked(ranks, begun=False)
        if not state.evaluations and not stopped:
            reporter.evaluation(0, evaluate(sampler, test[: config.eval.problems], config.eval))
            stopped = stop.asked(ranks, begun=False)
        policy.nonfinite = state.nonfinite
        while not over(step, order, config) and not stopped:
            step += 1
            begin = time.perf_counter()
            sampler.pop_timings()  # those of an evaluation are not this step's
            # 1. Completion and verify, until the batch is full of groups that can teach something.
            batch, surplus, generated = collect_batch(sampler, prompts, order, surplus, policy.version, config)
            sampled = time.perf_counter()
            engine.sleep()
            asleep = time.perf_counter()
            # 2. Advantages, a whole group at a time.
            compute_logprobs(policy, batch, estimator, config)
            compute_advantages(estimator, batch)
            scored = time.perf_counter()
            # 3. Update.
            lr = learning_rate(step, config.optimizer, config.run.steps)
            with policy.computing():
                stats = update(policy, batch, lr, config)
            updated = time.perf_counter()
            # 4. New weights to the engine.
            engine.sync(policy)
            # 5. Say what happened.
            done = time.perf_counter()
            seconds = sampler.pop_timings() | {"old": scored - asleep, "update": updated - scored}
            seconds |= {"sync": asleep - sampled + done - updated, "step": done - begin}
            carried = [] if over(step, order, config) else surplus  # at the end they are waste
            metrics = batch_metrics(generated, batch, carried, order.position - state.position, config)
            metrics |= stats.metrics(ranks) | {"optimizer/lr": lr}
            reporter.step(step, metrics | checkpoints.pop_costs(), seconds, (batch or generated)[: config.run.save_rollouts])
            if ranks.main:
                warn(step, metrics, config)
            batches.after_step(state, generated, order.position)
            check_logprob_diff(metrics, config.rollout)
            if policy.nonfinite >= config.optimizer.max_nonfinite:
                give_up(policy, batches, checkpoints, state, generated, order.position)
            empty = 0 if any(has_signal(as_group(group)) for group in batch) else state.empty + 1
            check_signal(empty, metrics, config.rollout.max_empty_steps)
            if config.eval.every and step % config.eval.every == 0 and not over(step, order, config):
                during = test[: config.eval.during_problems]
                reporter.evaluation(step, evaluate(sampler, during, config.eval))
            # 6. Save where the run is, so that it can go on from here.
            stopped = stop.asked(ranks)
            evaluations, seconds_so_far = list(reporter.evaluations), time.perf_counter() - start
            place = (step, order.position, policy.version, evaluations, seconds_so_far, reporter.written(), surplus)
            state = State(*place, policy.nonfinite, empty)
            checkpoints.after_step(policy, state, now=stopped or over(step, order, config))
        if not stopped:
            reporter.evaluation(step, evaluate(sampler, test[: config.eval.problems], config.eval))
        checkpoints.settle()
        if stopped:
            checkpoints.require(step)
            if ranks.main:
                say(f"stopped after step {step} of {config.run.steps}; resume with: train.py {folder}/config.yaml")
        else:
            policy.export(folder / "model" if folder else None, tokenizer)
            reporter.finish(config, time.perf_counter() - start)
        ranks.barrier()  # signals are taken until the first rank has written all
    ranks.close()


def replay(config: Config) -> None:
    """One saved step of a run again, from its responses on, beside the numbers it had then. RunError when they differ."""
    saved = read_step(config)
    config, changed = recorded_config(config, saved)
    problems, _, _ = load_problems(config.data)
    tokenizer = load_tokenizer(config.model)
    prompts = encode_prompts(problems, tokenizer, config.data, [], "training")
    v, estimator = config.verifier, config.build_estimator()
    with VerifierPool(*v.pool(), v.workers, v.timeout) as pool:
        ranks = Ranks(config.model.dtype)
        policy = policy_before(saved, config, ranks, len(tokenizer))
        sampler = Sampler(RecordedEngine(saved, config.run.seed), tokenizer, pool, ranks, config.run.seed, config.rollout.stop)
        order = RecordedOrder(len(prompts), config.run.seed, saved)
        batch, surplus, generated = collect_batch(sampler, prompts, order, saved.before.surplus, saved.before.version, config)
    carried = [] if over(saved.number, order, config) else surplus
    if policy is not None:
        compute_logprobs(policy, batch, estimator, config)
    else:
        restore_logprobs(saved, batch)
    compute_advantages(estimator, batch)
    metrics = batch_metrics(generated, batch, carried, order.position - saved.before.position, config)
    if policy is not None:
        lr = learning_rate(saved.number, config.optimizer, config.run.steps)
        with policy.computing():
            metrics |= update(policy, batch, lr, config).metrics(ranks) | {"optimizer/lr": lr}
    different = compare(saved, generated, metrics, config) if ranks.main else []
    if ranks.main and changed:
        say(f"with {'; '.join(changed)}")
    if ranks.gather([different])[0] and not changed:
        raise RunError(f"step {saved.number} of {saved.run} does not come out again: {', '.join(different)}")
    ranks.close()


def over(step: int, order: Order, config: Config) -> bool:
    """Whether a run is done after `step`: all its steps, or all its passes over the data."""
    passes = order.position / order.size
    return step >= config.run.steps or (config.run.epochs is not None and passes >= config.run.epochs)


def give_up(
    policy: Policy, batches: Batches, checkpoints: Checkpoints, before: State, generated: Groups, position: int
) -> None:
    """Ends a run whose optimizer steps keep failing; keeps its last batch, and the weights where they are those before it."""
    batches.save(before, generated, position)
    if policy.version == before.version:
        checkpoints.ensure(policy, before)
    step = f"{checkpoints.root.parent}/step{before.step + 1}"
    raise RunError(
        f"loss or gradient was not finite in {policy.nonfinite} optimizer steps in a row, all of them skipped; look at the "
        f"last batch with train.py --replay {step}, then start another run with a lower optimizer.lr or optimizer.max_grad_norm"
    )


def collect_batch(
    sampler: Sampler, prompts: list[Prompt], order: Order, carried: Groups, version: int, config: Config
) -> tuple[Groups, Groups, Groups]:
    """(batch of `rollout.prompts` groups, kept groups beyond it, everything generated).

    Without dynamic sampling: one generation batch as it comes. With it: groups that are all right or all wrong are dropped and
    more prompts are sampled, as many as the share kept so far lets expect, up to `max_generation_batches`.
    """
    r = config.rollout
    if sampler.engine.version != version:
        raise RunError(
            f"the engine holds the weights of version {sampler.engine.version}, the policy is at {version}: a push is missing"
        )
    sampling = SamplingParams(r.group_size, r.temperature, r.max_response_tokens)
    kept, generated = list(carried), Groups()
    dynamic = config.algorithm.requirements.dynamic_sampling
    expected = 1 / r.oversample if dynamic else 1.0  # share of groups that will be kept
    for _ in range(r.max_generation_batches if dynamic else 1):
        missing = r.prompts - len(kept)
        if missing <= 0:
            break
        wanted = min(ceil(missing / expected), ceil(max(2, r.oversample) * r.prompts))
        drawn = order.draw(r.draws(wanted))
        keep = min(wanted, len(drawn))  # the others, which take longest, are given up
        groups = sampler.groups([prompts[i] for _, i in drawn], [number for number, _ in drawn], sampling, keep=keep)
        for rollout in (rollout for group in groups for rollout in group):
            rollout.reward += losses.overlong_penalty(rollout.length, r.max_response_tokens, config.algorithm.overlong_buffer)
        generated += groups
        kept += [group for group in groups if not dynamic or has_signal(as_group(group))]
        expected = max(0.1, (len(kept) - len(carried)) / len(generated)) if dynamic else 1.0
    if len(kept) < r.prompts and r.when_exhausted == "error":
        raise RunError(
            f"only {len(kept)} of {r.prompts} groups have right and wrong responses after {len(generated)} sampled in "
            f"{r.max_generation_batches} generation batches: the problems are too easy or too hard for the model; raise "
            "rollout.group_size or rollout.max_generation_batches, or set rollout.when_exhausted=smaller"
        )
    # Carried once and at most half a batch: the next one is mostly of its own policy, and nothing gets older than one batch.
    fresh = [group for group in kept[r.prompts :] if group[0].version == sampler.engine.version]
    return kept[: r.prompts], fresh[: r.prompts // 2] if r.carry_over else [], generated


def compute_advantages(estimator: Estimator, batch: Groups) -> None:
    """Gives each rollout its advantage, a whole group at a time. RunError when the estimator is not made for these rewards."""
    for group in batch:
        try:
            advantages = estimator(as_group(group))
        except ValueError as error:
            raise RunError(str(error)) from error
        for rollout, advantage in zip(group, advantages, strict=True):
            rollout.advantages = advantage


def compute_logprobs(policy: Policy, batch: Groups, estimator: Estimator, config: Config) -> None:
    """Log-probs of the batch before the update: the denominator of the ratio.

    Those of the first mini-batch are not needed where its own forward pass gives them and no one else reads them.
    """
    a = config.algorithm
    redundant = a.epochs == 1 and a.rollout_is == "none" and not estimator.needs_entropy and not config.rollout.carry_over
    later = len(batch) if a.old_logprobs == "sampler" else a.mini_batch_prompts if redundant else 0
    with policy.computing():
        policy.score([r for group in batch[:later] for r in group], old=False)
        policy.score([r for group in batch[later:] for r in group], old=True, entropy=estimator.needs_entropy)
    if a.old_logprobs == "sampler":
        for rollout in (r for group in batch for r in group):
            rollout.old_logprobs = rollout.completion.logprobs


def update(policy: Policy, batch: Groups, lr: float, config: Config) -> UpdateStats:
    """The optimizer steps of one batch: mini-batches of whole groups, the old log-probs frozen throughout.

    Where the batch could not be filled, the last mini-batch is smaller and its loss is scaled down by as much.
    """
    a = config.algorithm
    version = policy.version  # of the policy that sampled, unless a group was carried over
    clip = losses.Clip(a.requirements.clip_low, a.requirements.clip_high, a.dual_clip)
    stats = UpdateStats(skipped=int(not batch))
    for start in list(range(0, len(batch), a.mini_batch_prompts)) * a.epochs:
        groups = batch[start : start + a.mini_batch_prompts]
        rollouts = [r for group in groups for r in group]
        # A response without verdict teaches nothing; a truncated one does unless the config says otherwise.
        lengths = [0 if r.reward != r.reward or (a.mask_truncated and r.truncated) else r.length for r in rollouts]
        weights = losses.token_weights(lengths, a.requirements.loss_agg_mode, config.rollout.max_response_tokens)
        if not any(lengths):
            stats.skipped += 1
            continue
        # Of what is left out only the absence counts, in the weights of the others.
        kept = [i for i, length in enumerate(lengths) if length]
        rollouts, weights = [rollouts[i] for i in kept], [weights[i] for i in kept]
        for micro in policy.gradient_steps(rollouts):
            logprobs, entropy = policy.logprobs(micro)
            rollout_logprobs = micro.flat([r.completion.logprobs for r in micro.rollouts])
            old_logprobs = logprobs.detach()
            if all(r.old_logprobs is not None for r in micro.rollouts) and micro.rollouts:
                old_logprobs = micro.flat([r.old_logprobs for r in micro.rollouts])
            weight = micro.flat([weights[i] * len(groups) / a.mini_batch_prompts for i in micro.indices])
            fresh = micro.flat([r.version == version for r in micro.rollouts]) > 0
            advantages = micro.flat([r.advantages for r in micro.rollouts])

            surrogate = losses.clipped_surrogate(logprobs, old_logprobs, advantages, clip)
            importance = losses.importance_weights(
                old_logprobs, rollout_logprobs, a.rollout_is, a.rollout_is_low, a.rollout_is_high
            )
            token_loss = importance * surrogate.loss - a.entropy_coef * entropy
            ref_kl = logprobs.detach() * 0
            if a.kl_coef > 0:
                ref_logprobs = micro.flat([r.ref_logprobs for r in micro.rollouts])
                ref_kl = losses.kl(logprobs, ref_logprobs, a.kl_estimator)
                token_loss = token_loss + a.kl_coef * ref_kl
            policy.accumulate((weight * token_loss).sum())
            # The trainer's log-probs at the weights that sampled: every token's where they were made, else the first step's.
            before = old_logprobs if a.old_logprobs == "trainer" else logprobs.detach() if not stats.grad_norms else None
            stats.add(
                weight > 0, fresh, logprobs, old_logprobs, rollout_logprobs, before, entropy, surrogate, importance, ref_kl
            )
        stats.end(policy.step(lr))
        if policy.nonfinite >= config.optimizer.max_nonfinite:
            break
    return stats


def main(config: Config) -> int:
    """The exit code of a run: 0 finished, 2 bad input, 1 a run that could not go on."""
    try:
        replay(config) if config.replay else train(config)
    except (ConfigError, VerifierError, RunError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2
    except KeyboardInterrupt:
        print("train.py: interrupted; start the same command again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(CONFIG))
