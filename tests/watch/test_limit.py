"""The limit of a step against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.policy.plan import Model
from minirl.watch import limit
from minirl.watch.limit import Group, Hardware, Setting

EIGHT = Model(8_190_735_360, 36, 4096, 151_936, 32, 8, 128, 12_288, head_norms=True)
# 1 layer: q and o 2 * 2 * 2, k and v 2 * 2 * 1, MLP 3 * 2 * 3, 30 parameters; output layer 2 * 5; keys and values of a token 2
SMALL = Model(40, 1, 2, 5, heads=2, kv_heads=1, head_dim=1, mlp=3, head_norms=False)
SLOW = Hardware("slow", flops=1000, bandwidth=100, link=50)


def test_products_of_qwen3_8b():
    # a layer: q and o 2 * 4,096 * 4,096, k and v 2 * 4,096 * 1,024, MLP 3 * 4,096 * 12,288
    assert limit.body_parameters(EIGHT) == 36 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 12_288) == 6_945_767_424


def test_a_forward_pass_by_hand():
    assert limit.body_parameters(SMALL) == 30
    # 3 tokens through the layer, 2 through the output; a pair: 2 * (score and value) * 2 heads of 1
    assert limit.forward_flops(SMALL, 3, 4, 2) == 2 * 30 * 3 + 2 * 10 * 2 + 4 * 2 * 4
    # a prompt of 4 once, then 1 and 2 more tokens that predict, of 2 and 3 that are predicted
    tokens, pairs = 4 + 1 + 2, 4 * 4 / 2 + 1 * (4 + 1) + 2 * (4 + 1.5)
    assert limit.trainer_flops(SMALL, [Group(4, [2, 3])]) == limit.forward_flops(SMALL, tokens, pairs, 5)


def test_an_engine_starts_the_next_sequence_when_one_ends():
    count, tokens = limit.alive([1, 3, 1], slots=2)
    assert count.tolist() == [2, 2, 1]
    assert tokens.tolist() == [0, 1, 2], "of the long one, which is not the one that started last"


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 8))
def test_every_token_is_decoded_once_and_no_pass_has_more_than_the_slots(lengths, slots):
    count, tokens = limit.alive(lengths, slots)
    assert count.sum() == sum(lengths)
    assert tokens.sum() == sum(n * (n - 1) // 2 for n in lengths)
    assert max(lengths) <= len(count) <= max(lengths) + sum(lengths) / slots
    assert count.max() == min(slots, len(lengths))
    assert (count > 0).all()


def test_decoding_by_hand():
    # 40 numbers of 2 bytes a pass, 2 numbers of 2 bytes a key: 0.8 s + 0.04 s a key; keys: the prompt's 1 and those before
    full, last = limit.decode_seconds(SMALL, SLOW, [Group(1, [3])], Setting(1, 8))
    prompt = (2 * 30 + 4 * 2 * 0.5) / 1000
    assert full == last == pytest.approx(3 * 0.8 + 0.04 * (1 + 2 + 3) + prompt)
    # and one of one token beside it: three passes to the last token, but four tokens are two full ones
    full, last = limit.decode_seconds(SMALL, SLOW, [Group(1, [3, 1])], Setting(1, 8))
    assert last == pytest.approx(3 * 0.8 + 0.04 * (2 + 2 + 3) + prompt)
    assert full == pytest.approx(2 * 0.8 + 0.04 * (2 + 2 + 3) + prompt)
    # two engines, a group each: half the full time, the same last token; the host adds its own to each token
    two = limit.decode_seconds(SMALL, SLOW, [Group(1, [3]), Group(1, [3])], Setting(2, 8))
    assert two == pytest.approx(limit.decode_seconds(SMALL, SLOW, [Group(1, [3])], Setting(1, 8)))
    slower = limit.decode_seconds(SMALL, SLOW, [Group(1, [3, 1])], Setting(1, 8), host=0.5)
    assert slower == pytest.approx((full + 4 * 0.5, last + 4 * 0.5))


def test_limit_and_losses_add_up_to_the_step():
    groups = [Group(1, [3, 1]), Group(2, [2, 2], kept=False)]
    made = limit.step_limit(SMALL, SLOW, groups, groups[:1], Setting(1, 8, recompute=True, scored=0.5))
    forward = limit.trainer_flops(SMALL, groups[:1]) / 1000
    assert made["limit/update"] == pytest.approx(3 * forward)
    assert made["limit/old_logprobs"] == pytest.approx(forward / 2)
    assert made["lost/recomputation"] == pytest.approx(forward)
    assert made["lost/waste"] == pytest.approx(made["limit/generation"]), "half of the tokens are of no use"
    assert made["limit/sync"] == pytest.approx(50 * 2 / 50), "30 parameters, embeddings and output layer are read and written"
    metered = limit.meter(made, {"step": 60.0}, padding=0.25)
    assert metered["lost/padding"] == pytest.approx(4 * forward / 3)
    lost = sum(value for name, value in metered.items() if name.startswith("lost/"))
    assert metered["limit/step"] + lost == pytest.approx(60)
    assert metered["limit/share"] == pytest.approx(made["limit/step"] / 60)


def test_a_run_s_sentence_is_of_its_steps_that_trained():
    rows = [
        {"time/step": 20.0, "time/limit": 9.0, "time/lost_tail": 8.0, "time/lost_host": 3.0, "speed/limit_share": 0.45},
        {"time/step": 99.0},
        {"time/step": 10.0, "time/limit": 9.0, "time/lost_tail": 0.0, "time/lost_host": 1.0, "speed/limit_share": 0.9},
    ]
    assert limit.sentence(rows).startswith(
        "A step took 15 s, of which its own lengths need 60% at the limit of this hardware; lost: tail 4 s, host 2 s ("
    )
    assert limit.sentence(rows[1:2]) == ""


def test_qwen3_8b_on_eight_h200_is_near_the_arithmetic_of_others():
    # 2,560 responses, log-normal, mean 2,048, cut at 8,192: KV cache 38 to 47 s, weights and products 27 to 33; update 33
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(np.log(2048) - 0.5, 1, (256, 10)).clip(1, 8192).astype(int).tolist()
    groups, setting = [Group(150, row) for row in lengths], Setting(8, 512)
    h200 = limit.hardware_of("NVIDIA H200")
    made = limit.step_limit(EIGHT, h200, groups, groups, setting)
    assert 38 < made["limit/generation"] < 50
    assert 38 + 27 < made["limit/generation"] + made["lost/tail"] < 47 + 33
    assert made["limit/update"] == pytest.approx(33, rel=0.15)
    assert limit.hardware_of("another") is None
    assert limit.step_limit(EIGHT, replace(h200, bandwidth=1e15, flops=1e18), groups, groups, setting)["limit/step"] < 0.5
