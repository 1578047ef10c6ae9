"""The ranks of a run, as accelerate starts them, and their collective calls.

Every rank holds the whole batch of rollouts; ranks differ only in the prompts they sample and the micro-batches they compute.
"""

import importlib.util
import os
import sys
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from minirl.utils.errors import ConfigError
from minirl.utils.versions import INSTALL


def asked_processes(dtype: str) -> int:
    """The number of processes in the launcher's environment, 1 without a launcher. dtype: model.dtype.

    ConfigError for an incomplete environment, and for settings that accelerate would ignore.
    """
    launch = {name: os.environ.get(name) for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")}
    size = launch["WORLD_SIZE"]
    if size is None and {"ACCELERATE_USE_CPU", "MASTER_ADDR"} <= os.environ.keys():
        # `accelerate launch --num_processes 2` without a GPU sets the address, then starts one process and says nothing.
        raise ConfigError(
            "accelerate was asked for several processes but started one, as it does without GPUs: launch with `torchrun "
            "--nproc_per_node N train.py` (if one process was asked for, unset MASTER_ADDR)"
        )
    alone = "LOCAL_RANK" not in os.environ and (size == "1" or launch["RANK"] is None is size)
    if not alone and (None in launch.values() or not str(size).isdecimal()):
        found = ", ".join(f"{name}={value}" for name, value in launch.items() if value is not None) or "LOCAL_RANK only"
        raise ConfigError(
            f"the environment has {found}, a launcher sets all of {', '.join(launch)}: unset them for a run of one process, or "
            "launch with torchrun or accelerate"
        )
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision != "no" and (precision, dtype) != ("bf16", "bfloat16"):
        raise ConfigError(
            f"the launcher's mixed precision {precision} would be ignored, as model.dtype={dtype} decides: "
            "launch with --mixed_precision no"
        )
    return int(size or 1)


class Ranks:
    """This process among the ranks of the run. main: whether it is the first; zero: ZeRO stage, None without DeepSpeed;
    gpu_gib: memory of its GPU, None without one."""

    def __init__(self, dtype: str = "float32") -> None:
        """Starts accelerate as the launcher was told. dtype: model.dtype. ConfigError when the launcher's settings cannot be
        followed or DeepSpeed is missing."""
        asked = asked_processes(dtype)
        from accelerate import Accelerator
        from accelerate.utils import InitProcessGroupKwargs

        gpu = torch.cuda.is_available()
        # Ranks wait for the one with the longest responses and verification, often past the backends' default of 10 minutes.
        # If a rank dies, the launcher ends the others.
        timeout: dict[str, Any] = {"timeout": timedelta(hours=2)}
        if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
            if importlib.util.find_spec("deepspeed") is None:
                raise ConfigError(
                    f"the launcher asks for DeepSpeed, which is not installed: {INSTALL['deepspeed']}, or launch without it, "
                    "as configs/accelerate/one-gpu.yaml and torchrun do"
                )
            # DeepSpeed 0.19 uses names that torch 2.13 deprecates.
            old = r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"
            warnings.filterwarnings("ignore", old, FutureWarning)
            # On a CPU DeepSpeed needs an explicit backend, and Accelerator(cpu=True) would turn it off.
            handlers = [InitProcessGroupKwargs(**timeout, **({} if gpu else {"backend": "gloo"}))]
            precision = "bf16" if dtype == "bfloat16" else "no"
            self.accelerator = Accelerator(mixed_precision=precision, kwargs_handlers=handlers)
            self.zero: int | None = self.accelerator.state.deepspeed_plugin.zero_stage
        else:
            # With cpu=True accelerate uses gloo and several processes; without, it would take CPU ranks for single processes.
            # The policy sets the precision, as accelerate would change the trainer's forward pass but not the sampler's.
            handlers = [InitProcessGroupKwargs(**timeout)]
            self.accelerator = Accelerator(cpu=not gpu, mixed_precision="no", kwargs_handlers=handlers)
            self.zero = None
        if self.accelerator.num_processes != asked:
            raise ConfigError(f"the launcher started {asked} processes but accelerate sees {self.accelerator.num_processes}")
        self.rank, self.size = self.accelerator.process_index, self.accelerator.num_processes
        self.main = self.rank == 0
        # With its index, which accelerate's device lacks in a single process.
        self.device = torch.device("cuda", torch.cuda.current_device()) if gpu else self.accelerator.device
        self.gpu_gib = torch.cuda.get_device_properties(self.device).total_memory / 2**30 if gpu else None

    def gather(self, items: list[Any]) -> list[Any]:
        """The concatenation of every rank's `items` (any picklable values), the same on all ranks."""
        if self.size == 1:
            return list(items)
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, items)
        return [item for part in parts for item in part]

    def first(self, reason: str | None) -> str | None:
        """The first reason that any rank gives, or None; the same on all ranks."""
        return next((found for found in self.gather([reason]) if found), None)

    def sum(self, values: dict[str, float]) -> dict[str, float]:
        """Each value summed over ranks; all ranks pass the same keys in the same order."""
        if self.size == 1:
            return dict(values)
        tensor = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return dict(zip(values, tensor.tolist(), strict=True))

    def barrier(self) -> None:
        """Waits for all ranks."""
        if self.size > 1:
            dist.barrier()

    def close(self) -> None:
        """Waits for all ranks and ends the process group; with several ranks it then ends this process with exit code 0."""
        if self.size > 1:
            self.barrier()
            dist.destroy_process_group()
            sys.stdout.flush()
            sys.stderr.flush()
            # A normal exit sometimes crashes in threads of the backends.
            os._exit(0)
