"""A model folder that is not whole, not of one piece, or brings code of its own is refused before anything is trained."""

import json
import shutil

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from minirl.config.options import DataConfig, ModelConfig
from minirl.data.prompts import encode_prompts
from minirl.policy.model import check_ids, load, load_model, load_tokenizer, model_config
from minirl.tiny import make as tiny
from minirl.utils.errors import ConfigError
from minirl.verify.types import Problem


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(tiny.FOLDERS["embedded"], tmp_path / "model")


def change(folder, name_of):
    """Writes the weights again under the names that `name_of` gives them; None leaves one out."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    named = {new: tensor for name, tensor in tensors.items() if (new := name_of(name))}
    safetensors.torch.save_file(named, folder / "model.safetensors", {"format": "pt"})
    return len(tensors) - len({*tensors} & {*named})


@pytest.mark.parametrize(
    "name_of",
    [
        lambda name: None if "layers.1.mlp.up" in name else name,
        lambda name: None if name == "model.norm.weight" else name,
        lambda name: name.replace(".q_proj.", ".q_proj.base_layer."),
    ],
)
def test_missing_weights_are_counted_and_the_first_is_named(folder, name_of):
    count = change(folder, name_of)
    with pytest.raises(ConfigError, match=rf"lacks {count} of the model's weights, first (model|lm_head)\.[\w.]+:"):
        load_model(ModelConfig(str(folder)))
    with pytest.raises(ConfigError, match=f"lacks {count} of"):  # as an evaluation loads it
        load(AutoModelForCausalLM, ModelConfig(str(folder)), dtype=torch.bfloat16)


def test_a_whole_model_with_a_tied_head_lacks_nothing_and_further_tensors_do_no_harm(folder):
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in tensors
    safetensors.torch.save_file(tensors | {"extra.weight": torch.ones(1)}, folder / "model.safetensors", {"format": "pt"})
    loaded = load_model(ModelConfig(str(folder))).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_weights_of_another_size_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
    with pytest.raises(ConfigError, match="cannot load model"):
        load_model(ModelConfig(str(folder)))


def test_a_token_without_embedding_is_refused_where_a_prompt_has_it(folder):
    config = ModelConfig(str(folder))
    tokenizer = tiny.tokenizer()
    rows = len(tokenizer)
    tokenizer.add_tokens(["%"])
    tokenizer.save_pretrained(folder)
    tokenizer = load_tokenizer(config)

    def prompts(text):
        return encode_prompts([Problem("q7", text, "")], tokenizer, DataConfig(), [], "training")

    check_ids(config, prompts("1*2="))
    with pytest.raises(ConfigError, match=rf"token {rows} of problem q7, but the model has embeddings for {rows} tokens"):
        check_ids(config, prompts("1%2="))


def test_code_of_a_model_folder_runs_only_when_it_is_trusted(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (folder / "config.json").write_text(json.dumps(config))
    marker = tmp_path / "ran"
    code = f"import pathlib\nfrom transformers import Qwen3Config\npathlib.Path({str(marker)!r}).touch()\n"
    (folder / "mine.py").write_text(f"{code}class Mine(Qwen3Config):\n    model_type = 'mine'\n")
    with pytest.raises(ConfigError, match=r"set model\.trust_remote_code=true"):
        load_model(ModelConfig(str(folder)))
    assert not marker.exists()
    assert model_config(ModelConfig(str(folder), trust_remote_code=True)).hidden_size == config["hidden_size"]
    assert marker.exists()
