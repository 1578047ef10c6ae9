"""Run under torchrun by tests/policy/test_zero.py: the same optimizer steps plain or DDP and under each ZeRO stage.

torchrun --nproc_per_node N equivalence.py OUT STAGE [STAGE ...]

STAGE: plain, 0, 1, 2, 3, 3-offload, 2-bfloat16 or 3-bfloat16 (these with gradient checkpointing), 0-, 1- or 2-compiled, or one
of the first five with -lora: adapters, and log-probs of the reference model too
"""

import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate.state import AcceleratorState

from minirl.config.command_line import load
from minirl.loss import token_weights
from minirl.policy import logprobs as scoring
from minirl.policy.policy import Policy
from minirl.rollout.types import Completion, Rollout
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.verify.types import Verdict

COMPILE = torch.compile


def rollouts() -> list[Rollout]:
    """Nine ragged ones: not a multiple of the ranks, long and short."""
    rng = np.random.default_rng(7)
    made = []
    for number, (prompt, response) in enumerate([(9, 7), (4, 12), (1, 1), (9, 3), (5, 5), (2, 9), (8, 8), (3, 2), (6, 4)]):
        completion = Completion(rng.integers(0, 22, response, dtype=np.int32), np.zeros(response, np.float32), "stop")
        made.append(Rollout(number, "", "", rng.integers(0, 22, prompt).tolist(), completion, 0, "", Verdict("wrong"), 0.0))
    return made


def whole(policy: Policy) -> dict[str, torch.Tensor]:
    """The weights by name, gathered."""
    return {name: tensor.clone() for bucket in policy.weights(20_000) for name, tensor in bucket}


def run(stage: str, folder: str) -> dict:
    number, _, how = stage.partition("-")
    os.environ["ACCELERATE_USE_DEEPSPEED"] = str(number != "plain").lower()
    if number != "plain":
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = number
        os.environ["ACCELERATE_DEEPSPEED_ZERO3_INIT"] = str(number == "3").lower()
        os.environ["ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"] = "cpu" if how == "offload" else "none"
    AcceleratorState._reset_state(True)
    # several chunks, of another number on each rank
    scoring.LOGITS_CHUNK = {"cpu": 2**26 if number == "plain" else 5 * 22}
    half = stage.endswith("bfloat16")
    ranks = Ranks("bfloat16" if half else "float32")
    options = ["--model.dtype=bfloat16", "--model.gradient_checkpointing=true"] if half else []
    options += ["--model.compile_layers=true"] * stage.endswith("compiled")
    options += ["--model.lora.r=4", "--algorithm.kl_coef=0.1"] * stage.endswith("lora")
    # What is captured and how it is differentiated is what sharding could break; inductor's code for it takes minutes.
    torch.compile = partial(COMPILE, backend=os.environ.get("COMPILER", "aot_eager"))
    policy = Policy(
        load(["--rollout.engine=vllm", "--optimizer.micro_batch_tokens=40", *options]), ranks, len(tiny.tokenizer())
    )
    batch = rollouts()
    start = whole(policy)
    policy.compute_logprobs(batch, old=True)
    start_logprobs = [torch.from_numpy(r.old_logprobs) for r in batch]
    norms: list[float] = []
    skipped: list[tuple[float, int, bool]] = []
    # the second step has one rollout only: with two ranks one of them has no work
    for part in (batch, batch[:1], batch):
        if norms:
            before = whole(policy)
            for micro in policy.gradient_steps(batch):
                logprobs, _ = policy.logprobs(micro)
                # on one rank only, where there are two
                policy.accumulate(logprobs.sum() * (float("nan") if ranks.rank == ranks.size - 1 else 1.0))
            skipped.append(
                (
                    policy.step(1e-3),
                    policy.nonfinite,
                    all(torch.equal(before[name], tensor) for name, tensor in whole(policy).items()),
                )
            )
        weights = token_weights([r.length for r in part], "token-mean")
        for micro in policy.gradient_steps(part):
            logprobs, _ = policy.logprobs(micro)
            policy.accumulate(-(micro.flat([weights[i] * (i + 1) for i in micro.indices]) * logprobs).sum())
        norms.append(policy.step(1e-3))
    policy.compute_logprobs(batch, old=True)
    policy.export(Path(folder) / f"export-{stage}" if ranks.main else None, tiny.tokenizer())
    policy.compute_logprobs(
        batch, old=True
    )  # a forward pass after gathering, and gathering after a forward pass, must both work
    return {
        "norms": norms,
        "overlap": policy.head.optimizer.overlap_comm if number in ("1", "2") else None,
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
        "skipped": skipped,
        "weights": whole(policy),
        "start": start,
        "start_logprobs": start_logprobs,
        "frequencies": policy.model.base_model.rotary_emb.inv_freq,
        "logprobs": [torch.from_numpy(r.old_logprobs) for r in batch],
        "ref_logprobs": [torch.from_numpy(r.ref_logprobs) for r in batch if r.ref_logprobs is not None],
    }


if __name__ == "__main__":
    out, *stages = sys.argv[1:]
    results = {stage: run(stage, out) for stage in stages}
    if int(os.environ["RANK"]) == 0:
        torch.save(results, os.path.join(out, f"results-{os.environ['WORLD_SIZE']}.pt"))
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)
