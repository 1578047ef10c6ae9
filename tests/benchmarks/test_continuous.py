"""The simulation of sampling: its clock by hand, and that its groups are those of the order."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.common import qwen3_config
from benchmarks.continuous import World, arguments, batch_on_one, compare, whole_batches
from minirl.config.command_line import load
from minirl.policy import plan
from minirl.watch import limit
from tests.conftest import ROOT


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


@pytest.mark.parametrize(
    ("preset", "options", "kept", "groups"),
    [
        ("qwen3-8b-math", [], 2, [512, 512, 512]),
        # 512 / 4 are 128; the other 128 at a quarter each are 512 more, the most
        ("qwen3-8b-math", [], 4, [1024, 1024, 1024]),
        # half of a batch is carried over, the other half sampled twice
        ("qwen3-8b-math-fast", [], 1, [512, 256, 256]),
        ("qwen3-8b-math", ["--algorithm.estimator=grpo"], 1, [256, 256, 256]),
    ],
)
def test_generation_batches_are_sized_by_the_share_that_is_kept(preset, options, kept, groups):
    """kept: one group in so many."""
    config = load([str(ROOT / "configs" / f"{preset}.yaml"), *options])
    world = World(config, plan.measure(qwen3_config("8b")), limit.hardware_of("H200"), 0.25, arguments(["--steps", "3"]))
    world.lengths[:] = 1  # so that tokens are responses
    if config.algorithm.requirements.dynamic_sampling:
        world.kept = np.arange(len(world.kept)) % kept == 0
    made = [row["Mtokens"] * 1e6 / config.rollout.group_size for row in whole_batches(world, 3)]
    assert made == pytest.approx(groups)


def test_lengths_are_those_of_the_draws_except_where_the_longest_are_aborted():
    small = [
        "rollout.prompts=16",
        "algorithm.mini_batch_prompts=4",
        "rollout.max_sequences=40",
        "rollout.max_response_tokens=1024",
    ]
    options = [f"--option=--{text}" for text in small]
    rows = compare(
        arguments([*options, "--mean=256", "--kept=0.8", "--ahead", "0", "1", "--steps=9", "--sigma=0.7", "--shared=0.3"])
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
