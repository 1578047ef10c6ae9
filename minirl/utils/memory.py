"""Copies to a device, and errors for running out of its memory."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minirl.utils.errors import RunError


def to_device(values: np.ndarray, device: Any) -> Tensor:
    """`values` as a tensor on `device`; copied to a GPU from pinned memory, asynchronously."""
    tensor = torch.from_numpy(values)
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@contextlib.contextmanager
def memory_suffices(explain: Callable[[], tuple[str, str]]) -> Iterator[None]:
    """Turns running out of memory into a RunError. explain: returns (what was being computed, the remedy)."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        work, remedy = explain()
        raise RunError(f"out of memory in {work}: {' '.join(str(error).split())[:200]}; {remedy}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is torch's or Python's for running out of GPU or CPU memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
