"""Whole runs that train adapters: resumed, replayed, evaluated, refused."""

import json
import re
import shutil

import pytest
import safetensors.torch
import torch
import yaml
from transformers import AutoModelForCausalLM

from benchmarks.kill_resume import RUN, differences, fingerprint
from minirl.data import arithmetic
from minirl.evaluation.checkpoints import model_of
from minirl.tiny import make as tiny
from minirl.utils.errors import ConfigError
from tests.test_train import metrics, run, start

pytest.importorskip("peft", reason="needs peft")

LORA = [*RUN, "--run.steps=4", "--run.keep=4", "--model.lora.r=4", "--optimizer.lr=4e-3", "--algorithm.kl_coef=0.01"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of four steps."""
    folder = tmp_path_factory.mktemp("lora") / "whole"
    assert start([*LORA, "--run-dir", str(folder)]) == 0
    return folder


def refused(capsys, *arguments):
    """What a run that is refused prints."""
    assert start([*map(str, arguments)]) == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_is_stopped_and_resumed_is_the_same_run(whole, tmp_path):
    assert start([*LORA, "--run-dir", str(tmp_path / "out"), "--stop-after=0s"]) == 0
    assert "resuming after step 1" in run(tmp_path / "out" / "config.yaml", "--stop-after=null")  # by another process
    assert differences(fingerprint(whole), fingerprint(tmp_path / "out")) == []
    rows = metrics(whole)
    assert rows[-1]["policy/ref_kl"] > rows[0]["policy/ref_kl"] > 0
    assert max(row["policy/rollout_logprob_diff_max"] for row in rows) < 1e-4


def weights(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def test_its_model_and_its_checkpoints_are_ordinary_models_with_merged_weights(whole):
    base, model = weights(tiny.FOLDERS["embedded-arithmetic"]), weights(whole / "model")
    assert model.keys() == base.keys()
    assert {name for name in base if not torch.equal(base[name], model[name])} == {n for n in base if "_proj" in n}
    last = weights(model_of(whole, 4))
    assert all(torch.equal(last[name], model[name]) for name in model)
    second = weights(model_of(whole, 2))
    assert not all(torch.equal(second[name], model[name]) for name in model)
    AutoModelForCausalLM.from_pretrained(whole / "models" / "step000002")
    saved = whole / "checkpoints" / "step000004" / "rank000.safetensors"
    assert saved.stat().st_size < 3 * (whole / "model" / "model.safetensors").stat().st_size, "no base, no moments of it"


def test_a_step_is_replayed_and_looked_at_by_other_estimators(whole, capsys):
    assert start(["--replay", str(whole / "step3")]) == 0
    printed = capsys.readouterr().out
    assert "weights from before step 3" in printed
    assert re.search(r"metrics: \d+ equal to the bit, 0 differ", printed)
    assert start(["--replay", str(whole / "step3"), "--estimators", "grpo,dapo"]) == 0
    assert "grpo: norm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--model.lora.r=8", "model.lora.r: 4 -> 8"),
        ("--model.lora.r=0", "model.lora.r: 4 -> 0"),
        ("--model.lora.lora_alpha=8", "model.lora.lora_alpha: 32 -> 8"),
        ("--model.lora.target_modules=[q_proj]", "model.lora.target_modules: ['all-linear'] -> ['q_proj']"),
        ("--optimizer.name=adamw_8bit", "optimizer.name: adamw -> adamw_8bit"),
    ],
)
def test_it_is_not_resumed_with_other_adapters(whole, capsys, option, says):
    assert says in refused(capsys, *LORA, "--run.steps=9", "--run-dir", whole, option)


def copied(whole, tmp_path, **model):
    """A copy of the run with other model options written into its config."""
    folder = shutil.copytree(whole, tmp_path / "copy", ignore=shutil.ignore_patterns("models", "summary.json"))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["model"] |= model
    config["run"]["dir"] = str(folder)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_another_base_model_is_refused_by_resume_replay_and_evaluation(whole, tmp_path, capsys):
    base = shutil.copytree(tiny.FOLDERS["embedded-arithmetic"], tmp_path / "other")
    tensors = weights(base)
    tensors["model.norm.weight"][0] += 0.5
    safetensors.torch.save_file(tensors, base / "model.safetensors", {"format": "pt"})
    folder = copied(whole, tmp_path, path=str(base))
    changed = "the starting model's weights changed since"
    assert changed in refused(capsys, folder / "config.yaml", "--run.steps=9")
    assert "holds other weights than those that" in refused(capsys, "--replay", folder / "step3")
    with pytest.raises(ConfigError, match="holds other weights than those that"):
        model_of(folder, 2)


def test_a_config_that_was_edited_does_not_read_other_adapters(whole, tmp_path, capsys):
    folder = copied(whole, tmp_path, lora={"r": 2, "lora_alpha": 32.0, "target_modules": ["all-linear"]})
    assert "of other adapters (model.lora)" in refused(capsys, folder / "config.yaml", "--run.steps=9")
    with pytest.raises(ConfigError, match="of other adapters"):
        model_of(folder, 2)


def test_a_target_that_is_not_there_ends_the_run_before_it_begins(tmp_path, capsys):
    printed = refused(capsys, *LORA, "--model.lora.target_modules=[query]", "--run-dir", tmp_path / "out")
    assert "model.lora.target_modules has 'query'" in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_vllm_samples_from_the_merged_weights(tmp_path):
    pytest.importorskip("vllm", reason="needs vLLM, or its build for CPUs")
    run(*LORA, "--run.steps=3", "--rollout.engine=vllm", "--run-dir", tmp_path / "out")  # its own process: an engine stays
    rows = metrics(tmp_path / "out")
    assert rows[-1]["policy/ref_kl"] > 0
    assert max(row["policy/rollout_logprob_diff_max"] for row in rows) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [["--model.lora.r=8", "--optimizer.lr=4e-3"], ["--optimizer.name=adamw_8bit", "--optimizer.lr=1e-3"]]
)
def test_the_reward_rises_on_problems_that_come_again(tmp_path, options):
    if "--optimizer.name=adamw_8bit" in options:  # of all weights: moments of smaller tensors stay float32
        pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
    few = [{"problem": p.prompt, "answer": p.answer} for p in arithmetic.problems("train")[:18]]
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in few))
    arguments = [
        "--model.path=embedded-arithmetic", "--data.task=dataset", f"--data.train={tmp_path / 'few.jsonl'}",
        "--data.test_size=2", "--run.steps=12", "--rollout.prompts=16", "--rollout.group_size=8",
        "--algorithm.mini_batch_prompts=8", "--algorithm.estimator=grpo", "--eval.every=0", "--eval.problems=2",
        "--eval.samples=2", "--eval.k=2",
    ]  # fmt: skip
    assert start([*arguments, *options, "--run-dir", str(tmp_path / "out")]) == 0
    rows = metrics(tmp_path / "out")
    first, last = (sum(row["reward/accuracy"] for row in part) / 4 for part in (rows[:4], rows[-4:]))
    assert last > first + 0.1
