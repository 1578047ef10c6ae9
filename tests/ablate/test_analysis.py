"""The report's numbers from a small tree of results, by hand."""

import json

import numpy as np
import pytest

from minirl.ablate.analysis import SCALARS, analyse, breakthroughs, narrow, plain
from minirl.ablate.outcomes import CURVES, paired, scores, table
from minirl.ablate.report import blocks_of, to_html, to_markdown, write_report

N = 4  # responses a problem


def run(arm, seed, before, after, level=1.0):
    """A run of 8 steps whose curves are all `level` * step."""
    curve = [level * step for step in range(1, 9)]
    part = {"metrics": {"pass@1": 0.1, "pass@k": 0.2}}
    return {
        "arm": arm, "seed": seed, "steps": 8, "seconds": 5.0, "tokens": 2_000_000, "training_seconds": 3.0,
        "before": part | {"n": [N] * len(before), "right": before}, "after": part | {"n": [N] * len(after), "right": after},
        "curves": {key: curve for key in CURVES} | {"reward/accuracy": [x / 10 for x in curve]}, "evaluations": [],
    }  # fmt: skip


def results(runs, arms=("dapo", "<edas>"), **more):
    return {
        "baseline": arms[0], "arms": {arm: {} for arm in arms}, "budget": "steps=8", "task": "rules", "model": "embedded-rules",
        "differing": {"algorithm.estimator": {arm: arm for arm in arms}}, "failed": {}, "until": None, "last_look": None,
        "problems": ["a", "b", "c"], "runs": runs, "command": "python -m minirl.ablate",
    } | more  # fmt: skip


BOTH = [
    run("dapo", 0, [0, 0, 1], [1, 0, 4]), run("<edas>", 0, [0, 0, 1], [2, 1, 4], 2.0),
    run("dapo", 1, [0, 0, 1], [2, 0, 3]), run("<edas>", 1, [0, 0, 1], [3, 0, 4], 2.0),
]  # fmt: skip


def test_pass_at_k_of_each_problem():
    assert scores({"n": 4, "right": [1, 4]}, 1).tolist() == [0.25, 1], "one number of responses for all"
    part = {"n": [4, 4, 1], "right": [1, 4, 1]}
    assert scores(part, 1).tolist() == [0.25, 1, 1]
    # 1 - C(3, 2) / C(4, 2); too few verdicts for k = 2
    np.testing.assert_allclose(scores(part, 2), [0.5, 1, np.nan])


def test_only_seeds_that_every_arm_finished_are_compared():
    more = results([*BOTH, run("dapo", 2, [0, 0, 0], [4, 4, 4])])
    assert paired(more) == [0, 1]
    assert table(more, "dapo", 1).tolist() == [[0.25, 0, 1], [0.5, 0, 0.75]]


def test_differences_and_scalars():
    found = analyse(results(BOTH))
    # accuracies: dapo (5/12 + 5/12) / 2, edas (7/12 + 7/12) / 2
    assert found["held_out"][1]["<edas>"].mean == pytest.approx(2 / 12)
    assert found["ks"] == [1, 2, 4]
    # The last quarter of 8 steps is steps 7 and 8.
    last = "diverse groups of the batch, last quarter"
    assert found["arms"]["dapo"]["scalars"][last] == 7.5
    assert found["scalars"][last]["<edas>"].mean == pytest.approx(7.5)
    assert set(found["scalars"]) == set(SCALARS)
    assert len(found["verdicts"]) == 1
    json.dumps(plain(found), allow_nan=False)


def test_breakthroughs_by_hand():
    # Unsolved before: a and b of both seeds. Seed 0: a by both, b by edas alone. Seed 1: a by both, b by neither.
    assert breakthroughs(results(BOTH), ["<edas>"], "dapo") == {
        "<edas>": {"hard": 4, "both": 2, "arm_only": 1, "baseline_only": 0, "neither": 1, "p": 1.0, "problems": 2}
    }


def test_one_seed_says_that_it_knows_nothing_of_others():
    found = analyse(results(BOTH[:2]))
    assert found["scalars"] == {} == found["equal_accuracy"]
    assert "1 seed: over problems only" in found["verdicts"][0]
    assert "One seed" in to_markdown(blocks_of(results(BOTH[:2]), found))


def test_no_whole_seed_is_said_and_written(tmp_path):
    lines = write_report(tmp_path, results(BOTH[:1], failed={"<edas>, seed 0": "no memory"}))
    assert lines[0].startswith("no seed is finished in every arm")
    assert "no memory" in (tmp_path / "report.md").read_text()


def test_until_waits_for_three_seeds_and_then_for_width():
    three = [
        run(arm, seed, [0] * 3, [1, 2, 3 + (seed + bonus) % 2])
        for seed in range(3)
        for arm, bonus in (("dapo", 0), ("<edas>", 0))
    ]
    assert not narrow(results(three[:4], until=5.0, last_look=20), 5.0), "two seeds"
    assert narrow(results(three, until=5.0, last_look=20), 5.0), "equal arms: no width at all"
    wide = [run("<edas>", r["seed"], [0] * 3, [r["seed"], 4, 0]) if r["arm"] == "<edas>" else r for r in three]
    assert not narrow(results(wide, until=5.0, last_look=20), 5.0)


def test_the_report_is_whole_and_escapes_names(tmp_path):
    write_report(tmp_path, results(BOTH))
    page = (tmp_path / "report.html").read_text()
    assert "<edas>" not in page
    assert "&lt;edas&gt;" in page
    assert page.count("data:image/png;base64,") == 2
    assert {p.name for p in tmp_path.iterdir()} == {"report.md", "report.html", "curves.png", "differences.png"}
    text = (tmp_path / "report.md").read_text()
    for heading in (
        "## Held-out problems",
        "## Diversity and training",
        "## Breakthroughs",
        "## What differs between the arms",
    ):
        assert heading in text
    assert to_html(["# a", "b"], {}).count("<h1>a</h1>") == 1
