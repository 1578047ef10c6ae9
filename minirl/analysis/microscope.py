"""What the gradients of several estimators on one saved batch have in common: norms, cosines, noise, what they move most.

The gradients come from minirl/watch/microscope.py; docs/microscope.md says how to read the result. A gradient, of P parameters,
is the sum of a part from each group; U groups in all that any estimator trains on. Groups are the sample: their parts are
resampled, with the batch's number of tokens and an estimator's statistics of the whole batch left as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minirl.analysis.output import Table
from minirl.rollout.types import Rollout
from minirl.verify.types import RIGHT

Floats = NDArray[np.floating]
RESAMPLES = 2000
MATRIX = 12  # a matrix of more estimators is in the picture and the JSON only
TOP = 3


@dataclass
class Seen:
    """What one estimator makes of the batch. settings: loss and aggregation of its run; groups: that it trains on, G; gram,
    cross: float[G, G'] inner products of its parts with themselves and with those of the first estimator; gradient: float32[P];
    moves: float[T_i] a response, change of its log-probs in a step, nats; entropy: mean change of a token's entropy in that
    step, nats; text: token ids -> text, the tokenizer's decode."""

    name: str
    settings: dict[str, str]
    groups: list[list[Rollout]]
    gram: Floats
    cross: Floats
    gradient: Floats
    moves: list[Floats]
    entropy: float
    text: Callable[..., str]

    @property
    def numbers(self) -> list[int]:
        """Its groups' draw numbers."""
        return [group[0].group for group in self.groups]


def analyse(seen: Sequence[Seen], seed: int = 0) -> dict[str, Any]:
    """The numbers of all estimators; the others are compared with the first one."""
    first = seen[0]
    problems = {group[0].group: group for s in seen for group in s.groups}
    order = {number: i for i, number in enumerate(sorted(problems))}
    counts = np.random.default_rng(seed).multinomial(len(order), np.full(len(order), 1 / len(order)), RESAMPLES)
    whole = np.array([s.gradient for s in seen], np.float64)
    norms = np.linalg.norm(whole, axis=1)
    with np.errstate(invalid="ignore"):
        matrix = whole @ whole.T / np.outer(norms, norms)
    base = spread(first.gram, first.numbers, first.numbers, order)
    found = {}
    for i, s in enumerate(seen):
        own, cross = spread(s.gram, s.numbers, s.numbers, order), spread(s.cross, s.numbers, first.numbers, order)
        same = next((seen[j].name for j in range(i) if np.linalg.norm(whole[i] - whole[j]) <= 1e-6 * norms[j]), None)
        found[s.name] = {
            **s.settings, "same_as": same, **advantages(s.groups), "norm": norms[i],
            "cosine": {"mean": matrix[i, 0]} | cosine_interval(own, base, cross, counts),
            "snr": signal_to_noise(s.gram), "gain": gain(s.groups, s.moves), "entropy": s.entropy,
            "problems": dict(zip(s.numbers, shares(s.gram), strict=True)), "tokens": moved_most(s),
        }  # fmt: skip
    return {
        "first": first.name, "groups": len(order), "parameters": whole.shape[1], "resamples": RESAMPLES,
        "estimators": found, "names": [s.name for s in seen], "cosines": matrix,
        "batch": {number: described(group, first.text) for number, group in sorted(problems.items())},
    }  # fmt: skip


def described(group: Sequence[Rollout], text: Callable[..., str]) -> dict[str, Any]:
    """What the JSON says of a group."""
    return {
        "problem": text(group[0].prompt_ids, skip_special_tokens=True), "gold": group[0].gold,
        "responses": [r.text for r in group], "status": [r.verdict.status for r in group],
        "label": [r.verdict.label for r in group],
    }  # fmt: skip


def spread(products: Floats, rows: Sequence[int], columns: Sequence[int], order: dict[int, int]) -> NDArray[np.float64]:
    """float[U, U] from inner products of the groups `rows` with the groups `columns`; 0 for groups that are not trained on."""
    whole = np.zeros((len(order), len(order)))
    whole[np.ix_([order[n] for n in rows], [order[n] for n in columns])] = products
    return whole


def quadratic(products: Floats, counts: NDArray[np.integer]) -> NDArray[np.float64]:
    """float[R]: the inner products of sums over groups, each group taken `counts`[R, U] times."""
    return ((counts @ products) * counts).sum(-1)


def signal_to_noise(gram: Floats) -> dict[str, float]:
    """Signal / noise, a ratio of squares, with a 95% interval from leaving out one group at a time. NaN for two groups or
    fewer, and where all parts are equal.

    Noise: the squared standard error of the sum over U groups, as an endless bootstrap over groups gives it, times U / (U - 1):
    U / (U - 1) (sum |p_k|^2 - |sum p_k|^2 / U). Signal: the squared length of the expected gradient, which is that of the sum
    less the noise. Without signal the ratio is 0 on average, and so below 0 half of the time. A batch of m times as many groups
    has m times the ratio: 1 is what McCandlish et al. (arXiv 1812.06162) call the critical batch.
    """
    groups = len(gram)
    if groups < 3:
        return dict.fromkeys(("mean", "low", "high"), float("nan"))

    def ratio(length: Any, squares: Any, n: int) -> Any:
        noise = n / (n - 1) * (squares - length / n)
        return (length / np.where(noise > 1e-9 * squares, noise, np.nan) - 1) * groups / n

    length, squares = gram.sum(), np.diag(gram)
    value = float(ratio(length, squares.sum(), groups))
    without = ratio(length - 2 * gram.sum(1) + squares, squares.sum() - squares, groups - 1)
    margin = 1.96 * float(np.sqrt((groups - 1) * without.var()))
    return {"mean": value, "low": value - margin, "high": value + margin}


def cosine_interval(own: Floats, base: Floats, cross: Floats, counts: NDArray[np.integer]) -> dict[str, float]:
    """{low, high}: 95% of the cosines of two gradients, from inner products of their parts, over resampled groups."""
    with np.errstate(invalid="ignore"):
        cosines = quadratic(cross, counts) / np.sqrt(quadratic(own, counts) * quadratic(base, counts))
    if np.isnan(cosines).all():
        return {"low": float("nan"), "high": float("nan")}
    low, high = np.nanquantile(cosines, [0.025, 0.975])
    return {"low": float(low), "high": float(high)}


def shares(gram: Floats) -> list[float]:
    """Of each group, the share that it has in the squared length of the gradient, <p_k, g> / |g|^2: they sum to 1, and one that
    is negative pulls against the others."""
    total = gram.sum()
    return (gram.sum(1) / total).tolist() if total > 0 else [0.0] * len(gram)


def advantages(groups: Sequence[Sequence[Rollout]]) -> dict[str, Any]:
    """advantages: by group, one a response or a list of one a token, 0 for a response that the loss leaves out; right, wrong:
    mean over right and over wrong responses, of a response's mean over its tokens; zero: share of responses that have none.
    """
    values = {g[0].group: [np.round(np.asarray(r.advantages) * bool(r.weight), 6) for r in g] for g in groups}
    rollouts = [r for group in groups for r in group]
    means = np.array([value.mean() for group in values.values() for value in group])
    zero = np.array([not value.any() for group in values.values() for value in group])
    right = np.array([r.verdict.status == RIGHT for r in rollouts], dtype=bool)

    def mean(chosen: Any) -> float:
        return float(np.mean(chosen)) if len(chosen) else float("nan")

    return {"right": mean(means[right]), "wrong": mean(means[~right]), "zero": mean(zero), "advantages": values}


def gain(groups: Sequence[Sequence[Rollout]], moves: Sequence[Floats]) -> float:
    """By how much the accuracy on the batch's problems changes in the step, to first order: mean over groups of
    sum_i (c_i - mean c) d log pi(y_i) / (N - 1), c_i 1 for right. NaN without a group of two verdicts.

    It is estimated on the responses that made the gradient, so the noise that a gradient follows counts as gain.
    """
    values, moves = [], list(moves)
    for group in groups:
        change, moves = np.array([m.sum() for m in moves[: len(group)]]), moves[len(group) :]
        valid = np.array([not np.isnan(r.reward) for r in group])
        right = np.array([float(r.verdict.status == RIGHT) for r in group])[valid]
        if len(right) > 1:
            values.append(((right - right.mean()) * change[valid]).sum() / (len(right) - 1))
    return float(np.mean(values)) if values else float("nan")


def moved_most(seen: Seen, top: int = TOP) -> list[dict[str, Any]]:
    """The tokens whose log-prob the step changes most; a token after the same text in the same group counts once."""
    rollouts = [r for group in seen.groups for r in group]
    flat = [(abs(change), i, t) for i, move in enumerate(seen.moves) for t, change in enumerate(move.tolist())]
    found: dict[Any, dict[str, Any]] = {}
    for _, i, t in sorted(flat, reverse=True):
        r = rollouts[i]
        ids = r.completion.ids
        key = (r.group, tuple(ids[: t + 1].tolist()))
        if key not in found:
            parts = [seen.text(ids[a:b]) for a, b in pairwise((0, t, t + 1, len(ids)))]
            found[key] = {"group": r.group, "before": parts[0], "token": parts[1], "after": parts[2],
                          "status": r.verdict.status, "change": float(seen.moves[i][t])}  # fmt: skip
        if len(found) == top:
            break
    return list(found.values())


# ---- the tables and the picture --------------------------------------------------------------------------------------------


def short(text: str, length: int = 24) -> str:
    """`text` in one line, without its middle where it is long."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length // 2 - 1]}…{text[-(length // 2) :]}"


def cell(value: float | None, form: str) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None or np.isnan(value) else format(value, form)


def between(entry: dict[str, float], form: str) -> str:
    """'0.98 [0.97, 0.99]'."""
    return f"{cell(entry['mean'], form)} [{cell(entry['low'], form)}, {cell(entry['high'], form)}]"


def tables(result: dict[str, Any]) -> list[str | Table]:
    """One row an estimator, the cosines, what moves most, and who is left out."""
    found, names, batch = result["estimators"], result["names"], result["batch"]
    head = ["estimator", "A right", "A wrong", "A = 0", "norm", f"cosine to {result['first']}", "signal / noise",
            "gain, points", "entropy, nats", "same as"]  # fmt: skip
    rows = [
        [
            name, cell(e["right"], "+.3f"), cell(e["wrong"], "+.3f"), cell(e["zero"], ".0%"), cell(e["norm"], ".4g"),
            between(e["cosine"], ".3f"), between(e["snr"], ".2f"), cell(100 * e["gain"], "+.2f"), cell(e["entropy"], "+.5f"),
            e["same_as"] or "",
        ]
        for name, e in found.items()
    ]  # fmt: skip
    shown: list[str | Table] = [
        f"{len(found)} estimators on {result['groups']} groups, {result['parameters']:,} parameters. A: mean advantage of "
        "right and of wrong responses, and the share without one. norm: of the gradient before clipping. cosine: with 95% of "
        f"those over {result['resamples']:,} resamples of the groups. signal / noise: a ratio of squares, 95% interval. gain: "
        "change of accuracy on these problems, and entropy: of a token's entropy, when the weights move against the gradient "
        f"by {result['step_length']:g} of their length.",
        [head, *rows],
    ]
    different = [name for name in names if not found[name]["same_as"]]
    if 1 < len(different) <= MATRIX:
        index = [names.index(name) for name in different]
        cells = [[cell(result["cosines"][i][j], ".3f") for j in index] for i in index]
        shown += [
            "Cosines of the gradients:",
            [["", *different], *([n, *row] for n, row in zip(different, cells, strict=True))],
        ]
    elif len(different) > MATRIX:
        shown.append(f"The cosines of {len(different)} different gradients are in the picture and the JSON.")
    rows = []
    for name in different:
        most = sorted(found[name]["problems"].items(), key=lambda item: -abs(item[1]))[:TOP]
        problems = [f"{short(batch[number]['problem'])} {share:+.0%}" for number, share in most]
        tokens = [
            f"{short(batch[t['group']]['problem'], 16)} {short(t['before'], 10)}[{t['token']}]{short(t['after'], 10)} "
            f"{t['change']:+.3f}"
            for t in found[name]["tokens"]
        ]
        rows.append([name, "; ".join(problems), "; ".join(tokens)])
    shown += [
        "Problems with the largest share in the gradient's squared length, and [tokens] whose log-prob the step changes most:",
        [["estimator", "problems", "tokens"], *rows],
    ]
    if result["left_out"]:
        shown += ["Left out:", [["estimator", "reason"], *([name, why] for name, why in result["left_out"].items())]]
    return shown


def draw(result: dict[str, Any], plt: Any) -> Any:
    """A heat map of the cosines and bars of the norms. plt: matplotlib.pyplot."""
    names, found = result["names"], result["estimators"]
    size = max(4.0, 0.42 * len(names) + 1.5)
    figure, (left, right) = plt.subplots(1, 2, figsize=(1.75 * size + 1, size), layout="constrained", width_ratios=(1.6, 1))
    matrix, places = np.asarray(result["cosines"], dtype=float), range(len(names))
    shown = left.imshow(matrix, cmap="RdBu", vmin=-1, vmax=1)
    for i in places:
        for j in places:
            dark = abs(matrix[i, j]) > 0.6
            left.text(j, i, cell(matrix[i, j], ".2f"), ha="center", va="center", fontsize=6, color="white" if dark else "black")
    left.set(title="cosines of the gradients", yticks=places, yticklabels=names, xticks=places)
    left.set_xticklabels(names, rotation=90)
    figure.colorbar(shown, ax=left, shrink=0.7)
    right.barh(places, [found[name]["norm"] for name in names], color="C0")
    for i, name in enumerate(names):
        right.text(found[name]["norm"], i, f" snr {cell(found[name]['snr']['mean'], '.2f')}", va="center", fontsize=7)
    right.margins(x=0.2, y=0.01)
    right.set(title="norm of the gradient, signal / noise", yticks=places, yticklabels=names)
    right.invert_yaxis()
    return figure
