"""Bias and variance of every estimator, exactly: a policy small enough that all groups of N responses can be enumerated.

    python -m benchmarks.estimators            # prints the tables of docs/algorithms/bias.md, seconds
    python -m benchmarks.estimators --write    # and puts them there

Each of four prompts has one right and four wrong answers, of one token, with probabilities softmax(z); the policy's parameters
are the z. A group's gradient is g = sum_i w_i A_i grad log pi(y_i) / N, that of the loss before the first step. Its mean and
variance over all groups are sums over the multinomial: no sampling, so no error but rounding. With dynamic sampling they are
those over the groups that are kept. Advantages come from `minirl.advantages` itself.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import factorial
from pathlib import Path

import numpy as np

from minirl.advantages import BASES, GRPO, PKPO, WRAPPERS, Estimator, Floats, Group, PassK, build

N, K = 8, 4
ANSWERS = ("", "a", "b", "c", "d")  # the first is right
WRONG = np.array([0.6, 0.25, 0.1, 0.05])  # shares of the wrong answers
RIGHT = (0.05, 0.2, 0.5, 0.8)  # chance of the right one, a prompt each
LENGTHS = np.array([3, 2, 4, 3, 5])  # tokens of each answer, which only OPO reads
REFERENCE = np.array([0.2, 0.3, 0.2, 0.2, 0.1])  # the reference model's chances, which only ACE reads
DEALS = 24  # draw numbers over which a random estimator is averaged
PAGE = Path(__file__).resolve().parents[1] / "docs" / "algorithms" / "bias.md"
BEGIN, END = "<!-- python -m benchmarks.estimators --write -->", "<!-- end -->"

# Objectives of one prompt as functions of p, the chance of a right answer: their derivative.
OBJECTIVES: dict[str, Callable[[float], float]] = {
    "pass@1": lambda p: 1.0,
    f"pass@{K}": lambda p: K * (1 - p) ** (K - 1),
    f"likelihood to order {N}": lambda p: sum((1 - p) ** (k - 1) for k in range(1, N + 1)),
}


@dataclass(frozen=True)
class Row:
    """One estimator. mean: float[prompts, answers], E g; variance: float[prompts], E |g - E g|^2; kept: float[prompts], share
    of groups that dynamic sampling keeps, 1 without it."""

    name: str
    claim: str
    mean: Floats
    variance: Floats
    kept: Floats


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as an ordered sum of `parts` numbers."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        yield from ((first, *rest) for rest in compositions(total - first, parts - 1))


GROUPS = list(compositions(N, len(ANSWERS)))


def policy(right: float) -> Floats:
    """float[answers], the probabilities of a prompt."""
    return np.array([right, *(1 - right) * WRONG])


def group_of(counts: tuple[int, ...], pi: Floats, number: int = 0) -> Group:
    """The group in which answer a stands counts[a] times, with all that an estimator may read."""
    answers = np.repeat(np.arange(len(ANSWERS)), counts)
    correct = answers == 0
    return Group(
        correct.astype(float), correct, [ANSWERS[a] for a in answers], number=number,
        logprobs=[np.log(pi[a : a + 1]) for a in answers], ref_logprobs=[np.log(REFERENCE[a : a + 1]) for a in answers],
        lengths=LENGTHS[answers],
    )  # fmt: skip


def gradient(estimator: Estimator, group: Group, pi: Floats) -> Floats:
    """float[answers], g of one group."""
    answers = np.array([ANSWERS.index(label) for label in group.labels])
    scores = np.eye(len(pi))[answers] - pi
    return (estimator.weights(group) * estimator(group)) @ scores / N


def row(name: str, claim: str, estimator: Estimator) -> Row:
    """The exact mean and variance of `estimator`."""
    dynamic, deals = estimator.requirements.dynamic_sampling, DEALS if "shuffled" in name else 1
    means, variances, kept = [], [], []
    for right in RIGHT:
        pi = policy(right)
        chances, gradients = [], []
        for counts in GROUPS:
            chance = factorial(N) * float(np.prod([p**c / factorial(c) for p, c in zip(pi, counts, strict=True)]))
            if dynamic and not estimator.keeps(group_of(counts, pi)):
                continue
            chances += [chance / deals] * deals
            gradients += [gradient(estimator, group_of(counts, pi, deal), pi) for deal in range(deals)]
        total = sum(chances)
        share, g = np.array(chances) / total, np.array(gradients)
        mean = share @ g
        means.append(mean)
        variances.append(share @ ((g - mean) ** 2).sum(1))
        kept.append(total)
    return Row(name, claim, np.array(means), np.array(variances), np.array(kept))


def directions(derivative: Callable[[float], float]) -> Floats:
    """float[prompts, answers], the gradient of an objective: its derivative by p times that of p by z."""
    gradients = []
    for right in RIGHT:
        pi = policy(right)
        gradients.append(derivative(right) * pi[0] * (np.eye(len(pi))[0] - pi))
    return np.array(gradients)


def rows() -> list[Row]:
    """All estimators, those under a wrapper on `grpo`."""
    pass_k, likelihood = f"pass@{K}", f"likelihood to order {N}"
    given: dict[str, tuple[str, Estimator]] = {
        "grpo": ("", build("grpo")),
        "grpo, std=false (Dr. GRPO)": ("pass@1", GRPO(std=False)),
        "dapo": ("", build("dapo")),
        f"pkpo, k={K}, baseline=mean": (pass_k, PKPO(k=K)),
        f"pkpo, k={K}, baseline=sloo": (pass_k, PKPO(k=K, baseline="sloo")),
        f"pkpo, k={K}, baseline=sloo-1": (pass_k, PKPO(k=K, baseline="sloo-1")),
        "maxrl": (likelihood, build("maxrl")),
        "maxrl, mean taken off at c = 0 too": (likelihood, MaxRLPaper()),
        f"passk, k={K}": (pass_k, PassK(k=K)),
    }
    claims = {"rloo": "pass@1", "opo": "pass@1", "reinforce_pp": "pass@1", "gpg": "pass@1", "psr": "pass@1", "nsr": "pass@1"}
    claims["wreinforce"] = "pass@1"
    for name in BASES:
        if name not in ("grpo", "dapo", "pkpo", "maxrl", "passk"):
            given[name] = (claims.get(name, ""), build(name))
    for name in WRAPPERS:
        if name != "entropy":
            given[f"grpo+{name}"] = ("", build(f"grpo+{name}"))
    return [row(name, claim, estimator) for name, (claim, estimator) in given.items()]


@dataclass(frozen=True)
class MaxRLPaper(Estimator):
    """MaxRL with its control variate in every group: r_i / mean - 1, and -1 where no response is right."""

    name = "maxrl-paper"

    def __call__(self, group: Group) -> Floats:
        mean = group.rewards.mean()
        return group.rewards / mean - 1 if mean > 0 else -np.ones(len(group.rewards))


def fit(mean: Floats, target: Floats) -> tuple[float, float]:
    """(scale s, relative bias): s minimises |mean - s target| over all prompts; the bias is what is left, over |s target|."""
    scale = float((mean * target).sum() / (target**2).sum())
    return scale, float(np.linalg.norm(mean - scale * target) / np.linalg.norm(scale * target))


def wrong_entropy_slope(mean: Floats) -> Floats:
    """float[prompts]: d H / dt of the entropy H of the wrong answers' shares, nats, as the parameters move along `mean`."""
    slopes = []
    for step in mean:
        along = step[1:] - WRONG @ step[1:]
        slopes.append(float(-(WRONG * along) @ np.log(WRONG)))
    return np.array(slopes)


def tables() -> str:
    """Both tables, in Markdown."""
    made = rows()
    one = directions(OBJECTIVES["pass@1"])
    lines = [
        f"N = {N}, k = {K}, a right answer of chance p and four wrong ones that share the rest, {', '.join(map(str, WRONG))}.",
        "",
        "| estimator | objective | scale | bias | noise | " + " | ".join(f"weight, p = {p}" for p in RIGHT) + " | sideways |",
        "|---" * (6 + len(RIGHT)) + "|",
    ]
    for r in made:
        target = directions(OBJECTIVES[r.claim or "pass@1"])
        scale, bias = fit(r.mean, target)
        noise = np.sqrt(r.variance.sum()) / np.linalg.norm(r.mean)
        weights = (r.mean * one).sum(1) / (one**2).sum(1)
        sideways = np.linalg.norm(r.mean - weights[:, None] * one) / np.linalg.norm(r.mean)
        shown = [r.name, r.claim or "(pass@1)", f"{scale:.3f}", f"{bias:.2%}", f"{noise:.2f}"]
        lines.append("| " + " | ".join([*shown, *(f"{w:.3f}" for w in weights), f"{sideways:.2%}"]) + " |")
    lines += [
        "",
        "| estimator | " + " | ".join(f"dH/dt, p = {p}" for p in RIGHT) + " | all, over grpo's | the same per pass@1 |",
        "|---" * (3 + len(RIGHT)) + "|",
    ]
    grpo = next(r for r in made if r.name == "grpo")
    base = wrong_entropy_slope(grpo.mean)
    for r in made:
        if r.name.startswith("grpo") and "std" not in r.name:
            slopes = wrong_entropy_slope(r.mean)
            ratio = slopes.sum() / base.sum()
            progress = (r.mean * one).sum() / (grpo.mean * one).sum()
            lines.append(
                f"| {r.name} | " + " | ".join(f"{s:.4f}" for s in slopes) + f" | {ratio:.3f} | {ratio / progress:.3f} |"
            )
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Prints the tables, and writes them into the page where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"put them into {PAGE}")
    arguments = parser.parse_args(argv)
    text = tables()
    print(text)
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        head, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
