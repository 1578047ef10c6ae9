"""The report's numbers from a small tree of results, by hand."""

import json

import numpy as np
import pytest

from minirl.ablate.analysis import SCALARS, analyse, breakthroughs, narrow, plain
from minirl.ablate.outcomes import CURVES, left_out, paired, scores, table
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
    found = breakthroughs(results(BOTH), ["<edas>"], "dapo")["<edas>"]
    # Solved share: edas 2/2 and 1/2, dapo 1/2 and 1/2.
    assert found.pop("rate").mean == pytest.approx(0.25)
    assert found == {"hard": 4, "both": 2, "arm_only": 1, "baseline_only": 0, "neither": 1, "p": 1.0, "problems": 2}


def test_mcnemar_by_holm_over_the_arms():
    def arm(name, right):
        return run(name, 0, [0] * 10, right)

    three = results([arm("dapo", [0] * 10), arm("a", [1] * 6 + [0] * 4), arm("b", [1] * 5 + [0] * 5)], arms=("dapo", "a", "b"))
    found = breakthroughs(three, ["a", "b"], "dapo")
    # Two-sided binomial tests of 6 : 0 and 5 : 0 are 2 / 64 and 2 / 32; the smaller is doubled, the other is at least that.
    assert found["a"]["p"] == pytest.approx(2 * 2 / 64)
    assert found["b"]["p"] == pytest.approx(2 / 32)


def test_a_problem_without_a_verdict_is_left_out_of_every_number_of_its_column():
    changed = json.loads(json.dumps(BOTH))
    changed[0]["after"]["n"] = [0, N, N]  # dapo, seed 0, problem a
    changed[0]["after"]["right"] = [0, 0, 4]
    found = analyse(results(changed))
    # Problems b and c: dapo 1/2 and 3/8, edas 5/8 and 4/8.
    assert found["arms"]["dapo"]["after"][1][0] == pytest.approx((1 / 2 + 3 / 8) / 2)
    assert found["held_out"][1]["<edas>"].mean == pytest.approx((5 / 8 + 4 / 8) / 2 - (1 / 2 + 3 / 8) / 2)


def test_an_arm_without_a_finished_run_does_not_empty_the_comparison():
    more = results(BOTH, arms=("dapo", "<edas>", "late"))
    assert paired(more) == [0, 1]
    assert "late (no finished run)" in left_out(more)
    assert "Not compared: late (no finished run)" in to_markdown(blocks_of(more, analyse(more)))
    cut = results([*BOTH, run("dapo", 2, [0] * 3, [4] * 3)])
    assert left_out(cut) == ["dapo, seed 2 (another arm has not finished this seed)"]


def test_runs_that_a_budget_of_tokens_did_not_end_are_named():
    text = to_markdown(blocks_of(results(BOTH, budget="tokens=3000000"), analyse(results(BOTH))))
    assert "Ended before their budget was spent, at run.steps: dapo, seed 0 (2,000,000 spent)" in text
    assert "Ended before" not in to_markdown(blocks_of(results(BOTH, budget="tokens=2000000"), analyse(results(BOTH))))


def test_a_measure_that_a_run_lacks_is_said_and_the_rest_stands():
    lacking = json.loads(json.dumps(BOTH))
    del lacking[1]["curves"]["policy/entropy"]
    found = analyse(results(lacking))
    assert "entropy, nats, last quarter" not in found["scalars"]
    assert "not in every run" in to_markdown(blocks_of(results(lacking), found))


def test_one_seed_says_that_it_knows_nothing_of_others():
    found = analyse(results(BOTH[:2]))
    assert found["scalars"] == {} == found["equal_accuracy"]
    assert "differences need two seeds" in to_markdown(blocks_of(results(BOTH[:2]), found))
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
    assert not narrow(results(three, until=5.0, last_look=20), 5.0), "equal arms: nothing varied, so nothing is known"
    near = [run(r["arm"], r["seed"], [0] * 3, [1, 2, 3 + (r["seed"] == 1 and r["arm"] != "dapo")]) for r in three]
    assert narrow(results(near, until=99.0, last_look=20), 99.0)
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
