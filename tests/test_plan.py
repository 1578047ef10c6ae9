"""The plan's arithmetic against numbers worked out by hand."""

from types import SimpleNamespace

import pytest
from transformers import Qwen3Config

from minirl import plan
from minirl.command_line import load
from minirl.config import Config
from minirl.plan import GIB, Model
from minirl.policy import model_plan

EIGHT = Model(parameters=8_000_000_000, layers=36, hidden=4096, vocabulary=151_936, kv_heads=8, head_dim=128)
OPTIONS = ["--model.dtype=bfloat16", "--rollout.engine=vllm", "--data.max_prompt_tokens=2048",
           "--rollout.max_response_tokens=8192",
           "--model.gradient_checkpointing=true"]  # fmt: skip


def test_qwen3_8b_has_8_19_billion_parameters():
    config = Qwen3Config(hidden_size=4096, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                         intermediate_size=12288, vocab_size=151_936, tie_word_embeddings=False)  # fmt: skip
    model = plan.measure(config)
    # embeddings and head 2 * 151,936 * 4,096; a layer: q and o 2 * 4,096^2, k and v 2 * 4,096 * 1,024, MLP 3 * 4,096 * 12,288,
    # norms 2 * 4,096 + 2 * 128; the last norm 4,096
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128
    assert model.parameters == 2 * 151_936 * 4096 + 36 * layer + 4096 == 8_190_735_360
    assert (model.kv_heads, model.head_dim, model.layers) == (8, 128, 36)


def test_memory_by_part_under_zero_3():
    parts = plan.memory(load(OPTIONS), EIGHT, 10_240)
    assert parts["weights"] == pytest.approx(2e9 / GIB), "2 bytes, 8 ranks"
    assert parts["master weights"] == pytest.approx(4e9 / GIB)
    assert parts["optimizer"] == pytest.approx(8e9 / GIB)
    assert parts["gradients"] == pytest.approx(4e9 / GIB)
    assert parts["reference"] == 0
    assert parts["reduce bucket"] == pytest.approx(1e9 / GIB), "500 million elements of 2 bytes"
    assert parts["gathered weights"] == pytest.approx(2e9 / GIB), "1,000 million of 2 bytes"
    assert parts["engine"] == pytest.approx(0.4 * 141)
    assert parts["KV cache"] == pytest.approx(0.4 * 141 - 16e9 / GIB)
    # a token: keys and values of 36 layers, 8 heads of 128, 2 bytes
    assert plan.kv_tokens(parts, load(OPTIONS), EIGHT) == pytest.approx(parts["KV cache"] * GIB / (2 * 36 * 8 * 128 * 2), abs=1)


def test_what_each_stage_shards():
    def states(zero):
        parts = plan.memory(load([*OPTIONS, f"--plan.zero={zero}"]), EIGHT, 10_240)
        return [round(parts[k] * GIB / 1e9, 6) for k in ("weights", "master weights", "optimizer", "gradients")]

    assert states(0) == [16, 32, 64, 16]
    assert states(1) == [16, 4, 8, 16]
    assert states(2) == [16, 4, 8, 4]
    assert states(3) == [2, 4, 8, 4]
    assert states("null") == [32, 0, 64, 32], "DDP computes in bfloat16 by autocast over float32 weights"


def test_what_each_stage_sets_aside():
    def buffers(zero, model=EIGHT):
        parts = plan.memory(load([*OPTIONS, f"--plan.zero={zero}"]), model, 10_240)
        return [round(parts[k] * GIB / 1e9, 6) for k in ("reduce bucket", "gathered weights")]

    assert buffers("null") == buffers(0) == [0, 0]
    assert buffers(1) == buffers(2) == [1, 0]
    small = Model(parameters=600_000_000, layers=28, hidden=1024, vocabulary=151_936, kv_heads=8, head_dim=128)
    assert buffers(3, small) == [1, 1.2], "a model smaller than the limit is gathered whole at most"


def test_the_peak_while_updating_is_the_sum_of_its_parts():
    parts = plan.memory(load(OPTIONS), EIGHT, 10_240)
    whole = sum(v for k, v in parts.items() if k not in ("engine", "engine weights", "KV cache"))
    assert any(f"updating {whole:.1f}" in line for line in plan.report(load(OPTIONS), EIGHT))


def test_a_run_that_cannot_fit_is_warned_of():
    assert not any("WARNING" in line for line in plan.report(load(OPTIONS), EIGHT))
    small = plan.report(load([*OPTIONS, "--plan.gpus=1", "--plan.gpu_gib=80"]), EIGHT)
    assert any("WARNING" in line and "do not fit a GPU of 80 GiB" in line for line in small)
    full = plan.report(load([*OPTIONS, "--rollout.vllm.gpu_memory_utilization=0.1"]), EIGHT)
    assert any("KV cache cannot hold one sequence of 10,240 tokens" in line for line in full)


def test_a_run_plans_with_the_gpus_that_it_has():
    small = SimpleNamespace(size=2, gpu_gib=0.002, zero=3)
    lines = model_plan(load(["--rollout.engine=vllm"]), small)
    assert any("2 GPUs of 0.002 GiB with ZeRO-3" in line for line in lines)
    assert any("WARNING" in line and "do not fit a GPU of 0.002 GiB" in line for line in lines)


def test_plan_states_the_derived_sizes():
    text = "\n".join(plan.run_plan(load([]), train_size=640, test_size=10, ranks=2))
    assert "32 prompts x 10 samples = 320 rollouts of at most 12 tokens (3,840), 2 optimizer steps of 160 rollouts" in text
    steps = Config().run.steps
    assert f"{steps} steps = {steps * 320:,} rollouts, {steps * 2:,} optimizer steps, {steps * 32 / 640:.2f} passes" in text


def test_a_limit_of_passes_limits_the_steps_of_the_plan():
    config = load(["--run.steps=1000", "--run.epochs=2", "--rollout.prompts=256", "--algorithm.mini_batch_prompts=64"])
    # 2 passes over 17,398 problems, 256 a step: 135.9
    assert any("run 136 steps" in line for line in plan.run_plan(config, 17_398, 256, 8))
