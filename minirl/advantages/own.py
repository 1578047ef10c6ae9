"""Code of the user's own, file.py:Class: how it is found and loaded, and held to what an estimator promises.

What it does wrong becomes a ValueError of one sentence that names the class, and the file and line where it happened.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np

from minirl.advantages.group import Estimator, Floats, Group, check

MODULES = "minirl_own_"  # with this begin the names, in sys.modules, of the user's files, rewards and tasks too


def own_file(name: str) -> Path:
    """The file of `path/to/file.py:Class`."""
    return Path(name.rpartition(":")[0]).expanduser().resolve()


def parts_of(name: str) -> list[str]:
    """The parts, between the "+", of an estimator's name; a "+" in the path of a file that exists is none of them."""
    parts: list[str] = []
    for piece in name.split("+"):
        inside = (i for i in range(len(parts)) if ".py:" in piece and own_file("+".join([*parts[i:], piece])).is_file())
        begin = next(inside, len(parts))
        parts[begin:] = ["+".join([*parts[begin:], piece])]
    return parts


@cache
def own_class(name: str, base: type) -> type[Any]:
    """The subclass of `base` that `path/to/file.py:Class` names. ValueError that says what is missing."""
    path, _, attribute = name.rpartition(":")
    file = own_file(name)
    check(file.is_file(), f"no file {path} (from {name!r})")
    module_name = f"{MODULES}{file.stem}_{hashlib.sha256(bytes(file)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up there, for annotations that are texts
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ValueError(f"{path} does not load: {type(error).__name__}: {error}") from error
    cls = getattr(module, attribute, None)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ValueError(f"{path} has no class {attribute!r} that is a subclass of {base.__module__}.{base.__name__}")
    return cls


@contextmanager
def failures_of(name: str) -> Iterator[None]:
    """Makes a ValueError, with file and line, of what is raised inside code of the user's own, or by what that calls. name: of
    what runs. All other exceptions stay as they are."""
    try:
        yield
    except Exception as error:  # their code may raise anything
        if not (place := place_of(error)):
            raise
        said = " ".join(str(error).split())[:300]
        raise ValueError(f"{name} failed{place}: {type(error).__name__}: {said}") from error


def place_of(error: Exception) -> str:
    """ " in FILE, line N", where code of the user's own raised the error or called what did; "" where it had no part in it."""
    theirs = [(f, line) for f, line in walk_tb(error.__traceback__) if f.f_globals.get("__name__", "").startswith(MODULES)]
    places = [(f.f_code.co_filename, line) for f, line in theirs if f.f_code.co_filename != "<string>"]  # made by dataclasses
    return " in {}, line {}".format(*places[-1]) if places else ""


def evaluated(name: str, estimator: Estimator, groups: Sequence[Group]) -> list[tuple[Sequence[Any], Floats]]:
    """(advantages, weights) of each group of one batch by `estimator`, called `name`.

    ValueError, or a wrapper's TypeError, unless each group gets N finite advantages, one a response or one a token, and N
    weights of at least 0.
    """
    found = []
    with failures_of(name):
        fitted = estimator.fitted(groups)
        check(isinstance(fitted, Estimator), f"{name}: fitted gives {shown(fitted)}, not an estimator")
    for group in groups:
        with failures_of(name):
            advantages, weights = fitted(group), fitted.weights(group)
        n = len(group.rewards)
        lengths = [None] * n if group.lengths is None else group.lengths.tolist()
        check(
            sized(advantages, n) and all(map(fits, advantages, lengths)),
            f"{name} gives {shown(advantages)} for a group of {n}: it must be {n} finite advantages, one a response, or {n} "
            "arrays with one a token",
        )
        check(
            sized(weights, n) and all(map(fits, weights, [0] * n)) and min(weights, default=0) >= 0,
            f"{name}: weights gives {shown(weights)} for a group of {n}: it must be {n} numbers of at least 0",
        )
        found.append((advantages, weights))
    return found


def kept(name: str, estimator: Estimator, group: Group) -> bool:
    """What `estimator.keeps` says of a group. ValueError when it is no truth value."""
    with failures_of(name):
        keeps = estimator.keeps(group)
    check(isinstance(keeps, bool | np.bool_), f"{name}: keeps gives {shown(keeps)}, not True or False")
    return bool(keeps)


def sized(values: Any, n: int) -> bool:
    """Whether they are a list, a tuple or an array of n."""
    return isinstance(values, list | tuple | np.ndarray) and np.ndim(values[:1]) > 0 and len(values) == n


def fits(value: Any, length: int | None) -> bool:
    """Whether it is one finite number, or an array of so many; None: of any number."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return (array.ndim == 0 or (array.ndim == 1 and length in (None, len(array)))) and bool(np.isfinite(array).all())


def shown(value: Any) -> str:
    """A value for an error message, in a line."""
    return " ".join(f"{type(value).__name__} {value!r}".split())[:200]
