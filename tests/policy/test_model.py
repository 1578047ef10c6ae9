"""Loading a model, and what is changed in it: the same numbers as the model's own code."""

import copy
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    LlamaConfig,
    MixtralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

from minirl.config.command_line import load
from minirl.config.options import ModelConfig
from minirl.policy.model import check_context, check_dense, is_rms_norm, load_model, with_exact_frequencies, with_fused_norms
from minirl.policy.policy import Policy
from minirl.rollout.types import Completion, Rollout
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError, RunError
from minirl.verify.types import Verdict
from tests.conftest import ROOT, few_problems

TOK = tiny.tokenizer()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def test_models_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing.*check that"):
        load_model(ModelConfig(path=str(tmp_path / "missing")))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.json, weights and tokenizer are whole"):
        load_model(ModelConfig(path=str(tmp_path)))
    with pytest.raises(ConfigError, match="128 positions"):
        check_context(load(["--rollout.max_response_tokens=120"]), 20)


@pytest.mark.parametrize("kind", [Qwen3MoeConfig, MixtralConfig, DeepseekV3Config])
def test_a_mixture_of_experts_is_refused_with_vllm(tmp_path, kind):
    kind().save_pretrained(tmp_path)
    options = [f"--model.path={tmp_path}", "--data.max_prompt_tokens=8"]
    with pytest.raises(ConfigError, match=r"mixture of \d+ experts.*take a dense model"):
        check_dense(load([*options, "--rollout.engine=vllm"]))
    check_dense(load(options))
    check_dense(load(["--rollout.engine=vllm"]))


def test_the_embedded_model_is_small_and_formats_its_answers():
    model = load_model(ModelConfig())
    assert sum(p.numel() for p in model.parameters()) <= 1_000_000
    assert model.config.model_type == "qwen3"


def test_frequencies_of_a_model_that_was_cast_are_exact_again():
    exact = tiny.model(hidden=32, layers=1)
    cast = with_exact_frequencies(tiny.model(hidden=32, layers=1).to(torch.bfloat16))
    assert torch.equal(cast.base_model.rotary_emb.inv_freq, exact.base_model.rotary_emb.inv_freq)
    assert cast.base_model.rotary_emb.original_inv_freq.dtype == torch.float32
    assert cast.lm_head.weight.dtype == torch.bfloat16


# 2 layers: two norms each, Qwen3's two of the heads besides, and the last one; Gemma's multiply by 1 + weight
@pytest.mark.parametrize(("kind", "replaced"), [(Qwen3Config, 9), (LlamaConfig, 5), (Gemma2Config, 0)])
@pytest.mark.parametrize("device", DEVICES)
def test_norms_are_fused_where_they_are_rms_norms(kind, replaced, device):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    own = AutoModelForCausalLM.from_config(kind(intermediate_size=48, vocab_size=40, rms_norm_eps=1e-3, **sizes))
    for p in own.parameters():
        p.data += 0.1 * torch.randn_like(p)
    fused = with_fused_norms(copy.deepcopy(own))
    assert sum("forward" in vars(module) for module in fused.modules()) == replaced
    own, fused = own.to(device), fused.to(device)
    ids = torch.arange(20, device=device)[None]
    logits = [model(ids).logits for model in (own, fused)]
    assert torch.allclose(*logits, atol=1e-6 if device == "cpu" else 1e-4)
    for x in logits:
        x.square().mean().backward()
    for a, b in zip(own.parameters(), fused.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-7 if device == "cpu" else 1e-5)
    rounded = fused.to(torch.bfloat16)(ids).logits
    assert torch.allclose(rounded.float(), logits[0], atol=0.05 * logits[0].detach().abs().max().item())


def rollouts(rng, count):
    made = []
    for _ in range(count):
        ids = rng.integers(0, len(TOK), rng.integers(1, 12), dtype=np.int32)
        completion = Completion(ids, np.zeros(len(ids), np.float32), "stop")
        made.append(Rollout(0, "", "", rng.integers(0, len(TOK), 5).tolist(), completion, 0, "", Verdict("wrong"), 0.0))
    return made


ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "checkpointing"),
    [("float32", False), pytest.param("bfloat16", False, marks=ON_A_GPU), pytest.param("bfloat16", True, marks=ON_A_GPU)],
)
def test_compiled_layers_compute_the_same(tmp_path, dtype, checkpointing):
    torch._dynamo.utils.counters.clear()
    model = tiny.model(hidden=32, layers=2)
    model.save_pretrained(tmp_path)
    TOK.save_pretrained(tmp_path)
    options = [f"--model.path={tmp_path}", "--optimizer.micro_batch_tokens=40", f"--model.dtype={dtype}",
               f"--model.gradient_checkpointing={str(checkpointing).lower()}"]  # fmt: skip
    plain, compiled = (Policy(load([*options, f"--model.compile_layers={c}"]), Ranks(), len(TOK)) for c in ("false", "true"))
    rng, exact = np.random.default_rng(0), dtype == "float32"
    for count in (5, 8):  # other numbers of tokens in each micro-batch
        batch = rollouts(rng, count)
        for policy in (plain, compiled):
            with policy.computing():
                for micro in policy.gradient_steps(batch):
                    policy.accumulate(-policy.logprobs(micro)[0].sum())
        # Gradients, not the weights after AdamW, which moves those with a tiny gradient by its rounding.
        for a, b in zip(plain.model.parameters(), compiled.model.parameters(), strict=True):
            assert (a.grad - b.grad).norm() < (1e-4 if exact else 0.05) * a.grad.norm()
        norms = [policy.step(1e-3) for policy in (plain, compiled)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5 if exact else 0.02)
    weights = zip(plain.model.parameters(), compiled.model.parameters(), strict=True)
    # two steps of AdamW at 1e-3 move a weight by at most 2e-3 in each of the policies
    assert all(torch.allclose(a, b, atol=1e-5 if exact and not torch.cuda.is_available() else 4e-3) for a, b in weights)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "or nothing was compiled"


@pytest.mark.slow
def test_padded_and_recomputed_micro_batches_of_all_shapes_are_few_programs(tmp_path, monkeypatch):
    # dynamo alone decides what is another program; what it makes of one takes the time
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    tiny.model(hidden=32, layers=2).save_pretrained(tmp_path)
    TOK.save_pretrained(tmp_path)
    options = ["--model.attention=sdpa", "--model.gradient_checkpointing=true", "--optimizer.micro_batch_tokens=60"]
    policy = Policy(load([f"--model.path={tmp_path}", "--model.compile_layers=true", *options]), Ranks(), len(TOK))
    rng = np.random.default_rng(0)
    one_token, alike = Completion(np.array([4], np.int32), np.zeros(1, np.float32), "stop"), rollouts(rng, 1)
    single = [replace(r, prompt_ids=[5], completion=one_token) for r in rollouts(rng, 3)]
    for batch in (rollouts(rng, 1), alike * 4, rollouts(rng, 9), single, single[:1], rollouts(rng, 2)):
        with policy.computing():
            policy.compute_logprobs(batch, old=True)
            for micro in policy.gradient_steps(batch):
                policy.accumulate(-policy.logprobs(micro)[0].sum())
            assert np.isfinite(policy.step(1e-4))


def test_a_program_too_many_ends_with_the_remedy():
    policy = Policy(load([]), Ranks(), len(TOK))
    remedy = r"compiling failed: .*set model.compile_layers and model.compile to false"
    with pytest.raises(RunError, match=remedy), policy.computing():
        raise torch._dynamo.exc.FailOnRecompileLimitHit("recompile_limit reached")


def test_a_norm_with_a_gate_is_no_rms_norm():
    class Gated(LlamaRMSNorm):
        def forward(self, x, gate=None):
            return super().forward(x if gate is None else x * gate)

    assert not is_rms_norm(Qwen3NextRMSNormGated(16))
    assert not is_rms_norm(Gated(16))
    assert is_rms_norm(LlamaRMSNorm(16))


@pytest.mark.slow
def test_compiling_without_a_compiler_ends_with_the_remedy(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *few_problems(tmp_path), "--model.compile_layers=true", "--rollout.prompts=2",
         "--algorithm.mini_batch_prompts=2", "--rollout.max_generation_batches=1", "--algorithm.estimator=grpo",
         "--eval.problems=2", f"--run.dir={tmp_path / 'run'}"],
        capture_output=True, text=True, check=False,
        env=os.environ | {"CXX": "/no/compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "compiling failed" in done.stderr
    assert "set model.compile_layers" in done.stderr
