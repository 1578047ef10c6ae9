import json

import numpy as np
import pytest
import yaml

import train
from minirl.analysis import samples
from minirl.analysis.__main__ import main
from minirl.analysis.dynamics import course, epoch_means, exponential
from minirl.config.command_line import load
from minirl.config.options import Config, as_tree


def run_folder(path, diverse, prompts=256, steps=3):
    """A run folder whose batches have so many diverse groups on average."""
    path.mkdir()
    tree = as_tree(Config())
    tree["rollout"]["prompts"] = prompts
    (path / "config.yaml").write_text(yaml.safe_dump(tree))
    with (path / "metrics.jsonl").open("w") as file:
        for step in range(steps):
            row = {
                "step": step + 1, "batch/diverse_groups": diverse + (step - 1) * 2, "batch/unique_wrong": diverse / 100,
                "batch/unique_wrong_of_two": diverse / 50, "reward/mean": 0.5, "batch/branch_a": 6, "batch/branch_b": 0,
                "batch/branch_c": 250 - step, "groups/diverse_groups": 32, "sampling/groups": 64, "sampling/aborted_groups": 16,
            }  # fmt: skip
            file.write(json.dumps(row) + "\n")
    return str(path)


def test_means_ranges_and_the_ratio_of_the_paper(tmp_path, capsys):
    # the paper's averages: 144.1 of 256 groups are diverse under EDAS, 89.5 under DAPO
    one, two = run_folder(tmp_path / "one", 144.0), run_folder(tmp_path / "two", 144.2, steps=5)
    dapo = run_folder(tmp_path / "dapo", 89.5)
    assert main(["dynamics", dapo, f"edas={one}", f"edas={two}", "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "dynamics.json").read_text())
    assert found["steps"] == 3, "the shortest"
    edas = found["methods"]["edas"]["means"]["diverse groups"]
    assert edas == pytest.approx({"mean": 144.1, "least": 144.0, "most": 144.2, "ratio": 144.1 / 89.5})
    assert found["methods"]["edas"]["means"]["branch B (one error repeated)"]["ratio"] is None, "0 / 0"
    two = found["methods"]["edas"]["means"]["unique wrong, groups with two wrong"]
    assert two["mean"] == pytest.approx(144.1 / 50)
    assert found["methods"]["dapo"]["means"]["diverse share of generated groups"]["mean"] == 0.5
    out = capsys.readouterr().out
    assert "144.100 (144.00 to 144.20)" in out
    assert "1.61" in out
    assert (tmp_path / "out" / "dynamics.png").stat().st_size > 10_000


def test_the_course_of_diverse_groups_by_hand():
    # the running mean over up to nine steps: 8, 7, 6, then (8 + 6 + 4 + 22) / 4
    assert course([8, 6, 4, 22]) == {"start": 8, "minimum": 6, "step": 3, "end": 10, "decline": pytest.approx(-25)}
    assert course([8, 6, 4])["decline"] == pytest.approx(25)
    assert course([0, 1])["decline"] is None


def test_epochs_by_the_prompts_drawn():
    # 100 problems an epoch; steps begin at prompts 0, 60, 120, 180, 240
    one = np.array([[10, 60.0], [8, 60], [6, 60], [4, 60], [3, 60]])
    assert epoch_means([one], 100) == [9, 5, 3]
    other = np.array([[20, 100.0], [10, 100]])
    assert epoch_means([one, other], 100) == [(9 + 20) / 2, (5 + 10) / 2, 3]


def test_the_ratio_of_each_epoch_to_the_first_method(tmp_path, capsys):
    # 80 prompts a step; dapo has 8, 10, 12 diverse groups, edas 14, 16, 18; the first epoch has two steps
    dapo, edas = run_folder(tmp_path / "dapo", 10), run_folder(tmp_path / "edas", 16)
    assert main(["dynamics", dapo, edas, "--problems", "160", "--out", str(tmp_path / "out")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "| dapo | 8.0 | 8.0 (1) | 10.0 | -25.0 | 9.0 (1.00) | 12.0 (1.00) |" in out
    assert "| edas | 14.0 | 14.0 (1) | 16.0 | -14.3 | 15.0 (1.67) | 18.0 (1.50) |" in out
    assert main(["dynamics", dapo, edas, "--problems", "0", "--out", str(tmp_path / "out")]) == 2
    assert "at least 1, not 0" in capsys.readouterr().err


def test_exponential_smoothing_by_hand():
    assert exponential([4, 0, 2]) == [4, 2, 2]
    assert exponential([1, 0, 0], 0.9) == pytest.approx([1, 0.9, 0.81])


def test_runs_that_cannot_be_compared_are_refused(tmp_path, capsys):
    one, other = run_folder(tmp_path / "one", 9), run_folder(tmp_path / "other", 9, prompts=128)
    assert main(["dynamics", one, other, "--out", str(tmp_path / "out")]) == 2
    assert "rollout.prompts=128" in capsys.readouterr().err
    assert main(["dynamics", one, "--out", str(tmp_path / "out")]) == 2
    assert "two or more runs" in capsys.readouterr().err
    (tmp_path / "one" / "metrics.jsonl").write_text('{"step": 1}\n')
    assert main(["dynamics", one, other, "--out", str(tmp_path / "out")]) == 2
    assert "line 1: lacks the columns batch/diverse_groups" in capsys.readouterr().err


@pytest.mark.slow
def test_the_folders_that_training_writes_are_read(tmp_path):
    small = ["--run.steps=2", "--rollout.prompts=4", "--algorithm.mini_batch_prompts=4", "--rollout.group_size=4",
             "--eval.problems=4", "--eval.samples=2", "--eval.k=1", "--eval.every=0", "--run.save_rollouts=4"]  # fmt: skip
    for seed in (0, 1):
        assert train.main(load([*small, f"--run.seed={seed}", f"--run-dir={tmp_path / f'run{seed}'}"])) == 0
    assert main(["dynamics", str(tmp_path / "run0"), str(tmp_path / "run1"), "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "dynamics.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "run0" / "metrics.jsonl").read_text().splitlines()]
    reward = found["methods"]["run0"]["means"]["reward"]["mean"]
    assert reward == pytest.approx(sum(row["reward/mean"] for row in rows) / 2)
    problems = samples.load([str(tmp_path / "run0")])["run0"]
    assert [len(attempts.samples) for attempts in problems.values()] == [4] * 2 * 4, "every group of both steps"


@pytest.mark.parametrize(("diverse", "said"), [(0, True), (4, False)])
def test_runs_without_a_diverse_group_are_said_to_show_nothing_of_diversity(diverse, said, tmp_path, capsys):
    one, two = run_folder(tmp_path / "one", diverse, steps=2), run_folder(tmp_path / "two", diverse, steps=2)
    for folder in (one, two):
        file = tmp_path / folder / "metrics.jsonl"
        rows = [json.loads(line) | {"batch/diverse_groups": diverse} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["dynamics", one, two, "--out", str(tmp_path / "out")]) == 0
    assert ("Not to be read from these runs: diversity of errors" in capsys.readouterr().out) == said
