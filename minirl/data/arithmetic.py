"""A second, smaller embedded task: products of a three-digit and a one-digit number, answered in a box.

All 900 x 8 = 7,200 problems are generated. A shuffle with a fixed seed holds out `HELD_OUT` of them, which neither the embedded
model's warm start nor any training run sees.
"""

import random

from minirl.verify.types import Problem

HELD_OUT = 512
_SPLIT_SEED = 20_260_101


def problems(split: str) -> list[Problem]:
    """The problems of a split, "train" or "test", in a fixed order."""
    pairs = [(a, b) for a in range(100, 1000) for b in range(2, 10)]
    random.Random(_SPLIT_SEED).shuffle(pairs)
    if split not in ("train", "test"):
        raise ValueError(f"the arithmetic task has the splits train and test, not {split!r}")
    chosen = pairs[:HELD_OUT] if split == "test" else pairs[HELD_OUT:]
    return [Problem(id=f"{a}*{b}", prompt=f"{a}*{b}=", answer=str(a * b)) for a, b in chosen]
