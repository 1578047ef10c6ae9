"""Micro-batches: everything once, within budget, equally many on every rank, of like cost."""

import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minirl.advantages import DAPO, EDAS, Group
from minirl.policy.packing import packed_micro_batches, padded_micro_batches, padded_tokens


def tokens(batch, prompts, prompt_lengths, lengths):
    """Of a packed micro-batch: each prompt once, each response but its last token."""
    return sum({prompts[i]: prompt_lengths[i] for i in batch}.values()) + sum(lengths[i] - 1 for i in batch)


def test_packed_by_hand():
    # prompt 4 with responses 3 and 5: 4 + 2 + 4 = 10 tokens; the others 2 + 6 = 8 and 2 + 1 = 3. All fit 40, whole groups.
    assert packed_micro_batches("aabc", [4, 4, 2, 2], [3, 5, 7, 2], 40) == [[[1, 0, 2, 3]]]
    # groups of 10, 8 and 3 go into two of 12
    assert packed_micro_batches("aabc", [4, 4, 2, 2], [3, 5, 7, 2], 12) == [[[2, 3], [1, 0]]]
    # a group beyond the budget is taken apart: 1 + 8 twice; so is one beyond a quarter of it and four prompts, 1 + 3 and 1 + 2,
    # which go where there is room: with 2 + 7 and with 2 + 6
    assert packed_micro_batches("aa", [1, 1], [9, 9], 12) == [[[0], [1]]]
    assert packed_micro_batches("aabc", [1, 1, 2, 2], [4, 3, 8, 7], 13) == [[[2, 1], [3, 0]]]
    assert packed_micro_batches([], [], [], 8, ranks=2) == [[[]], [[]]]
    # long responses cost more than their tokens: with attention counted, 30 weighs as much as the six of 9 (8 tokens run)
    one_long = packed_micro_batches(range(7), [1] * 7, [30, 9, 9, 9, 9, 9, 9], 200, 2, pair_cost=1.0)
    assert sorted(map(sorted, (share[0] for share in one_long))) == [[0], [1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize(("prompt", "response", "budget"), [(4200, 100, 16_384), (600, 64, 2048)])
def test_a_long_prompt_is_run_once_where_its_group_fits(prompt, response, budget):
    groups = [g for g in range(16) for _ in range(8)]
    (share,) = packed_micro_batches(groups, [prompt] * 128, [response] * 128, budget)
    computed = sum(tokens(batch, groups, [prompt] * 128, [response] * 128) for batch in share)
    assert computed == 16 * (prompt + 8 * (response - 1))


@given(
    st.lists(st.tuples(st.integers(1, 50), st.lists(st.integers(1, 300), min_size=1, max_size=8)), max_size=12),
    st.integers(1, 1000), st.integers(1, 5), st.sampled_from([0.0, 0.01]),
)  # fmt: skip
@example(groups=[(2, [1, 1])], budget=1, ranks=1, pair_cost=0.0)  # sharing would cost nothing, and is not one sequence
def test_promises_of_packed(groups, budget, ranks, pair_cost):
    prompts = [g for g, (_, responses) in enumerate(groups) for _ in responses]
    prompt_lengths, lengths = [groups[g][0] for g in prompts], [n for _, responses in groups for n in responses]
    shares = packed_micro_batches(prompts, prompt_lengths, lengths, budget, ranks, pair_cost)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1, "a rank with fewer micro-batches would hang the others"
    assert sorted(i for share in shares for batch in share for i in batch) == list(range(len(lengths)))
    for batch in (batch for share in shares for batch in share):
        assert tokens(batch, prompts, prompt_lengths, lengths) <= budget or len(batch) == 1


@given(st.integers(0, 2**32))
def test_ranks_get_like_shares_of_long_tailed_lengths(seed):
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(6, 1, 512), 1, 4096).astype(int).tolist()
    prompts = [i // 8 for i in range(512)]
    shares = packed_micro_batches(prompts, [100] * 512, lengths, 16384, 8, 4e-5)
    work = [sum(tokens(batch, prompts, [100] * 512, lengths) for batch in share) for share in shares]
    assert max(work) <= 1.15 * np.mean(work)


def test_2560_rollouts_are_packed_and_scored_in_a_tenth_of_a_second():
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(7, 1, 2560), 1, 8192).astype(int).tolist()
    estimator = EDAS(base=DAPO())
    groups = []
    for _ in range(256):
        right = rng.random(10) < 0.4
        groups.append(
            Group(right.astype(float), right, ["" if r else str(rng.integers(4)) for r in right], right.astype(float))
        )
    seconds = []
    for _ in range(5):
        start = time.process_time()
        packed_micro_batches([i // 10 for i in range(2560)], [150] * 2560, lengths, 16384, 8, 4e-5)
        for group in groups:
            estimator(group)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.1


def test_padded_by_hand():
    # falling lengths 9 5 5 2: 9 alone (2 x 9 > 12), 5 and 5 make 10, 2 would make 15
    assert padded_micro_batches([5, 9, 2, 5], 12) == [[[0, 3], [1], [2]]]
    assert padded_micro_batches([], 8, ranks=2) == [[[]], [[]]]


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 1000), st.integers(1, 5))
def test_promises_of_padded(lengths, budget, ranks):
    shares = padded_micro_batches(lengths, budget, ranks)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1, "a rank with fewer micro-batches would hang the others"
    assert sorted(i for share in shares for batch in share for i in batch) == list(range(len(lengths)))
    assert all(padded_tokens(batch, lengths) <= budget or len(batch) == 1 for share in shares for batch in share)


@given(st.lists(st.integers(1, 300), min_size=40, max_size=80))
def test_ranks_get_like_shares_of_padded(lengths):
    shares = padded_micro_batches(lengths, 600, 2)
    costs = [sum(padded_tokens(batch, lengths) for batch in share) for share in shares]
    assert abs(costs[0] - costs[1]) <= 600
