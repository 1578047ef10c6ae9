"""What an estimator sees of rollouts, and error classes of the user's own."""

import numpy as np
import pytest

from minirl.rollout.sampler import as_group, relabel
from minirl.rollout.types import Completion, Rollout
from minirl.utils.errors import RunError
from minirl.verify.types import Problem, Verdict

PROBLEM = Problem("p7", "1 + 1", "2")


def rollouts(number=5):
    made = []
    for length, status in ((2, "right"), (3, "wrong"), (1, "wrong")):
        sample = Completion(np.arange(length, dtype=np.int32), np.zeros(length, np.float32), "stop")
        made.append(Rollout(number, "", "", [1], sample, 0, "x" * length, Verdict(status, "a"), float(status == "right")))
    return made


def test_a_group_has_its_name_lengths_and_place_in_the_run():
    g = as_group(rollouts(), progress=0.25, seed=3)
    assert (g.number, g.seed, g.progress, g.lengths.tolist()) == (5, 3, 0.25, [2, 3, 1])
    assert (g.logprobs, g.ref_logprobs, g.entropies) == (None, None, None)


def test_log_probs_are_there_when_all_responses_have_them():
    made = rollouts()
    for r in made[:2]:
        r.old_logprobs = np.zeros(r.length, np.float32)
    assert as_group(made).logprobs is None
    made[2].old_logprobs = np.ones(1, np.float32)
    assert [x.tolist() for x in as_group(made).logprobs] == [[0, 0], [0, 0, 0], [1]]


def test_the_kl_taken_off_the_reward_leaves_scores_and_verdicts():
    made = rollouts()
    for r in made:
        r.old_logprobs, r.ref_logprobs = np.full(r.length, -1, np.float32), np.full(r.length, -2, np.float32)
    g = as_group(made, kl_reward_coef=0.1)
    assert g.rewards == pytest.approx([1 - 0.2, -0.3, -0.1])
    assert g.scores.tolist() == [1, 0, 0]
    assert g.correct.tolist() == [True, False, False]


def test_a_labeller_gives_a_whole_group_its_classes():
    made = rollouts()
    seen = []
    relabel(lambda *a: seen.append(a) or ["", "long", "short"], PROBLEM, made)
    assert [r.verdict.label for r in made] == ["", "long", "short"]
    assert seen == [(PROBLEM, ["xx", "xxx", "x"], [Verdict("right", "a"), Verdict("wrong", "a"), Verdict("wrong", "a")])]
    assert [r.verdict.status for r in made] == ["right", "wrong", "wrong"]


@pytest.mark.parametrize("given", [["a", "b"], ["a", "b", 3], None, 1 / 3])
def test_a_labeller_that_gives_something_else_is_said(given):
    with pytest.raises(RunError, match=r"verifier\.labeller failed on problem p7: TypeError"):
        relabel(lambda *a: given, PROBLEM, rollouts())


def test_a_labeller_that_raises_is_said():
    def fails(problem, responses, verdicts):
        raise KeyError("x")

    with pytest.raises(RunError, match="KeyError: 'x'"):
        relabel(fails, PROBLEM, rollouts())
