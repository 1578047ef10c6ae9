"""Runs with other people's estimators and losses, schedules, labellers and code of one's own, replayed to the bit."""

import json
import re

import pytest

import train
from minirl.config.command_line import load
from tests.conftest import few_problems

RUN = [
    "--run.steps=2", "--run.save_every=1", "--rollout.prompts=4", "--rollout.group_size=4", "--algorithm.mini_batch_prompts=2",
    "--eval.problems=4", "--eval.samples=2", "--eval.k=2", "--eval.every=0", "--optimizer.lr=1e-3",
    "--optimizer.warmup_steps=0", "--optimizer.micro_batch_tokens=64", "--run.save_rollouts=4",
]  # fmt: skip

OWN = '''
from dataclasses import dataclass
import numpy as np
from minirl.advantages import Estimator, option
from minirl.losses import PolicyLoss, TokenLoss


@dataclass(frozen=True)
class OnlyShort(Estimator):
    """Wrong -1; of the others, and of long ones, the loss knows nothing."""

    longest: int = option(8, "tokens")

    def __call__(self, group):
        return np.where(group.wrong, -1.0, 0.0)

    def weights(self, group):
        return (group.wrong & (group.lengths <= self.longest)).astype(float)


@dataclass(frozen=True)
class Half(PolicyLoss):
    def __call__(self, tokens, clip):
        return TokenLoss.of(tokens, -0.5 * tokens.advantages * tokens.logprobs)


def by_length(problem, responses, verdicts):
    return ["" if v.status == "right" else f"{len(r) % 3} characters" for r, v in zip(responses, verdicts, strict=True)]


def broken(problem, responses, verdicts):
    return ["one label"]
'''

CASES = {
    "a schedule, a random deal, a labeller and a loss that selects tokens": [
        "--algorithm.estimator=unlikely+edas-shuffled", "--estimator.edas.alpha=0.4 -> 0.1 cosine",
        "--verifier.labeller=OWN:by_length", "--algorithm.loss=clip_cov", "--loss.clip_cov.share=0.2", "--loss.clip_cov.low=0",
    ],
    "a reference for the estimator and in the reward, tokens after it, sequences in the loss": [
        "--algorithm.estimator=dapo+ace+entropy", "--algorithm.kl_reward_coef=0.05", "--algorithm.loss=gspo",
        "--algorithm.rollout_is=sequence_mask", "--algorithm.clip_low=0.1",
    ],
    "an estimator and a loss of one's own, responses left out": [
        "--algorithm.estimator=OWN:OnlyShort", "--estimator.custom={longest: 18}", "--algorithm.loss=OWN:Half",
    ],
    "whitened over the batch": ["--algorithm.estimator=reinforce_pp+fgrpo", "--algorithm.loss=kl_cov"],
    "groups that are all wrong": ["--algorithm.estimator=ngrpo+edas", "--algorithm.loss=gmpo", "--algorithm.epochs=2"],
    "no ratio": ["--algorithm.estimator=gpg+explore"],
    "the likeliest tokens": ["--algorithm.loss=simko", "--loss.simko.alpha=0.5", "--loss.simko.tau=0.3"],
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_runs_and_replays_to_the_bit(case, tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    options = [option.replace("OWN", f"{tmp_path}/own.py") for option in CASES[case]]
    run = tmp_path / "run"
    assert train.main(load([*RUN, *options, *few_problems(tmp_path), "--run-dir", str(run)])) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(row["optimizer/steps"] >= 1 for row in rows), "it trains"
    capsys.readouterr()
    assert train.main(load(["--replay", str(run / "step2")])) == 0
    printed = capsys.readouterr().out
    all_, equal = map(int, re.search(r"(\d+) metrics: (\d+) equal to the bit, 0 differ", printed).groups())
    assert all_ == equal > 40
    assert re.search(r"optimizer/grad_norm +\S+ +\S+ +0\n", printed)
    assert re.search(r"advantages of \d+ responses differ by 0 at most", printed)
    if "by_length" in " ".join(options):
        lines = [json.loads(x) for x in (run / "rollouts" / "step000002.jsonl").read_text().splitlines()]
        labels = {line["label"] for line in lines if line["status"] == "wrong"}
        assert labels
        assert all(label.endswith(" characters") for label in labels)


def test_a_schedule_moves_with_the_run(tmp_path):
    """The first of two steps has the schedule's first value, the last its second."""
    run = tmp_path / "run"
    options = ["--algorithm.estimator=wreinforce", "--estimator.wreinforce.weight=0.5 -> 0.1", "--optimizer.lr=0"]
    assert train.main(load([*RUN, *options, *few_problems(tmp_path), "--run-dir", str(run)])) == 0
    for step, right in ((1, 0.5), (2, 0.1)):
        lines = (run / "rollouts" / f"step{step:06d}.jsonl").read_text().splitlines()
        assert {line["advantage"] for line in map(json.loads, lines)} == {right, -1.0}


def test_a_labeller_that_fails_ends_the_run_with_one_sentence(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    options = [f"--verifier.labeller={tmp_path}/own.py:broken", *few_problems(tmp_path), "--run-dir", str(tmp_path / "run")]
    assert train.main(load([*RUN, *options])) == 1
    assert "verifier.labeller failed on problem" in capsys.readouterr().err


def test_a_run_does_not_go_on_with_other_code_of_one_s_own(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    options = [
        f"--algorithm.estimator={tmp_path}/own.py:OnlyShort",
        *few_problems(tmp_path),
        "--run-dir",
        str(tmp_path / "run"),
    ]
    assert train.main(load([*RUN, *options, "--run.steps=1"])) == 0
    (tmp_path / "own.py").write_text(OWN.replace("-1.0", "-2.0"))
    assert train.main(load([*RUN, *options])) == 2
    assert "reward file" in capsys.readouterr().err
