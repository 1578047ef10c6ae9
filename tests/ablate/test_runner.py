"""Which cells run when, what they share, and what counts as done."""

import json
import sys
from dataclasses import replace

import pytest
import yaml

from minirl.ablate import runner
from minirl.ablate.cells import cells_of, design_of
from minirl.config.options import as_tree
from minirl.utils.errors import ConfigError


@pytest.fixture
def cells(tmp_path):
    plan = design_of(None, ["dapo", "grpo"], [], {"run.steps": "3"}, seeds=2, baseline=None)
    return cells_of(plan, tmp_path / "out")


def record(cell, tree=None, done=False, evaluation=False):
    """A run folder as train.py leaves it."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    (cell.folder / "config.yaml").write_text(yaml.safe_dump(tree or as_tree(cell.config)))
    if done:
        (cell.folder / "summary.json").write_text("{}")
    if evaluation:
        cell.evaluation.parent.mkdir(exist_ok=True)
        cell.evaluation.write_text("{}")


def test_the_first_cell_of_a_seed_makes_the_evaluation_that_the_others_wait_for(cells):
    dapo0, grpo0, dapo1, grpo1 = cells
    assert runner.ready(cells, [], []) is dapo0
    running = [runner.Running(dapo0, 0, None)]
    waiting = [grpo0, dapo1, grpo1]
    assert runner.ready(waiting, running, []) is dapo1, "grpo of seed 0 waits for dapo's evaluation before training"
    running.append(runner.Running(dapo1, 1, None))
    assert runner.ready([grpo0, grpo1], running, []) is None
    record(dapo0, evaluation=True)
    assert runner.ready([grpo0, grpo1], running, []) is grpo0
    assert runner.evaluation_for(grpo0, cells) == dapo0.evaluation
    assert runner.evaluation_for(grpo1, cells) is None, "another seed's is another one"
    assert runner.evaluation_for(dapo0, cells) is None, "its own, not another's"


def test_a_cell_is_finished_with_its_summary_and_its_own_config(cells):
    cell = cells[0]
    assert not runner.finished(cell)
    record(cell)
    assert not runner.finished(cell)
    record(cell, done=True)
    assert runner.finished(cell)


def test_a_folder_of_other_options_is_refused_and_what_does_not_matter_may_differ(cells):
    cell, tree = cells[0], as_tree(cells[0].config)
    tree["run"]["dir"], tree["run"]["keep"], tree["data"]["template_date"] = "elsewhere", 9, "2026-01-31"
    record(cell, tree, done=True)
    assert runner.finished(cell)
    tree["optimizer"]["lr"] = 0.5
    record(cell, tree, done=True)
    with pytest.raises(ConfigError, match=r"optimizer\.lr: 0\.5 ->"):
        runner.finished(cell)


@pytest.mark.parametrize(
    ("given", "refused"),
    [("run.trackers=[tensorboard]", False), ("run.stop_after=1h", False), ("rollout.logprob_diff_warn=0.1", False),
     ("rollout.max_empty_steps=5", False), ("run.save_in_background=true", False), ("run.keep=3", False),
     ("run.steps=4", True), ("run.epochs=2", True), ("eval.every=3", True), ("data.test_size=9", True),
     ("rollout.max_sequences=8", True), ("model.path=elsewhere", True), ("run.deterministic=true", True)],
)  # fmt: skip
def test_what_changes_no_number_may_be_added_to_a_finished_comparison(cells, tmp_path, given, refused):
    record(cells[0], done=True)
    option, _, value = given.partition("=")
    again = cells_of(design_of(None, ["dapo", "grpo"], [], {"run.steps": "3", option: value}, 2, None), tmp_path / "out")
    if refused:
        with pytest.raises(ConfigError, match=rf"another config \({option}: "):
            runner.finished(again[0])
    else:
        assert runner.finished(again[0])


ESTIMATOR = """
from minirl.advantages import GRPO

class Mine(GRPO):
    scale = 1.0
"""


@pytest.fixture
def own(tmp_path):
    """(cells with an estimator, a reward and data of the user's own; these three files)."""
    files = {name: tmp_path / name for name in ("mine.py", "reward.py", "few.jsonl")}
    files["mine.py"].write_text(ESTIMATOR)
    files["reward.py"].write_text("def reward(problem, response):\n    return 1.0\n")
    files["few.jsonl"].write_text("".join(json.dumps({"problem": f"{i}*3=", "answer": str(3 * i)}) + "\n" for i in range(20)))
    options = {
        "data.task": "dataset", "data.train": str(files["few.jsonl"]), "data.test_size": "5",
        "verifier.name": f"{files['reward.py']}:reward",
    }  # fmt: skip
    return cells_of(design_of(None, [f"{files['mine.py']}:Mine", "grpo"], [], options, 1, None), tmp_path / "out"), files


def finish(cells, kept="summary.json"):
    """Leaves the cells as finished runs, whose fingerprint is in `kept`."""
    for cell in cells:
        tree = as_tree(cell.config)
        tree["data"]["template_date"] = "2026-01-31"
        record(cell, tree, done=True)
        (cell.folder / kept).parent.mkdir(parents=True, exist_ok=True)
        made = runner.fingerprint_of(cell, {}) | {"the starting model's weights": "0"}
        (cell.folder / kept).write_text(json.dumps({"fingerprint": made}))


@pytest.mark.parametrize("kept", ["summary.json", "checkpoints/step000003/state.json"])
@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [("mine.py", "1.0", "2.0", r"file of .*mine\.py:Mine"), ("reward.py", "1.0", "2.0", "reward file"),
     ("few.jsonl", '"3"', '"4"', "training problems|held-out problems")],
)  # fmt: skip
def test_a_finished_run_of_other_code_or_data_is_refused_though_its_options_are_the_same(own, kept, file, old, new, named):
    cells, files = own
    finish(cells, kept)
    assert runner.finished_cells(cells) == cells
    text = files[file].read_text()
    assert old in text
    files[file].write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=rf"^({named}) changed since the run in .* was made: put back"):
        runner.finished_cells(cells)
    files[file].write_text(text)
    assert runner.finished_cells(cells) == cells


def test_finished_runs_that_do_not_say_what_they_were_made_with_are_accepted_with_a_note(own, capsys):
    cells, files = own
    for cell in cells:
        record(cell, done=True)
    files["mine.py"].write_text(ESTIMATOR.replace("1.0", "2.0"))
    assert runner.finished_cells(cells) == cells
    assert f"note: 2 finished runs ({cells[0].name} ...) do not say" in capsys.readouterr().out


def test_gpus_are_dealt_to_the_slots_in_equal_parts(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    machine = runner.machine_of("accelerate launch --num_processes 4", None, gpus_per_run=4)
    assert machine.jobs == 2
    assert [machine.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in (0, 1)] == ["0,1,2,3", "4,5,6,7"]
    assert machine.launcher == ["accelerate", "launch", "--num_processes", "4"]
    with pytest.raises(ConfigError, match="--jobs 3 needs 12 GPUs, there are 8"):
        runner.machine_of("", 3, gpus_per_run=4)
    with pytest.raises(ConfigError, match="there are 8 GPUs"):
        runner.machine_of("", None, gpus_per_run=16)


def test_runs_on_one_cpu_share_its_threads(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(runner.os, "cpu_count", lambda: 8)
    assert runner.machine_of("", None, 1).jobs == 8
    assert runner.machine_of("", 2, 1).environment(1)["OMP_NUM_THREADS"] == "4"
    assert runner.machine_of("", 1, 1).launcher == [sys.executable]


def test_the_time_left_is_that_of_the_work_left(monkeypatch):
    monkeypatch.setattr(runner.time, "perf_counter", lambda: 1000.0)
    assert runner.eta(400.0, 0.5, 2.5, 6.5, 2, 6) == "2 of 6 runs, 38% of the work, 10 min, about 20 min left"
    assert "no step finished yet" in runner.eta(400.0, 0.5, 0.5, 6.5, 0, 6)


@pytest.mark.parametrize(
    ("limits", "share"), [({}, 2 / 60), ({"tokens": 1000}, 0.5), ({"seconds": 8.0}, 0.75), ({"tokens": 300}, 1.0)]
)
def test_a_run_has_spent_the_share_of_its_budget_that_its_whole_lines_say(cells, limits, share):
    cell = replace(cells[0], config=replace(cells[0].config, run=replace(cells[0].config.run, steps=60, **limits)))
    assert runner.share_of(cell) == 0
    record(cells[0])
    rows = [{"sampling/tokens": 200.0, "time/step": 2.5}, {"sampling/tokens": 300.0, "time/step": 3.5}]
    (cell.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "rew')
    assert runner.share_of(cell) == pytest.approx(share)
