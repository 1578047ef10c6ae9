"""Running out of memory, on a GPU or on a CPU, as an error that names the remedy."""

import contextlib
from collections.abc import Callable, Iterator

import torch

from minirl.utils.errors import RunError


@contextlib.contextmanager
def memory_suffices(work: Callable[[], str], remedy: Callable[[], str]) -> Iterator[None]:
    """Makes running out of memory a RunError that names the work and the remedy."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(f"out of memory in {work()}: {' '.join(str(error).split())[:200]}; {remedy()}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python says that memory does not suffice, on a GPU or on a CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
