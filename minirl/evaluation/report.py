"""The results of an evaluation as results.json, table.md, table.tex and pass_at_k.png. The numbers come from metrics.py."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minirl.evaluation.benchmarks import Benchmark, Loaded
from minirl.evaluation.metrics import bootstrap, interval, mean_intervals, paired_difference, powers, problem_metrics
from minirl.evaluation.published import PAPER

Row = dict[str, Any]
COUNTS = ("right", "wrong", "errors")
SHOWN = {
    "accuracy": "avg@n", "maj@n": "maj@n", "truncated": "cut", "no_answer": "no answer", "tokens": "tokens",
    "error_diversity": "error diversity",
}  # fmt: skip


def ks_of(b: Benchmark, extra: Sequence[int]) -> list[int]:
    """The k of pass@k and maj@k: powers of two, n, that of the metric, and those asked for (not of greedy benchmarks)."""
    return sorted({*powers(b.sampling.n), b.metric_k} | ({*extra} if b.sampling.n > 1 else set()))


def results_of(
    loaded: Sequence[Loaded], labels: Sequence[str], rows: Mapping[Any, Row], extra: Sequence[int], seed: int
) -> Row:
    """The part of results.json that is computed: metrics with intervals, counts a problem, averages, differences."""
    problems: dict[tuple[str, str], list[dict[str, float]]] = {}
    results: dict[str, Row] = {label: {} for label in labels}
    for label in labels:
        for one in loaded:
            b = one.benchmark
            grouped = [[rows[label, b.name, i, j] for j in range(b.sampling.n)] for i in one.indices]
            made = [problem_metrics(samples, ks_of(b, extra)) for samples in grouped]
            problems[label, b.name] = made
            names = [name for name in made[0] if name not in COUNTS]
            columns = {name: np.array([p[name] for p in made]) for name in names}
            results[label][b.name] = {
                "metric": b.metric,
                "metrics": mean_intervals(columns, seed_of(seed, b)),
                "counts": {name: sum(int(p[name]) for p in made) for name in COUNTS},
                "problems": [
                    {"problem": p.id, "index": i} | {name: int(m[name]) for name in COUNTS}
                    for p, i, m in zip(one.problems, one.indices, made, strict=True)
                ],
            }
    in_average = [one.benchmark for one in loaded if one.benchmark.in_average]
    columns_of = {
        key: np.array([p[one.benchmark.metric] for p in made])
        for one in loaded for key, made in problems.items() if key[1] == one.benchmark.name
    }  # fmt: skip
    averages = {label: average([columns_of[label, b.name] for b in in_average], in_average, seed) for label in labels}
    comparisons = []
    for label in labels[1:]:
        for group, name in [([one.benchmark], one.benchmark.name) for one in loaded] + [(in_average, "average")]:
            pairs = [(columns_of[labels[0], b.name], columns_of[label, b.name]) for b in group]
            both = [len((x - y)[~np.isnan(x - y)]) for x, y in pairs]
            if pairs and all(both) and (name != "average" or len(pairs) > 1):
                entry = {
                    "baseline": labels[0],
                    "model": label,
                    "benchmark": name,
                    "metric": group[0].metric if len(group) == 1 else "",
                }
                comparisons.append(entry | paired_difference(pairs, seed_of(seed, group[0])))
    return {"results": results, "averages": averages, "comparisons": comparisons}


def average(columns: Sequence[Any], benchmarks: Sequence[Benchmark], seed: int) -> Row | None:
    """{mean, low, high, benchmarks} of the benchmarks' means; None with fewer than two or with one that has no verdict."""
    kept = [c[~np.isnan(c)] for c in columns]
    if len(kept) < 2 or not all(len(c) for c in kept):
        return None
    draws = np.mean([bootstrap(c, seed_of(seed, b)) for c, b in zip(kept, benchmarks, strict=True)], axis=0)
    low, high = interval(draws)
    return {
        "mean": float(np.mean([c.mean() for c in kept])),
        "low": low,
        "high": high,
        "benchmarks": [b.name for b in benchmarks],
    }


def seed_of(seed: int, b: Benchmark) -> int:
    """The seed of a benchmark's bootstrap."""
    return seed * 2**32 + zlib.crc32(b.name.encode())


# ---- tables ------------------------------------------------------------------------------------------------------------------


def percent(entry: Mapping[str, Any] | None) -> str:
    """'54.1 [50.2, 58.3]', or a dash."""
    if entry is None or entry["mean"] is None:
        return "–"
    return f"{100 * entry['mean']:.1f} [{100 * entry['low']:.1f}, {100 * entry['high']:.1f}]"


def main_table(results: Row, loaded: Sequence[Loaded], paper_rows: Sequence[Row] = ()) -> list[list[str]]:
    """Rows methods, columns benchmarks and their average; percent with 95% intervals; `paper_rows`: published ones."""
    benchmarks = [one.benchmark for one in loaded]
    heads = [(b.title or b.name) + ("" if b.metric == "accuracy" else f" {b.metric}") for b in benchmarks]
    averaged = any(results["averages"].values())
    count = sum(b.in_average for b in benchmarks)
    table = [["method", *heads, *([f"average of {count}"] if averaged else [])]]
    for label, found in results["results"].items():
        cells = []
        for one in loaded:
            entry = found[one.benchmark.name]["metrics"][one.benchmark.metric]
            fewer = entry["problems"] != one.chosen and entry["problems"]
            cells.append(percent(entry) + f" ({entry['problems']} of {one.chosen} problems)" * bool(fewer))
        table.append([label, *cells, *([percent(results["averages"][label])] if averaged else [])])
    for row in paper_rows:
        values = [row["values"].get(b.name) for b in benchmarks] + [row["average"]] * averaged
        table.append([f"paper: {row['model']} {row['method']}", *("–" if v is None else f"{v:.2f}" for v in values)])
    return table


def difference_table(results: Row) -> list[list[str]]:
    """Paired differences to the first model, in points."""
    table = [["model minus baseline", "benchmark", "difference", "95% interval", "p", "problems"]]
    for c in results["comparisons"]:
        bounds = f"[{100 * c['low']:+.1f}, {100 * c['high']:+.1f}]"
        pair = f"{c['model']} - {c['baseline']}"
        table.append([pair, c["benchmark"], f"{100 * c['mean']:+.1f}", bounds, f"{c['p']:.4f}", str(c["problems"])])
    return table


def detail_table(results: Row, loaded: Sequence[Loaded]) -> list[list[str]]:
    """Every model on every benchmark: pass@k, maj@n, lengths, what has no verdict."""
    ks = sorted(
        {int(k[5:]) for found in results["results"].values() for b in found.values() for k in b["metrics"] if k[:5] == "pass@"}
    )
    table = [["model", "benchmark", "problems x samples", *SHOWN.values(), *(f"pass@{k}" for k in ks), "errors"]]
    for label, found in results["results"].items():
        for one in loaded:
            b, entry = one.benchmark, found[one.benchmark.name]

            def shown(name: str, metrics: Row = entry["metrics"], n: int = b.sampling.n, whole: int = one.chosen) -> str:
                found = metrics.get(name.replace("@n", f"@{n}"))
                if not found or found["mean"] is None:
                    return "–"
                fewer = f" ({found['problems']})" if found["problems"] != whole else ""
                return f"{found['mean'] if name == 'tokens' else 100 * found['mean']:.1f}{fewer}"

            names = [*SHOWN, *(f"pass@{k}" for k in ks)]
            size = f"{len(one.problems)} x {b.sampling.n}" + ("" if b.sampling.temperature else " greedy")
            table.append([label, b.title or b.name, size, *map(shown, names), str(entry["counts"]["errors"])])
    return table


MARKDOWN = str.maketrans({"|": "\\|", "\n": " ", "\r": " "})
LATEX = str.maketrans({c: f"\\{c}" for c in "_%&#${}"} | {
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "\n": " ", "\r": " ",
})  # fmt: skip


def markdown(table: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    table = [[cell.translate(MARKDOWN) for cell in row] for row in table]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in table]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def latex(table: Sequence[Sequence[str]], caption: str) -> str:
    """A LaTeX table (booktabs)."""
    lines = [" & ".join(cell.translate(LATEX) for cell in row) + r" \\" for row in table]
    lines = ["{}" * line.startswith("[") + line for line in lines]  # else an option of the line break before it
    body = ["\\toprule", lines[0], "\\midrule", *lines[1:], "\\bottomrule"]
    head = ["\\begin{table}", "\\centering", f"\\begin{{tabular}}{{l{'r' * (len(table[0]) - 1)}}}"]
    return "\n".join([*head, *body, "\\end{tabular}", f"\\caption{{{caption.translate(LATEX)}}}", "\\end{table}"]) + "\n"


def write_tables(folder: Path, results: Row, loaded: Sequence[Loaded], paper_rows: Sequence[Row]) -> str:
    """table.md and table.tex; returns the main table and the differences for the console. paper_rows: published ones."""
    main, differences = main_table(results, loaded, paper_rows), difference_table(results)
    caption = "Percent, with 95% bootstrap intervals over problems"
    if paper_rows:
        caption += f"; paper: as published in {PAPER}, with its sampling and graders"
    parts = [markdown(main)]
    if len(differences) > 1:
        parts += ["Paired differences in points: bootstrap over problems, sign-flip permutation test.", markdown(differences)]
    shown = "\n\n".join(parts)
    parts += ["All metrics, means over problems in percent; tokens are mean lengths, errors are samples without a verdict, "
              "which count nowhere. In brackets: the number of problems behind a mean, where it is not all of them.",
              markdown(detail_table(results, loaded))]  # fmt: skip
    (folder / "table.md").write_text(f"{caption}.\n\n" + "\n\n".join(parts) + "\n", encoding="utf-8")
    tex = latex(main, caption + ".")
    if len(differences) > 1:
        tex += "\n" + latex(differences, "Paired differences in points.")
    (folder / "table.tex").write_text(tex, encoding="utf-8")
    return shown


def draw_pass_at_k(path: Path, results: Row, loaded: Sequence[Loaded]) -> None:
    """pass@k curves with their intervals, one panel a benchmark."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(4, len(loaded))
    lines = -(-len(loaded) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4 * columns, 3.2 * lines), layout="constrained", squeeze=False)
    for axis in axes.flat[len(loaded) :]:
        axis.set_visible(False)
    for axis, one in zip(axes.flat, loaded, strict=False):
        measured: set[int] = set()
        for label, found in results["results"].items():
            metrics = found[one.benchmark.name]["metrics"]
            points = [(int(name[5:]), m) for name, m in metrics.items() if name.startswith("pass@") and m["mean"] is not None]
            if not points:
                continue
            ks = [k for k, _ in points]
            measured |= set(ks)
            axis.plot(ks, [100 * m["mean"] for _, m in points], "o-", markersize=3, label=label)
            axis.fill_between(ks, [100 * m["low"] for _, m in points], [100 * m["high"] for _, m in points], alpha=0.2)
        if axis.lines:  # a logarithmic axis without a point cannot be drawn
            axis.set_xscale("log", base=2)
            axis.set_xticks(sorted(measured), map(str, sorted(measured)))  # those that were measured, not powers of 2
            axis.minorticks_off()
        axis.set_title(one.benchmark.title or one.benchmark.name)
        axis.set_xlabel("k")
        axis.set_ylabel("pass@k, percent")
    handles, names = next((found for axis in axes.flat if (found := axis.get_legend_handles_labels())[0]), ([], []))
    if handles:
        axes.flat[0].legend(handles, names, fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
