"""Compares estimators, or anything else that options of train.py set, by paired runs with intervals over seeds and problems.

    python -m minirl.ablate --estimators dapo,dapo+edas,grpo --seeds 5 --out runs/first         on the embedded model
    python -m minirl.ablate configs/study/rules.yaml --out runs/study                           arms named in a config file
    python -m minirl.ablate CONFIG.yaml --estimators dapo --grid optimizer.lr=1e-4,3e-4         a grid
    python -m minirl.ablate --quick                                                             two minutes, to see it work
    python -m minirl.ablate --report runs/study                                                 the report again, without runs

Every cell (an arm with a seed) has the starting weights, the order of prompts and the sampling seeds of the other arms of that
seed. The same command continues after an interruption. --section.key=value goes to every run. Exit code 0: all runs finished;
1: some failed; 2: bad input; 130: interrupted. See docs/comparisons.md.
"""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minirl.ablate import cells as design
from minirl.ablate import outcomes, report, runner
from minirl.ablate.analysis import narrow
from minirl.ablate.statistics import FIRST_LOOK, LAST_LOOK
from minirl.config.command_line import pairs
from minirl.utils.console import finish_stdout, must_write, replace_file, say
from minirl.utils.errors import ConfigError, RunError, require

QUICK = {
    "run.steps": "10", "rollout.prompts": "16", "algorithm.mini_batch_prompts": "8", "eval.problems": "96", "eval.samples": "8",
    "eval.k": "8", "eval.every": "0", "run.save_every": "0",
}  # fmt: skip


def command_line(argv: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, str]]:
    """(the command's own options, options for every run)."""
    parser = argparse.ArgumentParser(
        "python -m minirl.ablate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("config", nargs="?", type=Path, help="config file of train.py, which may have a section `ablate` with arms")
    add("--estimators", default="", metavar="A,B", help="estimators to compare, such as dapo,dapo+edas")
    add("--grid", nargs="+", action="extend", default=[], metavar="KEY=V1,V2", help="further options, every combination")
    add("--arms", default="", metavar="A,B", help="only these arms of the config file")
    add(
        "--seeds",
        type=int,
        help="seeds of every arm, with --until the most; 3, or what the config file says. "
        "Raising it after a look at the result makes the intervals too narrow: --until is for that",
    )
    add("--baseline", metavar="ARM", help="the arm that the others are compared with; the first one otherwise")
    add("--budget", metavar="KIND=N", help="what every run may spend: steps=N, tokens=N (generated) or time=30m (training)")
    add("--until", type=float, metavar="POINTS", help="add seeds until the half-width of every interval is so many points")
    add("--quick", action="store_true", help="two arms, two seeds, ten steps: minutes on a CPU, too little to conclude from")
    add("--out", type=Path, default=Path("runs/ablation"), metavar="DIR", help="folder of the runs and the report")
    add("--jobs", type=int, help="runs at a time; as many as there are GPUs for, or CPU cores, otherwise")
    add("--gpus-per-run", type=int, default=1, metavar="N", help="GPUs of one run")
    add("--launcher", default="", metavar="COMMAND", help='in place of python, such as "accelerate launch --num_processes 2"')
    add("--report", type=Path, metavar="DIR", help="make the report of that comparison again from its results.json, and end")
    o, rest = parser.parse_known_args(argv)
    return o, pairs(rest)


def definition(o: argparse.Namespace, options: dict[str, str]) -> design.Design:
    """The design that the command line gives."""
    estimators = [name.strip() for name in o.estimators.split(",") if name.strip()]
    if o.quick:
        estimators = estimators or ["dapo", "dapo+edas"]
        o.seeds, options = o.seeds or 2, QUICK | options
    if o.until is not None and o.seeds is None:
        o.seeds = LAST_LOOK
    options = options | design.budget_options(o.budget)
    only = [name.strip() for name in o.arms.split(",") if name.strip()]
    return design.design_of(o.config, estimators, o.grid, options, o.seeds, o.baseline, only)


def collect(plan: design.Design, done: Sequence[design.Cell], failed: dict[str, str], o: argparse.Namespace) -> dict[str, Any]:
    """The tree of results.json: the comparison's definition and what every finished cell gave."""
    done = sorted(done, key=lambda cell: (cell.seed, [arm.name for arm in plan.arms].index(cell.arm.name)))
    return {
        "baseline": plan.baseline,
        "arms": {arm.name: dict(arm.options) for arm in plan.arms},
        "budget": o.budget or budget_of(done),
        "task": done[0].config.data.task,
        "model": done[0].config.model.path,
        "differing": design.differing(design.cells_of(plan, o.out)),  # also of arms without a finished run
        "failed": failed,
        "until": o.until,
        "last_look": plan.seeds if o.until is not None else None,
        "problems": outcomes.problem_ids(done),
        "runs": [outcomes.outcome(cell) for cell in done],
    }


def budget_of(cells: Sequence[design.Cell]) -> str:
    """The budget that the configs give, where the command line gives none."""
    limits = {(run.steps, run.epochs, run.tokens, run.seconds) for run in (cell.config.run for cell in cells)}
    if len(limits) > 1:
        return "not the same for all arms, see what differs"
    ((steps, epochs, tokens, seconds),) = limits
    more = {"epochs": epochs, "tokens": tokens, "seconds": seconds}
    return ", ".join([f"steps={steps}", *(f"{name}={value:g}" for name, value in more.items() if value is not None)])


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, see above."""
    o, options = command_line(argv)
    try:
        if o.report:
            results = outcomes.load(o.report / "results.json")
            for line in report.write_report(o.report, results):
                say(line)
            return 0
        return compare(o, options)
    except (ConfigError, RunError) as error:
        print(f"minirl.ablate: {error}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the line is enough, whatever comes now
        print("minirl.ablate: interrupted; the same command continues", file=sys.stderr)
        return 130
    finally:
        finish_stdout()


def compare(o: argparse.Namespace, options: dict[str, str]) -> int:
    """Runs the cells and writes the report; the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell ignores the first one for commands in the background
        signal.signal(number, signal.default_int_handler)
    plan = definition(o, options)
    cells = design.cells_of(plan, o.out)
    machine = runner.machine_of(o.launcher, o.jobs, o.gpus_per_run)
    require(o.until is None or o.until > 0, f"--until takes points of accuracy above 0, not {o.until}")
    require(
        o.until is None or plan.seeds >= FIRST_LOOK,
        f"--until looks after {FIRST_LOOK} seeds or more: --seeds {plan.seeds} is the most",
    )
    command = shlex.join(["python", "-m", "minirl.ablate", *sys.argv[1:]])
    # Refuses a folder with other runs before anything is written.
    progress = runner.Progress(runner.finished_cells(cells))
    runner.remember(o.out, {"command": command, "arms": {arm.name: dict(arm.options) for arm in plan.arms}})
    say(
        f"{len(plan.arms)} arms x {plan.seeds} seeds = {len(cells)} runs, {machine.jobs} at a time, each with a budget of "
        f"{o.budget or budget_of(cells)}; {o.out}"
    )

    def enough(done: Sequence[design.Cell]) -> bool:
        return o.until is not None and narrow(collect(plan, done, {}, o), o.until)

    try:
        runner.run_cells(cells, machine, enough, progress)
    except KeyboardInterrupt:
        if progress.done:
            finish(plan, progress, o, command)
        raise
    require(bool(progress.done), f"no run finished: {'; '.join(f'{name}: {why}' for name, why in progress.failed.items())}")
    finish(plan, progress, o, command)
    return 1 if progress.failed else 0


def finish(plan: design.Design, progress: runner.Progress, o: argparse.Namespace, command: str) -> None:
    """Writes results.json and the report of what is done."""
    results = collect(plan, progress.done, progress.failed, o) | {"command": command}
    with must_write(o.out):
        replace_file(o.out / "results.json", json.dumps(results, ensure_ascii=False, separators=(",", ":")) + "\n")
    for line in report.write_report(o.out, results):
        say(line)


if __name__ == "__main__":
    sys.exit(main())
