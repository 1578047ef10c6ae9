"""Whole runs that are stopped, killed, damaged and continued."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid

import pytest

from benchmarks.kill_resume import MARK, RUN, differences, fingerprint, launcher, living
from benchmarks.kill_resume import start as start_watched
from minirl.config.command_line import load
from minirl.data import rules
from minirl.policy.policy import Policy
from minirl.run import lifecycle, training
from minirl.run.folder import finished
from minirl.tiny import make as tiny
from tests.conftest import ROOT, few_problems, other_weights
from tests.test_train import metrics, same, start


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run, with dynamic sampling and carry-over."""
    folder = tmp_path_factory.mktemp("resume") / "whole"
    assert start([*RUN, "--run-dir", str(folder)]) == 0
    assert sum(row["sampling/carried_groups"] for row in metrics(folder)) > 0
    return fingerprint(folder)


def begun(folder, *options):
    """A run that was ended after its first step."""
    assert start([*RUN, "--stop-after=0s", "--run-dir", str(folder), *options]) == 0
    return folder


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory):
    """A run that was ended after its first, its second and its third step."""
    folder = tmp_path_factory.mktemp("resume") / "three"
    for _ in range(3):
        begun(folder, "--run.keep=3")
    return folder


@pytest.fixture
def stopped(three_steps, tmp_path):
    """A copy of it."""
    return shutil.copytree(three_steps, tmp_path / "out")


@pytest.mark.slow
def test_a_run_that_is_stopped_after_a_step_again_and_again_is_the_same_run(whole, tmp_path, capsys):
    for done in (1, 2, 3):
        begun(tmp_path / "out")
        assert (
            f"stopped after step {done} of 8; resume with: python train.py {tmp_path / 'out'}/config.yaml"
            in capsys.readouterr().out
        )
        assert not (tmp_path / "out" / "summary.json").exists()
    # every option is in the saved config, the time limit too
    assert start([str(tmp_path / "out" / "config.yaml"), "--stop-after=null"]) == 0
    assert differences(whole, fingerprint(tmp_path / "out")) == []
    before = metrics(tmp_path / "out")
    capsys.readouterr()
    assert start([*RUN, "--run-dir", str(tmp_path / "out")]) == 0
    assert "is finished after 8 steps: raise run.steps" in capsys.readouterr().out
    assert metrics(tmp_path / "out") == before
    # another config is refused here too, and a summary that was cut is none
    assert start([*RUN, "--run-dir", str(tmp_path / "out"), "--optimizer.lr=5"]) == 2
    assert "is a run with another config (optimizer.lr: 0.001 -> 5.0)" in capsys.readouterr().err
    os.truncate(tmp_path / "out" / "summary.json", 20)
    assert finished(load([*RUN, "--run-dir", str(tmp_path / "out")])) is None


@pytest.mark.slow
def test_a_finished_run_goes_on_for_more_steps_as_if_it_had_been_longer(whole, tmp_path, capsys):
    assert start([*RUN, "--run.steps=3", "--run-dir", str(tmp_path / "out")]) == 0
    assert start([*RUN, "--run-dir", str(tmp_path / "out"), "--eval.every=2", "--run.keep=1"]) == 0
    assert "changed: run.steps: 3 -> 8" in capsys.readouterr().out
    longer = fingerprint(tmp_path / "out")
    assert longer["weights"] == whole["weights"]
    # at its former end the surplus counted as waste, and is carried over all the same
    assert {"sampling/wasted_groups"} >= {k for k, v in longer["metrics"][2].items() if v != whole["metrics"][2][k]}
    assert longer["metrics"][3:] == whole["metrics"][3:]


def test_a_config_that_differs_in_what_matters_is_refused_by_name(stopped, capsys):
    folder = stopped
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    arguments = ["--optimizer.lr=2e-3", "--rollout.temperature=0.9", "--run.seed=1", "--run.steps=9"]
    assert start([*RUN, "--run-dir", str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    for text in ("optimizer.lr: 0.001 -> 0.002", "rollout.temperature: 1.0 -> 0.9", "run.seed: 0 -> 1", "another --run-dir"):
        assert text in error
    assert "run.steps" not in error, "more steps are welcome"
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    assert start([*RUN, "--run-dir", str(folder), "--resume", "never"]) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert start([*RUN, "--run-dir", str(folder), "--optimizer.micro_batch_tokens=64", "--stop-after=0s"]) == 0
    assert "micro_batch_tokens: 16384 -> 64; numbers differ from here on by rounding" in capsys.readouterr().out
    assert [row["step"] for row in metrics(folder)] == [1, 2, 3, 4]


def test_damaged_checkpoints_are_skipped_with_a_sentence(whole, stopped, capsys):
    folder = stopped
    newest, middle = folder / "checkpoints" / "step000003", folder / "checkpoints" / "step000002"
    os.truncate(newest / "rank000.safetensors", 1000)
    (folder / "checkpoints" / "step000005.tmp").mkdir()  # half-written
    (folder / "checkpoints" / "step000006.tmp").write_text("")  # by whomever
    capsys.readouterr()
    assert start([*RUN, "--run-dir", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "was skipped: step000003: rank000.safetensors has 1,000 bytes instead of" in printed
    assert f"resuming after step 2, from {middle}" in printed
    assert not list(folder.rglob("*.tmp"))
    assert differences(whole, fingerprint(folder)) == []


def test_without_any_valid_checkpoint_nothing_is_thrown_away(tmp_path, capsys):
    folder = begun(tmp_path / "out", "--run.save_every=1")
    (folder / "checkpoints" / "step000001" / "state.json").unlink()
    kept = (folder / "metrics.jsonl").read_text()
    assert start([*RUN, "--run.save_every=1", "--run-dir", str(folder)]) == 2
    assert "no checkpoint in" in (error := capsys.readouterr().err)
    assert "step000001: state.json is missing" in error
    # also when they are gone altogether, unless the first one was not due yet
    (folder / "checkpoints" / "step000001").rename(tmp_path / "elsewhere")
    (folder / "metrics.jsonl").write_text(kept * 2)
    assert start([*RUN, "--run.save_every=1", "--run-dir", str(folder)]) == 2
    assert "has 2 steps and no checkpoint" in capsys.readouterr().err
    assert (folder / "metrics.jsonl").read_text() == kept * 2
    (folder / "metrics.jsonl").write_text(kept)
    assert start([*RUN, "--run.save_every=1", "--stop-after=0s", "--run-dir", str(folder)]) == 0
    assert [row["step"] for row in metrics(folder)] == [1]


def test_metrics_that_lack_steps_are_not_continued(stopped, capsys):
    (stopped / "metrics.jsonl").write_text("")
    assert start([*RUN, "--run-dir", str(stopped)]) == 2
    assert "metrics.jsonl does not hold the 3 steps before" in capsys.readouterr().err


@pytest.mark.slow
def test_a_named_checkpoint_is_continued_and_later_ones_go(whole, stopped, tmp_path, capsys):
    folder = stopped
    named = folder / "checkpoints" / "step000002"
    assert start([*RUN, "--resume", str(named)]) == 0
    printed = capsys.readouterr().out
    assert f"removed {folder / 'checkpoints' / 'step000003'}: the run resumes from step000002" in printed
    assert differences(whole, fingerprint(folder)) == []
    assert start([*RUN, "--resume", str(named.with_name("step000006"))]) == 0, "also behind the end of a finished run"
    assert "resuming after step 6" in capsys.readouterr().out
    assert differences(whole, fingerprint(folder)) == []
    assert start([*RUN, "--resume", str(tmp_path)]) == 2
    assert "is no checkpoint: it takes auto, never, or a folder" in capsys.readouterr().err
    assert start([*RUN, "--resume", str(named.with_name("step000008")), "--run-dir", str(tmp_path / "b")]) == 2
    assert "is a checkpoint of" in capsys.readouterr().err
    unfinished = shutil.copytree(named.with_name("step000008"), named.with_name("step000009.tmp"))
    assert start([*RUN, "--resume", str(unfinished)]) == 2
    assert "is no checkpoint" in capsys.readouterr().err
    assert unfinished.exists()


def test_other_data_is_refused_and_the_same_data_elsewhere_is_not(tmp_path, capsys):
    rows = [{"problem": p.prompt, "answer": p.answer} for p in rules.problems("train")[:60]]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ["--data.task=dataset", "--data.test_size=10", f"--data.train={tmp_path / 'one' / 'rows.jsonl'}"]
    folder = begun(tmp_path / "out", *data)
    moved = [*data[:2], f"--data.train={tmp_path / 'two' / 'rows.jsonl'}"]
    begun(folder, *moved)
    rows[0]["answer"] += ".0"
    (tmp_path / "two" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert start([*RUN, *moved, "--run-dir", str(folder)]) == 2
    assert "problems changed since" in capsys.readouterr().err
    assert [row["step"] for row in metrics(folder)] == [1, 2]


def test_another_tokenizer_model_or_reward_in_the_same_place_is_refused(tmp_path, capsys):
    model = shutil.copytree(tiny.FOLDERS["embedded"], tmp_path / "model")
    (tmp_path / "mine.py").write_text(reward := "def mine(problem, response, rollout):\n    return float('1' in response)\n")
    options = [*few_problems(tmp_path), f"--model.path={model}", f"--verifier.rewards=[['{tmp_path / 'mine.py'}:mine', 1]]"]
    folder = begun(tmp_path / "out", *options)

    def refused(path, content, what):
        before = path.read_bytes()
        path.write_bytes(content)
        assert start([*RUN, *options, "--run-dir", str(folder)]) == 2
        assert f"{what} changed since {folder}/checkpoints/step000001 was saved" in capsys.readouterr().err
        path.write_bytes(before)

    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    refused(model / "tokenizer_config.json", json.dumps(tokenizer | {"pad_token": "-"}).encode(), "tokenizer")
    config = json.loads((model / "config.json").read_text())
    refused(model / "config.json", json.dumps(config | {"rope_theta": 7.0, "rope_parameters": None}).encode(), "model's config")
    refused(tmp_path / "mine.py", reward.replace("1", "2").encode(), "reward file")
    weights = (other_weights(tmp_path / "other") / "model.safetensors").read_bytes()
    refused(model / "model.safetensors", weights, "the starting model's weights")
    shutil.move(model, tmp_path / "moved")
    begun(folder, *options, f"--model.path={tmp_path / 'moved'}")
    assert [row["step"] for row in metrics(folder)] == [1, 2]


def test_export_and_report_are_written_under_the_lock_and_a_signal_then_does_no_harm(tmp_path, monkeypatch):
    export, folder = Policy.export, tmp_path / "out"

    def watched(self, *arguments):
        with (folder / ".lock").open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / "model.tmp").mkdir()
        (folder / "model.tmp" / "left.over").touch()
        os.kill(os.getpid(), signal.SIGTERM)
        export(self, *arguments)

    monkeypatch.setattr(Policy, "export", watched)
    assert start([*RUN, *few_problems(tmp_path), "--run.steps=1", "--run-dir", str(folder)]) == 0
    assert (folder / "summary.json").exists()
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {p.name for p in (folder / "model").iterdir()}
    assert not (folder / "model" / "left.over").exists()


@pytest.mark.parametrize(("module", "phase", "evaluations"), [(lifecycle, "build_engine", 0), (training, "evaluate", 1)])
def test_a_signal_before_the_first_step_ends_the_run_there(module, phase, evaluations, tmp_path, monkeypatch, capsys):
    call = getattr(module, phase)

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)  # until the thread has it
        return call(*arguments)

    options = [*RUN, *few_problems(tmp_path), "--run-dir", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(module, phase, interrupted)
        assert start(options) == 0
    printed = capsys.readouterr().out
    assert f"stopped after step 0 of 8; resume with: python train.py {tmp_path / 'out'}/config.yaml" in printed
    assert printed.count("eval after step 0") == evaluations
    assert not (tmp_path / "out" / "metrics.jsonl").read_text()
    begun(tmp_path / "out", *few_problems(tmp_path))
    assert len(metrics(tmp_path / "out")) == 1


def test_two_processes_never_write_into_one_run(stopped, capsys):
    with (stopped / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert start([*RUN, "--run-dir", str(stopped)]) == 2
    assert f"another process is running in {stopped}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["2h50", "soon", "", "-3m", "1h 2m"])
def test_a_time_limit_that_is_none_is_said(text, capsys):
    assert start([f"--stop-after={text}"]) == 2
    assert f"such as 2h50m, 90s or 1d, not {text!r}" in capsys.readouterr().err


# ---- processes -------------------------------------------------------------------------------------------------------------


class Job:
    """A run in processes of its own."""

    def __init__(self, folder, *options, front=(sys.executable,)):
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.process = subprocess.Popen(
            [*front, str(ROOT / "train.py"), *RUN, "--run-dir", str(folder), *options], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {MARK: self.mark}, start_new_session=True,
        )  # fmt: skip

    def wait_for(self, step):
        """Until the metrics of `step` are written."""
        path, end = self.folder / "metrics.jsonl", time.monotonic() + 90
        while not path.exists() or path.read_text().count("\n") < step:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.02)

    def end(self):
        """(exit code, what it printed, processes left after a moment)"""
        out, err = self.process.communicate(timeout=90)
        end = time.monotonic() + 10
        while (left := living(self.mark)) and time.monotonic() < end:
            time.sleep(0.05)
        return self.process.returncode, out + err, left


LONG = ("--run.steps=100000", "--verifier.workers=2")  # ends by the signal or not at all


@pytest.mark.slow
def test_a_signal_to_any_rank_ends_the_run_after_its_step_and_leaves_no_process(tmp_path):
    job = Job(tmp_path / "out", *LONG, front=launcher(2, None))
    job.wait_for(2)
    (target,) = [p for p in living(job.mark) if is_rank(p, 1)]  # the other rank is told nothing
    os.kill(target, signal.SIGTERM)
    code, printed, left = job.end()
    assert (code, left) == (0, []), printed[-3000:]
    assert f"resume with: python train.py {tmp_path / 'out'}/config.yaml" in printed
    rows = metrics(tmp_path / "out")
    assert f"stopped after step {len(rows)} of 100000" in printed
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    # and a resumed one goes on from there, on one rank
    assert start([*RUN, *LONG, "--stop-after=0s", "--run-dir", str(tmp_path / "out")]) == 0
    assert len(metrics(tmp_path / "out")) == len(rows) + 1


def is_rank(pid, rank):
    """Whether a process is the trainer of this rank and not a worker of it."""
    with open(f"/proc/{pid}/environ", "rb") as file, open(f"/proc/{pid}/cmdline", "rb") as command:
        return f"RANK={rank}".encode() in file.read().split(b"\0") and b"train.py" in command.read()


@pytest.mark.slow
def test_a_second_interrupt_ends_a_rank_at_once_that_waits_for_one_that_hangs_and_leaves_no_process(tmp_path):
    job = Job(tmp_path / "out", *LONG, front=launcher(2, None))
    job.wait_for(1)
    waiting, hanging = (next(p for p in living(job.mark) if is_rank(p, rank)) for rank in (0, 1))
    os.kill(hanging, signal.SIGSTOP)
    time.sleep(1.0)  # the other one is in a collective by now
    steps = len(metrics(tmp_path / "out"))
    os.kill(waiting, signal.SIGINT)
    time.sleep(1.2)
    assert len(metrics(tmp_path / "out")) == steps
    os.kill(waiting, signal.SIGINT)
    end = time.monotonic() + 10
    while waiting in living(job.mark):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(hanging, signal.SIGKILL)  # what torchrun does half a minute later
    _, printed, left = job.end()
    assert left == []
    assert "SIGINT: the run ends after this step; Ctrl-C then ends it at once\nstopped at once\n" in printed
    assert re.search(r"exitcode +: 130 ", printed)


def test_a_killed_run_goes_on_to_the_same_numbers(whole, tmp_path):
    folder = tmp_path / "out"
    phase, _, left = start_watched([sys.executable], [*RUN, "--run-dir", str(folder)], ("saving", 4, 0.5))
    assert phase
    assert left == 0
    assert start([*RUN, "--run-dir", str(folder)]) == 0
    assert differences(whole, fingerprint(folder)) == []


def assert_same_two_steps(killed, folder, ranks):
    """That the second and third step of two runs, of which one was resumed after its first, are the same to the bit."""
    for step in ("step000002", "step000003"):
        shards = sorted((killed / "checkpoints" / step).glob("*.safetensors"))
        assert len(shards) == ranks
        for path in (*shards, killed / "rollouts" / f"{step}.jsonl"):
            assert path.read_bytes() == (folder / path.relative_to(killed)).read_bytes()
    assert [row["step"] for row in metrics(folder)] == [1, 2, 3, 4]
    for a, b in zip(metrics(killed)[:3], metrics(folder)[:3], strict=True):
        assert same(a, b, 0.0)


SAVING = ("--run.save_every=1", "--run.keep=1000")


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others_and_the_run_goes_on_with_two_ranks_and_with_one(tmp_path, capsys):
    folder, four = tmp_path / "out", [*RUN, *SAVING, "--run.steps=4"]
    job = Job(folder, *LONG, *SAVING, front=launcher(2, None))
    job.wait_for(4)  # the checkpoint of step 3 is complete
    (target,) = [p for p in living(job.mark) if is_rank(p, 1)]
    os.kill(target, signal.SIGKILL)
    code, printed, left = job.end()
    assert code not in (0, None)
    assert "SIGKILL" in printed, "by torchrun, of the rank that died"
    assert left == []
    killed = shutil.copytree(folder, tmp_path / "killed")
    # Two ranks resume after step 1: the same numbers
    _, printed, _ = start_watched(launcher(2, None), [*four, "--resume", str(folder / "checkpoints" / "step000001")])
    assert "resuming after step 1" in printed
    assert_same_two_steps(killed, folder, 2)
    # One rank resumes after the last step
    done = max(int(p.name[4:]) for p in (killed / "checkpoints").glob("step*") if p.suffix != ".tmp")
    assert start([*RUN, *LONG, *SAVING, "--stop-after=0s", "--run-dir", str(killed)]) == 0
    assert [row["step"] for row in metrics(killed)] == list(range(1, done + 2))
    # and after step 3: nearly the same numbers
    capsys.readouterr()
    assert start([*four, "--run-dir", str(killed), "--resume", str(killed / "checkpoints" / "step000003")]) == 0
    assert "it was saved by 2 ranks and is resumed by 1 rank:" in capsys.readouterr().out
    assert same(metrics(killed)[3], metrics(folder)[3], 2e-4)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_run_with_vllm_and_zero_3_goes_on_to_the_same_numbers(tmp_path):
    pytest.importorskip("vllm", reason="needs vLLM, or its build for CPUs")
    pytest.importorskip("deepspeed", reason="needs DeepSpeed")
    folder, arguments = tmp_path / "out", [*RUN, *SAVING, "--run.steps=4", "--rollout.engine=vllm"]
    phase, _, left = start_watched(launcher(1, 3), [*arguments, "--run-dir", str(folder)], ("sampling", 4, 0.5))
    assert phase
    assert left == 0
    killed = shutil.copytree(folder, tmp_path / "killed")
    _, printed, _ = start_watched(launcher(1, 3), [*arguments, "--resume", str(folder / "checkpoints" / "step000001")])
    assert "resuming after step 1" in printed
    assert_same_two_steps(killed, folder, 1)


def test_a_template_that_prints_the_date_prints_the_day_the_run_began(tmp_path, capsys):
    """Else the prompts of a run that is resumed on another day would be others."""
    model = shutil.copytree(tiny.FOLDERS["embedded"], tmp_path / "model")
    template = model / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d') }}" + template.read_text())
    options = [f"--model.path={model}", *few_problems(tmp_path)]
    begun(tmp_path / "out", *options, "--data.template_date=2024-03-17")
    assert "first prompt, as the model sees it: '17<user>" in capsys.readouterr().out
    begun(tmp_path / "out", *options)
    printed = capsys.readouterr().out
    assert "resuming after step 1" in printed
    assert "first prompt, as the model sees it: '17<user>" in printed
