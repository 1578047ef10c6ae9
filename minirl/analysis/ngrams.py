"""Do responses with the same wrong answer share their wording: within- against between-class 3-gram similarity."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from minirl.analysis.output import CONTRAST_HEAD, Table, contrast, contrast_cells
from minirl.analysis.samples import Problems, Row, without_prose
from minirl.utils.errors import ConfigError

TOKEN = re.compile(r"\\?\w+|[^\w\s]")
TEXTS = {"whole": "whole responses", "before": "text before the last box"}


def tokens(text: str) -> list[str]:
    r"""Lower-case words and numbers, a LaTeX command with its backslash as one, every other visible character by itself:
    '2x = \\frac{1}{2}' -> 2x = \\frac { 1 } { 2 }."""
    return TOKEN.findall(text.lower())


def ngrams(text: str, n: int = 3) -> frozenset[tuple[str, ...]]:
    """The different runs of n tokens of a text."""
    found = tokens(text)
    return frozenset(tuple(found[i : i + n]) for i in range(len(found) - n + 1))


def similarity(a: frozenset[Any], b: frozenset[Any]) -> float:
    """Jaccard: common / all different n-grams; 0 <= s <= 1. ValueError for a text without any."""
    if not a or not b:
        raise ValueError("no n-grams to compare")
    return len(a & b) / len(a | b)


def within_between(values: Sequence[tuple[str, str, float]]) -> dict[str, float] | None:
    """{within, between}: mean over pairs (class, class, value) of one class and of two; None without pairs of both sorts."""
    within = [v for one, other, v in values if one == other]
    between = [v for one, other, v in values if one != other]
    return {"within": float(np.mean(within)), "between": float(np.mean(between))} if within and between else None


def before_the_answer(row: Row) -> str:
    r"""The response up to its last \boxed: two equal answers are then no part of the similarity."""
    return row["response"].rpartition("\\boxed")[0] or (row["response"] if "\\boxed" not in row["response"] else "")


def analyse(models: Mapping[str, Problems], seed: int) -> dict[str, Any]:
    """{model: {text: contrast or None}}, over problems that have two wrong responses of one class and two of different ones."""
    result: dict[str, Any] = {"models": {}, "problems": {}, "too_short": {}}
    result["unreadable"] = without_prose(models, "whether equal answers come from alike reasoning")
    for label, problems in models.items():
        if not any(attempts.wrong for attempts in problems.values()):
            raise ConfigError(f"{label} has no wrong answers with an error class, so there is nothing to compare")
        result["models"][label], result["problems"][label], result["too_short"][label] = {}, {}, {}
        for text in TEXTS:
            rows: list[dict[str, Any]] = []
            short = 0
            for attempts in problems.values():
                texts = [row["response"] if text == "whole" else before_the_answer(row) for row in attempts.wrong]
                made = [(row["label"], ngrams(t)) for row, t in zip(attempts.wrong, texts, strict=True)]
                kept = [(cls, grams) for cls, grams in made if grams]
                short += len(made) - len(kept)
                means = within_between([(c, d, similarity(a, b)) for (c, a), (d, b) in combinations(kept, 2)])
                if means:
                    ratio = means["within"] / means["between"] if means["between"] else None
                    benchmark = attempts.samples[0]["benchmark"]
                    rows.append({"problem": attempts.name, "benchmark": benchmark, **means, "ratio": ratio})
            result["models"][label][text] = contrast(rows, seed) if rows else None
            result["problems"][label][text], result["too_short"][label][text] = rows, short
    if not any(found for texts in result["models"].values() for found in texts.values()):
        raise ConfigError(
            "no problem has two wrong responses of one class and two of different classes, each of three tokens or more: "
            "sample more responses a problem"
        )
    return result


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """{benchmark: within / between of its problems, the largest first}; infinite where nothing is shared between classes."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["benchmark"], []).append(float("inf") if row["ratio"] is None else row["ratio"])
    return {benchmark: sorted(values, reverse=True) for benchmark, values in found.items()}


def tables(result: Mapping[str, Any]) -> list[str | Table]:
    """A row for each model and text; the ratios of each benchmark."""
    by_benchmark: Table = [["model", "text", "benchmark", "problems", "median within / between", "ratio above 1, %"]]
    for label, rows_of in result["problems"].items():
        for text, rows in rows_of.items():
            for benchmark, values in ratios(rows).items():
                above = 100 * np.mean([value > 1 for value in values])
                cells = [str(len(values)), f"{np.median(values):.2f}", f"{above:.1f}"]
                by_benchmark.append([label, TEXTS[text], benchmark, *cells])
    table: Table = [["model", "text", *CONTRAST_HEAD, "too short"]]
    for label, texts in result["models"].items():
        for text, found in texts.items():
            cells = contrast_cells(found) if found else ["0", *["–"] * 6]
            table.append([label, TEXTS[text], *cells, str(result["too_short"][label][text])])
    return [
        *result["unreadable"],
        "Jaccard similarity of the sets of token 3-grams of wrong responses to one problem: mean over pairs, then over "
        "problems with pairs of both sorts; 95% bootstrap intervals over problems, sign-flip p. Too short: fewer "
        "than three tokens, left out.",
        table,
        "The ratio within / between of each problem; above 1, responses with one answer are worded more alike than others.",
        by_benchmark,
    ]


def draw(result: Mapping[str, Any], plt: Any) -> Any:
    """The figure: a row a model and text, a panel a benchmark, a point a problem. plt: matplotlib.pyplot."""
    shown = [(m, t, ratios(rows)) for m, texts in result["problems"].items() for t, rows in texts.items() if rows]
    benchmarks = list(dict.fromkeys(b for *_, found in shown for b in found))
    size = (max(5, 3.2 * len(benchmarks)), 3.4 * len(shown))
    figure, axes = plt.subplots(len(shown), len(benchmarks), figsize=size, layout="constrained", squeeze=False)
    for line, (model, text, found) in zip(axes, shown, strict=True):
        for axis, benchmark in zip(line, benchmarks, strict=True):
            values = found.get(benchmark, [])
            finite = [value for value in values if np.isfinite(value)]
            axis.plot(range(len(values) - len(finite), len(values)), finite, "o", markersize=4, alpha=0.6)
            axis.axhline(1, color="0.5", linewidth=1, linestyle="--")
            above = f"{sum(value > 1 for value in values)} of {len(values)} above 1"
            axis.set(title=f"{benchmark}: {above}", xlabel="problems by ratio", xticks=[])
        line[0].set_ylabel(f"{model}, {TEXTS[text]}\nwithin / between", fontsize=8)
    return figure
