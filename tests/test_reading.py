"""The reading path of docs/reading.md exists and is short; the README's numbers are true."""

import ast
import re

from tests.conftest import ROOT

CORE = (
    "train.py",
    "minirl/advantages*",
    "minirl/loss*",
    *(f"minirl/{part}" for part in ["rollout", "policy", "data", "config", "run", "utils"]),
)


def lines_of(path, names):
    """Lines of the functions and classes called `names`, anywhere in a file; of the whole file for None."""
    text = path.read_text()
    if names is None:
        return text.count("\n")
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name] = node.end_lineno - first + 1
    assert found.keys() == set(names), f"{path} has no {set(names) - found.keys()}"
    return sum(found.values())


def path_of_reading():
    """(file, names or None) of each row of the table."""
    rows = re.findall(r"^\| \d+ \| `([^`]+)` \| (.*?) \|", (ROOT / "docs" / "reading.md").read_text(), re.MULTILINE)
    return [(file, None if names == "*all*" else re.findall(r"`([^`]+)`", names)) for file, names in rows]


def test_the_path_is_at_most_a_thousand_lines_in_at_most_nine_files():
    path = path_of_reading()
    assert 1 < len({file for file, _ in path}) <= 9
    assert sum(lines_of(ROOT / file, names) for file, names in path) <= 1000


def count(*patterns):
    """Lines of the Python files that match: files themselves, and all below folders."""
    files = {f for p in patterns for top in ROOT.glob(p) for f in ([top] if top.is_file() else top.rglob("*.py"))}
    return sum(file.read_text().count("\n") for file in files)


def test_the_readme_s_numbers_are_true():
    """They are rounded up to fifties."""
    text = " ".join((ROOT / "README.md").read_text().split())
    said = [int(n.replace(",", "")) for n in re.search(
        r"The loop is under ([\d,]+) lines, the path from GRPO to EDAS under ([\d,]+), the core ([\d,]+), "
        r"the library ([\d,]+)", text
    ).groups()]  # fmt: skip
    reading = sum(lines_of(ROOT / file, names) for file, names in path_of_reading())
    counted = [count("train.py"), reading, count(*CORE), count("train.py", "eval.py", "minirl")]
    assert all(0 <= claim - number < 50 for claim, number in zip(said, counted, strict=True)), (said, counted)
