"""An estimator of your own: advantages over the group's mean, which is divided by no less than `floor`.

    python train.py --algorithm.estimator=examples/estimator.py:Floored+edas --estimator.custom='{floor: 0.2}'

`floor` may move with the run, as in {floor: 0.5 -> 0.1}, since it is read by `group.now`. EDAS and the other wrappers go around
it, comparisons take it (`python -m minirl.ablate --estimators dapo,examples/estimator.py:Floored`), and runs with it resume and
replay exactly.
"""

from dataclasses import dataclass
from typing import Any

from minirl.advantages import Estimator, Floats, Group, centred, option


@dataclass(frozen=True)
class Floored(Estimator):
    """(r - mean) / max(floor, mean)."""

    floor: Any = option(0.1, "smallest mean that is divided by", above=0)

    def __call__(self, group: Group) -> Floats:
        """float[N] of N responses; group has rewards float[N], correct bool[N], labels of wrong answers, and more."""
        valid = group.rewards[group.valid]
        return centred(group.rewards, std=False) / max(group.now(self.floor), valid.mean() if len(valid) else 1.0)
