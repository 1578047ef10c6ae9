"""Experiment trackers get what the run folder has, continue when a run does, and never end one."""

import json
import types

import pytest

from minirl.config.command_line import load
from minirl.utils.errors import ConfigError
from minirl.watch import trackers
from minirl.watch.trackers import Trackers


@pytest.fixture
def config():
    pytest.importorskip("tensorboard")
    return load(["--run.trackers=[tensorboard]"])


def scalars(folder):
    """{name: {step: value}} of a folder of tensorboard, read by its own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return {tag: {e.step: e.value for e in accumulator.Scalars(tag)} for tag in accumulator.Tags()["scalars"]}


def test_a_resumed_run_continues_its_tracked_run_and_takes_back_what_it_repeats(tmp_path, config):
    first = Trackers(tmp_path, config, 0)
    for step in (1, 2, 3):
        first.log(step, {"reward/mean": float(step)})
    first.log(0, {"eval/pass@1": 0.25})
    first.close()
    # The newest checkpoint is that of step 2: step 3 is done again.
    second = Trackers(tmp_path, config, 2)
    second.log(3, {"reward/mean": 30.0})
    second.close()
    found = scalars(tmp_path)
    assert found["reward/mean"] == {1: 1.0, 2: 2.0, 3: 30.0}
    assert found["eval/pass@1"] == {0: 0.25}
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"tensorboard": "tensorboard"}


def test_a_tracker_that_fails_is_left_out_with_a_word_and_the_others_go_on(tmp_path, config, capsys):
    opened, kept = Trackers(tmp_path, config, 0), []

    def fail(*_, **__):
        raise OSError("no space")

    opened.open["wandb"] = types.SimpleNamespace(log=fail, log_table=fail, finish=fail)
    opened.open["kept"] = types.SimpleNamespace(log=lambda values, step: kept.append((step, values)), finish=lambda: None)
    opened.log(1, {"a": 1.0})
    opened.log(2, {"a": 2.0})
    opened.close()
    assert capsys.readouterr().out.count("run.trackers=wandb could not be written and is left out: OSError: no space") == 1
    assert kept == [(1, {"a": 1.0}), (2, {"a": 2.0})]


@pytest.mark.parametrize("content", [b'{"tensorboard": ', b"\xff", b"[1]", b'{"tensorboard": 3}'])
def test_a_damaged_file_of_names_ends_no_run_and_is_written_anew(tmp_path, config, capsys, content):
    (tmp_path / "trackers.json").write_bytes(content)
    opened = Trackers(tmp_path, config, 2)
    opened.log(3, {"reward/mean": 0.5})
    opened.close()
    assert "trackers.json cannot be read" in capsys.readouterr().out
    assert scalars(tmp_path)["reward/mean"] == {3: 0.5}
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"tensorboard": "tensorboard"}


def test_a_file_of_names_that_cannot_be_written_ends_no_run(tmp_path, config, capsys):
    (tmp_path / "trackers.json").mkdir()
    opened = Trackers(tmp_path, config, 0)
    assert list(opened.open) == ["tensorboard"]
    opened.close()
    assert "trackers.json could not be written" in capsys.readouterr().out


def test_a_tracker_without_a_tracked_run_is_left_out(tmp_path, monkeypatch, capsys):
    from accelerate import tracking

    monkeypatch.setattr("minirl.config.checks.find_spec", lambda name: object())
    monkeypatch.setattr(tracking, "WandBTracker", lambda *_, **__: types.SimpleNamespace(start=lambda: None))
    opened = Trackers(tmp_path, load(["--run.trackers=[wandb]"]), 0)
    assert not opened.open
    assert "run.trackers=wandb could not be opened and is left out: AttributeError" in capsys.readouterr().out


def test_groups_go_to_trackers_with_tables(tmp_path, config):
    opened, tables = Trackers(tmp_path, config, 0), []
    opened.open["kept"] = types.SimpleNamespace(log_table=lambda name, **of: tables.append((name, of)), finish=lambda: None)
    opened.groups(4, [{"prompt": "1+1=", "response": "2", "advantage": [0.5, 0.5], "reward": 1.0}])
    opened.close()
    ((name, of),) = tables
    assert (name, of["step"]) == ("groups", 4)
    row = dict(zip(of["columns"], of["data"][0], strict=True))
    assert (row["prompt"], row["reward"], row["advantage"]) == ("1+1=", 1.0, "[0.5, 0.5]")


def test_other_ranks_and_runs_without_trackers_open_none(tmp_path, config):
    assert not Trackers(None, config, 0).open
    assert not Trackers(tmp_path, load([]), 0).open
    assert not list(tmp_path.iterdir())


def test_an_unknown_tracker_or_one_without_its_package_is_refused_with_the_remedy(monkeypatch):
    with pytest.raises(ConfigError, match="tensorboard, wandb, trackio, mlflow, not 'tensorbord'"):
        load(["--run.trackers=[tensorbord]"])
    monkeypatch.setattr("minirl.config.checks.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        load(["--run.trackers=[wandb]"])


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_other_trackers_offline(tmp_path, name, monkeypatch):
    """With the real packages, where they are installed."""
    pytest.importorskip(name)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = load([f"--run.trackers=[{name}]"])
    said = []
    monkeypatch.setattr(trackers, "say", said.append)
    for step in (0, 2):
        opened = Trackers(tmp_path, config, step)
        opened.log(step + 1, {"reward/mean": 0.5})
        opened.groups(step + 1, [{"prompt": "p", "reward": 1.0}])
        opened.close()
    assert said == []
    assert list(json.loads((tmp_path / "trackers.json").read_text())) == [name]


def test_an_own_class_that_cannot_be_had_is_said(tmp_path, capsys):
    with pytest.raises(ConfigError, match=r"there is no file nowhere\.py"):
        load(["--run.trackers=[nowhere.py:Mine]"])
    (tmp_path / "mine.py").write_text("class Mine:\n    pass\n")
    Trackers(tmp_path, load([f"--run.trackers=[{tmp_path}/mine.py:Mine]"]), 0)
    assert "has no class 'Mine' that is a subclass of accelerate.tracking.GeneralTracker" in capsys.readouterr().out
