"""Run folders that are new, resumed or refused; whole runs that resume are in tests/test_resume.py."""

import contextlib

import pytest

from minirl.ablate import cells
from minirl.config.command_line import load
from minirl.config.options import every_option
from minirl.evaluation import held_out
from minirl.run import folder as folders
from minirl.run.folder import differences, finished, listed, run_folder
from minirl.utils.errors import ConfigError


@pytest.mark.parametrize(("was", "done", "lost"), [(10, 10, False), (10, 11, True), (2, 3, True), (0, 50, False)])
def test_a_run_begins_again_where_its_first_checkpoint_was_not_due_by_the_config_it_had(tmp_path, was, done, lost):
    with run_folder(load(["--run-dir", str(tmp_path / "out"), f"--run.save_every={was}"])) as folder:
        (folder / "metrics.jsonl").write_text("{}\n" * done)
    now = load(["--run-dir", str(folder), "--run.save_every=5"])
    refused = pytest.raises(ConfigError, match=f"has {done} steps and no checkpoint")
    with refused if lost else contextlib.nullcontext(), run_folder(now):
        pass


def test_differences_are_told_apart_by_what_they_do_to_a_run():
    new = ["--run.steps=9", "--optimizer.lr=2e-3", "--rollout.vllm.sleep=false", "--estimator.edas.beta=0.3"]
    refused, rounding, free = differences(load([]), load(new))
    assert refused == ["estimator.edas.beta: 0.2 -> 0.3", "optimizer.lr: 0.0004 -> 0.002"]
    assert rounding == ["rollout.vllm.sleep: True -> False"]
    assert free == ["run.steps: 60 -> 9"]


OPTIONS = [key for key, _, _ in every_option()]
LISTS = {
    "MAY_CHANGE": folders.MAY_CHANGE, "ROUNDING": folders.ROUNDING, "OPTIONS": held_out.OPTIONS, "SHARED": cells.SHARED,
    "OWN": cells.OWN, "SAMPLING": [f"eval.{name}" for name in cells.SHARED_EVAL],
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_the_lists_of_options_name_options_and_sections_that_there_are(name):
    assert [entry for entry in LISTS[name] if not any(listed(key, [entry]) for key in OPTIONS)] == []


def test_an_option_stands_in_one_list_only():
    lists = [folders.HARMLESS, folders.BUDGET, folders.BY_CONTENT, ("eval.every",), folders.ROUNDING]
    assert [key for key in OPTIONS if sum(listed(key, names) for names in lists) > 1] == []
    assert not listed("data.train_split", ["data.train"]), "a name is not a beginning of others"


@pytest.mark.parametrize("name", ["x" * 300, "ä" * 200])
def test_a_name_that_is_too_long_for_the_file_system_is_bad_input(tmp_path, name):
    with (
        pytest.raises(ConfigError, match=r"cannot use the run folder .*too long"),
        run_folder(load(["--run-dir", str(tmp_path / name)])),
    ):
        pass
    with pytest.raises(ConfigError, match=r"cannot use the run folder .*too long"):  # which is asked before
        finished(load(["--run-dir", str(tmp_path / name)]))


def test_bad_input_empties_a_linked_folder_and_is_said(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    for _ in range(2):  # the corrected command can be repeated
        with pytest.raises(ConfigError, match="no such model"), run_folder(load(["--run-dir", str(tmp_path / "out")])):
            raise ConfigError("no such model")
    assert list((tmp_path / "disk").iterdir()) == []


def test_the_name_of_a_folder_is_one_name_whatever_the_estimator_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load([])
    config.algorithm.estimator = "../elsewhere/mine.py:Mine+edas"
    with run_folder(config) as folder:
        assert folder.parent.name == "runs"
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]
