"""A real curve: train.py for 50 steps on GSM8K, in as many calls as it takes: python -m benchmarks.gpu_curve --model FOLDER

    --data FOLDER    with gsm8k_train.jsonl and gsm8k_test.jsonl, rows {"problem", "answer"}
    --stop-after 3m  a call ends after the step that passes this time, and the next one resumes; exit code 3 until all is done
    --small          the embedded model on its own task, on a CPU with the transformers engine: shows that the script works

A row of FILE (--rows) for each step, with its accuracy, rates and meter, and one for each evaluation.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Rows, environment

STEPS = 50
COLUMNS = {
    "accuracy": "reward/accuracy", "reward": "reward/mean", "entropy": "policy/entropy", "tokens": "response/tokens",
    "cut": "response/truncated", "gap": "policy/rollout_logprob_diff_mean", "sample s": "time/sample",
    "old s": "time/old_logprobs", "update s": "time/update", "sync s": "time/sync", "step s": "time/step",
    "sampled tokens/s": "speed/sample", "updated tokens/s": "speed/update", "of the limit": "speed/limit_share",
    "limit of update s": "time/limit_update", "tail s": "time/lost_tail", "host s": "time/lost_host",
}  # fmt: skip


def options_of(arguments: argparse.Namespace) -> list[str]:
    """The options of train.py."""
    if arguments.small:
        return ["--run.steps=6", "--rollout.prompts=4", "--algorithm.mini_batch_prompts=4", "--eval.problems=8",
                "--eval.samples=2", "--eval.k=2", "--algorithm.dynamic_sampling=false"]  # fmt: skip
    return [
        str(ROOT / "configs" / "qwen3-0.6b-gsm8k.yaml"), f"--model.path={arguments.model}",
        *(f"--data.{part}={Path(arguments.data) / f'gsm8k_{part}.jsonl'}" for part in ("train", "test")),
        "--data.subset=null", "--data.prompt_column=problem", "--data.answer_pattern=null", f"--run.steps={STEPS}",
        "--rollout.prompts=32", "--algorithm.mini_batch_prompts=16", "--rollout.max_response_tokens=512",
        "--algorithm.dynamic_sampling=false", "--optimizer.lr=2e-6", "--eval.every=0", "--eval.problems=256",
        "--eval.samples=2", "--eval.k=2", "--run.save_every=0",
    ]  # fmt: skip


def add_new(file: Rows, folder: Path) -> None:
    """Rows for steps and evaluations that have none."""
    metrics = folder / "metrics.jsonl"
    for line in metrics.read_text().splitlines() if metrics.exists() else []:
        row = json.loads(line)
        if file.missing({"step": row["step"]}):
            file.add({"step": row["step"], **{name: row.get(key) for name, key in COLUMNS.items()}})
    summary = folder / "summary.json"
    ended: dict[str, Any] = json.loads(summary.read_text()) if summary.exists() else {}
    for when in ("before", "after") if ended else ():
        if file.missing({"evaluated": when}):
            file.add({"evaluated": when, **ended[when]})


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder of Qwen3-0.6B")
    parser.add_argument("--data", default=str(ROOT / "shared" / "data"))
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--stop-after", default="3m")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    folder, file = Path(arguments.run_dir), Rows("curve", arguments.rows)
    command = [sys.executable, str(ROOT / "train.py"), *options_of(arguments), "--run-dir", str(folder),
               "--stop-after", arguments.stop_after]  # fmt: skip
    try:
        done = subprocess.run(command, check=False, env=environment())
    finally:
        add_new(file, folder)
    if done.returncode:
        sys.exit(done.returncode)
    sys.exit(0 if (folder / "summary.json").exists() else 3)


if __name__ == "__main__":
    main()
