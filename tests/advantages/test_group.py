"""What an estimator sees, its options and their schedules."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minirl.advantages import BASES, EDAS, FGRPO, PKPO, WRAPPERS, Group, build, has_signal
from minirl.config.command_line import load
from minirl.utils.errors import ConfigError
from tests.advantages.groups import G1, group


def test_a_schedule_goes_from_its_first_value_to_its_last():
    at = [replace(G1, progress=p) for p in (0.0, 0.25, 1.0)]
    assert [g.now("0.4 -> 0.1") for g in at] == pytest.approx([0.4, 0.325, 0.1])
    assert [g.now("0.4 -> 0.1 linear") for g in at] == pytest.approx([0.4, 0.325, 0.1])
    # cosine: (1 - cos(pi / 4)) / 2 of the way at a quarter
    assert [g.now("0.4 -> 0.1 cosine") for g in at] == pytest.approx([0.4, 0.4 - 0.3 * (1 - 0.5**0.5) / 2, 0.1])
    assert at[1].now(0.7) == 0.7


def test_a_scheduled_option_is_the_option_at_that_point():
    for progress, alpha in ((0.0, 0.4), (0.5, 0.2), (1.0, 0.0)):
        g = replace(G1, progress=progress)
        assert EDAS(alpha="0.4 -> 0")(g) == pytest.approx(EDAS(alpha=alpha)(g))
    assert PKPO(k="2 -> 8")(replace(G1, progress=1.0)).tolist() == PKPO(k=8)(G1).tolist()
    assert PKPO(k="2 -> 8").requirements.min_group_size == 8


def test_schedules_on_the_command_line_and_back(tmp_path):
    import yaml

    from minirl.config.options import as_tree

    c = load(["--estimator.edas.alpha=0.4 -> 0.1", "--estimator.edas.beta=1e-1"])
    assert (c.estimator.edas.alpha, c.estimator.edas.beta) == ("0.4 -> 0.1", 0.1)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(as_tree(c)))
    assert load([str(tmp_path / "c.yaml")]) == c


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("edas.alpha=abc", "takes a number, or a schedule"),
        ("edas.alpha=true", "takes a number"),
        ("edas.alpha=0.4 -> x", "takes a number"),
        ("edas.alpha=0.4 -> 0.1 square", "takes a number"),
        ("edas.alpha=0.4 -> inf", "takes a number"),
        ("edas.alpha=0.4 -> -0.1", "edas.alpha must be at least 0, not -0.1"),
        ("edas.kappa=2 -> 1", "edas.kappa must be above 1, not 1"),
        ("edas.alpha=0.4 -> 0.1 linear cosine", "takes a number, or a schedule"),
        ("edas.alpha=0.4 -> 0.1 -> 0.2", "takes a number, or a schedule"),
        ("passk.k=2.5", "passk.k must be a whole number, not 2.5"),
        ("pkpo.k=8 -> 1.4", "pkpo.k must be a whole number, not 1.4"),
        ("qae.K=0.4 -> 1.2", "below 1"),
        ("passk.k=0", "passk.k must be at least 1"),
    ],
)
def test_bad_options_are_refused(option, problem):
    with pytest.raises(ConfigError, match=problem):
        load([f"--estimator.{option}"])


# ---- what holds for every estimator ----------------------------------------------------------------------------------------

ALL = [*BASES, *(f"grpo+{name}" for name in WRAPPERS if name != "entropy")]


def full(wrong, right, rng, errors=0):
    """A group with all that an estimator may read; the last `errors` responses have no verdict."""
    n = len(wrong) + right + errors
    lengths = rng.integers(1, 5, n)
    correct = np.array([False] * len(wrong) + [True] * right + [False] * errors, dtype=bool)
    rewards = np.where(np.arange(n) < n - errors, correct.astype(float), np.nan)
    logprobs, reference = ([rng.normal(-1, 0.5, size) for size in lengths] for _ in range(2))
    labels = [*wrong, *[""] * (right + errors)]
    return Group(rewards, correct, labels, logprobs=logprobs, ref_logprobs=reference, lengths=lengths)


def taken(g, order):
    """The responses at `order`."""
    arrays = {name: [getattr(g, name)[i] for i in order] for name in ("labels", "logprobs", "ref_logprobs")}
    return replace(g, rewards=g.rewards[order], correct=g.correct[order], lengths=g.lengths[order], **arrays)


GROUPS = st.tuples(st.lists(st.sampled_from("abcd"), max_size=6), st.integers(0, 5), st.integers(0, 3))


@pytest.mark.parametrize("name", [name for name in ALL if name != "grpo+edas-shuffled"])
@settings(max_examples=40)  # for each of the estimators
@given(data=GROUPS, seed=st.integers(0, 99))
def test_the_order_of_a_group_does_not_matter(name, data, seed):
    rng = np.random.default_rng(seed)
    wrong, right, errors = data
    g = full(wrong, right, rng, errors)
    order = rng.permutation(len(g.rewards))
    estimator = build(name)
    assert estimator(taken(g, order)) == pytest.approx(estimator(g)[order])
    assert estimator.weights(taken(g, order)).tolist() == estimator.weights(g)[order].tolist()
    assert estimator.keeps(taken(g, order)) == estimator.keeps(g)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=40)  # for each of the estimators
@given(data=GROUPS, seed=st.integers(0, 99))
def test_responses_without_a_verdict_count_nowhere(name, data, seed):
    wrong, right, errors = data
    g = full(wrong, right, np.random.default_rng(seed), errors)
    judged = len(wrong) + right
    estimator = build(name)
    with_errors = estimator(g)
    assert np.isfinite(with_errors).all()
    assert with_errors[judged:].tolist() == [0] * errors
    assert with_errors[:judged] == pytest.approx(estimator(taken(g, np.arange(judged))))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("wrong", "right"), [("", 0), ("a", 0), ("", 1), ("", 4)])
def test_groups_of_one_or_all_right_teach_nothing_unless_the_estimator_has_no_baseline(name, wrong, right):
    advantages = build(name)(full(list(wrong), right, np.random.default_rng(0)))
    if name in ("wreinforce", "nsr", "psr", "ngrpo"):
        assert (advantages >= 0).all() if right else (advantages <= 0).all()
    else:
        assert advantages.tolist() == [0.0] * len(advantages) or (name, right) == ("unlikely", 4)


SCALE_FREE = ("grpo", "dapo", "qae", "maxrl")  # of the rewards: A is the same for s r
LINEAR = ("rloo", "opo", "gpg")  # A is s times as large


@pytest.mark.parametrize("name", [*SCALE_FREE, *LINEAR])
@given(st.lists(st.integers(10, 500), min_size=2, max_size=8), st.floats(0.5, 4), st.integers(0, 99))
def test_what_the_scale_of_rewards_does(name, hundredths, scale, seed):
    """Of rewards in hundredths: the 1e-6 beside the standard deviation is seen where that is as small."""
    rewards = [n / 100 for n in hundredths]
    g = full(["a"] * len(rewards), 0, np.random.default_rng(seed))
    small, large = (build(name)(replace(g, rewards=np.array(rewards) * s)) for s in (1.0, scale))
    assert large == pytest.approx(small * (scale if name in LINEAR else 1.0), rel=1e-3, abs=1e-4)


def test_a_wrapper_that_needs_a_number_a_response_refuses_tokens():
    g = replace(group("a", 1), entropies=[np.ones(2), np.ones(2)])
    with pytest.raises(TypeError, match="write entropy last"):
        FGRPO(base=build("dapo+entropy"))(g)


def test_a_group_may_be_given_as_lists():
    given = Group([1, 0, 0, 0], [1, 0, 0, 0], list("raab"), lengths=[1, 2, 3, 4])
    arrays = Group(np.array([1.0, 0, 0, 0]), np.array([True, False, False, False]), list("raab"), lengths=np.arange(1, 5))
    for name in ("maxrl", "nsr", "pkpo", "passk", "grpo+edas", "grpo+explore", "opo"):
        assert build(name)(given).tolist() == build(name)(arrays).tolist()
    assert build("maxrl")(given).tolist() == [3, -1, -1, -1]


@pytest.mark.parametrize(
    "more", [{"correct": [1, 0]}, {"labels": ["a"]}, {"scores": [1.0]}, {"lengths": [1] * 4}, {"logprobs": [np.zeros(2)]}]
)
def test_a_group_has_one_of_each_for_every_response(more):
    whole = {"rewards": [1.0, 0, 0], "correct": [1, 0, 0], "labels": ["", "a", "b"]}
    with pytest.raises(ValueError, match=r"one of each for every response, not \{'rewards': 3, "):
        Group(**whole | more)


def test_a_table_of_rewards_is_refused():
    with pytest.raises(ValueError, match=r"one dimension, not the shape \(2, 2\)"):
        Group(np.zeros((2, 2)), [0, 0], ["", ""])


@pytest.mark.parametrize("schedule", ["3 -> 2", "3 -> 2 cosine"])
def test_every_bounded_option_may_move(schedule):
    assert load([f"--estimator.edas.kappa={schedule}"]).estimator.edas.kappa == schedule
    assert load(["--estimator.qae.K=0.4 -> 0.6"]).estimator.qae.K == "0.4 -> 0.6"


def test_options_given_in_code_are_checked_too():
    for make, problem in (
        (lambda: PKPO(std=True, baseline="sloo"), "std=true is for baseline=mean, not sloo"),
        (lambda: PKPO(baseline="foo"), "pkpo.baseline must be one of mean, sloo, sloo-1, not 'foo'"),
        (lambda: PKPO(std="yes"), "pkpo.std must be true or false, not 'yes'"),
    ):
        with pytest.raises(ValueError, match=problem):
            make()


def test_noise_of_floating_point_sums_is_no_signal():
    """.1 + .2 is not .3 by 5.6e-17; divided by a deviation as small, it would be an advantage of full size."""
    noise = Group([0.1 + 0.2, 0.3, 0.3], [0, 0, 0], ["a", "a", "b"], lengths=[1, 2, 3])
    assert not has_signal(noise)
    for name in ("grpo", "rloo", "maxrl", "qae", "opo", "grpo+edas", "gpg"):
        assert not np.any(build(name)(noise)), name
    small = Group([1e-5, 2e-5], [0, 0], ["a", "b"])
    assert has_signal(small), "rewards are compared with each other, not with 1"
    assert build("grpo")(small)[1] == pytest.approx(5e-6 / (1e-5 / np.sqrt(2) + 1e-6))


def test_maxrl_takes_no_negative_reward_even_where_the_mean_is_none():
    assert build("maxrl")(Group([0.01, 0, 0, 0], [0] * 4, list("aabc"))) == pytest.approx([3, -1, -1, -1])
    with pytest.raises(ValueError, match="must not be negative"):
        build("maxrl")(Group([0.01, -0.0099, 0, 0], [0] * 4, list("aabc")))
