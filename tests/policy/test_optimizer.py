"""AdamW with moments in 8 bits: near AdamW, exact across a checkpoint, refused where it cannot work."""

import importlib.util
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

from minirl.config.command_line import load
from minirl.config.options import OptimizerConfig
from minirl.policy.optimizer import build_optimizer, moments, scales
from minirl.policy.policy import Policy
from minirl.run import shards
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError
from tests.policy.test_lora import packed, step

needs_bitsandbytes = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
TOK = tiny.tokenizer()
EIGHT = ["--optimizer.name=adamw_8bit", "--optimizer.micro_batch_tokens=40"]


def policy(*options):
    return Policy(load([*EIGHT, *options]), Ranks(), len(TOK))


@needs_bitsandbytes
def test_it_follows_adamw():
    torch.manual_seed(0)
    start, goal = torch.randn(64, 128), torch.randn(64, 128)

    def distance(name):
        p = torch.nn.Parameter(start.clone())
        optimizer = build_optimizer([p], OptimizerConfig(name=name, lr=0.02, weight_decay=0.0))
        for _ in range(60):
            (p - goal).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        state = optimizer.state[p]
        assert {m.dtype for m in moments(state).values()} == {torch.uint8 if name == "adamw_8bit" else torch.float32}
        assert [scale.numel() for scale in scales(state).values()] == ([32, 32] if name == "adamw_8bit" else [])
        return float((p.detach() - goal).square().mean())

    assert distance("adamw_8bit") == pytest.approx(distance("adamw"), rel=0.1)
    assert distance("adamw_8bit") < 0.5 * float((start - goal).square().mean())


@needs_bitsandbytes
@pytest.mark.parametrize("options", [[], ["--model.lora.r=48"]])
def test_a_checkpoint_has_the_codes_and_resumes_to_the_bit(tmp_path, options):
    made = policy(*options)
    for _ in range(3):
        step(made, 1e-3)
    (tmp_path / "one").write_bytes(packed(made))
    read = safetensors.torch.load_file(tmp_path / "one")
    codes = {name for name, tensor in read.items() if tensor.dtype == torch.uint8}
    assert codes
    assert {name.partition(":")[0] for name in codes} == {"exp_avg", "exp_avg_sq"}
    assert any(name.startswith("exp_avg:") and name not in codes for name in read), "small tensors stay float32"
    resumed = policy(*options)
    shards.unpack(resumed, [tmp_path / "one"])
    assert packed(resumed) == packed(made)
    assert step(resumed, 1e-3) == step(made, 1e-3)
    assert packed(resumed) == packed(made)


@needs_bitsandbytes
def test_any_number_of_ranks_reads_what_any_number_wrote(tmp_path):
    made = policy()
    step(made)
    single = made.ranks
    for rank in range(3):
        made.ranks = SimpleNamespace(rank=rank, size=3, zero=None)
        (tmp_path / str(rank)).write_bytes(packed(made))
    made.ranks = single
    resumed = policy()
    shards.unpack(resumed, sorted(tmp_path.iterdir()))
    assert packed(resumed) == packed(made)


@needs_bitsandbytes
def test_moments_of_the_other_kind_are_refused(tmp_path):
    made, other = policy(), policy("--optimizer.name=adamw")
    for source, into in ((made, other), (other, made)):
        step(source)
        (tmp_path / "one").write_bytes(packed(source))
        with pytest.raises(ConfigError, match=r"another optimizer"):
            shards.unpack(into, [tmp_path / "one"])


def test_deepspeed_is_refused():
    ranks = SimpleNamespace(zero=2, size=1, rank=0, main=True, gpu_gib=None, device=torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"optimizer\.name=adamw_8bit does not work under DeepSpeed"):
        Policy(load(EIGHT), ranks, len(TOK))


def test_a_missing_package_is_a_sentence(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None)
    with pytest.raises(ConfigError, match=r"optimizer\.name=adamw_8bit needs bitsandbytes, which is not installed: pip"):
        build_optimizer([torch.nn.Parameter(torch.zeros(3))], OptimizerConfig(name="adamw_8bit"))
