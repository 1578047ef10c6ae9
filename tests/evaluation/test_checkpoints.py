"""RUN@STEP: the weights of a run's checkpoint."""

import json
import shutil

import pytest
import safetensors.torch
import torch

import eval as program
import train
from minirl.config.command_line import load
from minirl.evaluation.checkpoints import model_of, run_and_step
from minirl.evaluation.models import find_models
from minirl.run.manifest import digest_of
from minirl.utils.errors import ConfigError
from tests.conftest import few_problems


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps with a checkpoint after each; wreinforce learns from wrong answers alone."""
    folder = tmp_path_factory.mktemp("runs")
    small = ["--run.steps=2", "--run.save_every=1", "--run.keep=9", "--rollout.prompts=4", "--algorithm.mini_batch_prompts=4",
             "--rollout.group_size=4", "--eval.problems=4", "--eval.samples=2", "--eval.k=1", "--eval.every=0",
             "--optimizer.lr=1e-3", "--algorithm.estimator=wreinforce"]  # fmt: skip
    assert train.main(load([*small, *few_problems(folder), f"--run-dir={folder / 'run'}"])) == 0
    return folder / "run"


def weights(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_last_checkpoint_has_the_weights_of_the_finished_run_and_the_first_has_others(run):
    assert equal(weights(model_of(run, 2)), weights(run / "model"))
    assert not equal(weights(model_of(run, 1)), weights(run / "model"))
    (model,) = find_models([f"{run}@1"], "float32", None)
    assert (model.label, model.config.path) == ("run@1", str(run / "models" / "step000001"))
    assert model.description() == find_models([f"x={run}@1"], "float32", None)[0].description()


def test_the_command_names_it_after_run_and_step_and_can_be_repeated(run, tmp_path):
    command = [f"{run}@1", f"{run}@2", "--benchmark", "rules", "--limit", "2", "--samples", "1", "--out", str(tmp_path)]
    for _ in range(2):
        assert program.main(program.command_line(command)) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert list(found["results"]) == ["run@1", "run@2"]
    assert found["models"]["run@1"]["sha256"] != found["models"]["run@2"]["sha256"]


def sharded(run, folder):
    """A copy of a run whose checkpoint of step 2 is in the files of two ranks: every parameter is cut in two."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("models"))
    checkpoint = folder / "checkpoints" / "step000002"
    whole = safetensors.torch.load_file(checkpoint / "rank000.safetensors")
    parts = ({}, {})
    for key, tensor in whole.items():
        kind, start, name = key.split(":", 2)
        half = len(tensor) // 2 if kind == "weight" else 0
        if half:
            parts[0][f"{kind}:{start}:{name}"] = tensor[:half].clone()
        parts[1][f"{kind}:{int(start) + half}:{name}"] = tensor[half:].clone() if tensor.dim() else tensor
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for rank, tensors in enumerate(parts):
        file = checkpoint / f"rank00{rank}.safetensors"
        safetensors.torch.save_file(tensors, file)
        manifest["files"][file.name] = [file.stat().st_size, digest_of(file)]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_the_files_of_several_ranks_are_put_together(run, tmp_path):
    assert equal(weights(model_of(sharded(run, tmp_path / "two"), 2)), weights(run / "model"))


def test_it_is_written_once_and_again_when_the_checkpoint_is_another(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("models"))
    file = model_of(copy, 2) / "model.safetensors"
    first = file.stat().st_mtime_ns
    assert (model_of(copy, 2) / "model.safetensors").stat().st_mtime_ns == first
    with (copy / "checkpoints" / "step000002" / "manifest.json").open("a") as manifest:
        manifest.write("\n")
    assert (model_of(copy, 2) / "model.safetensors").stat().st_mtime_ns > first
    shutil.rmtree(copy / "checkpoints")
    assert equal(weights(model_of(copy, 2)), weights(run / "model")), "the checkpoint may be removed then"


def test_what_cannot_be_evaluated_is_said(run, tmp_path, capsys):
    with pytest.raises(ConfigError, match=r"has no checkpoint step000040 \(steps there: 1, 2\): --run\.save_every"):
        model_of(run, 40)
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("models"))
    with (copy / "checkpoints" / "step000001" / "rank000.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ConfigError, match=r"step000001 cannot be used: rank000\.safetensors has .* bytes instead"):
        model_of(copy, 1)
    assert not (copy / "models" / "step000001").exists()
    command = [f"{tmp_path / 'nothing'}@3", "--benchmark", "rules", "--out", str(tmp_path / "out")]
    assert program.main(program.command_line(command)) == 2
    assert "is no run folder of train.py: it has no config.yaml" in capsys.readouterr().err


def test_only_a_number_after_the_sign_asks_for_a_checkpoint(run, tmp_path):
    (tmp_path / "a@4").mkdir()
    assert run_and_step(tmp_path / "a@4") is None, "a folder of that name"
    assert run_and_step(tmp_path / "somebody@home") is None
    assert run_and_step(run.with_name("run@007")) == (run, 7)
