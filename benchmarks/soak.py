"""Runs the task arithmetic for a given time while things go wrong around it, and reports what grows.

    python benchmarks/soak.py --minutes 30

At random: verifier workers are killed with SIGKILL; optimizer steps get a NaN loss; responses are replaced by hostile ones;
files beyond a size cannot be written, as on a disk that is nearly full (checkpoints fail) or full (the run ends); the run
itself gets SIGKILL or SIGTERM. A run that ended goes on from its last checkpoint.

Memory (PSS), descriptors and processes of the whole process tree and the seconds of each step are sampled. Slopes are fitted
with one intercept for each life of the process, without its first --warm-up seconds; their standard errors allow for correlated
neighbours. A slope is reported, not judged: the machine may be busy. Exit code 1 when a run ended in a way that it should not,
when steps are missing, or when processes or unfinished files are left behind.
"""

import argparse
import collections
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import ROOT, environment

RUN = [
    "--data.task=arithmetic", "--rollout.max_response_tokens=12",  # short responses: more steps, and more faults, an hour
    "--run.steps=1000000", "--run.save_every=20", "--run.save_in_background=true", "--rollout.prompts=16",
    "--rollout.group_size=8", "--rollout.carry_over=true", "--rollout.oversample=1.5", "--algorithm.rollout_is=truncate",
    "--algorithm.mini_batch_prompts=8", "--eval.every=100", "--eval.problems=32", "--eval.during_problems=32",
    "--eval.samples=4", "--eval.k=2", "--verifier.workers=2",
    "--optimizer.lr=1e-6",  # so that the policy, and with it the work of a step, stays the same
]  # fmt: skip
NAN, HOSTILE = 0.01, 0.002  # shares of micro-batches and of responses
TEXTS = (
    "\\boxed{" * 3000, "\\boxed{9^{9^{9^{9}}}}", "\\boxed{" + "1" * 200_000 + "}", "\\boxed{10000000!}", "}" * 5000, "",
    "\\boxed{" + "(" * 500 + "x" + ")" * 500 + "}", "\\boxed{\x00\u202e}", "\\boxed{(x+1)^{5000}}", "\\boxed{\\frac{1}{0}}",
)  # fmt: skip
# Seconds between two faults of a kind, on average. Those of the second group end the process, so they share one clock.
HARMLESS = {"worker killed": 15.0, "disk nearly full": 60.0}
ENDING = ("SIGKILL", "SIGTERM", "disk full")


def child(seed: str, *argv: str) -> int:
    """train.py with NaN losses and hostile responses at random; how many is in the file `injected`."""
    sys.argv = ["train.py", *argv]
    from minirl.config.command_line import command_line

    config = command_line("train.py", list(argv))
    import train
    from minirl.policy.policy import Policy
    from minirl.rollout.sampler import Sampler

    rng = random.Random(f"{seed} {os.getpid()}")
    accumulate, text = Policy.accumulate, Sampler.text

    def sometimes_nan(self: Any, loss: Any) -> None:
        accumulate(self, loss * float("nan") if rng.random() < NAN else loss)

    def sometimes_hostile(self: Any, sample: Any) -> str:
        return rng.choice(TEXTS) if rng.random() < HOSTILE else text(self, sample)

    Policy.accumulate, Sampler.text = sometimes_nan, sometimes_hostile  # type: ignore[method-assign]
    return train.main(config)


class Life:
    """One process of the run, from its start to its end, and what was measured of it."""

    def __init__(self, folder: Path, scratch: Path, seed: int) -> None:
        arguments = [*RUN, "--run-dir", str(folder)]
        self.log = (scratch / "log").open("w+")
        # Through another process, whose files are not limited.
        self.console = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=self.log)
        self.process = psutil.Popen(
            [sys.executable, __file__, "child", str(seed), *arguments],
            env=environment(TMPDIR=str(scratch / "tmp"), OMP_NUM_THREADS="1"),
            stdout=self.console.stdin,
            stderr=self.console.stdin,
            cwd=ROOT,
        )
        self.began, self.samples, self.wanted_end = time.monotonic(), [], ""  # type: ignore[var-annotated]
        self.free_again = 0.0

    @property
    def workers(self) -> list[psutil.Process]:
        """Its verifier workers."""
        return [p for p in self.process.children() if "minirl.verify.pool.worker" in p.cmdline()]

    def sample(self) -> None:
        """Measures the process tree: (seconds of life, MB, descriptors, processes)."""
        memory, descriptors, processes = 0.0, 0, 0
        for p in (self.process, *self.process.children(recursive=True)):
            try:
                memory += p.memory_full_info().pss / 2**20
                descriptors += p.num_fds()
                processes += 1
            except psutil.Error:
                continue  # it ended meanwhile
        self.samples.append((time.monotonic() - self.began, memory, descriptors, processes))

    def limit_files(self, size: int, seconds: float) -> None:
        """For some seconds, writing beyond `size` bytes of a file fails."""
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))
        self.free_again = time.monotonic() + seconds

    def free_files(self) -> None:
        """Ends that."""
        if self.free_again and time.monotonic() > self.free_again:
            _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
            self.free_again = 0.0

    def output(self) -> str:
        """What it said."""
        self.console.communicate()  # until the run has closed its end
        self.log.seek(0)
        return self.log.read()


def strike(life: Life, fault: str, metrics: Path, rng: random.Random) -> bool:
    """Makes `fault` happen; whether it could."""
    if fault == "worker killed":
        workers = life.workers
        if workers:
            rng.choice(workers).kill()
        return bool(workers)
    size = metrics.stat().st_size if metrics.exists() else 0
    if not size:
        return False  # it is still loading
    if fault == "disk nearly full":
        life.limit_files(size + 200_000, 10.0)  # enough for the metrics and responses of some steps, not for a checkpoint
    elif fault == "disk full":
        life.wanted_end = fault
        life.limit_files(4096, 60.0)
    else:
        life.wanted_end = fault
        life.process.send_signal(signal.Signals[fault])
    return True


def unexpected(life: Life, code: int) -> str:
    """What is wrong with the way a life ended; "" when it ended as it should."""
    output = life.output()
    right = {
        "SIGKILL": code == -signal.SIGKILL,
        "SIGTERM": code == 0 and "resume with" in output,
        "disk full": code == 1 and "start the same command again" in output and "Traceback" not in output,
    }.get(life.wanted_end, False)
    return "" if right else f"after {life.wanted_end or 'nothing'} it ended with exit code {code}:\n{output[-3000:]}"


def slope(series: list[np.ndarray], warm_up: float, column: int) -> tuple[float, float, float, int]:
    """(mean, slope an hour, its standard error, samples) of a column over seconds; one intercept a life.

    The error of ordinary least squares is widened by the correlation r of neighbouring residuals: sqrt((1 + r) / (1 - r)).
    """
    parts = [s[s[:, 0] > warm_up][:, [0, column]] for s in series if len(s)]
    parts = [p for p in parts if len(p) > 3]
    if not parts:
        return float("nan"), float("nan"), float("nan"), 0
    centred = [p - p.mean(0) for p in parts]
    t, y = np.concatenate(centred).T / np.array([[3600.0], [1.0]])
    b = (t @ y) / (t @ t)
    left = [c[:, 1] - b * c[:, 0] / 3600 for c in centred]
    freedom = len(t) - len(parts) - 1
    power = sum(r @ r for r in left)
    r = sum(r[1:] @ r[:-1] for r in left) / power if power else 0.0
    error = np.sqrt(power / freedom / (t @ t) * (1 + max(r, 0.0)) / (1 - min(max(r, 0.0), 0.99)))
    return float(np.mean(np.concatenate(parts)[:, 1])), float(b), float(error), len(t)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--life", type=float, default=8.0, help="minutes between faults that end the process, on average")
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds of each life that count for no slope")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, faults, problems = random.Random(options.seed), collections.Counter[str](), []
    memory: list[np.ndarray] = []
    steps: list[np.ndarray] = []
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "tmp").mkdir()
        folder, shared = scratch / "run", set(os.listdir("/dev/shm"))
        done = 0
        while time.monotonic() < end and len(problems) < 3:
            life = Life(folder, scratch, options.seed)
            print(
                f"{(options.minutes * 60 - (end - time.monotonic())) / 60:5.1f} min: started, {done} steps so far", flush=True
            )
            due = {fault: time.monotonic() + rng.expovariate(1 / mean) for fault, mean in HARMLESS.items()}
            death, metrics = time.monotonic() + rng.expovariate(1 / (60 * options.life)), folder / "metrics.jsonl"
            rows: list[tuple[float, float]] = []
            read = None
            while life.process.poll() is None:
                time.sleep(1.0)
                now = time.monotonic()
                life.free_files()
                try:
                    life.sample()
                    for fault, moment in due.items():
                        if now > moment and not life.wanted_end and not life.free_again and strike(life, fault, metrics, rng):
                            faults[fault] += 1
                            due[fault] = now + rng.expovariate(1 / HARMLESS[fault])
                    if rows and now > min(death, end) and not life.wanted_end:
                        fault = "SIGTERM" if now > end else rng.choice(ENDING)
                        faults[fault] += strike(life, fault, metrics, rng)
                except (psutil.Error, ProcessLookupError):
                    continue  # it ended meanwhile
                if metrics.exists() and (read is None or metrics.stat().st_size > read):
                    with metrics.open("rb") as file:
                        file.seek(read or 0)
                        new = file.read()
                    # What was there when this process began has no time of its own.
                    new = new[: new.rfind(b"\n") + 1]
                    if read is not None:
                        rows += [(now - life.began, json.loads(line)["time/step"]) for line in new.splitlines()]
                    read = (read or 0) + len(new)
                elif metrics.exists() and read is not None and metrics.stat().st_size < read:
                    read = metrics.stat().st_size  # back to its last checkpoint
            if text := unexpected(life, life.process.wait()):
                problems.append(text)
            memory.append(np.array(life.samples))
            steps.append(np.array(rows).reshape(-1, 2))
            done += len(rows)
            print(f"           ended by {life.wanted_end or 'itself'} after {time.monotonic() - life.began:.0f} s", flush=True)
        time.sleep(2)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        if [row["step"] for row in lines] != list(range(1, len(lines) + 1)):
            problems.append("metrics.jsonl has missing or repeated steps")
        if left := [p.pid for p in psutil.process_iter(["environ"]) if f"{scratch}/tmp" in str(p.info["environ"])]:
            problems.append(f"processes left behind: {left}")
        files = [p.name for p in (scratch / "tmp").iterdir() if not p.name.startswith("torchinductor")]  # torch's own cache
        if files := [*files, *(set(os.listdir("/dev/shm")) - shared)]:
            print(f"temporary files left behind, by this run or by others in /dev/shm: {len(files)}, such as {files[:3]}")
        if broken := [str(p) for p in folder.rglob("*.tmp")]:
            problems.append(f"unfinished files: {broken}")
        timeouts, errors, wrong = (
            sum(row[key] for row in lines) for key in ("verify/timeouts", "verify/errors", "optimizer/nonfinite")
        )
    table = {
        "memory, MB (PSS)": slope(memory, options.warm_up, 1),
        "descriptors": slope(memory, options.warm_up, 2),
        "processes": slope(memory, options.warm_up, 3),
        "seconds a step": slope(steps, options.warm_up, 1),
    }
    print(
        f"\n{options.minutes:g} minutes, {done} steps, {len(memory)} lives; faults: {dict(faults)}, steps skipped for "
        f"a NaN {wrong:.0f}, verdicts timed out {timeouts:.0f}, verdicts lost with a worker {errors:.0f}\n"
    )
    print("| | mean | slope an hour | standard error | slope / error | samples |\n|---|---|---|---|---|---|")
    for key, (mean, b, error, count) in table.items():
        print(f"| {key} | {mean:.4g} | {b:+.4g} | {error:.2g} | {b / error if error else 0.0:+.1f} | {count} |")
    for text in problems:
        print(f"\nPROBLEM: {text}")
    names = ("mean", "slope_per_hour", "standard_error", "samples")
    summary = {"minutes": options.minutes, "steps": done, "lives": len(memory), "faults": faults, "nonfinite": wrong}
    print(
        json.dumps(
            summary | {"slopes": {k: dict(zip(names, v, strict=True)) for k, v in table.items()}, "problems": len(problems)}
        )
    )
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(child(*sys.argv[2:]) if sys.argv[1:2] == ["child"] else main())
