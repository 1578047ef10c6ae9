"""Micro-batches under a token budget, the same number on every rank. Pure functions of lengths."""

from collections.abc import Sequence


def micro_batches(lengths: Sequence[int], budget: int, ranks: int = 1) -> list[list[list[int]]]:
    """For each rank its micro-batches, each a list of indices into `lengths`.

    lengths: int[N] tokens of prompt and response. A micro-batch of B rows padded to its longest costs B * longest tokens, at
    most `budget` (a single longer sequence gets one of its own). Sequences of like length go together, so little is padding.
    Every rank gets the same number of micro-batches, so that collective calls match; where sequences run out, some are empty.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    for i in order:
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
    # Boustrophedon over falling cost: 0 1 1 0 0 1 ... gives each rank a like share.
    batches.sort(key=lambda b: -cost(b, lengths))
    shares: list[list[list[int]]] = [[] for _ in range(ranks)]
    for start in range(0, len(batches), ranks):
        turn = batches[start : start + ranks]
        for share, batch in zip(shares, turn if start // ranks % 2 == 0 else turn[::-1], strict=True):
            share.append(batch)
    return shares


def cost(batch: Sequence[int], lengths: Sequence[int]) -> int:
    """Tokens of a micro-batch, padding included."""
    return len(batch) * max((lengths[i] for i in batch), default=0)
