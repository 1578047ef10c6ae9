"""Micro-batches: everything once, within budget, equally many on every rank."""

from hypothesis import given
from hypothesis import strategies as st

from minirl.packing import cost, micro_batches


def test_by_hand():
    # falling lengths 9 5 5 2: 9 alone (2 x 9 > 12), 5 and 5 make 10, 2 would make 15
    assert micro_batches([5, 9, 2, 5], 12) == [[[0, 3], [1], [2]]]
    assert micro_batches([], 8, ranks=2) == [[[]], [[]]]


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 1000), st.integers(1, 5))
def test_promises(lengths, budget, ranks):
    shares = micro_batches(lengths, budget, ranks)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1, "a rank with fewer micro-batches would hang the others"
    assert sorted(i for share in shares for batch in share for i in batch) == list(range(len(lengths)))
    assert all(cost(batch, lengths) <= budget or len(batch) == 1 for share in shares for batch in share)


@given(st.lists(st.integers(1, 300), min_size=40, max_size=80))
def test_ranks_get_like_shares(lengths):
    shares = micro_batches(lengths, 600, 2)
    costs = [sum(cost(batch, lengths) for batch in share) for share in shares]
    assert abs(costs[0] - costs[1]) <= 600
