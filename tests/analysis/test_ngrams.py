import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.analysis.__main__ import main
from minirl.analysis.ngrams import before_the_answer, ngrams, ratios, similarity, tokens, within_between

from .evaluations import rows, write


def test_tokens_are_words_commands_and_single_signs():
    assert tokens("So 2x = \\frac{1}{2}.") == ["so", "2x", "=", "\\frac", "{", "1", "}", "{", "2", "}", "."]
    assert tokens("") == []


def test_similarity_by_hand():
    # x + 1 = 2 -> (x + 1) (+ 1 =) (1 = 2);  x + 1 = 3 -> the first two and (1 = 3): 2 of 4
    assert similarity(ngrams("x + 1 = 2"), ngrams("X+1=3")) == 0.5
    # abc bcd | abc bce: 1 of 3
    assert similarity(ngrams("a b c d"), ngrams("a b c e")) == pytest.approx(1 / 3)
    # abc bcd | abc bcd cdf: 2 of 3;  abc bce | abc bcd cdf: 1 of 4
    assert similarity(ngrams("a b c d"), ngrams("a b c d f")) == pytest.approx(2 / 3)
    assert similarity(ngrams("a b c e"), ngrams("a b c d f")) == 0.25
    # a set, not a count: aaa once, however long
    assert similarity(ngrams("a a a"), ngrams("a a a a a")) == 1
    with pytest.raises(ValueError, match="no n-grams"):
        similarity(ngrams("a b"), ngrams("a b c"))


@given(st.text("ab ", min_size=9), st.text("ab ", min_size=9))
def test_similarity_is_symmetric_bounded_and_one_for_equal_texts(one, other):
    a, b = ngrams(one), ngrams(other)
    if a and b:
        assert 0 <= similarity(a, b) == similarity(b, a) <= 1
        assert similarity(a, a) == 1


def test_a_problem_with_one_kind_of_pair_says_nothing():
    assert within_between([("a", "a", 0.5)]) is None
    assert within_between([("a", "b", 0.5)]) is None
    assert within_between([("a", "a", 0.5), ("a", "b", 0.1), ("b", "a", 0.2)]) == {
        "within": 0.5,
        "between": pytest.approx(0.15),
    }


def test_the_text_before_the_last_box_is_what_leads_to_the_answer():
    assert before_the_answer({"response": "\\boxed{1} no, \\boxed{2}"}) == "\\boxed{1} no, "
    assert before_the_answer({"response": "no box"}) == "no box"


def test_the_command_on_a_problem_counted_by_hand(tmp_path, capsys):
    # class p: a b c d, a b c e; class q: a b c d f. within 1/3, between (2/3 + 1/4) / 2 = 11/24
    texts = [["a b c d", "a b c e", "a b c d f", "q"], ["x \\boxed{a}", "y \\boxed{a}", "z \\boxed{b}", "z \\boxed{b}"]]
    path = write(tmp_path / "e", rows("m", [["p", "p", "q", "q"], ["a", "a", "b", "b"]], responses=texts))
    assert main(["ngrams", path, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "ngrams.json").read_text())
    first = found["problems"]["m"]["whole"][0]
    assert (first["within"], first["between"]) == (pytest.approx(1 / 3), pytest.approx(11 / 24))
    # x boxed a and y boxed a: 2 of 4; the z are equal: within (1/2 + 1) / 2; between: nothing in common
    second = found["problems"]["m"]["whole"][1]
    assert (second["within"], second["between"]) == (pytest.approx(0.75), 0)
    assert (first["ratio"], second["ratio"]) == (pytest.approx(8 / 11), None), "1/3 / (11/24); nothing is shared: no ratio"
    assert found["too_short"]["m"] == {"whole": 1, "before": 5}, "q; and before their boxes x, y, z, z"
    summary = found["models"]["m"]["whole"]
    assert summary["within"]["mean"] == pytest.approx((1 / 3 + 0.75) / 2)
    assert summary["above"]["mean"] == 0.5, "above the diagonal: the second"
    assert found["models"]["m"]["before"]["problems"] == 1, "only the first has texts without a box"
    out = " ".join(capsys.readouterr().out.split())
    assert "| m | whole responses | tests | 2 | inf | 50.0 |" in out
    assert (tmp_path / "out" / "ngrams.png").stat().st_size > 5_000


def test_ratios_by_benchmark_the_largest_first():
    rows = [{"benchmark": b, "ratio": r} for b, r in (("x", 1.5), ("y", 2.0), ("x", None), ("x", 3.0))]
    assert ratios(rows) == {"x": [float("inf"), 3.0, 1.5], "y": [2.0]}
