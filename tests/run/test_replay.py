"""A saved step taken again: the same numbers to the bit, and what is said when they are not."""

import json
import re
import shutil
import subprocess
import sys

import pytest

import train
from benchmarks.kill_resume import free_port
from minirl.config.command_line import load
from minirl.run.batches import Batches, saved_steps
from minirl.run.checkpoint import State
from tests.conftest import ROOT, few_problems, other_weights

RUN = [
    "--run.steps=4", "--run.save_every=2", "--rollout.prompts=4", "--rollout.group_size=4", "--algorithm.mini_batch_prompts=2",
    "--eval.problems=4", "--eval.samples=2", "--eval.k=2", "--eval.every=0", "--optimizer.lr=1e-3",
    "--optimizer.warmup_steps=0", "--optimizer.schedule=linear", "--algorithm.estimator=dapo+edas+entropy",
    "--rollout.carry_over=true",
    "--rollout.oversample=2", "--algorithm.rollout_is=truncate", "--algorithm.kl_coef=0.01",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with dynamic sampling, carried groups, entropies and a reference; its batches of steps 3 and 4 are kept."""
    folder = tmp_path_factory.mktemp("replay") / "run"
    assert train.main(load([*RUN, *few_problems(folder.parent), "--run-dir", str(folder)])) == 0
    return folder


def replay(step, *options):
    """(exit code, metrics that are marked as different) of a replay; what it printed goes to capsys."""
    return train.main(load(["--replay", str(step), *options]))


def counts(printed):
    """(metrics, equal to the bit, different) in the last line of a comparison."""
    return tuple(map(int, re.search(r"(\d+) metrics: (\d+) equal to the bit, (\d+) differ", printed).groups()))


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_step_after_a_checkpoint_comes_out_again_to_the_bit_and_the_run_is_left_alone(finished, capsys):
    before = files(finished)
    assert replay(finished / "step3") == 0
    printed = capsys.readouterr().out
    all_, equal, different = counts(printed)
    assert all_ == equal > 40
    assert different == 0
    assert re.search(r"optimizer/grad_norm +\S+ +\S+ +0\n", printed), "the update was taken"
    assert re.search(r"(\d+) responses of \d+ groups verified again: 0 verdicts differ", printed)
    row = json.loads((finished / "metrics.jsonl").read_text().splitlines()[2])
    assert row["sampling/carried_groups"] > 0, "else the test shows less than it says"
    assert files(finished) == before


def test_without_weights_verification_and_advantages_are_replayed_and_that_is_said(finished, capsys):
    assert replay(finished / "batches" / "step000004") == 0
    printed = capsys.readouterr().out
    all_, equal, _ = counts(printed)
    assert all_ == equal > 20
    assert "no weights from before step 4" in printed
    assert "optimizer/grad_norm" not in printed
    assert re.search(r"advantages of \d+ responses differ by 0 at most", printed), "entropies are those that were saved"


def test_another_estimator_or_rate_is_shown_and_is_no_failure(finished, capsys):
    assert replay(finished / "step3", "--algorithm.estimator=grpo", "--algorithm.epochs=2") == 0
    printed = capsys.readouterr().out
    assert counts(printed)[2] > 0
    assert "algorithm.estimator: dapo+edas+entropy -> grpo" in printed
    assert re.search(r"advantages of \d+ responses differ by 0\.\d+ at most", printed)
    assert re.search(r"optimizer/steps +2 +4 +2  <--", printed)


@pytest.mark.slow
def test_two_ranks_replay_what_one_has_run(finished):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port()]
    done = subprocess.run([*command, str(ROOT / "train.py"), "--replay", str(finished / "step3")], cwd=ROOT, text=True,
                          capture_output=True, timeout=200, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert counts(done.stdout)[2] == 0


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


def test_numbers_that_do_not_come_out_again_are_named(copy, capsys):
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    row = json.loads(lines[2])
    row["policy/approx_kl"] *= 1.01
    (copy / "metrics.jsonl").write_text("\n".join([*lines[:2], json.dumps(row), *lines[3:]]))
    assert replay(copy / "step3") == 1
    printed = capsys.readouterr()
    assert re.search(r"policy/approx_kl .* <--", printed.out)
    assert printed.err == f"train.py: step 3 of {copy} does not come out again: policy/approx_kl\n"


@pytest.mark.parametrize("step", ["step3", "step4"])
def test_a_run_that_was_given_more_steps_later_replays_as_it_was(copy, step, capsys):
    """step 3: the learning rate of a schedule; step 4, then the last one: surplus that counted as waste."""
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("\n  steps: 4\n", "\n  steps: 9\n"))
    assert load([str(copy / "config.yaml")]).run.steps == 9
    assert replay(copy / step) == 0
    all_, equal, _ = counts(capsys.readouterr().out)
    assert all_ == equal
    replay(copy / step, "--run.steps=4")
    assert "run.steps: 9 -> 4" in capsys.readouterr().out


def test_a_starting_model_with_other_weights_is_refused(copy, tmp_path, capsys):
    assert replay(copy / "step3", f"--model.path={other_weights(tmp_path / 'other')}") == 2
    assert f"holds other weights than those that {copy} started with" in capsys.readouterr().err


def test_a_verdict_that_changes_is_shown(copy, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def never(problem, response, rollout):\n    return 0.0\n")
    assert replay(copy / "step3", f"--verifier.name={tmp_path / 'mine.py'}:never", "--algorithm.estimator=grpo",
                  "--algorithm.dynamic_sampling=false") == 0  # fmt: skip
    printed = capsys.readouterr().out
    assert int(re.search(r"(\d+) verdicts differ", printed)[1]) > 0
    assert re.search(r"group \d+, .* -> \('wrong', '', None, 0\.0\)", printed)


def test_what_cannot_be_replayed_is_said(copy, capsys):
    assert replay(copy / "step1") == 2
    assert "has not kept the batch of step 1; it has 3, 4" in capsys.readouterr().err
    assert replay(copy / "step3", "--run.seed=1") == 2
    assert "run.seed and rollout.group_size must be those of the run" in capsys.readouterr().err
    (copy / "batches" / "step000003" / "generated.npz").write_bytes(b"cut")
    assert replay(copy / "step3") == 2
    assert "cannot be read" in capsys.readouterr().err
    assert replay(copy / "nothing") == 2
    assert "such as runs/mine/step12" in capsys.readouterr().err


def test_batches_are_kept_as_the_config_says(tmp_path):
    def kept(newest):
        run = tmp_path / str(newest)
        (run / "checkpoints" / "step000003").mkdir(parents=True)
        batches = Batches(run, load([f"--run.save_batches={newest}"]).run, "")
        for done in range(6):
            batches.after_step(State(done), [], 0, last=False)
        steps = [step for step, _ in saved_steps(run)]
        batches.remove_after(4)
        assert [step for step, _ in saved_steps(run)] == [step for step in steps if step <= 4]
        return steps

    assert kept(1) == [6, 4], "the newest, and that after a checkpoint"
    assert kept(3) == [6, 5, 4]
    assert kept(0) == []


def test_an_old_batch_that_cannot_be_removed_costs_a_warning(tmp_path, capsys):
    batches = Batches(tmp_path, load(["--run.save_batches=1"]).run, "")
    batches.after_step(State(0), [], 4, last=False)
    (tmp_path / "batches" / "step000001").rename(tmp_path / "elsewhere")
    (tmp_path / "batches" / "step000001").symlink_to(tmp_path / "elsewhere")  # which rmtree refuses, also for root
    batches.after_step(State(1), [], 8, last=False)
    batches.remove_after(0)
    printed = capsys.readouterr().out
    assert len(re.findall(r"warning: \S+step000001 is old and could not be removed", printed)) == 2
    assert [step for step, _ in saved_steps(tmp_path)] == [1]
