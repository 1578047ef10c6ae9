"""The update alone: tokens/s, model FLOPs utilisation and peak memory: python -m benchmarks.update [--json] [--results FILE]

One table, one row a setting: model shape, sequence length, token budget, packed or padded, and on a GPU plain, ZeRO-2 (with
overlap) and ZeRO-3, each on one rank. Random weights, prompts of 64 tokens, 8 samples each, through train.update (loss,
backward, AdamW). Each row is a process of its own, the best of three updates after one that warms up. tokens: prompt once a
group and responses, padding never counted, so that waste shows in the speed. MFU: 6 * parameters * tokens + attention (12 *
layers * heads * head size * causal pairs), over seconds and --peak-tflops (989: H100 and H200, dense bfloat16); on a CPU over
what a matrix product of 1024^3 reaches.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, Rows, environment, finish, random_model, result_options, table

PROMPT, SAMPLES = 64, 8
SHARDINGS = ("plain", "zero2", "zero3")


def launcher_of(sharding: str) -> list[str]:
    """How a row's process is started."""
    if sharding == "plain":
        return [sys.executable]
    config = str(ROOT / "configs" / "accelerate" / f"{sharding}.yaml")
    return [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config, "--num_processes", "1"]


def rollouts(work: dict[str, Any], vocabulary: int) -> list[list[Any]]:
    """Groups of about work["tokens"] response tokens; lengths uniform, or log-normal with a quarter of the longest as mean."""
    import numpy as np

    from minirl.rollout.types import Completion, Rollout
    from minirl.verify.types import Verdict

    rng, groups, made = np.random.default_rng(0), [], 0
    while made < work["tokens"]:
        prompt, group = rng.integers(4, vocabulary, PROMPT).tolist(), []
        for _ in range(SAMPLES):
            length = work["length"]
            if work["tail"]:
                length = int(np.clip(rng.lognormal(np.log(length / 4) - 0.5, 1), 2, length))
            sample = Completion(rng.integers(4, vocabulary, length, dtype=np.int32), np.full(length, -3, np.float32), "stop")
            group.append(Rollout(len(groups), "", "", prompt, sample, 0, "", Verdict("wrong"), 0.0))
            group[-1].advantages = rng.normal()
            made += length
        groups.append(group)
    return groups


def measure(work: dict[str, Any]) -> None:
    """Writes its numbers to the file work["answer"]; runs in a process of its own."""
    import torch

    import train
    from minirl.config.command_line import load
    from minirl.policy import model as models
    from minirl.policy.policy import Policy
    from minirl.rollout.types import Batch
    from minirl.utils.distributed import Ranks

    gpu = torch.cuda.is_available()
    vocabulary = json.loads((Path(work["model"]) / "config.json").read_text())["vocab_size"]
    groups = rollouts(work, vocabulary)
    config = load(
        [
            f"--model.path={work['model']}", f"--model.attention={work['attention']}",
            f"--model.dtype={'bfloat16' if gpu else 'float32'}", f"--model.compile={str(work['compile']).lower()}",
            f"--model.compile_layers={str(work['layers']).lower()}",
            f"--model.gradient_checkpointing={str(work['checkpointing']).lower()}", "--algorithm.estimator=grpo",
            "--rollout.engine=vllm",
            f"--optimizer.micro_batch_tokens={work['budget']}", f"--rollout.prompts={len(groups)}",
            f"--algorithm.mini_batch_prompts={len(groups)}", "--optimizer.lr=1e-6",
        ]
    )  # fmt: skip
    ranks = Ranks(config.model.dtype)
    if work["norms"] == "own":
        models.with_fused_norms = lambda model: model
    policy = Policy(config, ranks, vocabulary)
    computed = sum(batch.inputs["input_ids"].numel() for batch in policy.micro_batches([r for g in groups for r in g]))
    seconds = []
    for _ in range(4):
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        train.update(policy, Batch(groups, [], groups), 1e-6, config)
        if gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    tokens = sum(PROMPT + sum(r.length - 1 for r in g) for g in groups)
    pairs = sum(PROMPT**2 / 2 + sum((r.length - 1) * (PROMPT + r.length / 2) for r in g) for g in groups)
    c = policy.model.config
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in policy.model.parameters())
    flops = 6 * parameters * tokens + 12 * c.num_hidden_layers * c.num_attention_heads * c.head_dim * pairs
    peak = torch.cuda.max_memory_allocated() if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    best = min(seconds[1:])
    answer = {
        "tokens": tokens, "s": best, "tokens/s": tokens / best, "TFLOP/s": flops / best / 1e12,
        "peak GiB": peak / 2**30, "waste": max(0.0, 1 - tokens / computed),
    }  # fmt: skip
    Path(work["answer"]).write_text(json.dumps(answer))


def cpu_peak() -> float:
    """TFLOP/s of a float32 product of 1024^3 with the threads that the rows get."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    a = torch.randn(1024, 1024)
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - begin)
    return 2 * 1024**3 / min(times) / 1e12


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", help="of benchmarks/common.py; GPU: 0.6b 1.7b 4b, CPU: 1m")
    parser.add_argument("--lengths", nargs="+", type=int, help="longest response; GPU: 512 4096, CPU: 16 256")
    parser.add_argument("--budgets", nargs="+", type=int, help="tokens a micro-batch; GPU: 8192 16384 32768, CPU: 2048 16384")
    parser.add_argument("--tokens", type=int, help="response tokens of an update; GPU: 131072, CPU: 4096")
    parser.add_argument("--peak-tflops", type=float, default=989.0)
    result_options(parser)
    parser.add_argument("--rows", help="file for a JSON line a row, written when it is measured; rows that it has are skipped")
    parser.add_argument("--shardings", nargs="+", choices=SHARDINGS, help="on a GPU all; CPU: plain")
    parser.add_argument("--hows", nargs="+", help="only these ways, such as packed and recompute")
    parser.add_argument("--folder", help="keeps the models with random weights there for other calls")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        measure(json.loads(options.worker))
        return
    import torch

    gpu = torch.cuda.is_available()
    shapes = options.shapes or (["0.6b", "1.7b", "4b"] if gpu else ["1m"])
    lengths = options.lengths or ([512, 4096] if gpu else [16, 256])
    budgets = options.budgets or ([8192, 16384, 32768] if gpu else [2048, 16384])
    tokens = options.tokens or (131_072 if gpu else 4096)
    peak = options.peak_tflops if gpu else cpu_peak()
    launchers = {name: launcher_of(name) for name in options.shardings or (SHARDINGS if gpu else ["plain"])}
    file = Rows("update", options.rows) if options.rows else None
    rows: list[dict[str, Any]] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="update-") as folder:
        answer = Path(folder) / "answer.json"
        for shape in shapes:
            dtype = "bfloat16" if gpu else "float32"
            model = random_model(Path(options.folder or folder) / f"{shape}-{dtype}", shape, dtype)
            for length, tail, budget, (sharding, launcher) in product(lengths, [False, True], budgets, launchers.items()):
                # Techniques one at a time, at the middle budget of the first shape.
                variants: dict[str, dict[str, Any]] = {"packed": {}, "recompute": {"checkpointing": True}}
                if shape == shapes[0] and budget == budgets[len(budgets) // 2]:
                    if sharding == "plain":
                        variants |= {"padded": {"attention": "sdpa"}, "norms of the model's own": {"norms": "own"}}
                        variants |= {"head not compiled": {"compile": False}} if gpu else {}
                    variants |= {} if sharding == "zero3" else {"layers compiled": {"layers": True}}
                for name, variant in variants.items():
                    if options.hows and name not in options.hows:
                        continue
                    row: dict[str, Any] = {
                        "shape": shape, "longest": length, "lengths": "tail" if tail else "uniform", "budget": budget,
                        "sharding": sharding, "how": name,
                    }  # fmt: skip
                    if file and not file.missing(row):
                        continue
                    work = {
                        "model": str(model), "length": length, "tail": tail, "budget": budget, "tokens": tokens,
                        "attention": "packed", "compile": True, "checkpointing": False, "norms": "fused", "layers": False,
                        "answer": str(answer),
                    } | variant  # fmt: skip
                    answer.unlink(missing_ok=True)
                    command = [*launcher, str(ROOT / "benchmarks" / "update.py"), "--worker", json.dumps(work)]
                    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
                    if not answer.exists():
                        full = "out of memory" in done.stderr.lower()
                        failed |= not full
                        print(f"{row}\n{done.stderr[-1500:]}", file=sys.stderr)
                        row |= dict.fromkeys(("tokens", "s", "tokens/s", "TFLOP/s", "peak GiB", "waste", "MFU"))
                        row["note"] = "out of memory" if full else "failed"
                    else:
                        got = json.loads(answer.read_text())
                        row |= got | {"MFU": got["TFLOP/s"] / peak, "note": ""}
                    rows.append(row)
                    print(f"{len(rows)} rows", end="\r", file=sys.stderr)
                    if file and row["note"] != "failed":
                        file.add(row)
    if not options.json and rows:
        print(table(rows))
    if not file:
        finish("update", rows, options.results, options.json)
    sys.exit(failed)


if __name__ == "__main__":
    main()
