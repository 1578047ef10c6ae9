"""Prompts -> verified groups, over all ranks. Responses are verified while the engine is still sampling others."""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from minirl.advantages import Group
from minirl.data.prompts import Prompt
from minirl.rollout.types import Completion, Engine, Rollout, SamplingParams
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError, RunError
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.rewards import load_function
from minirl.verify.types import ERROR, RIGHT, Problem, Verdict

TRAINING, EVALUATION = 0, 1  # streams of randomness that never meet


class Sampler:
    """Samples and verifies on every rank what all ranks then hold.

    stop: texts that end a response and are no part of the answer; labeller: file.py:function that gives the responses of a
    whole training group their error classes.
    """

    def __init__(
        self, engine: Engine, tokenizer: Any, pool: VerifierPool, ranks: Ranks, seed: int, stop: Sequence[str] = (),
        labeller: str | None = None,
    ) -> None:  # fmt: skip
        self.labeller = None if labeller is None else load_function(labeller)
        self.engine, self.tokenizer, self.pool, self.ranks, self.seed, self.stop = (
            engine,
            tokenizer,
            pool,
            ranks,
            seed,
            tuple(stop),
        )
        self.seconds = {"sample": 0.0, "verify": 0.0}  # since last taken; verify is the wait after the last sample

    def groups(
        self, prompts: Sequence[Prompt], numbers: Sequence[int], sampling: SamplingParams, stream: int = TRAINING,
        keep: int | None = None,
    ) -> list[list[Rollout]]:  # fmt: skip
        """One whole group of `sampling.n` rollouts a prompt, in the order of `prompts`, the same on every rank.

        numbers: the draw number of each prompt; it names the group and, with the run's seed and `stream`, seeds its samples.
        keep: groups that come out; each engine gives up its share of the others, those of its own that finish last.
        """
        start = time.perf_counter()
        # Dealt by falling length, so that no rank gets all the long prompts; a group is never split.
        order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i].ids), i))
        together = self.engine.ranks_per_engine
        engine, engines = self.ranks.rank // together, self.ranks.size // together
        # In the order drawn: of groups that finish together, the length of their prompts should not say which are given up.
        mine = sorted(order[engine::engines])
        wanted = len(prompts) if keep is None else keep
        my_share = len(range(engine, wanted, engines))
        seeds = [stable_seed(self.seed, stream, numbers[i]) for i in mine]
        pending: list[tuple[int, Completion, str, Future[Verdict]]] = []
        for place, samples in self.generate([prompts[i].ids for i in mine], sampling, seeds, my_share):
            i = mine[place]
            if self.ranks.rank % together:
                continue  # the first rank of an engine verifies and reports what all of its ranks sampled
            for sample in samples:
                text = self.text(sample)
                extra_info = {"group": numbers[i], "finish": sample.finish, "tokens": len(sample.ids)}
                pending.append(
                    (i, sample, text, self.pool.submit(prompts[i].problem, text, extra_info if self.wants_facts else None))
                )
        sampled = time.perf_counter()
        done = [
            (i, record(prompts[i], numbers[i], sample, self.engine.version, text, verdict))
            for i, sample, text, future in pending
            for verdict in [future.result()]
        ]
        if self.labeller is not None and stream == TRAINING:
            for i in {i for i, _ in done}:
                relabel(self.labeller, prompts[i].problem, [rollout for j, rollout in done if j == i])
        self.seconds["sample"] += sampled - start
        self.seconds["verify"] += time.perf_counter() - sampled
        groups: list[list[Rollout]] = [[] for _ in prompts]
        for i, rollout in self.ranks.gather(done):
            groups[i].append(rollout)
        whole = [group for group in groups if group]
        if len(whole) != wanted:
            raise RunError(f"{type(self.engine).__name__} gave {len(whole)} of {wanted} groups: the engine is not healthy")
        return whole

    def generate(
        self, prompts: Sequence[list[int]], sampling: SamplingParams, seeds: Sequence[int], keep: int
    ) -> Iterator[tuple[int, list[Completion]]]:
        """The engine's samples. RunError when it fails."""
        try:
            yield from self.engine.generate(prompts, sampling, seeds, keep)
        except (ConfigError, RunError):
            raise
        except Exception as error:  # an engine may raise anything
            traceback.print_exc()
            raise RunError(
                f"{type(self.engine).__name__} failed while it sampled {sampling.n} responses to each of {len(prompts)} "
                f"prompts: {type(error).__name__}: {' '.join(str(error).split())[:300]}; start the same command again to go on "
                "from the last checkpoint, and if it fails again lower rollout.max_sequences, rollout.max_response_tokens or "
                "rollout.vllm.gpu_memory_utilization"
            ) from error

    @property
    def wants_facts(self) -> bool:
        """Whether the verifier reads facts of the rollout: only a reward of the user's own can; equal questions are then asked
        each time."""
        return ".py:" in self.pool.verifier or self.pool.verifier == "combine"

    def text(self, sample: Completion) -> str:
        """The response as text, without special tokens, cut before the first stop text."""
        text = self.tokenizer.decode(sample.ids, skip_special_tokens=True)
        for stop in self.stop:
            text = text.split(stop, 1)[0]
        return text

    def pop_timings(self) -> dict[str, float]:
        """Seconds spent sampling and waiting for verdicts since the last call."""
        taken, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        return taken


def record(prompt: Prompt, number: int, sample: Completion, version: int, text: str, verdict: Verdict) -> Rollout:
    """A verified sample as a record of the run."""
    gold = prompt.problem.answer
    return Rollout(number, prompt.text, gold, prompt.ids, sample, version, text, verdict, verdict_reward(verdict))


def relabel(labeller: Callable[..., Any], problem: Problem, rollouts: Sequence[Rollout]) -> None:
    """Gives the verdicts of one whole group the labels that `labeller` finds. RunError when it fails."""
    try:
        labels = labeller(problem, [r.text for r in rollouts], [r.verdict for r in rollouts])
        if len(labels) != len(rollouts) or not all(isinstance(label, str) for label in labels):
            raise TypeError(f"it must return {len(rollouts)} texts, not {labels!r}"[:300])
    except Exception as error:
        raise RunError(f"verifier.labeller failed on problem {problem.id}: {type(error).__name__}: {error}") from error
    for rollout, label in zip(rollouts, labels, strict=True):
        rollout.verdict = replace(rollout.verdict, label=label)


def stable_seed(*parts: int) -> int:
    """A 63-bit seed from integers; different tuples give unrelated seeds."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def verdict_reward(verdict: Verdict) -> float:
    """The reward of a verdict: the verifier's own, else 1 for right and 0 for wrong; NaN when there was no verdict."""
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
