"""Opens a run folder: a new one, or that of a run to resume. Any other folder is refused and left untouched."""

import fcntl
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from minirl.config.command_line import load
from minirl.config.options import Config, RunConfig, as_tree, every_option
from minirl.run.manifest import MANIFEST
from minirl.utils.console import discard, is_main_process, replace_file, say
from minirl.utils.errors import ConfigError
from minirl.verify.types import VerifierError

# In these lists a name is an option, or with a dot at its end a whole section: see `listed`.
# Options that change no number of a run: where it is kept, how it is watched, when it gives up.
HARMLESS = (
    "run.dir", "run.resume", "run.save_every", "run.save_batches", "run.save_rollouts", "run.save_in_background", "run.keep",
    "run.on_save_error", "run.stop_after", "run.trackers", "plan.", "eval.before", "verifier.workers",
    "rollout.logprob_diff_warn", "rollout.logprob_diff_stop", "rollout.max_empty_steps", "optimizer.max_nonfinite",
)  # fmt: skip
BUDGET = ("run.steps", "run.epochs", "run.tokens", "run.seconds")
# Where model and data are found: what is found there is compared by content (checkpoint.fingerprint).
BY_CONTENT = (
    "model.path", "model.revision", "data.train", "data.train_split", "data.test", "data.test_split", "data.test_size",
)  # fmt: skip
# Options that may change when a run is resumed.
MAY_CHANGE = (*HARMLESS, *BUDGET, *BY_CONTENT, "eval.every")
# These too, but they change the order of summation and so the rounding.
ROUNDING = (
    "optimizer.micro_batch_tokens", "model.gradient_checkpointing", "model.attention", "rollout.max_sequences", "rollout.vllm.",
    "run.deterministic", "model.compile", "model.compile_layers",
)  # fmt: skip


def listed(key: str, names: Sequence[str]) -> bool:
    """Whether `names` has an option or a section that it is in: "plan." has plan.gpus, "run.keep" only run.keep."""
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in names)


def that_matter(config: Config, names: Sequence[str]) -> dict[str, Any]:
    """The values of the options that `names` has, but for the harmless ones."""
    return {key: value for key, value, _ in every_option(config) if listed(key, names) and not listed(key, HARMLESS)}


def folder_of(config: Config) -> Path | None:
    """The run folder that run.dir or run.resume names; None when neither does. ConfigError when they name different ones."""
    run = config.run
    named = Path(run.dir).expanduser() if run.dir else None
    if run.resume in ("auto", "never"):
        return named
    checkpoint = Path(run.resume).expanduser().resolve()
    if not (checkpoint / MANIFEST).is_file() or not re.fullmatch(r"step\d+", checkpoint.name):
        raise ConfigError(
            f"--resume {run.resume} is no checkpoint: it takes auto, never, or a folder RUN/checkpoints/stepNNNNNN"
        )
    folder = checkpoint.parents[1]
    if named and named.resolve() != folder:
        raise ConfigError(f"--resume {run.resume} is a checkpoint of {folder}, not of --run-dir {named}: leave one of them out")
    return named or folder


def finished(config: Config) -> str | None:
    """The message for a run that has done all its steps; None for one that has not, or if run.resume names a checkpoint.

    ConfigError when it is a run with another config.
    """
    folder = folder_of(config)
    if folder is None or config.run.resume != "auto":
        return None
    try:
        steps = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["steps"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        return None  # truncated or edited: the run writes it again
    except OSError as error:  # a name that is too long, a folder of somebody else's
        raise ConfigError(f"cannot use the run folder {folder}: {error.strerror}") from error
    old, _, _ = changes(folder, config)
    if steps < config.run.steps and budget(old.run) != budget(config.run):
        return None
    return f"the run in {folder} is finished after {steps} steps: raise run.steps to continue it, or choose another --run-dir"


def budget(run: RunConfig) -> tuple[float | None, ...]:
    """What ends a run: the values of BUDGET."""
    return run.steps, run.epochs, run.tokens, run.seconds


def changes(folder: Path, config: Config) -> tuple[Config, list[str], list[str]]:
    """(config of the run in `folder`, changes that affect rounding, other changes). ConfigError for a change not allowed."""
    old = load([str(folder / "config.yaml")])
    refused, rounding, free = differences(old, config)
    if refused:
        raise ConfigError(
            f"{folder} is a run with another config ({'; '.join(refused)}): give it its own config again, or "
            "choose another --run-dir; nothing was changed"
        )
    return old, rounding, free


def differences(old: Config, new: Config) -> tuple[list[str], list[str], list[str]]:
    """Differences as "key: old -> new": (those that a resumed run refuses, those that affect rounding, the others)."""
    refused, rounding, free = list[str](), list[str](), list[str]()
    for (key, before, _), (_, after, _) in zip(every_option(old), every_option(new), strict=True):
        if before != after:
            kind = free if listed(key, MAY_CHANGE) else rounding if listed(key, ROUNDING) else refused
            kind.append(f"{key}: {before} -> {after}")
    return refused, rounding, free


def check_checkpoints(folder: Path, run: RunConfig) -> None:
    """ConfigError when a run lost its checkpoints; run: its saved options. One that ended before its first checkpoint was due
    starts again."""
    metrics = folder / "metrics.jsonl"
    done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    # One that is written in the background may be published as late as with the next one.
    due = run.save_every * (2 if run.save_in_background else 1)
    if due and done > due and not any((folder / "checkpoints").glob(f"step*/{MANIFEST}")):
        raise ConfigError(
            f"{folder} has {done} steps and no checkpoint: remove the folder to repeat them, or start anew with another "
            "--run-dir; nothing was changed"
        )


@contextmanager
def run_folder(config: Config) -> Iterator[Path | None]:
    """The locked run folder, new or of the run to resume; None on ranks other than the first.

    ConfigError when it is another kind of folder or of a run with another config, is in use, or cannot be written. A new folder
    is removed again after an error in the input, so that the corrected command can use it.
    """
    if not is_main_process():
        yield None
        return
    estimator = re.sub(r"[^\w.+-]", "_", config.algorithm.estimator)[-100:]
    name = f"{estimator}-seed{config.run.seed}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    folder = folder_of(config) or Path("runs") / name
    try:
        # A process that was killed while it made the folder leaves at most the lock and a part of the config.
        unused = folder.is_dir() and all(p.name in (".lock", "config.yaml.tmp") for p in folder.iterdir())
        old = folder.exists() and not unused
    except OSError as error:
        raise ConfigError(f"cannot use the run folder {folder}: {error.strerror or error}") from None
    if old:
        if config.run.resume == "never" or not (folder / "config.yaml").is_file():
            raise ConfigError(
                f"the run folder {folder} exists and is not empty: choose another --run-dir or remove it; nothing was changed"
            )
        before = (folder / "config.yaml").read_text(encoding="utf-8")
        was, rounding, free = changes(folder, config)
        check_checkpoints(folder, was.run)
        for text in free:
            say(f"changed: {text}")
        if any(text.startswith("run.steps") for text in free) and config.optimizer.schedule != "constant":
            say(
                f"note: from here on the learning rate is that of a {config.optimizer.schedule} schedule over the new run.steps"
            )
        for text in rounding:
            say(f"changed: {text}; numbers differ from here on by rounding")
    tree = as_tree(config)
    tree["run"] |= {"dir": str(folder), "resume": "auto"}  # so that `train.py FOLDER/config.yaml` resumes
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        replace_file(folder / "config.yaml", yaml.safe_dump(tree, sort_keys=False))
        (folder / "rollouts").mkdir(exist_ok=True)
    except BlockingIOError:
        raise ConfigError(f"another process is running in {folder}: wait for it or end it") from None
    except OSError as error:
        raise ConfigError(f"cannot write the run folder {folder}: {error.strerror or error}") from None
    with lock:
        try:
            yield folder
        except (ConfigError, VerifierError):
            metrics = folder / "metrics.jsonl"
            if old:
                replace_file(folder / "config.yaml", before)
            elif not (metrics.exists() and metrics.stat().st_size):
                for made in folder.iterdir():
                    discard(made)
                with suppress(OSError):  # of a link: it and the empty folder stay
                    folder.rmdir()
            raise
