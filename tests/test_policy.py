"""Log-probs and updates of the policy in one process; tests/test_train.py has two ranks."""

import numpy as np
import pytest
import torch

from minirl import tiny
from minirl.config import ConfigError, ModelConfig, OptimizerConfig, load
from minirl.distributed import Ranks
from minirl.policy import LogProbHead, Policy, check_context, learning_rate, load_model, make_micro_batch
from minirl.rollout import Rollout, Sample
from minirl.verify import Verdict

TOK = tiny.tokenizer()


@pytest.fixture(scope="module")
def ranks():
    return Ranks()


def rollout(prompt, response, **more):
    sample = Sample(np.array(response, np.int32), np.full(len(response), -1.0, np.float32), "stop")
    return Rollout(0, "", "", list(prompt), sample, 0, "", Verdict("wrong"), 0.0, **more)


class Table(torch.nn.Module):
    """A language model whose next-token logits are a row of a table, chosen by the current token alone."""

    def __init__(self, table):
        super().__init__()
        self.table = torch.nn.Parameter(table)
        self.head = torch.nn.Linear(len(table), len(table), bias=False)
        self.head.weight.data = torch.eye(len(table))
        self.config = type("Config", (), {"vocab_size": len(table)})()

    def base_model(self, input_ids, attention_mask, use_cache):
        return type("Out", (), {"last_hidden_state": self.table[input_ids]})()

    def get_output_embeddings(self):
        return self.head


def test_the_log_prob_of_a_token_comes_from_the_position_before_it():
    # tokens [p0 p1 r0 r1]: r0 is predicted at p1, r1 at r0
    table = torch.randn(5, 5)
    batch = make_micro_batch([rollout([0, 1], [2, 3]), rollout([4], [1])], [0, 1])
    logps, entropy = LogProbHead(Table(table), 1.0, 5, False)(batch.ids, batch.mask, batch.rows, batch.columns, batch.targets)
    rows = table.log_softmax(-1)
    assert logps.tolist() == pytest.approx([rows[1, 2].item(), rows[2, 3].item(), rows[4, 1].item()], rel=1e-5)
    by_hand = [-(rows[i].exp() * rows[i]).sum().item() for i in (1, 2, 4)]
    assert entropy.tolist() == pytest.approx(by_hand, rel=1e-5)


def test_temperature_and_vocabulary_are_those_of_the_sampler():
    table = torch.randn(5, 5)
    batch = make_micro_batch([rollout([0], [1])], [0])
    logps, _ = LogProbHead(Table(table), 0.5, 3, False)(batch.ids, batch.mask, batch.rows, batch.columns, batch.targets)
    assert logps.item() == pytest.approx((table[0, :3] / 0.5).log_softmax(-1)[1].item(), rel=1e-5)


def test_masks_come_from_lengths_even_where_pad_is_end_of_text():
    # id 0 is the padding id of the batch, and here also a real token and the last one
    batch = make_micro_batch([rollout([3, 0], [0, 2, 0]), rollout([1], [0])], [0, 1])
    assert batch.mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert batch.targets.tolist() == [0, 2, 0, 0]
    assert batch.flat([[1, 2, 3], 9.0]).tolist() == [1, 2, 3, 9]


def test_logits_in_chunks_are_the_same(monkeypatch):
    model = tiny.model(hidden=32, layers=2)
    batch = make_micro_batch([rollout([4, 5, 6], [7, 8, 9, 1]), rollout([4, 5], [1, 1, 1])], [0, 1])
    inputs = (batch.ids, batch.mask, batch.rows, batch.columns, batch.targets)
    whole = LogProbHead(model, 1.0, len(TOK), True)(*inputs)
    (whole[0].sum() + whole[1].sum()).backward()
    gradient = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    monkeypatch.setattr("minirl.policy.LOGITS_CHUNK", 3 * model.config.vocab_size)
    chunked = LogProbHead(model, 1.0, len(TOK), True)(*inputs)
    (chunked[0].sum() + chunked[1].sum()).backward()
    assert torch.allclose(whole[0], chunked[0], atol=1e-6)
    for a, p in zip(gradient, model.parameters(), strict=True):
        assert torch.allclose(a, p.grad, atol=1e-6)


def test_padded_rows_have_the_log_probs_of_single_ones(ranks):
    policy = Policy(load(["--optimizer.micro_batch_tokens=1000"]), ranks, len(TOK))
    rng = np.random.default_rng(0)
    rollouts = [rollout(rng.integers(0, 22, p).tolist(), rng.integers(0, 22, r).tolist()) for p, r in [(8, 7), (3, 12), (1, 1)]]
    policy.score(rollouts, old=True)
    for r in rollouts:
        with torch.no_grad():
            ids = torch.tensor([r.prompt_ids + r.sample.ids.tolist()])
            logps = policy.model(ids).logits[0].log_softmax(-1)
        expected = [logps[len(r.prompt_ids) - 1 + t, token].item() for t, token in enumerate(r.sample.ids.tolist())]
        assert r.old_log_probs == pytest.approx(expected, abs=1e-5)
        assert r.entropies.shape == r.old_log_probs.shape


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
            logps, _ = policy.log_probs(batch)
            weight = batch.flat([1 / (6 * r.length) for r in batch.rollouts])
            policy.accumulate(-(weight * logps).sum())
        results.append((policy.step(1e-3), [p.detach().clone() for p in policy.model.parameters()]))
        assert policy.version == 1
    for norm, weights in results[1:]:
        assert norm == pytest.approx(results[0][0], rel=1e-4)
        # AdamW divides by the gradient's own size, so tiny differences of tiny gradients are magnified up to the rate 1e-3.
        assert all(torch.allclose(a, b, atol=2e-5) for a, b in zip(weights, results[0][1], strict=True))


def test_a_rank_without_work_contributes_nothing_but_takes_part(ranks):
    policy = Policy(load([]), ranks, len(TOK))
    empty = make_micro_batch([], [])
    logps, _ = policy.log_probs(empty)
    policy.accumulate((empty.flat([]) * logps).sum())
    assert all(p.grad is not None and not p.grad.any() for p in policy.model.parameters())


def test_no_reference_model_without_a_kl(ranks):
    assert Policy(load([]), ranks, len(TOK)).reference is None
    policy = Policy(load(["--algorithm.kl_coefficient=0.01"]), ranks, len(TOK))
    rollouts = [rollout([4, 5], [6, 7])]
    policy.score(rollouts, old=True)
    assert rollouts[0].reference_log_probs == pytest.approx(rollouts[0].old_log_probs, abs=1e-6), "it is the starting model"
    assert not any(p.requires_grad for p in policy.reference.parameters())


def test_bfloat16_computes_over_float32_weights(ranks):
    policy = Policy(load(["--model.dtype=bfloat16"]), ranks, len(TOK))
    exact = Policy(load([]), ranks, len(TOK))
    batch = make_micro_batch([rollout([4, 5], [6, 7])], [0])
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    logps, reference = policy.log_probs(batch)[0], exact.log_probs(batch)[0]
    assert logps.dtype == torch.float32
    assert not torch.equal(logps, reference)
    assert torch.allclose(logps, reference, atol=0.2)


def test_export_is_an_ordinary_folder(ranks, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = Policy(load([]), ranks, len(TOK))
    policy.export(tmp_path / "model", TOK)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.tensor([[4, 5, 6]])
    assert torch.equal(loaded(ids).logits, policy.model(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template == TOK.chat_template


def test_learning_rate_by_hand():
    warm = OptimizerConfig(lr=1.0, warmup_steps=3, schedule="linear")
    assert [learning_rate(s, warm, 7) for s in range(1, 8)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25])
    cosine = OptimizerConfig(lr=2.0, warmup_steps=0, schedule="cosine")
    assert [learning_rate(s, cosine, 2) for s in (1, 2)] == pytest.approx([2.0, 1.0])
    assert learning_rate(99, OptimizerConfig(lr=3.0), 100) == 3.0


def test_models_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing.*check that"):
        load_model(ModelConfig(path=str(tmp_path / "missing")))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.json, weights and tokenizer are whole"):
        load_model(ModelConfig(path=str(tmp_path)))
    with pytest.raises(ConfigError, match="128 positions"):
        check_context(load(["--rollout.max_response_tokens=120"]), 20)


def test_the_embedded_model_is_small_and_formats_its_answers():
    model = load_model(ModelConfig())
    assert sum(p.numel() for p in model.parameters()) <= 1_000_000
    assert model.config.model_type == "qwen3"


def test_deterministic_kernels_are_asked_for_while_the_trainer_computes_and_change_nothing_on_a_cpu(ranks):
    norms = []
    for asked in ("false", "true"):
        policy = Policy(load([f"--run.deterministic={asked}"]), ranks, len(TOK))
        with policy.computing():
            assert torch.are_deterministic_algorithms_enabled() == (asked == "true")
            for batch in policy.gradient_steps([rollout([4, 5], [6, 7, 1])]):
                policy.accumulate(policy.log_probs(batch)[0].sum())
            norms.append((policy.step(1e-3), [p.detach().clone() for p in policy.model.parameters()]))
        assert not torch.are_deterministic_algorithms_enabled(), "an engine may have no such kernel"
    assert norms[0][0] == norms[1][0]
    assert all(torch.equal(a, b) for a, b in zip(norms[0][1], norms[1][1], strict=True))
