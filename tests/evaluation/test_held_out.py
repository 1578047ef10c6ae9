"""Evaluation against counting by hand, with an engine whose answers are known."""

import json

import numpy as np
import pytest

from minirl.config.command_line import load
from minirl.config.options import EvalConfig
from minirl.data.problems import DataConfig
from minirl.data.prompts import encode_prompts
from minirl.evaluation.held_out import Evaluation, evaluate, recall, write
from minirl.rollout.sampler import Sampler, as_group, stable_seed, verdict_reward
from minirl.rollout.types import Completion, SamplingParams
from minirl.run.checkpoint import STARTING_WEIGHTS, fingerprint
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import Problem, Verdict

TOK = tiny.tokenizer()
ANSWERS = {"1*2=": ["2", "2", "3", "3"], "2*2=": ["5", "5", "6", "4"], "2*3=": ["6", "6", "6", "6"]}


class Script:
    """An engine that says what it is told, groups in reverse order; it notes the seeds it was given."""

    def __init__(self):
        self.seeds = []
        self.version, self.ranks_per_engine = 5, 1

    def generate(self, prompts, sampling, seeds, keep=None):
        self.seeds.append(list(seeds))
        for i in reversed(range(len(prompts))):
            question = TOK.decode(prompts[i]).split(">")[1].split("<")[0]
            texts = [f"\\boxed{{{a}}}<eos>" for a in ANSWERS[question]]
            ids = [np.array(TOK(t)["input_ids"], np.int32) for t in texts]
            yield i, [Completion(x, np.zeros(len(x), np.float32), "stop") for x in ids]


@pytest.fixture(scope="module")
def pool():
    with VerifierPool("math", {"grader": "exact", "answer": "boxed"}, workers=1) as pool:
        yield pool


def test_accuracy_pass_at_k_and_diversity_by_hand(pool):
    problems = [Problem("a", "1*2=", "2"), Problem("b", "2*2=", "4"), Problem("c", "2*3=", "6")]
    prompts = encode_prompts(problems, TOK, DataConfig(), [], "test")
    engine = Script()
    sampler = Sampler(engine, TOK, pool, Ranks(), seed=3)
    evaluation = evaluate(sampler, prompts, EvalConfig(samples=4, k=2, max_response_tokens=8))
    result = evaluation.metrics
    assert result["pass@1"] == pytest.approx((2 / 4 + 1 / 4 + 1) / 3)
    # 1 - C(2, 2) / C(4, 2), 1 - C(3, 2) / C(4, 2), 1
    assert result["pass@k"] == pytest.approx((5 / 6 + 1 / 2 + 1) / 3)
    # problem a: one wrong answer twice; problem b: 5 5 6
    assert result["error_diversity"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert (result["no_answer"], result["truncated"], result["errors"]) == (0, 0, 0)
    by_problem = [(p["id"], p["n"], p["right"], sorted(p["wrong"].values())) for p in evaluation.problems]
    assert by_problem == [("a", 4, 2, [2]), ("b", 4, 1, [1, 2]), ("c", 4, 4, [])]
    evaluate(sampler, prompts, EvalConfig(samples=4, k=2, max_response_tokens=8))
    assert engine.seeds[0] == engine.seeds[1], "the same random numbers at every evaluation"
    assert len(set(engine.seeds[0])) == 3


def test_groups_come_in_the_order_of_the_prompts_and_carry_their_number(pool):
    prompts = encode_prompts([Problem("a", "1*2=", "2"), Problem("c", "2*3=", "6")], TOK, DataConfig(), [], "test")
    sampler = Sampler(Script(), TOK, pool, Ranks(), seed=0)

    first, second = sampler.groups(prompts, [40, 41], SamplingParams(4, 1.0, 8))
    assert [r.group for r in first + second] == [40] * 4 + [41] * 4
    assert [r.reward for r in first] == [1, 1, 0, 0]
    assert {r.version for r in first} == {5}
    assert first[2].verdict.label == first[3].verdict.label != ""
    group = as_group(first)
    assert group.correct.tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match=r"\[40, 41\]"):
        as_group(first[:2] + second[:2])


def test_rewards_of_verdicts():
    assert verdict_reward(Verdict("right")) == 1.0
    assert verdict_reward(Verdict("wrong")) == 0.0
    assert verdict_reward(Verdict("wrong", reward=0.25)) == 0.25
    assert np.isnan(verdict_reward(Verdict("error", detail="worker died"))), "never a silent 0"


def test_seeds_of_different_purposes_never_meet():
    seeds = {stable_seed(run, stream, number) for run in range(3) for stream in (0, 1) for number in range(200)}
    assert len(seeds) == 3 * 2 * 200
    assert all(0 <= s < 2**63 for s in seeds)


def made_by(*options, answer="2"):
    """(config, held-out prompts, fingerprint) of a run of two problems with these options."""
    config = load([f"--{option}" for option in options])
    problems = [Problem("a", "1*2=", answer), Problem("b", "2*2=", "4")]
    prompts = encode_prompts(problems, TOK, config.data, [], "held-out")
    sizes = tiny.model(hidden=32, layers=1).config
    known = fingerprint(prompts[:1], prompts, TOK, sizes, config.verifier, config.own_code)
    return config, prompts, known | {STARTING_WEIGHTS: "w"}


@pytest.fixture
def reward(tmp_path):
    (tmp_path / "mine.py").write_text("def reward(problem, response):\n    return 1.0\n")
    return tmp_path / "mine.py"


@pytest.fixture
def kept(tmp_path):
    """Writes the evaluation before the first step of a run of `made_by`, and returns the option that names it."""

    def keep(config, prompts, known):
        rows = [{"id": prompt.problem.id, "n": 4, "right": 1} for prompt in prompts]
        write(tmp_path, 0, Evaluation({"pass@1": 0.25}, rows), config, known)
        return f"eval.before={tmp_path / 'evaluations' / 'step000000.json'}"

    return keep


def test_an_evaluation_is_used_again_where_nothing_that_it_depends_on_differs(kept, capsys):
    before = kept(*made_by("rollout.stop=[x,y]"))
    free = ("algorithm.estimator=grpo", "optimizer.lr=1e-3", "verifier.workers=3", "run.steps=9", "model.attention=eager")
    assert recall(*made_by(before, "rollout.stop=[x,y]", *free)).metrics == {"pass@1": 0.25}
    assert "note" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "named"),
    [("data.template=Solve {problem}", "another held-out problems by content"),
     ("data.chat=false", "another held-out problems by content"),
     ("verifier.grader=mathruler", "verifier.grader: exact there, mathruler here"),
     ("verifier.timeout=1", r"verifier.timeout: 5.0 there, 1.0 here"),
     ("rollout.stop=[x]", r"rollout.stop: \[\] there, \['x'\] here"), ("rollout.engine=vllm", "rollout.engine: transformers"),
     ("run.seed=1", "seed: 0 there, 1 here"), ("eval.temperature=0.5", "temperature: 1.0 there, 0.5 here")],
)  # fmt: skip
def test_an_evaluation_with_other_options_is_refused_by_name(kept, option, named):
    before = kept(*made_by())
    with pytest.raises(ConfigError, match=rf"is of another run: {named}.*; leave it out"):
        recall(*made_by(before, option))


def test_an_evaluation_of_other_gold_answers_is_refused(kept):
    before = kept(*made_by())
    with pytest.raises(ConfigError, match="another held-out problems by content"):
        recall(*made_by(before, answer="3"))


@pytest.mark.parametrize(
    ("option", "named"), [("verifier.name", "reward file"), ("verifier.labeller", "file of .*mine.py:reward")]
)
def test_an_evaluation_by_a_file_that_was_edited_is_refused(kept, reward, option, named):
    mine = f"{option}={reward}:reward"
    before = kept(*made_by(mine))
    assert recall(*made_by(before, mine)).metrics == {"pass@1": 0.25}
    reward.write_text("def reward(problem, response):\n    return 0.0\n")
    with pytest.raises(ConfigError, match=f"another {named} by content"):
        recall(*made_by(before, mine))


def test_of_an_evaluation_of_an_earlier_version_what_it_holds_is_compared(kept, tmp_path, capsys):
    before = kept(*made_by())
    path = tmp_path / "evaluations" / "step000000.json"
    content = json.loads(path.read_text())
    old = ("weights", "seed", "samples", "k", "temperature", "top_p", "top_k", "max_response_tokens")
    content["conditions"] = {key: content["conditions"][key] for key in old}
    path.write_text(json.dumps(content))
    assert recall(*made_by(before)).metrics == {"pass@1": 0.25}
    assert "is of an earlier version and not compared in: model.dtype, verifier.name" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="seed: 0 there, 1 here"):
        recall(*made_by(before, "run.seed=1"))
