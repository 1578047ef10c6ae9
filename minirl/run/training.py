"""A training run: evaluation before and after; reports, checks, checkpoints and stops between steps."""

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import minirl
from minirl.advantages import has_signal
from minirl.analysis.run_report import write_report
from minirl.data.prompts import Prompt
from minirl.evaluation.held_out import evaluate, recall, write
from minirl.rollout.sampler import as_group
from minirl.rollout.types import Batch
from minirl.run.batches import Batches
from minirl.run.checkpoint import Checkpoints, State
from minirl.run.metrics import UpdateStats, batch_metrics
from minirl.run.report import Reporter, check_logprob_diff, check_signal
from minirl.run.run import Run, Step
from minirl.run.signals import Stop
from minirl.utils.console import say
from minirl.utils.errors import RunError
from minirl.watch.meter import Meter
from minirl.watch.readable import Readable

WORK = {"rollout": "sampling", "old_logprobs": "log-probs", "update": "updating", "sync": "pushing weights"}


@dataclass
class TrainingRun(Run):
    """test: held-out prompts; folder: the run's, None on ranks other than the first; started: time.perf_counter() at the start,
    less the run time of earlier processes."""

    test: Sequence[Prompt]
    tokenizer: Any
    folder: Path | None
    checkpoints: Checkpoints
    reporter: Reporter
    batches: Batches
    stop: Stop
    started: float

    @cached_property
    def meter(self) -> Meter:
        """The limit of the run's steps."""
        return Meter(self.config, self.policy)

    def steps(self) -> Iterator[Step]:
        """See `Run.steps`. After the last step: final evaluation, exported model and report; after a stop: a checkpoint to
        resume from."""
        stopped = self.stop.asked(self.ranks, begun=False)
        if not self.state.evaluations and not stopped:
            self.evaluate(0, self.config.eval.problems)
            stopped = self.stop.asked(self.ranks, begun=False)
        while not stopped and not self.over(self.state.step):
            if self.sampler.engine.version != self.policy.version:
                raise RunError(
                    f"the engine holds the weights of version {self.sampler.engine.version}, the policy is at "
                    f"{self.policy.version}: a push is missing"
                )
            yield Step(self, self.state.step + 1)
            stopped = self.stop.asked(self.ranks)
            self.reporter.begin(f"step {self.state.step}: saving a checkpoint")
            self.checkpoints.after_step(self.policy, self.state, now=stopped or self.over(self.state.step))
        step = self.state.step
        if not stopped:
            self.evaluate(step, self.config.eval.problems)
        self.checkpoints.settle()
        if stopped:
            self.checkpoints.require(step)
            if self.ranks.main:
                self.reporter.close()
                ranks = f" on {self.ranks.size} ranks (start as many, by the same launcher)" if self.ranks.size > 1 else ""
                say(f"stopped after step {step} of {self.config.run.steps}{ranks}; resume with: {resume_command(self.folder)}")
        else:
            self.policy.export(self.folder / "model" if self.folder else None, self.tokenizer)
            self.reporter.close()
            if self.folder:
                seconds, reporter = time.perf_counter() - self.started, self.reporter
                known = self.checkpoints.fingerprint
                write_report(self.folder, self.config, reporter.evaluations, reporter.diagnoses, seconds, known)
        self.ranks.barrier()  # signals are handled until the first rank has written all

    def begin(self, step: int, part: str) -> None:
        """See `Run.begin`."""
        self.reporter.begin(f"step {step}: {WORK[part]}")

    def finish_step(self, step: Step, batch: Batch, stats: UpdateStats) -> None:
        """See `Run.finish_step`."""
        config, before, number, position = self.config, self.state, step.number, self.order.position
        carried = [] if self.over(number) else batch.surplus  # after the last step they are wasted
        metrics = batch_metrics(batch, carried, position - before.position, step.progress, config)
        metrics |= batch.metrics | self.checks(batch) | stats.metrics(self.ranks) | {"optimizer/lr": step.lr}
        metrics |= self.meter.metrics(batch, step.seconds)
        shown = Readable(batch, carried, step.progress, config)
        values = stats.pop_tokens([chosen.rollouts for chosen in shown.chosen], self.ranks)
        rows = shown.rows(values, self.tokenizer) if self.ranks.main else []
        self.reporter.step(number, metrics | self.checkpoints.pop_costs(), step.seconds, rows)
        self.batches.after_step(before, batch.generated, position, self.over(number))
        check_logprob_diff(metrics, config.rollout)
        if self.policy.nonfinite >= config.optimizer.max_nonfinite:
            self.abort(batch)
        teaches = any(has_signal(as_group(group)) or any(np.any(r.advantages) for r in group) for group in batch.groups)
        empty = 0 if teaches else before.empty + 1
        check_signal(empty, metrics, config.rollout.max_empty_steps)
        if config.eval.every and number % config.eval.every == 0 and not self.over(number):
            self.evaluate(number, config.eval.during_problems)
        seconds = time.perf_counter() - self.started
        self.state = State(
            number, position, self.policy.version, list(self.reporter.evaluations), seconds, self.reporter.written(),
            batch.surplus, self.policy.nonfinite, empty, self.tokens, self.training_seconds,
            len(batch.groups) / max(1, len(batch.generated)),
        )  # fmt: skip

    def evaluate(self, step: int, problems: int) -> None:
        """Evaluates the policy on the first `problems` held-out problems and reports the result.

        Each problem's counts are written to evaluations/. Before the first step, eval.before may give them.
        """
        config, prompts, fingerprint = self.config, self.test[:problems], self.checkpoints.fingerprint
        start = time.perf_counter()
        self.reporter.begin(f"evaluating after step {step}: sampling")
        if step == 0 and config.eval.before:
            evaluation = recall(config, prompts, fingerprint)
        else:
            evaluation = evaluate(self.sampler, prompts, config.eval)
        if self.folder is not None:
            write(self.folder, step, evaluation, config, fingerprint)
        self.reporter.evaluation(step, evaluation.metrics, time.perf_counter() - start)

    def abort(self, batch: Batch) -> None:
        """Ends a run that skipped too many optimizer steps. Saves the batch and, if it changed no weights, a checkpoint of the
        state before it."""
        self.batches.save(self.state, batch.generated, self.order.position)
        if self.policy.version == self.state.version:
            self.checkpoints.ensure(self.policy, self.state)
        step = f"{self.checkpoints.root.parent}/step{self.state.step + 1}"
        raise RunError(
            f"loss or gradient was not finite in {self.policy.nonfinite} optimizer steps in a row, all of them skipped; look "
            f"at the last batch with python train.py --replay {shlex.quote(step)}, then start another run with a lower "
            "optimizer.lr or optimizer.max_grad_norm"
        )


def resume_command(folder: Path | None) -> str:
    """The command that resumes a run, to paste into the shell that started it."""
    if Path(sys.argv[0]).parent == Path(minirl.__file__).parent:  # of a wheel
        return f"python -m minirl.train {shlex.quote(f'{folder}/config.yaml')}"
    script = min(sys.argv[0], os.path.relpath(sys.argv[0]), key=len) if Path(sys.argv[0]).name == "train.py" else "train.py"
    return f"python {shlex.quote(script)} {shlex.quote(f'{folder}/config.yaml')}"
