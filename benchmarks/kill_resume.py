"""Kills a small run with SIGKILL at random moments, resumes it, and compares it with one that was never interrupted.

    python benchmarks/kill_resume.py --kills 24                                       # one process
    python benchmarks/kill_resume.py --kills 10 --ranks 2
    python benchmarks/kill_resume.py --kills 5 --ranks 2 --engine vllm --zero 3       # needs vLLM and DeepSpeed
    python benchmarks/kill_resume.py --kills 10 -- --run.save_in_background=true      # further options of the run

Phases take turns; which time a phase is met and how far into it the kill comes is random. A run is killed up to --chain times
before it may finish. Then metrics.jsonl (line by line, but for times, speeds and the cost of checkpoints), saved rollouts, the
evaluations and the final weights (byte by byte) must be those of the uninterrupted run, and no process may be left.
"""

import argparse
import collections
import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import ROOT, environment

PHASES = ("loading", "sampling", "grading", "update", "sync", "evaluation", "saving", "finish")
RUN = [
    "--data.task=arithmetic",  # more of its groups have a signal, so that some are left over and carried
    "--run.steps=8", "--run.save_every=2", "--rollout.prompts=4", "--rollout.group_size=4", "--rollout.oversample=2",
    "--rollout.carry_over=true", "--algorithm.mini_batch_prompts=2", "--algorithm.rollout_is=truncate", "--eval.every=3",
    "--eval.problems=8", "--eval.during_problems=8", "--eval.samples=4", "--eval.k=2", "--optimizer.lr=1e-3",
]  # fmt: skip
UNEQUAL = ("time/", "speed/", "checkpoint/")  # metrics that no two runs share
MARK = "MINIRL_KILL_RESUME"  # every process of a run carries this in its environment


# ---- inside the run --------------------------------------------------------------------------------------------------------


class Watch:
    """Knows the phase that rank 0 is in and kills the whole run when the wanted moment comes."""

    def __init__(self, folder: Path, phase: str, occurrence: int, share: float) -> None:
        """share: where in the phase, in lengths of its last occurrence."""
        self.folder, self.wanted, self.left, self.share = folder, phase, occurrence, share
        self.phase, self.began, self.lengths = "", time.perf_counter(), dict.fromkeys(PHASES, 0.02)
        self.rank = int(os.environ.get("RANK", "0"))
        (folder / f"pid{self.rank}").write_text(str(os.getpid()))

    def enter(self, phase: str) -> str:
        """Says that `phase` begins; gives the one before."""
        now, before = time.perf_counter(), self.phase
        if before:
            self.lengths[before] = now - self.began
        self.phase, self.began = phase, now
        if phase == self.wanted and self.rank == 0:
            self.left -= 1
            if self.left == 0:
                delay = self.share * self.lengths[phase]
                if delay < 1e-3:  # a thread is not that fast
                    self.kill()
                threading.Timer(delay, self.kill).start()
        return before

    def kill(self) -> None:
        """SIGKILL to the launcher, if any, the other ranks and this one."""
        (self.folder / "killed").write_text(self.phase or "between phases")
        others = [int(path.read_text()) for path in self.folder.glob("pid*")]
        launcher = [os.getppid()] if "LOCAL_RANK" in os.environ else []
        for pid in (*launcher, *(p for p in others if p != os.getpid()), os.getpid()):
            os.kill(pid, signal.SIGKILL)

    def around(self, owner: Any, name: str, phase: str) -> None:
        """Makes `owner.name` a phase; afterwards comes the one before it."""
        inner = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            before = self.enter(phase)
            try:
                return inner(*args, **kwargs)
            finally:
                self.enter(before)

        setattr(owner, name, wrapped)


def run_watched(folder: str, phase: str, occurrence: str, share: str, *argv: str) -> int:
    """train.py with its phases watched."""
    sys.argv = ["train.py", *argv]
    from minirl.config.command_line import command_line

    config = command_line("train.py", list(argv))
    import train
    from minirl.rollout.hf import TransformersEngine
    from minirl.run import lifecycle, training
    from minirl.run.checkpoint import Checkpoints

    engine: Any = TransformersEngine
    if config.rollout.engine == "vllm":
        from minirl.rollout.vllm import VllmEngine

        engine = VllmEngine
    watch = Watch(Path(folder), phase, int(occurrence), float(share))
    watch.around(Checkpoints, "load", "loading")
    watch.around(lifecycle, "build_engine", "loading")
    watch.around(train, "collect_batch", "sampling")
    watch.around(train, "compute_logprobs", "update")
    watch.around(train, "update", "update")
    watch.around(engine, "sync", "sync")
    watch.around(training, "evaluate", "evaluation")
    watch.around(Checkpoints, "save", "saving")
    watch.around(lifecycle.Policy, "export", "finish")
    watch.around(training, "write_report", "finish")
    generate = engine.generate

    def graded(self: Any, *args: Any) -> Any:
        yield from generate(self, *args)
        if watch.phase == "sampling":
            watch.enter("grading")

    engine.generate = graded
    return train.main(config)


# ---- outside ---------------------------------------------------------------------------------------------------------------


def free_port() -> str:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def launcher(ranks: int, zero: int | None) -> list[str]:
    """The command in front of the script."""
    if zero is not None:
        config = ROOT / "configs" / "accelerate" / "zero3.yaml"
        accelerate = [str(Path(sys.executable).parent / "accelerate"), "launch", "--config_file", str(config)]
        return [*accelerate, "--zero_stage", str(zero), "--zero3_init_flag", str(zero == 3).lower(), "--num_processes",
                str(ranks), "--main_process_port", free_port()]  # fmt: skip
    if ranks > 1:
        return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--master_port", free_port()]
    return [sys.executable]


def start(front: list[str], arguments: list[str], moment: tuple[str, int, float] = ("", 0, 0.0)) -> tuple[str, str, int]:
    """Runs to the end or to the kill; (phase of the kill or "", output, processes that are left)."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        command = [*front, str(Path(__file__).resolve()), "watched", folder, *map(str, moment), *arguments]
        variables = environment(**{MARK: mark})
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables, timeout=900, check=False)
        killed = Path(folder) / "killed"
        phase = killed.read_text() if killed.exists() else ""
    output = done.stdout + done.stderr
    if not phase and done.returncode:
        raise RuntimeError(f"the run failed with exit code {done.returncode}:\n{output[-4000:]}")
    end = time.monotonic() + 10  # the kernel ends workers one after the other
    while (left := living(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return phase, output, len(left)


def living(mark: str) -> list[int]:
    """Processes that carry `mark` in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue  # it ended, or is not ours
    return found


def fingerprint(folder: Path) -> dict[str, Any]:
    """What must not depend on interruptions."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    newest = max((folder / "checkpoints").glob("step*"))
    return {
        "metrics": [{k: v for k, v in row.items() if not k.startswith(UNEQUAL)} for row in rows],
        "evaluations": [summary["before"], json.loads((newest / "state.json").read_text())["evaluations"], summary["after"]],
        "rollouts": {path.name: path.read_text() for path in sorted((folder / "rollouts").iterdir())},
        "weights": hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest(),
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What differs between two runs, by name; the first step where it is the metrics."""
    found = [key for key in one if key != "metrics" and one[key] != other[key]]
    if [row["step"] for row in one["metrics"]] != [row["step"] for row in other["metrics"]]:
        return [*found, f"steps {[row['step'] for row in other['metrics']]}"]
    for a, b in zip(one["metrics"], other["metrics"], strict=True):
        if a != b:
            return [*found, f"metrics of step {a['step']}: {[k for k in a if a[k] != b.get(k)]}"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--chain", type=int, default=4, help="kills of one run, at most")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--engine", default="transformers", choices=("transformers", "vllm"))
    parser.add_argument("--zero", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phases", nargs="+", default=PHASES, choices=PHASES)
    parser.add_argument("more", nargs="*", help="further options of the run, after --")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    front, made, survived = launcher(options.ranks, options.zero), collections.Counter[str](), collections.Counter[str]()
    common = [*RUN, f"--rollout.engine={options.engine}", *options.more]
    orphans = kills = 0
    with tempfile.TemporaryDirectory() as scratch:
        start(front, [*common, "--run-dir", f"{scratch}/whole"])
        whole = fingerprint(Path(scratch) / "whole")
        turn = 0
        for number in range(1, 10 * options.kills):
            if kills >= options.kills:
                break
            folder, phases, resumed, ended = Path(scratch) / f"run{number}", [], [], False
            while not ended:
                moment = ("", 0, 0.0)
                if len(phases) < min(options.chain, options.kills - kills):
                    moment = (options.phases[turn % len(options.phases)], rng.randint(1, 5), rng.random())
                    turn += 1
                phase, output, left = start(front, [*common, "--run-dir", str(folder)], moment)
                orphans += left
                phases += [phase] if phase else []
                resumed += re.findall(r"going on after (step \d+)", output)
                ended = not phase
            kills += len(phases)
            made.update(phases)
            found = differences(whole, fingerprint(folder))
            if not found:
                survived.update(phases)
            print(
                f"run {number}: killed while {', '.join(phases) or 'never'}, resumed from {', '.join(resumed) or 'nothing'}: "
                f"{'; '.join(found) or 'identical'}",
                flush=True,
            )
    print("\n| killed while | kills | identical afterwards |\n|---|---|---|")
    for phase in sorted(made, key=lambda p: PHASES.index(p) if p in PHASES else 99):
        print(f"| {phase} | {made[phase]} | {survived[phase]} |")
    print(f"| all | {kills} | {survived.total()} |\n\nprocesses left behind: {orphans}")
    return int(survived.total() < kills or orphans > 0)


if __name__ == "__main__":
    sys.exit(run_watched(*sys.argv[2:]) if sys.argv[1:2] == ["watched"] else main())
