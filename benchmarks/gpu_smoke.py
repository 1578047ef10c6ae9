"""What only a GPU can show, in one command: python benchmarks/gpu_smoke.py [--small] [--smollm2 FOLDER] [--out FOLDER]

1. A Qwen3-0.6B shape with random weights, 64 prompts of 64 tokens x 8 samples x 512 tokens, 4 steps through train.py with the
   vLLM engine: plain, then ZeRO-3 on one GPU. Seconds a phase, lengths, tokens a second, peak memory, and the gap between
   sampler and trainer. The whole vocabulary of 151,936 is sampled and scored; random weights hardly ever choose its one end
   token, and a run whose responses are shorter than 500 tokens on average fails: it measured something else.
2. With --smollm2 (a folder with SmolLM2-135M-Instruct, see minirl/convert.py): 30 steps of dapo+edas on four-shot arithmetic,
   and its accuracy step by step.

Each run is a process of its own: vLLM allows one engine that can sleep a process, DeepSpeed and accelerate keep global state.
--small runs the same code on a CPU in a minute or two, at 20M parameters with the same vocabulary, to show that the script
itself works. Prints tables and writes OUT/gpu_smoke.json.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import ROOT, Rows, environment, random_model

STEPS = 4
# prompts, samples, tokens a response, model shape
LARGE = (64, 8, 512, "0.6b")
SMALL = (4, 4, 32, "20m")
SHORTEST = 500 / 512  # mean length of the responses, as a share of the limit


class Memory(threading.Thread):
    """Polls the largest memory in use on the GPU that a process would take first, MiB, while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.stop = 0, False

    def run(self) -> None:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={first}"]
        while not self.stop:
            try:
                self.peak = max(self.peak, int(subprocess.run(query, capture_output=True, text=True, check=True).stdout))
            except (OSError, subprocess.CalledProcessError, ValueError):
                return  # no GPU to ask
            time.sleep(0.5)


def train(folder: Path, name: str, options: list[str], launcher: list[str]) -> dict:
    """Runs train.py and returns its metrics, with wall seconds and peak memory."""
    memory, begin = Memory(), time.perf_counter()
    memory.start()
    command = [*launcher, str(ROOT / "train.py"), *options, "--run-dir", str(folder / name)]
    with (folder / f"{name}.log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False, env=environment())
    memory.stop = True
    if done.returncode:
        print(f"{name}: exit code {done.returncode}\n{(folder / f'{name}.log').read_text()[-3000:]}")
        return {"name": name, "failed": done.returncode}
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return {"name": name, "seconds": time.perf_counter() - begin, "peak_gib": memory.peak / 1024, "steps": rows}


def write_problems(path: Path, prompts: int) -> None:
    """Sums of 64 characters, which are as many tokens, enough for all steps and an evaluation."""
    rng, rows = random.Random(0), []
    for _ in range((STEPS + 1) * prompts):
        terms = [rng.randint(100, 999) for _ in range(16)]
        rows.append({"problem": "+".join(map(str, terms)) + "=", "answer": str(sum(terms))})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def digits(problem: Any, response: str, rollout: Any) -> float:
    """The reward: the share of digits, which differs between random responses, so that there is a gradient."""
    return sum(c.isdigit() for c in response) / max(len(response), 1)


def too_short(run: dict, tokens: int) -> str | None:
    """What is wrong with a run whose responses ended long before `tokens`, the limit."""
    mean = min((row["response/tokens"] for row in run.get("steps", [])), default=tokens)
    if mean >= SHORTEST * tokens:
        return None
    return f"{run['name']}: a step's responses have {mean:.1f} tokens on average, not about {tokens}: this is other work"


def values(run: dict, key: str) -> list[float]:
    """A metric in the steps after the first that have it, ascending; NaN alone for one that was never measured."""
    return sorted(row[key] for row in run["steps"][1:] or run["steps"] if key in row) or [float("nan")]


def middle(run: dict, key: str) -> float:
    """The median of `values`."""
    found = values(run, key)
    return found[len(found) // 2]


def phases(run: dict) -> str:
    """One row of the table: medians over the steps after the first."""
    median = partial(middle, run)
    seconds = " ".join(
        f"{median(f'time/{key}'):8.2f}" for key in ("sample", "verify", "old_logprobs", "update", "sync", "step")
    )
    gap = f"{median('policy/rollout_logprob_diff_mean'):9.1e} {values(run, 'policy/rollout_logprob_diff_max')[-1]:9.1e}"
    work = f"{median('response/tokens'):8.1f} {median('sampling/tokens'):9,.0f}"
    speed = f"{median('speed/sample'):9,.0f} {median('speed/update'):9,.0f}"
    return f"{run['name']:14} {seconds} {work} {speed} {run['peak_gib']:9.1f} {gap}"


def row_of(run: dict) -> dict[str, Any]:
    """A run's medians over the steps after the first."""
    keys = [f"time/{key}" for key in ("sample", "old_logprobs", "update", "sync", "step")]
    keys += ["response/tokens", "speed/sample", "speed/update", "policy/rollout_logprob_diff_mean"]
    row: dict[str, Any] = {key: middle(run, key) for key in keys}
    return {"run": run["name"], **row, "peak GiB": run["peak_gib"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="the same code on a CPU, in about a minute")
    parser.add_argument("--smollm2", help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--only", choices=("plain", "zero3"), help="only this run; else both")
    parser.add_argument("--rows", help="file for a JSON line a run")
    parser.add_argument("--out", default=tempfile.mkdtemp(prefix="gpu_smoke-"))
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    prompts, samples, tokens, shape = SMALL if arguments.small else LARGE
    dtype = "float32" if arguments.small else "bfloat16"
    random_model(out / "model", shape, dtype)
    write_problems(out / "problems.jsonl", prompts)
    options = [
        f"--model.path={out / 'model'}", f"--model.dtype={dtype}", "--model.gradient_checkpointing=true",
        "--data.task=dataset", f"--data.train={out / 'problems.jsonl'}", f"--data.test_size={prompts}", "--data.chat=false",
        f"--verifier.name={Path(__file__).resolve()}:digits", "--rollout.engine=vllm", f"--rollout.prompts={prompts}",
        f"--rollout.group_size={samples}", f"--rollout.max_response_tokens={tokens}",
        f"--rollout.max_sequences={prompts * samples}", "--rollout.logprob_diff_stop=10", "--algorithm.estimator=grpo",
        f"--algorithm.mini_batch_prompts={prompts}", "--optimizer.lr=1e-6", "--optimizer.warmup_steps=0", "--eval.every=0",
        "--eval.problems=4", "--eval.samples=1", "--eval.k=1", "--eval.max_response_tokens=16", f"--run.steps={STEPS}",
        "--run.save_rollouts=0",
    ]  # fmt: skip
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1"]
    zero = [*accelerate, "--config_file", str(ROOT / "configs" / "accelerate" / "zero3.yaml")]
    launchers = {"plain": [sys.executable], "zero3": zero}
    runs = [train(out, name, options, launchers[name]) for name in launchers if arguments.only in (None, name)]
    for run in runs if arguments.rows else []:
        if "steps" in run:
            Rows("smoke", arguments.rows).add(row_of(run))
    wrong = [text for run in runs if (text := too_short(run, tokens))]
    if arguments.smollm2:
        config = str(ROOT / "configs" / "smollm2-fewshot.yaml")
        steps = [config, f"--model.path={arguments.smollm2}", f"--model.dtype={dtype}", "--rollout.engine=vllm"]
        if arguments.small:
            steps += ["--run.steps=2", "--eval.problems=8", "--eval.samples=4", "--eval.k=4"]
        else:
            steps += ["--rollout.prompts=32", "--rollout.group_size=16", "--algorithm.mini_batch_prompts=16",
                      "--optimizer.micro_batch_tokens=16384"]  # fmt: skip
        runs.append(train(out, "smollm2", steps, [sys.executable]))
    print(f"\n{'median step':14} {'sample':>8} {'verify':>8} {'old':>8} {'update':>8} {'sync':>8} {'step':>8} {'length':>8} "
          f"{'tokens':>9} {'tok/s':>9} {'upd tok/s':>9} {'peak GiB':>9} {'gap mean':>9} {'gap max':>9}")  # fmt: skip
    for run in runs:
        print(phases(run) if "steps" in run else f"{run['name']:14} failed with exit code {run['failed']}")
    for run in runs:
        if run["name"] == "smollm2" and "steps" in run:
            print("\nSmolLM2 accuracy a step: " + " ".join(f"{row['reward/accuracy']:.2f}" for row in run["steps"]))
    (out / "gpu_smoke.json").write_text(json.dumps({"machine": platform.platform(), "runs": runs}))
    print(f"\nlogs and numbers: {out}")
    for text in wrong:
        print(f"FAILED {text}")
    sys.exit(bool(wrong) or any("failed" in run for run in runs))


if __name__ == "__main__":
    main()
