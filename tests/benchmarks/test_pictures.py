"""The pictures of the docs: what they need is there, and the fault that is put in is taken out again."""

import re
from types import SimpleNamespace

from PIL import Image

from benchmarks import pictures
from minirl.config.command_line import load
from minirl.run import lifecycle
from minirl.watch.diagnoses import RULES
from tests.conftest import ROOT, every_metric


def test_cases_are_diagnoses_with_metrics_that_exist_and_a_place_on_the_page():
    known = every_metric()
    page = (ROOT / "docs" / "reading-metrics.md").read_text(encoding="utf-8")
    for name, case in pictures.CASES.items():
        assert name in RULES
        assert set(case.metrics) <= known
        assert f"(images/{name.replace(' ', '-')}.png)" in page
        load(case.options)
    columns = re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)
    named = {metric for column in columns for metric in re.findall(r"`([^`]+)`", column)}
    assert {metric for metric in named if not metric.startswith("metric")} <= known


def test_a_picture_of_two_runs(tmp_path):
    case = pictures.Case([], ["reward/accuracy", "policy/entropy"])
    rows = [{"step": step, "reward/accuracy": step / 9, "policy/entropy": 1 / step} for step in range(1, 9)]
    pictures.draw(case, rows, rows[:5], tmp_path / "new" / "picture.png")
    with Image.open(tmp_path / "new" / "picture.png") as image:
        assert image.size == (960, 230)
        assert image.mode == "P"


def test_an_engine_that_loses_pushes_believes_in_them_and_only_for_a_while(monkeypatch):
    engine = SimpleNamespace(model=[1], version=0)
    monkeypatch.setattr(lifecycle, "build_engine", lambda: engine)
    build = lifecycle.build_engine
    trained = engine.model
    with pictures.engines_that_lose_pushes():
        spoilt = lifecycle.build_engine()
    trained.append(2)
    spoilt.sync(SimpleNamespace(version=7))
    assert (spoilt.model, spoilt.version) == ([1], 7)
    assert lifecycle.build_engine is build


def test_the_reward_that_is_farmed():
    assert pictures.zeros(None, r"10*10=100;\boxed{100}", {}) == 6 / 3
