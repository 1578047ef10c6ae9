"""The transformers engine: it samples from the distribution it reports, and every response depends on its own seed only."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig

import minirl.policy.attention  # noqa: F401 - registers "packed"
from minirl.rollout.engines import stop_ids
from minirl.rollout.hf import TransformersEngine, draw, truncate, uniforms, uniforms_of
from minirl.rollout.types import LENGTH, STOP, SamplingParams
from minirl.tiny import make as tiny

TOK = tiny.tokenizer()
EOS = TOK.eos_token_id


@pytest.fixture(scope="module")
def model():
    return tiny.model(hidden=32, layers=2, seed=1).eval()


def engine(model, ends=(EOS,), max_sequences=64):
    return TransformersEngine(model, ends, len(TOK), max_sequences)


def prompts(*texts):
    return [TOK(text)["input_ids"] for text in texts]


def collect(generated, count):
    groups = dict(generated)
    assert sorted(groups) == list(range(count))
    return [groups[i] for i in range(count)]


def test_logprobs_are_those_of_a_plain_forward_pass(model):
    asked = prompts("<user>12*3=<assistant>", "7", "<user>999*9=<assistant>")
    for temperature in (1.0, 0.6):
        groups = collect(engine(model).generate(asked, SamplingParams(5, temperature, 10), [11, 12, 13]), 3)
        for prompt, samples in zip(asked, groups, strict=True):
            for sample in samples:
                ids = torch.tensor([prompt + sample.ids.tolist()])
                logprobs = (model(ids).logits[0] / temperature).log_softmax(-1)
                expected = [logprobs[len(prompt) - 1 + t, token].item() for t, token in enumerate(sample.ids.tolist())]
                assert sample.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_response_depends_on_its_own_seed_only(model):
    asked = prompts("1*2=", "<user>34*5=<assistant>", "9")
    together = collect(engine(model).generate(asked, SamplingParams(4, 1.0, 8), [1, 2, 3]), 3)
    for i in range(3):
        (alone,) = collect(engine(model).generate([asked[i]], SamplingParams(4, 1.0, 8), [[1, 2, 3][i]]), 1)
        assert [s.ids.tolist() for s in alone] == [s.ids.tolist() for s in together[i]]
    in_parts = collect(engine(model, max_sequences=4).generate(asked, SamplingParams(4, 1.0, 8), [1, 2, 3]), 3)
    assert [[s.ids.tolist() for s in g] for g in in_parts] == [[s.ids.tolist() for s in g] for g in together]
    (other,) = collect(engine(model).generate([asked[0]], SamplingParams(4, 1.0, 8), [99]), 1)
    assert [s.ids.tolist() for s in other] != [s.ids.tolist() for s in together[0]]


@pytest.mark.parametrize("room", [1, 3, 256])
def test_the_cache_grows_without_changing_a_response(model, monkeypatch, room):
    # unequal prompts, an attention without and one with a mask of its own, rows that end early: all paths of a step
    asked = prompts("1*2=", "<user>34*5=<assistant>", "9")
    expected = collect(engine(model).generate(asked, SamplingParams(6, 1.0, 10), [1, 2, 3]), 3)
    monkeypatch.setattr("minirl.rollout.hf.ROOM", room)
    model.set_attn_implementation("packed")
    got = collect(engine(model).generate(asked, SamplingParams(6, 1.0, 10), [1, 2, 3]), 3)
    model.set_attn_implementation("sdpa")
    assert len({s.finish for g in got for s in g}) == 2
    for a, b in zip((s for g in expected for s in g), (s for g in got for s in g), strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def test_uniform_numbers_are_philox_s_and_never_repeat():
    fresh = np.random.Generator(np.random.Philox(key=[6, 3])).random(16)
    assert np.array_equal(uniforms([5, 6], 8, 16)[8 + 3], fresh)
    numbers = uniforms([5, 6, 2**63 - 1], 8, 16)
    assert numbers.shape == (24, 16)
    assert all(np.array_equal(uniforms_of(6, 3, first, 3), fresh[first : first + 3]) for first in range(13))
    assert len(np.unique(numbers)) == numbers.size


def test_responses_end_at_any_stop_id_and_keep_it(model):
    ends = [EOS, TOK.convert_tokens_to_ids("5"), TOK.convert_tokens_to_ids("}")]
    (samples,) = collect(engine(model, ends).generate(prompts("1*2="), SamplingParams(64, 1.0, 12), [0]), 1)
    assert {STOP, LENGTH} == {s.finish for s in samples}
    for s in samples:
        assert len(s.ids) == len(s.logprobs) <= 12
        assert not set(s.ids[:-1].tolist()) & set(ends)
        assert (s.finish == STOP) == (s.ids[-1] in ends)
        assert s.finish == STOP or len(s.ids) == 12


def test_greedy_is_what_transformers_generates(model):
    asked = prompts("<user>12*3=<assistant>", "7*8=")
    groups = collect(engine(model).generate(asked, SamplingParams(1, 0.0, 9), [0, 0]), 2)
    for prompt, (sample,) in zip(asked, groups, strict=True):
        ours = GenerationConfig(do_sample=False, max_new_tokens=9, eos_token_id=EOS, pad_token_id=0)
        theirs = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), generation_config=ours)
        assert sample.ids.tolist() == theirs[0, len(prompt) :].tolist()


def test_sampled_pairs_have_the_model_s_probabilities(model):
    # Exact probabilities of all two-token responses, against the frequencies of 4,096 samples.
    (prompt,) = prompts("3*4=")
    (samples,) = collect(engine(model, max_sequences=4096).generate([prompt], SamplingParams(4096, 1.0, 2), [7]), 1)
    counts: dict[tuple, int] = {}
    for s in samples:
        counts[tuple(s.ids.tolist())] = counts.get(tuple(s.ids.tolist()), 0) + 1
    with torch.no_grad():
        first = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        second = torch.stack([model(torch.tensor([[*prompt, i]])).logits[0, -1].softmax(-1) for i in range(len(TOK))])
    total = 0.0
    for i, j in product(range(len(TOK)), repeat=2):
        if i == EOS:
            continue
        p = (first[i] * second[i, j]).item()
        total += (counts.get((i, j), 0) - 4096 * p) ** 2 / (4096 * p)
    p = first[EOS].item()
    total += (counts.get((EOS,), 0) - 4096 * p) ** 2 / (4096 * p)
    cells = (len(TOK) - 1) * len(TOK) + 1
    # chi-square with `cells - 1` degrees: mean cells - 1, standard deviation sqrt(2 (cells - 1))
    assert abs(total - cells) < 5 * (2 * cells) ** 0.5


@settings(max_examples=50)
@given(st.integers(1, 9), st.floats(0.05, 1.0), st.integers(0, 10**6))
def test_truncation_keeps_the_likeliest_and_renormalises(top_k, top_p, seed):
    torch.manual_seed(seed)
    probabilities = torch.randn(3, 9, dtype=torch.float64).softmax(-1)
    out = truncate(probabilities.log(), top_k, top_p).exp()
    for row, new in zip(probabilities.tolist(), out.tolist(), strict=True):
        order = sorted(range(9), key=lambda i: -row[i])[:top_k]
        total, kept = sum(row[i] for i in order), []
        for i in order:
            if kept and sum(row[j] for j in kept) / total >= top_p:
                break
            kept.append(i)
        expected = [row[i] / sum(row[j] for j in kept) if i in kept else 0.0 for i in range(9)]
        assert new == pytest.approx(expected, abs=1e-9)


def test_draw_by_hand():
    logits = torch.tensor([[0.2, 0.5, 0.3]]).log().repeat(4, 1)
    token, logprob = draw(logits, torch.tensor([0.0, 0.19, 0.21, 0.999999]), SamplingParams(1, 1.0, 1))
    assert token.tolist() == [0, 0, 1, 2]
    assert logprob.exp().tolist() == pytest.approx([0.2, 0.2, 0.5, 0.3])
    token, logprob = draw(logits, torch.tensor([0.0, 0.4, 0.7, 0.999999]), SamplingParams(1, 1.0, 1, top_k=2))
    assert token.tolist() == [1, 1, 2, 2], "of 0.5 and 0.3 the first takes the first five eighths"
    assert logprob.exp().tolist() == pytest.approx([5 / 8, 5 / 8, 3 / 8, 3 / 8])


def forced(model, lengths, max_sequences=64):
    """An engine whose row i of all that it samples ends after lengths[i] tokens, and its count of forward passes."""
    made, left, passes = engine(model, ends=(), max_sequences=max_sequences), list(lengths), []
    made.stop_ids = torch.tensor([], dtype=torch.long)
    made.limits = lambda rows, params: torch.tensor([left.pop(0) for _ in range(rows)])
    forward = made._forward
    made._forward = lambda *arguments: passes.append(1) or forward(*arguments)
    return made, passes


def ids(groups):
    return {i: [s.ids.tolist() for s in samples] for i, samples in groups}


def test_the_groups_that_finish_first_come_whole_and_the_rest_is_not_decoded(model):
    asked, seeds, params = prompts("7", "12", "<user>9", "123*4"), [1, 2, 3, 4], SamplingParams(2, 1.0, 9)
    lengths = [2, 9, 3, 4, 5, 5, 1, 4]  # of the groups' longest: 9, 4, 5, 4
    made, passes = forced(model, lengths)
    whole = ids(made.generate(asked, params, seeds))
    assert len(passes) == 9, "the prompts' pass gives the first token"
    assert [[len(x) for x in whole[i]] for i in range(4)] == [[2, 9], [3, 4], [5, 5], [1, 4]]
    for keep, expected, steps in ((0, [], 0), (1, [1], 4), (2, [1, 3], 4), (3, [1, 3, 2], 5), (4, [1, 3, 2, 0], 9)):
        made, passes = forced(model, lengths)
        some = ids(made.generate(asked, params, seeds, keep))
        assert list(some) == expected, "equals in the order asked, however long their prompts"
        assert some == {i: whole[i] for i in expected}
        assert len(passes) == steps


def test_each_batch_aborts_its_own_share(model):
    asked, lengths = prompts("7", "7", "7", "7"), [9, 4, 5, 4]  # two batches of two
    for keep, expected in ((1, [3]), (2, [1, 3]), (3, [1, 3, 2]), (4, [1, 0, 3, 2])):
        made, _ = forced(model, lengths if keep > 1 else lengths[2:], max_sequences=2)
        assert list(ids(made.generate(asked, SamplingParams(1, 1.0, 9), [1, 2, 3, 4], keep))) == expected


def test_ids_beyond_the_tokenizer_are_never_sampled(model):
    short = TransformersEngine(model, [EOS], 6, 64)
    (samples,) = collect(short.generate(prompts("1"), SamplingParams(64, 1.0, 8), [0]), 1)
    assert max(s.ids.max() for s in samples) < 6


def test_stop_ids_come_from_tokenizer_model_and_texts():
    five = TOK.convert_tokens_to_ids("5")
    assert stop_ids(TOK, GenerationConfig(eos_token_id=[EOS, 9]), []) == sorted({EOS, 9})
    assert stop_ids(TOK, None, []) == [EOS]
    base = tiny.tokenizer()  # as of a base model: its template closes a turn with another token than the one that ends a text
    base.eos_token = "<pad>"
    base.chat_template = (
        "{% for m in messages %}{{ '<user>' if m['role'] == 'user' else '<assistant>' }}{{ m['content'] }}<eos>{% endfor %}"
    )
    assert set(stop_ids(base, None, [])) == {EOS, base.eos_token_id}
    assert set(stop_ids(TOK, GenerationConfig(eos_token_id=EOS), ["5"])) == {EOS, five}
    boxed = TOK.convert_tokens_to_ids("\\boxed{")
    assert set(stop_ids(TOK, None, ["x"])) == {EOS, boxed}, "any token that contains the text"


def test_passes_of_small_products_take_one_thread_and_give_the_threads_back(model, monkeypatch):
    # vLLM's CPU worker puts a function that does nothing in its place, for all that comes later in the process.
    monkeypatch.setattr(torch, "set_num_threads", torch._C.set_num_threads)
    before, seen = torch.get_num_threads(), []
    engine = TransformersEngine(model, [], len(tiny.tokenizer()), 8)
    forward = engine._forward
    monkeypatch.setattr(engine, "_forward", lambda *given: seen.append(torch.get_num_threads()) or forward(*given))
    torch.set_num_threads(2)
    try:
        for size, threads in ((2**40, 1), (1, 2)):
            monkeypatch.setattr("minirl.rollout.hf.SMALL_PASS", size)
            list(engine.generate([[5, 6]], SamplingParams(2, 1.0, 3), [1]))
            assert set(seen) == {threads}
            assert torch.get_num_threads() == 2
            seen.clear()
    finally:
        torch.set_num_threads(before)
