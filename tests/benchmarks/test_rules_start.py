"""The checks of the task rules: their numbers by hand, and the command on a few problems."""

import json
import sys

import pytest

from benchmarks import rules_start
from benchmarks.rules_start import Check, run_checks, start_checks
from minirl.utils.errors import ConfigError
from tests.advantages.groups import group


def test_a_verdict_is_by_the_range_with_its_ends():
    verdicts = [Check("", value, 0.6, 0.8).verdict for value in (0.59, 0.6, 0.8, 0.81)]
    assert verdicts == ["out of range", "ok", "ok", "out of range"]
    assert (Check("", 149, low=150).verdict, Check("", 150, low=150).verdict) == ("out of range", "ok")
    assert (Check("", -0.7, high=-0.6).verdict, Check("", -0.5, high=-0.6).verdict) == ("ok", "out of range")
    assert Check("", 3).verdict == ""
    assert Check("x", 149.0, low=150).row() == {
        "check": "x", "measured": "149", "wanted": "at least 150", "verdict": "out of range",
    }  # fmt: skip


def test_the_rows_of_a_start_by_hand():
    # The four in the middle are kept: two diverse (C), one with a repeated wrong answer (B), one with a single one (A)
    groups = [group("aaaa", 0), group("aab", 1), group("ab", 2), group("aaa", 1), group("a", 3), group("", 4)]
    held_out = [(32, 0), (32, 0), (32, 8), (32, 32), (0, 0)]  # the last one without verdicts
    found = {check.name: check.value for check in start_checks(groups, held_out, 0.07)}
    assert found["pass@1, held out"] == pytest.approx((0 + 0 + 0.25 + 1) / 4)
    assert found["held-out problems at 0/32"] == 2
    assert found["groups kept by dynamic sampling, share"] == pytest.approx(4 / 6)
    assert found["diverse groups, share of the kept"] == found["branch B, share of the kept"] * 2 == 0.5
    assert found["classes of wrong answers in a kept group"] == (2 + 2 + 1 + 1) / 4
    assert found["entropy, nats a token"] == 0.07


def finished(folder, steps, samples=32):
    """A run folder whose diverse groups fall from 20 to 5 and whose entropy from 0.08 to 0.03; it solves one of two."""
    (folder / "evaluations").mkdir(parents=True)
    rows = [{"batch/diverse_groups": 20 if i < 5 else 5, "policy/entropy": 0.08 if i < 5 else 0.03} for i in range(steps)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, right in ((0, [0, 0, 3]), (steps, [0, 4, 30])):
        problems = [{"id": str(i), "n": samples, "right": c, "wrong": {}, "tokens": 19} for i, c in enumerate(right)]
        content = {"step": step, "conditions": {}, "metrics": {}, "problems": problems}
        (folder / "evaluations" / f"step{step:06d}.json").write_text(json.dumps(content))
    return folder


def test_the_rows_of_runs_are_means_by_hand(tmp_path):
    one, two = finished(tmp_path / "one", 25), finished(tmp_path / "two", 30)
    lines = (two / "metrics.jsonl").read_text().replace("0.03}", "0.04}").splitlines()
    (two / "metrics.jsonl").write_text("\n".join(lines))
    checks = run_checks([one, two])
    assert [check.value for check in checks] == pytest.approx([-0.75, (-0.625 - 0.5) / 2, 0.5])
    assert [check.verdict for check in checks] == ["ok"] * 3
    assert checks[0].name == "DAPO, 2 runs: change of the diverse groups"


def test_a_run_that_says_too_little_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has 24 steps and 2 evaluations: 25 and 2 are needed"):
        run_checks([finished(tmp_path / "short", 24)])
    with pytest.raises(ConfigError, match=r"eval\.samples to at least 32"):
        run_checks([finished(tmp_path / "few", 30, samples=16)])
    with pytest.raises(ConfigError, match="no run folder with metrics"):
        run_checks([tmp_path / "missing"])


def test_the_command_samples_the_embedded_model_and_says_what_is_out_of_range(tmp_path, capsys, monkeypatch):
    results = tmp_path / "results.jsonl"
    monkeypatch.setattr(sys, "argv", ["rules_start", "--groups", "24", "--problems", "8", "--results", str(results)])
    assert rules_start.main() == 1, "of 8 problems no 150 are unsolved"
    printed = capsys.readouterr().out
    assert "at least 150 out of range" in printed
    rows = {row["check"]: float(row["measured"]) for row in json.loads(results.read_text())["rows"]}
    assert 0 < rows["groups kept by dynamic sampling, share"] < 1
    assert 0.03 < rows["entropy, nats a token"] < 0.15
