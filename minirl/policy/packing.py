"""Plans micro-batches under a token budget, the same number on every rank. Pure functions of lengths.

Packed: sequences end to end without padding; responses to the same prompt share one pass over it. A prompt of P tokens with
responses of R1 ... Rn costs P + sum(Ri - 1) tokens, since the last token of a response predicts nothing.
Padded, for models that cannot be packed: B sequences, padded to the longest of L tokens, cost B * L.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np


class Unit(NamedTuple):
    """Responses that share one pass over their prompt. indices: of them; tokens: of the pass; cost: of it, in tokens."""

    indices: list[int]
    tokens: int
    cost: float


def packed_micro_batches(
    prompts: Sequence[Hashable], prompt_lengths: Sequence[int], lengths: Sequence[int], budget: int, ranks: int = 1,
    pair_cost: float = 0.0,
) -> list[list[list[int]]]:  # fmt: skip
    """For each rank its micro-batches, each a list of indices into `lengths`, responses to the same prompt together.

    prompts: equal values are equal prompts; prompt_lengths, lengths: int[N] tokens of prompt and response; budget: maximum
    tokens of a micro-batch (a longer sequence gets one of its own); pair_cost: cost of a query-key pair relative to the rest of
    a token's. Balanced by cost, the largest unit first, each to the cheapest micro-batch with room (LPT, Graham 1969).
    Micro-batches of similar cost run at the same time on all ranks, since ranks wait for each other.
    """
    units = split(prompts, prompt_lengths, lengths, budget, pair_cost)
    count = -(-max(1, -(-sum(u.tokens for u in units) // budget)) // ranks) * ranks
    while (batches := fill(units, budget, count)) is None:
        count += ranks
    batches.sort(key=lambda b: -sum(u.cost for u in b))
    return deal([[i for unit in batch for i in unit.indices] for batch in batches], ranks)


def split(
    prompts: Sequence[Hashable], prompt_lengths: Sequence[int], lengths: Sequence[int], budget: int, pair_cost: float
) -> list[Unit]:
    """The units of all responses. A group is one unit, but split where it exceeds both a quarter of the budget (smaller units
    fill micro-batches better) and four times its prompt (each unit is another pass over it)."""
    groups: dict[Hashable, list[int]] = {}
    for i, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(i)
    units = []
    for members in groups.values():
        start = prompt_lengths[members[0]]
        pieces: list[list[int]] = []
        room = 0
        for i in sorted(members, key=lambda i: -lengths[i]):
            if lengths[i] - 1 > room or not pieces:
                pieces.append([])
                room = min(budget, max(budget // 4, 4 * start)) - start
            pieces[-1].append(i)
            room -= lengths[i] - 1
        for piece in pieces:
            run = [lengths[i] - 1 for i in piece]
            pairs = start * start / 2 + sum(r * (start + r / 2) for r in run)
            tokens = start + sum(run)
            units.append(Unit(piece, tokens, tokens + pair_cost * pairs))
    return units


def fill(units: Sequence[Unit], budget: int, count: int) -> list[list[Unit]] | None:
    """`count` micro-batches within `budget` and of similar cost; None when a unit does not fit."""
    batches: list[list[Unit]] = [[] for _ in range(count)]
    tokens, costs = np.zeros(count), np.zeros(count)
    for unit in sorted(units, key=lambda u: -u.cost):
        room = (tokens + unit.tokens <= budget) | (tokens == 0)
        if not room.any():
            return None
        cheapest = int(np.where(room, costs, np.inf).argmin())
        batches[cheapest].append(unit)
        tokens[cheapest] += unit.tokens
        costs[cheapest] += unit.cost
    return batches


def deal(batches: Sequence[list[int]], ranks: int) -> list[list[list[int]]]:
    """Deals micro-batches of falling cost, their number a multiple of `ranks`, back and forth: ranks 0 1 1 0 0 1 ..."""
    rounds = [batches[start : start + ranks] for start in range(0, len(batches), ranks)]
    turns = [turn[::-1] if number % 2 else turn for number, turn in enumerate(rounds)]
    return [list(share) for share in zip(*turns, strict=True)]


def padded_micro_batches(lengths: Sequence[int], budget: int, ranks: int = 1) -> list[list[list[int]]]:
    """For each rank its padded micro-batches, each a list of indices into `lengths` (int[N], tokens of prompt and response).

    A micro-batch costs at most `budget` tokens, padding included (a longer sequence gets one of its own). Sequences of similar
    length share one, so that little is padding.
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        # In falling order the first of a batch is its longest.
        if not batches or lengths[batches[-1][0]] * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(i)
    while len(batches) % ranks or not batches:
        largest = max(batches, key=len, default=[])
        if len(largest) < 2:
            batches.append([])
        else:
            batches.remove(largest)
            batches += [largest[::2], largest[1::2]]
    batches.sort(key=lambda b: -padded_tokens(b, lengths))
    return deal(batches, ranks)


def padded_tokens(batch: Sequence[int], lengths: Sequence[int]) -> int:
    """Tokens of a padded micro-batch, padding included."""
    return len(batch) * max((lengths[i] for i in batch), default=0)
