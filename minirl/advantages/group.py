"""What an advantage estimator sees, a group of responses, and what it may ask of the rest of the run."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import cos, pi
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Arrays = Sequence[NDArray[np.floating]]


@dataclass(frozen=True)
class Group:
    """All N responses to one prompt.

    rewards: float[N], NaN where the verifier had no verdict (such a response counts nowhere and gets advantage 0);
    correct: bool[N]; labels: N error classes E(y), read for wrong responses only, "" where the verifier gave none;
    scores: float[N] rewards before any shaping by length, the same as `rewards` if None; lengths: int[N] response tokens;
    entropies, logprobs, ref_logprobs: N arrays float[T_i] in nats, or None: at each response token the policy's full-vocabulary
    entropy, and the log-prob of the token under the policy before the update and under the reference model;
    progress: of the run, 0 at its first step and 1 at its last; number: draw number of the prompt, which with the run's seed
    names every random choice that an estimator makes in this group.

    Lists will do for arrays. ValueError where there are not N of each. The arrays cannot be written to.
    """

    rewards: Floats
    correct: NDArray[np.bool_]
    labels: Sequence[str]
    scores: Floats | None = None
    entropies: Arrays | None = None
    logprobs: Arrays | None = None
    ref_logprobs: Arrays | None = None
    lengths: NDArray[np.integer] | None = None
    progress: float = 0.0
    number: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in (("rewards", np.float64), ("correct", np.bool_), ("scores", np.float64), ("lengths", None)):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, read_only(values, kind))
        for name in ("entropies", "logprobs", "ref_logprobs"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, [read_only(value, None) for value in values])
        arrays = ("rewards", "correct", "labels", "scores", "lengths", "entropies", "logprobs", "ref_logprobs")
        found = {name: len(values) for name in arrays if (values := getattr(self, name)) is not None}
        check(len(set(found.values())) == 1, f"a group has one of each for every response, not {found}")

    @property
    def valid(self) -> NDArray[np.bool_]:
        """bool[N]: responses that have a verdict."""
        return ~np.isnan(self.rewards)

    @property
    def right(self) -> NDArray[np.bool_]:
        """bool[N]: responses judged right."""
        return self.valid & self.correct

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """bool[N]: responses judged wrong."""
        return self.valid & ~self.correct

    @property
    def classified(self) -> NDArray[np.bool_]:
        """bool[N]: wrong responses with an error class, the paper's W; all wrong ones if the verifier labels all."""
        return self.wrong & np.array([bool(label) for label in self.labels], dtype=bool)

    @property
    def accuracy(self) -> float:
        """c / N, the share of right responses among those with a verdict; 0 of none."""
        return float(self.right.sum() / max(1, self.valid.sum()))

    def now(self, value: Any) -> float:
        """The value that a numeric option has at this point of the run: itself, or a schedule's at `progress`."""
        if not isinstance(value, str):
            return value
        begin, end, shape = schedule(value)
        share = (1 - cos(pi * self.progress)) / 2 if shape == "cosine" else self.progress
        return begin + (end - begin) * share


def read_only(values: Any, kind: Any) -> NDArray[Any]:
    """`values` as an array of one dimension that cannot be written to; it shares memory. ValueError for more dimensions."""
    array = np.asarray(values, dtype=kind).view()
    check(array.ndim == 1, f"a group's arrays have one dimension, not the shape {array.shape}")
    array.flags.writeable = False
    return array


def schedule(text: str) -> tuple[float, float, str]:
    """(first value, last value, "linear" or "cosine") of "0.4 -> 0.1" or "0.4 -> 0.1 cosine". ValueError for anything else."""
    begin, arrow, rest = text.partition("->")
    end, *shape = rest.split()
    values = float(begin), float(end)
    if not arrow or shape not in ([], ["linear"], ["cosine"]) or not np.isfinite(values).all():
        raise ValueError(text)
    return (*values, shape[0] if shape else "linear")


@dataclass(frozen=True)
class Requirements:
    """What an estimator asks of the rest of the run; the config can override the first four and the loss.

    needs_entropy, needs_logprobs, needs_ref_logprobs: which of `Group`'s arrays are read, so that the others are not computed;
    min_group_size: responses to a prompt at least; loss: name of the policy loss that its advantages are made for.
    """

    dynamic_sampling: bool
    clip_low: float
    clip_high: float
    loss_agg_mode: str
    needs_entropy: bool = False
    min_group_size: int = 2
    needs_logprobs: bool = False
    needs_ref_logprobs: bool = False
    loss: str = "ppo"


@dataclass(frozen=True)
class Estimator:
    """Maps a group to one advantage a response (float[N]) or one a token (N arrays float[T_i]).

    A subclass is a frozen dataclass with `name`, `source`, `__call__`, and options made by `option`. What is below are the
    defaults of all else that it can decide.
    """

    name: ClassVar[str] = ""
    source: ClassVar[str] = ""

    @property
    def requirements(self) -> Requirements:
        """What it asks of the run: GRPO's unless it says otherwise."""
        return Requirements(False, clip_low=0.2, clip_high=0.2, loss_agg_mode="seq-mean-token-mean")

    def __call__(self, group: Group) -> Any:
        """The advantages of `group`. TypeError for a subclass that does not say what they are."""
        raise TypeError(f"{type(self).__name__} does not define __call__")

    def keeps(self, group: Group) -> bool:
        """Whether dynamic sampling keeps the group: right and wrong responses are both there."""
        return bool(group.right.any() and group.wrong.any())

    def weights(self, group: Group) -> Floats:
        """float[N], weight of each response in the loss; 0: it is in the group's statistics and in no count of the loss."""
        return np.ones(len(group.rewards))

    def fitted(self, groups: Sequence[Group]) -> "Estimator":
        """The estimator for one batch, with what it reads of the batch as a whole."""
        return self

    def __post_init__(self) -> None:
        for f in fields(self):
            value, name = getattr(self, f.name), f"estimator.{self.name or 'custom'}.{f.name}"
            if isinstance(f.default, bool):
                check(isinstance(value, bool), f"{name} must be true or false, not {value!r}")
            if "help" not in f.metadata or not is_number(f.default):
                check_limits(value, f.metadata, name)
                continue
            value = number(value, name)
            object.__setattr__(self, f.name, float(value) if isinstance(value, int) and isinstance(f.default, float) else value)
            for value in self.values(f.name):
                check_limits(value, f.metadata, name)

    def values(self, name: str) -> tuple[float, ...]:
        """The smallest set of values between which an option stays during a run: one, or the two ends of its schedule."""
        value = getattr(self, name)
        return schedule(value)[:2] if isinstance(value, str) else (value,)


@dataclass(frozen=True)
class Wrapper(Estimator):
    """An estimator that reshapes the advantages of another one, its `base`, and asks of the run what that asks."""

    base: Estimator = field(default=Estimator(), kw_only=True)

    @property
    def requirements(self) -> Requirements:
        return self.base.requirements

    def keeps(self, group: Group) -> bool:
        return self.base.keeps(group)

    def weights(self, group: Group) -> Floats:
        return self.base.weights(group)

    def fitted(self, groups: Sequence[Group]) -> Estimator:
        return replace(self, base=self.base.fitted(groups))

    def advantages(self, group: Group) -> Floats:
        """float[N] of the base. TypeError where that gives one a token."""
        advantages, name = self.base(group), self.name or type(self).__name__
        if not isinstance(advantages, np.ndarray) or advantages.shape != group.rewards.shape:
            raise TypeError(f"{name} shapes one advantage a response, float[N]: write entropy last, as in dapo+{name}+entropy")
        return advantages


def option(default: Any, text: str, **limits: Any) -> Any:
    """A dataclass field that is an option of the command line: its one-line meaning, and those of `LIMITS` that it has.

    A numeric option of an estimator may be given as a schedule; its limits hold for both ends, and `Group.now` reads it.
    """
    return field(default=default, metadata={"help": text, **limits})


# Limit of an option -> (whether a value keeps it, how it is said).
LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "choices": (lambda value, known: value in known, "one of"),
    "minimum": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "maximum": (operator.le, "at most"),
    "below": (operator.lt, "below"),
    "whole": (lambda value, _: value == int(value), "a whole number"),
}


def check_limits(value: Any, limits: Mapping[str, Any], name: str) -> None:
    """ValueError unless `value`, of the option called `name`, keeps those of `limits` that are among LIMITS. None keeps all."""
    for limit in LIMITS.keys() & limits if value is not None else ():
        holds, words = LIMITS[limit]
        bound = ", ".join(limits[limit]) if limit == "choices" else "" if limit == "whole" else f"{limits[limit]}"
        said = f"{value:g}" if isinstance(value, float) else repr(value)
        try:
            sound = holds(value, limits[limit])
        except (TypeError, ValueError):  # not even a number
            sound = False
        check(sound, f"{name} must be {f'{words} {bound}'.strip()}, not {said}")


def is_number(value: Any) -> bool:
    """Whether a value is a number or the text of a schedule."""
    return "->" in value if isinstance(value, str) else isinstance(value, int | float) and not isinstance(value, bool)


def number(value: Any, name: str) -> Any:
    """`value` as an int or float, or the text of a schedule. ValueError for anything else; name: of the option."""
    if isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value):
        return value
    if isinstance(value, str):
        try:
            return schedule(value) and " ".join(value.split()) if "->" in value else number(float(value), name)
        except ValueError:
            pass
    raise ValueError(f"{name} takes a number, or a schedule such as '0.4 -> 0.1' or '0.4 -> 0.1 cosine', not {value!r}")


def check(condition: bool, message: str) -> None:
    """ValueError with `message` unless `condition`."""
    if not condition:
        raise ValueError(message)


def differ(values: NDArray[np.floating]) -> bool:
    """Whether the values are not all equal, up to the noise of floating-point sums: .1 + .2 is .3."""
    return len(values) > 1 and bool(np.ptp(values) > 1e-9 * np.abs(values).max())


def has_signal(group: Group) -> bool:
    """Whether the group's scores are not all equal (for right and wrong: its accuracies)."""
    return differ((group.rewards if group.scores is None else group.scores)[group.valid])
