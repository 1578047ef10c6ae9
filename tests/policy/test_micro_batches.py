"""A micro-batch carries its tensors: made once, before the first forward pass, and all that the loss reads among them."""

import numpy as np
import pytest
import torch

from minirl.config.command_line import load
from minirl.policy.attention import Segment
from minirl.policy.micro_batches import packed_micro_batch, padded_micro_batch
from minirl.policy.policy import Policy
from minirl.policy.varlen import Varlen
from minirl.rollout.types import Completion, Rollout
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.verify.types import Verdict

TOK = tiny.tokenizer()


def rollout(prompt, response, version=0, **more):
    completion = Completion(np.array(response, np.int32), np.full(len(response), -1.0, np.float32), "stop")
    return Rollout(0, "", "", list(prompt), completion, version, "", Verdict("wrong"), 0.0, **more)


@pytest.fixture
def events(monkeypatch):
    """ "tensor" for each tensor made from numbers; the tests add "forward" for each forward pass."""
    made = []
    for name in ("from_numpy", "tensor", "as_tensor"):
        own = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, own=own, **more: made.append("tensor") or own(*a, **more))
    return made


@pytest.mark.parametrize("attention", ["packed", "sdpa"])
def test_no_tensor_is_made_between_forward_passes(events, attention):
    policy = Policy(load([f"--model.attention={attention}", "--optimizer.micro_batch_tokens=20"]), Ranks(), len(TOK))
    policy.head.register_forward_pre_hook(lambda *_: events.append("forward"))
    rollouts = [rollout([4, 5, number], [6] * 9, advantages=np.float64(1.0)) for number in range(5)]
    events.clear()
    policy.compute_logprobs(rollouts, old=True)
    assert events.count("forward") == 5
    assert "tensor" not in events[events.index("forward") :]
    events.clear()
    for micro in policy.gradient_steps(rollouts, [0.1] * 5):
        logprobs, _ = policy.logprobs(micro)
        policy.accumulate((micro.token_weights * micro.advantages * (logprobs - micro.old_logprobs)).sum())
    assert events.count("forward") == 5
    assert "tensor" not in events[events.index("forward") :]


@pytest.mark.parametrize("make", [packed_micro_batch, padded_micro_batch])
def test_all_that_the_loss_reads_by_hand(make):
    first = rollout([1, 2], [3, 4], version=7, advantages=np.array([1.0, 2.0]), old_logprobs=np.array([-3, -4], np.float32))
    second = rollout([5], [6, 7, 8], version=8, advantages=np.float64(-1), old_logprobs=np.array([-5, -6, -7], np.float32))
    micro = make([rollout([9], [9]), second, first], [2, 1])
    micro.add_loss_inputs([9.0, 0.25, 0.5])
    assert micro.token_weights.tolist() == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert micro.advantages.tolist() == [1, 2, -1, -1, -1]
    assert micro.rollout_logprobs.tolist() == [-1] * 5
    assert micro.versions.tolist() == [7, 7, 8, 8, 8]
    assert micro.old_logprobs.tolist() == [-3, -4, -5, -6, -7]
    assert micro.ref_logprobs is None
    tensors = [getattr(micro, name) for name in ("token_weights", "advantages", "rollout_logprobs", "versions", "old_logprobs")]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


@pytest.mark.parametrize("make", [packed_micro_batch, padded_micro_batch])
def test_a_micro_batch_of_nothing_weighs_nothing(make):
    micro = make([rollout([4], [5])], [])
    micro.add_loss_inputs([1.0])
    assert (micro.indices, micro.rollouts, micro.split(torch.ones(1))) == ([], [], [])
    assert micro.targets.tolist() == micro.token_weights.tolist() == micro.advantages.tolist() == [0]
    assert micro.old_logprobs is None


def test_prompt_and_response_of_a_padded_row_meet_where_they_should():
    # [1 2 3 | 4 5] and [6 | 7]: 4 is predicted at 3, 5 at 4, 7 at 6, which is the first of the second row of five
    micro = padded_micro_batch([rollout([1, 2, 3], [4, 5]), rollout([6], [7])], [0, 1])
    assert micro.inputs["input_ids"].tolist() == [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]
    assert micro.logit_index.tolist() == [2, 3, 5]
    assert micro.targets.tolist() == [4, 5, 7]


def test_the_varlen_layout_by_hand():
    # a prompt of two tokens, shared by responses of one and of three
    layout = Varlen([Segment(0, 2), Segment(2, 1, 0, 2), Segment(3, 3, 0, 2)], "cpu")
    assert layout.ends_q.tolist() == [0, 2, 3, 6]
    assert layout.ends_k.tolist() == [0, 2, 5, 10]
    assert layout.keys.tolist() == [0, 1, 0, 1, 2, 0, 1, 3, 4, 5]
    assert (layout.longest_q, layout.longest_k) == (3, 5)
    assert {layout.ends_q.dtype, layout.ends_k.dtype} == {torch.int32}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_every_tensor_is_there():
    micro = packed_micro_batch([rollout([1, 2], [3, 4], advantages=np.float64(1))], [0], "cuda", Varlen)
    micro.add_loss_inputs([1.0])
    inputs = (
        micro.inputs["input_ids"],
        micro.inputs["position_ids"],
        micro.inputs["layout"].ends_q,
        micro.inputs["layout"].ends_k,
    )
    assert all(tensor.is_cuda for tensor in (*inputs, micro.logit_index, micro.targets, micro.token_weights, micro.versions))
    assert micro.targets.tolist() == [3, 4]
