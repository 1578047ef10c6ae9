"""docs/algorithms/ and the registries say the same."""

import inspect
import re
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest

from benchmarks.estimators import BEGIN, END, PAGE, row
from minirl.advantages import BASES, PKPO, WRAPPERS, MaxRL, build
from minirl.config.command_line import help_text, load
from minirl.losses import LOSSES
from tests.conftest import ROOT

PAGES = ROOT / "docs" / "algorithms"
OTHERS = {"README", "losses", "bias"}


def asked(name):
    """What a page says of the run, from the class."""
    r = build(name if name in BASES else f"grpo+{name}").requirements
    reads = {
        "entropies": r.needs_entropy,
        "log-probs before the update": r.needs_logprobs,
        "log-probs of the reference model": r.needs_ref_logprobs,
    }
    read = [text for text, needed in reads.items() if needed]
    if name in WRAPPERS:
        return "what its base asks" + (f", and {' and '.join(read)}" if read else "")
    return ", ".join(
        [
            f"clip {r.clip_low:g} / {r.clip_high:g}", r.loss_agg_mode, f"loss {r.loss}",
            f"dynamic sampling {'on' if r.dynamic_sampling else 'off'}", f"groups of at least {r.min_group_size}", *read,
        ]
    )  # fmt: skip


def test_every_estimator_has_a_page_and_no_other_is_there():
    assert {path.stem for path in PAGES.glob("*.md")} == {*BASES, *WRAPPERS, *OTHERS}


@pytest.mark.parametrize("name", [*BASES, *WRAPPERS])
def test_a_page_says_what_the_class_says(name):
    text = " ".join((PAGES / f"{name}.md").read_text().split())
    assert text.startswith(f"# {name}: ")
    assert f"Source: {(BASES | WRAPPERS)[name].source}. Asks of the run: {asked(name)}." in text
    command = re.search(r"train\.py (--algorithm\.estimator=[^`]*) ```", text)[1].split()
    estimator = load(command).build_estimator()
    assert name in load(command).algorithm.estimator.split("+")
    assert estimator.requirements


@pytest.mark.parametrize("name", [*BASES, *WRAPPERS])
def test_an_estimator_is_read_at_a_glance(name):
    lines = [line for line in inspect.getsource((BASES | WRAPPERS)[name]).splitlines()[1:] if line.strip()]
    assert len(lines) <= 30, "with its formula, its source and what it asks of the run"


def test_the_index_names_all_and_its_links_work():
    text = (PAGES / "README.md").read_text()
    for name in BASES:
        assert f"| [`{name}`]({name}.md) |" in text
    for name in WRAPPERS:
        assert f"| [`+{name}`]({name}.md) |" in text
    pages = chain(PAGES.glob("*.md"), (ROOT / "docs").glob("*.md"))
    for page in pages:
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page}: {link}"


def test_losses_and_help_name_all():
    page, text = (PAGES / "losses.md").read_text(), help_text()
    for name, cls in LOSSES.items():
        assert re.search(rf"^\| `{name}` \|.*\| {re.escape(cls.source)} \|$", page, re.MULTILINE)
    for name in chain(BASES, LOSSES):
        assert re.search(rf"[ ,]{name}[,\n]", text)
    for name in WRAPPERS:
        assert f"+{name}," in text


def cells(name):
    """The row of the first table of bias.md that is called `name`."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    return next(line.split(" | ") for line in table.splitlines() if line.startswith(f"| {name} | "))


@pytest.mark.parametrize(("name", "estimator"), [("rloo", None), ("grpo+edas", None), ("maxrl", MaxRL()), ("ngrpo", None)])
def test_the_table_of_bias_is_what_the_command_makes(name, estimator):
    from benchmarks.estimators import RIGHT, directions

    made = row(name, "", estimator or build(name))
    one = directions(lambda p: 1.0)
    weights = (made.mean * one).sum(1) / (one**2).sum(1)
    assert cells(name)[5 : 5 + len(RIGHT)] == [f"{w:.3f}" for w in weights]
    noise = np.sqrt(made.variance.sum()) / np.linalg.norm(made.mean)
    assert cells(name)[4] == f"{noise:.2f}"


@pytest.mark.parametrize("baseline", ["mean", "sloo", "sloo-1"])
def test_pkpo_is_unbiased_for_pass_at_k_up_to_a_scale(baseline):
    """The gradient of pass@k by hand, against the exact mean of the estimator's."""
    from benchmarks.estimators import RIGHT, WRONG, N

    made = row("", "", PKPO(k=4, baseline=baseline))
    exact = []
    for p in RIGHT:
        pi = np.array([p, *(1 - p) * WRONG])
        exact.append(4 * (1 - p) ** 3 * p * (np.eye(5)[0] - pi))
    assert made.mean * N == pytest.approx(np.array(exact) * {"mean": 0.5}.get(baseline, 1.0))


def test_the_documented_estimator_works(tmp_path):
    block = re.search(r"```python\n# mine\.py\n(.*?)```", (PAGES / "README.md").read_text(), re.DOTALL)[1]
    (tmp_path / "mine.py").write_text(block)
    program = (
        "from minirl.config.command_line import load; import numpy as np; from minirl.advantages import Group\n"
        "s = load(['--algorithm.estimator=mine.py:Floored+edas', '--estimator.custom={floor: 0.2}']).build_estimator()\n"
        "print(s.base.floor, s.base(Group(np.array([1., 0, 0, 0]), np.array([1, 0, 0, 0], bool), list('rabc'))).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0.2 [3.0, -1.0, -1.0, -1.0]"
