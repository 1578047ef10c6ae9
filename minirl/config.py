"""Every option of a run, its default and its meaning: one tree of dataclasses.

Sources, later ones win: the defaults here, a YAML file, then `--section.key=value`. An unknown key, a value of the wrong type
or a combination that cannot work raises ConfigError with one sentence that names the value and the remedy; entry points print
it and exit with code 2 before any model is loaded. `None` in the `algorithm` section means "as the estimator's recipe says".
"""

import dataclasses
import difflib
import math
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from minirl import advantages
from minirl.advantages import option

EMBEDDED = "embedded"
AGGREGATIONS = ("token-mean", "sequence-mean", "constant")
KL_ESTIMATORS = ("k1", "k2", "k3")
CORRECTIONS = ("none", "truncate", "mask")
MODES = ("dry_run", "replay")  # what to do instead of a run: no options of one
SHORT = {"run-dir": "run.dir", "resume": "run.resume", "stop-after": "run.stop_after"}
# What may change when a run goes on. Data, tokenizer and model are recognised by their content, not by their paths.
MAY_CHANGE = (
    "run.dir", "run.resume", "run.steps", "run.epochs", "run.save_", "run.keep", "run.on_save_error", "run.stop_after", "plan.",
    "eval.every", "verifier.workers", "rollout.gap_", "model.path", "model.revision", "data.train", "data.test",
    "rollout.max_empty_steps", "optimizer.max_nonfinite",
)  # fmt: skip
# These too, but sums are then taken in another order.
ROUNDING = (
    "optimizer.micro_batch_tokens", "model.gradient_checkpointing", "model.attention", "rollout.max_sequences", "rollout.vllm.",
    "run.deterministic",
)  # fmt: skip


class ConfigError(Exception):
    """Bad input of the user; the message is one sentence with the value and the remedy."""


class RunError(Exception):
    """A run that cannot go on; the message is one sentence with the cause and the remedy."""


def items(default: list | dict, text: str) -> Any:
    """An option whose default is a list or a mapping."""
    return field(default_factory=lambda: type(default)(default), metadata={"help": text})


@dataclass
class ModelConfig:
    path: str = option(EMBEDDED, "Hugging Face folder or Hub name; 'embedded' is the tiny model that comes with the package")
    revision: str | None = option(None, "Hub revision of the model")
    dtype: str = option("float32", "compute precision; the master weights are always float32", choices=("float32", "bfloat16"))
    attention: str = option(
        "packed",
        "packed: sequences end to end, no padding; or a transformers attention implementation over padded rows: sdpa, eager, "
        "flash_attention_2 ...",
    )
    compile: bool = option(True, "on a GPU, compile what makes log-probs of logits")
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass: less memory, more time")


@dataclass
class DataConfig:
    task: str = option(
        "arithmetic",
        "arithmetic and fewshot generate problems, dataset reads them",
        choices=("arithmetic", "fewshot", "dataset"),
    )
    train: str = option("", "task=dataset: .jsonl or .parquet file, or Hub name")
    test: str = option("", "task=dataset: held-out problems, same forms; empty: test_size problems are taken out of train")
    subset: str | None = option(None, "Hub configuration name, such as main")
    train_split: str = option("train", "split of a Hub data set to train on")
    test_split: str = option("test", "split of a Hub data set to evaluate on")
    test_size: int = option(128, "problems held out of train when test is empty", minimum=1)
    prompt_column: str = option("problem", "column with the problem's text, or a list of messages; a.b is key b of column a")
    answer_column: str = option("answer", "column with the gold answer; empty for data that only facts decide (code)")
    answer_pattern: str | None = option(None, "regular expression; its first group is the gold answer inside the answer column")
    fact_columns: list[str] = items(
        [], "further columns that the verifier needs, such as tests or entry_point; name=column renames"
    )
    template: str = option("{problem}", "the user's message; {problem} is replaced by the problem's text")
    system: str | None = option(None, "system message before it")
    chat: bool = option(True, "wrap the message in the tokenizer's chat template")
    chat_arguments: dict[str, Any] = items({}, "arguments of the chat template, such as {enable_thinking: false}")
    max_prompt_tokens: int = option(2048, "longer prompts are dropped and counted", minimum=1)


@dataclass
class VerifierConfig:
    name: str = option("math", "math, code, or file.py:function for a reward of your own")
    grader: str = option(
        "exact",
        "name=math: what makes two answers equal; mathruler is the paper's",
        choices=("exact", "mathruler", "math_verify"),
    )
    answer: str = option(
        "boxed", "name=math: the answer is the last \\boxed{} or the whole response", choices=("boxed", "whole")
    )
    workers: int = option(1, "verifier processes a rank", minimum=1)
    timeout: float = option(5.0, "seconds a response may take to verify")

    memory_mb: int = option(2048, "name=code: address space of a program", minimum=64)
    rewards: list[Any] = items(
        [], "more rewards, added to it: [[file.py:function, weight], ...]; it alone decides right and wrong"
    )

    def pool(self) -> tuple[str, dict[str, Any]]:
        """The name and the options that VerifierPool takes."""
        options: dict[str, Any] = {}
        if self.name == "math":
            options = {"grader": self.grader, "answer": self.answer}
        elif self.name == "code":
            options = {"timeout": self.timeout, "memory_mb": self.memory_mb}
        if not self.rewards:
            return self.name, options
        return "combine", {"rewards": [[self.name, 1.0, options], *self.rewards]}


@dataclass
class VllmConfig:
    tensor_parallel: int = option(1, "ranks that hold one copy of the model together; divides the number of ranks", minimum=1)
    gpu_memory_utilization: float = option(0.4, "share of the GPU's memory for the engine's weights and KV cache")
    sleep: bool = option(True, "give that memory to the trainer during updates, where the platform can")
    enforce_eager: bool = option(False, "no CUDA graphs: a faster start, slower sampling")


@dataclass
class RolloutConfig:
    engine: str = option("transformers", "what samples", choices=("transformers", "vllm"))
    prompts: int = option(32, "groups in one training batch, over all ranks", minimum=1)
    samples: int = option(10, "responses to each prompt: the group size", minimum=1)
    temperature: float = option(1.0, "sampling temperature; log-probs are those of the tempered distribution")
    max_response_tokens: int = option(12, "a response is cut there and marked truncated", minimum=1)
    stop: list[str] = items(
        [], "end a response at any token whose text contains one of these, besides the model's own stop tokens"
    )
    max_sequences: int = option(512, "sequences that the engine decodes at once, a rank", minimum=1)
    oversample: float = option(
        1.0, "dynamic sampling: prompts of the first generation batch, as a multiple of prompts", minimum=1
    )
    abort_longest: float = option(
        0.0,
        "draw so many more prompts that this share of their groups, at most 0.5, can be given up once each engine has finished "
        "its others: faster, but biased towards short answers (docs/algorithms.md)",
        minimum=0,
    )
    max_generation_batches: int = option(20, "dynamic sampling: generation batches before giving up on a full batch", minimum=1)
    when_exhausted: str = option(
        "smaller", "then: train on the smaller batch, or end the run with an error", choices=("smaller", "error")
    )
    max_empty_steps: int = option(
        25, "end the run after so many batches in a row in which no group has rewards that differ; 0: never", minimum=0
    )
    gap_warn: float = option(0.05, "warn when sampler and trainer log-probs differ by more on average, nats", minimum=0)
    gap_stop: float = option(0.5, "end the run when they do", minimum=0)
    vllm: VllmConfig = field(default_factory=VllmConfig)
    carry_over: bool = option(False, "keep surplus groups, at most half a batch, for the next batch instead of dropping them")

    def draws(self, groups: int) -> int:
        """Prompts to draw so that `groups` are left when the share `abort_longest` of them is given up."""
        return math.ceil(groups / (1 - self.abort_longest) - 1e-9)  # 21 / 0.7 is 30.000000000000004


@dataclass
class AlgorithmConfig:
    estimator: str = option("dapo+edas", f"{', '.join(advantages.PAPER)}, or another sum of their parts")
    mini_batch_prompts: int = option(16, "groups in one optimizer step; divides rollout.prompts", minimum=1)
    epochs: int = option(1, "passes over each rollout batch", minimum=1)
    dynamic_sampling: bool | None = option(None, "sample until every group of the batch has right and wrong responses")
    clip_low: float | None = option(None, "ratio clipped below 1 - clip_low", minimum=0)
    clip_high: float | None = option(None, "ratio clipped above 1 + clip_high", minimum=0)
    dual_clip: float | None = option(3.0, "bound on the loss of negative advantages; null turns it off")
    aggregation: str | None = option(
        None, "how token losses are averaged; constant divides by max_response_tokens", choices=AGGREGATIONS
    )
    old_log_probs: str = option(
        "trainer", "whose log-probs the ratio starts from; the trainer recomputes them", choices=("trainer", "sampler")
    )
    correction: str = option("none", "importance weights for the gap between sampler and trainer", choices=CORRECTIONS)
    correction_low: float = option(0.5, "correction=mask: ratios below count 0")
    correction_high: float = option(2.0, "correction=truncate: cap of the ratio; mask: ratios above count 0")
    kl_coefficient: float = option(0.0, "weight of the KL to the starting model; 0 loads no reference model", minimum=0)
    kl_estimator: str = option("k3", "how that KL is estimated", choices=KL_ESTIMATORS)
    entropy_coefficient: float = option(0.0, "weight of an entropy bonus", minimum=0)
    overlong_buffer: int = option(0, "tokens before the limit over which DAPO's soft penalty grows to -1; 0 is off", minimum=0)
    mask_truncated: bool = option(False, "leave truncated responses out of the loss; they stay in the group's statistics")

    @property
    def recipe(self) -> advantages.Recipe:
        """The values that are the estimator's unless the config says otherwise; `load` has filled them in."""
        values = (self.dynamic_sampling, self.clip_low, self.clip_high, self.aggregation)
        if None in values:
            raise ValueError(f"an algorithm section that was not resolved: {values}")
        return advantages.Recipe(*values)  # type: ignore[arg-type]


@dataclass
class OptimizerConfig:
    lr: float = option(3e-4, "AdamW learning rate", minimum=0)
    betas: list[float] = items([0.9, 0.999], "AdamW betas")
    weight_decay: float = option(0.01, "AdamW weight decay", minimum=0)
    max_grad_norm: float = option(1.0, "gradient clipping")
    schedule: str = option(
        "constant",
        "of the learning rate; linear and cosine fall towards 0 at run.steps",
        choices=("constant", "linear", "cosine"),
    )
    warmup_steps: int = option(10, "steps of linear warm-up, in run.steps", minimum=0)
    max_nonfinite: int = option(
        10, "end the run after so many steps in a row whose loss or gradient was not finite; each of them is skipped", minimum=1
    )
    micro_batch_tokens: int = option(
        16384, "tokens of one forward and backward pass, a rank; where rows are padded, padding included", minimum=1
    )


@dataclass
class EvalConfig:
    every: int = option(50, "evaluate every so many steps; 0: only before and after", minimum=0)
    problems: int = option(256, "held-out problems evaluated before and after", minimum=1)
    samples: int = option(16, "responses to each", minimum=1)
    k: int = option(8, "the k of pass@k, at most samples", minimum=1)
    during_problems: int = option(128, "held-out problems evaluated during the run", minimum=1)
    temperature: float = option(1.0, "sampling temperature; 0 is greedy", minimum=0)
    top_p: float = option(1.0, "nucleus sampling")
    top_k: int = option(0, "0 is off", minimum=0)
    max_response_tokens: int | None = option(None, "as in training when null", minimum=1)


@dataclass
class RunConfig:
    dir: str | None = option(None, "run folder; --run-dir DIR is the same")
    resume: str = option(
        "auto",
        "a run folder that exists: auto goes on from its newest checkpoint, never refuses it, a checkpoint goes on from "
        "there; --resume is the same",
    )
    seed: int = option(0, "the one seed that every random choice flows from", minimum=0)
    deterministic: bool = option(False, "only kernels that give the same bits each time: slower on a GPU (docs/determinism.md)")
    steps: int = option(250, "rollout batches", minimum=1)
    epochs: float | None = option(None, "end earlier, after so many passes over the data", minimum=0)
    save_rollouts: int = option(2, "groups of each step written to rollouts/ for reading", minimum=0)
    save_every: int = option(10, "steps between checkpoints; 0: only at the end, when stopped, and of the best", minimum=0)
    keep: int = option(2, "newest checkpoints kept, besides the best by held-out pass@1 during the run", minimum=1)
    save_batches: int = option(
        2,
        "newest whole batches kept for --replay, besides those right after a checkpoint; 0: only one that ended the run",
        minimum=0,
    )
    save_in_background: bool = option(False, "write a checkpoint while the next batch is sampled; takes host memory for a copy")
    on_save_error: str = option("continue", "when a checkpoint cannot be written", choices=("continue", "stop"))
    stop_after: str | None = option(
        None, "save and end after the step that this time falls into, such as 2h50m; --stop-after is the same"
    )


@dataclass
class PlanConfig:
    gpus: int = option(8, "--dry-run: ranks of the run", minimum=1)
    gpu_gib: float = option(141.0, "--dry-run: memory of a GPU", minimum=1)
    zero: int | None = option(3, "--dry-run: ZeRO stage; null is DDP", minimum=0)


# One sub-section a registered estimator, made of its `option` fields.
StrategyConfig: Any = dataclasses.make_dataclass(
    "StrategyConfig",
    [(name, cls, field(default_factory=cls)) for name, cls in (advantages.BASES | advantages.WRAPPERS).items()],
)


@dataclass
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    strategy: Any = field(default_factory=StrategyConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    run: RunConfig = field(default_factory=RunConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    dry_run: bool = False
    replay: str | None = None

    def build_strategy(self) -> advantages.Strategy:
        """The advantage estimator that `algorithm.estimator` names, with the options of `strategy`."""
        return advantages.build(self.algorithm.estimator, self.strategy)


# ---- reading ---------------------------------------------------------------------------------------------------------------


def load(argv: list[str]) -> Config:
    """The config that `[CONFIG.yaml] [--section.key=value ...] [--run-dir DIR] [--dry-run]` describes, resolved and checked."""
    tree: dict[str, Any] = {}
    arguments = list(argv)
    if replay := replayed(arguments):
        # The run's own config, unless another one is named.
        arguments = arguments if arguments[:1] and not arguments[0].startswith("--") else [replay, *arguments]
    if arguments and not arguments[0].startswith("--"):
        tree = read_yaml(Path(arguments.pop(0)))
    while arguments:
        argument = arguments.pop(0)
        if not argument.startswith("--"):
            if tree.get("dry_run") and argument.endswith((".yaml", ".yml")):
                tree = read_yaml(Path(argument)) | {"dry_run": True}
                continue
            raise ConfigError(f"unexpected argument {argument!r}: options are written --section.key=value")
        if argument == "--dry-run":
            tree["dry_run"] = True
            continue
        key, equals, value = argument[2:].partition("=")
        if not equals:
            if not arguments:
                raise ConfigError(f"option {argument!r} has no value: write {argument}=VALUE")
            value = arguments.pop(0)
        if key == "replay":
            tree["replay"] = value
            continue
        key = SHORT.get(key.replace("_", "-"), key)
        node = tree
        *sections, leaf = key.split(".")
        for section in sections:
            node = node.setdefault(section, {})
            if not isinstance(node, dict):
                raise ConfigError(f"option --{key}: {section!r} is a value, not a section")
        node[leaf] = parse(value, option_kind(key), key)
    config = resolve(fill(Config, tree, ""))
    check(config)
    return config


def replayed(arguments: list[str]) -> str | None:
    """The config of the run that `--replay RUN/stepN` names; None without that option."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if argument == "--replay" or argument.startswith("--replay="):
            return str(run_of(argument.partition("=")[2] or following) / "config.yaml")
    return None


def run_of(step: str) -> Path:
    """The run folder of RUN/stepN or RUN/batches/stepN."""
    path = Path(step).expanduser()
    return path.parents[1] if path.parent.name == "batches" else path.parent


def option_kind(key: str) -> Any:
    """The type of the option called `key`; Any when there is none (the tree's own check then says so)."""
    kind: Any = Config
    for part in key.split("."):
        if not is_dataclass(kind):
            return Any
        kind = StrategyConfig if kind is Config and part == "strategy" else typing.get_type_hints(kind).get(part, Any)
    return kind


def parse(value: str, kind: Any, key: str) -> Any:
    """A value of the command line: text and numbers as they stand, everything else as YAML."""
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    if str in kinds or int in kinds or float in kinds:
        return value
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--{key}={value} is not valid YAML: {' '.join(str(error).split())}") from None


def command_line(program: str, argv: list[str]) -> Config:
    """The config that the arguments describe. Ends the process for --help (exit code 0) and for bad input (2, one sentence)."""
    if "--help" in argv or "-h" in argv:
        print(help_text())
        sys.exit(0)
    try:
        return load(argv)
    except ConfigError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(2)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if tree is not None and not isinstance(tree, dict):
        raise ConfigError(f"{path} must hold sections such as 'model:', not a {type(tree).__name__}")
    return tree or {}


def fill(cls: Any, tree: Any, path: str) -> Any:
    """An instance of dataclass `cls` from a tree of plain values; `path` is where we are, for messages."""
    if not isinstance(tree, dict):
        raise ConfigError(f"{path.rstrip('.')} is a section with keys of its own, not {tree!r}")
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls) if f.name not in ("base", *MODES)}
    modes = {name: tree.pop(name) for name in MODES if cls is Config and name in tree}
    values = {}
    for key, value in tree.items():
        if key not in known:
            raise ConfigError(f"unknown option {path}{key}: {closest(f'{path}{key}', path, known)}")
        kind = hints.get(key, Any)
        if kind is Any and cls is Config:
            kind = StrategyConfig
        values[key] = fill(kind, value, f"{path}{key}.") if is_dataclass(kind) else coerce(value, kind, f"{path}{key}")
    try:
        return cls(**values, **modes)
    except ValueError as error:  # a strategy's own check
        raise ConfigError(str(error)) from None


def closest(key: str, path: str, known: dict[str, Any]) -> str:
    """The remedy for an unknown key: the closest key of the whole tree, or those of its section."""
    matches = difflib.get_close_matches(key, [path + k for k in known], 1, 0.6) or difflib.get_close_matches(
        key.rpartition(".")[2], [k.rpartition(".")[2] for k, *_ in every_option()], 1, 0.6
    )
    if not matches:
        return f"known here are {', '.join(known)} (train.py --help lists all)"
    full = [k for k, *_ in every_option() if k == matches[0] or k.rpartition(".")[2] == matches[0]]
    return f"did you mean {full[0] if full else matches[0]}? (train.py --help lists all)"


def coerce(value: Any, kind: Any, key: str) -> Any:
    """`value` as `kind`, which is bool, int, float, str, list[...], dict[...] or one of them or None."""
    if kind is Any:
        return value
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None or value in ("null", "none", "None"):
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
        origin = typing.get_origin(kind)
    name = getattr(origin or kind, "__name__", str(kind))
    wrong = ConfigError(f"{key} takes {'true or false' if kind is bool else f'a value of type {name}'}, not {value!r}")
    if origin is list:
        if not isinstance(value, list):
            raise wrong
        return [coerce(item, typing.get_args(kind)[0], key) for item in value]
    if origin is dict:
        if not isinstance(value, dict):
            raise wrong
        return dict(value)
    if kind is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind in (int, float) and isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = kind(value)
        except (ValueError, OverflowError):
            raise wrong from None
        if not math.isfinite(number) or (kind is int and not isinstance(value, str) and number != value):
            raise wrong
        return number
    raise wrong


def resolve(config: Config) -> Config:
    """`config` with every None that means "as the estimator says" filled in."""
    try:
        recipe = config.build_strategy().recipe
    except ValueError as error:
        raise ConfigError(str(error)) from None
    a = config.algorithm
    filled = {
        name: getattr(recipe, name) if getattr(a, name) is None else getattr(a, name)
        for name in ("dynamic_sampling", "clip_low", "clip_high", "aggregation")
    }
    length = config.rollout.max_response_tokens if config.eval.max_response_tokens is None else config.eval.max_response_tokens
    return replace(config, algorithm=replace(a, **filled), eval=replace(config.eval, max_response_tokens=length))


def check(config: Config) -> None:
    """ConfigError for the first value or combination that cannot work."""
    d, v, r, a, o, e = config.data, config.verifier, config.rollout, config.algorithm, config.optimizer, config.eval
    strategy = config.build_strategy()
    for key, value, limits in every_option(config):
        known, minimum = limits.get("choices"), limits.get("minimum")
        require(known is None or value in known, f"{key} is one of {', '.join(known or ())}, not {value!r}")
        require(minimum is None or value is None or value >= minimum, f"{key} must be at least {minimum}, not {value}")
    require(
        r.temperature > 0, f"rollout.temperature must be above 0, not {r.temperature}: greedy samples of a group are all alike"
    )
    require(0 < e.top_p <= 1, f"eval.top_p must be in (0, 1], not {e.top_p}")
    require(o.max_grad_norm > 0, f"optimizer.max_grad_norm must be above 0, not {o.max_grad_norm}")
    require(
        len(o.betas) == 2 and all(0 <= b < 1 for b in o.betas), f"optimizer.betas takes two numbers in [0, 1), not {o.betas}"
    )
    require(a.recipe.clip_low < 1, f"algorithm.clip_low must be below 1, not {a.recipe.clip_low}: a ratio is never negative")
    require(
        a.correction_high > 0 and 0 <= a.correction_low <= a.correction_high,
        f"algorithm.correction_low={a.correction_low} and correction_high={a.correction_high} must be a range of ratios",
    )
    require(
        r.abort_longest <= 0.5,
        f"rollout.abort_longest must be at most 0.5, not {r.abort_longest}: more than half of the work would be thrown away",
    )
    require(all(r.stop), "rollout.stop has an empty text, which every token contains: remove it")
    share = r.vllm.gpu_memory_utilization
    require(0 < share <= 1, f"rollout.vllm.gpu_memory_utilization must be in (0, 1], not {share}")
    require(v.timeout > 0, f"verifier.timeout must be above 0 seconds, not {v.timeout}")
    require(a.dual_clip is None or a.dual_clip > 1, f"algorithm.dual_clip must be above 1 or null, not {a.dual_clip}")
    require(
        r.samples >= strategy.min_samples,
        f"rollout.samples={r.samples} is too small for {a.estimator}: it compares the responses of a group and needs at least "
        f"{strategy.min_samples}",
    )
    require(
        r.prompts % a.mini_batch_prompts == 0,
        f"algorithm.mini_batch_prompts={a.mini_batch_prompts} does not divide rollout.prompts={r.prompts}: choose a divisor",
    )
    require(e.k <= e.samples, f"eval.k={e.k} is more than eval.samples={e.samples}: pass@k needs at least k samples")
    require(
        e.temperature > 0 or e.samples == 1,
        f"eval.temperature=0 is greedy, so eval.samples={e.samples} would be the same response {e.samples} times: set it to 1",
    )
    require(
        a.overlong_buffer < r.max_response_tokens,
        f"algorithm.overlong_buffer={a.overlong_buffer} must be below rollout.max_response_tokens={r.max_response_tokens}",
    )
    require(
        not (a.overlong_buffer and a.estimator.startswith("pkpo")),
        "pkpo is defined for right and wrong only: set algorithm.overlong_buffer=0",
    )
    require(
        not (v.rewards and a.estimator.startswith("pkpo")), "pkpo is defined for right and wrong only: remove verifier.rewards"
    )
    require(
        not (r.carry_over and a.old_log_probs == "trainer" and a.correction == "none"),
        "rollout.carry_over trains on groups of an older policy: set algorithm.correction=truncate (or mask), or "
        "algorithm.old_log_probs=sampler, so that their ratio is taken against the policy that sampled them",
    )
    require(
        not (a.old_log_probs == "sampler" and a.correction != "none"),
        f"algorithm.correction={a.correction} corrects old log-probs of the trainer: with old_log_probs=sampler there "
        "is nothing to correct, set it to none",
    )
    require(
        not (a.old_log_probs == "sampler" and strategy.needs_entropy),
        f"{a.estimator} needs the policy's entropies, which come with old log-probs: set algorithm.old_log_probs=trainer",
    )
    if config.run.stop_after is not None:
        duration(config.run.stop_after)
    if d.task == "dataset":
        require(bool(d.train), "data.task=dataset needs data.train: a .jsonl or .parquet file, or a Hub name")
        require("{problem}" in d.template, f"data.template must contain {{problem}}, not just {d.template!r}")
    for entry in v.rewards:
        require(
            isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], int | float),
            f"verifier.rewards takes a list of [file.py:function, weight], not {entry!r}",
        )
    require(
        v.name in ("math", "code") or ".py:" in v.name,
        f"verifier.name is math, code or file.py:function, not {v.name!r}",
    )


def duration(text: str) -> float:
    """Seconds of a text such as 2h50m, 90s or 1d. ConfigError when it is none."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"run.stop_after takes a time such as 2h50m, 90s or 1d, not {text!r}")
    return sum(float(number) * {"d": 86400, "h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)


def require(condition: bool, message: str) -> None:
    """ConfigError with `message` unless `condition`."""
    if not condition:
        raise ConfigError(message)


def labelled(text: str) -> tuple[str, Path]:
    """(label or "", path) of PATH or LABEL=PATH; where the whole text is a path that exists, it is no label."""
    label, equals, path = text.partition("=")
    if not equals or Path(text).expanduser().exists():
        label, path = "", text
    return label, Path(path).expanduser()


def differences(old: Config, new: Config) -> tuple[list[str], list[str], list[str]]:
    """What `new` changes, as "key: old -> new": (what a run cannot go on with, what changes its rounding, what is free)."""
    refused: list[str] = []
    rounding: list[str] = []
    free: list[str] = []
    for (key, before, _), (_, after, _) in zip(every_option(old), every_option(new), strict=True):
        if before != after:
            kind = free if key.startswith(MAY_CHANGE) else rounding if key.startswith(ROUNDING) else refused
            kind.append(f"{key}: {before} -> {after}")
    return refused, rounding, free


# ---- showing ---------------------------------------------------------------------------------------------------------------


def every_option(node: Any = None, path: str = "") -> list[tuple[str, Any, Mapping[str, Any]]]:
    """(key, value, {"help": meaning, limits}) of every option below `node`, a config (the defaults if None), in order."""
    node = Config() if node is None else node
    rows: list[tuple[str, Any, Mapping[str, Any]]] = []
    for f in fields(node):
        value = getattr(node, f.name)
        if "help" in f.metadata:
            rows.append((path + f.name, value, f.metadata))
        elif is_dataclass(value) and f.name != "base":
            rows += every_option(value, f"{path}{f.name}.")
    return rows


def as_tree(config: Config) -> dict[str, Any]:
    """The config as nested plain values, ready for YAML; `load` reads it back to the same config."""
    tree: dict[str, Any] = {}
    for key, value, _ in every_option(config):
        node = tree
        *sections, leaf = key.split(".")
        for section in sections:
            node = node.setdefault(section, {})
        node[leaf] = value
    return tree


def help_text() -> str:
    """Every option with its default and meaning."""
    lines = [
        "usage: train.py [CONFIG.yaml] [--section.key=value ...] [--run-dir DIR] [--resume auto|never|PATH]",
        "                [--stop-after TIME] [--dry-run] [--replay RUN/stepN]",
        "",
        "With no argument it trains the embedded model on the embedded task. --dry-run loads no weights and prints the plan:",
        "sizes, steps, memory. --replay takes a saved step of a run again without sampling and compares its numbers. Options,",
        "with their defaults:",
    ]
    section = ""
    for key, default, about in every_option():
        head = key.rpartition(".")[0]
        if head != section:
            section = head
            lines += ["", head]
        shown = "null" if default is None else str(default).lower() if isinstance(default, bool) else default
        text = about["help"] + (f": {', '.join(about['choices'])}" if "choices" in about else "")
        lines.append(f"  --{key}={shown}\n        {text}")
    return "\n".join(lines)


def plan(config: Config, train_size: int, test_size: int, ranks: int) -> list[str]:
    """Lines with the sizes that follow from the config, for people."""
    r, a, run = config.rollout, config.algorithm, config.run
    rollouts = r.prompts * r.samples
    steps = r.prompts // a.mini_batch_prompts * a.epochs
    drawn = r.draws(r.prompts)
    total = run.steps if run.epochs is None else min(run.steps, math.ceil(run.epochs * train_size / drawn))
    return [
        f"estimator {a.estimator}: clip -{a.recipe.clip_low:g}/+{a.recipe.clip_high:g}, {a.recipe.aggregation}, "
        f"dynamic sampling {'on' if a.recipe.dynamic_sampling else 'off'}",
        f"data {train_size:,} problems to train on, {test_size:,} held out; {ranks} rank{'s' if ranks > 1 else ''}",
        f"one step {r.prompts} prompts x {r.samples} samples = {rollouts:,} rollouts of at most {r.max_response_tokens:,} "
        f"tokens ({rollouts * r.max_response_tokens:,}), {steps} optimizer step{'s' if steps > 1 else ''} of "
        f"{a.mini_batch_prompts * r.samples:,} rollouts",
        f"run {total:,} steps = {total * rollouts:,} rollouts, {total * steps:,} optimizer steps, "
        f"{total * drawn / train_size:.2f} passes over the data (with dynamic sampling more passes, or fewer steps "
        "where run.epochs limits them)",
    ]
