"""Whether the task rules stands for the regime of arXiv 2605.17333: python -m benchmarks.rules_start [RUN ...]

Samples the embedded model before any training, 10 responses to each of 1,024 training problems and 32 to each held-out one,
and prints what it measured beside the range that was fixed before any two methods were compared. RUN: run folders of DAPO on
this task (run.steps at least 80, eval.samples at least 32); they add what training must do. Exit code 1: a value is out of its
range. Then the task or its warm start is to be changed, never the method. About two minutes on one core.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import finish, table
from minirl.advantages import Group, diversity, has_signal
from minirl.config.command_line import load
from minirl.data.problems import load_problems
from minirl.data.prompts import Order, encode_prompts
from minirl.evaluation.held_out import counts, read
from minirl.evaluation.models import Checkpoint
from minirl.policy.model import load_tokenizer
from minirl.rollout.engines import build_engine
from minirl.rollout.sampler import EVALUATION, Sampler, as_group
from minirl.rollout.types import Rollout, SamplingParams
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError
from minirl.verify.pool.pool import VerifierPool

UNSOLVED_OF = 32  # a held-out problem counts as unsolved when none of so many responses is right


@dataclass(frozen=True)
class Check:
    """One row: what was measured, and the range that it must lie in, ends included; None: shown without a verdict."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> str:
        """ "ok", "out of range", or "" where there is no range."""
        if self.low is None and self.high is None:
            return ""
        low, high = -np.inf if self.low is None else self.low, np.inf if self.high is None else self.high
        return "ok" if low <= self.value <= high else "out of range"

    def row(self) -> dict[str, str]:
        """The row of the table."""
        wanted = " to ".join(f"{end:g}" for end in (self.low, self.high) if end is not None)
        wanted = (
            f"at least {wanted}"
            if self.high is None and wanted
            else f"at most {wanted}"
            if self.low is None and wanted
            else wanted
        )
        return {
            "check": self.name,
            "measured": f"{self.value:.3f}".rstrip("0").rstrip("."),
            "wanted": wanted,
            "verdict": self.verdict,
        }


def start_checks(training: list[Group], held_out: list[tuple[int, int]], entropy: float) -> list[Check]:
    """The rows of a starting model. training: groups as they are sampled; held_out: (responses with a verdict, right ones) of
    each problem; entropy: of the policy, nats a token."""
    kept = [group for group in training if has_signal(group)]
    found = diversity(kept)
    solved = [c / n for n, c in held_out if n]
    return [
        Check("pass@1, held out", float(np.mean(solved))),
        Check(f"held-out problems at 0/{UNSOLVED_OF}", sum(share == 0 for share in solved), low=150),
        Check("groups kept by dynamic sampling, share", len(kept) / len(training)),
        Check("diverse groups, share of the kept", found["diverse_groups"] / len(kept), low=0.6, high=0.8),
        Check("classes of wrong answers in a kept group", found["unique_wrong"]),
        Check("branch B, share of the kept", found["branch_b"] / len(kept), low=0.15, high=0.35),
        Check("entropy, nats a token", entropy),
    ]


def run_checks(folders: Sequence[Path]) -> list[Check]:
    """The rows of finished runs of DAPO, means over them of what `run_values` gives."""
    falls, entropies, solved = np.mean([run_values(folder) for folder in folders], 0).tolist()
    runs = f"DAPO, {len(folders)} run{'s' if len(folders) > 1 else ''}"
    return [
        Check(f"{runs}: change of the diverse groups", falls, high=-0.6),
        Check(f"{runs}: change of the entropy", entropies, high=-0.5),
        Check(f"{runs}: unsolved problems that are solved, share", solved, low=0.2, high=0.6),
    ]


def run_values(folder: Path, last: int = 20) -> tuple[float, float, float]:
    """(relative change of the diverse groups in a batch, that of the entropy, share of the held-out problems without any right
    response before training that have one after it). Changes are from the mean of the first five steps to that of the `last`
    ones. ConfigError when the folder has too little."""
    try:
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is no run folder with metrics: {error}") from None
    files = sorted((folder / "evaluations").glob("step*.json"))
    if len(rows) < 5 + last or len(files) < 2:
        raise ConfigError(f"{folder} has {len(rows)} steps and {len(files)} evaluations: {5 + last} and 2 are needed")
    before, after = (read(files[i])[0].problems for i in (0, -1))
    if any(p["n"] < UNSOLVED_OF for p in before):
        raise ConfigError(f"{folder} was evaluated with too few responses: set eval.samples to at least {UNSOLVED_OF}")

    def change(key: str) -> float:
        values = [row[key] for row in rows]
        return float(np.mean(values[-last:]) / np.mean(values[:5])) - 1

    solved = [after[i]["right"] > 0 for i, p in enumerate(before) if p["right"] == 0]
    return change("batch/diverse_groups"), change("policy/entropy"), float(np.mean(solved))


def sample_start(groups: int, problems: int, seed: int) -> list[Check]:
    """The rows of the embedded model, sampled as the study samples it: groups of 10 to training problems, 32 to held-out."""
    config = load(["--data.task=rules", f"--run.seed={seed}"])
    tokenizer = load_tokenizer(config.model)
    train, test = (
        encode_prompts(some, tokenizer, config.data, [], name)
        for some, name in zip(load_problems(config.data)[:2], ("training", "held-out"), strict=True)
    )
    ranks = Ranks()
    engine = build_engine(config, Checkpoint(config, ranks, len(tokenizer)), tokenizer, max(len(p.ids) for p in train + test))
    v, drawn, longest = config.verifier, Order(len(train), seed).draw(groups), config.rollout.max_response_tokens
    with VerifierPool(*v.pool(), v.workers, v.timeout) as pool:
        sampler = Sampler(engine, tokenizer, pool, ranks, seed)
        numbers, prompts = [number for number, _ in drawn], [train[i] for _, i in drawn]
        sampled = sampler.groups(prompts, numbers, SamplingParams(config.rollout.group_size, 1.0, longest))
        asked = test[:problems]
        judged = sampler.groups(asked, range(len(asked)), SamplingParams(UNSOLVED_OF, 1.0, longest), EVALUATION)
    held_out = [(entry["n"], entry["right"]) for group in judged if (entry := counts("", group))]
    return start_checks([as_group(group) for group in sampled], held_out, mean_surprise([r for g in sampled for r in g]))


def mean_surprise(rollouts: list[Rollout]) -> float:
    """Mean of -log p over all sampled tokens, nats: at temperature 1 an unbiased estimate of the policy's entropy a token."""
    return float(-np.concatenate([r.completion.logprobs for r in rollouts]).mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="run folders of DAPO on this task")
    parser.add_argument("--groups", type=int, default=1024, help="training problems sampled")
    parser.add_argument("--problems", type=int, default=512, help="held-out problems sampled")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling")
    parser.add_argument("--json", action="store_true", help="print one JSON line more")
    parser.add_argument("--results", help="file for the JSON line; else benchmarks/results.jsonl")
    o = parser.parse_args()
    try:
        checks = sample_start(o.groups, o.problems, o.seed) + (run_checks(o.runs) if o.runs else [])
    except ConfigError as error:
        print(f"rules_start: {error}", file=sys.stderr)
        return 2
    print(table([check.row() for check in checks]))
    finish("rules_start", [check.row() for check in checks], o.results, o.json)
    return int(any(check.verdict == "out of range" for check in checks))


if __name__ == "__main__":
    sys.exit(main())
