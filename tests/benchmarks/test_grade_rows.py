"""Rows of other people's benchmarks, judged with the settings that they name."""

import json
from pathlib import Path

import pytest

from benchmarks.grade_rows import grade_row
from benchmarks.verifier_accuracy import FILES, math_verify_row, ours, score
from minirl.verify.types import RIGHT, WRONG

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ({"gold": r"\cos ^{10}(\frac{\pi}{10})", "pred": "0.6054", "abs_tolerance": "1e-4"}, RIGHT),
        ({"gold": r"\cos ^{10}(\frac{\pi}{10})", "pred": "0.6056", "abs_tolerance": "1e-4"}, WRONG),
        ({"gold": "1000, 0.5", "pred": "0.6, 1010", "abs_tolerance": [10, 0.1]}, RIGHT),
        ({"gold": "1000, 0.5", "pred": "10.4, 1000", "abs_tolerance": [10, 0.1]}, WRONG),
        ({"gold": r"\frac{1}{3}", "pred": "0.33", "precision": "2"}, RIGHT),
        ({"gold": r"\frac{1}{3}", "pred": "0.33"}, WRONG),
        ({"gold": "(1/3, 2]", "pred": "(0.33, 2)", "precision": "2"}, WRONG),
        ({"gold": "f(x)", "pred": "f(y)", "strict": "False"}, RIGHT),
        ({"gold": "f(x)", "pred": "f(y)", "strict": "True"}, WRONG),
        ({"gold": "$[-2,7]$", "pred": "$-2 \\le x \\le 7$", "set_relation": "False"}, WRONG),
        ({"gold": "$[-2,7]$", "pred": "$-2 \\le x \\le 7$", "set_relation": "True"}, RIGHT),
        ({"gold": "3.5", "pred": "it costs 3,50 €", "match_types": "['expr']"}, RIGHT),
        ({"gold": "$9$", "pred": "9", "match_types": "['latex']"}, WRONG),
        ({"gold": "$9$", "pred": "$9$", "match_types": "['latex']"}, RIGHT),
    ],
)
def test_rows_are_judged_with_the_settings_that_they_name(row: dict, status: str) -> None:
    assert grade_row(row).status == status


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no labelled pairs in {DATA}")
def test_accuracy_on_labelled_pairs() -> None:
    rows = [[json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()] for name in FILES]
    quick = [row for row in rows[0] if "10^{10^{10" not in row["gold"]]  # math-verify takes ten seconds on that one
    theirs, mine = score(quick, math_verify_row), score(quick, ours)
    assert mine["right"] > theirs["right"]
    assert mine["false_right"] == 0
    outputs = score(rows[1], ours)
    assert (outputs["false_right"], outputs["false_wrong"]) == (0, 0)
