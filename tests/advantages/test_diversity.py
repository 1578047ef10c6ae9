"""What every run reports of its wrong answers."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.advantages import EDAS, GRPO, Estimator, Group, MaxRL, Unlikely, build, diversity, edas_of, has_signal
from tests.advantages.groups import G0, G1, G3, group


def test_diversity_by_hand():
    groups = [group("aab", 7), group("aa", 8), group("a", 9), group("", 10), group("abcd", 0)]
    m = diversity(groups)
    assert m["informative"] == 3 / 5
    assert m["diverse_groups"] == 2
    assert m["unique_wrong"] == (2 + 1 + 1 + 0 + 4) / 5
    assert m["error_diversity"] == pytest.approx((2 / 3 + 1 / 2 + 1 + 1) / 4)
    assert (m["branch_a"], m["branch_b"], m["branch_c"]) == (2, 1, 2)
    # base GRPO; |delta| over the 10 wrong responses, from the golden vectors: aab and aa change, the others do not
    by_hand = (2 * (1.57104 - 1.44913) + (1.44913 - 1.20532) + 2 * (2.27683 - 1.89736)) / 10
    assert m["delta"] == pytest.approx(by_hand, abs=1e-5)
    assert diversity([])["informative"] == 0.0


def test_a_wrong_response_without_a_label_is_in_no_class():
    plain = group("aab", 7)
    mixed = Group(plain.rewards, plain.correct, ["", "a", "b", *[""] * 7])
    shaped = EDAS()(mixed)
    assert shaped[0] == GRPO()(mixed)[0]
    assert np.array_equal(EDAS()(Group(plain.rewards, plain.correct, [""] * 10)), GRPO()(plain)), "no labels at all: no shaping"
    assert diversity([mixed])["unique_wrong"] == 2
    assert diversity([Group(plain.rewards, plain.correct, [""] * 10)])["branch_a"] == 1


def test_delta_is_measured_on_the_estimator_s_own_base():
    g = group("aab", 7)
    unscaled = diversity([g], EDAS(base=GRPO(std=False)))["delta"]
    changed = np.abs(EDAS(base=GRPO(std=False))(g) - GRPO(std=False)(g))[:3].mean()
    assert unscaled == pytest.approx(changed)
    assert unscaled < diversity([g])["delta"]


def test_signal_is_scores_that_differ_before_any_shaping():
    rights = np.array([True, True])
    assert not has_signal(Group(np.array([1.0, 0.7]), rights, ["", ""], scores=np.array([1.0, 1.0]))), (
        "only length tells them apart"
    )
    graded = np.array([False, False])
    assert has_signal(Group(np.array([0.2, 0.7]), graded, ["", ""])), "a graded reward"


def test_signal_is_both_right_and_wrong_among_the_judged():
    nan = float("nan")
    assert has_signal(group("a", 1))
    assert not has_signal(group("ab", 0))
    assert not has_signal(group("", 3))
    assert not has_signal(Group(np.array([nan, 1.0]), np.array([False, True]), ["", ""]))


def test_pair_diversity_by_hand():
    # G1: a4 b3 c d: 1 - (12 + 6) / (9 * 8); G3: a4 b2 c: 1 - (12 + 2) / (7 * 6); one wrong response has no pair
    assert diversity([G1])["pair_diversity"] == pytest.approx(1 - 18 / 72)
    m = diversity([G1, G3, group("a", 9), group("", 10)])
    assert m["pair_diversity"] == pytest.approx((1 - 18 / 72 + 1 - 14 / 42) / 2)
    assert m["unique_wrong_of_two"] == (4 + 3) / 2
    assert m["unique_wrong"] == (4 + 3 + 1 + 0) / 4


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=9))
def test_pair_diversity_is_the_share_of_pairs_that_differ(wrong):
    pairs = [wrong[i] != wrong[j] for i in range(len(wrong)) for j in range(i)]
    assert diversity([group("".join(wrong), 1)])["pair_diversity"] == pytest.approx(np.mean(pairs))


def test_the_share_of_changes_that_the_clip_cut():
    # alpha 3, kappa 4 on a4 b, 5 right: both classes are asked for more than |A| / 4; by the paper's values nothing is cut
    g = group("aaaab", 5)
    assert diversity([g], EDAS(3.0, 0.2, 4.0))["changes_clipped"] == 1
    assert diversity([g])["changes_clipped"] == 0
    assert diversity([group("ab", 8)])["changes_clipped"] == 0, "no change is asked for"


def test_after_over_before_by_hand():
    # a x4, b: -1.01405 / -.94868 four times and -.68719 / -.94868 once
    m = diversity([group("aaaab", 5)])
    assert m["after_before_p50"] == pytest.approx(1.01405 / 0.94868, abs=1e-5)
    assert m["after_before_p5"] == pytest.approx(0.68719 / 0.94868 + 0.05 * 4 * (1.01405 - 0.68719) / 0.94868, abs=1e-5)
    assert diversity([G0])["after_before_p95"] == 1.0, "no advantage, no change"


def test_wrong_responses_with_a_positive_advantage_are_counted_and_left_alone():
    rewards, labels = np.array([0, 0, -1, -1, 0.0]), ["", "a", "b", "b", "b"]
    g = Group(rewards, np.array([True, False, False, False, False]), labels)
    plain, shaped = GRPO()(g), EDAS()(g)
    assert plain[1] == pytest.approx(0.7303, abs=1e-4)
    assert shaped[[0, 1, 4]].tolist() == plain[[0, 1, 4]].tolist(), "a rare one is not raised further, nor a common one lowered"
    assert (shaped[2:4] < plain[2:4]).all()
    assert diversity([g])["positive_wrong"] == 2


def test_what_counts_as_informative_is_the_rule_of_dynamic_sampling():
    groups = [group("ab", 0), group("a", 1), group("", 2)]
    assert diversity(groups)["informative"] == pytest.approx(1 / 3)
    assert diversity(groups, keeps=build("ngrpo").keeps)["informative"] == pytest.approx(2 / 3)


def test_it_is_measured_where_log_probs_are_missing():
    edas = edas_of(build("unlikely+entropy"), EDAS(alpha=0.3))
    assert edas == EDAS(0.3, 0.2, 2.0, base=Unlikely())
    assert diversity([G1], edas)["delta"] == diversity([G1], EDAS(alpha=0.3))["delta"] > 0


def test_the_change_is_that_of_the_step():
    """One right, wrong a a b: halfway through 0.01 -> 0 it is half of the first, at the end nothing."""
    deltas = [diversity([group("aab", 1, progress=p)], EDAS(alpha="0.01 -> 0"))["delta"] for p in (0.0, 0.5, 1.0)]
    # GRPO's A of the wrong is -.25 / .5; the change is alpha |A| T, T of a (-ln 2/3 - H) / ln 3
    entropy = -(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3))
    rare = [(-np.log(p) - entropy) / np.log(3) for p in (2 / 3, 2 / 3, 1 / 3)]
    first = 0.01 * 0.5 * np.mean(np.abs(rare))
    assert deltas == pytest.approx([first, first / 2, 0], rel=1e-5)


@dataclass(frozen=True)
class Picky(Estimator):
    """A base that has something else than one advantage a response where all are wrong."""

    instead: object = None

    def __call__(self, group):
        if group.right.any():
            return 2 * GRPO()(group)
        if isinstance(self.instead, Exception):
            raise self.instead
        return self.instead


@pytest.mark.parametrize(
    "instead",
    [None, [np.ones(2)] * 9, [np.ones(i) for i in range(9)], np.full(9, np.nan), ValueError("no"), TypeError("no"), np.ones(4)],
)
def test_a_group_that_the_base_refuses_is_measured_on_grpo(instead):
    wrong = replace(group("aab", 0), rewards=np.array([0.0, 0.5, 0.2]))
    groups = [group("aab", 7), replace(wrong, scores=None)]
    picky, one, other = (diversity(g, EDAS(base=b)) for g, b in (
        (groups, Picky(instead)), (groups[:1], Picky(instead)), (groups[1:], GRPO())))  # fmt: skip
    assert picky["delta"] == pytest.approx((one["delta"] + other["delta"]) / 2)
    assert one["delta"] == pytest.approx(2 * diversity(groups[:1])["delta"])


def test_maxrl_with_a_penalty_is_measured():
    negative = Group([-0.01] * 3, [0] * 3, list("aab"))
    assert diversity([negative], EDAS(base=MaxRL()))["delta"] == 0.0
