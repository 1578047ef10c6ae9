"""Reading a config: sources, types, and a clear sentence for whatever is wrong."""

import re

import pytest
import yaml

from minirl import advantages, config
from minirl.config import Config, ConfigError, load


def test_defaults_yaml_and_command_line_in_this_order(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("rollout: {prompts: 64, samples: 4}\noptimizer: {lr: 1e-6}\n")
    c = load([str(file), "--rollout.samples=6", "--run.seed", "3", "--run-dir", "out"])
    assert (c.rollout.prompts, c.rollout.samples, c.run.seed, c.run.dir) == (64, 6, 3, "out")
    assert c.optimizer.lr == 1e-6, "YAML reads 1e-6 as text"
    assert c.algorithm.mini_batch_prompts == Config().algorithm.mini_batch_prompts


def test_no_argument_is_a_valid_run():
    c = load([])
    assert c.model.path == "embedded"
    assert c.algorithm.estimator == "dapo+edas"


def test_the_estimator_fills_in_what_is_not_given():
    assert load(["--algorithm.estimator=dapo"]).algorithm.recipe == advantages.DAPO.recipe
    assert load(["--algorithm.estimator=grpo"]).algorithm.recipe == advantages.GRPO.recipe
    c = load(["--algorithm.estimator=dapo", "--algorithm.clip_high=0.5", "--algorithm.dynamic_sampling=false"])
    assert c.algorithm.recipe == advantages.Recipe(False, 0.2, 0.5, "token-mean")
    assert load(["--rollout.max_response_tokens=9"]).eval.max_response_tokens == 9


def test_options_of_strategies():
    c = load(["--algorithm.estimator=dapo+edas", "--strategy.edas.beta=0.3", "--strategy.dapo.std=false"])
    assert c.build_strategy() == advantages.EDAS(beta=0.3, base=advantages.DAPO(std=False))


def test_what_is_saved_reads_back_to_the_same_config(tmp_path):
    c = load(
        ["--algorithm.estimator=pkpo", "--strategy.pkpo.k=4", '--rollout.stop=["\\n", x]', "--data.chat_arguments={a: false}"]
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.as_tree(c)))
    assert load([str(tmp_path / "config.yaml")]) == c


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("--run.steps=7", 7), ("--optimizer.lr=3e-4", 3e-4), ("--eval.top_p=1", 1.0), ("--data.test=12", "12"),
        ("--data.answer_column=", ""), (r"--data.answer_pattern=####\s*(.+)", r"####\s*(.+)"),
        ("--data.system=Number # means count", "Number # means count"),
        ("--data.template=Question: {problem}", "Question: {problem}"),
        ("--data.template={problem}", "{problem}"), ("--data.system=yes", "yes"), ("--data.subset=2024-01-01", "2024-01-01"),
                            ("--model.revision=null", None), ("--model.revision=1e5", "1e5"), ("--data.chat=false", False),
        ("--optimizer.betas=[0.8, 0.9]", [0.8, 0.9]), ("--data.system=a: b: c", "a: b: c"),
    ],
)  # fmt: skip
def test_values_take_the_type_of_their_option(value, expected):
    section, key = re.fullmatch(r"--(\w+)\.(\w+)=.*", value).groups()
    got = getattr(getattr(load([value]), section), key)
    assert got == expected
    assert type(got) is type(expected)


BAD = [
    ("--rollout.promts=8", "rollout.prompts"),
    ("--rolout.prompts=8", "rollout"),
    ("--prompts=8", "rollout.prompts"),
    ("--strategy.edas.alhpa=1", "strategy.edas.alpha"),
    ("--zzz.qqq=1", "known here are model, data"),
    ("--rollout.prompts=many", "'many'"),
    ("--rollout.prompts=1.5", "1.5"),
    ("--rollout.prompts=true", "'true'"),
    ("--optimizer.lr=.nan", "optimizer.lr"),
    ("--optimizer.lr=inf", "'inf'"),
    ("--algorithm.clip_low=5", "below 1"),
    ("--algorithm.correction_low=3", "range of ratios"),
    ("--algorithm.correction_high=0", "range of ratios"),
    ("--strategy.pkpo.k=0", "strategy.pkpo.k must be at least 1"),
    ("--optimizer.betas=[1.5,0.9]", r"\[0, 1\)"),
    ('--rollout.stop=[""]', "empty text"),
    ("--algorithm.estimator=pkpo --verifier.rewards=[[a.py:f,1]]", "remove verifier.rewards"),
    ("--verifier.rewards=[[a.py:f]]", "weight"),
    ("--rollout.stop=[", "not valid YAML"),
    ("--data.chat=maybe", "true or false"),
    ("--rollout=3", "section"),
    ("--rollout.stop=x", "list"),
    ("--rollout.prompts", "no value"),
    ("--algorithm.estimator=grop", "known are grpo, dapo, pkpo, grpo\\+edas"),
    ("--rollout.samples=1", "at least 2"),
    ("--algorithm.estimator=pkpo --rollout.samples=4 --eval.k=2", "at least 8"),
    ("--algorithm.mini_batch_prompts=7", "does not divide rollout.prompts=32"),
    ("--rollout.prompts=0", "at least 1"),
    ("--rollout.temperature=0", "above 0"),
    ("--eval.k=32", "eval.samples=16"),
    ("--eval.temperature=0", "greedy"),
    ("--strategy.edas.kappa=1", "edas.kappa"),
    ("--rollout.carry_over=true", "correction=truncate"),
    ("--algorithm.old_log_probs=sampler --algorithm.correction=mask", "nothing to correct"),
    ("--algorithm.old_log_probs=sampler --algorithm.estimator=dapo+entropy", "old_log_probs=trainer"),
    ("--algorithm.overlong_buffer=12", "below rollout.max_response_tokens=12"),
    ("--algorithm.estimator=pkpo --algorithm.overlong_buffer=4", "pkpo"),
    ("--algorithm.aggregation=mean", "token-mean"),
    ("--rollout.engine=vllmm", "transformers"),
    ("--data.task=dataset", "data.train"),
    ("--data.task=dataset --data.train=x.jsonl --data.template=hello", "{problem}"),
    ("--verifier.name=maths", "file.py:function"),
    ("--model.dtype=fp8", "bfloat16"),
    ("runs", "Is a directory|cannot read"),
    ("missing.yaml", "missing.yaml"),
    ("--run.steps=1 stray", "stray"),
]


@pytest.mark.parametrize(("arguments", "says"), BAD)
def test_bad_input_is_one_sentence_that_names_value_or_remedy(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError, match=says) as caught:
        load(arguments.split(" "))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[1, 2]", "a: b: c", "rollout: 3", "rollout: {prompts: [1]}", "unknown: {}", "rollout: {prompts: .inf}"]
)
def test_bad_yaml(text, tmp_path):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError):
        load([str(tmp_path / "c.yaml")])


def test_help_lists_every_option_with_default_and_meaning():
    text = config.help_text()
    rows = config.every_option()
    assert len(rows) > 60
    for key, _, about in rows:
        assert f"--{key}=" in text
        assert len(about["help"]) > 5
        assert about["help"] in text
    assert "--strategy.edas.kappa=2.0" in text


def test_a_new_strategy_needs_one_class_and_one_line():
    # The registry is read when the config module is made; the section of each registered name is there.
    sections = {key.split(".")[1] for key, *_ in config.every_option() if key.startswith("strategy.")}
    assert sections == {"grpo", "dapo", "pkpo", "edas", "entropy"}


def test_plan_states_the_derived_sizes():
    text = "\n".join(config.plan(load([]), train_size=640, test_size=10, ranks=2))
    assert "32 prompts x 10 samples = 320 rollouts of at most 12 tokens (3,840), 2 optimizer steps of 160 rollouts" in text
    steps = Config().run.steps
    assert f"{steps} steps = {steps * 320:,} rollouts, {steps * 2:,} optimizer steps, {steps * 32 / 640:.2f} passes" in text
