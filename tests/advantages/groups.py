"""Groups of binary rewards, written as their wrong answers."""

import numpy as np

from minirl.advantages import Group


def group(wrong: str, right: int, **more) -> Group:
    """A binary-reward group: one wrong response a letter, then `right` right ones."""
    labels = list(wrong) + [""] * right
    correct = np.array([False] * len(wrong) + [True] * right)
    return Group(correct.astype(float), correct, labels, **more)


# Those of the golden values of other people's estimators, N = 10: 1, 3 and no right response.
G1, G3, G0 = group("aaaabbbcd", 1), group("aaaabbc", 3), group("aaaaaabbbb", 0)
