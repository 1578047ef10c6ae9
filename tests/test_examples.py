"""The examples work as their first lines say."""

import asyncio
import contextlib
import importlib.util
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import train
from minirl.advantages import Group, build
from minirl.config.command_line import load
from minirl.config.options import DataConfig
from minirl.data.problems import load_problems
from minirl.utils.errors import ConfigError
from minirl.watch.trackers import Trackers
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"


def test_one_run_with_all_of_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    arguments = [
        "--run-dir", str(tmp_path / "run"), "--run.steps=2", "--rollout.prompts=4",
        "--rollout.group_size=4", "--algorithm.mini_batch_prompts=4", "--algorithm.dynamic_sampling=false",
        "--eval.problems=4", "--eval.samples=2", "--eval.k=2",
        "--algorithm.estimator=examples/estimator.py:Floored+edas", "--estimator.custom={floor: 0.2}",
        "--algorithm.loss=examples/loss.py:Pulled", "--loss.custom={strength: 0.5}",
        "--verifier.rewards=[[examples/reward.py:shows_work, 0.1]]", "--data.task=examples/task.py:sums",
    ]  # fmt: skip
    assert train.main(load(arguments)) == 0
    assert "64 problems to train on, 17 held out" in capsys.readouterr().out
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


# ---- a data set, a benchmark, a tracker -------------------------------------------------------------------------------------


def example(name):
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*command, **more):
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=200, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SHORT = [
    "--run.steps=2", "--rollout.prompts=4", "--rollout.group_size=4", "--algorithm.mini_batch_prompts=4", "--eval.every=0",
    "--algorithm.dynamic_sampling=false", "--eval.problems=4", "--eval.samples=2", "--eval.k=2",
]  # fmt: skip


@pytest.mark.slow
def test_the_data_set_and_a_tracker_that_follows_the_run(tmp_path):
    printed = run("train.py", "examples/dataset.yaml", "--run-dir", str(tmp_path / "run"), *SHORT)
    assert "48 problems to train on, 16 held out" in printed
    table = run("examples/tracker.py", str(tmp_path / "run"), "reward/accuracy", "policy/entropy").splitlines()
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert table[0] == "step,reward/accuracy,policy/entropy"
    assert table[1:] == [f"{i},{row['reward/accuracy']},{row['policy/entropy']}" for i, row in enumerate(metrics, 1)]


def test_a_class_of_the_users_own_gets_options_steps_and_evaluations(tmp_path):
    config = load([f"--run.trackers=[{EXAMPLES}/tracker_class.py:Lines]", "--run.seed=7"])
    for step in (0, 1):
        opened = Trackers(tmp_path, config, step)
        opened.log(step, {"eval/pass@1": 0.25})
        opened.log(step + 1, {"reward/accuracy": 0.5, "policy/entropy": 1.0})
        opened.groups(step + 1, [{"prompt": "p", "reward": 1.0}])
        opened.close()
    first, *lines = (tmp_path / "lines.txt").read_text().splitlines()
    assert first.endswith("options, seed 7")
    assert lines == [
        "0: {'eval/pass@1': 0.25}", "1: {'reward/accuracy': 0.5}", "1: {'eval/pass@1': 0.25}", "2: {'reward/accuracy': 0.5}"
    ]  # fmt: skip


def test_a_tracker_waits_for_steps_and_gives_those_done_again_once(tmp_path, monkeypatch):
    tracker = example("tracker")
    written = iter(
        ['{"step": 1}\n', '{"step": 1}\n{"step": 2}\n{"st', '{"step": 1}\n', '{"step": 1}\n{"step": 2}\n{"step": 3}\n']
    )

    def later(seconds):
        with contextlib.suppress(StopIteration):
            (tmp_path / "metrics.jsonl").write_text(next(written))
            return
        (tmp_path / "summary.json").write_text("{}")

    monkeypatch.setattr(tracker.time, "sleep", later)
    assert [row["step"] for row in tracker.follow(tmp_path)] == [1, 2, 3]


@pytest.mark.slow
def test_the_benchmark(tmp_path):
    chosen = ["--benchmarks", "examples/benchmark.yaml", "--benchmark", "mine", "--limit", "8"]
    run("eval.py", "embedded", *chosen, "--out", str(tmp_path / "out"))
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["benchmarks"]["mine"]["rows"] == 64
    assert results["benchmarks"]["mine"]["problems"] == 8
    assert 0 < results["results"]["embedded"]["mine"]["metrics"]["pass@4"]["mean"] < 1
    assert "Mine" in (tmp_path / "out" / "table.md").read_text()


# ---- the grader elsewhere ---------------------------------------------------------------------------------------------------


def test_the_grader_in_plain_python():
    lines = [line.split(maxsplit=2)[:2] for line in run("examples/grader_plain.py").splitlines()]
    assert [status for status, _ in lines] == ["right", "wrong", "wrong", "wrong"]
    assert lines[1][1] == lines[2][1], "2/6 and 1/3 are the same error"
    assert lines[3][1] == "<no"


def test_the_reward_function_of_trl_by_hand(monkeypatch):
    trl = example("grader_trl")
    chat = [[{"role": "assistant", "content": text}] for text in (r"\boxed{0.75}", r"\boxed{1}")]
    more = {"prompts": ["", ""], "completion_ids": [[1], [2]], "trainer_state": None, "log_metric": print}
    assert trl.accuracy(completions=chat, answer=["3/4", "3/4"], **more) == [1.0, 0.0]
    assert trl.accuracy([r"\boxed{\frac{6}{8}}"], ["3/4"]) == [1.0]
    monkeypatch.setattr(trl, "verify", lambda problem, text: SimpleNamespace(status="error"))
    assert trl.accuracy(["x"], ["3/4"]) == [None]


@pytest.mark.slow
def test_trl_trains_with_it():
    pytest.importorskip("trl", reason="trl is not installed: pip install 'minirl-llm[peers]'")
    rewards = [float(line.split()[-1]) for line in run("examples/grader_trl.py").splitlines() if line.startswith("step ")]
    assert len(rewards) == 2
    assert all(0 <= reward <= 0.6 for reward in rewards)
    assert sum(rewards) > 0, "the embedded model is right in a seventh of the cases"


def test_the_reward_function_of_verl_by_hand(monkeypatch):
    verl = example("grader_verl")
    assert verl.compute_score("math", r"\boxed{0.75}", "3/4", {"index": 3}) == {"score": 1.0, "acc": 1.0, "answered": 1.0}
    assert verl.compute_score("math", "no box", "3/4") == {"score": 0.0, "acc": 0.0, "answered": 0.0}
    monkeypatch.setattr(verl, "verify", lambda problem, text: SimpleNamespace(status="error", detail="why"))
    with pytest.raises(ValueError, match="no verdict on the gold answer '3/4': why"):
        verl.compute_score("math", "x", "3/4")


def test_verl_s_reward_manager_takes_it():
    """verl's own loader and manager, on one response that is padded as verl pads."""
    pytest.importorskip("verl", reason="verl is not installed: pip install --no-deps verl==0.9.1")
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
    from verl.trainer.ppo.reward import get_custom_reward_fn

    own = {"path": str(EXAMPLES / "grader_verl.py"), "name": "compute_score"}
    config = OmegaConf.create({"reward": {"custom_reward_function": own}})
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: "".join(map(chr, ids.tolist())))
    text = r"It is \boxed{0.75}."
    ids = torch.tensor([[*map(ord, text), 0, 0]])
    data = DataProto.from_dict(
        tensors={"responses": ids, "attention_mask": (ids > 0).long()},
        non_tensors={
            "data_source": np.array(["math"], dtype=object), "reward_model": np.array([{"ground_truth": "3/4"}], dtype=object),
            "extra_info": np.array([{"index": 3}], dtype=object),
        },
    )  # fmt: skip

    async def score():
        manager = get_reward_manager_cls("naive")(config, tokenizer, get_custom_reward_fn(config))
        return await manager.run_single(data)

    found = asyncio.run(score())
    assert found["reward_score"] == 1.0
    assert found["reward_extra_info"]["answered"] == 1.0


def test_every_example_is_on_a_page_and_run_here():
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("extending.md", "grader.md"))
    here = (ROOT / "tests" / "test_examples.py").read_text()
    for path in EXAMPLES.iterdir():
        if path.is_file() and path.suffix != ".jsonl":
            assert f"(../examples/{path.name})" in pages
            assert path.name in here or f'example("{path.stem}")' in here, path


def test_the_estimator_s_floor_may_move():
    """From 0.5 to 0.1: halfway the mean 1/4 is divided by 0.3."""
    group = Group(np.array([1.0, 0, 0, 0]), np.array([True, False, False, False]), ["", "a", "b", "b"], progress=0.5)
    options = load([f"--algorithm.estimator={EXAMPLES / 'estimator.py'}:Floored", "--estimator.custom={floor: 0.5 -> 0.1}"])
    np.testing.assert_allclose(options.build_estimator()(group), [0.75 / 0.3, -0.25 / 0.3, -0.25 / 0.3, -0.25 / 0.3])
