"""The arithmetic of the published tables: averages, differences, totals and rates recomputed from the rows they summarise.

The tables are in minirl/evaluation/published.py.
"""

from collections import Counter
from typing import Any

from minirl.analysis.breakthroughs import mcnemar_p
from minirl.analysis.output import Table
from minirl.evaluation.published import AVERAGES, columns_of

# Samples behind a figure, problems x samples each: a percentage must be a multiple of one of them. 45 for AMC24 is inferred:
# every row fits it. 0: pass@8, no multiple of anything simple.
SAMPLES = {
    "AMC23": 40 * 32, "AMC24": 45 * 32, "AIME24": 30 * 32, "AIME25": 30 * 32, "AIME26": 30 * 32, "HMMT": 30 * 32,
    "Olympiad": 674, "LiveCodeBench": 0, "Codeforces": 0, "HumanEval+": 164, "MBPP+": 378,
}  # fmt: skip
# (model, benchmark or "average", published gain of DAPO+EDAS over the strongest existing baseline of that column), those of the
# paper's text and of its code table; the paper prints one in every column.
DELTAS = (
    ("Qwen3-8B", "average", 6.29), ("Qwen3-4B", "average", 1.89), ("Qwen3-4B-Base", "average", 9.88),
    ("Qwen3-8B", "AIME24", 7.39), ("Qwen3-8B", "AIME25", 7.29), ("Qwen3-8B", "AIME26", 9.48), ("Qwen3-8B", "HMMT", 4.16),
    ("Qwen3-8B", "AMC23", 5.94), ("Qwen3-4B code", "average", 1.45), ("Qwen3-4B code", "LiveCodeBench", 0.86),
    ("Qwen3-4B code", "Codeforces", 3.55), ("Qwen3-4B code", "HumanEval+", 0.61), ("Qwen3-4B code", "MBPP+", 0.79),
)  # fmt: skip
BASELINES = ("DAPO", "DAPO+EnAdv")  # of the block that DAPO+EDAS stands in
# {model: {benchmark: problems at 0/32, solved by DAPO, by DAPO+EDAS, by the latter only}}, with the published totals
BREAKTHROUGHS = {
    "Qwen3-8B": {"AIME25": (15, 6, 9, 3), "AIME26": (15, 7, 8, 1), "AMC24": (13, 5, 7, 3), "HMMT": (21, 4, 6, 3)},
    "Qwen3-4B": {"AIME25": (10, 6, 6, 1), "AIME26": (13, 6, 6, 0), "AMC24": (12, 5, 6, 1), "HMMT": (19, 5, 6, 1)},
    "Qwen3-4B-Base": {"AIME25": (18, 0, 4, 4), "AIME26": (24, 4, 7, 4), "AMC24": (25, 13, 14, 1), "HMMT": (23, 1, 6, 5)},
}
TOTALS = {"Qwen3-8B": (64, 22, 30, 10), "Qwen3-4B": (54, 22, 24, 3), "Qwen3-4B-Base": (90, 18, 31, 14)}
# (what, value as published, from which numbers, recomputed, decimals)
RATES = (
    ("DAPO's breakthrough rate, %", 34.4, "22 / 64", 100 * 22 / 64, 1),
    ("DAPO+EDAS's breakthrough rate, %", 46.9, "30 / 64", 100 * 30 / 64, 1),
    ("difference of the rates, points", 12.5, "(30 - 22) / 64", 100 * 8 / 64, 1),
    ("relative gain in breakthroughs, %", 36, "30 / 22 - 1", 100 * (30 / 22 - 1), 0),
    ("diverse groups, DAPO+EDAS / DAPO", 1.61, "144.1 / 89.5", 144.1 / 89.5, 2),
    ("diverse groups, DAPO+EDAS / DAPO, in a caption", 1.71, "144.1 / 89.5", 144.1 / 89.5, 2),
)


YES, ROUNDING, NO = "yes", "within rounding", "NO"


def check(table: str, what: str, published: float, recomputed: float, unit: float, inputs: float, note: str) -> dict[str, Any]:
    """One figure. It adds up when it is the recomputed one in units of its last digit; `inputs`: what more the rounding of the
    numbers that it is made of may explain."""
    off = abs(published - recomputed) - unit / 2 - 1e-9
    adds_up = YES if off <= 0 else ROUNDING if off <= inputs else NO
    return {"table": table, "what": what, "published": published, "recomputed": recomputed, "adds_up": adds_up, "note": note}


def value_of(model: str, method: str, benchmark: str) -> float:
    """A published percentage; benchmark: a column, or "average"."""
    rows, average = AVERAGES[model, method]
    return average if benchmark == "average" else rows[list(columns_of(model)).index(benchmark)]


def strongest(model: str, benchmark: str) -> float:
    """The best published percentage of the methods that DAPO+EDAS is compared with in a column."""
    return max(value_of(model, method, benchmark) for method in BASELINES if (model, method) in AVERAGES)


def mcnemar(model: str) -> dict[str, Any]:
    """Problems at 0/32 that one of DAPO and DAPO+EDAS solved, and the exact two-sided McNemar p: whether the split between the
    two could be a coin's. The training runs are one each, so p says nothing of other runs."""
    _, dapo, edas, edas_only = TOTALS[model]
    dapo_only = dapo - (edas - edas_only)
    return {"model": model, "edas_only": edas_only, "dapo_only": dapo_only, "p": mcnemar_p(edas_only, dapo_only)}


def nearest(percent: float, samples: int) -> float:
    """The percentage nearest to `percent` that a count of `samples` can give."""
    return 100 * round(percent * samples / 100) / samples


def checks() -> list[dict[str, Any]]:
    """Every figure that can be recomputed, with what it should be."""
    found = []
    for (model, method), (rows, average) in AVERAGES.items():
        name = f"{model} {method}"
        found.append(check("averages", name, average, sum(rows) / len(rows), 0.01, 0.005, "mean of the rows"))
    for model, benchmark, delta in DELTAS:
        first, second = strongest(model, benchmark), value_of(model, "DAPO+EDAS", benchmark)
        note = f"{second:.2f} - {first:.2f}"
        found.append(check("differences", f"{model} {benchmark}", delta, second - first, 0.01, 0.01, note))
    for (model, method), (rows, _) in AVERAGES.items():
        for benchmark, value in zip(columns_of(model), rows, strict=True):
            if samples := SAMPLES[benchmark]:
                name, note = f"{model} {method}, {benchmark}", f"nearest of {samples} samples"
                exact = nearest(value, samples)
                cut = 0.005 if value < exact else 0  # digits cut off instead of rounded explain half a unit more, downwards
                found.append(check("counts", name, value, exact, 0.01, cut, note))
    for model, totals in TOTALS.items():
        for column, name in enumerate(("at 0/32", "solved by DAPO", "solved by DAPO+EDAS", "solved by DAPO+EDAS only")):
            total = sum(row[column] for row in BREAKTHROUGHS[model].values())
            note = "sum of the benchmarks"
            found.append(check("breakthroughs", f"{model}, total {name}", totals[column], total, 0, 0, note))
    for what, value, how, recomputed, decimals in RATES:
        found.append(check("rates", what, value, recomputed, 10**-decimals, 0, how))
    return found


def analyse() -> dict[str, Any]:
    """The checks, and McNemar's test of the breakthroughs of each model."""
    return {"checks": checks(), "mcnemar": [mcnemar(model) for model in TOTALS]}


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
    tested = [[m["model"], str(m["edas_only"]), str(m["dapo_only"]), f"{m['p']:.3f}"] for m in result["mcnemar"]]
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
        "Problems at 0/32 before training that only one of the two solved after it; p of the exact two-sided McNemar test. One "
        "training run each, so p is over problems, not over runs.",
        [["model", "only DAPO+EDAS", "only DAPO", "p"], *tested],
    ]


def draw(result: dict[str, Any], plt: Any) -> Any:
    """The figure. plt: matplotlib.pyplot."""
    figure, axes = plt.subplots(1, 2, figsize=(13, 5), layout="constrained", width_ratios=(1, 1.4))
    colours = {YES: "C0", ROUNDING: "C1", NO: "C3"}
    for axis, table in zip(axes, ("averages", "counts"), strict=True):
        found = [c for c in result["checks"] if c["table"] == table]
        axis.axhspan(-0.005, 0.005, color="0.9", label="the same in two decimals")
        above = False
        for position, c in enumerate(found):
            off = c["published"] - c["recomputed"]
            axis.scatter(position, off, s=14, color=colours[c["adds_up"]])
            if c["adds_up"] != YES:
                side = "right" if position > len(found) / 2 else "left"
                axis.annotate(f"  {c['what']}  ", (position, off), fontsize=8, ha=side, va="bottom" if above else "top")
                above = not above  # neighbours do not cover each other
        axis.set(title=f"{table}: published minus recomputed, points", xticks=[], xlabel="figures in the order of the tables")
        axis.legend(fontsize=8, loc="upper left")
    return figure
