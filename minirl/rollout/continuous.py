"""Sampling without waiting: groups are begun in the order drawn, whenever an engine has room, and a batch is the first of them
that are kept, in that order.

So which groups are trained on, and when, does not depend on how long their responses are: a batch ends with the group that
fills it and waits for every group drawn before that one, however long, while the engines sample others. (To take those that
finish first would be biased towards short ones, as `rollout.abort_longest` is.) What was begun beyond the batch's last group is
discarded and drawn again, or, with `rollout.ahead`, continued at the next policy version from the tokens it has (partial
rollouts): each token has its own version and log-prob, by which the importance weights correct it.

An engine samples a slice of a few tokens of each response. After a slice all ranks exchange what they have, so all take the
same decisions, and a run's state between two steps is groups of rollouts, nothing of the engine's. Keys and values of the
tokens so far are computed anew after each update, since they belong to the old weights.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from minirl.advantages import Group
from minirl.config.options import Config
from minirl.data.prompts import Order, Prompt
from minirl.rollout.sampler import TRAINING, Sampler, as_group, check_full, relabel, stable_seed, verdict_reward
from minirl.rollout.types import LENGTH, Batch, Completion, Rollout, SamplingParams
from minirl.verify.types import ERROR, Verdict

UNVERIFIED = Verdict(ERROR, detail="not verified yet")


def slice_tokens(longest: int) -> int:
    """Tokens of a response that are sampled between two exchanges, where `longest` are allowed. An engine is refilled only
    then; short slices cost more exchanges and requests."""
    return min(longest, max(8, longest // 64))


def continuous_batch(
    sampler: Sampler, order: Order, prompts: Sequence[Prompt], config: Config, carried: Sequence[list[Rollout]], share: float,
    keeps: Callable[[Group], bool], penalty: Callable[[int], float],
) -> Batch:  # fmt: skip
    """The batch of a step, and what was begun beyond it. carried: groups that the step before has begun; share: of groups that
    were kept there, 0 if unknown; keeps: whether a group is trained on, with dynamic sampling; penalty: added to the reward of
    a response of so many tokens."""
    return Continuous(sampler, order, prompts, config, carried, share, keeps, penalty).batch()


class Continuous:
    """The groups of one step: resumed, begun, waiting for those before them. They are numbered by their place in the order."""

    def __init__(
        self, sampler: Sampler, order: Order, prompts: Sequence[Prompt], config: Config, carried: Sequence[list[Rollout]],
        share: float, keeps: Callable[[Group], bool], penalty: Callable[[int], float],
    ) -> None:  # fmt: skip
        """See `continuous_batch`."""
        self.keeps, self.penalty = keeps, penalty
        self.sampler, self.order, self.all_prompts = sampler, order, prompts
        self.ranks, self.rollout = sampler.ranks, config.rollout
        r, self.dynamic = config.rollout, config.algorithm.requirements.dynamic_sampling
        self.first = order.position
        self.params = SamplingParams(r.group_size, r.temperature, r.max_response_tokens)
        # Of groups that a batch may use up.
        self.most = r.prompts * (r.max_generation_batches if self.dynamic else 1)
        self.share = (share or 1 / r.oversample) if self.dynamic else 1.0
        per_engine = sampler.engine.ranks_per_engine
        self.engines, self.engine = self.ranks.size // per_engine, self.ranks.rank // per_engine
        self.reports = self.ranks.rank % per_engine == 0  # all ranks of an engine sample the same
        self.loads = [0] * self.engines  # unfinished responses of each engine
        self.groups, self.prompts = list[list[Rollout]](), list[Prompt]()
        self.engine_of, self.kept = list[int](), list[bool | None]()  # kept: None while it has no verdicts
        self.futures: dict[int, list[tuple[str, Future[Verdict]]]] = {}  # of groups that this rank verifies
        self.waiting = list[int]()  # finished groups that are being verified
        self.drained = False  # a replay has no more groups
        self.sampled = self.passes = self.rows = 0
        # A replay draws only those that its step used.
        for group, (number, i) in zip(carried, order.draw(len(carried)), strict=False):
            if group[0].group != number:
                raise ValueError(f"group {group[0].group} was carried over, but the order is at {number}")
            self.add([replace(r) for r in group], prompts[i])  # what the step before left stays as it is

    def batch(self) -> Batch:
        """Samples until the batch is full, or `max_generation_batches` times as many groups are used up.

        Metrics under sampling/: new_tokens, sampled in this step, whatever batch they are for; tail_share, of the passes of the
        responses that were sampled at once at most, those without a response; ahead_groups, carried over, and of their
        responses the unfinished ones; discarded_tokens, of groups begun in vain.
        """
        start, seconds = time.perf_counter(), self.sampler.seconds
        waited = seconds["verify"]
        while (end := self.end()) is None:
            self.begin()
            self.verify(self.sample())
        if self.rollout.ahead:
            self.settle(self.waiting)  # so that a saved group is either unfinished or has its verdicts
        self.sampler.engine.sleep()
        seconds["sample"] += time.perf_counter() - start - (seconds["verify"] - waited)
        self.order.position = self.first + end
        used, rest = self.groups[:end], self.groups[end:]
        begun = sum(r.length for group in rest for r in group)
        carried, discarded = (rest, 0) if self.rollout.ahead else ([], begun)
        metrics = {
            "new_tokens": self.sampled,
            "tail_share": 1 - self.sampled / (self.passes * self.rows) if self.passes else 0.0,
            "ahead_groups": len(carried),
            "unfinished_responses": sum(not r.completion.finish for group in carried for r in group),
            "discarded_tokens": discarded,
        }
        made = {f"sampling/{name}": float(value) for name, value in metrics.items()}
        groups = [group for group, kept in zip(used, self.kept, strict=False) if kept]
        check_full(len(groups), end, self.rollout)
        return Batch(groups, carried, used, made)

    def add(self, group: list[Rollout], prompt: Prompt) -> None:
        """A group that was begun now or before, for the engine with the fewest responses."""
        engine = self.idlest()
        unfinished = sum(not r.completion.finish for r in group)
        self.loads[engine] += unfinished
        self.engine_of.append(engine)
        self.groups.append(group)
        self.prompts.append(prompt)
        self.kept.append(None if unfinished else self.is_kept(group))

    def idlest(self) -> int:
        """The engine with the fewest unfinished responses."""
        return min(range(self.engines), key=self.loads.__getitem__)

    def is_kept(self, group: list[Rollout]) -> bool:
        """Whether a verified group is trained on."""
        return not self.dynamic or self.keeps(as_group(group))

    def end(self, hopeful: bool = False) -> int | None:
        """How many groups the batch uses up; None while that is not known. hopeful: as if all that are finished were kept."""
        kept = 0
        for k, group in enumerate(self.groups):
            if self.kept[k] is None and not (hopeful and is_finished(group)):
                return None
            kept += self.kept[k] is not False
            if kept == self.rollout.prompts or k + 1 == self.most:
                return k + 1
        return len(self.groups) if self.drained else None

    def begin(self) -> None:
        """Begins groups while engines have room, until the batch, and `ahead` more, can be expected to be full."""
        r, verified = self.rollout, sum(kept is not None for kept in self.kept)
        kept = sum(kept is True for kept in self.kept)
        # The share of the step before counts as much as a batch: the first to finish are few, and short.
        share = (kept + r.prompts * self.share) / (verified + r.prompts) if self.dynamic else 1.0
        wanted, most = r.prompts * (1 + r.ahead), self.most * (1 + r.ahead)
        while not self.drained and kept + (len(self.groups) - verified) * share < wanted and len(self.groups) < most:
            load = self.loads[self.idlest()]
            if load and load + r.group_size > r.max_sequences:
                break
            drawn = self.order.draw(1)
            self.drained = not drawn
            for number, i in drawn:
                empty = Completion(np.empty(0, np.int32), np.empty(0, np.float32), "", np.empty(0, np.int32))
                prompt = self.all_prompts[i]
                one = (number, prompt.text, prompt.problem.answer, prompt.ids, empty, 0, "", UNVERIFIED, float("nan"))
                self.add([Rollout(*one) for _ in range(r.group_size)], prompt)

    def sample(self) -> list[int]:
        """One slice of every unfinished response, on all engines; returns the groups that it finished."""
        rows = [(k, j) for k, group in enumerate(self.groups) for j, r in enumerate(group) if not r.completion.finish]
        sampled = self.extended(rows, slice_tokens(self.params.max_tokens))
        for (k, j), piece in sampled:
            r = self.groups[k][j]
            r.completion = joined(r.completion, piece, self.sampler.engine.version, self.params.max_tokens)
            r.version = int(r.versions[-1])  # type: ignore[index]
            self.loads[self.engine_of[k]] -= bool(r.completion.finish)
        lengths = [len(piece.ids) for _, piece in sampled]
        passes, self.rows = max(lengths, default=0), max(self.rows, len(rows))
        self.sampled += sum(lengths)
        self.passes += passes
        return [k for k in dict.fromkeys(k for k, _ in rows) if is_finished(self.groups[k])]

    def extended(self, rows: Sequence[tuple[int, int]], tokens: int) -> list[tuple[tuple[int, int], Completion]]:
        """(group and place in it, next tokens) of responses, each sampled by its group's engine."""
        mine = [(k, j) for k, j in rows if self.engine_of[k] == self.engine]
        keys = [(stable_seed(self.sampler.seed, TRAINING, self.groups[k][0].group), j) for k, j in mine]
        pieces = self.sampler.extend([self.groups[k][j] for k, j in mine], keys, self.params, tokens)
        return self.ranks.gather(list(zip(mine, pieces, strict=True)) if self.reports else [])

    def verify(self, finished: list[int]) -> None:
        """Has groups verified, and waits for their verdicts after the next slice, or now if these may fill the batch."""
        for k in finished if self.reports else []:
            if self.engine_of[k] == self.engine:
                self.futures[k] = [self.sampler.submitted(self.prompts[k], r.group, r.completion) for r in self.groups[k]]
        due, self.waiting = self.waiting, finished
        if self.end(hopeful=True) is not None:
            due, self.waiting = due + finished, []
        self.settle(due)
        r = self.rollout
        self.sampler.watch(sum(kept is True for kept in self.kept) * r.group_size, r.prompts * r.group_size)

    def settle(self, numbers: Sequence[int]) -> None:
        """Gives groups their verdicts, which their engine's first rank waits for, and decides whether they are kept."""
        start, verdicts = time.perf_counter(), list[tuple[int, int, str, Verdict]]()
        for k in numbers:
            if k not in self.futures:
                continue
            group = self.groups[k]
            for r, (text, future) in zip(group, self.futures.pop(k), strict=True):
                r.text, r.verdict = text, future.result()
            if self.sampler.labeller is not None:
                relabel(self.sampler.labeller, self.prompts[k].problem, group)
            verdicts += [(k, j, r.text, r.verdict) for j, r in enumerate(group)]
        self.sampler.seconds["verify"] += time.perf_counter() - start
        for k, j, text, verdict in self.ranks.gather(verdicts):
            r = self.groups[k][j]
            r.text, r.verdict = text, verdict
            r.reward = verdict_reward(verdict) + self.penalty(r.length)
        for k in numbers:
            self.kept[k] = self.is_kept(self.groups[k])


def is_finished(group: Sequence[Rollout]) -> bool:
    """Whether all responses of a group have ended."""
    return all(r.completion.finish for r in group)


def joined(done: Completion, piece: Completion, version: int, longest: int) -> Completion:
    """A response and its next tokens, which the policy `version` has sampled unless they say otherwise; unfinished where a
    slice has cut it before `longest` tokens."""
    versions = np.full(len(piece.ids), version, np.int32) if piece.versions is None else piece.versions
    ids, logprobs = np.concatenate([done.ids, piece.ids]), np.concatenate([done.logprobs, piece.logprobs])
    finish = "" if piece.finish == LENGTH and len(ids) < longest else piece.finish
    return Completion(ids, logprobs, finish, np.concatenate([done.versions, versions]))  # type: ignore[list-item]
