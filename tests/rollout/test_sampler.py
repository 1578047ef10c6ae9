"""What verifiers and reward functions are told of a response."""

import numpy as np

from minirl.config.command_line import load
from minirl.data.prompts import Prompt
from minirl.rollout.sampler import Sampler
from minirl.rollout.types import Batch, Completion, SamplingParams
from minirl.run.metrics import batch_metrics
from minirl.run.report import readable
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import Problem

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
    metrics = batch_metrics(Batch(made, [], made), [], 1, config)
    assert metrics["reward/terms/math"] == 2 / 3
    assert metrics[f"reward/terms/{name}"] == 2 / 3
    assert metrics["reward/mean"] == (1.5 + 1 + 0.5) / 3
    assert [readable(r)["terms"] for r in made[0]] == [{"math": 1, name: 1}, {"math": 1, name: 0}, {"math": 0, name: 1}]
