"""The arithmetic of the published tables: averages, differences, totals and rates recomputed from the rows they summarise.

Averages are those of arXiv 2605.17333; rows are as its authors print them in the README of their repository,
github.com/today-still-sleep-early/EDAS. Methods of which only an average is known have no row and cannot be checked.
"""

from collections import Counter
from typing import Any

from minirl.analysis.output import Table

# Samples behind a figure, problems x samples each: a percentage must be a multiple of one of them. 45 for AMC24 is inferred:
# every row fits it.
MATH = dict(AMC23=40 * 32, AMC24=45 * 32, AIME24=30 * 32, AIME25=30 * 32, AIME26=30 * 32, HMMT=30 * 32, Olympiad=674)
CODE = {"LiveCodeBench": 0, "Codeforces": 0, "HumanEval+": 164, "MBPP+": 378}  # 0: pass@8, no multiple of anything simple
AVERAGES = {  # (model, method): (rows, average)
    ("Qwen3-8B", "base"): ((67.03, 44.24, 23.85, 20.00, 15.10, 10.42, 54.75), 33.63),
    ("Qwen3-8B", "GRPO"): ((68.67, 48.75, 28.85, 23.75, 18.43, 11.25, 57.57), 36.75),
    ("Qwen3-8B", "PKPO"): ((71.95, 45.07, 29.16, 20.00, 18.85, 12.08, 58.90), 36.57),
    ("Qwen3-8B", "GRPO+EDAS"): ((73.52, 49.38, 27.81, 26.98, 19.06, 12.50, 59.20), 38.35),
    ("Qwen3-8B", "DAPO"): ((84.45, 56.88, 41.46, 38.12, 39.17, 15.94, 58.75), 47.82),
    ("Qwen3-8B", "DAPO+EnAdv"): ((81.02, 55.62, 31.81, 38.23, 33.23, 15.21, 58.31), 44.78),
    ("Qwen3-8B", "DAPO+EDAS"): ((90.39, 59.38, 48.85, 45.52, 48.65, 20.10, 65.88), 54.11),
    ("Qwen3-4B", "base"): ((), 33.68),
    ("Qwen3-4B", "DAPO"): ((85.70, 57.15, 47.50, 43.54, 40.73, 22.40, 65.88), 51.84),
    ("Qwen3-4B", "DAPO+EnAdv"): ((), 41.87),
    ("Qwen3-4B", "DAPO+EDAS"): ((88.59, 58.19, 46.46, 48.12, 44.27, 23.12, 67.36), 53.73),
    ("Qwen3-4B-Base", "base"): ((), 12.93),
    ("Qwen3-4B-Base", "DAPO"): ((60.00, 33.68, 12.81, 18.02, 10.73, 8.33, 46.44), 27.14),
    ("Qwen3-4B-Base", "DAPO+EnAdv"): ((), 26.90),
    ("Qwen3-4B-Base", "DAPO+EDAS"): ((72.73, 48.68, 24.17, 25.21, 20.97, 10.94, 56.50), 37.02),
    ("Qwen3-4B code", "DAPO"): ((31.21, 42.42, 79.88, 63.23), 54.19),
    ("Qwen3-4B code", "DAPO+EDAS"): ((32.07, 45.97, 80.49, 64.02), 55.64),
}
# (model, benchmark or "average", what DAPO+EDAS is said to add to DAPO)
DELTAS = (
    ("Qwen3-8B", "average", 6.29), ("Qwen3-4B", "average", 1.89), ("Qwen3-4B-Base", "average", 9.88),
    ("Qwen3-8B", "AIME24", 7.39), ("Qwen3-8B", "AIME25", 7.29), ("Qwen3-8B", "AIME26", 9.48), ("Qwen3-8B", "HMMT", 4.16),
    ("Qwen3-8B", "AMC23", 5.94), ("Qwen3-4B code", "average", 1.45), ("Qwen3-4B code", "LiveCodeBench", 0.86),
    ("Qwen3-4B code", "Codeforces", 3.55), ("Qwen3-4B code", "HumanEval+", 0.61), ("Qwen3-4B code", "MBPP+", 0.79),
)  # fmt: skip
BREAKTHROUGHS = {  # problems at 0/32, solved by DAPO, by DAPO+EDAS, by the latter only
    "AIME25": (15, 6, 9, 3), "AIME26": (15, 7, 8, 1), "AMC24": (13, 5, 7, 3), "HMMT": (21, 4, 6, 3)
}  # fmt: skip
BREAKTHROUGHS_TOTAL = (64, 22, 30, 10)
# (what, value as published, from which numbers, decimals)
RATES = (
    ("DAPO's breakthrough rate, %", 34.4, "22 / 64", 100 * 22 / 64, 1),
    ("DAPO+EDAS's breakthrough rate, %", 46.9, "30 / 64", 100 * 30 / 64, 1),
    ("difference of the rates, points", 12.5, "(30 - 22) / 64", 100 * 8 / 64, 1),
    ("relative gain in breakthroughs, %", 36, "30 / 22 - 1", 100 * (30 / 22 - 1), 0),
)


YES, ROUNDING, NO = "yes", "within rounding", "NO"


def benchmarks_of(model: str) -> dict[str, int]:
    """The columns of a model's table."""
    return CODE if model.endswith("code") else MATH


def check(table: str, what: str, published: float, recomputed: float, unit: float, inputs: float, note: str) -> dict[str, Any]:
    """One figure. It adds up when it is the recomputed one in units of its last digit; `inputs`: what more the rounding of the
    numbers that it is made of may explain."""
    off = abs(published - recomputed) - unit / 2 - 1e-9
    adds_up = YES if off <= 0 else ROUNDING if off <= inputs else NO
    return {"table": table, "what": what, "published": published, "recomputed": recomputed, "adds_up": adds_up, "note": note}


def nearest(percent: float, samples: int) -> float:
    """The percentage nearest to `percent` that a count of `samples` can give."""
    return 100 * round(percent * samples / 100) / samples


def checks() -> list[dict[str, Any]]:
    """Every figure that can be recomputed, with what it should be."""
    found = []
    for (model, method), (rows, average) in AVERAGES.items():
        if rows:
            name = f"{model} {method}"
            found.append(check("averages", name, average, sum(rows) / len(rows), 0.01, 0.005, "mean of the rows"))
    for model, benchmark, delta in DELTAS:
        (before, first), (after, second) = AVERAGES[model, "DAPO"], AVERAGES[model, "DAPO+EDAS"]
        if benchmark != "average":
            column = list(benchmarks_of(model)).index(benchmark)
            first, second = before[column], after[column]
        note = f"{second:.2f} - {first:.2f}"
        found.append(check("differences", f"{model} {benchmark}", delta, second - first, 0.01, 0.01, note))
    for (model, method), (rows, _) in AVERAGES.items():
        for (benchmark, samples), value in zip(benchmarks_of(model).items(), rows, strict=False):
            if samples:  # digits cut off instead of rounded explain half a unit more
                name, note = f"{model} {method}, {benchmark}", f"nearest of {samples} samples"
                found.append(check("counts", name, value, nearest(value, samples), 0.01, 0.005, note))
    for column, name in enumerate(("at 0/32", "solved by DAPO", "solved by DAPO+EDAS", "solved by DAPO+EDAS only")):
        total = sum(row[column] for row in BREAKTHROUGHS.values())
        found.append(check("breakthroughs", f"total {name}", BREAKTHROUGHS_TOTAL[column], total, 0, 0, "sum of the benchmarks"))
    for what, value, how, recomputed, decimals in RATES:
        found.append(check("breakthroughs", what, value, recomputed, 10**-decimals, 0, how))
    return found


def analyse() -> dict[str, Any]:
    """The checks, and the averages that have no rows."""
    unchecked = [f"{model} {method} {average:.2f}" for (model, method), (rows, average) in AVERAGES.items() if not rows]
    return {"checks": checks(), "unchecked": unchecked}


def tables(result: dict[str, Any]) -> list[str | Table]:
    """What does not add up, and every figure but the counts."""
    head = ["table", "figure", "published", "recomputed", "off by", "adds up", "from"]
    odd, every = [head], [head]
    counts: dict[str, Counter[str]] = {}
    for c in result["checks"]:
        off = f"{c['published'] - c['recomputed']:+.4f}"
        row = [c["table"], c["what"], f"{c['published']:g}", f"{c['recomputed']:.4f}", off, c["adds_up"], c["note"]]
        counts.setdefault(c["table"], Counter())[c["adds_up"]] += 1
        if c["adds_up"] != YES:
            odd.append(row)
        if c["table"] != "counts":
            every.append(row)
    summary = [["table", YES, ROUNDING, NO], *([t, *(str(n[k]) for k in (YES, ROUNDING, NO))] for t, n in counts.items())]
    return [
        "Published figures recomputed from the published numbers that they summarise. Within rounding: not what those numbers "
        "give, but what numbers that round to them (or, for counts, that were cut to two decimals) can give. Counts: a mean "
        "over n samples is a multiple of 1/n; n is 32 x 40 (AMC23), 45 (AMC24, inferred) or 30 problems, 674 for "
        "OlympiadBench, 164 and 378 for code.",
        summary,
        "What does not add up:",
        odd,
        "All but the counts:",
        every,
        f"Only an average is known, nothing to check: {', '.join(result['unchecked'])}.",
    ]


def draw(result: dict[str, Any], plt: Any) -> Any:
    """The figure. plt: matplotlib.pyplot."""
    figure, axes = plt.subplots(1, 2, figsize=(13, 5), layout="constrained", width_ratios=(1, 1.4))
    colours = {YES: "C0", ROUNDING: "C1", NO: "C3"}
    for axis, table in zip(axes, ("averages", "counts"), strict=True):
        found = [c for c in result["checks"] if c["table"] == table]
        axis.axhspan(-0.005, 0.005, color="0.9", label="the same in two decimals")
        above = False
        for place, c in enumerate(found):
            off = c["published"] - c["recomputed"]
            axis.scatter(place, off, s=14, color=colours[c["adds_up"]])
            if c["adds_up"] != YES:
                side = "right" if place > len(found) / 2 else "left"
                axis.annotate(f"  {c['what']}  ", (place, off), fontsize=8, ha=side, va="bottom" if above else "top")
                above = not above  # neighbours do not cover each other
        axis.set(title=f"{table}: published minus recomputed, points", xticks=[], xlabel="figures in the order of the tables")
        axis.legend(fontsize=8, loc="upper left")
    return figure
