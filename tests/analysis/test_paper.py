import pytest

from minirl.analysis.__main__ import main
from minirl.analysis.paper import NO, ROUNDING, YES, check, checks, mcnemar, nearest, strongest


def test_what_does_not_add_up_is_found():
    off = {(c["table"], c["what"]): (c["published"], round(c["recomputed"], 4)) for c in checks() if c["adds_up"] == NO}
    assert off == {
        ("counts", "Qwen3-8B DAPO+EnAdv, AIME24"): (31.81, 31.7708),  # 305 of 960; 306 are 31.875
        ("counts", "Qwen3-4B base, AIME25"): (20.01, 20.0),  # 192 of 960; 193 are 20.10
        ("counts", "Qwen3-4B-Base DAPO+EDAS, AIME26"): (20.97, 20.9375),  # 201 of 960; 202 are 21.0417
        ("counts", "Qwen3-4B-Base DAPO+EDAS, Olympiad"): (56.5, 56.5282),  # 381 of 674; 380 are 56.3798
        ("rates", "diverse groups, DAPO+EDAS / DAPO, in a caption"): (1.71, 1.6101),  # 144.1 / 89.5
    }
    near = {c["what"]: c["recomputed"] for c in checks() if c["adds_up"] == ROUNDING}
    assert near == pytest.approx({
        "Qwen3-4B base": 235.69 / 7,  # 33.67, published as 33.68
        "Qwen3-4B-Base DAPO+EDAS": 259.20 / 7,  # 37.0286, published as 37.02
        "Qwen3-8B GRPO, AIME26": 100 * 177 / 960,  # 18.4375, published as 18.43
        "Qwen3-8B PKPO, AIME24": 100 * 280 / 960,  # 29.1667, published as 29.16
    })  # fmt: skip


def test_everything_else_does():
    found = checks()
    assert sum(c["adds_up"] == YES for c in found) == len(found) - 9 == 148


def test_gains_are_over_the_strongest_baseline_of_their_column():
    """The entropy row is the stronger one on AIME25 of 8B (38.23, DAPO 38.12) and on AMC24 of 4B-Base."""
    assert strongest("Qwen3-8B", "AIME25") == 38.23
    assert strongest("Qwen3-8B", "AIME24") == 41.46
    assert strongest("Qwen3-4B-Base", "AMC24") == 34.24
    assert strongest("Qwen3-4B code", "average") == 54.19, "which has no entropy row"
    gain = next(c for c in checks() if c["what"] == "Qwen3-8B AIME25")
    assert (gain["published"], gain["adds_up"], gain["note"]) == (7.29, YES, "45.52 - 38.23")


def test_mcnemar_by_hand():
    """Problems that one method alone solved, 10 and 2: twice the chance of at most 2 heads of 12, (1 + 12 + 66) / 4096."""
    assert mcnemar("Qwen3-8B") == {"model": "Qwen3-8B", "edas_only": 10, "dapo_only": 2, "p": pytest.approx(2 * 79 / 4096)}
    assert mcnemar("Qwen3-4B") == {"model": "Qwen3-4B", "edas_only": 3, "dapo_only": 1, "p": pytest.approx(2 * 5 / 16)}
    found = mcnemar("Qwen3-4B-Base")
    assert (found["edas_only"], found["dapo_only"], found["p"]) == (14, 1, pytest.approx(2 * 16 / 2**15))


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
    out = " ".join(capsys.readouterr().out.split())
    assert "45.52 - 38.23" in out
    assert "| Qwen3-4B-Base | 14 | 1 | 0.001 |" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["paper.json", "paper.md", "paper.png"]
