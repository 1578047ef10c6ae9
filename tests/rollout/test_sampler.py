"""What verifiers, reward functions and estimators are told of a response, and error classes of the user's own."""

from dataclasses import replace

import numpy as np
import pytest

from minirl.config.command_line import load
from minirl.data.prompts import Prompt
from minirl.rollout.sampler import Sampler, as_group, relabel
from minirl.rollout.types import Batch, Completion, Rollout, SamplingParams
from minirl.run.metrics import batch_metrics
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.utils.errors import RunError
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import Problem, Verdict
from minirl.watch.readable import readable

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


TOK = tiny.tokenizer()


class Fixed:
    """An engine that gives the same texts to every prompt."""

    version, ranks_per_engine = 0, 1

    def __init__(self, *texts):
        self.texts = texts

    def generate(self, prompts, params, seeds, keep=None):
        for i in range(len(prompts)):
            ids = [np.array(TOK(text)["input_ids"], np.int32) for text in self.texts]
            yield i, [Completion(x, np.zeros(len(x), np.float32), "stop") for x in ids]


def groups(pool, prompt, *texts):
    prompts = [Prompt(Problem("a", "1+1=", "2"), prompt, TOK("1+1=")["input_ids"])]
    return Sampler(Fixed(*texts), TOK, pool, Ranks(), 0).groups(prompts, [7], SamplingParams(len(texts), 1.0, 8))


def test_a_box_inside_thinking_that_the_prompt_opened_and_that_was_cut_is_no_answer():
    with VerifierPool("math", load([]).verifier.pool()[1], workers=1) as pool:
        (plain,) = groups(pool, "<user>1+1=<assistant>", "\\boxed{2}<eos>")
        (thinking,) = groups(pool, "<user>1+1=<assistant><think>\n", "\\boxed{2}<eos>")
    assert plain[0].verdict.status == "right"
    assert (thinking[0].verdict.status, thinking[0].verdict.label) == ("wrong", "<no answer>")
    assert thinking[0].text == "\\boxed{2}", "what is saved is what was sampled"


def test_a_reward_function_gets_the_prompt_and_the_special_tokens(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def told(problem, response, rollout):\n"
        "    told = [str(rollout[key]) for key in ('group', 'finish', 'tokens', 'prompt', 'raw')]\n"
        "    return {'status': 'wrong', 'label': '|'.join(told)}\n"
    )
    with VerifierPool(f"{tmp_path / 'mine.py'}:told", workers=1) as pool:
        ((rollout,),) = groups(pool, "<user>1+1=<assistant>", "\\boxed{2}<eos>")
    assert rollout.verdict.label == "7|stop|4|<user>1+1=<assistant>|\\boxed{2}<eos>"
    assert rollout.text == "\\boxed{2}"


def test_the_terms_of_a_combined_reward_are_logged_and_saved(tmp_path):
    (tmp_path / "mine.py").write_text("def brief(problem, response, rollout):\n    return 1.0 if len(response) < 10 else 0.0\n")
    name = f"{tmp_path / 'mine.py'}:brief"
    config = load([f"--verifier.rewards=[[{name}, 0.5]]"])
    with VerifierPool(*config.verifier.pool(), workers=1) as pool:
        made = groups(pool, "<user>1+1=<assistant>", "\\boxed{2}<eos>", "1+1= 2 \\boxed{2}<eos>", "\\boxed{3}<eos>")
    metrics = batch_metrics(Batch(made, [], made), [], 1, 0.0, config)
    assert metrics["reward/terms/math"] == 2 / 3
    assert metrics[f"reward/terms/{name}"] == 2 / 3
    assert metrics["reward/mean"] == (1.5 + 1 + 0.5) / 3
    assert [readable(r)["terms"] for r in made[0]] == [{"math": 1, name: 1}, {"math": 1, name: 0}, {"math": 0, name: 1}]


def test_diversity_is_measured_at_the_step_s_progress():
    made = [rollouts(i) for i in range(2)]
    for group in made:
        group[2].verdict = Verdict("wrong", "b")
        group.append(replace(group[1]))  # wrong: a b a
    config = load(["--estimator.edas.alpha=0.4 -> 0"])
    first, last = (batch_metrics(Batch(made, [], made), [], 2, progress, config) for progress in (0.0, 1.0))
    assert first["batch/delta"] == first["groups/delta"] > 0
    assert last["batch/delta"] == last["groups/delta"] == 0


def test_the_kl_in_the_reward_is_in_the_diversity_of_what_is_trained_on():
    """The KL of the second response is -10 over its three tokens: it is wrong, has the reward 1, and A > 0."""
    made = rollouts()
    for r, ratio in zip(made, (0, -10 / 3, 0), strict=True):
        r.old_logprobs, r.ref_logprobs = np.full(r.length, -1 + ratio, np.float32), np.full(r.length, -1, np.float32)
    config = load(["--algorithm.kl_reward_coef=0.1", "--algorithm.estimator=grpo+edas"])
    metrics = batch_metrics(Batch([made], [], [made]), [], 1, 0.0, config)
    assert (metrics["batch/positive_wrong"], metrics["groups/positive_wrong"]) == (1, 0)


def test_a_response_that_timed_out_has_no_terms_and_is_in_none_of_their_means():
    made = rollouts()
    made[0].verdict = Verdict("wrong", "<timeout>")
    made[1].verdict, made[2].verdict = Verdict("wrong", "a", terms={"brief": 1.0}), Verdict("wrong", "a", terms={"brief": 0.0})
    assert batch_metrics(Batch([made], [], [made]), [], 1, 0.0, load([]))["reward/terms/brief"] == 0.5
