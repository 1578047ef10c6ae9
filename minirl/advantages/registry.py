"""Names of estimators: a base, then wrappers, joined by "+", as in "dapo+edas"; and those of the user's own, file.py:Class."""

from dataclasses import fields, replace
from typing import Any

from minirl.advantages.baselines import BASELINES
from minirl.advantages.group import Estimator, Wrapper, check
from minirl.advantages.own import failures_of, own_class, parts_of
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
    names = parts_of(name)
    parts = [part_named(part, name) for part in names]
    first, *rest = parts
    own = {f.name for cls in parts if not registered(cls) for f in fields(cls)} - {"base"}
    custom = options.custom if options is not None else {}
    check(set(custom) <= own, f"estimator.custom={custom} has options of no class of your own in {name!r}")
    in_order = not issubclass(first, Wrapper) and all(issubclass(part, Wrapper) for part in rest)
    check(in_order, f"unknown estimator {name!r}: {known_names()}")
    wrappers = zip(names[1:], rest, strict=True)
    distinct = {section(cls) if registered(cls) or issubclass(cls, EDAS) else part for part, cls in wrappers}
    check(len(distinct) == len(rest), f"estimator {name!r} names a part twice")
    check(EntropyShaped not in rest[:-1], f"estimator {name!r}: entropy works on tokens and must come last")
    with failures_of(name):
        estimator = instance(first, names[0], options)
        for cls, part in zip(rest, names[1:], strict=True):
            estimator = replace(instance(cls, part, options), base=estimator)  # type: ignore[call-arg]
        check(estimator.requirements is not None, f"{name}: requirements gives nothing")
    return estimator


def registered(cls: type[Estimator]) -> bool:
    """Whether a class is one of ours."""
    return (BASES | WRAPPERS).get(cls.name) is cls


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


def instance(cls: type[Estimator], part: str, options: Any) -> Estimator:
    """`cls`, named by `part`, with the options that the config has for it. ValueError where those of a class of the user's own
    are missing."""
    if not registered(cls):
        custom = options.custom if options is not None else {}
        own = {f.name: custom[f.name] for f in fields(cls) if f.name in custom}
        try:
            return cls(**own)
        except TypeError as error:
            raise ValueError(f"estimator.custom={custom} does not fit {part}: {error}") from error
    held = getattr(options, section(cls), None)
    if held is None or type(held) is cls:
        return held or cls()
    return cls(**{f.name: getattr(held, f.name) for f in fields(held) if f.name != "base"})


def base_estimator(estimator: Estimator) -> Estimator:
    """The base estimator inside any wrappers."""
    return base_estimator(estimator.base) if isinstance(estimator, Wrapper) else estimator


def innermost_edas(estimator: Estimator) -> EDAS | None:
    """The EDAS, or control of it, among the wrappers; None where there is none."""
    if isinstance(estimator, EDAS):
        return estimator
    return innermost_edas(estimator.base) if isinstance(estimator, Wrapper) else None
