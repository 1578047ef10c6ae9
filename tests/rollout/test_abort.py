"""Aborting the groups that take longest: which ones, and that a run with it is resumed and replayed like any other."""

import json
import subprocess
import sys

import pytest

import train
from benchmarks.kill_resume import differences, fingerprint, free_port
from minirl.config.command_line import load
from minirl.rollout import records
from minirl.utils.errors import ConfigError
from tests.conftest import ROOT, few_problems

# At temperature 1 the embedded model gives all responses the same length
RUN = [
    "--rollout.prompts=4", "--rollout.group_size=4", "--rollout.temperature=2", "--algorithm.mini_batch_prompts=2",
    "--eval.problems=8", "--eval.samples=2", "--eval.k=2", "--eval.every=0", "--optimizer.lr=1e-3",
    "--optimizer.warmup_steps=0",
]  # fmt: skip
ABORT = "--rollout.abort_longest=0.4"
DYNAMIC = [
    ABORT, "--run.steps=3", "--run.save_every=1", "--run.keep=3", "--rollout.carry_over=true",
    "--algorithm.rollout_is=truncate",
]  # fmt: skip


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    return few_problems(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(problems):
    """Runs in this process and gives the folder."""

    def start(folder, *options):
        assert train.main(load([*RUN, *problems, "--run-dir", str(folder), *options])) == 0
        return folder

    return start


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def generated(folder, step):
    """{draw number: token ids of its samples} of a step."""
    groups = records.load(folder / "batches" / f"step{step:06}" / "generated.npz")
    return {group[0].group: [r.completion.ids.tolist() for r in group] for group in groups}


def test_the_groups_that_come_are_the_first_to_finish_of_all_that_were_drawn(run, tmp_path):
    once = ["--algorithm.estimator=grpo", "--run.steps=1"]
    short = run(tmp_path / "short", *once, ABORT)
    # 4 / (1 - 0.4) is 6.7: seven prompts are drawn; the same seven without aborting any
    whole = run(tmp_path / "whole", *once, "--rollout.prompts=7", "--algorithm.mini_batch_prompts=7")
    of_all, kept = generated(whole, 1), generated(short, 1)
    assert sorted(of_all) == list(range(7))
    decoded = {number: max(map(len, samples)) for number, samples in of_all.items()}
    assert len(set(decoded.values())) > 1, "else the test shows less than it says"
    first = sorted(range(7), key=lambda number: (decoded[number], number))[:4]
    assert kept == {number: of_all[number] for number in sorted(first)}, "whole groups, in the order drawn"
    (row,) = rows(short)
    assert (row["sampling/groups"], row["sampling/batch_groups"], row["sampling/aborted_groups"]) == (4, 4, 3)
    assert row["sampling/aborted_share"] == 3 / 7
    assert json.loads((short / "batches" / "step000001" / "step.json").read_text())["end"] == 7
    assert (rows(whole)[0]["sampling/aborted_groups"], rows(whole)[0]["sampling/aborted_share"]) == (0, 0)
    before, without = (json.loads((folder / "summary.json").read_text())["before"] for folder in (short, whole))
    assert before == without, "evaluations abort nothing"


@pytest.fixture(scope="module")
def dynamic(run, tmp_path_factory):
    """An uninterrupted run with dynamic sampling and carry-over."""
    folder = run(tmp_path_factory.mktemp("abort") / "run", *DYNAMIC)
    assert all(row["sampling/aborted_groups"] > 0 for row in rows(folder))
    return folder


@pytest.mark.slow
def test_a_run_that_is_stopped_and_resumed_is_the_same_run(run, dynamic, tmp_path):
    for _ in range(2):
        run(tmp_path / "out", *DYNAMIC, "--stop-after=0s")
    run(tmp_path / "out", *DYNAMIC)
    assert differences(fingerprint(dynamic), fingerprint(tmp_path / "out")) == []


def test_a_saved_step_comes_out_again_though_it_aborted_some(dynamic, capsys):
    for step in (2, 3):
        assert train.main(load(["--replay", str(dynamic / f"step{step}")])) == 0
        printed = capsys.readouterr().out
        assert ", 0 differ by more" in printed
        assert f"sampling/aborted_groups {rows(dynamic)[step - 1]['sampling/aborted_groups']:>18.6g}" in printed
        assert "optimizer/grad_norm" in printed, "the update was taken too"


@pytest.mark.slow
def test_ranks_abort_their_own_share_and_one_rank_replays_what_two_have_sampled(problems, tmp_path):
    # Two prompts a batch and dynamic sampling: generation batches of one group, of which the second rank keeps none, come too
    options = [
        *RUN,
        *problems,
        *DYNAMIC,
        "--rollout.prompts=2",
        "--rollout.carry_over=false",
        "--run-dir",
        str(tmp_path / "two"),
    ]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port()]
    done = subprocess.run([*torchrun, str(ROOT / "train.py"), *options], cwd=ROOT, capture_output=True, text=True, timeout=200,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for row in rows(tmp_path / "two"):
        assert row["sampling/batch_groups"] == 2
        assert row["sampling/aborted_groups"] > 0
    assert train.main(load(["--replay", str(tmp_path / "two" / "step2")])) == 0


def test_how_many_prompts_are_drawn_by_hand():
    for share, groups, drawn in ((0.0, 32, 32), (0.2, 32, 40), (0.3, 21, 30), (0.4, 4, 7), (0.5, 3, 6), (0.1, 1, 2)):
        assert load([f"--rollout.abort_longest={share}"]).rollout.draws(groups) == drawn
    for share in (-0.1, 0.6):
        with pytest.raises(ConfigError, match=f"rollout.abort_longest must be at .*{share}"):
            load([f"--rollout.abort_longest={share}"])
