"""Responses that are given and not sampled: somebody else's, and gold solutions, whose verdict must be right."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from minirl.data.rows import read_jsonl
from minirl.evaluation.benchmarks import Loaded
from minirl.evaluation.folder import Row
from minirl.evaluation.running import Response
from minirl.utils.errors import ConfigError

Given = dict[str, dict[str, list[Response]]]  # responses by model and benchmark


def description(file: Path | None) -> Row:
    """Where given responses come from."""
    if file is None:
        return {"responses": "gold answers and canonical programs"}
    return {"responses": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def canonical(loaded: Sequence[Loaded]) -> tuple[list[Loaded], Given]:
    """Gold answers and canonical programs as responses of a model called "canonical". Problems without one are left out, with
    a note."""
    kept, answers = [], {}
    for one in loaded:
        name = one.benchmark.name
        solved = [i for i, solution in enumerate(one.solutions) if solution is not None]
        if not solved:
            raise ConfigError(f"{name} has no canonical solutions to check: leave it out by --skip {name}")
        kept.append(part(one, solved, 1, "canonical solutions"))
        answers[name] = [Response(i, 0, "", one.solutions[k] or "", None, None) for i, k in enumerate(solved)]
    return kept, {"canonical": answers}


def part(one: Loaded, chosen: Sequence[int], samples: int, source: str) -> Loaded:
    """The problems `chosen`, by their index in `one`, with so many responses each. What is left out gets a note; a metric that
    needs more responses becomes the accuracy, with a note."""
    b, notes = one.benchmark, list(one.notes)
    metric = b.metric if b.metric_k <= samples else "accuracy"
    if len(chosen) < len(one.problems):
        notes.append(f"{b.name}: {source} answer {len(chosen)} of {len(one.problems)} problems; the others count nowhere")
    if metric != b.metric:
        notes.append(
            f"{b.name}: the table shows accuracy: {b.metric} needs {b.metric_k} responses to each problem, not {samples}"
        )
    temperature = b.sampling.temperature if samples == 1 else b.sampling.temperature or 1.0
    return replace(
        one, benchmark=replace(b, metric=metric, sampling=replace(b.sampling, n=samples, temperature=temperature)),
        problems=[one.problems[i] for i in chosen], indices=[one.indices[i] for i in chosen],
        solutions=[one.solutions[i] for i in chosen], notes=notes,
    )  # fmt: skip


def read_responses(file: Path, loaded: Sequence[Loaded]) -> tuple[list[Loaded], Given]:
    """(benchmarks with the problems that have responses, responses by model and benchmark) of a JSONL file.

    A row: response; problem (its id) or index; benchmark, unless there is one only; model (the file's name otherwise); tokens
    and finish where known. samples.jsonl of an evaluation is such a file. Every problem needs as many responses as the others.
    """
    names = {one.benchmark.name: one for one in loaded}
    known: dict[str, dict[str, dict[Any, int]]] = {
        name: {"problem": {p.id: i for i, p in enumerate(one.problems)}, "index": {x: i for i, x in enumerate(one.indices)}}
        for name, one in names.items()
    }
    found: dict[str, dict[str, dict[int, list[Row]]]] = {}
    for number, row in enumerate(read_jsonl(file), 1):
        if row is None:
            continue  # an empty line
        name = row.get("benchmark", loaded[0].benchmark.name if len(loaded) == 1 else None)
        if name not in names:
            if "benchmark" in row:
                continue  # of a file with more benchmarks than were asked for
            raise ConfigError(f"{file}, row {number} does not name its benchmark, and {len(loaded)} are chosen")
        key = "problem" if "problem" in row else "index"
        problem = known[name][key].get(row.get(key))
        if problem is None or not isinstance(row.get("response"), str):
            raise ConfigError(
                f"{file}, row {number}: it needs a response (text) and the problem (an id of {name}) or index it answers, "
                f"and has {key} {row.get(key)!r}, response {type(row.get('response')).__name__}"
            )
        found.setdefault(str(row.get("model", file.stem)), {}).setdefault(name, {}).setdefault(problem, []).append(row)
    if not found:
        raise ConfigError(f"{file} has no response to a problem of {', '.join(names)}")
    kept: list[Loaded] = []
    answers: Given = {label: {} for label in found}
    for name, one in names.items():
        answered = sorted({problem for by_name in found.values() for problem in by_name.get(name, {})})
        counts = {len(by_name.get(name, {}).get(problem, [])) for by_name in found.values() for problem in answered}
        if len(counts) > 1 or not answered:
            raise ConfigError(f"{file}: problems of {name} have {sorted(counts)} responses: every model needs as many for each")
        kept.append(part(one, answered, counts.pop(), f"the responses of {file.name}"))
        for label, by_name in found.items():
            answers[label][name] = [
                Response(i, j, row.get("prompt", ""), row["response"], row.get("tokens"), row.get("finish"))
                for i, problem in enumerate(answered) for j, row in enumerate(by_name[name][problem])
            ]  # fmt: skip
    return kept, answers
