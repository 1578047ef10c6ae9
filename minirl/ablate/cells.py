"""The cells of a comparison: every arm (an estimator with its options) with every seed, each one run of train.py."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from minirl.config.checks import duration
from minirl.config.command_line import flat_options, load, read_yaml
from minirl.config.options import Config, as_tree, every_option
from minirl.evaluation.held_out import OPTIONS, SAMPLING
from minirl.run.folder import that_matter
from minirl.utils.console import replace_file
from minirl.utils.errors import ConfigError, require

SECTION = "ablate"  # of a config file: {arms: {NAME: {option: value}}, baseline: NAME, seeds: N}
OWN = ("run.seed", "run.dir", "run.resume", "eval.before")  # what the comparison sets itself
# Cells that agree in these share the evaluation before the first step: what held_out.conditions compares, with the whole
# sections that decide the contents and the rounding.
SHARED = (*OPTIONS, "model.", "data.", "rollout.vllm.", "run.seed")
SHARED_EVAL = ("problems", *SAMPLING)


@dataclass(frozen=True)
class Arm:
    """What one side of a comparison sets: {option: value as text}."""

    name: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Design:
    """A comparison. arms: the first one is compared with if no other is named; base: the config file that they share, with
    `options` set in all of them; seeds: the largest number of seeds; first_seed: the first one."""

    base: Path | None
    options: Mapping[str, str]
    arms: Sequence[Arm]
    baseline: str
    seeds: int
    first_seed: int = 0

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        require(len(set(names)) == len(names), f"two arms have the same name: {', '.join(names)}")
        require(len(names) > 1, f"a comparison needs two arms or more, not {', '.join(names) or 'none'}")
        require(self.baseline in names, f"the baseline {self.baseline!r} is none of the arms {', '.join(names)}")
        require(self.seeds >= 1, f"--seeds must be at least 1, not {self.seeds}")
        for where, options in (("the command line", self.options), *((f"arm {arm.name}", arm.options) for arm in self.arms)):
            own = ", ".join(key for key in options if key in OWN)
            require(not own, f"{where} sets {own}, which a comparison sets itself: use --seeds and --out")


@dataclass(frozen=True)
class Cell:
    """One run. folder: its run folder; config: resolved; shared: what its evaluation before the first step depends on."""

    arm: Arm
    seed: int
    folder: Path
    config: Config
    shared: str

    @property
    def name(self) -> str:
        """Such as "dapo+edas, seed 3"."""
        return f"{self.arm.name}, seed {self.seed}"

    @property
    def evaluation(self) -> Path:
        """The file of its evaluation before the first step."""
        return self.folder / "evaluations" / "step000000.json"


def arms_of(estimators: Sequence[str], grid: Sequence[str]) -> list[Arm]:
    """The product of estimators and grid entries "key=v1,v2"; an arm's name has the estimator and the last part of each key."""
    axes: list[list[tuple[str, str]]] = []
    for text in grid:
        key, equals, values = text.partition("=")
        require(bool(equals and values), f"--grid takes key=value,value such as optimizer.lr=1e-4,3e-4, not {text!r}")
        found = [value.strip() for value in split(values)]
        require(all(found), f"--grid {text} has an empty value")
        axes.append([(key.strip().lstrip("-"), value) for value in found])
    arms = []
    for estimator, point in itertools.product(estimators or [""], itertools.product(*axes)):
        named = [estimator] * bool(estimator) + [f"{key.rpartition('.')[2]}={value}" for key, value in point]
        arms.append(Arm(" ".join(named), ({"algorithm.estimator": estimator} if estimator else {}) | dict(point)))
    return arms


def split(text: str) -> list[str]:
    """The parts between the commas of a text that are inside no brackets: "[a,[b,c]],d" has two."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def section_of(base: Path) -> dict[str, Any]:
    """The section `ablate` of a config file, {} without one. ConfigError for what cannot be one."""
    section = read_yaml(base).get(SECTION) or {}
    fits = isinstance(section, dict) and isinstance(section.get("arms") or {}, dict)
    require(fits, f"the section {SECTION} of {base} is written as arms: {{NAME: {{option: value}}}}, not {section!r}")
    unknown = ", ".join(map(str, set(section) - {"arms", "baseline", "seeds", "first_seed"}))
    require(not unknown, f"the section {SECTION} of {base} has arms, baseline, seeds and first_seed, not {unknown}")
    for name in ("seeds", "first_seed"):
        value = section.get(name, 0)
        require(isinstance(value, int), f"{SECTION}.{name} of {base} must be a whole number, not {value!r}")
    return section


def design_of(
    base: Path | None, estimators: Sequence[str], grid: Sequence[str], options: Mapping[str, str], seeds: int | None,
    baseline: str | None, only: Sequence[str] = (),
) -> Design:  # fmt: skip
    """The design that the command line and the config file's section `ablate` give; the command line wins.

    only: names of the file's arms to run. ConfigError for an arm or a section that cannot be.
    """
    section = section_of(base) if base else {}
    if estimators or grid:
        arms = arms_of(estimators, grid)
    else:
        arms = [Arm(str(name), flat_options(values)) for name, values in (section.get("arms") or {}).items()]
        baseline = baseline or section.get("baseline")
    if only:
        missing = set(only) - {arm.name for arm in arms}
        require(
            not missing, f"--arms: there is no arm {', '.join(sorted(missing))}; there are {', '.join(a.name for a in arms)}"
        )
        arms = [arm for arm in arms if arm.name in only]
    require(bool(arms), f"nothing to compare: give --estimators a,b or a config with a section {SECTION}")
    count = seeds if seeds is not None else int(section.get("seeds", 3))
    return Design(base, options, arms, baseline or arms[0].name, count, int(section.get("first_seed", 0)))


def config_of(design: Design, arm: Arm, seed: int) -> Config:
    """The resolved config of a cell. ConfigError, naming the arm, when it cannot work."""
    values = dict(design.options) | dict(arm.options) | {"run.seed": str(seed)}
    try:
        return load([*([str(design.base)] if design.base else []), *(f"--{key}={value}" for key, value in values.items())])
    except ConfigError as error:
        raise ConfigError(f"arm {arm.name}: {error}") from None


def cells_of(design: Design, out: Path) -> list[Cell]:
    """All cells, seed by seed, so that whatever is finished when one stops is paired."""
    cells = []
    for seed in range(design.first_seed, design.first_seed + design.seeds):
        for arm in design.arms:
            config = config_of(design, arm, seed)
            shared = that_matter(config, SHARED) | {name: getattr(config.eval, name) for name in SHARED_EVAL}
            folder = out / "runs" / re.sub(r"[^\w.+=-]|^\.+", "_", arm.name) / f"seed{seed}"
            cells.append(Cell(arm, seed, folder, config, json.dumps(shared, sort_keys=True, default=str)))
    check_alike(cells)
    folders = {cell.folder for cell in cells}
    require(
        len(folders) == len(cells), "two arms have names that give the same folder: " + ", ".join(a.name for a in design.arms)
    )
    return cells


def check_alike(cells: Sequence[Cell]) -> None:
    """ConfigError for arms that are evaluated differently, or do not differ at all."""
    for name in SHARED_EVAL:
        values = {cell.arm.name: getattr(cell.config.eval, name) for cell in cells}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{arm}: {value}" for arm, value in values.items())
            raise ConfigError(f"arms must be evaluated alike, and eval.{name} differs ({shown}): set it for all of them")
    configs: dict[str, str] = {}
    for cell in cells:
        if cell.seed == cells[0].seed:
            twin = configs.setdefault(repr(as_tree(cell.config)), cell.arm.name)
            require(twin == cell.arm.name, f"arms {twin} and {cell.arm.name} have the same options: nothing to compare")


def write_config(cell: Cell, path: Path) -> None:
    """Writes a cell's whole config, so that later changes of the base file do not matter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, yaml.safe_dump(as_tree(cell.config), sort_keys=False, allow_unicode=True))


def differing(cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """{option: {arm: value}} of the options in which arms differ; the run's folder and seed are left out."""
    trees = {cell.arm.name: {key: value for key, value, _ in every_option(cell.config)} for cell in cells}
    keys = dict.fromkeys(key for tree in trees.values() for key in tree)
    table = {key: {arm: tree.get(key) for arm, tree in trees.items()} for key in keys if key not in ("run.seed", "run.dir")}
    return {key: row for key, row in table.items() if len({repr(value) for value in row.values()}) > 1}


def budget_options(budget: str | None) -> dict[str, str]:
    """The options of a budget: "steps=80", "tokens=2000000" or "time=30m", the same for every cell; nothing for None."""
    if budget is None:
        return {}
    kind, _, amount = budget.partition("=")
    if kind == "time":
        try:
            return {"run.seconds": str(duration(amount))}
        except ConfigError:
            raise ConfigError(f"--budget {budget}: a time is written as 2h50m, 90s or 1d, not {amount!r}") from None
    require(kind in ("steps", "tokens") and amount.isdecimal(), f"--budget takes steps=N, tokens=N or time=30m, not {budget!r}")
    return {f"run.{kind}": amount}
