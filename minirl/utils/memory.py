"""Copies to a device, and running out of its memory as an error that names the remedy."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minirl.utils.errors import RunError


def to_device(values: np.ndarray, device: Any) -> Tensor:
    """`values` as a tensor on `device`; to a GPU from pinned memory, so that nobody waits for the copy."""
    tensor = torch.from_numpy(values)
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@contextlib.contextmanager
def memory_suffices(explain: Callable[[], tuple[str, str]]) -> Iterator[None]:
    """Turns running out of memory into a RunError. explain: gives what was being computed and what to do about it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        work, remedy = explain()
        raise RunError(f"out of memory in {work}: {' '.join(str(error).split())[:200]}; {remedy}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python says that memory does not suffice, on a GPU or on a CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
