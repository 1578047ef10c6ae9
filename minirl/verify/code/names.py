"""Which names of a test script are the candidate's, and which are the real thing. Runs in the judge's process.

A name that a script uses and does not define is the prompt's, a built-in, a well-known module or function that the script
forgot to import, or the candidate's: in this order, for a comparison taken from the candidate would say yes to everything.
"""

import ast
import importlib
import re
import sys
from typing import Any

ALIASES = {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot", "sp": "scipy", "nx": "networkx", "tf": "tensorflow"}
MODULES = {*ALIASES.values(), "torch", "sympy", "pytest"} | sys.stdlib_module_names
# What compares, and where it comes from: never the candidate's, unless it is the entry point.
COMPARING = {
    "math": "isclose isnan isinf isfinite",
    "pytest": "approx raises",
    "numpy": "allclose array_equal array_equiv",
    "numpy.testing": "assert_allclose assert_almost_equal assert_array_equal assert_array_almost_equal assert_equal",
    "copy": "deepcopy",
}
# The candidate's only if the prompt asks for something of that name.
USUAL = {
    "math": "sqrt isqrt floor ceil fabs log log2 log10 exp sin cos tan hypot radians degrees pi inf nan",
    "collections": "Counter defaultdict OrderedDict deque namedtuple",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "datetime": "timedelta",
    "functools": "reduce partial",
    "typing": "List Dict Set Tuple Optional Union Any Callable",
}
HOMES = {name: module for table in (USUAL, COMPARING) for module, names in table.items() for name in names.split()}


def real_names(tree: ast.AST, wanted: set[str], entry: str | None, prompt: str) -> dict[str, Any]:
    """The real things of those names in `wanted` that are no candidate's to define. ImportError: one is not installed."""
    bases = module_like(tree)
    asked_for = {
        name for match in re.finditer(r"(\w++)\s*+\(|`(\w++)|\b(?:def|class)\s++(\w++)", prompt) for name in match.groups()
    }
    defined = set(re.findall(r"\b(?:def|class)\s++(\w++)", prompt))
    comparing = {name for names in COMPARING.values() for name in names.split()}
    found = {}
    for name in wanted - {entry} - defined:
        if name in bases and (name in ALIASES or name in MODULES):
            found[name] = importlib.import_module(ALIASES.get(name, name))
        elif name in comparing or (name in HOMES and name not in asked_for):
            found[name] = getattr(importlib.import_module(HOMES[name]), name)
    return found


def module_like(tree: ast.AST) -> set[str]:
    """The names that a script reads for an attribute of theirs and for nothing else."""
    loads = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {node.id for node in loads} - {node.id for node in loads if id(node) not in bases}


def names_in(tree: ast.AST) -> tuple[set[str], set[str], set[str]]:
    """The names that a script reads; those of them that it calls or takes an attribute of; the names that it binds."""
    used: set[str] = set()
    owed: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)):
            bound.add(node.name or "")
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        if isinstance(node, (ast.Call, ast.Attribute)):
            base = node.func if isinstance(node, ast.Call) else node.value
            owed |= {base.id} if isinstance(base, ast.Name) else set()
    return used, owed, bound


def comparers(tree: ast.AST, entry: str | None) -> set[str]:
    """The names that a script hands an answer of the entry point together with something else: `close(f(2), 3.5)`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) + len(node.keywords) > 1:
            base = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            parts = [part for argument in node.args for part in ast.walk(argument) if isinstance(part, ast.Call)]
            answers = any(isinstance(part.func, ast.Name) and part.func.id == entry for part in parts)
            found |= {base.id} if answers and isinstance(base, ast.Name) else set()
    return found - {entry}


def compared_with(tree: ast.AST) -> set[str]:
    """The names of plain values, not of classes, that stand in a comparison, but in no call there: `abs(f(2) - 4) < tol`."""
    found: set[str] = set()
    pending: list[tuple[ast.AST, bool]] = [(tree, False)]
    while pending:
        node, inside = pending.pop()
        inside = (inside or isinstance(node, ast.Compare)) and not isinstance(node, (ast.Call, ast.Attribute))
        if inside and isinstance(node, ast.Name) and (node.id.islower() or (node.id.isupper() and len(node.id) > 1)):
            found.add(node.id)
        pending += [(child, inside) for child in ast.iter_child_nodes(node)]
    return found


def imports_all_of(tree: ast.AST, module: str) -> bool:
    stars = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == module]
    return any(alias.name == "*" for node in stars for alias in node.names)
