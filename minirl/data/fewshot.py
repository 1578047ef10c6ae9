"""Four-shot plain-text arithmetic for base models that know no answer format: lines such as "9 * 8 = 72", the last one open.

A 135M model solves about half of the one-digit products and sums, but few larger ones, so that groups have right, repeated
wrong and rare wrong answers. Use it with data.chat=false, rollout.stop=["\\n"] and verifier.answer=whole.
"""

import random

from minirl.verify.types import Problem

HELD_OUT = 60
_SEED = 20_260_102


def problems(split: str) -> list[Problem]:
    """The problems of a split, "train" or "test", in a fixed order: one digit times one or two digits, and one-digit sums."""
    if split not in ("train", "test"):
        raise ValueError(f"the few-shot task has the splits train and test, not {split!r}")
    rng = random.Random(_SEED)
    one = [(a, op, b) for a in range(2, 10) for b in range(2, 10) for op in "*+"]
    two = [(a, "*", b) for a in range(11, 20) for b in range(2, 10)]
    pairs = one + two
    rng.shuffle(pairs)
    held_out, rest = pairs[:HELD_OUT], pairs[HELD_OUT:]
    made = []
    for a, op, b in held_out if split == "test" else rest:
        # Shots come from the training split, and never have the operands of the problem itself.
        shots = rng.sample([(x, o, y) for x, o, y in rest if o == op and {x, y} != {a, b}], 4)
        lines = [f"{x} {o} {y} = {solve(x, o, y)}" for x, o, y in shots]
        made.append(Problem(id=f"{a}{op}{b}", prompt="\n".join([*lines, f"{a} {op} {b} ="]), answer=str(solve(a, op, b))))
    return made


def solve(a: int, op: str, b: int) -> int:
    """a * b or a + b."""
    return a * b if op == "*" else a + b
