"""What every estimator gave on the embedded task, for its page in docs/algorithms.

    python -m minirl.ablate --estimators dapo,grpo,... --seeds 3 --out runs/estimators     # `--command` prints it in full
    python -m benchmarks.estimator_curves runs/estimators/results.json                      # the pages and their pictures

The second command writes docs/algorithms/curves: a picture an estimator, and results.json without what the pages do not need,
from which `python -m benchmarks.estimator_curves` makes the pages again. Intervals are those of docs/comparisons.md, over
seeds and problems, each of one comparison alone; p is corrected for all of them.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from scipy.stats import t

from minirl.ablate.analysis import analyse, runs_of
from minirl.ablate.outcomes import compared, load
from minirl.ablate.outcomes import table as table_of
from minirl.ablate.report import png
from minirl.ablate.statistics import Difference, difference
from minirl.advantages import BASES, WRAPPERS, build
from minirl.analysis.run_report import smooth

PAGES = Path(__file__).parents[1] / "docs" / "algorithms"
RESULTS = PAGES / "curves" / "results.json"
HEADING = "## On the embedded task"
BASELINE = "dapo"
SHOWN = {"training accuracy": "reward/accuracy", "pair diversity of sampled groups": "groups/pair_diversity"}


def arm_of(name: str) -> str:
    """The estimator that a page's curve is of: a base itself, a wrapper on the baseline."""
    return name if name in BASES else f"{BASELINE}+{name}"


def command() -> str:
    """The command that makes the runs of all pages."""
    names = [BASELINE, *(arm_of(name) for name in (*BASES, *WRAPPERS) if name != BASELINE)]
    return f"python -m minirl.ablate --estimators {','.join(names)} --seeds 3 --out runs/estimators"


def slim(results: dict[str, Any]) -> dict[str, Any]:
    """`results` with only the curves that the pages show, and the command as it is documented."""
    keep = (*SHOWN.values(), "policy/entropy")  # in this order, so that the file is the same each time
    runs = [run | {"curves": {key: run["curves"][key] for key in keep if key in run["curves"]}} for run in results["runs"]]
    return results | {"runs": runs, "command": command()}


def points(d: Difference) -> str:
    """A difference in points with its interval."""
    return f"{100 * d.mean:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"


def alone(results: dict[str, Any], arm: str, ks: Sequence[int]) -> list[str]:
    """An arm's differences to the baseline in pass@k, each with the interval of one comparison."""
    return [points(difference(table_of(results, arm, k), table_of(results, BASELINE, k))) for k in ks]


def section(name: str, results: dict[str, Any], found: dict[str, Any]) -> str:
    """The section of a page."""
    arm, largest = arm_of(name), found["ks"][-1]
    values, entropy = found["arms"][arm], [np.mean(run["curves"]["policy/entropy"][-10:]) for run in runs_of(results, arm)]
    head = ["", "pass@1", f"pass@{largest}"]
    before = ["before training", f"{100 * values['before']:.1f}", f"{100 * values['before_k']:.1f}"]
    after = [f"`{arm}`, after {max(values['steps'])} steps"]
    after += [f"{100 * values['after'][k][0]:.1f} ({100 * values['after'][k][1]:.1f})" for k in (1, largest)]
    rows = [head, ["---"] * 3, before, after]
    if arm != BASELINE:
        rows.append([f"difference to `{BASELINE}`", *alone(results, arm, (1, largest))])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    text = (
        f"{len(found['seeds'])} seeds: mean and, in brackets, standard deviation over seeds, {len(results['problems'])} "
        "held-out problems"
        + ("" if arm == BASELINE else "; 95% intervals over seeds and problems, of this comparison alone")
        + ". Entropy "
        f"of the last ten steps {np.mean(entropy):.3f} nats. Nothing is tuned for any of them; "
        "[README.md](README.md#on-the-embedded-task) has all, and the command."
    )
    return f"{HEADING}\n\n![{arm}](curves/{name}.png)\n\n{table}\n\n{fill(text, 128, break_on_hyphens=False)}\n"


def summary(results: dict[str, Any], found: dict[str, Any]) -> str:
    """The section of the index: a row an estimator."""
    largest = found["ks"][-1]
    head = ["estimator", "pass@1", f"pass@{largest}", "difference in pass@1", "p", f"in pass@{largest}", "p"]
    rows = [head, ["---"] * len(head)]
    for name in (*BASES, *WRAPPERS):
        arm = arm_of(name)
        if arm not in found["arms"]:
            continue
        values = found["arms"][arm]["after"]
        row = [f"`{arm}`", f"{100 * values[1][0]:.1f}", f"{100 * values[largest][0]:.1f}"]
        if arm != BASELINE:
            first, last = alone(results, arm, (1, largest))
            row += [first, p_of(found["held_out"][1][arm]), last, p_of(found["held_out"][largest][arm])]
        rows.append(row + [""] * (len(head) - len(row)))
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    before = found["arms"][BASELINE]
    dynamic = [name for name in BASES if build(name).requirements.dynamic_sampling]
    text = (
        f"Held-out accuracy after {max(before['steps'])} steps of the embedded task's defaults, {len(found['seeds'])} paired "
        f"seeds; before training pass@1 is {100 * before['before']:.1f}, pass@{largest} {100 * before['before_k']:.1f}. "
        f"Differences to `{BASELINE}` in points, with 95% intervals over seeds and problems, each by itself; p by Holm over "
        "all rows of a column. With three seeds only what is the same in all of them shows. Learning rate, clip range and the "
        f"rest are the same for all, but for what an estimator asks of the run: {', '.join(f'`{n}`' for n in dynamic)} and the "
        "wrappers sample until 32 groups have a signal, the others train on the 32 that they draw. Nothing is tuned for any. A "
        "tiny model on a made-up task: it shows "
        "how each behaves, not which is best; [the study](../study.md) has more seeds."
    )
    return (
        f"{HEADING}\n\n{fill(text, 128, break_on_hyphens=False)}\n\n{table}\n\n```bash\n{command()}\n"
        "python -m benchmarks.estimator_curves runs/estimators/results.json\n```\n"
    )


def p_of(d: Difference) -> str:
    """A p value, three decimals."""
    return "< .001" if d.p < 0.001 else f"{d.p:.3f}".lstrip("0") if d.p < 1 else "1"


def interval(values: Any) -> Any:
    """float[T]: half-width of the 95% interval of the mean of float[S, T] over seeds, by Student's t."""
    seeds = len(values)
    return t.ppf(0.975, seeds - 1) * values.std(0, ddof=1) / np.sqrt(seeds)


def picture(arm: str, results: dict[str, Any]) -> bytes:
    """The curves of an arm beside the baseline's, with 95% intervals over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 2.6), layout="constrained")
    for axis, (title, key) in zip(figure.subplots(1, 2), SHOWN.items(), strict=True):
        for name, colour in {BASELINE: "0.6", arm: "tab:blue"}.items():
            values = np.array([smooth(run["curves"][key]) for run in runs_of(results, name)])
            steps, mean, half = np.arange(1, values.shape[1] + 1), values.mean(0), interval(values)
            axis.plot(steps, mean, color=colour, linewidth=1.5, label=name)
            axis.fill_between(steps, mean - half, mean + half, color=colour, alpha=0.2, linewidth=0)
        axis.set(title=title, xlabel="step", ylim=(0, 1))
        axis.title.set_fontsize(10)
        axis.legend(frameon=False, fontsize=8)
    return png(figure)


def replaced(page: str, text: str) -> str:
    """`page` with its section of that heading replaced by `text`, or `text` at its end."""
    pattern = re.compile(rf"{re.escape(HEADING)}\n.*?(?=\n## |\Z)", re.DOTALL)
    return pattern.sub(lambda _: text, page) if pattern.search(page) else f"{page.rstrip()}\n\n{text}"


def pages(results: dict[str, Any]) -> dict[Path, str]:
    """{page: its text with this section as `results` say} of the index and of every estimator that was run."""
    found = analyse(results)
    made = {PAGES / "README.md": summary(results, found)}
    made |= {PAGES / f"{n}.md": section(n, results, found) for n in (*BASES, *WRAPPERS) if arm_of(n) in found["arms"]}
    return {path: replaced(path.read_text(encoding="utf-8"), text) for path, text in made.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS, help="results.json of the comparison")
    parser.add_argument("--command", action="store_true", help="print the comparison's command, and end")
    args = parser.parse_args(argv)
    if args.command:
        print(command())
        return 0
    results = slim(load(args.results))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    for path, text in pages(results).items():
        path.write_text(text, encoding="utf-8")
    for name in (*BASES, *WRAPPERS):
        if arm_of(name) in compared(results):
            (RESULTS.parent / f"{name}.png").write_bytes(picture(arm_of(name), results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
