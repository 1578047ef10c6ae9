"""Runs the cells of a comparison, several at once, each a process of train.py; what is finished is not run again."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml
from tqdm import tqdm

import minirl
from minirl.ablate.cells import Cell, write_config
from minirl.config.command_line import load
from minirl.config.options import Config, every_option
from minirl.data.problems import load_problems
from minirl.policy.model import model_config
from minirl.run.checkpoint import fingerprint
from minirl.run.folder import HARMLESS, listed
from minirl.run.inputs import Inputs
from minirl.run.lifecycle import Encoded, encode
from minirl.run.manifest import steps_of
from minirl.utils.console import say
from minirl.utils.errors import ConfigError, require

POLL = 1.0  # seconds between two looks at the runs


@dataclass
class Machine:
    """Where runs go. launcher: command before train.py and its arguments; jobs: runs at a time; gpus: those that they share, in
    equal parts."""

    launcher: Sequence[str]
    jobs: int
    gpus: Sequence[str] = ()

    def environment(self, slot: int) -> dict[str, str]:
        """The environment of the run in a slot: its part of the GPUs; on CPUs one thread, if several runs share them."""
        extra = {"PYTHONUNBUFFERED": "1"}
        if self.gpus:
            share = len(self.gpus) // self.jobs
            extra["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[slot * share : (slot + 1) * share])
        elif self.jobs > 1 or "OMP_NUM_THREADS" not in os.environ:
            extra["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // self.jobs))
        return dict(os.environ) | extra


def machine_of(launcher: str, jobs: int | None, gpus_per_run: int) -> Machine:
    """The machine: `jobs` runs at a time, or as many as there are GPUs for, or CPU cores. ConfigError when that cannot be."""
    require(gpus_per_run >= 1, f"--gpus-per-run must be at least 1, not {gpus_per_run}")
    gpus = visible_gpus()
    possible = len(gpus) // gpus_per_run if gpus else os.cpu_count() or 1
    require(possible >= 1, f"--gpus-per-run {gpus_per_run}: there are {len(gpus)} GPUs")
    jobs = possible if jobs is None else jobs
    require(jobs >= 1, f"--jobs must be at least 1, not {jobs}")
    require(
        not gpus or jobs * gpus_per_run <= len(gpus), f"--jobs {jobs} needs {jobs * gpus_per_run} GPUs, there are {len(gpus)}"
    )
    return Machine(shlex.split(launcher) or [sys.executable], jobs, gpus)


def visible_gpus() -> list[str]:
    """The GPUs of this process, without loading torch: CUDA_VISIBLE_DEVICES, else those that nvidia-smi lists."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [part for part in chosen.split(",") if part]
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True)
    except FileNotFoundError:
        return []
    return listed.stdout.split() if listed.returncode == 0 else []


def train_script() -> list[str]:
    """train.py as arguments of python or of a launcher: beside the package in a checkout, a module of it in a wheel."""
    path = Path(minirl.__file__).resolve().parents[1] / "train.py"
    return [str(path)] if path.is_file() else ["-m", "minirl.train"]


def finished(cell: Cell) -> bool:
    """Whether a cell's run is complete, by its options. ConfigError when its folder holds a run with another config."""
    if not (cell.folder / "config.yaml").is_file():
        return False
    try:
        old = load([str(cell.folder / "config.yaml")])
    except ConfigError as error:
        raise ConfigError(f"{error}; remove the run folder {cell.folder} to run {cell.name} again") from None
    if different := changed(old, cell.config):
        raise ConfigError(
            f"{cell.folder} holds a run with another config ({'; '.join(different[:5])}): choose another --out, or give the "
            "comparison its own options again; nothing was changed"
        )
    return (cell.folder / "summary.json").is_file()


def finished_cells(cells: Sequence[Cell]) -> list[Cell]:
    """The cells whose runs are complete. ConfigError when a folder holds a run with another config, or one that was made with
    other data, or other code of the user's own, than there is now: its numbers would not belong to the others'.

    The weights that model.path names are not read for this. Runs that do not hold their fingerprint are accepted with a note.
    """
    done = [cell for cell in cells if finished(cell)]
    known: dict[str, Encoded] = {}
    unknown = []
    for cell in done:
        if (made := stored_fingerprint(cell.folder)) is None:
            unknown.append(cell.name)
            continue
        now = fingerprint_of(cell, known)
        if different := [name for name, digest in now.items() if made.get(name, digest) != digest]:
            raise ConfigError(
                f"{' and '.join(different)} changed since the run in {cell.folder} was made: put back what it was made with, "
                "or choose another --out; nothing was changed"
            )
    if unknown:
        say(
            f"note: {len(unknown)} finished runs ({unknown[0]}{' ...' * (len(unknown) > 1)}) do not say with what data and "
            "code they were made, so only their options were compared"
        )
    return done


def stored_fingerprint(folder: Path) -> dict[str, str] | None:
    """What a finished run was made with, by content, from its summary or, if an earlier version wrote that, from its newest
    checkpoint; None where neither has it."""
    for path in (folder / "summary.json", *(state / "state.json" for _, state in steps_of(folder / "checkpoints")[:1])):
        try:
            if found := json.loads(path.read_text(encoding="utf-8")).get("fingerprint"):
                return found
        except (OSError, ValueError, AttributeError):  # as good as not there; a damaged summary is named when it is read
            continue
    return None


def fingerprint_of(cell: Cell, known: dict[str, Encoded]) -> dict[str, str]:
    """The fingerprint that a finished cell's run would have now, without the weights. known: what was read for other cells."""
    config = cell.config
    if config.data.template_date is None:  # then the chat template's date is that of the run
        date = load([str(cell.folder / "config.yaml")]).data.template_date
        config = replace(config, data=replace(config.data, template_date=date))
    same = repr((config.model, config.data))
    if same not in known:
        train, test, _ = load_problems(config.data)
        known[same] = encode(Inputs(config, train, test, [], None))
    read = known[same]
    return fingerprint(read.prompts, read.test, read.tokenizer, model_config(config.model), config.verifier, config.own_code)


def changed(old: Config, new: Config) -> list[str]:
    """The options that change a run's numbers and differ, as "key: old -> new"; the chat template's date is that of the run."""
    pairs = zip(every_option(old), every_option(new), strict=True)
    return [
        f"{key}: {before!r} -> {after!r}"
        for (key, before, _), (_, after, _) in pairs
        if before != after and not listed(key, HARMLESS) and (key != "data.template_date" or after is not None)
    ]


@dataclass
class Running:
    """A process of train.py and the slot that it has."""

    cell: Cell
    slot: int
    process: subprocess.Popen[bytes]


@dataclass
class Progress:
    """What is known of the runs so far. done: the finished ones; failed: {cell: last words}."""

    done: list[Cell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)


def run_cells(cells: Sequence[Cell], machine: Machine, enough: Callable[[Sequence[Cell]], bool], progress: Progress) -> None:
    """Runs all cells, or until `enough(done)` says after a whole seed that no more are needed.

    A cell that fails is named, and the others go on. Cells that agree in what comes before the first step share that
    evaluation: the first of them makes it. KeyboardInterrupt after Ctrl-C, when all runs have stopped with a checkpoint.
    progress: filled as runs end; what is done in it is not run.
    """
    waiting = [cell for cell in cells if cell not in progress.done]
    work = len(waiting)
    if progress.done:
        say(f"{len(progress.done)} of {len(cells)} runs are finished already")
    running: list[Running] = []
    before = sum(share_of(cell) for cell in waiting)
    layout = "{percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
    bar = tqdm(total=work, initial=before, disable=not sys.stderr.isatty(), smoothing=0.05, bar_format=layout)
    said = time.perf_counter()
    seeds = sorted({cell.seed for cell in cells})
    arms, looked = len({cell.arm.name for cell in cells}), 0
    try:
        while waiting or running:
            whole = [s for s in seeds if sum(c.seed == s for c in progress.done) == arms]
            fresh, looked = len(whole) > looked, max(looked, len(whole))
            if fresh and enough([c for c in progress.done if c.seed in whole]):
                waiting.clear()
                if not running:
                    break
            free = set(range(machine.jobs)) - {r.slot for r in running}
            while free and (following := ready(waiting, running, progress.done)):
                waiting.remove(following)
                running.append(start(following, free.pop(), machine, cells))
            time.sleep(POLL)
            for r in [r for r in running if r.process.poll() is not None]:
                running.remove(r)
                settle(r, progress, len(cells))
            left = sum(1 - share_of(cell) for cell in (*waiting, *(r.cell for r in running)))
            bar.n = work - left
            bar.set_postfix_str(f"{len(progress.done)} of {len(cells)} runs")
            if bar.disable and time.perf_counter() - said > 60:
                said = time.perf_counter()
                say(eta(progress.started, before, work - left, work, len(progress.done), len(cells)))
    except BaseException:
        stop(running)
        raise
    finally:
        bar.close()


def ready(waiting: Sequence[Cell], running: Sequence[Running], done: Sequence[Cell]) -> Cell | None:
    """The first waiting cell that need not wait for another one's evaluation before the first step."""
    making = {r.cell.shared for r in running if not r.cell.evaluation.is_file()}
    return next((cell for cell in waiting if cell.shared not in making or evaluation_for(cell, (*done, *waiting))), None)


def evaluation_for(cell: Cell, cells: Sequence[Cell]) -> Path | None:
    """An evaluation before the first step that `cell` may use: another cell's of the same kind, if it is there."""
    return next((c.evaluation for c in cells if c.shared == cell.shared and c is not cell and c.evaluation.is_file()), None)


def start(cell: Cell, slot: int, machine: Machine, cells: Sequence[Cell]) -> Running:
    """Starts a cell's run; its console goes to `log_of` it, beside its folder."""
    config = cell.folder.with_suffix(".yaml")
    write_config(cell, config)
    command = [*machine.launcher, *train_script(), str(config), f"--run.dir={cell.folder}"]
    if shared := evaluation_for(cell, cells):
        command.append(f"--eval.before={shared}")
    with log_of(cell).open("ab") as log:
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        # A session of its own: Ctrl-C reaches the runs through `stop` alone, once.
        try:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=machine.environment(slot),
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(f"cannot start {command[0]!r}: {error.strerror or error}; see --launcher") from None
    say(f"started {cell.name}: {cell.folder}")
    return Running(cell, slot, process)


def log_of(cell: Cell) -> Path:
    """The file of a cell's console output."""
    return cell.folder.with_suffix(".log")


def settle(r: Running, progress: Progress, of: int) -> None:
    """Notes how a run ended."""
    if r.process.returncode == 0 and (r.cell.folder / "summary.json").is_file():
        progress.done.append(r.cell)
        summary = json.loads((r.cell.folder / "summary.json").read_text(encoding="utf-8"))
        say(
            f"finished {r.cell.name} in {summary['seconds']:.0f} s: pass@1 {summary['before']['pass@1']:.3f} -> "
            f"{summary['after']['pass@1']:.3f} ({len(progress.done)} of {of})"
        )
        return
    lines = log_of(r.cell).read_text(encoding="utf-8", errors="replace").split("\n$ ")[-1].strip().splitlines()[1:]
    last = lines[-1] if lines else f"it ended with exit code {r.process.returncode} and no output"
    progress.failed[r.cell.name] = last
    say(f"failed {r.cell.name} (exit code {r.process.returncode}, see {log_of(r.cell)}): {last}")


def share_of(cell: Cell) -> float:
    """The share of its budget, in steps, tokens or seconds, that a run has spent so far, 0 to 1."""
    path, limits = cell.folder / "metrics.jsonl", cell.config.run
    # The last line may be half written.
    whole = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.is_file() else []
    spent = [len(whole) / limits.steps]
    for key, limit in {"sampling/tokens": limits.tokens, "time/step": limits.seconds}.items():
        if limit is not None:
            spent.append(sum(json.loads(line)[key] for line in whole) / limit)
    return min(1.0, max(spent))


def eta(started: float, before: float, now: float, work: float, done: int, of: int) -> str:
    """The line of progress where there is no terminal. before, now, work: runs' worth of work at the start, now, at the end."""
    spent = time.perf_counter() - started
    left = (work - now) * spent / (now - before) if now > before else float("nan")
    return f"{done} of {of} runs, {now / work:.0%} of the work, {spent / 60:.0f} min, " + (
        f"about {left / 60:.0f} min left" if left == left else "no step finished yet"
    )


def stop(running: Sequence[Running]) -> None:
    """Asks all runs to stop after their step, which saves a checkpoint, and waits for them."""
    if not running:
        return
    say(f"stopping {len(running)} runs after their step; the same command continues them")
    for r in running:
        os.killpg(r.process.pid, signal.SIGINT)  # as Ctrl-C in a terminal would, to a launcher and all its ranks
    for r in running:
        r.process.wait()


def remember(out: Path, definition: dict[str, object]) -> None:
    """Writes what was asked for to OUT/ablate.yaml, for the reader."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "ablate.yaml").write_text(yaml.safe_dump(definition, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to --out {out}: {error.strerror or error}") from None
