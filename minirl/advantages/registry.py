"""Names of estimators: a base, then wrappers, joined by "+", as in "dapo+edas"; and those of the user's own, file.py:Class."""

import importlib.util
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from minirl.advantages.baselines import BASELINES
from minirl.advantages.group import Estimator, Wrapper, check
from minirl.advantages.paper import DAPO, EDAS, GRPO, PKPO, EntropyShaped
from minirl.advantages.shaping import CONTROLS, SHAPINGS

_BASES: tuple[type[Estimator], ...] = (GRPO, DAPO, PKPO, *BASELINES)
_WRAPPERS: tuple[type[Wrapper], ...] = (EDAS, EntropyShaped, *SHAPINGS, *CONTROLS)
BASES = {cls.name: cls for cls in _BASES}
WRAPPERS = {cls.name: cls for cls in _WRAPPERS}
PAPER = ("grpo", "dapo", "pkpo", "grpo+edas", "dapo+edas", "dapo+entropy")


def section(cls: type[Estimator]) -> str:
    """The section of the config with the options of `cls`: its name; the controls of EDAS have EDAS's."""
    return EDAS.name if issubclass(cls, EDAS) else cls.name


# The classes that have options, each with a section of its own in the config.
WITH_OPTIONS: dict[str, type[Estimator]] = {
    name: cls
    for name, cls in (BASES | WRAPPERS).items()
    if section(cls) == name and any("help" in f.metadata for f in fields(cls))
}


def build(name: str, options: Any = None) -> Estimator:
    """The estimator called `name`.

    options: an object with one instance of each class of WITH_OPTIONS under its name, and the options of classes of the user's
    own as the mapping `custom` (the config's `estimator` section); None for defaults. Raises ValueError that lists what is
    known.
    """
    parts = [part_named(part, name) for part in name.split("+")]
    known = known_names()
    first, *rest = parts
    own = {f.name for cls in parts if (BASES | WRAPPERS).get(cls.name) is not cls for f in fields(cls)}
    custom = options.custom if options is not None else {}
    check(set(custom) <= own, f"estimator.custom={custom} has options of no class of your own in {name!r}")
    check(not issubclass(first, Wrapper) and all(issubclass(p, Wrapper) for p in rest), f"unknown estimator {name!r}: {known}")
    check(len({section(p) for p in rest}) == len(rest), f"estimator {name!r} names a part twice")
    check(EntropyShaped not in rest[:-1], f"estimator {name!r}: entropy works on tokens and must come last")
    estimator = instance(first, options)
    for part in rest:
        estimator = replace(instance(part, options), base=estimator)  # type: ignore[call-arg]
    return estimator


def part_named(part: str, name: str) -> type[Estimator]:
    """The class that one part of the estimator called `name` stands for."""
    if ".py:" in part:
        return own_class(part, Estimator)
    check(part in BASES or part in WRAPPERS, f"unknown estimator {name!r}: {known_names()}")
    return (BASES | WRAPPERS)[part]


def known_names() -> str:
    """What may be asked for, for people."""
    return (
        f"known are {', '.join(PAPER)}, and any of {', '.join(BASES)}, or file.py:Class, followed by any of "
        f"+{', +'.join(WRAPPERS)}, or +file.py:Class"
    )


def instance(cls: type[Estimator], options: Any) -> Estimator:
    """`cls` with the options that the config has for it."""
    if (BASES | WRAPPERS).get(cls.name) is not cls:
        custom = options.custom if options is not None else {}
        return cls(**{f.name: custom[f.name] for f in fields(cls) if f.name in custom})
    held = getattr(options, section(cls), None)
    if held is None or type(held) is cls:
        return held or cls()
    return cls(**{f.name: getattr(held, f.name) for f in fields(held) if f.name != "base"})


@cache
def own_class(name: str, base: type) -> type[Any]:
    """The subclass of `base` that `path/to/file.py:Class` names. ValueError that says what is missing."""
    path, _, attribute = name.rpartition(":")
    file = Path(path).expanduser().resolve()
    check(file.is_file(), f"no file {path} (from {name!r})")
    spec = importlib.util.spec_from_file_location(f"minirl_own_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} does not load: {type(error).__name__}: {error}") from error
    cls = getattr(module, attribute, None)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ValueError(f"{path} has no class {attribute!r} that is a subclass of {base.__module__}.{base.__name__}")
    return cls


def base_estimator(estimator: Estimator) -> Estimator:
    """The base estimator inside any wrappers."""
    return base_estimator(estimator.base) if isinstance(estimator, Wrapper) else estimator


def innermost_edas(estimator: Estimator) -> EDAS | None:
    """The EDAS, or control of it, among the wrappers; None where there is none."""
    if isinstance(estimator, EDAS):
        return estimator
    return innermost_edas(estimator.base) if isinstance(estimator, Wrapper) else None
