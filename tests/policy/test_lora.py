"""Adapters: what is trained, what the engine gets, and what the reference model is."""

import importlib.util
import json
import shutil
from functools import partial

import numpy as np
import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from minirl.config.command_line import load
from minirl.evaluation.models import find_models
from minirl.policy import lora
from minirl.policy.model import load_model
from minirl.policy.policy import Policy
from minirl.rollout.types import Completion, Rollout
from minirl.run import shards
from minirl.run.checkpoint import weights_digest
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError
from minirl.verify.types import Verdict

pytest.importorskip("peft", reason="needs peft")

TOK = tiny.tokenizer()
LORA = ["--model.lora.r=4", "--model.lora.lora_alpha=6", "--optimizer.micro_batch_tokens=40"]


def rollouts():
    rng = np.random.default_rng(3)
    made = []
    for number, (prompt, response) in enumerate([(9, 7), (4, 12), (1, 1), (5, 5)]):
        completion = Completion(rng.integers(0, 22, response, dtype=np.int32), np.zeros(response, np.float32), "stop")
        made.append(Rollout(number, "", "", rng.integers(0, 22, prompt).tolist(), completion, 0, "", Verdict("wrong"), 0.0))
    return made


def policy(*options):
    return Policy(load([*LORA, *options]), Ranks(), len(TOK))


def step(made, lr=1e-2):
    for micro in made.gradient_steps(rollouts()):
        made.accumulate(-made.logprobs(micro)[0].sum())
    return made.step(lr)


def whole(made):
    return {name: tensor.clone() for bucket in made.weights() for name, tensor in bucket}


def old_and_reference(made):
    batch = rollouts()
    made.compute_logprobs(batch, old=True)
    return [np.concatenate([getattr(r, name) for r in batch]) for name in ("old_logprobs", "ref_logprobs")]


@pytest.fixture
def trained():
    made = policy("--algorithm.kl_coef=0.1")
    for _ in range(3):
        step(made)
    return made


def test_gradients_are_in_the_adapters_only_and_the_base_stays_what_it_was():
    made, plain = policy(), Policy(load([]), Ranks(), len(TOK))
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    step(made)
    for micro in made.gradient_steps(rollouts()):
        made.accumulate(-made.logprobs(micro)[0].sum())
    kinds = {name.split(".lora_")[1][0] if ".lora_" in name else "": [] for name in before}
    for name, p in made.model.named_parameters():
        kind = name.split(".lora_")[1][0] if ".lora_" in name else ""
        kinds[kind].append(name)
        assert p.requires_grad == bool(kind)
        assert (p.grad is not None and bool(p.grad.any())) == bool(kind), name
        assert torch.equal(before[name], p) == (not kind), name
    # every linear layer but the output layer: 7 in each of the model's layers
    assert len(kinds["A"]) == len(kinds["B"]) == 7 * made.model.config.num_hidden_layers
    held = {id(p) for group in made.optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for name, p in made.model.named_parameters() if ".lora_" in name}
    base = {name: w.base for name, w in lora.weights_of(made.model)}
    assert all(torch.equal(base[name], p) for name, p in plain.model.named_parameters())


def test_the_start_is_the_base_model_to_the_bit_under_its_own_names():
    made, plain = policy(), Policy(load([]), Ranks(), len(TOK))
    assert "lm_head.weight" not in dict(plain.model.named_parameters()), "it is tied"
    assert list(whole(made)) == list(whole(plain))
    assert weights_digest(made) == weights_digest(plain)
    for a, b in zip(rollouts(), rollouts(), strict=True):
        made.compute_logprobs([a], old=True)
        plain.compute_logprobs([b], old=True)
        assert np.array_equal(a.old_logprobs, b.old_logprobs)


def test_a_negative_zero_of_the_base_stays_one():
    made = policy()
    weight = next(w for _, w in lora.weights_of(made.model) if w.adapter)
    weight.base.data[0, 0] = -0.0
    assert torch.signbit(weight.merged()[0, 0])


def test_merged_weights_compute_what_the_adapters_compute(trained):
    plain = Policy(load(["--optimizer.micro_batch_tokens=40"]), Ranks(), len(TOK))
    start = whole(plain)
    moved = {name for name, tensor in whole(trained).items() if not torch.equal(tensor, start[name])}
    assert moved == {name for name, w in lora.weights_of(trained.model) if w.adapter}
    # by the definition, W + (lora_alpha / r) B A, in float64
    q = trained.model.model.layers[0].self_attn.q_proj
    delta = q.lora_B["default"].weight.double() @ q.lora_A["default"].weight.double() * (6 / 4)
    assert torch.allclose(whole(trained)["model.layers.0.self_attn.q_proj.weight"], (q.weight + delta).float(), atol=1e-6)
    for name, p in plain.model.named_parameters():
        p.data.copy_(whole(trained)[name])
    adapted, merged = old_and_reference(trained)[0], rollouts()
    plain.compute_logprobs(merged, old=True)
    assert adapted == pytest.approx(np.concatenate([r.old_logprobs for r in merged]), abs=2e-5)


def test_layers_with_a_bias_keep_it_and_its_name(tmp_path):
    torch.manual_seed(0)
    config = Qwen2Config(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                         intermediate_size=32, vocab_size=len(TOK), tie_word_embeddings=False)  # fmt: skip
    model = Qwen2ForCausalLM(config)
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p)
    model.save_pretrained(tmp_path)
    made, plain = policy(f"--model.path={tmp_path}"), dict(model.named_parameters())
    for _ in range(2):
        step(made)
    assert list(whole(made)) == list(plain)
    changed = {name for name, tensor in whole(made).items() if not torch.equal(tensor, plain[name])}
    assert changed == {name for name in plain if name.endswith("_proj.weight")}
    assert "model.layers.0.self_attn.q_proj.bias" in plain
    model.load_state_dict(whole(made))
    ids = torch.tensor([[4, 5, 6, 7]])
    made.model.eval()
    assert torch.allclose(model.eval()(ids).logits, made.model(ids).logits, atol=1e-4)


def test_the_reference_is_the_base_model_exactly_without_a_copy(trained):
    plain = Policy(load(["--algorithm.kl_coef=0.1", "--optimizer.micro_batch_tokens=40"]), Ranks(), len(TOK))
    memory = sum(p.numel() for p in trained.head.parameters())
    assert not isinstance(trained.reference, torch.nn.Module)
    adapted, reference = old_and_reference(trained)
    assert np.array_equal(reference, old_and_reference(plain)[1])
    assert abs(adapted - reference).max() > 0.1
    assert sum(p.numel() for p in trained.head.parameters()) == memory
    # the adapters are on again, and are trained as before
    assert np.array_equal(old_and_reference(trained)[0], adapted)
    other = policy("--algorithm.kl_coef=0.1")
    for _ in range(3):
        step(other)
    assert step(trained) == step(other)


def test_the_adapters_depend_on_the_seed_and_leave_other_random_numbers_alone():
    def first(seed):
        weight = next(w for _, w in lora.weights_of(policy(f"--run.seed={seed}").model) if w.adapter)
        return weight.adapter[0].detach()

    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = first(0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert torch.equal(one, first(0))
    assert not torch.equal(one, first(1))


def names(*targets):
    model = load_model(load([]).model)
    return lora.targets(model, load(["--model.lora.r=2", f"--model.lora.target_modules=[{', '.join(targets)}]"]).model.lora)


def test_targets_are_names_or_ends_of_names():
    everything = names("all-linear")
    assert "lm_head" not in everything
    assert names("v_proj", "q_proj") == [n for n in everything if n.endswith(("q_proj", "v_proj"))], "in the model's order"
    assert names("layers.0.self_attn.q_proj") == ["model.layers.0.self_attn.q_proj"]
    assert len(names("mlp.up_proj")) == len(names("up_proj"))


@pytest.mark.parametrize(
    "target", ["query", "lm_head", "embed_tokens", "proj", "norm", "self_attn", "q_proj.weight", "'all-linear', q_proj", "''"]
)
def test_a_target_that_no_layer_has_is_named_with_those_that_there_are(target):
    missing = target.split(",")[0].strip("'")
    with pytest.raises(ConfigError, match=rf"target_modules has '{missing}', .*known are q_proj, k_proj, v_proj, o_proj, gate"):
        names(target)


def test_bfloat16_freezes_the_base_in_it_and_trains_adapters_in_float32():
    made = policy("--model.dtype=bfloat16")
    step(made)
    dtypes = {(".lora_" in name, p.dtype) for name, p in made.model.named_parameters()}
    assert dtypes == {(False, torch.bfloat16), (True, torch.float32)}
    for (_, a), (_, b) in zip(lora.weights_of(policy().model), lora.weights_of(made.model), strict=True):
        assert torch.equal(a.base.bfloat16(), b.base)
    for (_, a), (_, b) in zip(
        lora.weights_of(policy().model), lora.weights_of(policy("--model.dtype=bfloat16").model), strict=True
    ):
        assert all(torch.equal(x, y) for x, y in zip(a.adapter, b.adapter, strict=True)), "the same start in both precisions"
    name, weight = next((n, w) for n, w in lora.weights_of(made.model) if w.adapter)
    a, b = weight.adapter
    once = (weight.base.double() + b.double() @ a.double() * 1.5).float().bfloat16()
    assert torch.allclose(whole(made)[name].float(), once.float(), rtol=2**-8, atol=0), "rounded once"
    assert weights_digest(policy("--model.dtype=bfloat16")) == weights_digest(Policy(load([]), Ranks(), len(TOK)))


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
)
def test_norms_of_a_base_in_bfloat16_stay_in_it_under_autocast(device):
    norm = load_model(load([*LORA, "--model.dtype=bfloat16"]).model).model.norm.to(device)
    with torch.autocast(device, torch.bfloat16):
        assert norm(torch.ones(1, 64, dtype=torch.bfloat16, device=device)).dtype == torch.bfloat16


@pytest.mark.parametrize("options", [["--model.gradient_checkpointing=true"], ["--model.attention=sdpa"],
                                     ["--optimizer.micro_batch_tokens=10000"]])  # fmt: skip
def test_packing_recomputation_and_the_size_of_micro_batches_change_nothing(options):
    made, other = policy(), policy(*options)
    assert made.packs
    assert [step(made) for _ in range(2)] == pytest.approx([step(other) for _ in range(2)], rel=1e-4)


@pytest.mark.slow
def test_compiled_layers_compute_the_same(monkeypatch, tmp_path):
    # dynamo captures; what inductor makes of it takes minutes. One layer and one micro-batch: each more is compiled again
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    tiny.model(hidden=32, layers=1).save_pretrained(tmp_path)
    TOK.save_pretrained(tmp_path)
    options = [f"--model.path={tmp_path}", "--algorithm.kl_coef=0.1", "--optimizer.micro_batch_tokens=400"]
    torch._dynamo.utils.counters.clear()
    made, compiled = policy(*options), policy(*options, "--model.compile_layers=true")
    for _ in range(2):
        with compiled.computing():
            assert step(made) == pytest.approx(step(compiled), rel=1e-4)
            for a, b in zip(old_and_reference(made), old_and_reference(compiled), strict=True):
                assert a == pytest.approx(b, abs=1e-3)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "or nothing was compiled"


def test_the_export_is_an_ordinary_folder(trained, tmp_path):
    trained.export(tmp_path / "model", TOK)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(info.values()), info
    assert not any(path.name.startswith("adapter") for path in (tmp_path / "model").iterdir())
    ids = torch.tensor([[4, 5, 6, 7]])
    trained.model.eval()
    assert torch.allclose(loaded(ids).logits, trained.model(ids).logits, atol=1e-4)
    find_models([str(tmp_path / "model")], "float32", None)


def packed(made):
    return b"".join(shards.serialised(shards.pack(made, copy=True)))


def test_a_checkpoint_has_the_adapters_alone_and_resumes_to_the_bit(trained, tmp_path):
    (tmp_path / "one").write_bytes(packed(trained))
    found = safetensors.torch.load_file(tmp_path / "one")
    assert all(".lora_A." in name or ".lora_B." in name for name in found)
    adapters = sum(p.numel() for p in trained.model.parameters() if p.requires_grad)
    assert len(packed(trained)) == pytest.approx(12 * adapters, rel=0.5), "weights and two moments, and names"
    resumed = policy("--algorithm.kl_coef=0.1")
    shards.unpack(resumed, [tmp_path / "one"])
    assert packed(resumed) == packed(trained)
    assert step(resumed) == step(trained)
    assert packed(resumed) == packed(trained)


@pytest.mark.parametrize(
    "other",
    [
        ["--model.lora.r=8"],
        ["--model.lora.r=2"],
        ["--model.lora.r=0", "--model.lora.lora_alpha=32"],
        ["--model.lora.target_modules=[q_proj]"],
    ],
)
def test_shards_of_other_adapters_or_of_all_weights_are_refused_both_ways(trained, tmp_path, other):
    made = policy(*other)
    for name, source, into in (("one", trained, made), ("two", made, trained)):
        (tmp_path / name).write_bytes(packed(source))
        with pytest.raises(ConfigError, match=r"of another model, or of other adapters \(model\.lora\)"):
            shards.unpack(into, [tmp_path / name])


def test_a_missing_package_is_a_sentence(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "peft" else found(name, *a))
    with pytest.raises(ConfigError, match=r"model\.lora\.r=4 needs peft, which is not installed: pip install 'peft>="):
        policy()


def test_an_adapter_that_was_not_merged_is_no_model(tmp_path):
    import peft

    model = AutoModelForCausalLM.from_pretrained(shutil.copytree(tiny.FOLDERS["embedded"], tmp_path / "base"))
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ConfigError, match="is an adapter: merge it into its base model first"):
        load_model(load([f"--model.path={tmp_path / 'adapter'}"]).model)
    shutil.copytree(tmp_path / "adapter", tmp_path / "base", dirs_exist_ok=True)
    assert json.loads((tmp_path / "base" / "adapter_config.json").read_text())["r"] == 8
    with pytest.raises(ConfigError, match="is an adapter"):
        load_model(load([f"--model.path={tmp_path / 'base'}"]).model)
