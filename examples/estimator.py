"""An estimator of your own: advantages over the group's mean, which is divided by no less than `floor`.

    python train.py --algorithm.estimator=examples/estimator.py:Floored+edas --estimator.custom='{floor: 0.2}'

EDAS and the other wrappers go around it, comparisons take it (`python -m minirl.ablate --estimators
dapo,examples/estimator.py:Floored`), and runs with it resume and replay exactly.
"""

from dataclasses import dataclass

import numpy as np

from minirl.advantages import Estimator, Floats, Group, centred, option


@dataclass(frozen=True)
class Floored(Estimator):
    """(r - mean) / max(floor, mean)."""

    floor: float = option(0.1, "smallest mean that is divided by")

    def __call__(self, group: Group) -> Floats:
        """float[N] of N responses; group has rewards float[N], correct bool[N], labels of wrong answers, and more."""
        return centred(group.rewards, std=False) / max(self.floor, float(np.nanmean(group.rewards)))
