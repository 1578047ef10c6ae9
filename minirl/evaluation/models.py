"""Checkpoints to evaluate: found and checked before anything is loaded, then put into an engine without an optimizer."""

import gc
import hashlib
import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from minirl.config.command_line import labelled
from minirl.config.options import Config, ModelConfig, RolloutConfig, VllmConfig
from minirl.data.prompts import Prompt, encode_prompts
from minirl.evaluation.benchmarks import Loaded
from minirl.evaluation.checkpoints import model_of, run_and_step
from minirl.policy.model import check_ids, load, load_tokenizer, model_source
from minirl.rollout.engines import build_engine
from minirl.rollout.types import Engine
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError


@dataclass(frozen=True)
class Model:
    """A checkpoint and the name that it has in tables."""

    label: str
    config: ModelConfig

    def description(self) -> dict[str, str]:
        """The path, and a hash of every file that its responses depend on; of a Hub model its commit."""
        folder = Path(model_source(self.config))
        if not folder.is_dir():
            return {"path": self.config.path, "commit": str(load(AutoConfig, self.config)._commit_hash)}
        whole = hashlib.sha256()
        for path in sorted(folder.iterdir()):
            if path.suffix in (".json", ".safetensors", ".bin", ".jinja", ".model", ".txt") and path.is_file():
                with path.open("rb") as file:
                    whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return {"path": self.config.path, "sha256": whole.hexdigest()}


def find_models(texts: Sequence[str], dtype: str, revision: str | None) -> list[Model]:
    """Models of `PATH` or `LABEL=PATH`; PATH is a folder, a run folder of train.py, RUN@STEP, a Hub name or "embedded"."""
    models = []
    for text in texts:
        label, folder = labelled(text)
        if of_run := run_and_step(folder):
            run, step = of_run
            models.append(Model(label or f"{run.resolve().name}@{step}", ModelConfig(str(model_of(run, step)), None, dtype)))
            continue
        if (folder / "model" / "config.json").is_file() and not (folder / "config.json").is_file():
            folder = folder / "model"
        name = folder.name
        if folder.is_dir():
            name = folder.resolve().parent.name if folder.name == "model" else folder.resolve().name
            check_weights(folder)
        models.append(Model(label or name, ModelConfig(str(folder), revision, dtype)))
    labels = [m.label for m in models]
    if repeated := [x for x in labels if labels.count(x) > 1]:
        raise ConfigError(f"two models are called {repeated[0]!r}: name them, as in before=PATH after=PATH")
    return models


def check_weights(folder: Path) -> None:
    """ConfigError when the folder lacks its config or some of its weights. Reads no weights."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is no model folder: it has no config.json")
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / index).is_file():
            try:
                shards = set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values())
            except (ValueError, KeyError) as error:
                raise ConfigError(f"{folder / index} is not an index of weights: {error!r}") from None
            if missing := sorted(s for s in shards if not (folder / s).is_file()):
                raise ConfigError(
                    f"{folder} is incomplete: {len(missing)} of {len(shards)} weight files are missing, first {missing[0]}"
                )
            return
    if not any((folder / name).is_file() for name in ("model.safetensors", "pytorch_model.bin")):
        raise ConfigError(f"{folder} has no weights: neither model.safetensors nor pytorch_model.bin nor an index of shards")


@dataclass(frozen=True)
class Prepared:
    """A model's tokenizer and its prompts, by benchmark and in the order of the problems."""

    tokenizer: Any
    prompts: dict[str, list[Prompt]]

    def first(self) -> dict[str, str]:
        """The first prompt of each benchmark, exactly as the model sees it."""
        return {name: prompts[0].text for name, prompts in self.prompts.items()}


def prompts_of(model: Model, loaded: Sequence[Loaded], notes: list[str]) -> Prepared:
    """Reads no weights. Adds notes for people; ConfigError for a prompt that is empty or does not fit the model's positions."""
    tokenizer = load_tokenizer(model.config)
    limit = getattr(load(AutoConfig, model.config), "max_position_embeddings", None)
    made = {}
    for one in loaded:
        b = one.benchmark
        if b.data.chat and not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"{b.name}: the tokenizer of {model.label} has no chat template (a base model has none): --set chat=false "
                "gives it the bare prompt, and --set template='...{problem}...' adds the instructions"
            )
        prompts = encode_prompts(one.problems, tokenizer, b.data, notes, b.name)
        if len(prompts) != len(one.problems):
            raise ConfigError(f"{b.name}: the tokenizer of {model.label} turns some prompts into nothing")
        check_ids(model.config, prompts)
        longest = max(len(p.ids) for p in prompts)
        if limit is not None and longest + b.sampling.max_tokens > limit:
            raise ConfigError(
                f"{b.name}: prompts of up to {longest} tokens and responses of {b.sampling.max_tokens} exceed the {limit} "
                f"positions of {model.label}: set --max-tokens {max(1, limit - longest)} or less"
            )
        made[b.name] = prompts
    return Prepared(tokenizer, made)


class Checkpoint:
    """What an engine needs of a policy, without an optimizer. vLLM reads the weights from the folder itself."""

    version = 0
    autocast: Any = staticmethod(nullcontext)

    def __init__(self, config: Config, ranks: Ranks, vocabulary: int) -> None:
        self.ranks = ranks
        if config.rollout.engine == "vllm":
            described = load(AutoConfig, config.model)
            try:
                generation = GenerationConfig.from_pretrained(
                    model_source(config.model), revision=config.model.revision or "main"
                )
            except OSError:  # a folder need not have one
                generation = GenerationConfig.from_model_config(described)
            self.model: Any = SimpleNamespace(generation_config=generation, config=described)
        else:
            dtype = torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32
            self.model = load(AutoModelForCausalLM, config.model, dtype=dtype).to(ranks.device).eval()
        self.vocabulary = min(vocabulary, self.model.config.vocab_size)

    def weights(self) -> Iterator[Any]:
        """Nothing: the engine has loaded the weights itself."""
        return iter(())


def open_engine(model: Model, o: Namespace, prepared: Prepared, longest_response: int, ranks: Ranks) -> Engine:
    """The engine that `o` (the options of eval.py) names, with the model's weights."""
    rollout = RolloutConfig(
        engine=o.engine, max_sequences=o.max_sequences, max_response_tokens=longest_response, stop=o.stop,
        vllm=VllmConfig(gpu_memory_utilization=o.gpu_memory, sleep=False),
    )  # fmt: skip
    config = Config(model=model.config, rollout=rollout)
    longest_prompt = max(len(p.ids) for prompts in prepared.prompts.values() for p in prompts)
    checkpoint = Checkpoint(config, ranks, len(prepared.tokenizer))
    return build_engine(config, checkpoint, prepared.tokenizer, longest_prompt)


def close_engine(engine: Any) -> None:
    """Gives an engine's memory back, so that the next model finds room."""
    if hasattr(engine, "close"):
        engine.close()
    gc.unfreeze()  # vLLM freezes what it made while it started
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
