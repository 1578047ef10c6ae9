"""What is in a checkpoint, and which ones are kept; whole runs are in tests/test_resume.py."""

import contextlib
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kill_resume import free_port
from minirl.config.command_line import load
from minirl.config.options import VerifierConfig
from minirl.data.prompts import Prompt
from minirl.policy.policy import Policy
from minirl.run import checkpoint, shards
from minirl.run.checkpoint import STARTING_WEIGHTS, Checkpoints, State, checksum, generators, restore_generators, weights_digest
from minirl.run.manifest import damage, digest_of, steps_of
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError, RunError
from minirl.verify.types import Problem
from tests.conftest import ROOT, mounted
from tests.policy.equivalence import rollouts
from tests.run.resumption import packed, step, whole

TOK = tiny.tokenizer()


@pytest.fixture(scope="module")
def policy():
    made = Policy(load(["--optimizer.micro_batch_tokens=40"]), Ranks(), len(TOK))
    step(made, rollouts())
    return made


def fresh():
    return Policy(load(["--optimizer.micro_batch_tokens=40"]), Ranks(), len(TOK))


# ---- weights and optimizer -------------------------------------------------------------------------------------------------


def test_a_new_policy_with_the_shards_takes_the_very_same_next_step(policy, tmp_path):
    (tmp_path / "one").write_bytes(packed(policy))
    resumed = fresh()
    shards.unpack(resumed, [tmp_path / "one"])
    assert packed(resumed) == (tmp_path / "one").read_bytes()
    other = fresh()
    shards.unpack(other, [tmp_path / "one"])
    for p in (resumed, other):
        step(p, rollouts())
    assert packed(resumed) == packed(other) != (tmp_path / "one").read_bytes()


def test_any_number_of_ranks_reads_what_any_number_wrote(policy, tmp_path):
    single, before = policy.ranks, whole(policy)
    try:
        for rank in range(3):
            policy.ranks = SimpleNamespace(rank=rank, size=3, zero=None)
            (tmp_path / str(rank)).write_bytes(packed(policy))
    finally:
        policy.ranks = single
    paths = sorted(tmp_path.iterdir())
    assert sum(len(p.read_bytes()) for p in paths) == pytest.approx(len(packed(policy)), rel=0.1), "shared, not repeated"
    resumed = fresh()
    shards.unpack(resumed, paths)
    assert all(torch.equal(tensor, before[name]) for name, tensor in whole(resumed).items())
    assert packed(resumed) == packed(policy)
    with pytest.raises(ConfigError, match=r"has \d+ of \d+ elements of weight of parameter"):
        shards.unpack(resumed, paths[:2])


def test_a_policy_that_has_taken_no_step_has_no_moments_to_save(tmp_path):
    (tmp_path / "one").write_bytes(packed(fresh()))
    resumed = fresh()
    shards.unpack(resumed, [tmp_path / "one"])
    assert not resumed.optimizer.state


# Stage 1 has the optimizer of stage 2, adapters have the shards of other weights: of what is alike some
CASES = ["plain:float32", "plain:bfloat16"]
if importlib.util.find_spec("deepspeed"):
    CASES += ["0:float32", "0:bfloat16", "1:float32", "2:float32", "2:bfloat16", "3:float32", "3:bfloat16"]
ADAPTERS = []
if importlib.util.find_spec("peft"):
    of_deepspeed = ("0:float32", "2:float32", "2:bfloat16", "3:bfloat16")
    ADAPTERS = [f"{case}:lora" for case in CASES if case.startswith("plain") or case in of_deepspeed]


@pytest.mark.slow
def test_two_ranks_resume_to_the_bit_plain_and_under_every_stage_from_what_is_written_in_the_background(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port()]
    done = subprocess.run(
        [*command, str(ROOT / "tests" / "run" / "resumption.py"), str(tmp_path), *CASES, *ADAPTERS],
        capture_output=True, text=True, timeout=230, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    results = torch.load(tmp_path / "results.pt")
    assert results.keys() == {*CASES, *ADAPTERS}
    for case, result in results.items():
        assert result["published"] == [f"checkpoints/step000002/rank00{rank}.safetensors" for rank in (0, 1)], case
        adapters = case.endswith(":lora")
        plain = results[f"plain:float32{':lora' * adapters}"]["went on"][0]
        (before, norm, after, packed), (before2, norm2, after2, packed2) = result["went on"], result["resumed"]
        assert (norm, packed) == (norm2, packed2), case
        for name, tensor in before.items():
            assert torch.equal(tensor, before2[name]), (case, name)
            assert torch.equal(after[name], after2[name]), (case, name)
            read, saved = result["from plain"][name], plain[name].to(tensor.dtype)
            # merged with a base in bfloat16, not with one in float32 that is rounded later
            half = adapters and "bfloat16" in case
            again = torch.allclose(read, saved, rtol=2**-6, atol=2e-3) if half else torch.equal(read, saved)
            assert again, (case, name)
        assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items()), f"{case} has trained"


@pytest.mark.slow
def test_a_checkpoint_takes_the_memory_of_one_copy_in_the_background_and_of_none_at_once(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "run" / "memory_of_checkpoints.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=200, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured["tensors"] > 2e8
    for how, copies in (("background", 1.2), ("at_once", 0.2)):
        assert measured[how] < copies * measured["tensors"], measured


def test_the_file_of_shards_is_what_safetensors_reads_and_writes(tmp_path):
    tensors = {"weight:3:a.b": torch.randn(7), "step:3:a.b": torch.tensor(4.0), "exp_avg:0:b": torch.randn(2, 3)[:, 1]}
    content = b"".join(shards.serialised(tensors))
    read = safetensors.torch.load(content)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    header = int.from_bytes(content[:8], "little")
    assert header % 8 == 0, "the numbers are aligned"
    assert len(content) == 8 + header + 4 * sum(tensor.numel() for tensor in tensors.values())


# ---- generators ------------------------------------------------------------------------------------------------------------


def test_generators_go_on_where_they_were():
    def draw():
        return random.random(), random.gauss(0, 1), np.random.standard_normal(), torch.rand(3).tolist()

    draw()
    saved = json.loads(json.dumps(generators()))
    expected = draw(), draw()
    restore_generators(saved)
    assert (draw(), draw()) == expected


# ---- keeping and losing ----------------------------------------------------------------------------------------------------


def checkpoints(folder, *options):
    (folder / "metrics.jsonl").touch()
    return Checkpoints(load(list(options)), Ranks(), folder, {"training problems": "1"})


def kept(folder):
    return [step for step, _ in reversed(steps_of(folder / "checkpoints"))]


def test_the_last_ones_and_the_best_are_kept(policy, tmp_path):
    made = checkpoints(tmp_path, "--run.save_every=1", "--run.keep=2")
    scores = {1: 0.2, 2: 0.5, 3: 0.3, 4: 0.5, 5: 0.1}
    for number in range(1, 6):
        evaluations = [(0, {"pass@1": 0.9})] + [(s, {"pass@1": scores[s]}) for s in range(1, number + 1)]
        made.after_step(policy, State(step=number, evaluations=evaluations), now=False)
    assert kept(tmp_path) == [2, 4, 5], "2 is the first of the best; what was before training does not count"


def test_a_best_step_is_saved_out_of_turn(policy, tmp_path):
    made = checkpoints(tmp_path, "--run.save_every=0")
    for number, score in enumerate([0.5, 0.4, 0.6], 1):
        evaluations = [(s, {"pass@1": p}) for s, p in enumerate([0.5, 0.4, 0.6][:number], 1)]
        made.after_step(policy, State(step=number, evaluations=evaluations), now=False)
        assert kept(tmp_path)[-1] == {1: 1, 2: 1, 3: 3}[number], score


def test_what_cannot_be_written_leaves_the_last_good_one_and_a_warning(policy, tmp_path, capsys):
    made = checkpoints(tmp_path, "--run.save_every=1", "--run.keep=1")
    made.after_step(policy, State(step=1), now=False)
    (tmp_path / "checkpoints" / "step000002.tmp").write_text("in the way")
    made.after_step(policy, State(step=2), now=False)
    assert kept(tmp_path) == [1]
    assert damage(tmp_path / "checkpoints" / "step000001") is None
    assert "the checkpoint step000002 could not be written: [Errno 17] File exists" in capsys.readouterr().out
    made.after_step(policy, State(step=3), now=False)
    assert kept(tmp_path) == [3]


class Killed(BaseException):
    """The end of a process, as far as it can be had without ending one."""


@pytest.mark.parametrize("moment", range(1, 5))
def test_a_step_that_is_saved_again_is_never_without_a_valid_checkpoint(policy, tmp_path, monkeypatch, moment):
    made = checkpoints(tmp_path, "--run.save_every=1", "--run.keep=1")
    made.fingerprint[STARTING_WEIGHTS] = weights_digest(fresh())
    (tmp_path / "metrics.jsonl").write_text("{}\n{}\n")
    made.after_step(policy, State(step=2, metrics_bytes=6), now=False)
    calls = []

    def deadly(call):
        def wrapped(*arguments, **options):
            calls.append(call)
            if len(calls) == moment:
                raise Killed
            return call(*arguments, **options)

        return wrapped

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(Path, "rename", deadly(Path.rename))
        patch.setattr(shutil, "rmtree", deadly(shutil.rmtree))
        made.after_step(policy, State(step=2, metrics_bytes=6), now=False)
    assert len(calls) == min(moment, 3), "the old one away, the new one in, the old one gone"
    again = checkpoints(tmp_path)
    assert again.newest().step == 2
    again.load(fresh(), State(step=2))
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step000002"]


@pytest.mark.parametrize("background", ["false", "true"])
def test_what_a_failing_run_ends_with_is_saved_once(policy, tmp_path, background):
    made = checkpoints(tmp_path, "--run.save_every=2", f"--run.save_in_background={background}")
    made.after_step(policy, State(step=2), now=False)
    made.ensure(policy, State(step=2, position=9))
    saved = tmp_path / "checkpoints" / "step000002"
    assert json.loads((saved / "state.json").read_text())["position"] == 0, "that of the step itself"
    os.truncate(saved / "state.json", 1)
    made.ensure(policy, State(step=2, position=9))
    assert json.loads((saved / "state.json").read_text())["position"] == 9


def test_damaged_checkpoints_do_not_count_and_go_after_the_next_good_one(policy, tmp_path):
    made = checkpoints(tmp_path, "--run.save_every=1", "--run.keep=3")
    for number in (1, 2, 3):
        made.after_step(policy, State(step=number), now=False)
    for number in (2, 3):
        os.truncate(tmp_path / "checkpoints" / f"step{number:06}" / "state.json", 1)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    saved = json.loads((tmp_path / "checkpoints" / "step000001" / "manifest.json").read_text())
    state = tmp_path / "checkpoints" / "step000001" / "state.json"
    content = json.loads(state.read_text()) | {"metrics_bytes": 3}
    state.write_text(json.dumps(content))
    saved["files"]["state.json"] = [state.stat().st_size, digest_of(state)]
    (tmp_path / "checkpoints" / "step000001" / "manifest.json").write_text(json.dumps(saved))
    again = Checkpoints(load(["--run.keep=2"]), Ranks(), tmp_path, made.fingerprint)
    assert again.newest().step == 1
    assert kept(tmp_path) == [1, 2, 3]
    again.after_step(policy, State(step=4), now=True)
    assert kept(tmp_path) == [1, 4]


def test_an_old_one_that_cannot_be_removed_costs_a_warning(policy, tmp_path, capsys):
    made = checkpoints(tmp_path, "--run.save_every=1", "--run.keep=1", "--run.on_save_error=stop")
    made.after_step(policy, State(step=1), now=False)
    first = tmp_path / "checkpoints" / "step000001"
    first.rename(tmp_path / "elsewhere")
    first.symlink_to(tmp_path / "elsewhere")  # which rmtree refuses, also for root
    made.after_step(policy, State(step=2), now=False)
    assert re.search(r"warning: \S+step000001 is old and could not be removed: ", capsys.readouterr().out)
    assert damage(tmp_path / "checkpoints" / "step000002") is None


def test_a_run_that_was_stopped_and_could_not_be_saved_says_so(policy, tmp_path, capsys):
    made = checkpoints(tmp_path)
    made.after_step(policy, State(step=1), now=True)
    made.require(1)
    (tmp_path / "checkpoints" / "step000002.tmp").write_text("in the way")
    made.after_step(policy, State(step=2), now=True)
    with pytest.raises(RunError, match=r"stopped after step 2, but only step 1 could be saved: .*File exists"):
        made.require(2)
    assert "is resumed by" not in capsys.readouterr().out


@pytest.fixture
def disk(tmp_path):
    """A disk with room for two checkpoints, mounted where this user may."""
    with mounted(tmp_path / "disk", "6m") as folder:
        yield folder


@pytest.mark.parametrize("policy_on_error", ["continue", "stop"])
@pytest.mark.parametrize("fault", ["No space left on device", "Read-only file system"])
def test_a_disk_that_fills_up_or_turns_read_only_leaves_the_good_ones(policy, disk, fault, policy_on_error, capsys):
    made = checkpoints(disk, "--run.save_every=1", "--run.keep=3", f"--run.on_save_error={policy_on_error}")
    for number in (1, 2):
        made.after_step(policy, State(step=number), now=False)
    if "Read-only" in fault:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    if policy_on_error == "stop":
        with pytest.raises(RunError, match=f"step000003 could not be written: .*{fault}.*the last good checkpoint is used"):
            made.after_step(policy, State(step=3), now=False)
    else:
        made.after_step(policy, State(step=3), now=False)
        assert re.search(f"warning: .*step000003 could not be written: .*{fault}", capsys.readouterr().out)
    assert sorted(p.name for p in (disk / "checkpoints").iterdir()) == ["step000001", "step000002"]
    assert [damage(folder) for _, folder in steps_of(disk / "checkpoints")] == [None, None]


@pytest.mark.parametrize("background", [False, True])
def test_or_ends_the_run(policy, tmp_path, background):
    made = checkpoints(
        tmp_path, "--run.save_every=2", "--run.on_save_error=stop", f"--run.save_in_background={str(background).lower()}"
    )
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step000002.tmp").write_text("in the way")

    def go_on():
        made.after_step(policy, State(step=2), now=False)
        assert background, "said at once"
        made.writer.shutdown()  # it has had the time to fail
        made.after_step(policy, State(step=3), now=False)

    with pytest.raises(RunError, match=r"step000002 could not be written.*start the same command again"):
        go_on()


def test_what_is_written_in_the_background_is_of_its_own_step_and_published_later(policy, tmp_path):
    made = checkpoints(tmp_path, "--run.save_every=2", "--run.save_in_background=true")
    expected = packed(policy)
    made.after_step(policy, State(step=2, position=7), now=False)
    assert made.pending
    assert kept(tmp_path) == []
    step(policy, rollouts())
    made.settle()
    folder = tmp_path / "checkpoints" / "step000002"
    assert (folder / "rank000.safetensors").read_bytes() == expected != packed(policy)
    costs = made.pop_costs()
    assert costs["checkpoint/seconds"] > 0
    assert costs["checkpoint/bytes"] == sum(p.stat().st_size for p in folder.iterdir() if p.name != "manifest.json")


# ---- what must not change --------------------------------------------------------------------------------------------------


def marks(prompt="1*2=", answer="2", ids=(1, 2), tokenizer=TOK, hidden=64, reward="math"):
    prompts = [Prompt(Problem("1", prompt, answer, {}), prompt, list(ids))]
    config = tiny.model(hidden=hidden, layers=1).config
    return checkpoint.fingerprint(prompts, prompts[:0], tokenizer, config, VerifierConfig(name=reward))


def test_the_fingerprint_names_what_changed(policy, tmp_path):
    other = tiny.tokenizer()
    other.add_tokens(["new"])
    (tmp_path / "mine.py").write_text("def reward(problem, response, rollout):\n    return 1.0\n")
    changes = {
        "training problems": [marks(prompt="1*3="), marks(answer="3"), marks(ids=(1, 3))],
        "tokenizer": [marks(tokenizer=other)],
        "model's config": [marks(hidden=32)],
        "reward file": [marks(reward=f"{tmp_path / 'mine.py'}:reward")],
    }
    assert marks() == marks()
    for name, changed in changes.items():
        for mark in changed:
            assert [key for key in mark if mark[key] != marks()[key]] == [name]
    made = Checkpoints(load(["--run.save_every=1"]), Ranks(), tmp_path, marks())
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    made.after_step(policy, State(step=1, metrics_bytes=3), now=False)
    for name, (changed, *_) in changes.items():
        with pytest.raises(ConfigError, match=f"^{name} changed since .*step000001 was saved: put back"):
            Checkpoints(load([]), Ranks(), tmp_path, changed).newest()
    assert Checkpoints(load([]), Ranks(), tmp_path, marks()).newest().step == 1


def test_the_digest_of_weights_sees_one_of_them_and_not_how_they_are_kept():
    one, other = fresh(), fresh()
    assert weights_digest(one) == weights_digest(other)
    with torch.no_grad():
        next(iter(other.model.parameters())).view(-1)[7] += 0.1
    assert weights_digest(one) != (changed := weights_digest(other))
    other.model.bfloat16()
    assert weights_digest(other) == changed


@given(st.integers(1, 50), st.data())
def test_a_checksum_sees_any_one_number_and_does_not_depend_on_the_pieces(size, data):
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(size))
    total = checksum(numbers)
    assert total == checksum(numbers.to(torch.bfloat16)) == checksum(numbers, piece=8)
    changed = numbers.clone()
    changed[data.draw(st.integers(0, size - 1))] *= 1.01
    assert checksum(changed) != total
    if size > 1:
        assert checksum(numbers.roll(1)) != total


def test_a_checksum_is_the_sum_of_its_words_by_their_positions():
    # 1.0 is 0x3F80 in bfloat16; the first weight is 1, since position 0 times anything is 0
    assert checksum(torch.tensor([1.0])) == 0x3F80
    assert checksum(torch.tensor([0.0, 0.0, 0.0, 1.0])) == 0x3F80 << 48
    position = -7046029254386353131 % 2**64
    signed = position - 2**64 if position >= 2**63 else position
    weight = 2 * (signed ^ (signed >> 29)) + 1
    assert checksum(torch.tensor([0.0, 0, 0, 0, 1.0])) == 0x3F80 * weight % 2**64
