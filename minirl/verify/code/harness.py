"""What runs in a sandbox's two processes: the judge's, which has the tests, and the candidate's, which has the code.

The tests run in the judge with stand-ins for the candidate's names. A call of a stand-in sends the arguments to the
candidate's process and brings back a plain value (minirl/verify/channel.py). The candidate decides what it answers,
never whether the answer is right. Standard library only; nothing here is imported after the sandbox has closed.
"""

import ast
import atexit
import builtins
import contextlib
import importlib
import io
import math
import os
import re
import sys
import threading
import types
from collections.abc import Iterable
from typing import Any

from minirl.verify.code.channel import OPERATIONS, BadTests, Gone, Peer, describe
from minirl.verify.code.remote import Remote


def run_candidate(sock: Any, prelude: str, code: str) -> None:
    """Compiles and runs the code, then answers the judge until it is gone."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    peer = Peer(sock, module.__dict__, OPERATIONS)
    try:
        exec(compile(prelude, "<prompt>", "exec", dont_inherit=True), module.__dict__)
        exec(compile(code, "<solution>", "exec", dont_inherit=True), module.__dict__)
        peer.send(["=", True])
    except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is its answer
        peer.send(["!", *describe(error)])
        return
    with contextlib.suppress(Gone):
        while True:
            peer.answer(peer.receive())


def run_program(sock: Any, code: str) -> None:
    """Runs a stdin/stdout program as __main__, with what the interpreter does at its end, and reports how it ended."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.__file__ = os.path.join(os.getcwd(), "solution.py")
    sys.argv = [module.__file__]
    # As in an interpreter of its own: whoever drops or closes these files leaves the descriptors open for the next.
    sys.stdin = sys.__stdin__ = os.fdopen(0, "r", errors="surrogateescape", closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", errors="surrogateescape", closefd=False)  # type: ignore[misc]
    peer = Peer(sock, {}, {})
    try:
        try:
            exec(compile(code, "<solution>", "exec", dont_inherit=True), module.__dict__)
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are not daemons
        atexit._run_exitfuncs()
        opened = [value for value in module.__dict__.values() if isinstance(value, io.IOBase)]
        for file in (sys.stdout, sys.__stdout__, *opened):
            if file is not None and not getattr(file, "closed", False):
                file.flush()
        peer.send(["="])
    except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is how it ended
        peer.send(["!", *describe(error)])


def judge(sock: Any, payload: dict[str, Any]) -> dict[str, str]:
    """Runs the tests. {"status": "right"}, or "wrong" with label and detail, or "error" with detail."""
    peer = Peer(sock, {}, OPERATIONS | {"getattr": public_attribute, "setattr": set_public_attribute})
    missing: set[str] = set()
    try:
        names = names_of_prelude(payload["prelude"])
        hello = peer.receive()
        if hello[0] not in ("=", "!"):
            raise Gone
        if hello[0] == "!":
            hello += ["", ""]
            return {"status": "wrong", "label": str(hello[1])[:60], "detail": f"when loaded: {str(hello[2])[:300]}"}
        if payload["kind"] == "calls":
            run_calls(peer, payload)
        else:
            run_script(peer, payload, names, missing)
    except Gone:
        return {"status": "gone"}
    except BadTests as error:
        return {"status": "error", "detail": str(error)[:300]}
    except BaseException as error:  # noqa: BLE001 - the first failing test's exception is the error class
        name, text = describe(error)
        if not getattr(error, "of_candidate", False):
            undefined = isinstance(error, NameError) and error.name in missing
            if not peer.heard or undefined or isinstance(error, ImportError):
                return {"status": "error", "detail": f"the tests fail by themselves: {name}: {text}"}
            if isinstance(error, AssertionError) or (isinstance(error, SystemExit) and error.code):
                name = "WrongAnswer"
        if not (isinstance(error, SystemExit) and not error.code):  # a script may end by saying that all is well
            return {"status": "wrong", "label": name, "detail": text}
    if peer.calls == 0:
        return {"status": "error", "detail": "the tests never call the candidate"}
    return {"status": "right"}


def names_of_prelude(prelude: str) -> dict[str, Any]:
    """What the prompt defines, for the tests. BadTests when it fails: then it fails in the candidate's process too."""
    names: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(compile(prelude, "<prompt>", "exec", dont_inherit=True), names)
    except BaseException as error:
        raise BadTests("the code of the prompt fails: " + ": ".join(describe(error))) from error
    return names


def public_attribute(target: Any, name: str) -> Any:
    """What the candidate may read of an object that the tests lent to it: never a way to the tests' own names."""
    if type(target).__module__ != "tests" or name.startswith("_"):
        raise AttributeError(name)
    return getattr(target, name)


def set_public_attribute(target: Any, name: str, value: Any) -> None:
    if type(target).__module__ != "tests" or name.startswith("_"):
        raise AttributeError(name)
    setattr(target, name, value)


def run_calls(peer: Peer, payload: dict[str, Any]) -> None:
    entry, _, method = payload["entry_point"].partition(".")
    target: Any = Remote(peer, entry)
    peer.heard = False
    if method:
        target = getattr(target(), method)
    for number, case in enumerate(payload["cases"]):
        args, kwargs, expected = peer.decode(case[0]), peer.decode(case[1]), peer.decode(case[2])
        got = target(*args, **kwargs)
        if not same(expected, got, payload["tolerance"]):
            raise AssertionError(f"test {number}: expected {brief(expected)}, got {brief(got)}")


def brief(value: Any) -> str:
    try:
        return repr(value)[:120]
    except Exception:  # noqa: BLE001 - integers of more than 4,300 digits have no repr; a candidate's own may do anything
        return f"<{type(value).__name__}>"


def same(expected: Any, got: Any, tolerance: float) -> bool:
    """Equality by exact type, with three allowances: floats within the tolerance (absolute or relative), an integer
    where a float is expected, and a tuple where a list is expected (tests written in JSON have no tuples). Kinds of
    dictionaries count as dictionaries, named tuples as tuples."""
    if type(expected) is float and type(got) in (float, int):
        try:
            return math.isclose(expected, got, rel_tol=tolerance, abs_tol=tolerance) or (expected != expected and got != got)
        except OverflowError:
            return False
    if isinstance(expected, (list, tuple)) and isinstance(got, tuple if isinstance(expected, tuple) else (list, tuple)):
        return len(expected) == len(got) and all(same(e, g, tolerance) for e, g in zip(expected, got, strict=True))
    if isinstance(expected, dict) and isinstance(got, dict):
        return typed(expected) == typed(got) and all(same(value, got[key], tolerance) for key, value in expected.items())
    if type(got) is not type(expected):
        return False
    return typed(expected) == typed(got) if isinstance(expected, (set, frozenset)) else bool(expected == got)


def typed(items: Iterable[Any]) -> set[tuple[type, Any]]:
    return {(type(item), item) for item in items}


def run_script(peer: Peer, payload: dict[str, Any], names: dict[str, Any], missing: set[str]) -> None:
    """Runs a test script. Names it does not define are the prompt's helpers, standard modules, or the candidate's.

    missing: gets the names that nobody defines or owes. The candidate owes what the prompt mentions, what the script
    calls or takes an attribute of, and, where no entry point is named, everything.
    """
    entry = payload["entry_point"]
    try:
        tree = ast.parse(payload["tests"])
        script = compile(tree, "<tests>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTests(f"the tests do not compile: {type(error).__name__}: {error}") from error
    trusted = set(names) | set(vars(builtins))
    module = types.ModuleType("solution")  # some scripts import the candidate's names from a module called solution
    module.__getattr__ = lambda name: Remote(peer, name)  # type: ignore[method-assign]
    sys.modules["solution"] = module
    used, owed, bound = names_in(tree)
    owed |= set(re.findall(r"\w+", payload["prompt"])) | ({entry} if entry else used)
    peer.heard = heard = False
    # A module that the script forgot to import is the real one: the candidate's math.isclose would say yes to everything.
    modules = (module_like(tree) & sys.stdlib_module_names) - trusted - bound - {entry}
    names |= {name: importlib.import_module(name) for name in modules}
    for name in (used - modules - trusted - bound) | ({entry} if entry else set()):
        try:
            value = peer.ask("value", name)
        except NameError:  # the test that needs it will say so
            heard = heard or name in owed
            missing |= {name} - owed
        else:
            reference = isinstance(value, (type, Remote))
            names[name] = Remote(peer, name) if reference else value
            heard = heard or not reference
    peer.heard = heard  # what the candidate lacks, or a value of its own, may be what fails
    exec(script, names)
    if peer.calls:
        return
    functions = {name: value for name, value in names.items() if isinstance(value, types.FunctionType)}
    if "check" in functions and entry:
        functions["check"](Remote(peer, entry))
    else:
        for name, function in functions.items():
            if name.startswith("test") and function.__code__.co_argcount == 0:
                function()


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
