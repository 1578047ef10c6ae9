"""The report of a comparison: report.md, report.html and two pictures, from the tree of results.json alone."""

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from minirl.ablate.analysis import DIVERSITY, Results, analyse, runs_of
from minirl.ablate.outcomes import compared, left_out
from minirl.ablate.statistics import Difference
from minirl.analysis.paper import DELTAS
from minirl.analysis.run_report import smooth
from minirl.config.checks import duration
from minirl.evaluation.report import markdown
from minirl.utils.console import must_write, replace_file

Table = list[list[str]]
Block = str | Table | Path  # a paragraph, "# heading", table, or picture beside the report
PANELS = {
    "training accuracy": "reward/accuracy",
    "diverse groups of the batch": "batch/diverse_groups",
    "different wrong answers a group": "batch/unique_wrong",
    "pair diversity of sampled groups": "groups/pair_diversity",
    "entropy, nats": "policy/entropy",
    "tokens a response": "response/tokens",
    "groups sampled a step": "sampling/groups",
    "groups in EDAS's branch A": "batch/branch_a",
    "groups in EDAS's branch B": "batch/branch_b",
    "groups in EDAS's branch C": "batch/branch_c",
}
BAND = "Bands are the mean over seeds plus and minus its standard error."


def write_report(out: Path, results: Results) -> list[str]:
    """Writes report.md, report.html, curves.png and differences.png into `out`; returns the lines for the console."""
    found = analyse(results)
    pictures = {"curves.png": draw_curves(results), "differences.png": draw_differences(found, results["baseline"])}
    blocks = blocks_of(results, found)
    with must_write(out):
        for name, picture in pictures.items():
            replace_file(out / name, picture)
        replace_file(out / "report.md", to_markdown(blocks))
        replace_file(out / "report.html", to_html(blocks, pictures))
    return [
        *(found["verdicts"] or ["no seed is finished in every arm, so nothing can be compared yet"]),
        *also_different(results),
        *(f"not compared: {words}" for words in left_out(results)),
        f"written: {out}/report.html, report.md, curves.png, differences.png",
    ]


def blocks_of(results: Results, found: dict[str, Any]) -> list[Block]:
    """The report's content."""
    baseline, others = results["baseline"], [arm for arm in compared(results) if arm != results["baseline"]]
    seeds, largest = found["seeds"], max(found["ks"], default=1)
    blocks: list[Block] = [
        f"# {' against '.join([', '.join(others) or 'nothing', baseline])}",
        f"{len(others) + 1} arms, {len(seeds)} paired seeds, task {results['task']}, model {results['model']}; budget "
        f"of a run: {results['budget']}. Within a seed all arms have the same starting weights, order of prompts and sampling "
        "seeds.",
        *(f"**{line}.**" for line in found["verdicts"]),
    ]
    if results["failed"]:
        blocks.append("Failed: " + "; ".join(f"{name} ({why})" for name, why in results["failed"].items()))
    if words := left_out(results):
        blocks.append(f"Not compared: {'; '.join(words)}.")
    if words := outside_budget(results):
        blocks.append(f"Ended before their budget was spent, at run.steps: {'; '.join(words)}.")
    if not seeds:
        return [*blocks, "No seed is finished in every arm, so nothing can be compared yet."]
    if len(seeds) == 1:
        blocks.append("One seed: the intervals are over problems only and say nothing of other seeds.")
    blocks += [
        "## Held-out problems",
        f"{len(results['problems'])} problems. After training: mean over seeds (standard deviation over seeds), percent. "
        f"Before training: pass@1 {100 * found['arms'][baseline]['before']:.1f}.",
        levels(found),
        f"Difference to {baseline} in points, with 95% intervals over new seeds and new problems"
        + (f" that hold at once for all {len(others)} arms of a column" if len(others) > 1 else "")
        + (", and after every seed (--until)" if results["until"] else "")
        + "; p by Holm in brackets. How they are made: docs/comparisons.md.",
        differences(found["held_out"], [f"pass@{k}" for k in found["ks"]], 100),
        Path("differences.png"),
        pairing(found),
    ]
    blocks += [
        "## Diversity and training",
        "Means over seeds, and differences as above, over seeds." if found["scalars"] else "Means; differences need two seeds.",
        scalars(found, baseline),
        Path("curves.png"),
        f"{BAND} Curves are running means over 9 steps and end with an arm's shortest run; held-out points are those of the "
        "evaluations during the run (`eval.every`).",
        *(equal(found, baseline) if found["equal_accuracy"] else []),
        "## Breakthroughs",
        f"Problems that none of {largest} responses solved before training, by whether one of as many does after it, counted "
        f"over {len(seeds)} seeds. p: exact McNemar test within seeds, by Holm over the arms; it takes problems that recur in "
        "several seeds for different ones, so it is too small. The difference of the solved share, over seeds, is not.",
        breakthroughs(found, baseline),
        "## What differs between the arms",
        differing(results),
        *published(results),
    ]
    if "command" in results:
        blocks += ["## Command", f"`{results['command']}`"]
    return blocks


def outside_budget(results: Results) -> list[str]:
    """The runs that a budget in tokens or time did not end."""
    kind, _, amount = results["budget"].partition("=")
    spent = {"tokens": "tokens", "time": "training_seconds"}.get(kind)
    if spent is None:
        return []
    limit = duration(amount) if kind == "time" else float(amount)
    return [f"{run['arm']}, seed {run['seed']} ({run[spent]:,} spent)" for run in results["runs"] if run[spent] < limit]


def levels(found: dict[str, Any]) -> Table:
    """Pass@k of every arm after training."""
    head = ["arm", *(f"pass@{k}" for k in found["ks"]), "steps"]

    def cell(mean: float, sd: float | None) -> str:
        return f"{100 * mean:.1f}" + (f" ({100 * sd:.1f})" if sd is not None else "")

    rows = [
        [arm, *(cell(*s["after"][k]) for k in found["ks"]), ", ".join(map(str, s["steps"]))] for arm, s in found["arms"].items()
    ]
    return [head, *rows]


def shown(d: Difference, scale: float) -> str:
    """+1.3 [+0.2, +2.4] (p .012); where no number varied, from which nothing follows, that."""
    if not d.half_width:
        return f"{scale * d.mean:+.3g}, no variation"
    digits = 1 if scale == 100 else max(0, min(4, 2 - int(np.floor(np.log10(max(d.half_width, 1e-9))))))
    low, mean, high = (f"{scale * x:+.{digits}f}" for x in (d.low, d.mean, d.high))
    return f"{mean} [{low}, {high}] ({'p < .001' if d.p < 0.001 else f'p {d.p:.3f}'})"


def differences(columns: dict[Any, dict[str, Difference]], names: Sequence[str], scale: float) -> Table:
    """A row an arm, a column a measure."""
    arms = list(next(iter(columns.values())))
    return [["arm", *names], *([arm, *(shown(column[arm], scale) for column in columns.values())] for arm in arms)]


def pairing(found: dict[str, Any]) -> str:
    """How much pairing helped."""
    gains = [
        f"{d.seed_pairing:.1f} and {d.pairing:.1f} ({arm})"
        for arm, d in found["held_out"][1].items()
        if d.pairing and d.seed_pairing
    ]
    if not gains:
        return "What pairing is worth shows from two seeds on."
    return (
        "What pairing is worth: the variance of the difference in pass@1 would be so many times larger with seeds that are not "
        f"paired, and with neither seeds nor problems paired: {', '.join(gains)}. Both are rough with few seeds."
    )


def scalars(found: dict[str, Any], baseline: str) -> Table:
    """A row a measure: its mean in every arm, and the differences."""
    others = [arm for arm in found["arms"] if arm != baseline] if found["scalars"] else []
    head = ["measure", *found["arms"], *(f"{arm} - {baseline}" for arm in others)]
    rows = []
    for name in found["arms"][baseline]["scalars"]:
        means = [f"{found['arms'][arm]['scalars'][name]:.3g}" for arm in found["arms"]]
        column = found["scalars"].get(name)
        rows.append([name, *means, *(shown(column[arm], 1) if column else "not in every run" for arm in others)])
    return [head, *rows]


def equal(found: dict[str, Any], baseline: str) -> list[Block]:
    """Diversity between runs when they are equally accurate."""
    rows: Table = []
    for key in DIVERSITY:
        for arm, result in found["equal_accuracy"][key].items():
            if isinstance(result, str):
                rows.append([key, arm, result, ""])
            else:
                d, (low, high) = result
                rows.append([key, arm, shown(d, 1), f"{100 * low:.0f} to {100 * high:.0f}%, {d.seeds} seeds"])
    text = (
        f"At equal accuracy in training (a method that learns more slowly keeps more diverse groups), difference to {baseline}:"
    )
    return [text, [["measure", "arm", "difference", "accuracies compared"], *rows]]


def breakthroughs(found: dict[str, Any], baseline: str) -> Table:
    """Counts of problems."""
    head = ["arm", "unsolved before", "different problems", "both", "arm alone", f"{baseline} alone", "neither", "p", "points"]
    rows = []
    for arm, c in found["breakthroughs"].items():
        keys = ("hard", "problems", "both", "arm_only", "baseline_only", "neither")
        rows.append([arm, *(str(c[key]) for key in keys), f"{c['p']:.3f}", shown(c["rate"], 100) if c["rate"] else "–"])
    return [head, *rows]


def also_different(results: Results) -> list[str]:
    """A sentence on the options in which arms of other estimators differ too: they are a part of what is compared."""
    others = [key for key in results["differing"] if not key.startswith(("algorithm.estimator", "estimator."))]
    if "algorithm.estimator" not in results["differing"] or not others:
        return []
    return [f"the arms differ in more than the advantage: {', '.join(others)} (report.md, What differs between the arms)"]


def differing(results: Results) -> Table:
    """The options in which arms differ."""
    arms = list(results["arms"])
    rows = [[key, *(str(row[arm]) for arm in arms)] for key, row in results["differing"].items()]
    return [["option", *arms], *(rows or [["none", *[""] * len(arms)]])]


def published(results: Results) -> list[Block]:
    """The paper's differences for this model, where its table has them."""
    model = results["model"].rstrip("/").rpartition("/")[2]
    rows = [[benchmark, f"{gain:+.2f}"] for name, benchmark, gain in DELTAS if name == model]
    if not rows:
        return []
    text = (
        f"The paper (arXiv 2605.17333) gives for {model} these gains of DAPO+EDAS over the strongest other method, in points "
        "of mean accuracy, from one training run each, on its benchmarks:"
    )
    return ["## As published", text, [["benchmark", "gain"], *rows]]


def to_markdown(blocks: Sequence[Block]) -> str:
    """The report as Markdown."""
    parts = [f"![{b.stem}]({b.name})" if isinstance(b, Path) else b if isinstance(b, str) else markdown(b) for b in blocks]
    return "\n\n".join(parts) + "\n"


def to_html(blocks: Sequence[Block], pictures: dict[str, bytes]) -> str:
    """The report as one HTML file without links to others; it follows the reader's light or dark scheme."""
    body = []
    for block in blocks:
        if isinstance(block, Path):
            data = base64.b64encode(pictures[block.name]).decode()
            body.append(f'<p><img alt="{block.stem}" src="data:image/png;base64,{data}"></p>')
        elif isinstance(block, list):
            rows = "".join(f"<tr>{html_row(row, 'td' if i else 'th')}</tr>" for i, row in enumerate(block))
            body.append(f"<div><table>{rows}</table></div>")
        elif block.startswith("#"):
            level = len(block) - len(block.lstrip("#"))
            body.append(f"<h{level}>{escape(block.lstrip('# '))}</h{level}>")
        elif block.startswith(("**", "`")):
            tag = "strong" if block.startswith("**") else "code"
            body.append(f"<p><{tag}>{escape(block.strip('*`'))}</{tag}></p>")
        else:
            body.append(f"<p>{escape(block)}</p>")
    title = escape(str(blocks[0]).lstrip("# "))
    return HTML.replace("TITLE", title).replace("BODY", "\n".join(body))


def html_row(row: Sequence[str], tag: str) -> str:
    """The cells of a table's row."""
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)


HTML = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>TITLE</title><style>
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
div { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem } img { max-width: 100%; background: white }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #8886; text-align: left; white-space: nowrap }
code { overflow-wrap: anywhere }
</style>
BODY
</html>
"""


def draw_curves(results: Results) -> bytes:
    """A panel a measure, a line an arm: the mean over seeds and its standard error."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 10.5), layout="constrained")
    held_out, *panels = figure.subplots(3, 4).flat
    largest = next((run["before"]["metrics"].get("k", "k") for run in results["runs"]), "k")
    held_out.set(title=f"held-out pass@1 and pass@{largest} (dotted)", xlabel="step")
    lines = {}
    for arm in compared(results):
        runs = runs_of(results, arm)
        points = sorted(set.intersection(*({step for step, *_ in run["evaluations"]} for run in runs))) if runs else []
        at = [[dict((step, values) for step, *values in run["evaluations"])[step] for step in points] for run in runs]
        if points:
            lines[arm] = band(held_out, points, np.array([[pass_1 for pass_1, _ in row] for row in at]), None)
            band(held_out, points, np.array([[pass_k for _, pass_k in row] for row in at]), lines[arm], linestyle=":")
    for axis, (title, key) in zip(panels, PANELS.items(), strict=False):
        for arm, line in lines.items():
            curves = [smooth(run["curves"][key]) for run in runs_of(results, arm) if key in run["curves"]]
            if curves:
                steps = min(map(len, curves))
                band(axis, range(1, steps + 1), np.array([curve[:steps] for curve in curves]), line)
        axis.set(title=title, xlabel="step")
    panels[-1].axis("off")
    panels[-1].legend(list(lines.values()), [plain_text(arm) for arm in lines], loc="center")
    return png(figure)


def band(axis: Any, x: Sequence[float], values: Any, like: Any, **style: Any) -> Any:
    """Draws the mean of values float[S, T] at x and its standard error, in the colour of the line `like`, or the next one."""
    colour = {"color": like.get_color()} if like is not None else {}
    marks = {"marker": "o", "markersize": 3} if len(x) < 10 else {}  # a line between few points is no measured course
    (line,) = axis.plot(x, values.mean(0), linewidth=1.4, **marks, **colour, **style)
    if len(values) > 1:
        error = values.std(0, ddof=1) / np.sqrt(len(values))
        axis.fill_between(x, values.mean(0) - error, values.mean(0) + error, color=line.get_color(), alpha=0.2, linewidth=0)
    return line


def plain_text(name: str) -> str:
    """A name for matplotlib, which would read $ as mathematics."""
    return name.replace("$", r"\$")


def draw_differences(found: dict[str, Any], baseline: str) -> bytes:
    """Pass@k of every arm against k, then the differences with their intervals, a panel an arm, five in a row."""
    from matplotlib.figure import Figure

    arms, ks = [arm for arm in found["arms"] if arm != baseline], found["ks"]
    columns = min(5, 1 + len(arms))
    rows = -(-(1 + len(arms)) // columns)
    figure = Figure(figsize=(3.2 * max(2, columns), 3.4 * rows), layout="constrained")
    first, *axes = np.atleast_1d(figure.subplots(rows, columns)).flat
    for arm, values in found["arms"].items():
        first.plot(range(len(ks)), [100 * values["after"][k][0] for k in ks], marker=".", label=plain_text(arm))
    first.set(title="pass@k after training, %", xlabel="k", xticks=range(len(ks)), xticklabels=[str(k) for k in ks])
    if found["arms"]:
        first.legend(fontsize="x-small", ncols=1 + len(arms) // 9)
    for axis in axes[len(arms) :]:
        axis.axis("off")
    for axis, arm in zip(axes, arms, strict=False):
        axis.sharey(axes[0])
        column = [found["held_out"][k][arm] for k in ks]
        mean = np.array([100 * d.mean for d in column])
        below, above = mean - [100 * d.low for d in column], [100 * d.high for d in column] - mean
        axis.errorbar(range(len(column)), mean, yerr=[below, above], fmt="o", capsize=3)
        axis.axhline(0, color="0.5", linewidth=0.8)
        axis.set_xticks(range(len(column)), [str(k) for k in ks])
        axis.set(title=plain_text(f"{arm} - {baseline}, points"), xlabel="k")
    return png(figure)


def png(figure: Any) -> bytes:
    """The picture's bytes, the same for the same figure."""
    file = io.BytesIO()
    figure.savefig(file, dpi=90, format="png", metadata={"Software": None})
    return file.getvalue()
