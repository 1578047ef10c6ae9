"""What a step costs, measured here and calculated for more GPUs: python -m benchmarks.scaling [--json] [--results FILE]

Measured: train.py on a 1M model with random weights, one size at a time changed: prompts, samples, longest response, ranks. On
a GPU the 0.6B shape and vLLM instead. Medians over the steps after the first two.
Calculated (--paper: only that): Qwen3-8B on 8 and 64 H200, from pieces measured on one H200; the assumptions are printed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Rows, environment, finish, random_model, table

BASE = {"prompts": 16, "samples": 8, "longest": 16, "ranks": 1}

# Measured on one H200 with the 0.6B shape (vLLM 0.26): see docs/performance.md.
SEQUENCE_SECONDS = 27e-6  # engine overhead a sequence and decode step: 36k tokens/s with 512 sequences
PUSH_BYTES = 1.2e9 / 0.04  # bytes a second from ZeRO-3's shards into the engine
SLEEP_SECONDS = 0.13 + 0.02 + 0.09  # sleep, wake weights, wake KV cache
# Assumed: the published peaks of the chip and of 400 Gbit/s a GPU between nodes, and the shares of them that are reached.
FLOPS, BANDWIDTH, NVLINK, NETWORK = 989e12, 4.8e12 * 0.7, 350e9, 50e9 * 0.8
# Qwen3-8B: parameters, layers, heads * head size, bytes of keys and values a token.
PARAMETERS, LAYERS, WIDTH, KV_BYTES = 8.19e9, 36, 4096, 2 * 36 * 8 * 128 * 2
ASSUMPTIONS = """\
Assumptions: 256 prompts x 10 samples, prompts of 150 tokens, responses log-normal (sigma 1, mean 2,000 before they are cut at
8,192; drawn once), 4 optimizer steps, micro-batches of 16k tokens, ZeRO-3, activations recomputed (8 operations a parameter
and token, not 6). A decode step = 27 us a sequence (measured, 0.6B) + the longer of reading weights and KV cache at 70% of
4.8 TB/s and computing at 60% of the peak; the GPU with the longest responses sets the end. Update at the MFU given: 18% was
measured for 0.6B, 40% is the target for 4B and more. Weights cross NVLink (350 GB/s) or the network (40 GB/s a GPU) three times
a micro-batch, beside computing. Pushing weights: 30 GB/s a rank (measured, 0.6B), or the network where that is slower.
No dynamic sampling: with it, sampling counts 1 / (share of groups kept) times. Verification runs beside sampling."""


def paper(gpus: int, mfu: float, prompts: int = 256, samples: int = 10, prompt: int = 150, mean: int = 2000,
          longest: int = 8192, mini_batches: int = 4, budget: int = 16_384) -> dict[str, Any]:  # fmt: skip
    """Seconds of a step of Qwen3-8B by phase."""
    import numpy as np

    lengths = np.random.default_rng(0).lognormal(np.log(mean) - 0.5, 1, prompts * samples).clip(1, longest).round()
    sample = 0.0
    for here in np.array_split(lengths, gpus):
        ended = np.searchsorted(np.sort(here), np.arange(here.max()), side="right")  # of its sequences, at each decode step
        alive = len(here) - ended
        reading = (PARAMETERS * 2 + alive * (prompt + np.arange(len(alive))) * KV_BYTES) / BANDWIDTH
        computing = 2 * PARAMETERS * alive / (0.6 * FLOPS)
        sample = max(sample, float((SEQUENCE_SECONDS * alive + np.maximum(reading, computing)).sum()))
    tokens = prompts * prompt + lengths.sum()
    pairs = (lengths**2 / 2 + lengths * prompt).sum()
    flops = 8 * PARAMETERS * tokens + 16 * LAYERS * WIDTH * pairs
    compute = flops / (gpus * FLOPS * mfu)
    # A mini-batch has at least one micro-batch a rank, however small.
    passes = mini_batches * max(1.0, tokens / mini_batches / gpus / budget)
    between = NVLINK if gpus <= 8 else NETWORK
    exchange = passes * 3 * PARAMETERS * 2 / between
    update = max(compute, exchange)
    old = (2 * PARAMETERS * tokens + 4 * LAYERS * WIDTH * pairs) / (gpus * FLOPS * mfu) * (1 - 1 / mini_batches)
    sync = PARAMETERS * 2 / min(PUSH_BYTES, between) + SLEEP_SECONDS
    step = sample + old + update + sync
    return {
        "GPUs": gpus, "MFU": mfu, "sample s": sample, "old s": old, "update s": update, "exchange s": exchange,
        "sync s": sync, "step s": step, "tokens/s": float(lengths.sum()) / step, "steps a day": 86_400 / step,
    }  # fmt: skip


def measure(folder: Path, size: dict[str, int], gpu: bool) -> dict[str, Any] | None:
    """One row: medians of train.py at that size; None when it failed."""
    name = "-".join(map(str, size.values()))
    options = [
        f"--model.path={folder / 'model'}", f"--rollout.prompts={size['prompts']}", f"--rollout.group_size={size['samples']}",
        f"--algorithm.mini_batch_prompts={size['prompts']}", f"--rollout.max_response_tokens={size['longest']}",
        "--algorithm.estimator=grpo", "--eval.every=0", "--eval.problems=1", "--eval.samples=1", "--eval.k=1",
        "--run.steps=7", "--run.save_rollouts=0", "--optimizer.lr=1e-6", f"--run.dir={folder / name}",
    ]  # fmt: skip
    if gpu:
        options += ["--rollout.engine=vllm", "--model.dtype=bfloat16"]
    launcher = [sys.executable]
    if size["ranks"] > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(size["ranks"])]
    command = [*launcher, str(ROOT / "train.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        print(f"scaling.py: train.py failed at {size}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}", file=sys.stderr)
        return None
    steps = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()][2:]

    def middle(key: str) -> float:
        return statistics.median(step[key] for step in steps)

    phases = {f"{key} s": middle(f"time/{key}") for key in ("sample", "verify", "update", "step")}
    tokens = middle("sampling/tokens")
    return {**size, "tokens": tokens, **phases, "us a token": 1e6 * phases["step s"] / tokens}


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paper", action="store_true", help="the calculation only")
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of tables")
    parser.add_argument("--results", help="file for one more JSON line; else benchmarks/results.jsonl")
    parser.add_argument("--rows", help="file for a JSON line a row, written when it is measured; rows that it has are skipped")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    failed = False
    if not options.paper:
        import torch

        gpu = torch.cuda.is_available()
        base = BASE | ({"prompts": 64, "longest": 512} if gpu else {})
        most = torch.cuda.device_count() if gpu else 2
        sizes = [base] + [base | {key: base[key] * k} for key in ("prompts", "samples", "longest") for k in (2, 4)]
        sizes += [base | {"prompts": base["prompts"] * 4, "ranks": ranks} for ranks in {2, most} if 1 < ranks <= most]
        with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
            random_model(Path(folder) / "model", "0.6b" if gpu else "1m", "bfloat16" if gpu else "float32")
            file = Rows("scaling", options.rows or Path(folder) / "rows.jsonl")
            for size in sizes:
                if not file.missing(size):
                    continue
                if (row := measure(Path(folder), size, gpu)) is None:
                    failed = True
                else:
                    rows.append(row)
                    file.add(row)
        if not options.json and rows:
            print(table(rows))
    calculated = [paper(gpus, mfu) for gpus in (8, 64) for mfu in (0.18, 0.4)]
    if not options.json:
        print(f"\nCalculated, Qwen3-8B on H200:\n{table(calculated)}\n\n{ASSUMPTIONS}")
    if not options.rows:
        finish("scaling", rows + calculated, options.results, options.json)
    sys.exit(failed)


if __name__ == "__main__":
    main()
