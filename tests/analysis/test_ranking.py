"""Whether a microscope predicted a comparison: Spearman's correlation, and what it takes to have one."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from minirl.analysis.__main__ import main
from minirl.analysis.ranking import rank_correlation, verdict


def test_rank_correlation_is_scipys_with_ties():
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y = rng.integers(0, 5, 9).astype(float), rng.standard_normal(9)
        assert rank_correlation(x, y)["mean"] == pytest.approx(spearmanr(x, y).statistic)


def test_the_interval_covers():
    """Normal pairs with correlation .6 have Spearman's rho 6 / pi asin(.3) (Pearson 1907)."""
    rng, truth = np.random.default_rng(0), 6 / np.pi * np.arcsin(0.3)
    inside = 0
    for _ in range(500):
        x, e = rng.standard_normal((2, 12))
        found = rank_correlation(x, 0.6 * x + 0.8 * e)
        inside += found["low"] <= truth <= found["high"]
    assert 0.92 < inside / 500 <= 1


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        ([1, 2, 3], [1, 2, 3], "cannot be told: it takes 4"),
        ([1, 2, 3, np.nan], [1, 2, 3, 4], "cannot be told"),
        ([1, 1, 1, 1, 1], [1, 2, 3, 4, 5], "cannot be told"),
        ([1, 2, 3, 4], [1, 2, 3, 4], "not distinguishable"),
        (range(9), range(9), "predicts the ranking"),
        (range(9), range(9, 0, -1), "predicts the reverse"),
    ],
)
def test_verdicts(x, y, said):
    found = rank_correlation(list(x), list(y))
    assert verdict(found).startswith(said)
    if not np.isnan(found["mean"]):
        assert -1 <= found["low"] <= found["mean"] <= found["high"] <= 1


def microscope(folder, values):
    entry = {n: {"norm": v, "snr": {"mean": None}, "gain": -v, "cosine": {"mean": 1.0}} for n, v in values.items()}
    folder.mkdir()
    (folder / "microscope.json").write_text(json.dumps({"estimators": entry}))
    return folder


@pytest.mark.parametrize("comparison", [False, True])
def test_the_command_compares_what_both_know(tmp_path, capsys, comparison):
    names = ["a", "b", "c", "d", "e", "f", "g", "h"]
    seen = microscope(tmp_path / "step3", {name: float(i) for i, name in enumerate(names)} | {"other": 1.0})
    results = {name: 0.1 * i for i, name in enumerate(names)} | {"missing": 0.5}
    if comparison:
        runs = [
            {"arm": name, "seed": 0, "after": {"n": [10, 10], "right": [round(10 * value), round(10 * value)]}}
            for name, value in results.items()
        ]
        results = {"arms": dict.fromkeys(results), "runs": runs}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert main(["ranking", str(seen), str(tmp_path / "results.json"), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "ranking.md").read_text()
    found = json.loads((tmp_path / "out" / "ranking.json").read_text())
    assert found["correlations"]["norm"]["mean"] == pytest.approx(1)
    assert found["correlations"]["gain"]["mean"] == pytest.approx(-1)
    assert found["estimators"]["c"]["accuracy"] == pytest.approx(0.2)
    assert found["unmatched"] == ["other", "missing"]
    assert "Only in one of the two: other, missing." in text
    assert text.count("cannot be told") == 2
    assert (tmp_path / "out" / "ranking.png").stat().st_size > 1000
    capsys.readouterr()


def test_bad_input_is_named(tmp_path, capsys):
    seen = microscope(tmp_path / "step3", {"a": 1.0})
    for content, message in (
        ("{", "cannot read"),
        ('{"a": "x"}', "must hold"),
        ('{"b": 1}', "no estimator in common: a and b"),
    ):
        (tmp_path / "results.json").write_text(content)
        assert main(["ranking", str(seen), str(tmp_path / "results.json"), "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
