"""What the analyses read: samples of evaluations (eval.py) and of training runs (train.py), a problem at a time."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from minirl.config.command_line import labelled
from minirl.data.rows import read_jsonl
from minirl.utils.errors import ConfigError
from minirl.verify.types import ERROR, RIGHT, WRONG

Row = dict[str, Any]
Key = tuple[str, int]  # benchmark, index of the problem
COLUMNS = (
    "model", "benchmark", "problem", "index", "sample", "prompt", "gold", "response", "status", "label", "key", "tokens"
)  # fmt: skip
SETTINGS = ("sha256", "samples", "temperature")  # what must be the same before and after training
WORD = re.compile(r"(?<![\\\w])[^\W\d_]{2,}")  # of two letters or more, and no LaTeX command
FEWEST_WORDS = 5  # of the middle wrong response: with fewer there is no prose
TRAINING = "training"  # what stands for a benchmark where the samples are a run's rollouts


@dataclass(frozen=True)
class Attempts:
    """All samples of one model for one problem. Samples without verdict (status "error") count nowhere."""

    samples: tuple[Row, ...]

    @cached_property
    def judged(self) -> int:
        return sum(row["status"] != ERROR for row in self.samples)

    @cached_property
    def right(self) -> list[Row]:
        return [row for row in self.samples if row["status"] == RIGHT]

    @cached_property
    def wrong(self) -> list[Row]:
        """Wrong samples that the verifier gave an error class: those that can be classified."""
        return [row for row in self.samples if row["status"] == WRONG and row["label"]]

    @property
    def name(self) -> str:
        return f"{self.samples[0]['benchmark']} {self.samples[0]['problem']}"


Problems = dict[Key, Attempts]


def load(inputs: Sequence[str]) -> dict[str, Problems]:
    """{model: its problems}, models in the order of the inputs.

    An input is the folder of an evaluation (or its samples.jsonl), or a run folder of train.py, whose rollouts/ are read, every
    group a problem of its own; LABEL=PATH renames the one model in it. ConfigError for what cannot be read, names the line.
    """
    found: dict[str, dict[Key, dict[int, Row]]] = {}
    for text in inputs:
        label, path = labelled(text)
        rows = list(read(path))
        models = sorted({row["model"] for row in rows})
        if label and len(models) > 1:
            raise ConfigError(f"{text}: {path} holds {len(models)} models ({', '.join(models)}), and a label can name only one")
        for row in rows:
            model = label or row["model"]
            samples = found.setdefault(model, {}).setdefault((row["benchmark"], row["index"]), {})
            if row["sample"] in samples:
                raise ConfigError(
                    f"{path}: sample {row['sample']} of {model} for {row['benchmark']} {row['problem']} was read already: name "
                    "the models apart with LABEL=PATH"
                )
            samples[row["sample"]] = row
    return {
        model: {key: Attempts(tuple(samples.values())) for key, samples in problems.items()}
        for model, problems in found.items()
    }


def read(path: Path) -> Iterator[Row]:
    """The rows of an evaluation or a run folder, with every column of COLUMNS."""
    rollouts = sorted((path / "rollouts").glob("step*.jsonl"))
    file = path / "samples.jsonl" if path.is_dir() else path
    records: Row = {}
    if file.is_file():
        rows = rows_with(file, COLUMNS)
        records = records_of(file)
    elif rollouts:
        rows = [row for step in rollouts for row in rollout_rows(step, path.resolve().name)]
    elif any(path.glob("samples.rank*.jsonl")):
        raise ConfigError(f"{path} is an evaluation that has not finished: run its eval.py again, which resumes it")
    else:
        raise ConfigError(f"{path} is neither an evaluation (samples.jsonl) nor a run folder with rollouts/step*.jsonl")
    if not rows:
        raise ConfigError(f"{file} has no samples")
    for row in rows:
        if row["status"] not in (RIGHT, WRONG, ERROR):
            raise ConfigError(f"{file}: {row['problem']} has the status {row['status']!r}; there are {RIGHT}, {WRONG}, {ERROR}")
        yield row | {"record": records.get(row["benchmark"])}


def records_of(file: Path) -> Row:
    """{benchmark: its record} from the results.json next to `file`; {} without one. Given responses have no temperature."""
    path = file.with_name("results.json")
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        given = found["engine"]["name"] == "none"
        return {name: record | ({"temperature": None} if given else {}) for name, record in found["benchmarks"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not what eval.py writes ({error!r}): run eval.py again, or remove it") from None


def rollout_rows(path: Path, model: str) -> list[Row]:
    """Rollouts of one training step as samples: the policy is another at every step, so is every group a problem."""
    step = int(path.stem.removeprefix("step"))
    rows = rows_with(path, ("group", "prompt", "gold", "response", "status", "label", "key", "tokens"))
    return [
        row | {"model": model, "benchmark": TRAINING, "problem": f"step {step} group {row['group']}",
               "index": step * 10**9 + row["group"], "sample": i}
        for i, row in enumerate(rows)
    ]  # fmt: skip


def rows_with(path: Path, columns: Sequence[str]) -> list[Row]:
    """The objects of a JSONL file that all have `columns`; without its empty lines."""
    return [row for row in read_jsonl(path, columns) if row is not None]


def chosen(models: Mapping[str, Problems], labels: Sequence[str]) -> dict[str, Problems]:
    """The models with these labels, all if there are none. ConfigError lists what there is."""
    if unknown := [label for label in labels if label not in models]:
        raise ConfigError(f"no samples of {unknown[0]!r}: there are {', '.join(models)}")
    return {label: models[label] for label in labels or models}


def answered(models: Mapping[str, Problems]) -> dict[str, Problems]:
    """The models without wrong responses that gave no answer (labels in angle brackets): those share a class, not an answer."""
    return {
        label: {
            key: Attempts(kept) for key, a in problems.items()
            if (kept := tuple(row for row in a.samples if not row["label"].startswith("<")))
        }
        for label, problems in models.items()
    }  # fmt: skip


def without_prose(models: Mapping[str, Problems], what: str) -> list[str]:
    """A sentence for each model whose wrong responses have no wording beside their answer, so that `what` says nothing there:
    half of them have fewer than FEWEST_WORDS words, or half of the pairs of one class are the same text."""
    found = []
    for label, problems in models.items():
        wrong = [attempts.wrong for attempts in problems.values()]
        words = median([len(WORD.findall(row["response"])) for rows in wrong for row in rows] or [FEWEST_WORDS])
        pairs = [(a, b) for rows in wrong for a, b in combinations(rows, 2) if a["label"] == b["label"]]
        same = sum(a["response"] == b["response"] for a, b in pairs)
        why = [f"half of them have {words:g} words or fewer"] * (words < FEWEST_WORDS)
        why += [f"{100 * same / len(pairs):.0f}% of the pairs of one class are the same text"] if 2 * same > len(pairs) else []
        if why:
            found.append(
                f"Not to be read from the wrong responses of {label}: {what}. They hold little beside their answer "
                f"({', '.join(why)}), so that wording and class are nearly one thing here."
            )
    return found


def before_and_after(
    models: Mapping[str, Problems], before: str | None, after: Sequence[str]
) -> tuple[str, Problems, dict[str, Problems]]:
    """(label, problems) before training and {label: problems} after it, on the same problems.

    Without labels, the first model is the one before, all others are after. ConfigError when they differ in their problems.
    """
    first = before or next(iter(models))
    base = chosen(models, [first])[first]
    methods = chosen(models, after or [label for label in models if label != first])
    if not methods or first in methods:
        raise ConfigError(f"nothing to compare {first!r} with: there are samples of {', '.join(models)}")
    if any(benchmark == TRAINING for problems in (base, *methods.values()) for benchmark, _ in problems):
        raise ConfigError("rollouts of training are of many policies: evaluate the model before and after with eval.py")
    for label, problems in methods.items():
        if base.keys() != problems.keys():
            odd = sorted(base.keys() ^ problems.keys())
            where = first if odd[0] in base else label
            raise ConfigError(
                f"{first} and {label} have different problems: {len(odd)} are in only one of them, such as {odd[0][0]} number "
                f"{odd[0][1]}, only in {where}"
            )
        for key, attempts in problems.items():
            one, other = base[key].samples[0], attempts.samples[0]
            if (one["problem"], one["gold"]) != (other["problem"], other["gold"]):
                raise ConfigError(
                    f"{first} and {label} have different problems: {key[0]} number {key[1]} is {one['problem']!r} with the "
                    f"answer {one['gold']!r} in one, {other['problem']!r} with {other['gold']!r} in the other"
                )
            for setting in SETTINGS if one["record"] and other["record"] else ():
                here, there = one["record"].get(setting), other["record"].get(setting)
                if here != there and None not in (here, there):
                    raise ConfigError(
                        f"{first} and {label} cannot be compared on {key[0]}: {setting} is {here} of {first}, {there} of "
                        f"{label}; evaluate both alike"
                    )
    return first, base, methods
