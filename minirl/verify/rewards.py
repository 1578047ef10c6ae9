"""Rewards of the user's own: `path/to/file.py:function`, alone or combined with weights.

    def brief(problem, response, rollout):
        '''problem: minirl.verify.types.Problem; response: str; rollout: extra columns -> float or Verdict'''
        return 1.0 if len(response) < 200 else 0.0

A number is the reward, one of numpy or torch too; it is "right" when it is at least 1. A Verdict (or a mapping with
some of its fields) says all.
"""

import hashlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Complex, Real
from pathlib import Path
from typing import Any

from minirl.verify.types import ERROR, RIGHT, WRONG, Problem, Verdict, VerifierError


class CustomReward:
    """A function of a file as a verifier. The file is run once, in the worker; relative imports do not work in it."""

    wants_rollout = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.function = load_function(name)
        self.self_test: Callable[[], object] | None = getattr(self.function, "self_test", None)

    def __call__(self, problem: Problem, response: str, rollout: Mapping[str, Any] | None = None) -> Verdict:
        try:
            return as_verdict(self.function(problem, response, rollout or {}))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything; it becomes "error"
            text = f"reward {self.name} failed on problem {problem.id}, rollout {str(dict(rollout or {}))[:300]}"
            return Verdict(ERROR, detail=f"{text}: {type(error).__name__}: {error}"[:2000])


def reward_file(name: str) -> Path | None:
    """The file of a verifier that is called `path/to/file.py:function`; None for one of ours."""
    return Path(name.rpartition(":")[0]).expanduser() if ".py:" in name else None


def load_function(name: str) -> Callable[..., Any]:
    """The function that `path/to/file.py:function` names, or a VerifierError that says what is missing."""
    path, _, attribute = name.rpartition(":")
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise VerifierError(f"no file {path} (from the reward {name!r})")
    # One name a path; it begins as that of an estimator's file does, by which errors find the line of the user's own code.
    module_name = f"minirl_own_function_{file.stem}_{hashlib.sha256(bytes(file)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise VerifierError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up there, for annotations that are texts
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise VerifierError(f"{path} does not load: {type(error).__name__}: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise VerifierError(f"{path} has no function {attribute!r}")
    return function


def as_verdict(result: Any) -> Verdict:
    """What a reward function returned, as a Verdict. TypeError or ValueError for what is neither a finite number nor a record
    whose fields have the types of Verdict's."""
    if isinstance(result, Mapping):
        result = Verdict(**result)
    if isinstance(result, Verdict):
        if result.status not in (RIGHT, WRONG, ERROR):
            raise ValueError(f"status must be right, wrong or error, not {result.status!r}")
        texts = {"label": result.label, "detail": result.detail} | ({} if result.key is None else {"key": result.key})
        if wrong := [name for name, value in texts.items() if not isinstance(value, str)]:
            raise TypeError(f"{wrong[0]} must be a text, not {texts[wrong[0]]!r}")
        if not isinstance(result.terms, Mapping) or not all(isinstance(name, str) for name in result.terms):
            raise TypeError(f"terms must be a mapping from names to numbers, not {result.terms!r}")
        terms = {name: finite(value, f"the term {name!r}") for name, value in result.terms.items()}
        reward = None if result.reward is None else finite(result.reward)
        return replace(result, reward=reward, seconds=finite(result.seconds, "seconds"), terms=terms)
    reward = finite(result)
    return Verdict(RIGHT if reward >= 1 else WRONG, reward=reward)


def finite(number: Any, what: str = "the reward") -> float:
    """A real number as a float: int, float, Fraction, numpy or torch scalar. Arrays, even of one number, are refused."""
    shape = getattr(number, "shape", ())  # of a scalar of numpy or torch: ()
    if not hasattr(number, "__float__") or tuple(shape) or (isinstance(number, Complex) and not isinstance(number, Real)):
        described = f"{type(number).__name__} of shape {tuple(shape)}" if shape else type(number).__name__
        wanted = "it must return a number, a Verdict or a mapping" if what == "the reward" else f"{what} must be a number"
        raise TypeError(f"{wanted}, not {described}")
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{what} must be finite, not {number}")
    return value


def reward_of(verdict: Verdict) -> float:
    """The number: the verdict's own reward, else 1 for right and 0 for wrong. An error has none: ValueError."""
    if verdict.status == ERROR:
        raise ValueError(f"an error has no reward: {verdict.detail}")
    return verdict.reward if verdict.reward is not None else float(verdict.status == RIGHT)
