"""Batches of a run, saved for `train.py --replay RUN/stepN`.

RUN/batches/stepNNNNNN holds:

    step.json        state before the step: prompts drawn, policy version, skipped optimizer steps in a row; prompts drawn after
                     it; run.steps and run.epochs at that time; digest of the starting weights
    carried.npz      groups carried over from the step before
    generated.npz    groups sampled and verified in the step, with the trainer's log-probs and entropies, and advantages
"""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minirl.config.command_line import run_of
from minirl.config.options import Config, RunConfig
from minirl.rollout import records
from minirl.rollout.types import Rollout
from minirl.run.checkpoint import State
from minirl.run.manifest import name_of, steps_of
from minirl.utils.console import discard, say
from minirl.utils.errors import ConfigError


class Batches:
    """Saves the batches of the newest steps, and of each step right after a checkpoint that still exists.

    Does nothing on ranks other than the first (folder None). A batch that cannot be written is only a warning.
    """

    def __init__(self, folder: Path | None, run: RunConfig, origin: str) -> None:
        """folder: the run's; origin: digest of the starting model's weights."""
        self.folder, self.keep = folder, run.save_batches
        self.constants = {"steps": run.steps, "epochs": run.epochs, "origin": origin}

    def after_step(self, before: State, generated: Sequence[Sequence[Rollout]], end: int, last: bool) -> None:
        """Saves the step after `before` and removes batches that are no longer to be kept. last: whether it ended the run."""
        if self.folder is None or not self.keep:
            return
        self.save(before, generated, end, last)
        for step, path in saved_steps(self.folder)[self.keep :]:
            if not (self.folder / "checkpoints" / name_of(step - 1)).exists():
                discard(path)

    def save(self, before: State, generated: Sequence[Sequence[Rollout]], end: int, last: bool = False) -> None:
        """Writes the step after `before`. generated: the groups it sampled; end: prompts drawn so far at its end."""
        if self.folder is None:
            return
        final = self.folder / "batches" / name_of(before.step + 1)
        temporary = final.with_suffix(".tmp")
        state = {"position": before.position, "version": before.version, "nonfinite": before.nonfinite}
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            (temporary / "step.json").write_text(
                json.dumps(self.constants | state | {"end": end, "last": last}), encoding="utf-8"
            )
            records.save(temporary / "carried.npz", before.surplus)
            records.save(temporary / "generated.npz", generated)
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            say(f"warning: the batch of step {before.step + 1} could not be saved for --replay: {error}; the run continues")

    def remove_after(self, step: int) -> None:
        """Removes the batches of later steps, which the resumed run will repeat."""
        for later, path in saved_steps(self.folder) if self.folder else []:
            if later > step:
                discard(path)


def saved_steps(run: Path) -> list[tuple[int, Path]]:
    """(step, folder) of the saved batches of a run, the newest first."""
    return steps_of(run / "batches")


@dataclass
class SavedStep:
    """A saved step. run: the run's folder; before: the state before the step; generated: the groups it sampled; end: prompts
    drawn so far at its end, aborted ones included; last: whether it ended the run; steps, epochs: run.steps and run.epochs at
    that time; origin: digest of the starting weights."""

    run: Path
    before: State
    generated: list[list[Rollout]]
    end: int
    last: bool
    steps: int
    epochs: float | None
    origin: str

    @property
    def number(self) -> int:
        """The step's number."""
        return self.before.step + 1

    def metrics(self) -> dict[str, float]:
        """The step's line of metrics.jsonl."""
        path = self.run / "metrics.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            row = json.loads(line)
            if row["step"] == self.number:
                return row
        raise ConfigError(f"{path} has no step {self.number} to compare with")


def read_step(config: Config) -> SavedStep:
    """The saved step that config.replay names. ConfigError when it is missing or damaged."""
    name = config.replay or ""
    run, digits = run_of(name), re.fullmatch(r"step(\d+)", Path(name).name)
    if digits is None:
        raise ConfigError(f"--replay takes a step of a run folder, such as runs/mine/step12, not {name!r}")
    number = int(digits[1])
    folder = run / "batches" / name_of(number)
    if not folder.is_dir():
        there = ", ".join(str(step) for step, _ in reversed(saved_steps(run))) or "none"
        raise ConfigError(
            f"{run} has not kept the batch of step {number}; it has {there}: run.save_batches says how many of the newest are "
            "kept, besides those right after a checkpoint"
        )
    try:
        state = json.loads((folder / "step.json").read_text(encoding="utf-8"))
        rest = {name: state.pop(name) for name in ("end", "last", "steps", "epochs", "origin")}
        before = State(number - 1, **state, surplus=records.load(folder / "carried.npz"))
        return SavedStep(run, before, records.load(folder / "generated.npz"), **rest)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"the batch in {folder} cannot be read: {error}") from None
