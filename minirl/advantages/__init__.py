"""Group -> advantages, as small interchangeable classes: no torch, no communication; randomness only where a group names it.

    build("dapo+edas")(Group(rewards, correct, labels))     # float[N] advantages of one group

    paper.py       GRPO, DAPO, PKPO, entropy shaping, EDAS: read this one
    baselines.py   other base estimators: RLOO, MaxRL, pass@k, W-REINFORCE, NGRPO ...
    shaping.py     other wrappers, and the controls of EDAS
    group.py       what they see and may ask for; registry.py their names; own.py those of your own; diversity.py what every run
                   reports

A new estimator is one frozen dataclass with `__call__`, in a file of your own (`--algorithm.estimator=file.py:Class`) or in one
of these; its `option` fields become options of the command line. docs/algorithms/ has a page for each, with numbers.
"""

from minirl.advantages.baselines import GPG, NGRPO, NSR, OPO, PSR, QAE, RLOO, MaxRL, PassK, ReinforcePP, Unlikely, WReinforce
from minirl.advantages.diversity import diversity, edas_of
from minirl.advantages.group import (
    LIMITS,
    Estimator,
    Floats,
    Group,
    Requirements,
    Wrapper,
    check,
    check_limits,
    has_signal,
    option,
    schedule,
)
from minirl.advantages.own import evaluated, failures_of, kept, own_class, parts_of, place_of
from minirl.advantages.paper import DAPO, EDAS, GRPO, PKPO, EntropyShaped, centred, rho, surprise
from minirl.advantages.registry import BASES, PAPER, WITH_OPTIONS, WRAPPERS, base_estimator, build, known_names
from minirl.advantages.shaping import ACE, FGRPO, LEAD, Explore, InvertedEDAS, OnlyB, OnlyC, ShuffledEDAS

__all__ = [
    "ACE", "BASES", "DAPO", "EDAS", "FGRPO", "GPG", "GRPO", "LEAD", "LIMITS", "NGRPO", "NSR", "OPO", "PAPER", "PKPO", "PSR",
    "QAE", "RLOO", "WITH_OPTIONS", "WRAPPERS", "EntropyShaped", "Estimator", "Explore", "Floats", "Group", "InvertedEDAS",
    "MaxRL", "OnlyB", "OnlyC", "PassK", "ReinforcePP", "Requirements", "ShuffledEDAS", "Unlikely", "WReinforce", "Wrapper",
    "base_estimator", "build", "centred", "check", "check_limits", "diversity", "edas_of", "evaluated", "failures_of",
    "has_signal", "kept", "known_names", "option", "own_class", "parts_of", "place_of", "rho", "schedule", "surprise",
]  # fmt: skip
