"""Names of estimators, what they ask of a run, and classes of the user's own."""

from dataclasses import replace

import pytest

from minirl.advantages import (
    BASES,
    DAPO,
    EDAS,
    GRPO,
    NGRPO,
    PAPER,
    WRAPPERS,
    EntropyShaped,
    MaxRL,
    Requirements,
    ShuffledEDAS,
    build,
    known_names,
)
from minirl.config.command_line import load
from tests.advantages.groups import G1


def test_names_of_the_paper_compose():
    assert build("grpo") == GRPO()
    assert build("dapo+edas") == EDAS(base=DAPO())
    assert build("grpo+edas") == EDAS(base=GRPO())
    assert build("dapo+entropy") == EntropyShaped(base=DAPO())
    assert build("dapo+edas+entropy") == EntropyShaped(base=EDAS(base=DAPO()))
    for name in PAPER:
        assert build(name).requirements.min_group_size >= 2


@pytest.mark.parametrize("name", ["grop", "edas", "dapo+edsa", "grpo+", "", "grpo+edas+edas", "dapo+entropy+edas", "grpo+dapo"])
def test_bad_names_say_what_is_known(name):
    with pytest.raises(ValueError, match=r"grpo.*dapo|twice|last"):
        build(name)


def test_recipes_are_those_of_the_base():
    assert build("dapo+edas").requirements == Requirements(True, 0.2, 0.28, "token-mean")
    assert build("grpo+edas").requirements == Requirements(False, 0.2, 0.2, "seq-mean-token-mean")
    assert build("dapo+entropy").requirements.needs_entropy
    assert not build("dapo+edas").requirements.needs_entropy


def test_any_base_takes_any_wrapper():
    assert build("ngrpo+edas") == EDAS(base=NGRPO())
    assert build("maxrl+edas-shuffled") == ShuffledEDAS(base=MaxRL())
    for base in BASES:
        for wrapper in WRAPPERS:
            estimator = build(f"{base}+{wrapper}")
            assert estimator.base == build(base)
            if wrapper not in ("entropy", "ace"):
                assert estimator.requirements == estimator.base.requirements


def test_a_control_has_the_options_of_the_edas_it_controls():
    c = load(["--algorithm.estimator=dapo+edas-shuffled", "--estimator.edas.alpha=0.3", "--estimator.dapo.std=false"])
    assert c.build_estimator() == ShuffledEDAS(0.3, 0.2, 2.0, base=DAPO(std=False))
    with pytest.raises(ValueError, match="twice"):
        build("dapo+edas+edas-shuffled")


def test_every_name_is_known_and_has_a_source():
    for name, cls in (BASES | WRAPPERS).items():
        assert name in known_names()
        assert cls.name == name
        assert cls.source
        assert cls.__doc__


def test_the_loss_that_an_estimator_asks_for_can_be_overridden():
    assert load(["--algorithm.estimator=gpg"]).algorithm.loss == "reinforce"
    c = load(["--algorithm.estimator=gpg", "--algorithm.loss=gspo", "--algorithm.clip_high=0.1"])
    assert (c.build_loss().name, c.algorithm.clip_low, c.algorithm.clip_high) == ("gspo", 3e-4, 0.1)
    assert c.algorithm.loss_agg_mode == "seq-mean-token-mean"
    assert load(["--algorithm.estimator=dapo"]).algorithm.loss == "ppo"


def test_a_reference_is_kept_for_those_who_read_it():
    needs = {name: load([f"--algorithm.estimator={name}"]).needs_reference for name in ("dapo", "dapo+ace", "unlikely")}
    assert needs == {"dapo": False, "dapo+ace": True, "unlikely": False}
    assert load(["--algorithm.kl_reward_coef=0.1", "--algorithm.estimator=grpo"]).needs_reference


OWN = """
from dataclasses import dataclass
from minirl.advantages import Estimator, Wrapper, centred, option

@dataclass(frozen=True)
class Floored(Estimator):
    floor: float = option(0.5, "smallest mean that is divided by")

    def __call__(self, group):
        return centred(group.rewards, std=False) / max(self.floor, group.rewards[group.valid].mean())

@dataclass(frozen=True)
class Double(Wrapper):
    def __call__(self, group):
        return 2 * self.advantages(group)

class Nothing:
    pass
"""


def test_classes_of_the_user_s_own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    own = f"{tmp_path}/own.py"
    assert build(f"{own}:Floored+edas")(G1)[-1] == pytest.approx(0.9 / 0.5)
    c = load([f"--algorithm.estimator={own}:Floored+{own}:Double", "--estimator.custom={floor: 0.2}"])
    estimator = c.build_estimator()
    assert estimator.base.floor == 0.2
    assert estimator(G1)[-1] == pytest.approx(2 * 0.9 / 0.2)
    assert c.own_code == [f"{own}:Floored", f"{own}:Double"]
    assert replace(estimator, base=GRPO()).requirements == Requirements(False, 0.2, 0.2, "seq-mean-token-mean")


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("own.py:Missing", None, "no class 'Missing'"),
        ("own.py:Nothing", None, "subclass of minirl"),
        ("absent.py:Floored", None, "no file"),
        ("broken.py:Floored", None, "does not load: ZeroDivisionError"),
        ("own.py:Floored", "{flor: 1}", "has options of no class"),
    ],
)
def test_what_is_wrong_with_a_class_of_the_user_s_own_is_said(tmp_path, name, options, problem, capsys):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("1 / 0")
    from minirl.utils.errors import ConfigError

    with pytest.raises(ConfigError, match=problem):
        load([f"--algorithm.estimator={tmp_path}/{name}", *([f"--estimator.custom={options}"] if options else [])])
