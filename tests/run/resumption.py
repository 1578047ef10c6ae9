"""Run under torchrun by tests/run/test_checkpoint.py: what a new policy does with the shards of another one.

torchrun --nproc_per_node N resumption.py OUT CASE [CASE ...]        CASE: plain or a ZeRO stage, ":", the dtype, and
":lora" with adapters
"""

import os
import sys
from pathlib import Path
from threading import Event

import torch
from accelerate.state import AcceleratorState

from minirl.config.command_line import load
from minirl.loss import token_weights
from minirl.policy.policy import Policy
from minirl.run import shards
from minirl.run.checkpoint import Checkpoints, State
from minirl.run.manifest import steps_of
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from tests.policy.equivalence import rollouts


def make(stage: str, dtype: str, adapters: str = "") -> Policy:
    os.environ["ACCELERATE_USE_DEEPSPEED"] = str(stage != "plain").lower()
    os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = stage if stage != "plain" else "0"
    os.environ["ACCELERATE_DEEPSPEED_ZERO3_INIT"] = str(stage == "3").lower()
    AcceleratorState._reset_state(True)
    arguments = ["--rollout.engine=vllm", "--optimizer.micro_batch_tokens=40", f"--model.dtype={dtype}"]
    arguments += ["--model.lora.r=4"] * bool(adapters)
    return Policy(load(arguments), Ranks(dtype), len(tiny.tokenizer()))


def packed(policy: Policy) -> bytes:
    """The file of this rank's shards."""
    return b"".join(shards.serialised(shards.pack(policy, copy=True)))


def step(policy: Policy, part: list) -> float:
    weights = token_weights([r.length for r in part], "token-mean")
    for micro in policy.gradient_steps(part):
        logprobs, _ = policy.logprobs(micro)
        policy.accumulate(-(micro.flat([weights[i] * (i + 1) for i in micro.indices]) * logprobs).sum())
    return policy.step(1e-3)


def whole(policy: Policy) -> dict:
    return {name: tensor.clone() for bucket in policy.weights() for name, tensor in bucket}


def shards_of(folder: Path) -> list[Path]:
    """The files of the valid checkpoints in a run's folder."""
    return sorted(path for _, saved in steps_of(folder / "checkpoints") for path in saved.glob("*.safetensors"))


def run(case: str, out: Path) -> dict:
    """What two policies do after the same two steps, one of them read from the shards of the other, which are written in the
    background: not before the other has taken its next step."""
    first, batch = make(*case.split(":")), rollouts()
    step(first, batch)
    step(first, batch[:1])
    folder, moved_on = out / case, Event()
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").touch()
    options = ["--run.save_every=2", "--run.save_in_background=true"]
    made = Checkpoints(load(options), first.ranks, folder if first.ranks.main else None, {})
    made.writer.submit(moved_on.wait)
    made.after_step(first, State(step=2), now=False)
    went_on = [whole(first), step(first, batch), whole(first), packed(first)]
    moved_on.set()
    made.after_step(first, State(step=3), now=False)  # publishes it only if every rank has written its part by now
    made.settle()
    published = [str(path.relative_to(folder)) for path in shards_of(folder)]
    second = make(*case.split(":"))
    shards.unpack(second, shards_of(folder))
    resumed = [whole(second), step(second, batch), whole(second), packed(second)]
    # Shards of an unsharded policy, read by this one
    third = make(*case.split(":"))
    shards.unpack(third, shards_of(out / f"plain:float32{':lora' * case.endswith('lora')}"))
    return {"went on": went_on, "resumed": resumed, "from plain": whole(third), "published": published}


if __name__ == "__main__":
    results = {case: run(case, Path(sys.argv[1])) for case in sys.argv[2:]}
    if int(os.environ["RANK"]) == 0:
        torch.save(results, Path(sys.argv[1]) / "results.pt")
    torch.distributed.barrier()
    os._exit(0)
