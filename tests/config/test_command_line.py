"""A config from its command line: sources, types, and a clear sentence for whatever is wrong."""

import re
import subprocess
import sys

import pytest

from minirl import advantages
from minirl.config.command_line import RENAMED, help_text, load
from minirl.config.options import Config, every_option
from minirl.utils.errors import ConfigError
from tests.conftest import ROOT


def test_defaults_yaml_and_command_line_in_this_order(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("rollout: {prompts: 64, group_size: 4}\noptimizer: {lr: 1e-6}\n")
    c = load([str(file), "--rollout.group_size=6", "--run.seed", "3", "--run-dir", "out"])
    assert (c.rollout.prompts, c.rollout.group_size, c.run.seed, c.run.dir) == (64, 6, 3, "out")
    assert c.optimizer.lr == 1e-6, "YAML reads 1e-6 as text"
    file.write_text("data: {subset: 2024, system: null}\nestimator: {edas: {beta: 1}}\nrollout: {vllm: {sleep: false}}\n")
    c = load([str(file), "--run.seed=1", "--run.seed=2"])
    assert (c.data.subset, c.data.system, c.estimator.edas.beta, c.rollout.vllm.sleep, c.run.seed) == (
        "2024",
        None,
        1,
        False,
        2,
    )
    assert (type(c.estimator.edas.beta), c.estimator.edas.alpha) == (float, 0.4)
    assert c.algorithm.mini_batch_prompts == Config().algorithm.mini_batch_prompts


def test_no_argument_is_a_valid_run():
    c = load([])
    assert (c.data.task, c.model.path) == ("rules", "embedded-rules")
    assert c.algorithm.estimator == "dapo+edas"


def test_a_dry_run_may_be_asked_for_before_or_after_the_file(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("run: {steps: 7}\n")
    for arguments in (["--dry-run", str(file)], [str(file), "--dry-run"]):
        c = load([*arguments, "--run.seed=3"])
        assert (c.dry_run, c.run.steps, c.run.seed) == (True, 7, 3)
    assert not load([str(file)]).dry_run


def test_a_replay_has_the_config_of_its_run_unless_another_one_is_named(tmp_path):
    (tmp_path / "config.yaml").write_text("run: {steps: 7}\n")
    (tmp_path / "other.yaml").write_text("run: {steps: 8}\n")
    for step in (f"{tmp_path}/step3", f"{tmp_path}/batches/step3"):
        c = load(["--run.seed=3", "--replay", step])
        assert (c.replay, c.run.steps, c.run.seed) == (step, 7, 3)
    assert load([str(tmp_path / "other.yaml"), f"--replay={step}"]).run.steps == 8


def test_the_estimator_fills_in_what_is_not_given():
    assert load(["--algorithm.estimator=dapo"]).algorithm.requirements == advantages.DAPO.requirements
    assert load(["--algorithm.estimator=grpo"]).algorithm.requirements == advantages.GRPO.requirements
    c = load(["--algorithm.estimator=dapo", "--algorithm.clip_high=0.5", "--algorithm.dynamic_sampling=false"])
    assert c.algorithm.requirements == advantages.Requirements(False, 0.2, 0.5, "token-mean")
    assert load(["--rollout.max_response_tokens=9"]).eval.max_response_tokens == 9


def test_options_of_strategies():
    c = load(["--algorithm.estimator=dapo+edas", "--estimator.edas.beta=0.3", "--estimator.dapo.std=false"])
    assert c.build_estimator() == advantages.EDAS(beta=0.3, base=advantages.DAPO(std=False))


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
    ("--estimator.edas.alhpa=1", "estimator.edas.alpha"),
    ("--zzz.qqq=1", "known here are model, data"),
    ("--optimizer.quux=1", "known here are optimizer.lr, optimizer.betas"),
    ("--verifier.worker=2", "did you mean verifier.workers"),
    ("--estimator.edas.base=grpo", "unknown option estimator.edas.base"),
    ("--learning_rate=1e-6", "what TRL or verl call learning_rate is optimizer.lr here"),
    ("--algorithm.num_generations=4", "is rollout.group_size here"),
    ("--rollout.vllm=3", "rollout.vllm is a section"),
    ("--algorithm.dual_clip=1", "above 1"),
    ("--algorithm.dynamic_sampling=1", "true or false"),
    ("--run.epochs=x", "float, not 'x'"),
    ("--data.chat_arguments=[1]", "dict, not"),
    ("--rollout.abort_longest=0.6", "at most 0.5"),
    ("--rollout.prompts=many", "'many'"),
    ("--rollout.prompts=1.5", "1.5"),
    ("--rollout.prompts=true", "'true'"),
    ("--optimizer.lr=.nan", "optimizer.lr"),
    ("--optimizer.lr=inf", "'inf'"),
    ("--rollout.stop=[", "not valid YAML"),
    ("--data.chat=maybe", "true or false"),
    ("--rollout=3", "section"),
    ("--rollout.stop=x", "list"),
    ("--rollout.prompts", "no value"),
    ("--algorithm.estimator=grop", "known are grpo, dapo, pkpo, grpo\\+edas"),
    ("--estimator.edas.kappa=1", "edas.kappa"),
    ("runs", "Is a directory|cannot read"),
    ("missing.yaml", "missing.yaml"),
    ("--run.steps=1 stray", "stray"),
    ("--run.steps=1 --dry-run late.yaml", "unexpected argument 'late.yaml'"),
]


@pytest.mark.parametrize(("arguments", "says"), BAD)
def test_bad_input_is_one_sentence_that_names_value_or_remedy(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError, match=says) as caught:
        load(arguments.split(" "))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "a: b: c",
        "rollout: 3",
        "rollout:",
        "rollout: {vllm: {sleeep: true}}",
        "data: {system: yes}",
        "rollout: {prompts: [1]}",
        "unknown: {}",
        "rollout: {prompts: .inf}",
    ],
)
def test_bad_yaml(text, tmp_path):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError):
        load([str(tmp_path / "c.yaml")])


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_refused_with_the_new_one_on_the_command_line_and_in_yaml(old, new, tmp_path):
    options = {key for key, *_ in every_option()}
    assert old not in options
    assert any(key == new.split(" ")[0] or key.startswith(f"{new}.") for key in options)
    section, _, name = old.partition(".")
    (tmp_path / "c.yaml").write_text(f"{section}: {{{name or 'edas'}: {'1' if name else '{alpha: 1}'}}}\n")
    for arguments in ([f"--{old}=1"], [f"--{old}.edas.alpha", "1"], [str(tmp_path / "c.yaml")]):
        with pytest.raises(ConfigError, match=re.escape(f"the option {old} is now called {new}")):
            load(arguments)


def test_help_lists_every_option_with_default_and_meaning():
    text = help_text()
    rows = every_option()
    assert len(rows) > 60
    for key, _, about in rows:
        assert f"--{key}=" in text
        assert len(about["help"]) > 5
        assert about["help"] in text
    assert "--estimator.edas.kappa=2.0" in text


@pytest.mark.parametrize(("argument", "code", "says"), [("--help", 0, "usage"), ("--rollout.promts=8", 2, "rollout.prompts")])
def test_help_and_a_mistake_need_no_torch(argument, code, says):
    program = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path('train.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program, argument], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, says in done.stdout + done.stderr) == (code, True), done.stderr
