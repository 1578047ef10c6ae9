"""Things that go wrong in a run, each made to happen: the run goes on and counts it, or ends in a sentence with a remedy."""

import contextlib
import itertools
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import train
from minirl.config.command_line import load
from minirl.policy import policy as policies
from minirl.policy.policy import Policy
from minirl.rollout.engines import build_engine
from minirl.rollout.hf import TransformersEngine
from minirl.rollout.types import Completion, Rollout
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.utils.errors import RunError
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import Verdict
from tests.conftest import ROOT, few_problems, mounted

TOK = tiny.tokenizer()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Options of a run of seconds, on few problems of the embedded task."""
    return [
        *few_problems(tmp_path_factory.mktemp("data")), "--run.steps=3", "--rollout.prompts=4", "--rollout.group_size=4",
        "--algorithm.mini_batch_prompts=2", "--eval.every=0", "--eval.problems=4", "--eval.samples=2", "--eval.k=2",
        "--optimizer.lr=1e-3", "--run.save_every=1",
    ]  # fmt: skip


def rollout(prompt, response):
    sample = Completion(np.array(response, np.int32), np.full(len(response), -1.0, np.float32), "stop")
    return Rollout(0, "", "", list(prompt), sample, 0, "", Verdict("wrong"), 0.0)


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(policy):
    return [p.detach().clone() for p in policy.model.parameters()]


# ---- a loss or gradient that is not finite ---------------------------------------------------------------------------------


def step(policy, factor):
    """One optimizer step whose loss is multiplied by `factor`; its gradient norm."""
    for micro in policy.gradient_steps([rollout([4, 5], [6, 7, 1])]):
        policy.accumulate(policy.logprobs(micro)[0].sum() * factor)
    return policy.step(1e-3)


@pytest.mark.parametrize("factor", [math.nan, math.inf, 1e39])
def test_a_step_that_is_not_finite_changes_nothing_and_leaves_nothing_behind(factor):
    spoilt, healthy = (Policy(load([]), Ranks(), len(TOK)) for _ in range(2))
    for policy in (spoilt, healthy):
        step(policy, 1.0)
    before = weights(spoilt)
    assert not math.isfinite(step(spoilt, factor))
    assert (spoilt.version, spoilt.nonfinite) == (1, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(spoilt), strict=True))
    # moments, step count and gradient are what they were: the next step is that of a policy that never saw it
    assert step(spoilt, 1.0) == step(healthy, 1.0)
    assert spoilt.nonfinite == 0
    assert all(torch.equal(a, b) for a, b in zip(weights(spoilt), weights(healthy), strict=True))


def test_a_finite_loss_with_an_infinite_gradient_is_skipped_too():
    policy = Policy(load([]), Ranks(), len(TOK))
    batch = policy.micro_batch([rollout([4], [6])], [0])
    logprobs, _ = policy.logprobs(batch)
    loss = (logprobs - logprobs.detach()).sum().abs().sqrt()  # 0, with slope inf * 0
    assert loss.isfinite()
    policy.accumulate(loss)
    before = weights(policy)
    assert not math.isfinite(policy.step(1e-3))
    assert all(torch.equal(a, b) for a, b in zip(before, weights(policy), strict=True))


def spoil(monkeypatch, losses):
    """Multiplies the loss of each micro-batch by the next number."""
    accumulate, factors = Policy.accumulate, iter(losses)
    monkeypatch.setattr(Policy, "accumulate", lambda self, loss: accumulate(self, loss * next(factors)))


def test_skipped_steps_are_counted_and_the_run_goes_on(small, tmp_path, monkeypatch, capsys):
    spoil(monkeypatch, [1, math.nan, math.nan, 1, 1, 1])
    assert train.main(load([*small, "--optimizer.max_nonfinite=3", "--run-dir", str(tmp_path / "out")])) == 0
    rows = metrics(tmp_path / "out")
    assert [row["optimizer/nonfinite"] for row in rows] == [1, 1, 0]
    assert [row["optimizer/steps"] for row in rows] == [1, 1, 2]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert "warning: step 1, not finite: the loss or gradient of 1 optimizer steps was not finite" in capsys.readouterr().out


def test_too_many_in_a_row_end_the_run_with_its_batch_and_the_weights_before_it(small, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        spoil(patch, [1, 1, 1, math.nan, math.nan, math.nan])
        options = [*small, "--optimizer.max_nonfinite=3", "--run.save_every=0", "--run.save_batches=0", "--run-dir", str(out)]
        assert train.main(load(options)) == 1
    assert [row["optimizer/nonfinite"] for row in metrics(out)] == [0, 1, 2]
    error = capsys.readouterr().err
    found = re.search(r"not finite in 3 optimizer steps in a row.*--replay (\S+/step3)", error)
    assert found, error
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step000002"]
    # The batch is whole and the weights are there: replayed without the fault, its two steps are taken.
    assert train.main(load(["--replay", found[1]])) == 1
    assert re.search(r"optimizer/steps +0 +2 .*<--", capsys.readouterr().out)


# ---- memory, engine, workers -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def little_memory(megabytes):
    """This process may take no more than so much memory on top of what it has."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + megabytes * 2**20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
def test_out_of_memory_in_the_update_says_which_micro_batch_to_use():
    policy = Policy(load(["--optimizer.micro_batch_tokens=1000000"]), Ranks(), len(TOK))
    many = [rollout([4] * 60, [5] * 60) for _ in range(2000)]
    # packed: the prompt once, and the last token of a response is not run: 60 + 2,000 * 59
    with little_memory(200), pytest.raises(RunError, match=r"2000 sequences, 118060 tokens.*micro_batch_tokens=59030 "), \
            policy.computing():  # fmt: skip
        policy.compute_logprobs(many, old=True)
    with pytest.raises(RuntimeError, match="something else"), policy.computing():
        raise RuntimeError("something else")


def test_a_model_that_is_too_large_ends_with_the_arithmetic_of_the_plan(monkeypatch):
    def full(config):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB")

    monkeypatch.setattr(policies, "load_model", full)
    with pytest.raises(RunError, match=r"in loading the model: CUDA out.*7 GiB; model.*parameters.*weights.*optimizer.*peak"):
        Policy(load([]), Ranks(), len(TOK))


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
def test_out_of_memory_while_sampling_says_how_many_sequences_to_use(small):
    config = load([*small, "--rollout.max_sequences=100000"])
    policy = Policy(config, Ranks(), len(TOK))
    engine = build_engine(config, policy, TOK, 100)
    with little_memory(200), pytest.raises(RunError, match=r"40000 sequences at once.*rollout\.max_sequences=20000"):
        list(engine.generate([[4] * 60] * 400, train.SamplingParams(100, 1.0, 12), list(range(400))))


def test_an_engine_that_fails_ends_the_run_with_its_reason_and_what_to_lower(small, tmp_path, monkeypatch, capsys):
    def broken(self, *arguments):
        yield from ()
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(TransformersEngine, "generate", broken)
    assert train.main(load([*small, "--run-dir", str(tmp_path / "out")])) == 1
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert re.search(r"train.py: TransformersEngine failed .* illegal memory access .* lower rollout\.max_sequences", error)


@pytest.mark.slow
def test_weights_that_are_not_pushed_end_the_run(small, tmp_path, monkeypatch, capsys):
    sync = TransformersEngine.sync
    monkeypatch.setattr(TransformersEngine, "sync", lambda self, policy: policy.version or sync(self, policy))
    assert train.main(load([*small, "--run-dir", str(tmp_path / "out")])) == 1
    assert re.search(r"engine holds the weights of version 0, the policy is at \d+: a push is missing", capsys.readouterr().err)
    assert not (tmp_path / "out" / "summary.json").exists()


def test_a_run_survives_the_death_of_its_workers(small, tmp_path, monkeypatch):
    pools = []

    class Watched(VerifierPool):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            pools.append(self)

    first = train.update

    def update(*arguments):
        for worker in pools[0]._workers:
            os.kill(worker.process.pid, signal.SIGKILL)
        return first(*arguments)

    monkeypatch.setattr("minirl.run.inputs.VerifierPool", Watched)
    monkeypatch.setattr(train, "update", update)
    assert train.main(load([*small, "--run-dir", str(tmp_path / "out")])) == 0
    assert len(metrics(tmp_path / "out")) == 3
    assert pools[0].counts["replaced workers"] >= 2


def test_a_verdict_that_is_lost_with_its_worker_is_counted_and_left_out(small, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, signal\ndef deadly(problem, response, rollout):\n    if rollout['group'] % 4 == 1:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    return float(problem.answer in response)\n"
    )
    more = [f"--verifier.name={tmp_path / 'mine.py'}:deadly", "--algorithm.estimator=grpo", "--run.steps=1"]
    more += ["--rollout.group_size=2", "--eval.problems=1"]
    assert train.main(load([*small, *more, "--run-dir", str(tmp_path / "out")])) == 0
    (row,) = metrics(tmp_path / "out")
    assert row["verify/errors"] == 2, "one group of two"
    assert math.isfinite(row["reward/mean"])


def test_workers_that_do_not_start_again_end_the_run_but_leave_its_folder(small, tmp_path, monkeypatch, capsys):
    first = train.update

    def update(*arguments):
        stats = first(*arguments)
        monkeypatch.setattr(sys, "executable", "/bin/false")
        return stats

    monkeypatch.setattr(train, "update", update)
    monkeypatch.setattr("minirl.verify.pool.pool.GIVE_UP_SECONDS", 1.0)  # five minutes are too long for a test
    (tmp_path / "mine.py").write_text(
        "import os\ndef dies(problem, response, rollout):\n    if rollout['group'] > 3:\n        os._exit(3)\n"
        "    return float(problem.answer in response)\n"
    )
    more = [f"--verifier.name={tmp_path / 'mine.py'}:dies", "--algorithm.estimator=grpo"]
    assert train.main(load([*small, *more, "--run-dir", str(tmp_path / "out")])) != 0
    assert "do not start" in capsys.readouterr().err
    assert len(metrics(tmp_path / "out")) == 1
    assert (tmp_path / "out" / "checkpoints" / "step000001").is_dir()


# ---- batches that teach nothing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "options", "says"),
    [
        # the first token is the last
        ("dapo+edas", ["--rollout.max_response_tokens=1"], r"100% were cut"),
        # any text ends a response and is no part of it
        ("grpo", [f"--rollout.stop={list('{}0123456789*=+-. ')}"], "0% were cut"),
    ],
)  # fmt: skip
def test_batches_of_nothing_but_cut_or_empty_responses_end_the_run_with_an_explanation(
    small, estimator, options, says, tmp_path, capsys
):
    more = ["--rollout.max_generation_batches=2", f"--algorithm.estimator={estimator}", "--algorithm.mask_truncated=true"]
    limit = ["--run.steps=9", "--rollout.max_empty_steps=2"]
    assert train.main(load([*small, *options, *more, *limit, "--run-dir", str(tmp_path / "out")])) == 1
    rows = metrics(tmp_path / "out")
    assert len(rows) == 2
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert all(row["response/no_answer"] == 1 and row["groups/informative"] == 0 for row in rows)
    assert re.search(rf"2 batches in a row had no group with rewards that differ.*0% were right, 100% gave no answer.*{says}",
                     capsys.readouterr().err)  # fmt: skip


# ---- disks and clocks ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def files_up_to(size):
    """Writing beyond `size` bytes of any file fails, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def after_update(monkeypatch, number, action):
    """Calls `action` after the update of step `number`."""
    first, count = train.update, itertools.count(1)

    def update(*arguments):
        stats = first(*arguments)
        if next(count) == number:
            action()
        return stats

    monkeypatch.setattr(train, "update", update)


def test_metrics_that_cannot_be_written_end_the_run_whole_and_it_goes_on_from_there(small, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    with contextlib.ExitStack() as limits, monkeypatch.context() as patch:
        size = lambda: (out / "metrics.jsonl").stat().st_size  # noqa: E731
        after_update(patch, 2, lambda: limits.enter_context(files_up_to(size() + 100)))
        assert train.main(load([*small, "--run-dir", str(out)])) == 1
    assert re.search(r"cannot write \S+metrics\.jsonl: File too large.*start the same command again", capsys.readouterr().err)
    assert len(metrics(out)) == 1, "no half line"
    assert not list(out.rglob("*.tmp"))
    assert train.main(load([*small, "--run-dir", str(out)])) == 0
    assert [row["step"] for row in metrics(out)] == [1, 2, 3]


def test_a_run_that_is_stopped_and_cannot_be_saved_does_not_promise_to_go_on_from_there(small, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"

    def stopped_without_room():
        limits.enter_context(files_up_to(100_000))  # enough for the metrics
        os.kill(os.getpid(), signal.SIGTERM)

    with contextlib.ExitStack() as limits, monkeypatch.context() as patch:
        after_update(patch, 2, stopped_without_room)
        assert train.main(load([*small, "--run-dir", str(out)])) == 1
    printed = capsys.readouterr()
    assert re.search(r"stopped after step 2, but only step 1 could be saved: .*File too large", printed.err)
    assert "resume with" not in printed.out
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step000001"]
    assert train.main(load([*small, "--run-dir", str(out)])) == 0
    assert f"resuming after step 1, from {out / 'checkpoints' / 'step000001'}" in capsys.readouterr().out
    assert [row["step"] for row in metrics(out)] == [1, 2, 3]


def test_responses_and_batches_that_cannot_be_kept_cost_a_warning(small, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"

    def no_room():  # where a folder was, there is a file now
        for name in ("rollouts", "batches"):
            if (out / name).exists():
                (out / name).rename(tmp_path / name)
            (out / name).write_text("")

    after_update(monkeypatch, 2, no_room)
    assert train.main(load([*small, "--run-dir", str(out)])) == 0
    assert len(metrics(out)) == 3
    printed = capsys.readouterr().out
    assert "the responses of step 2 could not be saved for reading: " in printed
    assert "the batch of step 3 could not be saved for --replay: " in printed


def test_an_end_that_cannot_be_written_is_repeated_by_the_same_command(small, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    with contextlib.ExitStack() as limits, monkeypatch.context() as patch:
        export = Policy.export
        patch.setattr(Policy, "export", lambda *a: (limits.enter_context(files_up_to(100_000)), export(*a)))
        assert train.main(load([*small, "--run-dir", str(out)])) == 1
    assert re.search(r"cannot write \S+model: .*start the same command again", capsys.readouterr().err)
    assert not (out / "model").exists()
    assert not list(out.rglob("*.tmp"))
    assert not (out / "summary.json").exists()
    assert train.main(load([*small, "--run-dir", str(out)])) == 0
    assert (out / "model" / "model.safetensors").exists()
    assert json.loads((out / "summary.json").read_text())["steps"] == 3


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 40 kB, mounted where this user may."""
    with mounted(tmp_path / "disk", "40k") as folder:
        yield folder


@pytest.mark.slow
def test_a_full_disk_and_a_log_on_it_and_one_that_is_read_only(small, small_disk, capsys):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "train.py"), *small, "--run.steps=400", "--run-dir", str(small_disk / "out")]
    with (small_disk / "log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.PIPE, text=True, env=environment, timeout=200, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(r"cannot write \S+metrics\.jsonl: No space left on device; solve that", done.stderr)
    rows = metrics(small_disk / "out")
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert not list((small_disk / "out").rglob("*.tmp"))
    # a disk that turns read-only, as after an error of its own
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert train.main(load([*small, "--run-dir", str(small_disk / "new")])) == 2
    assert "Read-only file system" in capsys.readouterr().err


def test_a_clock_that_goes_backwards_gives_no_negative_times(small, tmp_path, monkeypatch):
    now = itertools.count(time.time(), -3600.0)
    monkeypatch.setattr(time, "time", lambda: next(now))
    assert train.main(load([*small, "--run.steps=2", "--run-dir", str(tmp_path / "out")])) == 0
    for row in metrics(tmp_path / "out"):
        for key, value in row.items():
            assert math.isfinite(value), key
            assert value >= 0 or not key.startswith(("time/", "speed/", "checkpoint/")), key
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["seconds"] > 0
