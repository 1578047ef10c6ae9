"""Samples and verifies groups on all ranks. Responses are verified while the engine still samples others."""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from minirl.advantages import Group, place_of
from minirl.config.options import RolloutConfig
from minirl.data.prompts import Prompt
from minirl.rollout.types import Completion, Engine, Rollout, SamplingParams
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError, RunError
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.rewards import load_function
from minirl.verify.types import ERROR, RIGHT, Problem, Verdict

TRAINING, EVALUATION = 0, 1  # random streams: part of every seed, so that the two never share one


class Sampler:
    """Samples responses and has them verified.

    stop: texts that end a response, cut off before it is verified; labeller: file.py:function that gives responses of a whole
    training group their error classes.
    """

    def __init__(
        self, engine: Engine, tokenizer: Any, pool: VerifierPool, ranks: Ranks, seed: int, stop: Sequence[str] = (),
        labeller: str | None = None,
    ) -> None:  # fmt: skip
        self.engine, self.tokenizer, self.pool, self.ranks, self.seed = engine, tokenizer, pool, ranks, seed
        self.stop = tuple(stop)
        self.labeller = None if labeller is None else load_function(labeller)
        self.watch: Callable[[int, int], None] = lambda responses, of: None  # called with those sampled so far, and of how many
        self.seconds = {"sample": 0.0, "verify": 0.0}  # since the last pop_timings; verify: waiting after sampling

    def groups(
        self, prompts: Sequence[Prompt], numbers: Sequence[int], sampling: SamplingParams, stream: int = TRAINING,
        keep: int | None = None,
    ) -> list[list[Rollout]]:  # fmt: skip
        """One group of `sampling.n` rollouts for each prompt, in the order of `prompts`, the same on every rank.

        numbers: the draw number of each prompt, the id of its group; with the run's seed and `stream` it seeds the responses.
        keep: how many groups to return. Each engine aborts its share of the others: those of its prompts that finish last.
        """
        start = time.perf_counter()
        per_engine = self.engine.ranks_per_engine
        engine, engines = self.ranks.rank // per_engine, self.ranks.size // per_engine
        # Dealt by falling prompt length, so that no engine gets all the long ones. Each then takes its own in the order drawn,
        # so that prompt length does not decide which of the groups that finish together are aborted.
        mine = sorted(by_length(prompts)[engine::engines])
        wanted = len(prompts) if keep is None else keep
        my_share = len(range(engine, wanted, engines))
        my_prompts, my_numbers = [prompts[i] for i in mine], [numbers[i] for i in mine]
        sampled = list(self.sample_groups(my_prompts, my_numbers, sampling, (stream,), my_share))
        sampled_at = time.perf_counter()
        rollouts = [
            (mine[k], record(prompts[mine[k]], numbers[mine[k]], completion, self.engine.version, text, verdict.result()))
            for k, group in sampled
            for completion, text, verdict in group
        ]
        if self.labeller is not None and stream == TRAINING:
            for i in {i for i, _ in rollouts}:
                relabel(self.labeller, prompts[i].problem, [rollout for j, rollout in rollouts if j == i])
        self.seconds["sample"] += sampled_at - start
        self.seconds["verify"] += time.perf_counter() - sampled_at
        groups: list[list[Rollout]] = [[] for _ in prompts]
        for i, rollout in self.ranks.gather(rollouts):
            groups[i].append(rollout)
        kept = [group for group in groups if group]
        if len(kept) != wanted:
            raise RunError(f"{type(self.engine).__name__} gave {len(kept)} of {wanted} groups: the engine is not healthy")
        return kept

    def sample_groups(
        self, prompts: Sequence[Prompt], numbers: Sequence[int], sampling: SamplingParams, stream: Sequence[int],
        keep: int | None = None,
    ) -> Iterator[tuple[int, list[tuple[Completion, str, Future[Verdict]]]]]:  # fmt: skip
        """Yields (index of the prompt, its responses: completion, text, future verdict), each group as soon as it is sampled.

        The responses are seeded by the run's seed, `stream` and the prompt's number. keep: see `Engine.generate`.
        """
        seeds = [stable_seed(self.seed, *stream, number) for number in numbers]
        of = sampling.n * (len(prompts) if keep is None else keep)
        self.watch(0, of)
        for done, (i, completions) in enumerate(self.generate([p.ids for p in prompts], sampling, seeds, keep), 1):
            self.watch(done * sampling.n, of)
            if self.ranks.rank % self.engine.ranks_per_engine:
                continue  # all ranks of an engine sample the same responses; the first one verifies them
            yield i, [(completion, *self.submitted(prompts[i], numbers[i], completion)) for completion in completions]

    def submitted(self, prompt: Prompt, number: int, completion: Completion) -> tuple[str, Future[Verdict]]:
        """(text of a response, its future verdict). number: the draw number of its prompt."""
        text = self.text(completion)
        info = {"group": number, "finish": completion.finish, "tokens": len(completion.ids), "prompt": prompt.text}
        if has_custom_reward(self.pool):
            info["raw"] = self.tokenizer.decode(completion.ids)
        return text, submit(self.pool, prompt.problem, text, info)

    def generate(
        self, prompts: Sequence[list[int]], sampling: SamplingParams, seeds: Sequence[int], keep: int | None
    ) -> Iterator[tuple[int, list[Completion]]]:
        """The engine's completions. RunError when it fails."""
        with self.healthy(f"{sampling.n} responses to each of {len(prompts)} prompts"):
            yield from self.engine.generate(prompts, sampling, seeds, keep)

    def extend(
        self, rollouts: Sequence[Rollout], keys: Sequence[tuple[int, int]], sampling: SamplingParams, tokens: int
    ) -> list[Completion]:
        """The engine's next tokens of unfinished responses. RunError when it fails."""
        with self.healthy(f"the next tokens of {len(rollouts)} responses"):
            return self.engine.extend(rollouts, keys, sampling, tokens) if rollouts else []

    @contextmanager
    def healthy(self, work: str) -> Iterator[None]:
        """Makes a RunError of an engine's failure at `work`."""
        try:
            yield
        except (ConfigError, RunError):
            raise
        except Exception as error:  # an engine may raise anything
            traceback.print_exc()
            raise RunError(
                f"{type(self.engine).__name__} failed while it sampled {work}: {type(error).__name__}: "
                f"{' '.join(str(error).split())[:300]}; start the same command again to resume, and if it fails again lower "
                "rollout.max_sequences, rollout.max_response_tokens or rollout.vllm.gpu_memory_utilization (eval.py: "
                "--max-sequences, --max-tokens, --gpu-memory)"
            ) from error

    def text(self, completion: Completion) -> str:
        """The response as text, without special tokens, cut before the first stop text."""
        text = self.tokenizer.decode(completion.ids, skip_special_tokens=True)
        for stop in self.stop:
            text = text.split(stop, 1)[0]
        return text

    def pop_timings(self) -> dict[str, float]:
        """Seconds spent sampling and waiting for verdicts since the last call."""
        seconds, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        return seconds


def by_length(prompts: Sequence[Prompt]) -> list[int]:
    """Indices of the prompts by falling length, equal ones in their order."""
    return sorted(range(len(prompts)), key=lambda i: -len(prompts[i].ids))


def has_custom_reward(pool: VerifierPool) -> bool:
    """Whether the verifier is, or includes, a custom reward function."""
    return ".py:" in pool.verifier or pool.verifier == "combine"


def submit(pool: VerifierPool, problem: Problem, text: str, info: dict[str, Any]) -> Future[Verdict]:
    """Submits a response to the verifier. info: group, finish, tokens, prompt and raw (the response with its special tokens),
    for custom reward functions; other verifiers do not get it, so that the pool judges equal responses only once.

    If the prompt ends in "<think>", it is put before the response: one that is cut while thinking then has no answer.
    """
    opened = "<think>" if info["prompt"].rstrip().endswith("<think>") else ""
    return pool.submit(problem, opened + text, info if has_custom_reward(pool) else None)


def record(prompt: Prompt, number: int, completion: Completion, version: int, text: str, verdict: Verdict) -> Rollout:
    """The Rollout of a verified response. number: the draw number of its prompt."""
    gold = prompt.problem.answer
    return Rollout(number, prompt.text, gold, prompt.ids, completion, version, text, verdict, verdict_reward(verdict))


def relabel(labeller: Callable[..., Any], problem: Problem, rollouts: Sequence[Rollout]) -> None:
    """Gives the verdicts of one whole group the labels that `labeller` finds. RunError when it fails."""
    try:
        labels = labeller(problem, [r.text for r in rollouts], [r.verdict for r in rollouts])
        if len(labels) != len(rollouts) or not all(isinstance(label, str) for label in labels):
            raise TypeError(f"it must return {len(rollouts)} texts, not {labels!r}"[:300])
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise RunError(f"verifier.labeller failed on problem {problem.id}: {said}{place_of(error)}") from error
    for rollout, label in zip(rollouts, labels, strict=True):
        rollout.verdict = replace(rollout.verdict, label=label)


def check_full(kept: int, sampled: int, rollout: RolloutConfig) -> None:
    """RunError when a batch is to be full and only `kept` groups of those sampled have signal."""
    if kept < rollout.prompts and rollout.when_exhausted == "error":
        raise RunError(
            f"only {kept} of {rollout.prompts} groups have right and wrong responses after {sampled} sampled in "
            f"{rollout.max_generation_batches} generation batches: the problems are too easy or too hard for the model; raise "
            "rollout.group_size or rollout.max_generation_batches, or set rollout.when_exhausted=smaller; for graded rewards, "
            "which may never count as right, there is algorithm.keep=reward"
        )


def stable_seed(*parts: int) -> int:
    """A 63-bit seed from integers; different tuples give independent seeds."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def verdict_reward(verdict: Verdict) -> float:
    """The reward of a verdict: the verifier's own, else 1 for right and 0 for wrong; NaN for an error."""
    if verdict.status == ERROR:
        return float("nan")
    return float(verdict.status == RIGHT) if verdict.reward is None else verdict.reward


def as_group(rollouts: Sequence[Rollout], progress: float = 0.0, seed: int = 0, kl_reward_coef: float = 0.0) -> Group:
    """What an advantage estimator sees of the rollouts of one prompt.

    progress: of the run, in [0, 1]; seed: the run's; kl_reward_coef: weight of log pi / pi_ref, summed over a response, which
    is taken off its reward.
    """
    if len({r.group for r in rollouts}) != 1:
        raise ValueError(f"a group has one draw number, not {sorted({r.group for r in rollouts})}")
    arrays = {
        "entropies": [r.entropies for r in rollouts],
        "logprobs": [r.old_logprobs for r in rollouts],
        "ref_logprobs": [r.ref_logprobs for r in rollouts],
    }
    rewards = np.array([r.reward for r in rollouts], dtype=np.float64)
    if kl_reward_coef:
        pairs: Any = zip(arrays["logprobs"], arrays["ref_logprobs"], strict=True)
        rewards -= kl_reward_coef * np.array([(p.astype(np.float64) - q).sum() for p, q in pairs])
    return Group(
        rewards=rewards,
        correct=np.array([r.verdict.status == RIGHT for r in rollouts]),
        labels=[r.verdict.label for r in rollouts],
        scores=np.array([verdict_reward(r.verdict) for r in rollouts], dtype=np.float64),
        lengths=np.array([r.length for r in rollouts]),
        progress=progress,
        number=rollouts[0].group,
        seed=seed,
        **{name: None if any(x is None for x in xs) else xs for name, xs in arrays.items()},  # type: ignore[arg-type]
    )
