import json

import pytest

from minirl.analysis.__main__ import main
from minirl.analysis.case import excerpt

from .evaluations import rows, write

# classes of two or more, where there is a second class: 1, 0 (one class only), 2, 0
PROBLEMS = [["a", "a", "a", "b", "right"], ["a"] * 5, ["x", "y", "y", "x", "x"], ["a", "b", "c", "d", "e"]]


def case(tmp_path, *options, made=None):
    path = write(tmp_path / "e", made or rows("m", PROBLEMS))
    code = main(["case", path, "--out", str(tmp_path / "out"), *options])
    file = tmp_path / "out" / "case.json"
    return code, json.loads(file.read_text()) if file.exists() else None


def test_sizes_and_shares_by_hand_of_the_problem_with_most_classes_of_two(tmp_path, capsys):
    code, found = case(tmp_path)
    assert (code, found["problem"], found["chosen"], found["gold"]) == (0, "tests p2", True, "g2")
    assert found["models"]["m"]["classes"] == [
        {"class": "x", "responses": 3, "share": 0.6, "sample": 0, "excerpt": "so it is \\boxed{x}"},
        {"class": "y", "responses": 2, "share": 0.4, "sample": 1, "excerpt": "so it is \\boxed{y}"},
    ]
    out = capsys.readouterr().out
    assert "## m: 5 of 5 responses wrong, 2 classes" in out
    assert "`y` (2 of 5), the end of sample 1:\n\n    so it is \\boxed{y}\n" in out
    assert (tmp_path / "out" / "case.png").stat().st_size > 5_000


@pytest.mark.parametrize("name", ["p0", "tests p0"])
def test_a_problem_that_is_named_of_every_model_that_has_it(name, tmp_path):
    made = [*rows("m", PROBLEMS), *rows("n", [["right", "right", "b"]])]
    code, found = case(tmp_path, "--problem", name, made=made)
    assert (code, found["problem"], found["chosen"]) == (0, "tests p0", False)
    shown = {model: [(c["class"], c["responses"]) for c in f["classes"]] for model, f in found["models"].items()}
    assert shown == {"m": [("a", 3), ("b", 1)], "n": [("b", 1)]}
    assert [(f["right"], f["wrong"], f["samples"]) for f in found["models"].values()] == [(1, 4, 5), (2, 1, 3)]


def test_an_excerpt_is_the_end_and_begins_with_a_word():
    assert excerpt(" as it is ") == "as it is"
    assert excerpt("one two three four", 12) == "[...] three four"
    assert excerpt("abcdefgh", 3) == "[...] fgh"


def test_what_is_not_there_is_said(tmp_path, capsys):
    assert case(tmp_path, "--problem", "p9")[0] == 2
    assert "no problem is called 'p9': there are 'tests p0' and others" in capsys.readouterr().err
    twice = [*rows("m", PROBLEMS), *rows("m", PROBLEMS, "more")]
    assert case(tmp_path, "--problem", "p0", made=twice)[0] == 2
    assert "several benchmarks have a problem 'p0'" in capsys.readouterr().err
    assert case(tmp_path, made=rows("m", [["right"]]))[0] == 2
    assert "tests p0 has no wrong response" in capsys.readouterr().err


@pytest.mark.parametrize(("wrong", "single"), [(["a", "a"], True), (["a", "b"], False)])
def test_a_problem_with_one_class_shows_no_difference(wrong, single, tmp_path, capsys):
    path = write(tmp_path / "e", rows("m", [["right", *wrong]]))
    assert main(["case", path, "--out", str(tmp_path / "out")]) == 0
    assert ("Not to be read from it: how errors differ." in capsys.readouterr().out) == single
