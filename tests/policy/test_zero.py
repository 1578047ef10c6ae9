"""DeepSpeed ZeRO against plain and DDP, on CPU ranks: same gradients, same weights, same export."""

import math
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.kill_resume import free_port
from minirl.policy import plan
from tests.conftest import ROOT

pytest.importorskip("deepspeed", reason="needs DeepSpeed")

STAGES = ("plain", "0", "1", "2", "3", "3-offload")
HALF = ("2-bfloat16", "3-bfloat16")


@pytest.fixture(scope="module", params=[1, 2])
def results(request, tmp_path_factory):
    """(folder, {stage: what tests/policy/equivalence.py measured}, number of ranks)"""
    folder = tmp_path_factory.mktemp("zero")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        str(request.param),
        "--master_port",
        free_port(),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, str(ROOT / "tests" / "policy" / "equivalence.py"), str(folder), *STAGES, *HALF],
        capture_output=True, text=True, timeout=230, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, torch.load(folder / f"results-{request.param}.pt"), request.param


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_layers_give_the_same_under_every_stage_that_leaves_weights_whole(tmp_path, reference):
    stages = ["0-compiled", "1-compiled", "2-compiled"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port()]
    done = subprocess.run(
        [*command, str(ROOT / "tests" / "policy" / "equivalence.py"), str(tmp_path), *stages],
        capture_output=True, text=True, timeout=600, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    for stage, result in torch.load(tmp_path / "results-2.pt").items():
        assert result["norms"] == pytest.approx(reference["norms"], rel=5e-5), stage
        assert result["graphs"] > 0, f"{stage}: nothing was compiled"
        for name, tensor in result["weights"].items():
            assert torch.allclose(tensor, reference["weights"][name], atol=2e-4), (stage, name)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_adapters_give_the_same_under_every_stage(tmp_path, ranks):
    pytest.importorskip("peft", reason="needs peft")
    stages = ["plain-lora", "0-lora", "1-lora", "2-lora", "3-lora", "plain"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--master_port", free_port()]
    done = subprocess.run(
        [*command, str(ROOT / "tests" / "policy" / "equivalence.py"), str(tmp_path), *stages],
        capture_output=True, text=True, timeout=600, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = torch.load(tmp_path / f"results-{ranks}.pt")
    whole, plain = found.pop("plain"), found["plain-lora"]
    moved = [name for name, tensor in plain["weights"].items() if not torch.equal(tensor, whole["start"][name])]
    assert len(moved) == 7 * 3, "the linear layers, and no other weights"
    for stage, result in found.items():
        assert result["norms"] == pytest.approx(plain["norms"], rel=5e-5), stage
        assert all(unchanged for _, _, unchanged in result["skipped"]), stage
        assert list(result["weights"]) == list(whole["weights"]), stage
        for name, tensor in result["weights"].items():
            assert torch.allclose(tensor, plain["weights"][name], atol=2e-4), (stage, name)
            assert torch.equal(tensor, whole["start"][name]) == (name not in moved), (stage, name)
        for kind, exact in (("logprobs", plain["logprobs"]), ("ref_logprobs", whole["start_logprobs"])):
            for a, b in zip(result[kind], exact, strict=True):
                assert torch.allclose(a, b, atol=1e-3 if kind == "logprobs" else 1e-5), (stage, kind)
        loaded = dict(AutoModelForCausalLM.from_pretrained(tmp_path / f"export-{stage}").named_parameters())
        assert all(torch.equal(tensor, loaded[name]) for name, tensor in result["weights"].items()), stage


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """One plain process."""
    folder = tmp_path_factory.mktemp("plain")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "1", "--master_port", free_port()]
    subprocess.run([*command, str(ROOT / "tests" / "policy" / "equivalence.py"), str(folder), "plain"], check=True, timeout=120,
                   env=environment, capture_output=True)  # fmt: skip
    return torch.load(folder / "results-1.pt")["plain"]


def test_the_buffers_that_the_plan_counts_are_those_that_deepspeed_takes():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    for stage in (1, 2, 3):
        defaults = DeepSpeedZeroConfig(stage=stage)
        assert defaults.reduce_bucket_size == plan.REDUCE_BUCKET
        assert defaults.max_live_parameters == plan.LIVE_PARAMETERS


@pytest.mark.slow
def test_every_stage_gives_the_gradients_and_weights_of_one_plain_process(results, reference):
    _, stages, _ = results
    for stage in STAGES:
        result = stages[stage]
        assert result["norms"] == pytest.approx(reference["norms"], rel=5e-5), stage
        assert result["weights"].keys() == reference["weights"].keys()
        for name, tensor in result["weights"].items():
            # AdamW at 1e-3 moves a weight by up to 1e-3 a step and magnifies rounding where a gradient is tiny
            assert torch.allclose(tensor, reference["weights"][name], atol=2e-4), (stage, name)
        for a, b in zip(result["logprobs"], reference["logprobs"], strict=True):
            assert torch.allclose(a, b, atol=1e-3), stage


@pytest.mark.slow
def test_a_step_that_one_rank_spoils_is_taken_by_none_and_leaves_weights_and_optimizer_alone(results, reference):
    # that the next steps agree with the plain ones, as above, says that AdamW's state is what it was
    _, stages, _ = results
    for stage, result in (*stages.items(), ("plain", reference)):
        assert len(result["skipped"]) == 2
        for norm, nonfinite, unchanged in result["skipped"]:
            assert not math.isfinite(norm), stage
            assert nonfinite == 1, stage
            assert unchanged, stage


@pytest.mark.slow
@pytest.mark.parametrize("stage", HALF)
def test_bfloat16_differs_by_its_rounding_only(results, reference, stage):
    _, stages, _ = results
    # 8 bits of mantissa are 0.4% a rounding; the weights and their activations are rounded, the sum over micro-batches is not
    assert stages[stage]["norms"][0] == pytest.approx(reference["norms"][0], rel=0.02)
    assert {tensor.dtype for tensor in stages[stage]["weights"].values()} == {torch.bfloat16}
    assert torch.equal(stages[stage]["frequencies"], reference["frequencies"]), "positions are not rounded"


@pytest.mark.slow
@pytest.mark.parametrize("stage", [*STAGES, *HALF])
def test_the_export_of_every_stage_is_a_folder_that_loads_with_the_trained_weights(results, stage):
    folder, stages, _ = results
    model = AutoModelForCausalLM.from_pretrained(folder / f"export-{stage}")
    loaded = dict(model.named_parameters())
    assert loaded.keys() == stages[stage]["weights"].keys()
    for name, tensor in stages[stage]["weights"].items():
        assert tensor.shape == loaded[name].shape, "not sharded, not empty"
        assert torch.equal(tensor, loaded[name].detach()), name
