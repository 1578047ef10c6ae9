"""Errors of torch's compiler, which a run ends with in a sentence that names the remedy."""

import contextlib
from collections.abc import Iterator

from minirl.utils.errors import RunError


def is_compilers(error: BaseException) -> bool:
    """Whether an error, or one that caused it, comes from torch's compiler or from Triton."""
    named = type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton"))
    cause = error.__cause__ or error.__context__
    return named or (cause is not None and is_compilers(cause))


@contextlib.contextmanager
def compiling_succeeds() -> Iterator[None]:
    """Turns a failure to compile into a RunError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RunError) or not is_compilers(error):
            raise
        raise RunError(
            f"compiling failed: {' '.join(str(error).split())[:400]}; set model.compile_layers and model.compile to false"
        ) from error
