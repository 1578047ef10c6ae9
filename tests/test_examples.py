"""The examples work as their first lines say."""

import json
import subprocess
import sys

import numpy as np
import pytest

from minirl.advantages import Group, build
from minirl.config.command_line import load
from minirl.config.options import DataConfig
from minirl.data.problems import load_problems
from minirl.utils.errors import ConfigError
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"


def test_one_run_with_all_of_them(tmp_path):
    command = [
        sys.executable, str(ROOT / "train.py"), "--run-dir", str(tmp_path / "run"), "--run.steps=2", "--rollout.prompts=4",
        "--rollout.group_size=4", "--algorithm.mini_batch_prompts=4", "--algorithm.dynamic_sampling=false",
        "--eval.problems=4", "--eval.samples=2", "--eval.k=2",
        "--algorithm.estimator=examples/estimator.py:Floored+edas", "--estimator.custom={floor: 0.2}",
        "--algorithm.loss=examples/loss.py:Pulled", "--loss.custom={strength: 0.5}",
        "--verifier.rewards=[[examples/reward.py:shows_work, 0.1]]", "--data.task=examples/task.py:sums",
    ]  # fmt: skip
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "64 problems to train on, 17 held out" in found.stdout
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert any(name.startswith("reward/terms/") and "shows_work" in name for name in last)


def test_the_estimator_by_hand():
    # mean 1/4: (1 - .25) / .25 and (0 - .25) / .25
    group = Group(np.array([1.0, 0, 0, 0]), np.array([True, False, False, False]), ["", "a", "b", "b"])
    found = build(f"{EXAMPLES / 'estimator.py'}:Floored")(group)
    np.testing.assert_allclose(found, [3, -1, -1, -1])


def own_task(tmp_path, body):
    (tmp_path / "task.py").write_text(f"from minirl.verify.types import Problem\ndef made(split):\n    {body}\n")
    return DataConfig(task=f"{tmp_path / 'task.py'}:made")


def test_a_task_may_return_problems_or_rows(tmp_path):
    body = "return [Problem('a', '1+1=', '2'), {'problem': f'{split}', 'answer': '3'}] if split == 'train' else "
    body += "[{'problem': 'x', 'answer': '4'}]"
    train, test, _ = load_problems(own_task(tmp_path, body))
    assert [(p.prompt, p.answer) for p in train] == [("1+1=", "2"), ("train", "3")]
    assert [(p.prompt, p.answer) for p in test] == [("x", "4")]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return [{'problem': 'x', 'answer': '4'}]", "1 problems in both splits"),
        ("return []", "no rows"),
        ("return [5]", "not a int"),
        ("return 1 / 0", "failed for 'train': ZeroDivisionError"),
        ("return [{'problem': 'x'}]", "answer"),
    ],
)
def test_a_task_that_cannot_be_used_is_refused(tmp_path, body, says):
    with pytest.raises(ConfigError, match=says):
        load_problems(own_task(tmp_path, body))


def test_an_unknown_task_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"one of rules, arithmetic, fewshot, dataset, or file.py:function .* not 'ruels'"):
        load(["--data.task=ruels"])
