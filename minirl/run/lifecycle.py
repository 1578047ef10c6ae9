"""Opens a run: all set-up between its inputs and its first step, and the clean-up after its last."""

import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import torch

from minirl.config.command_line import load
from minirl.config.options import Config
from minirl.data.prompts import Order, Prompt, encode_prompts
from minirl.policy.model import check_context, check_dense, check_ids, load_tokenizer, model_config, model_plan
from minirl.policy.plan import run_plan
from minirl.policy.policy import Policy
from minirl.rollout.engines import build_engine, tokens_containing
from minirl.rollout.sampler import Sampler
from minirl.run.batches import Batches
from minirl.run.checkpoint import STARTING_WEIGHTS, Checkpoints, fingerprint
from minirl.run.folder import finished, folder_of, run_folder
from minirl.run.inputs import Inputs
from minirl.run.replay import open_replay
from minirl.run.report import Reporter
from minirl.run.run import Run
from minirl.run.signals import Stop
from minirl.run.training import TrainingRun
from minirl.utils.console import say
from minirl.utils.distributed import Ranks
from minirl.utils.errors import RunFinished
from minirl.utils.versions import installed, require_installed, untried
from minirl.verify.code.verifier import confinement


@dataclass
class Encoded:
    """The tokenizer, the training prompts and the held-out ones (test)."""

    tokenizer: Any
    prompts: list[Prompt]
    test: list[Prompt]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(p.ids) for p in (*self.prompts, *self.test))


def with_date(config: Config) -> Config:
    """The config with the date that its chat template prints: that of the run to resume, where there is one, else today's."""
    if config.data.template_date:
        return config
    folder = folder_of(config)
    known = folder is not None and (folder / "config.yaml").is_file()
    saved = load([str(folder / "config.yaml")]).data.template_date if folder is not None and known else None
    return replace(config, data=replace(config.data, template_date=saved or date.today().isoformat()))


def encode(inputs: Inputs) -> Encoded:
    """Encodes the problems, checks that they fit the model and extends inputs.notes. Reads no weights."""
    config, notes = inputs.config, inputs.notes
    tokenizer = load_tokenizer(config.model)
    tokens_containing(tokenizer, config.rollout.stop)
    prompts = encode_prompts(inputs.train, tokenizer, config.data, notes, "training")
    encoded = Encoded(tokenizer, prompts, encode_prompts(inputs.test, tokenizer, config.data, notes, "held-out"))
    check_dense(config)
    check_context(config, encoded.longest)
    check_ids(config.model, (*prompts, *encoded.test))
    return encoded


def packages(config: Config) -> dict[str, str]:
    """The optional packages that training the policy takes, with the option that needs them."""
    lora, optimizer = config.model.lora, config.optimizer
    asked = {"peft": (lora.r > 0, f"model.lora.r={lora.r}")}
    asked["bitsandbytes"] = (optimizer.name == "adamw_8bit", f"optimizer.name={optimizer.name}")
    return {package: option for package, (needed, option) in asked.items() if needed}


@contextmanager
def open_run(inputs: Inputs) -> Iterator[Run]:
    """A run ready for its next step: new, resumed from a checkpoint, or a saved step to replay.

    RunFinished when it has done all its steps. The exit waits for all ranks; with several, it ends the process with code 0.
    A run that is open already (inputs.run) stays open.
    """
    if inputs.run is not None:
        yield inputs.run
        return
    start = time.perf_counter()
    with ExitStack() as stack:
        pool = stack.enter_context(inputs.pool)
        config = inputs.config = with_date(inputs.config)
        encoded = encode(inputs)
        for package, option in packages(config).items():
            require_installed(package, option)
        ranks = Ranks(config.model.dtype)
        if config.replay:
            yield open_replay(config, ranks, encoded.prompts, encoded.tokenizer, pool)
        else:
            # Checked on the first rank only, which may write to the folder before the others get here.
            if message := ranks.gather([finished(config) if ranks.main else None])[0]:
                if ranks.main:
                    say(message)
                ranks.close()
                raise RunFinished
            folder = stack.enter_context(run_folder(config))
            stop = stack.enter_context(Stop(config.run.stop_after, start))
            run = open_training(inputs, encoded, ranks, folder, stop, start)
            stack.callback(run.reporter.close)
            yield run
    ranks.close()


def open_training(inputs: Inputs, encoded: Encoded, ranks: Ranks, folder: Any, stop: Stop, start: float) -> TrainingRun:
    """A training run, restored from its newest checkpoint if there is one. start: time.perf_counter() at the start."""
    config, tokenizer, prompts, test = inputs.config, encoded.tokenizer, encoded.prompts, encoded.test
    if ranks.main:
        introduce(inputs, encoded, ranks, folder)
    known = fingerprint(prompts, test, tokenizer, model_config(config.model), config.verifier, config.own_code)
    checkpoints = Checkpoints(config, ranks, folder, known)
    state = checkpoints.newest()
    policy = Policy(config, ranks, len(tokenizer))
    checkpoints.load(policy, state)
    policy.nonfinite = state.nonfinite
    engine = build_engine(config, policy, tokenizer, encoded.longest)
    checkpoints.load_generators()
    sampler = Sampler(engine, tokenizer, inputs.pool, ranks, config.run.seed, config.rollout.stop, config.verifier.labeller)
    order = Order(len(prompts), config.run.seed, state.position)
    reporter = Reporter(folder, config)
    sampler.watch, engine.progress = reporter.sampled, reporter.drawn
    reporter.resume(state.step, state.evaluations, state.metrics_bytes)
    batches = Batches(folder, config.run, checkpoints.fingerprint[STARTING_WEIGHTS])
    batches.remove_after(state.step)
    return TrainingRun(
        config, ranks, prompts, policy, sampler, order, state, test, tokenizer, folder, checkpoints, reporter, batches, stop,
        start - state.seconds,
    )  # fmt: skip


def described(config: Config, ranks: Ranks) -> str:
    """One line: device, precision, engine, model and versions."""
    threads = torch.get_num_threads()
    device = torch.cuda.get_device_name(ranks.device) if ranks.gpu_gib else f"CPU ({threads} thread{'s' * (threads > 1)})"
    device = device if ranks.size == 1 else f"{ranks.size} ranks, each {device}"
    engine = config.rollout.engine
    versions = [f"{name} {installed(name)}" for name in dict.fromkeys(("torch", "transformers", engine, *packages(config)))]
    zero = [f"deepspeed {installed('deepspeed')} (ZeRO-{ranks.zero})"] if ranks.zero is not None else []
    return (
        f"minirl {installed('minirl') or ''} on {device}; {config.model.dtype}; engine {engine}; model "
        f"{config.model.path}; {', '.join([*versions, *zero])}, Python {platform.python_version()}"
    )


def introduce(inputs: Inputs, encoded: Encoded, ranks: Ranks, folder: Any) -> None:
    """Prints notes, sizes, memory, run folder and first prompt."""
    config = inputs.config
    say(described(config, ranks))
    notes = inputs.notes + untried("torch", *(["deepspeed"] if ranks.zero is not None else []), *packages(config))
    memory = model_plan(config, ranks) if ranks.gpu_gib else []  # before a GPU runs out of it
    sizes = run_plan(config, len(encoded.prompts), len(encoded.test), ranks.size)
    terms = [str(name) for name, _ in config.verifier.rewards] + ["overlong_buffer"] * (config.algorithm.overlong_buffer > 0)
    if terms or ".py:" in config.verifier.name:
        edas = "; EDAS does not change the advantage of a wrong response where it is positive"
        notes.append(
            f"note: rewards may be other than 0 and 1 ({', '.join(terms) or config.verifier.name}): right and wrong are what "
            f"{config.verifier.name} says{edas if '+edas' in config.algorithm.estimator else ''}"
        )
    for line in (*notes, *sizes, *memory, f"run folder {folder}"):
        say(line)
    say(f"first prompt, as the model sees it: {encoded.tokenizer.decode(encoded.prompts[0].ids)!r}")
    if config.verifier.name == "code":
        say(confinement())
