import json

import numpy as np
import pytest

from minirl.analysis.__main__ import main
from minirl.analysis.breakthroughs import mcnemar

from .evaluations import rows, write

ZERO, ONE = ["a", "b"], ["right", "b"]


def test_solved_by_each_and_by_one_only_counted_by_hand(tmp_path, capsys):
    # hard: four problems of x (the fifth is solved before), two of y
    base = [*rows("base", [ZERO, ZERO, ZERO, ZERO, ONE], "x"), *rows("base", [ZERO, ["error", "a"]], "y")]
    dapo = [*rows("dapo", [ONE, ONE, ZERO, ZERO, ONE], "x"), *rows("dapo", [ONE, ZERO], "y")]
    edas = [*rows("edas", [ONE, ZERO, ONE, ZERO, ZERO], "x"), *rows("edas", [ONE, ["error", "error"]], "y")]
    path = write(tmp_path / "e", base, dapo, edas)
    assert main(["breakthroughs", path, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "breakthroughs.json").read_text())
    x = {"hard": 4, "all": 1, "none": 1, "solved": {"dapo": 2, "edas": 2}, "only": {"dapo": 1, "edas": 1}}
    assert found["benchmarks"]["x"] == x
    assert found["total"] == x | {"hard": 6, "all": 2, "none": 2, "solved": {"dapo": 3, "edas": 3}}
    assert found["rate"]["edas"]["mean"] == 0.5
    assert 0 < found["rate"]["edas"]["low"] < 0.5 < found["rate"]["edas"]["high"] < 1
    assert found["differences"]["edas"]["mean"] == 0
    # x: dapo p0 p1, edas p0 p2; y: dapo p0, edas p0: one problem each that only one of the two solved
    assert found["mcnemar"] == {"edas": {"other_only": 1, "first_only": 1, "p": 1}}
    assert found["without_verdict"] == {"dapo": 0, "edas": 1}
    assert "Counted as not solved for want of a verdict: 1 of edas" in capsys.readouterr().out


def test_mcnemar_is_a_coin_over_the_problems_that_only_one_method_solved():
    # 7 of one method only, 1 of the other only, 3 of both, 2 of none: 2 (1 + 8) / 2^8
    first, other = (
        np.array([True] * 3 + [False] * 2 + [False] * 7 + [True]),
        np.array([True] * 3 + [False] * 2 + [True] * 7 + [False]),
    )
    assert mcnemar(first, other) == {"other_only": 7, "first_only": 1, "p": pytest.approx(18 / 256)}
    assert mcnemar(first, first)["p"] == 1


def test_one_method_alone_has_no_column_of_its_own(tmp_path, capsys):
    path = write(tmp_path / "e", rows("base", [ZERO] * 2), rows("new", [ONE, ZERO]))
    assert main(["breakthroughs", path, "--out", str(tmp_path / "out")]) == 0
    assert "only" not in capsys.readouterr().out


def test_more_samples_are_more_chances_and_no_comparison(tmp_path, capsys):
    path = write(tmp_path / "e", rows("base", [ZERO]), rows("a", [ONE]), rows("b", [[*ONE, "right"]]))
    assert main(["breakthroughs", path, "--out", str(tmp_path / "out")]) == 2
    assert "{'a': 2, 'b': 3} samples a problem" in capsys.readouterr().err


@pytest.mark.parametrize(("samples", "few"), [(3, True), (4, False)])
def test_nothing_right_in_few_samples_is_no_sign_of_a_hard_problem(samples, few, tmp_path, capsys):
    path = write(tmp_path / "e", rows("base", [["a"] * samples]), rows("dapo", [ONE]))
    assert main(["breakthroughs", path, "--out", str(tmp_path / "out")]) == 0
    assert ("Not to be read from tests (3)" in capsys.readouterr().out) == few
