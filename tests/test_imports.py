"""Imports run one way: no circle between files, those inside functions counted; what stands alone imports nothing else."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.conftest import ROOT

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "minirl").rglob("*.py"))
}


def imported(path):
    """Names of all modules that a file imports, anywhere in it; `from a import b` is a.b where that is a file of ours."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} imports relatively"
            for alias in node.names:
                yield name if (name := f"{node.module}.{alias.name}") in FILES else node.module


IMPORTS = {name: set(imported(path)) for name, path in FILES.items()}


def ours(name):
    return {other for other in IMPORTS[name] if other.partition(".")[0] == "minirl"}


def inside(name, part):
    return name == part or name.startswith(f"{part}.")


def test_there_is_no_circle():
    try:
        list(TopologicalSorter({name: ours(name) & FILES.keys() for name in FILES}).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


# What a part may import of minirl, besides itself. The parts not named here may import all that is above them.
MAY_IMPORT = {
    "minirl.advantages": [],
    "minirl.loss": ["minirl.losses", "minirl.advantages"],
    "minirl.verify": [],
    "minirl.utils": ["minirl.utils"],
    "minirl.losses": ["minirl.advantages"],
    "minirl.config": ["minirl.advantages", "minirl.losses", "minirl.utils", "minirl.verify.rewards"],
    "minirl.data": ["minirl.config", "minirl.utils", "minirl.verify", "minirl.advantages"],
    "minirl.policy": [
        "minirl.config", "minirl.data", "minirl.utils", "minirl.rollout.types", "minirl.loss", "minirl.tiny",
        "minirl.verify.types",
    ],
    "minirl.rollout": [
        "minirl.advantages", "minirl.config", "minirl.data", "minirl.policy.model", "minirl.utils", "minirl.verify",
    ],
}  # fmt: skip


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_it_builds_on(part):
    allowed = [part, *MAY_IMPORT[part]]
    for name in FILES:
        if inside(name, part):
            odd = [other for other in ours(name) if not any(inside(other, a) for a in allowed)]
            assert not odd, f"{name} imports {odd}"


def test_help_and_the_verifiers_need_no_torch():
    heavy = "sorted({'torch', 'transformers', 'sympy', 'vllm'} & set(sys.modules))"
    for module in (
        "minirl.verify",
        "minirl.verify.pool.pool",
        "minirl.run.inputs",
        "minirl.config.command_line",
        "minirl.advantages",
    ):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys, {module}; print({heavy})"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == "[]", module
