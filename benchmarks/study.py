"""Numbers of docs/study.md and docs/microscope.md that no report of a comparison has, from the results kept in docs/.

python -m benchmarks.study                                      # the study: checks, EDAS against its control, seed by seed
python -m benchmarks.study runs/dapo/microscope/step11          # and rank correlations within groups of estimators
python -m benchmarks.study --responses RESULTS.json ...         # keeps the counts of eval.py (configs/study/benchmarks.yaml)
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from minirl.ablate.analysis import SCALARS, runs_of
from minirl.ablate.outcomes import load, table
from minirl.ablate.statistics import Difference, difference
from minirl.advantages import rho
from minirl.analysis.ranking import analyse
from minirl.analysis.ranking import load as load_ranking

DOCS = Path(__file__).parents[1] / "docs"
RESPONSES = DOCS / "study" / "responses256.json"
OF_CONTROL = ("diverse groups of the batch, whole run", "groups sampled a step, whole run")


def shown(d: Difference, scale: float) -> str:
    """A difference with its interval, of one comparison."""
    return f"{scale * d.mean:+.1f} [{scale * d.low:+.1f}, {scale * d.high:+.1f}]"


def over(runs: list[dict[str, Any]], key: str, steps: slice) -> float:
    """The mean of a curve over steps and runs."""
    return float(np.mean([np.mean(run["curves"][key][steps]) for run in runs]))


def solved(run: dict[str, Any], hard: Any) -> Any:
    """bool: of the `hard` problems, those with a right response after training."""
    return np.array(run["after"]["right"])[hard] > 0


def study() -> None:
    """The checks of the baseline, and each arm's breakthroughs seed by seed."""
    results = load(DOCS / "study" / "results.json")
    base = runs_of(results, "dapo")
    first, last = slice(0, 5), slice(-5, None)
    for key in ("batch/diverse_groups", "batch/branch_b", "policy/entropy"):
        print(f"dapo, {key}: first five steps {over(base, key, first):.3f}, last five {over(base, key, last):.3f}")
    shares = [solved(run, np.array(run["before"]["right"]) == 0).mean() for run in base]
    print(f"dapo solves of the problems at 0/64: {min(shares):.0%} to {max(shares):.0%} by seed, mean {np.mean(shares):.0%}")
    for arm in ("edas", "edas-strong", "shuffled"):
        pairs = []
        for run, other in zip(runs_of(results, arm), base, strict=True):
            hard = np.array(other["before"]["right"]) == 0
            mine, theirs = solved(run, hard), solved(other, hard)
            pairs.append(f"{(mine & ~theirs).sum()} : {(theirs & ~mine).sum()}")
        better = table(results, arm, 1).mean(1) > table(results, "dapo", 1).mean(1)
        print(f"{arm}: alone : dapo alone by seed {', '.join(pairs)}; pass@1 above dapo's in {better.sum()} of {len(better)}")


def control() -> None:
    """EDAS against the control of its own strength."""
    results = load(DOCS / "study" / "control" / "results.json")
    for k in (1, 8, 64):
        edas, dealt = table(results, "edas", k), table(results, "shuffled-paper", k)
        print(f"edas - shuffled-paper, pass@{k}: {shown(difference(edas, dealt), 100)}")
        gains = [values.mean(1) - table(results, "dapo", k).mean(1) for values in (edas, dealt)]
        drawn = np.random.default_rng(0).integers(0, edas.shape[0], (100_000, edas.shape[0]))
        with np.errstate(divide="ignore"):  # a draw in which EDAS gains nothing
            low, high = np.quantile(gains[1][drawn].mean(1) / gains[0][drawn].mean(1), (0.025, 0.975))
        print(f"  the control's gain by EDAS's {gains[1].mean() / gains[0].mean():.2f} [{low:.2f}, {high:.2f}], by a bootstrap")
    for name in OF_CONTROL:
        edas, dealt = (np.array([[SCALARS[name](run)] for run in runs_of(results, arm)]) for arm in ("edas", "shuffled-paper"))
        print(f"edas - shuffled-paper, {name}: {shown(difference(edas, dealt), 1)}")


def branches() -> None:
    """EDAS against each of its branches alone, and against what the two would give together if gains added up."""
    whole, parts = (load(DOCS / "study" / name / "results.json") for name in ("control", "branches"))
    edas, dapo, *alone = table(whole, "edas", 1), *(table(parts, arm, 1) for arm in ("dapo", "edas-b", "edas-c"))
    for name, values in zip(("edas-b", "edas-c", "their sum"), (*alone, alone[0] + alone[1] - dapo), strict=True):
        print(f"edas - {name}, pass@1: {shown(difference(edas, values), 100)}")


def keep_responses(evaluations: list[str]) -> None:
    """Writes docs/study/responses256.json, {label: right responses of 256 of each problem}, from results.json of eval.py."""
    kept = {}
    for path in evaluations:
        for label, of in json.loads(Path(path).read_text(encoding="utf-8"))["results"].items():
            kept[label] = [problem["right"] for problem in of["rules256"]["problems"]]
    RESPONSES.write_text(json.dumps(kept, separators=(",", ":")) + "\n", encoding="utf-8")


def pass_at(k: int, rows: Any) -> Any:
    """float[models, problems]: pass@k from the right responses of 256."""
    return np.array([[rho(256, int(right), k) for right in row] for row in rows])


def many_responses() -> None:
    """Pass@k from 256 responses a problem, and breakthroughs at 0/256, of each arm against dapo on the arm's seeds. Labels are
    ARM-SEED, and start."""
    kept = {label: np.array(right) for label, right in json.loads(RESPONSES.read_text(encoding="utf-8")).items()}
    hard = kept["start"] == 0
    print(f"256 responses: {hard.sum()} problems at 0/256 before training")
    seeds: dict[str, list[str]] = {}
    for arm, _, seed in (label.rpartition("-") for label in kept if label != "start"):
        seeds.setdefault(arm, []).append(seed)
    for arm in seeds:
        right, base = (np.array([kept[f"{name}-{seed}"] for seed in seeds[arm]]) for name in (arm, "dapo"))
        print(f"{arm}, {len(seeds[arm])} seeds")
        for k in (1, 8, 64, 256):
            start, mine, theirs = (pass_at(k, rows) for rows in ([kept["start"]], right, base))
            above = "" if arm == "dapo" else f", above dapo {shown(difference(mine, theirs), 100)}"
            change = shown(difference(mine, np.repeat(start, len(mine), 0)), 100)
            print(f"  pass@{k}: start {100 * start.mean():.1f}, {arm} {100 * mine.mean():.1f}, change {change}{above}")
        mine, theirs = right[:, hard] > 0, base[:, hard] > 0
        print(f"  solved of the unsolved {mine.mean():.0%}")
        if arm == "dapo":
            continue
        alone = [(int(a), int(b)) for a, b in zip((mine & ~theirs).sum(1), (theirs & ~mine).sum(1), strict=True)]
        print(f"  alone : dapo alone {sum(a for a, _ in alone)} : {sum(b for _, b in alone)}, by seed ", end="")
        print(", ".join(f"{a} : {b}" for a, b in alone))
        share = difference(mine.mean(1, keepdims=True), theirs.mean(1, keepdims=True))
        print(f"  share solved above dapo's, over seeds: {shown(share, 100)}")
    few = seeds["shuffled-paper"]
    edas, dealt = (pass_at(256, [kept[f"{arm}-{seed}"] for seed in few]) for arm in ("edas", "shuffled-paper"))
    print(f"edas - shuffled-paper, pass@256, {len(few)} seeds: {shown(difference(edas, dealt), 100)}")


def weak_gradients() -> None:
    """Why PKPO unlearns the task: its gradient's norm beside the others', and its accuracy in training, ten steps at a time."""
    results = load(DOCS / "study" / "estimators" / "results.json")
    for arm in ("dapo", "grpo", "pkpo"):
        runs = runs_of(results, arm)
        accuracy = [over(runs, "reward/accuracy", slice(start, start + 10)) for start in range(0, 80, 10)]
        print(f"{arm}: gradient norm {over(runs, 'optimizer/grad_norm', slice(None)):.3g}, ", end="")
        print(f"accuracy by ten steps {' '.join(f'{a:.2f}' for a in accuracy)}")


def strengths() -> None:
    """EDAS against five times its strength, and its pass@1 after six of the twelve seeds."""
    results = load(DOCS / "study" / "results.json")
    dapo, edas, strong = (table(results, arm, 1) for arm in ("dapo", "edas", "edas-strong"))
    print(f"edas - edas-strong, pass@1: {shown(difference(edas, strong), 100)}")
    print(f"edas - dapo, pass@1, the first six seeds: {shown(difference(edas[:6], dapo[:6]), 100)}")
    rows = [over([run], "policy/approx_kl", slice(n, n + 1)) for run in runs_of(results, "dapo") for n in range(80)]
    print(f"dapo, largest KL to the old policy in twelve runs: {max(rows):.3f}")


def within(microscope: Path) -> None:
    """The rank correlations among the estimators without dynamic sampling, and among `dapo` and its wrappers."""
    results = DOCS / "algorithms" / "curves" / "results.json"
    found, accuracies = load_ranking(microscope, results)
    dynamic = json.loads(results.read_text(encoding="utf-8"))["differing"]["algorithm.dynamic_sampling"]
    groups = {
        "without dynamic sampling": [name for name in accuracies if not dynamic[name]],
        "dapo and its wrappers": [name for name in accuracies if name.startswith("dapo")],
    }
    for title, names in groups.items():
        made = analyse(found, {name: accuracies[name] for name in names})
        print(f"{title}, {len(names)} estimators: {json.dumps(made['correlations'])}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--responses"]:
        keep_responses(sys.argv[2:])
        sys.exit()
    study()
    control()
    branches()
    many_responses()
    weak_gradients()
    strengths()
    if len(sys.argv) > 1:
        within(Path(sys.argv[1]))
