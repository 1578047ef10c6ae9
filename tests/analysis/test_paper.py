import pytest

from minirl.analysis.__main__ import main
from minirl.analysis.paper import NO, ROUNDING, YES, check, checks, nearest


def test_what_does_not_add_up_is_found():
    off = {(c["table"], c["what"]): (c["published"], round(c["recomputed"], 4)) for c in checks() if c["adds_up"] == NO}
    assert off == {
        ("differences", "Qwen3-8B AIME25"): (7.29, 7.4),  # 45.52 - 38.12
        ("counts", "Qwen3-8B DAPO+EnAdv, AIME24"): (31.81, 31.7708),  # 305 of 960; 306 are 31.875
        ("counts", "Qwen3-4B-Base DAPO+EDAS, AIME26"): (20.97, 20.9375),  # 201 of 960; 202 are 21.0417
        ("counts", "Qwen3-4B-Base DAPO+EDAS, Olympiad"): (56.5, 56.5282),  # 381 of 674; 380 are 56.3798
    }
    near = {c["what"]: c["recomputed"] for c in checks() if c["adds_up"] == ROUNDING}
    assert near == pytest.approx({
        "Qwen3-4B-Base DAPO+EDAS": 259.20 / 7,  # 37.0286, published as 37.02
        "Qwen3-8B GRPO, AIME26": 100 * 177 / 960,  # 18.4375, published as 18.43
        "Qwen3-8B PKPO, AIME24": 100 * 280 / 960,  # 29.1667, published as 29.16
    })  # fmt: skip


def test_everything_else_does():
    found = checks()
    assert sum(c["adds_up"] == YES for c in found) == len(found) - 7 == 108


@pytest.mark.parametrize(
    ("published", "recomputed", "expected"),
    [(1.00, 1.005, YES), (1.00, 1.0051, ROUNDING), (1.00, 0.99, ROUNDING), (1.00, 1.0101, NO), (1.00, 0.98, NO)],
)
def test_how_much_rounding_explains(published, recomputed, expected):
    assert check("t", "w", published, recomputed, 0.01, 0.005, "")["adds_up"] == expected


def test_the_nearest_count():
    assert nearest(31.81, 960) == 100 * 305 / 960
    assert nearest(50, 2) == 50


def test_the_command(tmp_path, capsys):
    assert main(["paper", "--out", str(tmp_path)]) == 0
    assert "45.52 - 38.12" in capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["paper.json", "paper.md", "paper.png"]
