"""A run's config from defaults, a YAML file and `--section.key=value` arguments, each overriding those before.

An unknown option, a value of the wrong type or a combination that cannot work raises ConfigError, which names the value and the
remedy. Entry points print it and exit with code 2 before any model is loaded.
"""

import contextlib
import difflib
import json
import math
import sys
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any

import yaml

from minirl.advantages import BASES, PAPER, WRAPPERS, build, parts_of
from minirl.config.checks import check
from minirl.config.options import EMBEDDED_TASKS, Config, every_option
from minirl.utils.console import finish_stdout
from minirl.utils.errors import ConfigError, require

SHORT = {"run-dir": "run.dir", "resume": "run.resume", "stop-after": "run.stop_after"}
# What TRL (bare) and verl (the last part) call an option, where difflib would not find it.
THEIRS = {
    "num_generations": "rollout.group_size",
    "n": "rollout.group_size",
    "train_batch_size": "rollout.prompts",
    "generation_batch_size": "rollout.prompts",
    "max_completion_length": "rollout.max_response_tokens",
    "max_response_length": "rollout.max_response_tokens",
    "max_prompt_length": "data.max_prompt_tokens",
    "use_vllm": "rollout.engine",
    "adv_estimator": "algorithm.estimator",
    "loss_type": "algorithm.loss_agg_mode",
    "epsilon": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "clip_ratio_low": "algorithm.clip_low",
    "clip_ratio_high": "algorithm.clip_high",
    "delta": "algorithm.dual_clip",
    "num_iterations": "algorithm.epochs",
    "ppo_epochs": "algorithm.epochs",
    "beta": "algorithm.kl_coef",
    "kl_loss_coef": "algorithm.kl_coef",
    "ppo_mini_batch_size": "algorithm.mini_batch_prompts",
    "ppo_max_token_len_per_gpu": "optimizer.micro_batch_tokens",
    "per_device_train_batch_size": "optimizer.micro_batch_tokens",
    "learning_rate": "optimizer.lr",
    "max_steps": "run.steps",
    "output_dir": "run.dir",
    "model_name_or_path": "model.path",
    "train_files": "data.train",
    "report_to": "run.trackers",
    "optim": "optimizer.name",
    "bf16": "model.dtype",
    "lora_r": "model.lora.r",
    "lora_rank": "model.lora.r",
    "reward_funcs": "verifier.name",
    "resume_from_checkpoint": "run.resume",
}
# Former names of options -> current names.
RENAMED = {
    "rollout.samples": "rollout.group_size",
    "rollout.gap_warn": "rollout.logprob_diff_warn",
    "rollout.gap_stop": "rollout.logprob_diff_stop",
    "algorithm.old_log_probs": "algorithm.old_logprobs (its value sampler is now rollout)",
    "algorithm.aggregation": "algorithm.loss_agg_mode (sequence-mean is now seq-mean-token-mean, constant is "
    "seq-mean-token-sum-norm)",
    "algorithm.correction": "algorithm.rollout_is",
    "algorithm.correction_low": "algorithm.rollout_is_low",
    "algorithm.correction_high": "algorithm.rollout_is_high",
    "algorithm.kl_coefficient": "algorithm.kl_coef",
    "algorithm.entropy_coefficient": "algorithm.entropy_coef",
    "data.fact_columns": "data.extra_info_columns",
    "strategy": "estimator",
    "estimator.pkpo.leave_one_out": "estimator.pkpo.baseline (sloo is the paper's leave-one-out; false was mean)",
}


def command_line(program: str, argv: Sequence[str]) -> Config:
    """The config of the arguments. Exits after --help (code 0) and after printing an error in the input (code 2)."""
    if "--help" in argv or "-h" in argv:
        finish_stdout(help_text() + "\n")
        sys.exit(0)
    try:
        return load(argv)
    except ConfigError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(2)


def load(argv: Sequence[str]) -> Config:
    """The resolved and checked config of `[CONFIG.yaml] [--section.key=value ...] [--run-dir DIR] [--dry-run] [--replay
    RUN/stepN [--estimators all|a,b,c]]`. With --replay the run's own config.yaml is read, unless another file is given."""
    arguments = [argument for argument in argv if argument != "--dry-run"]
    file = Path(arguments.pop(0)) if arguments and not arguments[0].startswith("--") else None
    given = pairs(arguments)
    replay, estimators = given.pop("replay", None), given.pop("estimators", None)
    require(estimators is None or replay is not None, "--estimators looks at a saved step: name it by --replay RUN/stepN")
    if file is None and replay is not None:
        file = run_of(replay) / "config.yaml"
    known = {key: about["type"] for key, _, about in every_option()}
    tree = read_yaml(file) if file else {}
    values = flat({name: section for name, section in tree.items() if name != "ablate"}, known)  # read by minirl.ablate
    for key, value in (values | given).items():
        if key not in known:
            raise ConfigError(unknown(key, value, list(known)))
        values[key] = coerce(value, known[key], key)
    config = resolve(filled(Config(dry_run="--dry-run" in argv, replay=replay), values))
    check(config)
    if estimators is not None:
        names = every_estimator(config) if estimators == "all" else [name.strip() for name in estimators.split(",")]
        config.estimators = {name: with_estimator(config, values, name) for name in names}
    return config


def every_estimator(config: Config) -> list[str]:
    """The config's own estimator, those of the paper, every base, and every wrapper around the base of its own."""
    own = config.algorithm.estimator
    base = parts_of(own)[0]
    return list(dict.fromkeys([own, *PAPER, *BASES, *(f"{base}+{wrapper}" for wrapper in WRAPPERS)]))


def with_estimator(config: Config, values: Mapping[str, Any], name: str) -> Config | str:
    """The config with another estimator, as `load` makes it of `values`; or the reason for which these options do not fit it.

    Options of classes of the user's own go to estimators that name one only. ConfigError for a name that is unknown.
    """
    custom = config.estimator.custom if ".py:" in name else {}
    try:
        build(name, replace(config.estimator, custom=custom))
        values = {**values, "algorithm.estimator": name, "estimator.custom": custom}
        other = resolve(filled(Config(replay=config.replay), values))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    try:
        check(other)
    except ConfigError as error:
        return str(error)
    return other


def pairs(arguments: Sequence[str]) -> dict[str, str]:
    """{key: text} of every `--key=text` and `--key text`; the last one counts where a key is given twice."""
    found, following = {}, iter(arguments)
    for argument in following:
        if not argument.startswith("--"):
            raise ConfigError(f"unexpected argument {argument!r}: options are written --section.key=value")
        key, equals, text = argument[2:].partition("=")
        value = text if equals else next(following, None)
        if value is None or (not equals and value.startswith("--")):  # a value that begins so is written --key=--value
            raise ConfigError(f"option {argument!r} has no value: write {argument}=VALUE")
        found[SHORT.get(key.replace("_", "-"), key)] = value
    return found


def run_of(step: str) -> Path:
    """The run folder of RUN/stepN or RUN/batches/stepN."""
    path = Path(step).expanduser()
    return path.parents[1] if path.parent.name == "batches" else path.parent


def labelled(text: str) -> tuple[str, Path]:
    """(label or "", path) of LABEL=PATH or PATH. A text that is an existing path is taken as a path."""
    label, equals, path = text.partition("=")
    if not equals or Path(text).expanduser().exists():
        label, path = "", text
    return label, Path(path).expanduser()


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


def flat(tree: Mapping[Any, Any], options: Collection[str], path: str = "") -> dict[str, Any]:
    """{"section.key": value} from nested sections."""
    values: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{path}{name}"
        inside = isinstance(value, dict) and any(option.startswith(f"{key}.") for option in options)
        values |= flat(value, options, f"{key}.") if inside else {key: value}
    return values


def flat_options(tree: Mapping[Any, Any]) -> dict[str, str]:
    """{"section.key": text for the command line} from nested sections of options, or keys such as a.b."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"options are written as sections or section.key: value, not {tree!r}")
    values = flat(tree, [key for key, _, _ in every_option()])
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}


def unknown(key: str, value: Any, options: Sequence[str]) -> str:
    """The error for an unknown option, with its new name if it was renamed, ours if it is TRL's or verl's, else the closest
    name in any section."""
    if old := next((old for old in RENAMED if key == old or key.startswith(f"{old}.")), None):
        return f"the option {old} is now called {RENAMED[old]}"
    if any(option.startswith(f"{key}.") for option in options):
        return f"{key} is a section with options of its own, not {value!r}"
    section, _, last = key.rpartition(".")
    here = [option for option in options if option.rpartition(".")[0] == section]
    if last in THEIRS:
        return f"unknown option {key}: what TRL or verl call {last} is {THEIRS[last]} here (docs/coming-from-trl-and-verl.md)"
    names = {option.partition(".")[0]: option.partition(".")[0] for option in options}
    known = here or list(names)
    names |= {option.rpartition(".")[2]: option for option in (*reversed(options), *here)}  # its own section first
    near = difflib.get_close_matches(last, names, 1)
    closest = f"did you mean {names[near[0]]}?" if near else f"known here are {', '.join(known)}"
    return f"unknown option {key}: {closest} (python train.py --help lists all)"


def coerce(value: Any, kind: Any, key: str) -> Any:
    """`value` as `kind`: Any, bool, int, float, str, list[...], dict[...], or one of them | None.

    Text from the command line is parsed as YAML for bool, list and dict. ConfigError when it does not fit.
    """
    kind, optional = (typing.get_args(kind)[0], True) if isinstance(kind, UnionType) else (kind, False)
    nothing = (None, "null", "none", "None", *(("auto",) if kind in (bool, int) else ()))
    if kind is Any or (optional and value in nothing):
        return None if optional else value
    container = typing.get_origin(kind) or kind
    if isinstance(value, str) and container in (bool, list, dict):
        try:
            value = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"{key}={value} is not valid YAML: {' '.join(str(error).split())}") from None
    if container in (bool, dict) and isinstance(value, container):
        return value
    if container is list and isinstance(value, list):
        return [coerce(item, typing.get_args(kind)[0], key) for item in value]
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        if kind is str:
            return str(value)
        with contextlib.suppress(ValueError, OverflowError):
            number = kind(value) if kind in (int, float) else math.nan
            if math.isfinite(number) and (isinstance(value, str) or number == value):
                return number
    wanted = "true or false" if kind is bool else f"a value of type {container.__name__}"
    raise ConfigError(f"{key} takes {wanted}, not {value!r}")


def filled(node: Any, values: Mapping[str, Any], path: str = "") -> Any:
    """A copy of a config, or of its section `path`, with `values` set."""
    changes = {}
    for f in fields(node):
        if (key := f"{path}{f.name}") in values:
            changes[f.name] = values[key]
        elif is_dataclass(section := getattr(node, f.name)) and f.name != "base":  # the estimator inside a wrapper
            changes[f.name] = filled(section, values, f"{key}.")
    try:
        return replace(node, **changes)
    except ValueError as error:  # an estimator's own check
        raise ConfigError(str(error)) from None


def resolve(config: Config) -> Config:
    """`config` with options that are None set to the estimator's requirements, or to what training uses, and the embedded model
    to that of the task."""
    try:
        required, loss = config.build_estimator().requirements, config.build_loss()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    a, e = config.algorithm, config.eval
    names = ("dynamic_sampling", "clip_low", "clip_high", "loss_agg_mode", "loss")
    given = {name: (getattr(a, name), getattr(loss, name, None), getattr(required, name)) for name in names}
    a = replace(a, **{name: next(value for value in values if value is not None) for name, values in given.items()})
    length = config.rollout.max_response_tokens if e.max_response_tokens is None else e.max_response_tokens
    task = config.data.task if config.data.task in EMBEDDED_TASKS else EMBEDDED_TASKS[0]
    model = replace(config.model, path=f"embedded-{task}") if config.model.path == "embedded" else config.model
    return replace(config, model=model, algorithm=a, eval=replace(e, max_response_tokens=length))


def help_text() -> str:
    """The text of --help: every option with its default and meaning."""
    lines = [
        "usage: train.py [CONFIG.yaml] [--section.key=value ...] [--run-dir DIR] [--resume auto|never|PATH]",
        "                [--stop-after TIME] [--dry-run]",
        "                [--replay RUN/stepN [--estimators all|NAME,NAME ...]]",
        "",
        "Without arguments it trains the embedded model on the embedded task. --dry-run prints sizes, steps and memory without",
        "loading weights. --replay recomputes a saved step of a run without sampling and compares its metrics;",
        "with --estimators it shows the advantages and the policy gradient of each of them there (docs/microscope.md).",
        "Options with their defaults:",
    ]
    section = ""
    for key, default, about in every_option():
        if (head := key.rpartition(".")[0]) != section:
            section = head
            lines += ["", head]
        shown = "null" if default is None else str(default).lower() if isinstance(default, bool) else default
        text = about["help"] + (f": {', '.join(about['choices'])}" if "choices" in about else "")
        lines.append(f"  --{key}={shown}\n        {text}")
    return "\n".join(lines)
