"""The curves on the pages of estimators are those of their results.json."""

import numpy as np
import pytest

from benchmarks import estimator_curves as curves
from minirl.ablate.outcomes import load
from minirl.advantages import BASES, WRAPPERS


@pytest.fixture(scope="module")
def results():
    return load(curves.RESULTS)


def test_every_page_has_the_numbers_of_the_results(results):
    made = curves.pages(results)
    assert {path.stem for path in made} == {"README", *BASES, *WRAPPERS}
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: python -m benchmarks.estimator_curves makes it anew"
    for name in (*BASES, *WRAPPERS):
        assert (curves.RESULTS.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_trains_every_estimator(results):
    assert curves.command().split()[4].split(",") == list(results["arms"])
    assert results["command"] == curves.command()


def test_the_numbers_of_a_page_counted_by_hand(results):
    """Pass@1 of an arm: the mean of right / n over problems and seeds."""
    runs = [run["after"] for run in results["runs"] if run["arm"] == "maxrl"]
    mean = 100 * np.mean([np.array(part["right"]) / part["n"] for part in runs])
    text = (curves.PAGES / "maxrl.md").read_text(encoding="utf-8")
    assert f"| `maxrl`, after 60 steps | {mean:.1f} (" in text


def test_a_section_is_replaced_and_others_stay():
    page = f"# a\n\n{curves.HEADING}\n\nold\n\n## Notes\n\nmine\n"
    assert curves.replaced(page, f"{curves.HEADING}\n\nnew\n") == f"# a\n\n{curves.HEADING}\n\nnew\n\n## Notes\n\nmine\n"
    assert curves.replaced("# a\n\ntext\n", "new\n") == "# a\n\ntext\n\nnew\n"


def test_an_interval_by_hand():
    values = np.array([[1.0], [2.0], [3.0]])
    assert curves.interval(values) == pytest.approx([4.302653 * 1 / np.sqrt(3)], rel=1e-5)
