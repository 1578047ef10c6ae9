"""RUN@STEP: the weights of a checkpoint of train.py as an ordinary model folder, RUN/models/stepNNNNNN, written once."""

import fcntl
import json
import re
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from minirl.config.command_line import load as load_config
from minirl.policy import lora
from minirl.policy.model import load, load_tokenizer, write_model
from minirl.run.checkpoint import STARTING_WEIGHTS, digest_of_weights
from minirl.run.manifest import MANIFEST, damage, digest_of, name_of, steps_of
from minirl.run.shards import Files, trained
from minirl.utils.console import say
from minirl.utils.errors import ConfigError

MARK = "checkpoint.sha256"  # in the model folder: the digest of the manifest of the checkpoint that it was made of


def run_and_step(path: Path) -> tuple[Path, int] | None:
    """(run folder, step) of RUN@STEP; None for any other path. ConfigError when RUN is no run folder of train.py."""
    found = re.fullmatch(r"(.+)@(\d+)", str(path))
    if found is None or path.exists():
        return None
    run = Path(found[1])
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"{path} asks for a checkpoint, but {run} is no run folder of train.py: it has no config.yaml")
    return run, int(found[2])


def model_of(run: Path, step: int) -> Path:
    """The model folder with the float32 weights after `step`, for any layout of ranks that saved them. Written where it is not
    there yet, by one process while others wait. ConfigError when there is no such checkpoint, or a damaged one."""
    checkpoint, folder = run / "checkpoints" / name_of(step), run / "models" / name_of(step)
    try:
        folder.parent.mkdir(exist_ok=True)
        with (folder.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_written(checkpoint, folder):
                write(run, checkpoint, folder)
    except OSError as error:
        raise ConfigError(f"cannot write the weights of {checkpoint} to {folder}: {error.strerror or error}") from None
    return folder


def is_written(checkpoint: Path, folder: Path) -> bool:
    """Whether the model folder is whole, and made of the checkpoint as it is now, or of one that was removed since."""
    if not (folder / MARK).is_file():
        return False
    manifest = checkpoint / MANIFEST
    return not manifest.is_file() or digest_of(manifest) == (folder / MARK).read_text()


def write(run: Path, checkpoint: Path, folder: Path) -> None:
    """Writes the model folder."""
    if not checkpoint.is_dir():
        there = ", ".join(str(step) for step, _ in reversed(steps_of(checkpoint.parent))) or "none"
        raise ConfigError(
            f"{run} has no checkpoint {checkpoint.name} (steps there: {there}): --run.save_every says which steps are saved, "
            "--run.keep how many of them stay"
        )
    if reason := damage(checkpoint):
        raise ConfigError(f"the checkpoint {checkpoint} cannot be used: {reason}; name another step")
    config = load_config([str(run / "config.yaml")]).model
    say(f"writing the weights of {checkpoint} to {folder}")
    model = load(AutoModelForCausalLM, config, dtype=torch.float32)
    if config.lora.r:
        saved = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))["fingerprint"]
        if digest_of_weights(model.named_parameters()) != saved[STARTING_WEIGHTS]:
            raise ConfigError(
                f"model.path={config.path!r} holds other weights than those that {run} started with, to which the adapters in "
                f"{checkpoint} belong"
            )
        lora.add_adapters(model, config.lora, seed=0)
    files = Files(sorted(checkpoint.glob("rank*.safetensors")))
    files.check(model)
    with torch.no_grad():
        for name, parameter in trained(model):
            parameter.copy_(files.read("weight", name, 0, parameter.numel()).view_as(parameter))
    write_model(model, {name: w.merged() for name, w in lora.weights_of(model)}, folder, load_tokenizer(config))
    (folder / MARK).write_text(digest_of(checkpoint / MANIFEST))
