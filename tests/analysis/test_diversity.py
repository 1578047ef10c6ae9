import json
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from minirl.analysis.__main__ import main
from minirl.analysis.diversity import quartile_means, quartile_ranges, quartiles

from .evaluations import rows, write

DIVERSITIES = arrays(np.float64, st.integers(1, 12), elements=st.sampled_from([0.1, 0.25, 0.5, 1.0]))


def weights(diversity):
    """float[4, P]: how far each problem is in each quartile."""
    count = len(diversity)
    means = [quartile_means(diversity, one, np.ones((1, count)))[0] for one in np.eye(count)]
    return np.stack(means, axis=1) * count / 4


def test_without_ties_quartiles_are_quarters_of_the_sorted_problems():
    assert weights(np.array([0.3, 0.1, 0.4, 0.2])).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 1, 0]]


def test_a_number_of_problems_that_four_does_not_divide_is_cut_within_a_problem():
    # six problems, 1.5 a quartile
    assert weights(np.arange(6.0)).tolist() == [
        [1, 0.5, 0, 0, 0, 0], [0, 0.5, 1, 0, 0, 0], [0, 0, 0, 1, 0.5, 0], [0, 0, 0, 0, 0.5, 1]
    ]  # fmt: skip


def test_ties_are_the_mean_over_all_their_orders():
    diversity, improved = np.array([0.5, 0.2, 0.5, 0.5, 0.5, 1.0, 0.2, 0.5]), np.array([1.0, 0, 0, 1, 0, 1, 1, 0])
    places = [p for p in permutations(range(8)) if (np.diff(diversity[list(p)]) >= 0).all()]
    by_hand = np.mean([improved[list(p)].reshape(4, 2).mean(axis=1) for p in places], axis=0)
    assert quartile_means(diversity, improved, np.ones((1, 8)))[0] == pytest.approx(by_hand)


def test_the_range_of_a_quartile_is_that_of_its_problems_shared_ones_included():
    assert quartile_ranges(np.array([0.3, 0.1, 0.4, 0.2, 0.8, 0.5, 0.7, 0.6])) == [
        (0.1, 0.2),
        (0.3, 0.4),
        (0.5, 0.6),
        (0.7, 0.8),
    ]
    # six problems, 1.5 a quartile: the second problem is of the first two quartiles, the fifth of the last two
    assert quartile_ranges(np.arange(6.0)) == [(0, 1), (1, 2), (3, 4), (4, 5)]


def test_a_problem_that_counts_twice_is_two_problems():
    rng = np.random.default_rng(0)
    diversity, values, counts = rng.random(7), rng.random(7), np.array([2, 0, 1, 3, 0, 1, 2])
    written_out = quartile_means(np.repeat(diversity, counts), np.repeat(values, counts), np.ones((1, 9)))
    assert quartile_means(diversity, values, np.stack([counts, 2 * counts])) == pytest.approx(np.repeat(written_out, 2, axis=0))


@settings(deadline=None)
@given(DIVERSITIES, st.randoms())
def test_quartiles_are_equal_every_problem_counts_once_and_the_order_does_not_matter(diversity, random):
    found = weights(diversity)
    assert found.sum(axis=0) == pytest.approx(np.ones(len(diversity)))
    assert found.sum(axis=1) == pytest.approx(np.full(4, len(diversity) / 4))
    order = random.sample(range(len(diversity)), len(diversity))
    assert weights(diversity[order]) == pytest.approx(found[:, order])


def test_intervals_hold_the_rate_and_vanish_without_variation():
    diversity, before = np.linspace(0.1, 1, 40), np.zeros(40)
    after = (np.arange(40) % 10 < np.arange(40) // 10 * 3).astype(float)  # 0, 3, 6, 9 of the ten problems of each quartile
    found = quartiles(diversity, before, after, seed=0, resamples=1000)
    assert [e["mean"] for e in found["improved"]] == pytest.approx([0, 0.3, 0.6, 0.9])
    assert all(e["low"] <= e["mean"] <= e["high"] for e in found["improved"])
    assert found["top_minus_bottom"]["mean"] == pytest.approx(0.9)
    assert found["top_minus_bottom"]["low"] > 0.2, "the trend is plain"
    same = quartiles(diversity, before, np.ones(40), seed=0, resamples=100)
    assert [(e["low"], e["mean"], e["high"]) for e in same["improved"]] == [pytest.approx((1, 1, 1))] * 4


def test_intervals_cover_as_often_as_they_say():
    """100 data sets of 60 problems with a true rate of 0.5 in every quartile; the share of 95% intervals that hold it."""
    rng = np.random.default_rng(0)
    covered = []
    for trial in range(100):
        improved = rng.integers(0, 2, 60).astype(float)
        found = quartiles(rng.random(60), np.zeros(60), improved, seed=trial, resamples=300)
        covered += [e["low"] <= 0.5 <= e["high"] for e in found["improved"]]
    assert 0.88 < np.mean(covered) < 0.99  # 400 intervals; those of small samples cover a little less


def test_the_command_on_problems_counted_by_hand(tmp_path, capsys):
    # Error diversity before: 1/4, 2/4, 3/4, 4/4 at 0%, and one problem at 3/4 right, whose one error has diversity 1.
    base = [list("aaaa"), list("aabb"), list("aabc"), list("abcd"), ["right"] * 3 + ["a"], ["right"] * 4]
    new = [list("aaaa"), list("aabb"), ["right", *"abc"], ["right", *"abc"], ["right"] * 2 + list("ab"), list("abcd")]
    path = write(tmp_path / "e", rows("base", base), rows("new", new))
    assert main(["diversity", path, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "diversity.json").read_text())["methods"]["new"]
    assert found["zero"]["problems"] == 4, "the problem at 100% is in no cohort"
    assert [e["mean"] for e in found["zero"]["improved"]] == [0, 0, 1, 1]
    assert found["zero"]["diversity"] == [0.25, 0.5, 0.75, 1]
    assert found["zero"]["diversity_range"] == [[0.25] * 2, [0.5] * 2, [0.75] * 2, [1] * 2]
    # all: 1.25 problems a quartile: 1 + .25 | .75 + .5 | .5 + .75 of the tie, half of which improved | 1.25 of the tie
    assert found["all"]["problems"] == 5
    assert [e["mean"] for e in found["all"]["improved"]] == pytest.approx([0, 0.5 / 1.25, (0.5 + 0.375) / 1.25, 0.5])
    assert found["all"]["pass_rate_before"] == pytest.approx([0, 0, 0.375 * 0.75 / 1.25, 0.375])
    assert (tmp_path / "out" / "diversity.png").stat().st_size > 10_000
    assert "all problems below 100%" in capsys.readouterr().out


def test_a_cohort_that_is_too_small_is_said(tmp_path, capsys):
    base, new = [["right", "a", "b"]] * 5, [["right", "right", "b"]] * 5
    path = write(tmp_path / "e", rows("base", base), rows("new", new))
    assert main(["diversity", path, "--out", str(tmp_path / "out")]) == 0
    assert "fewer than 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ([["a", "a", "right"]] * 5, "Every problem has the error diversity 0.5,"),
        ([["a", "right", "right"], *[["a", "a", "right"]] * 4], "No problem has two different wrong answers,"),
        ([["a", "b", "right"], *[["a", "a", "right"]] * 4], None),
    ],
)
def test_quartiles_that_do_not_differ_in_diversity_are_said_to_say_nothing(before, why, tmp_path, capsys):
    path = write(tmp_path / "e", rows("base", before), rows("after", [["right", "a", "a"]] * 5))
    assert main(["diversity", path, "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert ("Not to be read from all problems below 100% of after: whether diversity matters." in out) == bool(why)
    assert why is None or why in out
