"""Micro-batches and log-probs: packed, padded and one by one are the same; memory does not grow with the tokens."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

from minirl.policy.attention import Padded, Segment
from minirl.policy.logprobs import LogprobHead
from minirl.policy.micro_batches import packed_micro_batch, padded_micro_batch
from minirl.policy.packing_trial import why_not_packed
from minirl.policy.varlen import Varlen
from minirl.rollout.types import Completion, Rollout
from minirl.tiny import make as tiny
from minirl.verify.types import Verdict

TOK = tiny.tokenizer()


def rollout(prompt, response):
    completion = Completion(np.array(response, np.int32), np.full(len(response), -1.0, np.float32), "stop")
    return Rollout(0, "", "", list(prompt), completion, 0, "", Verdict("wrong"), 0.0)


class Table(torch.nn.Module):
    """A language model whose next-token logits are a row of a table, chosen by the current token alone."""

    def __init__(self, table):
        super().__init__()
        self.table = torch.nn.Parameter(table)
        self.head = torch.nn.Linear(len(table), len(table), bias=False)
        self.head.weight.data = torch.eye(len(table))
        self.config = type("Config", (), {"vocab_size": len(table)})()

    def base_model(self, input_ids, **_):
        return type("Out", (), {"last_hidden_state": self.table[input_ids]})()

    def get_output_embeddings(self):
        return self.head


def score(head, batch, entropy=True, top_k=0):
    return head(batch.inputs, batch.logit_index, batch.targets, entropy, top_k)


@pytest.mark.parametrize("make", [packed_micro_batch, padded_micro_batch])
def test_the_log_prob_of_a_token_comes_from_the_position_before_it(make):
    # tokens [p0 p1 r0 r1]: r0 is predicted at p1, r1 at r0
    table = torch.randn(5, 5)
    batch = make([rollout([0, 1], [2, 3]), rollout([4], [1]), rollout([0, 1], [4])], [0, 1, 2])
    logprobs, entropy = score(LogprobHead(Table(table), 1.0, 5, False), batch)
    rows = table.log_softmax(-1)
    wanted = {0: [rows[1, 2], rows[2, 3]], 1: [rows[4, 1]], 2: [rows[1, 4]]}
    for i, part in zip(batch.indices, batch.split(logprobs.detach()), strict=True):
        assert part.tolist() == pytest.approx([x.item() for x in wanted[i]], rel=1e-5)
    assert batch.split(entropy.detach())[0].tolist() == pytest.approx(
        [-(rows[i].exp() * rows[i]).sum().item() for i in (1, 2)], rel=1e-5
    )
    assert not score(LogprobHead(Table(table), 1.0, 5, False), batch, entropy=False)[1].any()


def test_temperature_and_vocabulary_are_those_of_the_sampler():
    table = torch.randn(5, 5)
    logprobs, _ = score(LogprobHead(Table(table), 0.5, 3, False), packed_micro_batch([rollout([0], [1])], [0]))
    assert logprobs.item() == pytest.approx((table[0, :3] / 0.5).log_softmax(-1)[1].item(), rel=1e-5)


def test_a_packed_row_by_hand():
    # the first two share their prompt; the last token of a response predicts nothing and is not there
    batch = packed_micro_batch([rollout([3, 0], [1, 2, 0]), rollout([7], [8, 9]), rollout([3, 0], [5])], [0, 1, 2])
    assert batch.indices == [0, 2, 1]
    assert batch.inputs["input_ids"].tolist() == [[3, 0, 1, 2, 7, 8]]
    assert batch.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1]]
    assert batch.logit_index.tolist() == [1, 2, 3, 1, 4, 5]
    assert batch.targets.tolist() == [1, 2, 0, 5, 8, 9]
    assert batch.flat([[1, 2, 3], 9.0, [4, 5]]).tolist() == [1, 2, 3, 9, 4, 5]


def test_masks_come_from_lengths_even_where_pad_is_end_of_text():
    # id 0 is the padding id of the batch, and here also a real token and the last one
    batch = padded_micro_batch([rollout([3, 0], [0, 2, 0]), rollout([1], [0])], [0, 1])
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert batch.targets.tolist() == [0, 2, 0, 0]


MODELS = {
    "qwen3": Qwen3Config(head_dim=16, tie_word_embeddings=True),
    "qwen2": Qwen2Config(),
    "llama": LlamaConfig(),
    "gpt2, learned positions": GPT2Config(n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0),
}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}


@pytest.fixture(scope="module")
def models():
    made = {}
    for name, config in MODELS.items():
        config.update({"vocab_size": 40} | ({} if "gpt2" in name else SMALL))
        torch.manual_seed(0)
        made[name] = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
        for p in made[name].parameters():
            p.data.mul_(4)  # far from uniform attention, so that a leak would show
    return made


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", MODELS)
def test_packed_equals_one_by_one(models, name, data):
    """Log-probs and gradients, over random mixes of lengths and shared prompts; transformers' sdpa on single rows judges."""
    model = models[name]
    groups = data.draw(
        st.lists(st.tuples(st.integers(1, 40), st.lists(st.integers(1, 40), min_size=1, max_size=4)), max_size=5)
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rollouts = []
    for length, responses in groups:
        prompt = rng.integers(0, 40, length).tolist()
        rollouts += [rollout(prompt, rng.integers(0, 40, n)) for n in responses]
    weights = [torch.from_numpy(rng.normal(size=r.length).astype(np.float32)) for r in rollouts]

    model.set_attn_implementation("sdpa")
    model.zero_grad()
    expected = []
    for r, weight in zip(rollouts, weights, strict=True):
        logits = model(torch.tensor([r.prompt_ids + r.completion.ids.tolist()])).logits[0, len(r.prompt_ids) - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(-1, torch.tensor(r.completion.ids.tolist())[:, None])[:, 0]
        (logprobs * weight).sum().backward()
        expected.append(logprobs.detach().numpy())
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]

    model.set_attn_implementation("packed")
    model.zero_grad()
    batch = packed_micro_batch(rollouts, list(range(len(rollouts))))
    logprobs, _ = score(LogprobHead(model, 1.0, 40, False), batch)
    (logprobs * batch.flat([weights[i].numpy() for i in batch.indices])).sum().backward()
    for i, part in zip(batch.indices, batch.split(logprobs.detach()), strict=True):
        assert part == pytest.approx(expected[i], abs=2e-4)
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.allclose(p.grad, gradient, atol=2e-4 * max(1.0, gradient.abs().max().item())), "a leak, or a lost token"


def test_the_varlen_layout_means_the_same_as_the_padded_one():
    """Its kernel needs a GPU: here its cumulative lengths and keys are read by a loop, bottom-right causal as the kernel is."""
    segments = [Segment(0, 3), Segment(3, 4, 0, 3), Segment(7, 1, 0, 3), Segment(8, 5)]
    torch.manual_seed(0)
    q, k, v = torch.randn(13, 4, 8), torch.randn(13, 2, 8), torch.randn(13, 2, 8)
    layout = Varlen(segments, "cpu")
    keys, values = k[layout.keys], v[layout.keys]
    out = []
    for a, b, c, d in zip(layout.ends_q, layout.ends_q[1:], layout.ends_k, layout.ends_k[1:], strict=False):
        assert b - a <= layout.longest_q
        assert d - c <= layout.longest_k
        visible = torch.ones(b - a, d - c, dtype=torch.bool).tril((d - c) - (b - a))
        parts = [x.transpose(0, 1)[None] for x in (q[a:b], keys[c:d], values[c:d])]
        out.append(torch.nn.functional.scaled_dot_product_attention(*parts, visible, enable_gqa=True)[0].transpose(0, 1))
    assert torch.allclose(torch.cat(out), Padded(segments, "cpu").attend(q, k, v, None), atol=1e-5)
    assert Varlen([Segment(0, 3), Segment(3, 4)], "cpu").keys is None, "nothing shared, nothing copied"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="varlen_attn needs a GPU")
@pytest.mark.parametrize("name", MODELS)
def test_gpu_packed_equals_one_by_one(models, name):
    """bfloat16 through varlen_attn against float32 one by one, log-probs and gradients; the compiled head as well."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 40, n).tolist() for n in (40, 7, 1)]
    rollouts = [
        rollout(p, rng.integers(0, 40, n)) for p, ns in zip(prompts, [(30, 1, 12), (5,), (9, 64)], strict=True) for n in ns
    ]
    model = copy.deepcopy(models[name]).cuda()
    for p in model.parameters():
        p.data.div_(4)  # as after initialisation: bfloat16 rounds
    results = []
    for layout, dtype in ((Padded, torch.float32), (Varlen, torch.bfloat16)):
        model.set_attn_implementation("packed")
        model.zero_grad()
        batch = packed_micro_batch(rollouts, list(range(len(rollouts))), "cuda", layout)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            logprobs, _ = score(LogprobHead(model, 1.0, 40, False, compiled=layout is Varlen), batch)
        logprobs.sum().backward()
        results.append((logprobs.detach().cpu(), torch.cat([p.grad.flatten().cpu() for p in model.parameters()])))
    (exact, gradient), (packed, rounded) = results
    assert torch.allclose(packed, exact, atol=0.05)
    assert (rounded - gradient).norm() < 0.05 * gradient.norm()


@pytest.mark.parametrize("name", MODELS)
def test_models_that_can_be_packed_are_found_to(models, name):
    head = LogprobHead(models[name], 1.0, 40, False)
    models[name].set_attn_implementation("packed")
    assert why_not_packed(lambda batch: score(head, batch)[0], packed_micro_batch, models[name].config, 1e-3) is None


@pytest.mark.parametrize(
    "error",
    [
        torch._dynamo.exc.BackendCompilerFailed(lambda: 0, ValueError("no compiler"), None),
        torch._inductor.exc.InductorError(ValueError("no compiler"), None),
        type("CompilationError", (RuntimeError,), {"__module__": "triton.compiler.errors"})("no compiler"),
        torch.OutOfMemoryError("2 GiB"),
    ],
)
def test_a_compiler_s_failure_and_a_lack_of_memory_are_no_reasons_not_to_pack(models, error):
    def fail(batch):
        raise error

    with pytest.raises(type(error)):
        why_not_packed(fail, packed_micro_batch, models["qwen3"].config, 1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.5)])
def test_a_leak_between_sequences_is_found(monkeypatch, dtype, tolerance):
    # Random weights, whose attention says little: the case in which half precision hides most.
    torch.manual_seed(0)
    sizes = SMALL | {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}
    model = AutoModelForCausalLM.from_config(Qwen3Config(vocab_size=5000, head_dim=64, **sizes)).to(dtype).eval()
    model.set_attn_implementation("packed")
    head = LogprobHead(model, 1.0, 5000, False)
    arguments = (lambda batch: score(head, batch)[0], packed_micro_batch, model.config, tolerance)
    assert why_not_packed(*arguments) is None
    attend = Padded.attend

    def leaking(self, q, k, v, scale):
        return attend(Padded([Segment(0, len(q))], "cpu"), q, k, v, scale)

    monkeypatch.setattr(Padded, "attend", leaking)
    assert "with the tokens of another sequence" in why_not_packed(*arguments[:3], 0.5)
    assert "nats" in why_not_packed(*arguments)


def test_logits_in_chunks_are_the_same(monkeypatch):
    model = tiny.model(hidden=32, layers=2)
    batch = packed_micro_batch([rollout([4, 5, 6], [7, 8, 9, 1]), rollout([4, 5], [1, 1, 1])], [0, 1])
    whole = score(LogprobHead(model, 1.0, len(TOK), True), batch, top_k=3)
    sum(part.sum() for part in whole).backward()
    gradient = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    monkeypatch.setattr("minirl.policy.logprobs.LOGITS_CHUNK", {"cpu": 3 * model.config.vocab_size})
    chunked = score(LogprobHead(model, 1.0, len(TOK), True), batch, top_k=3)
    sum(part.sum() for part in chunked).backward()
    assert [part.shape for part in whole] == [(7,), (7,), (7, 3)]
    for a, b in zip(whole, chunked, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    for a, p in zip(gradient, model.parameters(), strict=True):
        assert torch.allclose(a, p.grad, atol=1e-6)


@given(st.integers(1, 400), st.integers(1, 50))
def test_chunks_are_nearly_equal_so_that_none_is_a_single_row(tokens, rows):
    head = LogprobHead(Table(torch.zeros(10, 10)), 1.0, 10, False).output
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minirl.policy.logprobs.LOGITS_CHUNK", {"cpu": 10 * rows})
        sizes = [len(part) for part in torch.zeros(tokens).tensor_split(head.chunks(tokens, "cpu"))]
    assert sum(sizes) == tokens
    assert max(sizes) <= rows
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) > 1 or rows == 1 or tokens == 1 or max(sizes) == 2


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("tokens", [100, 800])
def test_no_tensor_is_as_large_as_tokens_times_vocabulary(monkeypatch, tokens):
    torch.manual_seed(0)
    table = Table(torch.zeros(1000, 1000))
    table.table, table.head = torch.nn.Parameter(torch.randn(1000, 8)), torch.nn.Linear(8, 1000, bias=False)
    monkeypatch.setattr("minirl.policy.logprobs.LOGITS_CHUNK", {"cpu": 50 * 1000})
    batch = packed_micro_batch([rollout([1], [5] * tokens)], [0])
    with Largest() as largest:
        logprobs, entropy = score(LogprobHead(table, 1.0, 1000, True), batch)
        (logprobs + entropy).sum().backward()
    assert largest.elements == 50 * 1000, "a chunk, forward and backward"
