"""The output of `train.py --dry-run`: sizes, steps and memory of a run, as far as they can be known without the Hub."""

from typing import Any

from transformers import LlamaConfig, Qwen3Config

from minirl.policy.model import model_config
from minirl.policy.plan import measure, report, run_plan
from minirl.run.inputs import Inputs
from minirl.run.lifecycle import encode
from minirl.utils.errors import HubError


def qwen3(hidden: int, layers: int, heads: int, mlp: int, tied: bool) -> Qwen3Config:
    """The config of a dense Qwen3 (arXiv 2505.09388, table 1): 8 heads of keys, heads of 128."""
    return Qwen3Config(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=8, head_dim=128,
        intermediate_size=mlp, vocab_size=151_936, tie_word_embeddings=tied,
    )  # fmt: skip


def known_shape(path: str) -> Any:
    """The transformers config of a Hub model that a preset names, without its weights or tokenizer; None for another one."""
    if path.startswith("HuggingFaceTB/SmolLM2-135M"):
        return LlamaConfig(
            hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536,
            vocab_size=49_152, tie_word_embeddings=True,
        )  # fmt: skip
    shapes = {
        "Qwen/Qwen3-0.6B": (1024, 28, 16, 3072, True),
        "Qwen/Qwen3-1.7B": (2048, 28, 16, 6144, True),
        "Qwen/Qwen3-4B": (2560, 36, 32, 9728, True),
        "Qwen/Qwen3-8B": (4096, 36, 32, 12_288, False),
        "Qwen/Qwen3-14B": (5120, 40, 40, 17_408, False),
    }
    shape = shapes.get(path.removesuffix("-Base"))
    return qwen3(*shape) if shape else None


def plan_lines(inputs: Inputs) -> list[str]:
    """Notes, sizes, steps and memory of a run. What the Hub would have to give and cannot is named, with the remedy."""
    config, path = inputs.config, inputs.config.model.path
    sizes, shape, missing = (len(inputs.train), len(inputs.test)), None, ""
    try:
        shape = model_config(config.model)
        if inputs.train:
            encoded = encode(inputs)
            sizes = len(encoded.prompts), len(encoded.test)
    except HubError as error:
        shape = shape or known_shape(path)
        known = "the memory plan is of its published shape" if shape else "there is no memory plan"
        missing = (
            f"not looked up: {error}. So prompts are not measured, and {known}: copy the Hub's cache (HF_HOME) from a machine "
            "that reaches it, or name a folder with its config.json and tokenizer by --model.path=FOLDER"
        )
    plan = report(config, measure(shape, config.model.lora)) if shape else []
    return [*inputs.notes, *([missing] if missing else []), *run_plan(config, *sizes, config.plan.gpus), *plan]
