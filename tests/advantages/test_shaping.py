"""Other people's wrappers, and the controls of EDAS, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.advantages import ACE, EDAS, FGRPO, GRPO, LEAD, Explore, Group, InvertedEDAS, OnlyB, OnlyC, ShuffledEDAS, build
from tests.advantages.groups import G1, G3, group


def test_fgrpo_golden_values():
    assert FGRPO(gamma=1.0)(G1)[[9, 0]] == pytest.approx([2.56144, -0.28460], abs=1e-5)
    assert FGRPO(gamma=1.0)(G3)[[9, 0]] == pytest.approx([1.01439, -0.43474], abs=1e-5)
    assert FGRPO(gamma=0)(G3).tolist() == GRPO()(G3).tolist()


def test_batch_exploration_golden_values():
    # b of a, b, c and d: -3 / 10, -2 / 10, 0, 0
    expected = {"a": -0.46623, "b": -0.41623, "c": -0.31623, "d": -0.31623, "": 2.84604}
    assert Explore(c=0.5)(G1) == pytest.approx([expected[label] for label in G1.labels], abs=1e-5)


def test_lead_by_hand():
    # c / N = .1: right times .4 + 1.1 / (1 + e^-6.5), wrong times .4 + 1.1 / (1 + e^1.5)
    right, wrong = 0.4 + 1.1 / (1 + np.exp(-6.5)), 0.4 + 1.1 / (1 + np.exp(1.5))
    assert LEAD()(G1) == pytest.approx(GRPO()(G1) * np.where(G1.correct, right, wrong))


def test_ace_golden_factors():
    plain = GRPO()(G1)
    for s, factor in ((1.0, 2.31326), (-1.0, 1.31326)):
        reference = [np.array([-1.0, -1.0])] * 10
        g = replace(G1, ref_logprobs=reference, logprobs=[x + s / 2 for x in reference])
        assert ACE(alpha=1.0)(g) == pytest.approx(np.where(G1.correct, plain, plain * factor), abs=1e-5)
        half = 1 + np.log1p(np.exp(s / 2))
        assert ACE(alpha=1.0, per_token=True)(g)[0] == pytest.approx(plain[0] * half)
    with pytest.raises(ValueError, match=r"Group\.ref_logprobs"):
        ACE()(G1)


# ---- controls --------------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=9), st.integers(1, 4), st.integers(0, 999))
def test_shuffled_deals_the_same_changes(wrong, right, number):
    g = replace(group("".join(wrong), right), number=number, seed=7)
    plain = GRPO()(g)
    edas, shuffled = EDAS()(g), ShuffledEDAS()(g)
    assert np.sort(shuffled) == pytest.approx(np.sort(edas))
    assert shuffled[g.correct].tolist() == plain[g.correct].tolist()
    assert ShuffledEDAS()(g).tolist() == shuffled.tolist(), "the same deal each time"


def test_the_deal_depends_on_seed_and_draw_number():
    deals = {tuple(ShuffledEDAS()(replace(G1, number=n, seed=s))) for n in range(3) for s in range(3)}
    assert len(deals) > 6


def test_shuffled_says_nothing_of_diversity_on_average():
    mean = np.mean([ShuffledEDAS()(replace(G1, number=n)) for n in range(4000)], axis=0)
    assert mean == pytest.approx(GRPO()(G1), abs=3e-3), "a's and d's mean change is the same: T sums to 0"


def test_inverted_mirrors_the_diversity_branch():
    plain = GRPO()(G1)
    assert InvertedEDAS()(G1) - plain == pytest.approx(plain - EDAS()(G1))
    same = group("aaa", 2)
    assert InvertedEDAS()(same).tolist() == EDAS()(same).tolist(), "beta is what it was"


def test_one_branch_alone():
    same = group("aaa", 2)
    assert OnlyB()(G1).tolist() == GRPO()(G1).tolist()
    assert OnlyB()(same).tolist() == EDAS()(same).tolist()
    assert OnlyC()(G1).tolist() == EDAS()(G1).tolist()
    assert OnlyC()(same).tolist() == GRPO()(same).tolist()
    assert build("dapo+edas-c")(G1).tolist() == build("dapo+edas")(G1).tolist()


def test_shuffled_deals_only_among_those_that_edas_changes():
    """The wrong response with the reward .9 has A > 0 and is not changed; its class, the rarest, is dealt to nobody."""
    g = Group([0.0, 0.3, 0.1, 0.9, 1.0, 0.2], [0, 0, 0, 0, 1, 0], ["a", "a", "b", "c", "", "b"])
    plain = GRPO(std=False)(g)
    assert (plain[[0, 1, 2, 3, 5]] < 0).tolist() == [True, True, True, False, True]
    # mean |A| of the five wrong is .35; p is .4 .4 .4 .2 .4, H = -4/5 ln .4 - 1/5 ln .2; T of a and b is (-ln .4 - H) / ln 5
    entropy = -0.8 * np.log(0.4) - 0.2 * np.log(0.2)
    common = 0.01 * np.abs(plain[[0, 1, 2, 3, 5]]).mean() * (-np.log(0.4) - entropy) / np.log(5)
    for number in range(20):
        shaped = ShuffledEDAS(alpha=0.01, base=GRPO(std=False))(replace(g, number=number))
        assert shaped - plain == pytest.approx([common, common, common, 0, 0, common], abs=1e-12)


@given(
    st.lists(st.sampled_from("abc"), min_size=0, max_size=9),
    st.integers(0, 4),
    st.integers(0, 999),
    st.sampled_from(["grpo", "dapo", "rloo", "maxrl", "ngrpo", "wreinforce", "nsr", "psr", "pkpo", "passk", "opo"]),
)
def test_shuffled_of_right_and_wrong_is_a_deal_among_all_that_are_classified(wrong, right, number, base):
    """To the bit, as runs of it have been made."""
    g = replace(group("".join(wrong), right, lengths=np.arange(1, len(wrong) + right + 1)), number=number, seed=7)
    plain, edas = build(base)(g), EDAS(base=build(base))
    delta, _ = edas.delta(plain, g)
    delta[g.classified] = np.random.default_rng([7, number]).permutation(delta[g.classified])
    bounded = np.sign(delta) * np.minimum(np.abs(delta), np.abs(plain) / 2.0)
    assert np.array_equal(build(f"{base}+edas-shuffled")(g), plain + np.where(plain < 0, bounded, 0.0))


def test_log_probs_may_be_one_table():
    table = np.array([[-1.0, -2.0], [-3.0, -1.0], [-0.5, -0.5]])
    rows = replace(group("ab", 1), logprobs=list(table), ref_logprobs=list(table - 1), entropies=list(-table))
    whole = replace(group("ab", 1), logprobs=table, ref_logprobs=table - 1, entropies=-table)
    for name in ("unlikely", "grpo+ace", "grpo+entropy"):
        assert np.array_equal(build(name)(whole), build(name)(rows))
