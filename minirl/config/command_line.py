"""A run's config from its command line: the defaults, then a YAML file, then `--section.key=value`, later ones winning.

An unknown key, a value of the wrong type or a combination that cannot work raises ConfigError with one sentence that names the
value and the remedy; entry points print it and exit with code 2 before any model is loaded.
"""

import difflib
import math
import sys
import typing
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from minirl.config.checks import check
from minirl.config.options import Config, every_option
from minirl.utils.errors import ConfigError

SHORT = {"run-dir": "run.dir", "resume": "run.resume", "stop-after": "run.stop_after"}


def command_line(program: str, argv: Sequence[str]) -> Config:
    """The config that the arguments describe. Ends the process for --help (exit code 0) and for bad input (2, one sentence)."""
    if "--help" in argv or "-h" in argv:
        print(help_text())
        sys.exit(0)
    try:
        return load(argv)
    except ConfigError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(2)


def load(argv: Sequence[str]) -> Config:
    """The config that `[CONFIG.yaml] [--section.key=value ...] [--run-dir DIR] [--dry-run] [--replay RUN/stepN]` describes,
    resolved and checked. A replay has the run's own config, unless another one is named."""
    arguments = [argument for argument in argv if argument != "--dry-run"]
    file = Path(arguments.pop(0)) if arguments and not arguments[0].startswith("--") else None
    given = list(pairs(arguments))
    if file is None and (replayed := dict(given).get("replay")) is not None:
        file = run_of(replayed) / "config.yaml"
    tree = read_yaml(file) if file else {}
    for key, text in given:
        node = tree
        *sections, leaf = key.split(".")
        for section in sections:
            node = node.setdefault(section, {})
            if not isinstance(node, dict):
                raise ConfigError(f"option --{key}: {section!r} is a value, not a section")
        node[leaf] = parse(text, key)
    if "--dry-run" in argv:
        tree["dry_run"] = True
    config = resolve(fill(Config, tree, ""))
    check(config)
    return config


def pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(key, text) of each `--key=text` and `--key text`."""
    following = iter(arguments)
    for argument in following:
        if not argument.startswith("--"):
            raise ConfigError(f"unexpected argument {argument!r}: options are written --section.key=value")
        key, equals, text = argument[2:].partition("=")
        value = text if equals else next(following, None)
        if value is None:
            raise ConfigError(f"option {argument!r} has no value: write {argument}=VALUE")
        yield SHORT.get(key.replace("_", "-"), key), value


def run_of(step: str) -> Path:
    """The run folder of RUN/stepN or RUN/batches/stepN."""
    path = Path(step).expanduser()
    return path.parents[1] if path.parent.name == "batches" else path.parent


def labelled(text: str) -> tuple[str, Path]:
    """(label or "", path) of PATH or LABEL=PATH; where the whole text is a path that exists, it is no label."""
    label, equals, path = text.partition("=")
    if not equals or Path(text).expanduser().exists():
        label, path = "", text
    return label, Path(path).expanduser()


def parse(text: str, key: str) -> Any:
    """A value of the command line: text and numbers as they stand, everything else as YAML."""
    kind: Any = Config
    for part in key.split("."):  # what is no option, `fill` says
        kind = typing.get_type_hints(kind).get(part) if is_dataclass(kind) else None
    if nullable(kind)[0] in (str, int, float):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--{key}={text} is not valid YAML: {' '.join(str(error).split())}") from None


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
    known = {f.name: hints[f.name] for f in fields(cls) if f.name != "base"}  # the estimator that another one shapes
    values = {}
    for key, value in tree.items():
        if key not in known:
            raise ConfigError(f"unknown option {path}{key}: {closest(f'{path}{key}', path)}")
        kind = known[key]
        values[key] = fill(kind, value, f"{path}{key}.") if is_dataclass(kind) else coerce(value, kind, f"{path}{key}")
    try:
        return cls(**values)
    except ValueError as error:  # a estimator's own check
        raise ConfigError(str(error)) from None


def closest(key: str, path: str) -> str:
    """The remedy for an unknown key: the closest key of its section, or of the whole tree, or those of its section."""
    options = [option for option, *_ in every_option()]
    here = list(dict.fromkeys(option[len(path) :].partition(".")[0] for option in options if option.startswith(path)))
    by_name = {option.rpartition(".")[2]: option for option in reversed(options)}  # the first of several
    near = difflib.get_close_matches(key, [path + name for name in here], 1)
    near = near or [by_name[name] for name in difflib.get_close_matches(key.rpartition(".")[2], by_name, 1)]
    if not near:
        return f"known here are {', '.join(here)} (train.py --help lists all)"
    return f"did you mean {near[0]}? (train.py --help lists all)"


def nullable(kind: Any) -> tuple[Any, bool]:
    """(T, True) for the type `T | None`, (T, False) for any other T."""
    parts = typing.get_args(kind)
    return (parts[0], True) if parts[1:] == (type(None),) else (kind, False)


def coerce(value: Any, kind: Any, key: str) -> Any:
    """`value` as `kind`, which is Any, bool, int, float, str, list[...], dict[...] or one of them or None."""
    if kind is Any:
        return value
    kind, optional = nullable(kind)
    if optional and value in (None, "null", "none", "None"):
        return None
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
    if kind is bool and isinstance(value, bool):
        return value
    if kind in (str, int, float) and isinstance(value, str | int | float) and not isinstance(value, bool):
        if kind is str:
            return str(value)
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
        requirements, loss = config.build_estimator().requirements, config.build_loss()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    a = config.algorithm
    filled = {
        name: next(x for x in (getattr(a, name), getattr(loss, name, None), getattr(requirements, name)) if x is not None)
        for name in ("dynamic_sampling", "clip_low", "clip_high", "loss_agg_mode", "loss")
    }
    length = config.rollout.max_response_tokens if config.eval.max_response_tokens is None else config.eval.max_response_tokens
    return replace(config, algorithm=replace(a, **filled), eval=replace(config.eval, max_response_tokens=length))


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
