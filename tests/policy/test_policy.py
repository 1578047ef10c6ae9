"""Log-probs and updates of the policy in one process; tests/test_train.py has two ranks."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from minirl.config.command_line import load
from minirl.config.options import OptimizerConfig
from minirl.policy.policy import Policy, learning_rate
from minirl.rollout.types import Completion, Rollout
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.verify.types import Verdict
from tests.conftest import ROOT

TOK = tiny.tokenizer()


@pytest.fixture(scope="module")
def ranks():
    return Ranks()


def rollout(prompt, response, **more):
    completion = Completion(np.array(response, np.int32), np.full(len(response), -1.0, np.float32), "stop")
    return Rollout(0, "", "", list(prompt), completion, 0, "", Verdict("wrong"), 0.0, **more)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_update_is_the_same_for_any_micro_batch_budget(ranks, checkpointing):
    rng = np.random.default_rng(1)
    rollouts = [rollout(rng.integers(0, 22, 5).tolist(), rng.integers(0, 22, n).tolist()) for n in (1, 9, 4, 4, 7, 2)]
    results = []
    for budget in (10_000, 40, 1):
        config = load(
            [f"--optimizer.micro_batch_tokens={budget}", f"--model.gradient_checkpointing={str(checkpointing).lower()}"]
        )
        policy = Policy(config, ranks, len(TOK))
        for batch in policy.gradient_steps(rollouts):
            logprobs, _ = policy.logprobs(batch)
            weight = batch.flat([1 / (6 * r.length) for r in batch.rollouts])
            policy.accumulate(-(weight * logprobs).sum())
        results.append((policy.step(1e-3), [p.detach().clone() for p in policy.model.parameters()]))
        assert policy.version == 1
    for norm, weights in results[1:]:
        assert norm == pytest.approx(results[0][0], rel=1e-4)
        # AdamW divides by the gradient's own size, so tiny differences of tiny gradients are magnified up to the rate 1e-3.
        assert all(torch.allclose(a, b, atol=2e-5) for a, b in zip(weights, results[0][1], strict=True))


@pytest.mark.parametrize("attention", ["packed", "sdpa"])
def test_a_rank_without_work_contributes_nothing_but_takes_part(ranks, attention):
    policy = Policy(load([f"--model.attention={attention}"]), ranks, len(TOK))
    empty = policy.micro_batch([], [])
    logprobs, _ = policy.logprobs(empty)
    policy.accumulate((empty.flat([]) * logprobs).sum())
    assert all(p.grad is not None and not p.grad.any() for p in policy.model.parameters())


@pytest.mark.parametrize("attention", ["packed", "sdpa", "eager"])
def test_micro_batches_give_the_logprobs_of_single_sequences(ranks, attention):
    policy = Policy(load([f"--model.attention={attention}"]), ranks, len(TOK))
    assert policy.packs == (attention == "packed")
    rng = np.random.default_rng(0)
    rollouts = [rollout(rng.integers(0, 22, p).tolist(), rng.integers(0, 22, r).tolist()) for p, r in [(8, 7), (3, 12), (1, 1)]]
    policy.compute_logprobs(rollouts, old=True, entropy=True)
    for r in rollouts:
        with torch.no_grad():
            ids = torch.tensor([r.prompt_ids + r.completion.ids.tolist()])
            logprobs = policy.model(ids).logits[0].log_softmax(-1)
        expected = [logprobs[len(r.prompt_ids) - 1 + t, token].item() for t, token in enumerate(r.completion.ids.tolist())]
        assert r.old_logprobs == pytest.approx(expected, abs=1e-5)
        assert r.entropies.shape == r.old_logprobs.shape
    policy.compute_logprobs(rollouts, old=True)
    assert all(r.entropies is None for r in rollouts), "nobody asked"


def test_a_model_that_cannot_be_packed_is_padded_with_one_sentence(ranks, tmp_path, capsys):
    MistralForCausalLM(
        MistralConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32,
            vocab_size=len(TOK), sliding_window=4,
        )
    ).save_pretrained(tmp_path)  # fmt: skip
    policy = Policy(load([f"--model.path={tmp_path}", "--algorithm.kl_coef=0.1"]), ranks, len(TOK))
    assert not policy.packs
    assert policy.model.config._attn_implementation == policy.reference.model.config._attn_implementation == "sdpa"
    policy.compute_logprobs([rollout([4, 5], [6, 7])], old=True)
    # Without the line of DeepSpeed's first import, which is transformers' save_pretrained
    said = [line for line in capsys.readouterr().out.splitlines() if "get_accelerator" not in line]
    assert said == [
        "MistralForCausalLM cannot be packed (its attention has sliding_window): its micro-batches are padded instead"
    ]


def test_no_reference_model_without_a_kl(ranks):
    assert Policy(load([]), ranks, len(TOK)).reference is None
    policy = Policy(load(["--algorithm.kl_coef=0.01"]), ranks, len(TOK))
    rollouts = [rollout([4, 5], [6, 7])]
    policy.compute_logprobs(rollouts, old=True, entropy=True)
    assert rollouts[0].ref_logprobs == pytest.approx(rollouts[0].old_logprobs, abs=1e-6), "it is the starting model"
    assert not any(p.requires_grad for p in policy.reference.parameters())


def test_bfloat16_computes_over_float32_weights(ranks):
    policy = Policy(load(["--model.dtype=bfloat16"]), ranks, len(TOK))
    exact = Policy(load([]), ranks, len(TOK))
    batch = policy.micro_batch([rollout([4, 5], [6, 7])], [0])
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    logprobs, reference = policy.logprobs(batch)[0], exact.logprobs(batch)[0]
    assert logprobs.dtype == torch.float32
    assert not torch.equal(logprobs, reference)
    assert torch.allclose(logprobs, reference, atol=0.2)


def test_export_is_an_ordinary_folder(ranks, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = Policy(load([]), ranks, len(TOK))
    policy.export(tmp_path / "model", TOK)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.tensor([[4, 5, 6]])
    assert torch.equal(loaded(ids).logits, policy.model(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template == TOK.chat_template


def test_a_process_without_zero_imports_neither_deepspeed_nor_the_kernel_for_gpus(tmp_path):
    pytest.importorskip("deepspeed", reason="needs DeepSpeed: one that is not installed is never imported")
    program = (
        "import sys, train; from pathlib import Path; from minirl.config.command_line import load\n"
        "from minirl.policy.policy import Policy; from minirl.tiny import make; from minirl.utils.distributed import Ranks\n"
        "tokenizer = make.tokenizer(); policy = Policy(load(['--algorithm.kl_coef=0.1']), Ranks(), len(tokenizer))\n"
        f"policy.export(Path({str(tmp_path / 'model')!r}), tokenizer)\n"
        "print(*{'deepspeed', 'vllm', 'torch.nn.attention.varlen', 'sklearn', 'matplotlib'} & sys.modules.keys())"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == []
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_learning_rate_by_hand():
    warm = OptimizerConfig(lr=1.0, warmup_steps=3, schedule="linear")
    assert [learning_rate(s, warm, 7) for s in range(1, 8)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25])
    cosine = OptimizerConfig(lr=2.0, warmup_steps=0, schedule="cosine")
    assert [learning_rate(s, cosine, 2) for s in (1, 2)] == pytest.approx([2.0, 1.0])
    assert learning_rate(99, OptimizerConfig(lr=3.0), 100) == 3.0


def test_deterministic_kernels_are_asked_for_while_the_trainer_computes_and_change_nothing_on_a_cpu(ranks):
    norms = []
    for asked in ("false", "true"):
        policy = Policy(load([f"--run.deterministic={asked}"]), ranks, len(TOK))
        with policy.computing():
            assert torch.are_deterministic_algorithms_enabled() == (asked == "true")
            for batch in policy.gradient_steps([rollout([4, 5], [6, 7, 1])]):
                policy.accumulate(policy.logprobs(batch)[0].sum())
            norms.append((policy.step(1e-3), [p.detach().clone() for p in policy.model.parameters()]))
        assert not torch.are_deterministic_algorithms_enabled(), "an engine may have no such kernel"
    assert norms[0][0] == norms[1][0]
    assert all(torch.equal(a, b) for a, b in zip(norms[0][1], norms[1][1], strict=True))
