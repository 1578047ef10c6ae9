"""The published results that tables of evaluations are compared with, in percent: arXiv 2605.17333.

Averages are those of the paper; rows are the paper's, and its authors' in the README of their repository,
github.com/today-still-sleep-early/EDAS. The rows DAPO+EnAdv are the best of the checkpoints at every 10th step.
"""

from collections.abc import Sequence
from typing import Any

from minirl.evaluation.benchmarks import Benchmark

PAPER = "arXiv 2605.17333"
# column: (our benchmark, metric)
MATH = {
    "AMC23": ("amc2023", "accuracy"), "AMC24": ("amc2024", "accuracy"), "AIME24": ("aime2024", "accuracy"),
    "AIME25": ("aime2025", "accuracy"), "AIME26": ("aime2026", "accuracy"), "HMMT": ("hmmt_feb_2025", "accuracy"),
    "Olympiad": ("olympiadbench", "accuracy"),
}  # fmt: skip
CODE = {
    "LiveCodeBench": ("livecodebench_v6", "pass@8"), "Codeforces": ("codeforces", "pass@8"),
    "HumanEval+": ("humaneval_plus", "pass@1"), "MBPP+": ("mbpp_plus", "pass@1"),
}  # fmt: skip
AVERAGES = {  # (model, method): (rows, average)
    ("Qwen3-8B", "base"): ((67.03, 44.24, 23.85, 20.00, 15.10, 10.42, 54.75), 33.63),
    ("Qwen3-8B", "GRPO"): ((68.67, 48.75, 28.85, 23.75, 18.43, 11.25, 57.57), 36.75),
    ("Qwen3-8B", "PKPO"): ((71.95, 45.07, 29.16, 20.00, 18.85, 12.08, 58.90), 36.57),
    ("Qwen3-8B", "GRPO+EDAS"): ((73.52, 49.38, 27.81, 26.98, 19.06, 12.50, 59.20), 38.35),
    ("Qwen3-8B", "DAPO"): ((84.45, 56.88, 41.46, 38.12, 39.17, 15.94, 58.75), 47.82),
    ("Qwen3-8B", "DAPO+EnAdv"): ((81.02, 55.62, 31.81, 38.23, 33.23, 15.21, 58.31), 44.78),
    ("Qwen3-8B", "DAPO+EDAS"): ((90.39, 59.38, 48.85, 45.52, 48.65, 20.10, 65.88), 54.11),
    ("Qwen3-4B", "base"): ((67.03, 44.31, 22.08, 20.01, 18.02, 10.83, 53.41), 33.68),
    ("Qwen3-4B", "DAPO"): ((85.70, 57.15, 47.50, 43.54, 40.73, 22.40, 65.88), 51.84),
    ("Qwen3-4B", "DAPO+EnAdv"): ((77.27, 49.58, 34.58, 31.87, 26.77, 13.65, 59.35), 41.87),
    ("Qwen3-4B", "DAPO+EDAS"): ((88.59, 58.19, 46.46, 48.12, 44.27, 23.12, 67.36), 53.73),
    ("Qwen3-4B-Base", "base"): ((31.56, 12.08, 10.31, 5.52, 2.60, 1.56, 26.85), 12.93),
    ("Qwen3-4B-Base", "DAPO"): ((60.00, 33.68, 12.81, 18.02, 10.73, 8.33, 46.44), 27.14),
    ("Qwen3-4B-Base", "DAPO+EnAdv"): ((55.08, 34.24, 16.98, 17.40, 12.71, 6.67, 45.25), 26.90),
    ("Qwen3-4B-Base", "DAPO+EDAS"): ((72.73, 48.68, 24.17, 25.21, 20.97, 10.94, 56.50), 37.02),
    ("Qwen3-4B code", "DAPO"): ((31.21, 42.42, 79.88, 63.23), 54.19),
    ("Qwen3-4B code", "DAPO+EDAS"): ((32.07, 45.97, 80.49, 64.02), 55.64),
}


def columns_of(model: str) -> dict[str, tuple[str, str]]:
    """The columns of a model's table."""
    return CODE if model.endswith("code") else MATH


def published(benchmarks: Sequence[Benchmark]) -> list[dict[str, Any]]:
    """{model, method, values: {our benchmark: percent}, average} of every published row with a value for one of `benchmarks`.

    A value is shown where the metric is the published one; the average only where exactly its benchmarks are averaged.
    """
    metric = {b.name: b.metric.replace("accuracy", "pass@1") for b in benchmarks}
    averaged = {b.name for b in benchmarks if b.in_average}
    rows = []
    for (model, method), (values, average) in AVERAGES.items():
        columns = [(name, shown.replace("accuracy", "pass@1")) for name, shown in columns_of(model).values()]
        known = {name: v for (name, shown), v in zip(columns, values, strict=True) if metric.get(name) == shown}
        whole = averaged == {name for name, _ in columns} and all(metric[name] == shown for name, shown in columns)
        if known or whole:
            rows.append({"model": model, "method": method, "values": known, "average": average if whole else None})
    return rows
