"""What runs in a sandbox's two processes: the judge's, which has the tests, and the candidate's, which has the code.

The tests run in the judge with stand-ins for the candidate's names. A call of a stand-in sends the arguments to the
candidate's process and brings back a plain value (minirl/verify/channel.py). The candidate decides what it answers,
never whether the answer is right. Standard library only; nothing here is imported after the sandbox has closed.
"""

import ast
import atexit
import builtins
import contextlib
import math
import os
import sys
import threading
import types
from typing import Any

from minirl.verify.channel import OPERATIONS, BadTests, Gone, Peer, Remote, call, describe


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
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    peer = Peer(sock, {}, {})
    try:
        try:
            exec(compile(code, "<solution>", "exec", dont_inherit=True), module.__dict__)
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are not daemons
        atexit._run_exitfuncs()
        sys.stdout.flush()
        peer.send(["="])
    except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is how it ended
        peer.send(["!", *describe(error)])


def judge(sock: Any, payload: dict[str, Any]) -> dict[str, str]:
    """Runs the tests. {"status": "right"}, or "wrong" with label and detail, or "error" with detail."""
    peer = Peer(sock, {}, {"call": call})
    try:
        hello = peer.receive()
        if hello[0] != "=":
            hello += ["", ""]
            return {"status": "wrong", "label": str(hello[1])[:60], "detail": f"when loaded: {str(hello[2])[:300]}"}
        if payload["kind"] == "calls":
            run_calls(peer, payload)
        else:
            run_script(peer, payload)
    except Gone:
        return {"status": "gone"}
    except BadTests as error:
        return {"status": "error", "detail": str(error)[:300]}
    except AssertionError as error:
        label = "AssertionError" if getattr(error, "of_candidate", False) else "WrongAnswer"
        return {"status": "wrong", "label": label, "detail": str(error)[:300]}
    except BaseException as error:  # noqa: BLE001 - the first failing test's exception is the error class
        name, text = describe(error)
        if isinstance(error, ImportError) and not getattr(error, "of_candidate", False):
            return {"status": "error", "detail": f"the tests cannot import: {text}"}
        return {"status": "wrong", "label": name, "detail": text}
    if peer.calls == 0:
        return {"status": "error", "detail": "the tests never call the candidate"}
    return {"status": "right"}


def run_calls(peer: Peer, payload: dict[str, Any]) -> None:
    entry, _, method = payload["entry_point"].partition(".")
    target: Any = Remote(peer, entry)
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
    except (ValueError, RecursionError):  # integers of more than 4,300 digits have no repr
        return f"<{type(value).__name__}>"


def same(expected: Any, got: Any, tolerance: float) -> bool:
    """Equality by exact type, with three allowances: floats within the tolerance (absolute or relative), an integer
    where a float is expected, and a tuple where a list is expected (tests written in JSON have no tuples)."""
    if type(expected) is float and type(got) in (float, int):
        try:
            return math.isclose(expected, got, rel_tol=tolerance, abs_tol=tolerance) or (expected != expected and got != got)
        except OverflowError:
            return False
    if type(got) is not type(expected) and not (type(expected) is list and type(got) is tuple):
        return False
    if type(expected) in (list, tuple):
        return len(expected) == len(got) and all(same(e, g, tolerance) for e, g in zip(expected, got, strict=True))
    if type(expected) is dict:
        return expected.keys() == got.keys() and all(same(value, got[key], tolerance) for key, value in expected.items())
    return bool(expected == got)


def run_script(peer: Peer, payload: dict[str, Any]) -> None:
    """Runs a test script. Names it does not define are the prompt's helpers, or else the candidate's."""
    entry = payload["entry_point"]
    try:
        tree = ast.parse(payload["tests"])
        script = compile(tree, "<tests>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTests(f"the tests do not compile: {type(error).__name__}: {error}") from error
    names: dict[str, Any] = {"__name__": "tests"}
    exec(compile(payload["prelude"], "<prompt>", "exec", dont_inherit=True), names)
    trusted = set(names) | set(vars(builtins))
    module = types.ModuleType("solution")  # some scripts import the candidate's names from a module called solution
    module.__getattr__ = lambda name: Remote(peer, name)  # type: ignore[method-assign]
    sys.modules["solution"] = module
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for name in (used - trusted) | ({entry} if entry else set()):
        try:
            value = peer.ask("value", name)
        except NameError:  # the candidate lacks it; the test that needs it will say so
            value = None
        names[name] = Remote(peer, name) if value is None or callable(value) else value
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
