r"""The embedded task: two-step calculations by rules that a letter names, in the open, with the answer in a box.

A problem is `E352=`: a rule's letter and three digits a, b, c from 1 to 9. The response shows the way and boxes the result:
`3+5=8;8*2=16;\boxed{16}`. There are 24 rules; each is one of the seven `PROCEDURES`, and nothing in the problem tells which. A
wrong answer is usually the wrong procedure, so that many responses of a group share one wrong way, as they do in mathematics.
All 24 x 729 = 17,496 problems are generated. A shuffle with a fixed seed holds out `HELD_OUT` of them, which neither the
embedded model's warm start nor any training run sees; every rule occurs in both parts.
"""

import math
import random
from dataclasses import dataclass
from itertools import product

from minirl.verify.types import Problem

HELD_OUT = 512
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWX"
# (x, operation, y, operation, z): x op y, then the result op z; 0, 1, 2 are the problem's digits a, b, c.
PROCEDURES = (
    (0, "+", 1, "*", 2), (0, "*", 1, "+", 2), (0, "*", 2, "+", 1), (1, "*", 2, "+", 0), (0, "*", 1, "-", 2),
    (0, "+", 2, "*", 1), (1, "+", 2, "*", 0),
)  # fmt: skip
_SPLIT_SEED, _RULES_SEED = 1, 7


@dataclass(frozen=True)
class Rule:
    """A rule's procedures as indices into PROCEDURES: the right one, then its misconceptions, the commonest first.

    right and dominant belong to the careless teacher of the embedded model's warm start: the chance of the right procedure,
    and the share of the commonest misconception among the wrong ones.
    """

    procedures: list[int]
    right: float
    dominant: float


def _rules() -> dict[str, Rule]:
    rng = random.Random(_RULES_SEED)

    def rule() -> Rule:
        order = rng.sample(range(len(PROCEDURES)), len(PROCEDURES))
        return Rule(order, math.exp(rng.uniform(math.log(0.002), math.log(0.7))), rng.uniform(0.75, 0.97))

    return {letter: rule() for letter in LETTERS}


RULES = _rules()


def work(procedure: int, digits: tuple[int, ...]) -> tuple[str, int]:
    """(the two steps as a response writes them, the result) of a procedure: "3+5=8;8*2=16;" and 16."""
    x, first, y, second, z = PROCEDURES[procedure]
    half = _apply(digits[x], first, digits[y])
    result = _apply(half, second, digits[z])
    return f"{digits[x]}{first}{digits[y]}={half};{half}{second}{digits[z]}={result};", result


def _apply(x: int, operation: str, y: int) -> int:
    return {"+": x + y, "-": x - y, "*": x * y}[operation]


def problems(split: str) -> list[Problem]:
    """The problems of a split, "train" or "test", in a fixed order."""
    if split not in ("train", "test"):
        raise ValueError(f"the rules task has the splits train and test, not {split!r}")
    everything = list(product(LETTERS, range(1, 10), range(1, 10), range(1, 10)))
    random.Random(_SPLIT_SEED).shuffle(everything)
    chosen = everything[:HELD_OUT] if split == "test" else everything[HELD_OUT:]
    return [problem(letter, digits) for letter, *digits in chosen]


def problem(letter: str, digits: list[int]) -> Problem:
    """The problem of a rule and three digits."""
    name = letter + "".join(map(str, digits))
    return Problem(id=name, prompt=f"{name}=", answer=str(work(RULES[letter].procedures[0], tuple(digits))[1]))
