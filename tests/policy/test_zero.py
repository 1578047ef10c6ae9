"""DeepSpeed ZeRO against plain and DDP, on CPU ranks: same gradients, same weights, same export."""

import importlib.util
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
pytestmark = pytest.mark.timeout(600)  # the first one starts the ranks

LORA = importlib.util.find_spec("peft") is not None
STAGES = ("plain", "0", "1", "2", "3", "3-offload")
HALF = ("2-bfloat16", "3-bfloat16")
ADAPTERS = ("plain-lora", "0-lora", "1-lora", "2-lora", "3-lora")
COMPILED = ("0-compiled", "1-compiled", "2-compiled")  # without ZeRO's optimizer and with it
LAUNCHES = {1: ("plain", "1", "3", "3-offload", "2-bfloat16", "plain-lora", "3-lora"),
            2: (*STAGES, *HALF, *ADAPTERS, *COMPILED)}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """{number of ranks: (folder, {stage: what tests/policy/equivalence.py measured})}: one launch for each number."""
    found = {}
    for ranks, stages in LAUNCHES.items():
        folder = tmp_path_factory.mktemp("zero")
        launch = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--master_port", free_port()]
        done = subprocess.run(
            [sys.executable, *launch, str(ROOT / "tests" / "policy" / "equivalence.py"), str(folder),
             *(s for s in stages if LORA or "lora" not in s)],
            capture_output=True, text=True, timeout=500, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        found[ranks] = folder, torch.load(folder / f"results-{ranks}.pt")
    return found


@pytest.fixture
def reference(results):
    """One plain process."""
    return results[1][1]["plain"]


def test_the_buffers_that_the_plan_counts_are_those_that_deepspeed_takes():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    for stage in (1, 2, 3):
        defaults = DeepSpeedZeroConfig(stage=stage)
        assert defaults.reduce_bucket_size == plan.REDUCE_BUCKET
        assert defaults.max_live_parameters == plan.LIVE_PARAMETERS


def some(ranks, kinds):
    """Those of `kinds` that were launched on so many ranks."""
    return [stage for stage in kinds if stage in LAUNCHES[ranks]]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", LAUNCHES)
def test_every_stage_gives_the_gradients_and_weights_of_one_plain_process(results, reference, ranks):
    for stage in some(ranks, STAGES):
        result = results[ranks][1][stage]
        assert result["norms"] == pytest.approx(reference["norms"], rel=5e-5), stage
        assert result["weights"].keys() == reference["weights"].keys()
        for name, tensor in result["weights"].items():
            # AdamW at 1e-3 moves a weight by up to 1e-3 a step and magnifies rounding where a gradient is tiny
            assert torch.allclose(tensor, reference["weights"][name], atol=2e-4), (stage, name)
        for a, b in zip(result["logprobs"], reference["logprobs"], strict=True):
            assert torch.allclose(a, b, atol=1e-3), stage


@pytest.mark.slow
def test_compiled_layers_give_the_same_under_every_stage_that_leaves_weights_whole(results, reference):
    for stage in some(2, COMPILED):
        result = results[2][1][stage]
        assert result["norms"] == pytest.approx(reference["norms"], rel=5e-5), stage
        assert result["graphs"] > 0, f"{stage}: nothing was compiled"
        for name, tensor in result["weights"].items():
            assert torch.allclose(tensor, reference["weights"][name], atol=2e-4), (stage, name)


@pytest.mark.slow
def test_gradients_are_exchanged_while_the_backward_pass_goes_on_under_zero_2(results):
    # DeepSpeed's own default is off for stages 1 and 2; configs/accelerate/zero2.yaml relies on it
    assert {stage: results[2][1][stage]["overlap"] for stage in ("1", "2", "2-compiled")} == {
        "1": False, "2": True, "2-compiled": True,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not LORA, reason="needs peft")
@pytest.mark.parametrize("ranks", LAUNCHES)
def test_adapters_give_the_same_under_every_stage(results, ranks):
    found = results[ranks][1]
    whole, plain = found["plain"], found["plain-lora"]
    moved = [name for name, tensor in plain["weights"].items() if not torch.equal(tensor, whole["start"][name])]
    assert len(moved) == 7 * 3, "the linear layers, and no other weights"
    for stage in some(ranks, ADAPTERS):
        result = found[stage]
        assert result["norms"] == pytest.approx(plain["norms"], rel=5e-5), stage
        assert list(result["weights"]) == list(whole["weights"]), stage
        for name, tensor in result["weights"].items():
            assert torch.allclose(tensor, plain["weights"][name], atol=2e-4), (stage, name)
            assert torch.equal(tensor, whole["start"][name]) == (name not in moved), (stage, name)
        for kind, exact in (("logprobs", plain["logprobs"]), ("ref_logprobs", whole["start_logprobs"])):
            for a, b in zip(result[kind], exact, strict=True):
                assert torch.allclose(a, b, atol=1e-3 if kind == "logprobs" else 1e-5), (stage, kind)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", LAUNCHES)
def test_a_step_that_one_rank_spoils_is_taken_by_none_and_leaves_weights_and_optimizer_alone(results, ranks):
    # that the next steps agree with the plain ones, as above, says that AdamW's state is what it was
    for stage, result in results[ranks][1].items():
        assert len(result["skipped"]) == 2
        for norm, nonfinite, unchanged in result["skipped"]:
            assert not math.isfinite(norm), stage
            assert nonfinite == 1, stage
            assert unchanged, stage


@pytest.mark.slow
@pytest.mark.parametrize("ranks", LAUNCHES)
def test_bfloat16_differs_by_its_rounding_only(results, reference, ranks):
    for stage in some(ranks, HALF):
        result = results[ranks][1][stage]
        # 8 bits of mantissa are 0.4% a rounding; weights and their activations are rounded, the sum over micro-batches is not
        assert result["norms"][0] == pytest.approx(reference["norms"][0], rel=0.02)
        assert {tensor.dtype for tensor in result["weights"].values()} == {torch.bfloat16}
        assert torch.equal(result["frequencies"], reference["frequencies"]), "positions are not rounded"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", LAUNCHES)
def test_the_export_of_every_stage_is_a_folder_that_loads_with_the_trained_weights(results, ranks):
    folder, stages = results[ranks]
    for stage, result in stages.items():
        loaded = dict(AutoModelForCausalLM.from_pretrained(folder / f"export-{stage}").named_parameters())
        assert loaded.keys() == result["weights"].keys()
        for name, tensor in result["weights"].items():
            assert tensor.shape == loaded[name].shape, "not sharded, not empty"
            assert torch.equal(tensor, loaded[name].detach()), (stage, name)
