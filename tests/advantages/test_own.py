"""Classes of the user's own: how their files are found, and what is said of one that fails or gives nonsense."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from minirl.advantages import GRPO, Group, build, evaluated, kept, own_class, parts_of
from minirl.advantages.own import MODULES
from minirl.config.command_line import load
from minirl.utils.errors import ConfigError, RunError
from tests.advantages.groups import G1, group

FILE = """
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minirl.advantages import GRPO, Estimator, Requirements, Wrapper, option


@dataclass(frozen=True)
class Gives(Estimator):
    what: str = "nothing"
    share: float = option(0.5, "a share", minimum=0, maximum=1)
    kind: str = option("a", "a text that is no number")

    def __call__(self, group):
        n = len(group.rewards)
        return {
            "list": [1.0] * n,
            "tokens": [np.ones(int(length)) for length in group.lengths] if group.lengths is not None else None,
            "wrong tokens": [np.ones(7)] * n,
            "nan": np.full(n, np.nan),
            "short": np.zeros(n - 1),
            "table": np.zeros((n, 2)),
            "number": np.float64(3.0),
            "texts": ["a"] * n,
            "nothing": None,
        }[self.what]


@dataclass(frozen=True)
class Raises(Estimator):
    def __call__(self, group):
        return {}["x"]  # line 39


@dataclass(frozen=True)
class InNumpy(Estimator):
    def __call__(self, group):
        return np.zeros(2) + np.zeros(3)


@dataclass(frozen=True)
class Writes(Estimator):
    where: str = "rewards"

    def __call__(self, group):
        advantages = GRPO()(group)
        array = getattr(group, self.where)
        (array if self.where in ("rewards", "correct", "scores", "lengths") else array[0])[:] = 0
        return advantages


@dataclass(frozen=True)
class Weighs(GRPO):
    weight: float = -1.0

    def weights(self, group):
        return np.full(len(group.rewards), self.weight)


@dataclass(frozen=True)
class Fits(GRPO):
    def fitted(self, groups):
        return len(groups)


@dataclass(frozen=True)
class Late(Estimator):
    requirements = Requirements(True, 0.2, 0.2, "token-mean")

    def __call__(self, group):
        return GRPO()(group)

    def keeps(self, group):
        if group.seed == 5:
            return 1 / 0
        return None if group.seed == 6 else group.progress > 0.5


@dataclass(frozen=True)
class Times(Wrapper):
    factor: Any = option(2.0, "times")

    def __call__(self, group):
        return group.now(self.factor) * self.advantages(group)


@dataclass(frozen=True)
class Plus(Wrapper):
    def __call__(self, group):
        return self.advantages(group) + 1


@dataclass(frozen=True)
class NoDefault(Estimator):
    floor: float

    def __call__(self, group):
        return GRPO()(group)


@dataclass(frozen=True)
class Asks(Estimator):
    @property
    def requirements(self):
        raise LookupError("where")
"""


@pytest.fixture
def own(tmp_path):
    """The file's path, in a folder whose name has a plus."""
    (tmp_path / "a+b").mkdir()
    (tmp_path / "a+b" / "own.py").write_text(FILE)
    return f"{tmp_path}/a+b/own.py"


def made(own, name, **options):
    """What the class gives of two groups, as a run takes it."""
    g = replace(G1, lengths=np.full(10, 3))
    return evaluated(name, own_class(f"{own}:{name}", object)(**options), [g, g])


def test_a_plus_in_a_path_that_exists_joins_no_parts(own):
    assert parts_of(f"grpo+{own}:Times+edas") == ["grpo", f"{own}:Times", "edas"]
    assert parts_of(f"{own}:Gives+{own}:Times+{own}:Plus") == [f"{own}:Gives", f"{own}:Times", f"{own}:Plus"]
    assert parts_of("grop+absent.py:X+edas") == ["grop", "absent.py:X", "edas"]
    assert load([f"--algorithm.estimator=grpo+{own}:Plus"]).own_code == [f"{own}:Plus"]


def test_wrappers_of_one_s_own_combine_and_none_stands_twice(own):
    # mean .1, deviation .9 and -.1: twice that, plus 1
    plain = GRPO()(G1)
    both = load([f"--algorithm.estimator=grpo+{own}:Times+{own}:Plus", "--estimator.custom={factor: 1 -> 3}"]).build_estimator()
    np.testing.assert_allclose(both(replace(G1, progress=0.5)), 2 * plain + 1)
    with pytest.raises(ValueError, match="twice"):
        build(f"grpo+{own}:Plus+edas+{own}:Plus")


def test_a_file_whose_annotations_are_texts_loads_and_one_that_fails_leaves_nothing(own, tmp_path):
    assert build(f"{own}:Gives").share == 0.5
    (tmp_path / "broken.py").write_text("x = 1\n1 / 0\n")
    with pytest.raises(ValueError, match="does not load: ZeroDivisionError"):
        build(f"{tmp_path}/broken.py:X")
    assert not [name for name in sys.modules if name.startswith(f"{MODULES}broken")]


def test_two_files_of_one_name_are_two(own, tmp_path):
    (tmp_path / "own.py").write_text(FILE.replace("+ 1", "+ 5"))
    first, second = build(f"grpo+{own}:Plus"), build(f"grpo+{tmp_path}/own.py:Plus")
    np.testing.assert_allclose(second(G1) - first(G1), 4)
    assert type(first).__module__ != type(second).__module__
    assert sys.modules[type(first).__module__].Plus is type(first)


@pytest.mark.parametrize("what", ["list", "tokens"])
def test_what_is_promised_is_taken(own, what):
    for advantages, weights in made(own, "Gives", what=what):
        assert np.concatenate([np.broadcast_to(a, 3) for a in advantages]).tolist() == [1.0] * 30
        assert weights.tolist() == [1.0] * 10


@pytest.mark.parametrize("what", ["nan", "short", "table", "number", "texts", "nothing", "wrong tokens"])
def test_other_advantages_are_refused_by_name(own, what):
    with pytest.raises(ValueError, match=r"^Gives gives .* for a group of 10: it must be 10 finite advantages"):
        made(own, "Gives", what=what)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_other_weights_are_refused_by_name(own, weight):
    with pytest.raises(ValueError, match=r"^Weighs: weights gives .* must be 10 numbers of at least 0"):
        made(own, "Weighs", weight=weight)


def test_what_is_fitted_must_be_an_estimator(own):
    with pytest.raises(ValueError, match="Fits: fitted gives int 2, not an estimator"):
        made(own, "Fits")


def test_what_is_raised_is_said_with_its_line(own):
    line = 1 + FILE.splitlines().index('        return {}["x"]  # line 39')
    with pytest.raises(ValueError, match=rf"^Raises failed in .*own\.py, line {line}: KeyError: 'x'$"):
        made(own, "Raises")
    with pytest.raises(
        ValueError, match=r"^InNumpy failed in .*own\.py, line \d+: ValueError: operands could not be broadcast"
    ):
        made(own, "InNumpy")
    with pytest.raises(ConfigError, match=r"Asks failed in .*own\.py, line \d+: LookupError: where"):
        load([f"--algorithm.estimator={own}:Asks"])


def test_our_own_faults_stay_what_they_are():
    class Broken(GRPO):
        def __call__(self, group):
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        evaluated("broken", Broken(), [G1])


ARRAYS = ("rewards", "correct", "scores", "lengths", "entropies", "logprobs", "ref_logprobs")


@pytest.mark.parametrize("where", ARRAYS)
def test_nothing_of_a_group_can_be_written_to(own, where):
    tokens = [np.full(3, -1.0) for _ in range(10)]
    more = {name: tokens for name in ("entropies", "logprobs", "ref_logprobs")}
    g = replace(G1, scores=G1.rewards, lengths=np.full(10, 3), **more)
    estimator = own_class(f"{own}:Writes", object)(where=where)
    with pytest.raises(ValueError, match=r"Writes failed in .*, line \d+: ValueError: assignment destination is read-only"):
        evaluated("Writes", estimator, [g])
    assert all(x.tolist() == [-1.0] * 3 for x in tokens)
    tokens[0][:] = 0.0  # the run's own may still be written to


def test_dynamic_sampling_asks_at_the_step_s_progress_with_the_run_s_seed(own):
    config = load([f"--algorithm.estimator={own}:Late", "--run.seed=3"])
    assert [config.keeps(progress)(group("", 3)) for progress in (0.0, 0.4, 0.6)] == [False, False, True]
    assert not load(["--algorithm.estimator=dapo"]).keeps(1.0)(group("", 3))
    with pytest.raises(RunError, match=r"Late failed in .*, line \d+: ZeroDivisionError: division by zero"):
        load([f"--algorithm.estimator={own}:Late", "--run.seed=5"]).keeps(0.0)(G1)
    with pytest.raises(RunError, match="Late: keeps gives NoneType None, not True or False"):
        load([f"--algorithm.estimator={own}:Late", "--run.seed=6"]).keeps(0.0)(G1)
    assert kept("dapo", build("dapo"), G1) is True


@pytest.mark.parametrize(
    ("name", "custom", "problem"),
    [
        ("Gives", "{share: 1.5}", r"^estimator\.custom\.share must be at most 1, not 1\.5$"),
        ("Gives", "{share: 0.5 -> -1}", r"estimator\.custom\.share must be at least 0, not -1"),
        ("Gives", "{share: x}", r"^estimator\.custom\.share takes a number"),
        ("Gives", "{shar: 1}", "has options of no class"),
        ("Plus", "{base: 3}", "has options of no class"),
        ("NoDefault", "{}", "does not fit .*NoDefault: .*floor"),
    ],
)
def test_options_that_do_not_fit_are_refused(own, name, custom, problem):
    estimator = f"grpo+{own}:{name}" if name == "Plus" else f"{own}:{name}"
    with pytest.raises(ConfigError, match=problem):
        load([f"--algorithm.estimator={estimator}", f"--estimator.custom={custom}"])


def test_a_text_option_is_a_text(own):
    c = load([f"--algorithm.estimator={own}:Gives", "--estimator.custom={kind: b, share: 1}"])
    assert (c.build_estimator().kind, c.build_estimator().share) == ("b", 1.0)


def test_a_wrapper_says_what_its_base_gives(own):
    with pytest.raises(TypeError, match="Plus shapes one advantage a response"):
        build(f"{own}:Gives+{own}:Plus")(Group(np.zeros(2), np.zeros(2, bool), ["a", "b"]))
