"""Comparisons as a user runs them: real runs of the embedded model, a failing arm, an interruption, the report again."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from minirl.ablate.__main__ import main
from tests.conftest import ROOT, few_problems

FAST = [
    "--rollout.prompts=4", "--rollout.group_size=4", "--algorithm.mini_batch_prompts=4", "--algorithm.dynamic_sampling=false",
    "--rollout.max_response_tokens=24", "--eval.problems=6", "--eval.samples=4", "--eval.k=4", "--run.save_every=0",
]  # fmt: skip


@pytest.fixture(autouse=True)
def signals_as_they_were():
    """The command takes SIGINT and SIGTERM for itself."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ablate(*arguments):
    """The command in this process; its runs have processes of their own."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main([*map(str, arguments)])
        except SystemExit as ended:
            code = ended.code
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


@pytest.mark.slow
def test_a_comparison_with_a_failing_arm_is_finished_again_and_reported(tmp_path):
    out, reward, fast = tmp_path / "out", tmp_path / "own.py", [*few_problems(tmp_path), *FAST]
    reward.write_text("def reward(problem, response):\n    raise RuntimeError('broken')\n")
    config = tmp_path / "base.yaml"
    config.write_text(
        f"ablate: {{baseline: dapo, seeds: 2, arms: {{dapo: {{algorithm.estimator: dapo}}, edas: {{algorithm.estimator: "
        f"dapo+edas}}, broken: {{verifier.name: '{reward}:reward'}}}}}}\n"
    )
    first = ablate(config, "--out", out, "--budget", "steps=2", "--jobs", 2, *fast)
    assert first.returncode == 1, first.stdout + first.stderr
    assert first.stdout.count("failed broken, seed") == 2
    assert "broken" in first.stdout
    made = (out / "report.md").read_text()
    assert "broken (no finished run)" in made
    assert f"{reward}:reward" in made, "what differs, of the broken arm too"
    results = json.loads((out / "results.json").read_text())
    assert sorted((run["arm"], run["seed"], run["steps"]) for run in results["runs"]) == [
        ("dapo", 0, 2), ("dapo", 1, 2), ("edas", 0, 2), ("edas", 1, 2)
    ]  # fmt: skip
    assert set(results["failed"]) == {"broken, seed 0", "broken, seed 1"}
    # Paired: within a seed the evaluation before and the first batch are the same, bit for bit.
    by = {(run["arm"], run["seed"]): run for run in results["runs"]}
    for seed in (0, 1):
        dapo, edas = by["dapo", seed], by["edas", seed]
        assert dapo["before"] == edas["before"]
        assert dapo["curves"]["reward/mean"][0] == edas["curves"]["reward/mean"][0]
        assert dapo["curves"]["sampling/tokens"][0] == edas["curves"]["sampling/tokens"][0]
    assert by["dapo", 0]["before"] != by["dapo", 1]["before"]

    again = ablate(config, "--arms", "dapo,edas", "--out", out, "--budget", "steps=2", *fast)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "4 of 4 runs are finished already" in again.stdout
    assert "started" not in again.stdout
    # Two steps of few responses: nothing may have varied, or not enough.
    said = r"edas (and dapo (are not distinguishable|cannot be compared)|is (above|below) dapo)"
    assert re.search(said, again.stdout), again.stdout

    report = (out / "report.md").read_bytes()
    (out / "report.md").unlink()
    assert ablate("--report", out).returncode == 0
    assert (out / "report.md").read_bytes() == report

    other = ablate(config, "--arms", "dapo,edas", "--out", out, "--budget", "steps=2", *fast, "--optimizer.lr=0.5")
    assert other.returncode == 2
    assert "optimizer.lr" in other.stderr


@pytest.mark.slow
def test_a_finished_comparison_is_refused_when_the_users_own_file_was_edited_between_two_calls(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("from minirl.advantages import GRPO\n\n\nclass Mine(GRPO):\n    scale = 1.0\n")
    command = [
        "--estimators", f"{mine}:Mine,grpo", "--seeds", 1, "--budget", "steps=1", "--out", tmp_path / "out",
        *few_problems(tmp_path), *FAST,
    ]  # fmt: skip
    first = ablate(*command)
    assert first.returncode == 0, first.stdout + first.stderr
    again = ablate(*command, "--run.trackers=[tensorboard]", "--rollout.max_empty_steps=5")
    assert (again.returncode, again.stderr) == (0, "")
    assert "2 of 2 runs are finished already" in again.stdout
    mine.write_text(mine.read_text().replace("1.0", "2.0"))
    edited = ablate(*command)
    assert edited.returncode == 2
    assert re.search(r"minirl\.ablate: file of .*mine\.py:Mine changed since the run in .* was made: put back", edited.stderr)


@pytest.mark.slow
def test_an_interrupted_comparison_goes_on_where_it_was(tmp_path):
    out = tmp_path / "out"
    arguments = [
        "--estimators", "dapo,grpo", "--seeds", "1", "--budget", "steps=6", "--jobs", "1", "--out", str(out),
        *few_problems(tmp_path), *FAST,
    ]  # fmt: skip
    command = [sys.executable, "-m", "minirl.ablate", *arguments]
    metrics = out / "runs" / "dapo" / "seed0" / "metrics.jsonl"
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (metrics.is_file() and metrics.read_bytes().count(b"\n") >= 1):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command continues" in errors
    assert not (out / "results.json").exists()
    done = metrics.read_bytes()
    assert 1 <= done.count(b"\n") < 6

    second = ablate(*arguments)
    assert second.returncode == 0, second.stdout + second.stderr
    assert metrics.read_bytes().startswith(done), "the steps that were done are not done again"
    assert {run["steps"] for run in json.loads((out / "results.json").read_text())["runs"]} == {6}


@pytest.mark.slow
def test_the_quick_comparison_of_the_readme(tmp_path):
    start = time.monotonic()
    found = ablate("--quick", "--seeds", 1, "--jobs", 2, "--out", tmp_path, *FAST, "--budget", "steps=2")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "1 seed: over problems only" in found.stdout
    assert (tmp_path / "report.html").stat().st_size > 50_000, "pictures are in the page"
    assert time.monotonic() - start < 180


@pytest.mark.slow
def test_nothing_to_compare_is_said_at_once():
    found = ablate("--seeds", 2)
    assert found.returncode == 2
    assert "nothing to compare" in found.stderr
    assert "Traceback" not in found.stderr
    unknown = ablate("--estimators", "dapo,grpo", "--run.stepz=3")
    assert unknown.returncode == 2
    assert "stepz" in unknown.stderr
