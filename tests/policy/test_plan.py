"""The plan's arithmetic against numbers worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from minirl.config.command_line import load
from minirl.config.options import Config
from minirl.policy import plan
from minirl.policy.attention import Layout
from minirl.policy.lora import add_adapters
from minirl.policy.model import model_plan, with_fused_norms
from minirl.policy.plan import GIB, Model

EIGHT = Model(parameters=8_000_000_000, layers=36, hidden=4096, vocabulary=151_936, heads=32, kv_heads=8, head_dim=128,
              mlp=12_288, head_norms=True)  # fmt: skip

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
    assert model == replace(EIGHT, parameters=8_190_735_360)


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
    assert buffers(1) == [1, 0]
    assert buffers(2) == [2, 0], "one is filled while the other is reduced"
    assert buffers(3, replace(EIGHT, parameters=600_000_000)) == [1, 1.2], "a model below the limit is gathered whole"


class Kept(torch.autograd.Function):
    """Keeps what flash attention keeps: queries, keys, values and the result."""

    @staticmethod
    def forward(ctx, q, k, v):
        out = q * 1
        ctx.save_for_backward(q, k, v, out)
        return out


class KeptNorm(torch.autograd.Function):
    """Keeps what a fused norm keeps: its input and a number a row."""

    @staticmethod
    def forward(ctx, x, weight, epsilon):
        scale = (x.float().square().mean(-1, keepdim=True) + epsilon).rsqrt()
        ctx.save_for_backward(x, scale, weight)
        return (x * scale * weight).to(x.dtype)


class Flash(Layout):
    def attend(self, q, k, v, scale):
        return Kept.apply(q.contiguous(), k.contiguous(), v.contiguous())


def kept_by_autograd(model, tokens, autocast):
    """Bytes that a forward pass keeps, weights apart but for autocast's casts of them."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()  # held, so that its place is not used again
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
    ):
        row = torch.arange(tokens)[None]
        model.base_model(input_ids=row % 100, position_ids=row, layout=Flash(), use_cache=False)
    return sum(storage.nbytes() for place, storage in kept.items() if place not in weights)


@pytest.mark.parametrize("kind", [Qwen3Config, LlamaConfig])
@pytest.mark.parametrize(("dtype", "autocast"), [(torch.float32, False), (torch.bfloat16, False), (torch.float32, True)])
def test_activations_are_what_autograd_keeps(kind, dtype, autocast, monkeypatch):
    monkeypatch.setattr("minirl.policy.model.rms_norm", lambda x, shape, weight, epsilon: KeptNorm.apply(x, weight, epsilon))

    def kept(layers, tokens):
        config = kind(hidden_size=256, num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
                      intermediate_size=640, vocab_size=100)  # fmt: skip
        model = with_fused_norms(AutoModelForCausalLM.from_config(config)).to(dtype)
        model.set_attn_implementation("packed")
        return plan.measure(config), kept_by_autograd(model, tokens, autocast)

    (model, one), (_, three), (_, long_one), (_, long_three) = (kept(*x) for x in ((1, 64), (3, 64), (1, 192), (3, 192)))
    of_a_layer_and_token = ((long_three - long_one) - (three - one)) / 2 / 128
    half = autocast or dtype == torch.bfloat16
    assert plan.kept_by_layer(model, half, autocast) == pytest.approx(of_a_layer_and_token, rel=0.01)


@pytest.mark.parametrize(("budget", "measured"), [(16_384, 39), (32_768, 69)])
def test_the_plan_is_near_what_one_h200_took(budget, measured):
    # Qwen3-0.6B's shape, packed, torch.varlen_attn, compiled head, no recomputation: GiB in docs/performance.md
    model = Model(596_049_920, 28, 1024, 151_936, 16, 8, 128, 3072, head_norms=True)
    options = [o for o in OPTIONS if "checkpointing" not in o]
    config = load([*options, f"--optimizer.micro_batch_tokens={budget}", "--plan.gpus=1", "--plan.zero=0"])
    parts = plan.memory(config, model, 1024)
    taken = ("weights", "master weights", "optimizer", "gradients", "activations", "logits")
    # there norms were not fused: each kept a float32 copy of its input and its result too, 6 bytes a number, not 2
    eager = 4 * 28 * (2 * 1024 + 3 * 1024) * budget / GIB
    assert sum(parts[k] for k in taken) + eager == pytest.approx(measured, rel=0.1)


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


AUTO = ["--model.gradient_checkpointing=auto", "--optimizer.micro_batch_tokens=auto"]


def chosen(*options, model=EIGHT):
    """(micro_batch_tokens, whether activations are recomputed, peak GiB of it)"""
    config = plan.fitted(load([*OPTIONS, *AUTO, *options]), model)
    need = plan.peak(plan.memory(config, model, 10_240), config)[2]
    return config.optimizer.micro_batch_tokens, config.model.gradient_checkpointing, need


def test_memory_decides_on_recomputation_and_on_the_size_of_micro_batches():
    tokens, again, need = chosen()
    assert (tokens, again) == (16_384, False)
    assert need <= 0.9 * 141
    config = plan.fitted(load([*OPTIONS, *AUTO]), EIGHT)
    more = replace(config, optimizer=replace(config.optimizer, micro_batch_tokens=24_576))
    assert plan.peak(plan.memory(more, EIGHT, 10_240), more)[2] > 0.9 * 141, "it is the most"
    assert chosen("--plan.gpu_gib=80")[:2] == (65_536, True), "not even the longest sequence fits with its activations"
    assert chosen("--plan.gpu_gib=80", "--model.gradient_checkpointing=false")[:2] == (10_240, False), "what is set stays"
    assert chosen("--optimizer.micro_batch_tokens=20000")[:2] == (20_000, True)
    assert chosen("--rollout.vllm.gpu_memory_utilization=0.97")[:2] == (16_384, False), "sampling's need is not the update's"
    assert chosen("--rollout.vllm.gpu_memory_utilization=0.5", "--rollout.vllm.sleep=false")[1], "an engine that stays awake"
    given = load(OPTIONS)
    assert plan.fitted(given, EIGHT) is given
    on_a_cpu = plan.fitted(load(AUTO), None)
    assert (on_a_cpu.optimizer.micro_batch_tokens, on_a_cpu.model.gradient_checkpointing) == (16_384, False)
    assert any("chosen by memory: micro-batches of 16,384 tokens, activations kept" in line
               for line in plan.report(load([*OPTIONS, *AUTO]), EIGHT))  # fmt: skip


def test_adapters_of_an_8b_model_by_hand():
    lora = ["--model.lora.r=16"]
    shape = Qwen3Config(hidden_size=4096, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                        intermediate_size=12288, vocab_size=151_936, tie_word_embeddings=False)  # fmt: skip
    model = plan.measure(shape, load(lora).model.lora)
    # q and o 4,096 -> 4,096; k and v 4,096 -> 1,024; gate and up 4,096 -> 12,288, down back
    assert model.adapters == 36 * 16 * (2 * 8192 + 2 * 5120 + 3 * 16384) == 43_646_976
    assert (model.parameters, model.adapter_width) == (8_190_735_360, 36 * 7 * 16)
    two = plan.measure(shape, load([*lora, "--model.lora.target_modules=[q_proj, v_proj]"]).model.lora)
    assert two.adapters == 36 * 16 * (8192 + 5120)

    def bytes_of(model, *options):
        parts = plan.memory(load([*OPTIONS, "--algorithm.kl_coef=0.1", *options]), model, 10_240)
        names = ("weights", "adapters", "master weights", "optimizer", "gradients", "reference")
        return [round(parts[name] * GIB) for name in names]

    n, t = model.parameters, model.adapters
    assert bytes_of(model, "--plan.gpus=1", "--plan.zero=null") == [2 * n, 4 * t, 0, 8 * t, 4 * t, 0], "the base is half"
    assert bytes_of(model, "--plan.zero=2") == [2 * n, 2 * t, t // 2, t, t // 2, 0]
    assert bytes_of(model, "--plan.zero=3") == [n // 4, t // 4, t // 2, t, t // 2, 0]
    float32 = bytes_of(model, "--plan.gpus=1", "--plan.zero=null", "--model.dtype=float32")
    assert float32 == [4 * n, 4 * t, 0, 8 * t, 4 * t, 0]
    assert any("trained 43.6M in adapters" in line for line in plan.report(load([*OPTIONS, *lora]), model))


def test_moments_in_8_bits_are_a_byte_each_and_a_scale_for_256():
    parts = plan.memory(load([*OPTIONS, "--plan.zero=null", "--optimizer.name=adamw_8bit"]), EIGHT, 10_240)
    assert parts["optimizer"] == pytest.approx((16e9 + 2 * 4 * 8e9 / 256) / GIB)
    lines = plan.report(load([*OPTIONS, "--optimizer.name=adamw_8bit"]), EIGHT)
    assert any("adamw_8bit does not work under DeepSpeed" in line for line in lines)


@pytest.mark.parametrize(("dtype", "autocast"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)])
def test_activations_with_adapters_are_what_autograd_keeps(dtype, autocast, monkeypatch):
    """autocast: one process, which keeps adapters in float32; without, as DeepSpeed casts them."""
    monkeypatch.setattr("minirl.policy.model.rms_norm", lambda x, shape, weight, epsilon: KeptNorm.apply(x, weight, epsilon))
    adapters = load(["--model.lora.r=8"]).model.lora

    def kept(layers, tokens):
        config = Qwen3Config(hidden_size=256, num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=2,
                             head_dim=64, intermediate_size=640, vocab_size=100)  # fmt: skip
        model = with_fused_norms(AutoModelForCausalLM.from_config(config)).to(dtype)
        model.set_attn_implementation("packed")
        add_adapters(model, adapters, 0)
        model = model if autocast else model.to(dtype)
        return plan.measure(config, adapters), kept_by_autograd(model, tokens, autocast)

    (model, one), (_, three), (_, long_one), (_, long_three) = (kept(*x) for x in ((1, 64), (3, 64), (1, 192), (3, 192)))
    of_a_layer_and_token = ((long_three - long_one) - (three - one)) / 2 / 128
    assert plan.kept_by_layer(model, dtype == torch.bfloat16, False) == pytest.approx(of_a_layer_and_token, rel=0.01)


def test_a_run_plans_with_the_gpus_that_it_has():
    small = SimpleNamespace(size=2, gpu_gib=0.002, zero=3)
    lines = model_plan(load(["--rollout.engine=vllm"]), small)
    assert any("2 GPUs of 0.002 GiB with ZeRO-3" in line for line in lines)
    assert any("WARNING" in line and "do not fit a GPU of 0.002 GiB" in line for line in lines)


def test_plan_states_the_derived_sizes():
    text = "\n".join(plan.run_plan(load([]), train_size=640, test_size=10, ranks=2))
    assert "32 prompts x 10 samples = 320 rollouts of at most 24 tokens (7,680), 2 optimizer steps of 160 rollouts" in text
    steps = Config().run.steps
    assert f"{steps} steps = {steps * 320:,} rollouts, {steps * 2:,} optimizer steps, {steps * 32 / 640:.2f} passes" in text


def test_a_limit_of_passes_limits_the_steps_of_the_plan():
    config = load(["--run.steps=1000", "--run.epochs=2", "--rollout.prompts=256", "--algorithm.mini_batch_prompts=64"])
    # 2 passes over 17,398 problems, 256 a step: 135.9
    assert any("run 136 steps" in line for line in plan.run_plan(config, 17_398, 256, 8))
