"""The simulation of sampling: its clock by hand, and that its groups are those of the order."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.continuous import arguments, batch_on_one, compare


def test_a_generation_batch_on_one_engine_by_hand():
    world = SimpleNamespace(
        lengths=np.array([[3], [1], [2], [9]]), setting=SimpleNamespace(slots=2), prompt=5,
        passes=lambda count, keys: 10.0 * count + keys, prefill=sum,
    )  # fmt: skip
    # 0: passes 0 to 2, 1: pass 0, 2: passes 1 and 2 in the slot of 1; a pass attends to prompts and the tokens so far
    keys = [5 + 5, (5 + 1) + 5, (5 + 2) + (5 + 1)]
    first, seconds, tail, tokens = batch_on_one(world, np.array([0, 1, 2]), 3)
    assert (first, seconds, tail, tokens) == ([1, 0, 2], 3 * 20 + sum(keys) + 15, 0.0, 6)
    # Until the first two groups are finished; 3 is begun when 0 and 2 end, which is too late
    first, seconds, tail, tokens = batch_on_one(world, np.array([0, 1]), 2)
    assert (first, tokens) == ([1, 0], 4)
    assert tail == pytest.approx(((10 + 6) + (10 + 7)) / 2), "half of the two passes with one response"
    assert batch_on_one(world, np.array([], int), 0) == ([], 0.0, 0.0, 0)


def test_lengths_are_those_of_the_draws_except_where_the_longest_are_aborted():
    small = [
        "rollout.prompts=16",
        "algorithm.mini_batch_prompts=4",
        "rollout.max_sequences=40",
        "rollout.max_response_tokens=1024",
    ]
    options = [f"--option=--{text}" for text in small]
    rows = compare(
        arguments([*options, "--mean", "256", "--kept", "0.8", "--ahead", "0", "1", "--steps", "9", "--sigma", "0.7"])
    )
    by_way = {row["way"]: row for row in rows}
    for name, row in by_way.items():
        off = abs(row["trained"] / row["drawn"] - 1)
        assert (off > 0.05) == ("abort" in name), (name, off)
        assert 0 < row["tail"] < row["seconds"]
    zero, one = by_way["continuous, ahead 0"], by_way["continuous, ahead 1"]
    assert one["seconds"] < min(zero["seconds"], by_way["batches, as the preset"]["seconds"])
    assert zero["old"] == zero["again"] == one["discarded"] == 0
    assert one["old"] > 0.2
    assert one["again"] > 0
    assert zero["discarded"] > 0
