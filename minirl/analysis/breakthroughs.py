"""Problems at 0/n before training: how many each method solves after, and how many one method alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import binomtest

from minirl.analysis.output import Table
from minirl.analysis.samples import Key, Problems
from minirl.evaluation.metrics import mean_intervals, paired_difference
from minirl.evaluation.report import percent
from minirl.utils.errors import ConfigError

FEWEST = 4  # samples a problem: 0 of fewer is no sign that a problem is hard


def analyse(before: Problems, methods: Mapping[str, Problems], seed: int) -> dict[str, Any]:
    """Problems at 0/n before: how many each method solves at least once after, and how many no other method solves."""
    hard: list[Key] = [key for key, attempts in before.items() if attempts.judged and not attempts.right]
    if not hard:
        raise ConfigError("no problem is at 0/n before training, so there is nothing to break through")
    sizes: dict[str, dict[str, int]] = {}
    for benchmark in dict.fromkeys(key[0] for key in hard):
        sizes[benchmark] = {m: len(p[k].samples) for m, p in methods.items() for k in hard if k[0] == benchmark}
        if len(set(sizes[benchmark].values())) > 1:
            raise ConfigError(f"{benchmark}: {sizes[benchmark]} samples a problem: solved at least once needs as many for all")
    solved = {m: np.array([bool(p[k].right) for k in hard]) for m, p in methods.items()}
    counts = np.sum(list(solved.values()), axis=0)
    only = {m: x & (counts == 1) for m, x in solved.items()}
    benchmarks = np.array([key[0] for key in hard])

    def row(chosen: Any) -> dict[str, Any]:
        return {"hard": int(chosen.sum()), "all": int((counts[chosen] == len(methods)).sum()),
                "none": int((counts[chosen] == 0).sum()),
                "solved": {m: int(x[chosen].sum()) for m, x in solved.items()},
                "only": {m: int(x[chosen].sum()) for m, x in only.items()}}  # fmt: skip

    first = next(iter(solved))
    return {
        "samples": sizes,
        "samples_before": {b: max(before[k].judged for k in hard if k[0] == b) for b in sizes},
        "benchmarks": {b: row(benchmarks == b) for b in sizes},
        "total": row(np.full(len(hard), True)),
        "rate": mean_intervals({m: 1.0 * x for m, x in solved.items()}, seed),
        "differences": {m: paired_difference([(1.0 * solved[first], 1.0 * x)], seed) for m, x in solved.items() if m != first},
        "mcnemar": {m: mcnemar(solved[first], x) for m, x in solved.items() if m != first},
        "without_verdict": {m: sum(not p[k].judged for k in hard) for m, p in methods.items()},
        "problems": [{"benchmark": k[0], "problem": before[k].samples[0]["problem"], "index": k[1]}
                     | {m: bool(x[i]) for m, x in solved.items()} for i, k in enumerate(hard)],
    }  # fmt: skip


def mcnemar(first: Any, other: Any) -> dict[str, Any]:
    """{other_only, first_only, p} of two methods, bool[P] whether each solved a problem; p: of `mcnemar_p`."""
    other_only, first_only = int((other & ~first).sum()), int((first & ~other).sum())
    return {"other_only": other_only, "first_only": first_only, "p": mcnemar_p(other_only, first_only)}


def mcnemar_p(one_only: int, other_only: int) -> float:
    """The exact two-sided McNemar test of whether the problems that only one of two methods solved split as a coin would; 1
    without any."""
    return float(binomtest(one_only, one_only + other_only).pvalue) if one_only + other_only else 1.0


def rows_of(result: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Benchmarks, and the total where there are several."""
    several = len(result["benchmarks"]) > 1
    return [*result["benchmarks"].items(), *([("total", result["total"])] if several else [])]


def tables(result: Mapping[str, Any]) -> list[str | Table]:
    """Counts a benchmark, rates, and paired differences to the first method."""
    methods = list(result["rate"])
    several = len(methods) > 1
    head = ["benchmark", "at 0/n before", *methods, *([f"only {m}" for m in methods] + ["by all", "by none"]) * several]
    table: Table = [head]
    for name, row in rows_of(result):
        more = [*row["only"].values(), row["all"], row["none"]] if several else []
        table.append([name, *(str(x) for x in (row["hard"], *row["solved"].values(), *more))])
    share = [f"{100 * x / result['total']['hard']:.1f}" for x in result["total"]["only"].values()] + ["", ""] if several else []
    table.append(["rate, % [95%]", "", *(percent(result["rate"][m]) for m in methods), *share])
    without = [f"{n} of {m}" for m, n in result["without_verdict"].items() if n]
    samples = "; ".join(f"{b} {max(s.values())}" for b, s in result["samples"].items())
    few = [f"{benchmark} ({n})" for benchmark, n in result["samples_before"].items() if n < FEWEST]
    return [
        *([f"Not to be read from {', '.join(few)}, by samples a problem before training: what training made solvable. So few "
           "samples miss many a problem that could be solved already."] if few else []),
        "Problems that no sample solved before training, and how many have at least one right sample after it; 95% intervals "
        f"by bootstrap over problems. Samples a problem after: {samples}.",
        table,
        *[f"{m} minus {methods[0]}: {100 * d['mean']:+.1f} points [{100 * d['low']:+.1f}, {100 * d['high']:+.1f}], "
          f"p = {d['p']:.4f} (paired, sign-flip permutation); solved by {m} but not by {methods[0]} "
          f"{result['mcnemar'][m]['other_only']}, the reverse {result['mcnemar'][m]['first_only']}, "
          f"p = {result['mcnemar'][m]['p']:.4f} (exact McNemar)." for m, d in result["differences"].items()],
        *(["Counted as not solved for want of a verdict: " + ", ".join(without) + "."] if without else []),
    ]  # fmt: skip


def draw(result: Mapping[str, Any], plt: Any) -> Any:
    """The figure. plt: matplotlib.pyplot."""
    rows = rows_of(result)
    methods = list(result["rate"])
    width = 0.8 / len(methods)
    figure, axis = plt.subplots(figsize=(max(6, 1.6 * len(rows) + 2), 4.2), layout="constrained")
    for i, m in enumerate(methods):
        x = np.arange(len(rows)) + (i - (len(methods) - 1) / 2) * width
        heights = [100 * row["solved"][m] / row["hard"] for _, row in rows]
        drawn = axis.bar(x, heights, width * 0.95, label=m, alpha=0.55, color=f"C{i}")
        axis.bar_label(drawn, [str(row["solved"][m]) for _, row in rows], fontsize=8)
        if len(methods) > 1:
            alone = [100 * row["only"][m] / row["hard"] for _, row in rows]
            axis.bar(x, alone, width * 0.95, color=f"C{i}", label=f"only {m}")
    axis.set_xticks(range(len(rows)), [f"{name}\n({row['hard']} at 0/n)" for name, row in rows])
    axis.set(ylabel="solved after, % of these problems")
    axis.margins(y=0.15)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure
