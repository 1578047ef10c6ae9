"""Seconds of a step at the limit of the hardware and in good practice: python -m benchmarks.limit CONFIG.yaml [CONFIG.yaml ...]

For each config, on the GPUs of its plan section, by phase: at the limit (every product at the peak, every byte at full
bandwidth, nothing thrown away or computed twice, no tail) and as estimated in practice; sampling as benchmarks/continuous.py
simulates it, whether in generation batches or one by one. Lengths are log-normal, then cut.
    --mean 2048 --sigma 1   of a response before it is cut           --prompt 150   tokens of a prompt
    --kept 0.5 0.85         shares of groups that dynamic sampling keeps, a column each
    --gpu H200              one of minirl/watch/limit.py
--hardware: products and bandwidth that this machine reaches, measured.
What a CPU's phases should take, beside what they take: benchmarks/phases.py.

In practice (PRACTICE below): shares of the peaks that are reached, and the engine's work for each sequence and pass.
The 27 us were measured on one H200 with vLLM 0.26 and a 0.6B model; the others are published or usual, not measured by us.
"""

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import SHAPES, Rows, qwen3_config, table

# Shares of bandwidth and products that decoding reaches, seconds on the host a sequence and pass; MFU of the update without and
# with compiled layers; sleep, wake and push of an engine, seconds; bytes a second of a checkpoint, to disk and to host memory.
PRACTICE = {
    "bandwidth": 0.8, "products": 0.7, "host": 27e-6, "update": 0.40, "update compiled": 0.46, "sync": 1.0, "disk": 2e9,
    "copy": 20e9,
}  # fmt: skip


def sampled(config: Any, model: Any, hardware: Any, arguments: argparse.Namespace, kept: float) -> tuple[float, float]:
    """(groups' worth of tokens, seconds) of a step's sampling, as benchmarks/continuous.py simulates it with its own
    assumptions: in generation batches or with `rollout.continuous`, so that the two can be compared."""
    from benchmarks import continuous as simulation

    a = simulation.arguments([f"--mean={arguments.mean}", f"--sigma={arguments.sigma}", f"--prompt={arguments.prompt}"])
    row, world = simulation.simulated(config, model, hardware, kept, a)
    return row["Mtokens"] * 1e6 / (world.lengths.mean() * config.rollout.group_size), row["seconds"]


def estimate(config: Any, model: Any, hardware: Any, arguments: argparse.Namespace, kept: float) -> dict[str, float]:
    """Seconds by phase: "limit ..." and in practice."""
    import numpy as np

    from minirl.policy import plan
    from minirl.watch import limit

    config = plan.fitted(config, model)
    r, a, p = config.rollout, config.algorithm, config.plan
    rng = np.random.default_rng(0)

    def draw(count: int, n: int = r.group_size) -> list[Any]:
        drawn = rng.lognormal(math.log(arguments.mean) - arguments.sigma**2 / 2, arguments.sigma, (count, n))
        lengths = drawn.clip(1, r.max_response_tokens).round().astype(int).tolist()
        return [limit.Group(arguments.prompt, row) for row in lengths]

    groups, sampling = sampled(config, model, hardware, arguments, kept)
    trained = draw(r.prompts)
    generated = trained + [replace(group, kept=False) for group in draw(max(0, round(groups) - r.prompts))]
    steps = r.prompts // a.mini_batch_prompts * a.epochs
    scored = 0.0 if a.old_logprobs == "rollout" else 1.0 if a.epochs > 1 or a.rollout_is != "none" else 1 - 1 / steps
    setting = limit.Setting(
        p.gpus, r.max_sequences, 2 if config.model.dtype == "bfloat16" else 4, bool(config.model.gradient_checkpointing),
        a.epochs, scored, r.vllm.tensor_parallel, model.adapters > 0,
    )  # fmt: skip
    best = limit.step_limit(model, hardware, generated, trained, replace(setting, scored=0.0))
    flops, bandwidth = hardware.flops * PRACTICE["products"], hardware.bandwidth * PRACTICE["bandwidth"]
    slower = replace(hardware, flops=flops, bandwidth=bandwidth)
    evaluation = limit.decode_seconds(
        model, slower, draw(config.eval.during_problems, config.eval.samples), setting, PRACTICE["host"]
    )[1]
    mfu = PRACTICE["update compiled" if config.model.compile_layers else "update"]
    forward = limit.trainer_flops(model, trained) / (hardware.flops * p.gpus) / mfu
    state = 12 * (model.adapters or model.parameters) / p.gpus
    checkpoint = state / PRACTICE["copy" if config.run.save_in_background else "disk"]
    practice = {
        "sampling": sampling,
        "old log-probs": scored * forward,
        "update": (setting.forwards + setting.recompute) * forward * a.epochs,
        "sync": PRACTICE["sync"],
        "evaluation": evaluation / config.eval.every if config.eval.every else 0.0,
        "checkpoints": checkpoint / config.run.save_every if config.run.save_every else 0.0,
    }
    return {
        "groups sampled": groups, **practice, "step": sum(practice.values()),
        "one evaluation": evaluation, "limit: sampling": best["limit/generation"], "limit: update": best["limit/update"],
        "limit: step": best["limit/step"], "share of the limit": best["limit/step"] / sum(practice.values()),
    }  # fmt: skip


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", help="presets")
    parser.add_argument("--option", action="append", default=[], help="of each of them, as --option=--rollout.continuous=true")
    parser.add_argument("--mean", type=float, default=2048)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--prompt", type=int, default=150)
    parser.add_argument("--kept", type=float, nargs="+", default=[0.5, 0.85])
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--hardware", action="store_true")
    parser.add_argument("--rows", help="with --hardware: file for a JSON line more")
    arguments = parser.parse_args()
    if arguments.hardware:
        from minirl.watch.meter import measured_hardware

        here = measured_hardware()
        row: dict[str, Any] = {"device": here.name, "TFLOP/s": here.flops / 1e12, "GB/s": here.bandwidth / 1e9}
        print(table([row]))
        if arguments.rows:
            Rows("hardware", arguments.rows).add(row)
        return
    if not arguments.configs:
        sys.exit("limit.py: name a config, or --hardware")
    from minirl.config.command_line import load
    from minirl.policy.model import model_config
    from minirl.policy.plan import measure
    from minirl.watch.limit import hardware_of

    def described(config: Any) -> Any:
        """The model's config: of a Qwen3 by its size, without asking the Hub."""
        size = next((size for size in SHAPES if f"/qwen3-{size}" in config.model.path.lower()), None)
        return model_config(config.model) if size is None else qwen3_config(size)

    hardware = hardware_of(arguments.gpu)
    if hardware is None:
        sys.exit(f"limit.py: no GPU called {arguments.gpu!r} is in minirl/watch/limit.py")
    shown: dict[str, dict[str, Any]] = {}
    for path in arguments.configs:
        config = load([path, *arguments.option])
        model = measure(described(config), config.model.lora)
        for kept in arguments.kept:
            for phase, value in estimate(config, model, hardware, arguments, kept).items():
                shown.setdefault(phase, {"seconds": phase})[f"{Path(path).stem}, kept {kept:g}"] = value
    print(table(list(shown.values())))


if __name__ == "__main__":
    main()
