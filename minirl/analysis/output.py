"""Where an analysis goes: NAME.md, NAME.json and NAME.png in one folder, and the tables on the console."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from minirl.evaluation.metrics import mean_intervals, paired_difference
from minirl.evaluation.report import markdown, percent
from minirl.utils.console import say
from minirl.utils.errors import ConfigError

Table = list[list[str]]


def save(folder: Path, title: str, analysis: ModuleType, result: Mapping[str, Any]) -> None:
    """Writes the three files and prints the Markdown: what tables(result), paragraphs and tables, and draw(result) give."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    name = analysis.__name__.rpartition(".")[2]
    text = "\n\n".join([f"# {title}", *(p if isinstance(p, str) else markdown(p) for p in analysis.tables(result))]) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text(text + f"\n![{title}]({name}.png)\n", encoding="utf-8")
        whole = json.dumps(plain(result), indent=1, ensure_ascii=False, allow_nan=False)
        (folder / f"{name}.json").write_text(whole + "\n", encoding="utf-8")
        figure = analysis.draw(result, plt)
        figure.savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror or error}") from None
    plt.close(figure)
    say(text)
    say(f"written: {folder / name}.md, .json, .png")


def plain(tree: Any) -> Any:
    """The same of JSON's types only; what is not a number becomes null."""
    if isinstance(tree, Mapping):
        return {str(key): plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple | np.ndarray):
        return [plain(value) for value in tree]
    if isinstance(tree, np.generic):
        return plain(tree.item())
    return None if isinstance(tree, float) and not np.isfinite(tree) else tree


def number(entry: Mapping[str, Any], digits: int = 3) -> str:
    """'0.541 [0.502, 0.583]' of {mean, low, high}, or a dash."""
    if entry["mean"] is None:
        return "–"
    return f"{entry['mean']:.{digits}f} [{entry['low']:.{digits}f}, {entry['high']:.{digits}f}]"


def contrast(rows: Sequence[Mapping[str, float]], seed: int) -> dict[str, Any]:
    """Within against between classes, from {within, between} of each problem; 95% bootstrap intervals over problems.

    above: share of problems with within > between; difference: within - between, paired, with a sign-flip p.
    """
    within, between = (np.array([row[side] for row in rows]) for side in ("within", "between"))
    columns = {"within": within, "between": between, "above": (within > between).astype(float)}
    return {**mean_intervals(columns, seed), "equal": float(np.mean(within == between)),
            "difference": paired_difference([(between, within)], seed), "problems": len(rows)}  # fmt: skip


def contrast_cells(found: Mapping[str, Any]) -> list[str]:
    """Cells of a table under CONTRAST_HEAD."""
    return [
        str(found["problems"]), number(found["within"]), number(found["between"]), number(found["difference"]),
        f"{found['difference']['p']:.4f}", percent(found["above"]), f"{100 * found['equal']:.1f}",
    ]  # fmt: skip


CONTRAST_HEAD = ["problems", "within a class", "between classes", "difference", "p", "within > between, %", "equal, %"]


def scatter(axis: Any, rows: Sequence[Mapping[str, float]], title: str, unit: str) -> None:
    """One point a problem, between against within; equal points grow, to a limit."""
    points = Counter((row["between"], row["within"]) for row in rows)
    x, y = zip(*points, strict=True)
    top = max(1e-3, *x, *y) * 1.05
    axis.plot([0, top], [0, top], color="0.6", linewidth=1, linestyle="--")
    axis.scatter(x, y, s=[min(18 * count, 400) for count in points.values()], alpha=0.5)
    axis.set(xlabel=f"between classes, {unit}", ylabel=f"within a class, {unit}", title=title, aspect="equal")
