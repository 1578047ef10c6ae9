"""What cannot work is refused with a sentence that names value or remedy."""

import pytest

from minirl.config.command_line import load
from minirl.utils.errors import ConfigError

BAD = [
    ("--algorithm.clip_low=5", "at most 1"),
    ("--algorithm.rollout_is_low=3", "range of ratios"),
    ("--algorithm.rollout_is_high=0", "range of ratios"),
    ("--estimator.pkpo.k=0", "estimator.pkpo.k must be at least 1"),
    ("--optimizer.betas=[1.5,0.9]", r"\[0, 1\)"),
    ('--rollout.stop=[""]', "empty text"),
    ("--algorithm.estimator=pkpo --verifier.rewards=[[a.py:f,1]]", "remove verifier.rewards"),
    ("--verifier.rewards=[[a.py:f]]", "weight"),
    ("--rollout.group_size=1", "at least 2"),
    ("--algorithm.estimator=pkpo --rollout.group_size=4 --eval.k=2", "at least 8"),
    ("--algorithm.mini_batch_prompts=7", "does not divide rollout.prompts=32"),
    ("--rollout.prompts=0", "at least 1"),
    ("--rollout.temperature=0", "above 0"),
    ("--eval.k=32", "eval.samples=16"),
    ("--eval.temperature=0", "greedy"),
    ("--rollout.carry_over=true", "rollout_is=truncate"),
    ("--rollout.ahead=1", "rollout.continuous=true"),
    ("--rollout.continuous=true --rollout.ahead=1", "rollout.ahead=1.0 .*rollout_is=truncate"),
    ("--rollout.continuous=true --rollout.ahead=-1", "at least 0"),
    ("--rollout.continuous=true --rollout.carry_over=true --algorithm.rollout_is=mask", "rollout.carry_over .*rollout.ahead"),
    ("--rollout.continuous=true --rollout.abort_longest=0.1", "rollout.abort_longest is for whole generation batches"),
    ("--algorithm.old_logprobs=rollout --algorithm.rollout_is=mask", "nothing to correct"),
    ("--algorithm.old_logprobs=rollout --algorithm.estimator=dapo+entropy", "old_logprobs=trainer"),
    ("--algorithm.overlong_buffer=24", "below rollout.max_response_tokens=24"),
    ("--algorithm.estimator=pkpo --algorithm.overlong_buffer=4", "pkpo"),
    ("--algorithm.loss_agg_mode=mean", "token-mean"),
    ("--algorithm.loss=ppp", "known are ppo, "),
    ("--algorithm.keep=all", "accuracy, reward"),
    ("--algorithm.estimator=passk --algorithm.kl_reward_coef=0.1", "passk is defined for right and wrong only"),
    ("--algorithm.estimator=nsr --algorithm.kl_reward_coef=0.1", "nsr is defined for right and wrong only: set algorithm.kl"),
    ("--algorithm.estimator=psr+edas --algorithm.overlong_buffer=4", "psr is defined for right and wrong only"),
    ("--algorithm.estimator=wreinforce --verifier.rewards=[[a.py:f,1]]", "wreinforce .* remove verifier.rewards"),
    ("--algorithm.estimator=maxrl --algorithm.kl_reward_coef=0.1", "maxrl divides by the mean reward.*kl_reward_coef=0"),
    ("--algorithm.estimator=maxrl+edas --algorithm.overlong_buffer=4", "maxrl divides by the mean reward.*overlong_buffer=0"),
    ("--estimator.pkpo.std=true --estimator.pkpo.baseline=sloo-1", "std=true is for baseline=mean, not sloo-1"),
    ("--loss.clip_cov.low=5", "clip_cov.low=5 must be below loss.clip_cov.high=5"),
    ("--loss.clip_cov.share=1.5", "loss.clip_cov.share must be at most 1, not 1.5"),
    ("--loss.kl_cov.share=2", "loss.kl_cov.share must be at most 1, not 2"),
    ("--loss.custom={x:1} --algorithm.loss=ppo", "loss.custom=.* is for a loss of your own"),
    ("--loss.custom={x:1}", "loss.custom=.* is for a loss of your own"),
    ("--estimator.pkpo.leave_one_out=true", "is now called estimator.pkpo.baseline"),
    ("--verifier.labeller=nowhere.py:f", "a file that exists"),
    ("--verifier.labeller=cluster", "file.py:function"),
    ("--rollout.engine=vllmm", "transformers"),
    ("--data.task=dataset", "data.train"),
    ("--data.task=dataset --data.train=x.jsonl --data.template=hello", "{problem}"),
    ("--verifier.name=maths", "file.py:function"),
    ("--model.dtype=fp8", "bfloat16"),
    ("--verifier.rewards=[[a.py:f,.nan]]", "the weight a finite number, not .'a.py:f', nan."),
    ("--verifier.rewards=[[a.py:f,-.inf]]", "the weight a finite number"),
    ("--verifier.rewards=[[math,1],[a.py:f,true]]", "the weight a finite number, not .'a.py:f', True."),
    ("--model.lora.lora_alpha=16", "model.lora.r=0 trains all weights, .*lora_alpha=16"),
    ("--model.lora.target_modules=[q_proj]", "model.lora.r=0 trains all weights, .*target_modules=..q_proj"),
    ("--run-dir --run.steps=3", "option '--run-dir' has no value: write --run-dir=VALUE"),
    ("--run.steps --dry-run", "option '--run.steps' has no value"),
    ("--run.steps=auto", "run.steps takes a value of type int, not 'auto'"),
    ("--model.compile=auto", "model.compile takes true or false, not 'auto'"),
]


@pytest.mark.parametrize(("arguments", "says"), BAD)
def test_what_cannot_work_is_one_sentence_that_names_value_or_remedy(arguments, says):
    with pytest.raises(ConfigError, match=says) as caught:
        load(arguments.split(" "))
    assert "\n" not in str(caught.value)
