"""Four-shot plain-text arithmetic for a real pretrained model that was never trained on a format: "9 * 8 = " and a newline.

One-digit products and sums are right about half of the time for a 135M model, larger ones seldom, so that groups hold right,
repeated wrong and rare wrong answers. Use with data.chat=false, rollout.stop=["\\n"] and verifier.answer=whole.
"""

import random

from minirl.verify.types import Problem

HELD_OUT = 60
_SEED = 20_260_102


def problems(split: str) -> list[Problem]:
    """All problems of a split, "train" or "test", in a fixed order: a * b for one digit by one or two digits, and sums."""
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
        # Shots come from the training side only, never with the asked problem's own operands.
        shots = rng.sample([fact for fact in rest if fact[1] == op and {fact[0], fact[2]} != {a, b}], 4)
        lines = [f"{x} {o} {y} = {solve(x, o, y)}" for x, o, y in shots]
        made.append(Problem(id=f"{a}{op}{b}", prompt="\n".join([*lines, f"{a} {op} {b} ="]), answer=str(solve(a, op, b))))
    return made


def solve(a: int, op: str, b: int) -> int:
    """a * b or a + b."""
    return a * b if op == "*" else a + b
