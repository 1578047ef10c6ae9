"""What runs in the judge's process, which has the tests.

The tests run here with stand-ins for the candidate's names. A call of a stand-in sends the arguments to the candidate's
process and brings back a plain value (channel.py). The candidate decides what it answers, never whether the answer is
right. Standard library only; nothing here is imported after the sandbox has closed.
"""

import ast
import builtins
import contextlib
import functools
import importlib
import inspect
import io
import os
import pathlib
import re
import sys
import tempfile
import types
from collections import namedtuple
from typing import Any

from minirl.verify.code.channel import OPERATIONS, BadTests, Gone, Peer, describe
from minirl.verify.code.compare import brief, same
from minirl.verify.code.names import compared_with, comparers, imports_all_of, names_in, real_names
from minirl.verify.code.remote import Remote


def judge(sock: Any, payload: dict[str, Any]) -> dict[str, str]:
    """Runs the tests. {"status": "right"}, or "wrong" with label and detail, or "error" with detail."""
    peer = Peer(sock, {}, OPERATIONS | {"getattr": public_attribute})
    peer.operations["setattr"] = functools.partial(set_public_attribute, peer)
    peer.services = {  # for code that reads what a test patched in
        "input": lambda *prompt: builtins.input(*prompt),
        "readline": lambda *size: sys.stdin.readline(*size),
        "read": lambda *size: sys.stdin.read(*size),
    }
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
    module = types.ModuleType("tests")  # __main__ for unittest.main(), which looks for the tests there
    sys.modules["__main__"], sys.argv = module, ["tests"]
    names = module.__dict__
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


def set_public_attribute(peer: Peer, target: Any, name: str, value: Any) -> None:
    """Data only: a method that the tests ask is never replaced by a function of the candidate's."""
    if type(target).__module__ != "tests" or name.startswith("_"):
        raise AttributeError(name)
    nothing = object()
    for kind in (type(target), target) if isinstance(target, type) else (type(target),):
        found = inspect.getattr_static(kind, name, nothing)
        data = hasattr(type(found), "__set__")  # a property, a slot
        if not data and (callable(found) or hasattr(type(found), "__get__")):
            raise AttributeError(f"{name!r} is a method")
    old = getattr(target, name, nothing)
    if callable(old) and not isinstance(old, Remote):
        raise AttributeError(f"{name!r} is a function")
    peer.undo.append(functools.partial(delattr, target, name) if old is nothing else lambda: setattr(target, name, old))
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
        accepted = [expected, expected[0]] if payload["wrapped"] else [expected]
        if not any(same(value, got, payload["tolerance"]) for value in accepted):
            raise AssertionError(f"test {number}: expected {brief(expected)}, got {brief(got)}")


def run_script(peer: Peer, payload: dict[str, Any], names: dict[str, Any], missing: set[str]) -> None:
    """Runs a test script. Names it does not define are the prompt's helpers, standard modules, or the candidate's.

    missing: gets the names that nobody defines or owes. The candidate owes what the prompt mentions, what the script
    calls or takes an attribute of, and, where no entry point is named, everything; but never what compares its answer with
    another value, unless the prompt mentions it.
    """
    entry = payload["entry_point"]
    try:
        tree = ast.parse(payload["tests"])
        script = compile(tree, "<tests>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadTests(f"the tests do not compile: {type(error).__name__}: {error}") from error
    trusted = set(names) | set(vars(builtins))
    module = types.ModuleType("solution")  # some scripts import the candidate's names from a module called solution
    module.__getattr__ = functools.partial(of_solution, peer)  # type: ignore[method-assign]
    module.__all__ = []  # type: ignore[attr-defined]  # what a script uses is in `names`: a star overrides nothing
    sys.modules["solution"] = module
    used, owed, bound = names_in(tree)
    called = set(owed)
    everything = entry is None or imports_all_of(tree, "solution")
    owed |= set(re.findall(r"\w+", payload["prompt"])) | (used if everything else {entry})
    foreign = comparers(tree, entry) - trusted - bound - set(re.findall(r"\w+", payload["prompt"]))
    if not everything:  # a tolerance or an expected value is nobody's
        asked = {name for pair in re.findall(r"`(\w+)|^\s*(\w+)\s*[:=]", payload["prompt"], re.MULTILINE) for name in pair}
        prose = {name for name in owed if name.islower()} - called
        foreign |= compared_with(tree) - trusted - bound - asked - (owed - prose) - {entry}
    peer.heard = heard = False
    real = real_names(tree, used - trusted - bound, entry, payload["prompt"])
    names |= real
    if re.search(r"\bnumpy\b|\bnp\b", payload["tests"]):
        compare_sizes_in_numpy()
    missing |= foreign - set(real)
    for name in (used - missing - set(real) - trusted - bound) | ({entry} if entry else set()):
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
        return
    for name, function in functions.items():
        names_wanted = function.__code__.co_varnames[: function.__code__.co_argcount]
        for values in parameters_of(function) if name.startswith("test") else ():
            fixtures = tuple(wanted for wanted in names_wanted if wanted not in values)
            if set(fixtures) <= set(FIXTURES):
                run_test(peer, function, fixtures, values)
    cases = getattr(sys.modules.get("unittest"), "TestCase", ())
    for kind in [value for value in names.values() if isinstance(value, type) and issubclass(value, cases)]:
        kind.setUpClass()  # type: ignore[attr-defined]
        for test in sys.modules["unittest"].defaultTestLoader.loadTestsFromTestCase(kind):
            run_test(peer, test.debug)


def compare_sizes_in_numpy() -> None:
    """To numpy an empty list is close to every number, as there is no element that is not: here it is close to none."""
    try:
        numpy, testing = importlib.import_module("numpy"), importlib.import_module("numpy.testing")
    except ImportError:
        return
    allclose, assert_allclose = vars(numpy)["allclose"], vars(testing)["assert_allclose"]

    def both_empty_or_none(a: Any, b: Any) -> bool:
        return (numpy.size(a) == 0) == (numpy.size(b) == 0)

    def strict_allclose(a: Any, b: Any, *args: Any, **kwargs: Any) -> bool:
        return both_empty_or_none(a, b) and bool(allclose(a, b, *args, **kwargs))

    def strict_assert_allclose(actual: Any, desired: Any, *args: Any, **kwargs: Any) -> None:
        assert both_empty_or_none(actual, desired), "one of them is empty"
        assert_allclose(actual, desired, *args, **kwargs)

    vars(numpy)["allclose"], vars(testing)["assert_allclose"] = strict_allclose, strict_assert_allclose


def of_solution(peer: Peer, name: str) -> Any:
    """What `import solution` finds: the candidate's plain values, and stand-ins for all else, what it lacks included."""
    if name.startswith("__"):
        raise AttributeError(name)
    heard = peer.heard
    try:
        value = peer.ask("value", name)
    except NameError:
        return Remote(peer, name)
    if isinstance(value, (type, Remote)):
        peer.heard = heard
        return Remote(peer, name)
    return value


def run_test(peer: Peer, function: Any, fixtures: tuple[str, ...] = (), values: dict[str, Any] | None = None) -> None:
    """A test function. What the candidate changed of the arguments that it got is taken back: the next test has its own."""
    peer.undo.clear()
    with contextlib.ExitStack() as stack:
        function(**{name: stack.enter_context(FIXTURES[name]()) for name in fixtures}, **(values or {}))
    while peer.undo:
        peer.undo.pop()()


def parameters_of(function: Any) -> list[dict[str, Any]]:
    """The arguments of each run of a test function that pytest.mark.parametrize gave it; one run without any, otherwise."""
    runs: list[dict[str, Any]] = [{}]
    for mark in getattr(function, "pytestmark", ()):
        if mark.name == "parametrize":
            names, rows = [*mark.args, *mark.kwargs.values()][:2]
            names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
            rows = [getattr(row, "values", row) for row in rows]  # pytest.param
            rows = [(row,) if len(names) == 1 and type(row).__name__ != "ParameterSet" else row for row in rows]
            runs = [run | dict(zip(names, row, strict=True)) for row in rows for run in runs]
    return runs


class Patches:
    """pytest's monkeypatch, as far as attributes, items and the environment go."""

    def __enter__(self) -> "Patches":
        self.stack = contextlib.ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def setattr(self, target: Any, name: Any, *value: Any, raising: bool = True) -> None:
        if isinstance(target, str):  # "module.name", value
            module, _, attribute = target.rpartition(".")
            target, name, value = importlib.import_module(module), attribute, (name,)
        nothing = object()
        old = getattr(target, name, nothing)
        self.stack.callback(lambda: delattr(target, name) if old is nothing else setattr(target, name, old))
        setattr(target, name, *value)

    def setitem(self, target: Any, key: Any, value: Any) -> None:
        nothing = object()
        old = target.get(key, nothing)
        self.stack.callback(lambda: target.pop(key) if old is nothing else target.__setitem__(key, old))
        target[key] = value

    def setenv(self, name: str, value: str) -> None:
        self.setitem(os.environ, name, value)


class Captured:
    """pytest's capsys, as far as `readouterr` goes."""

    def __enter__(self) -> "Captured":
        self.streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self.streams

    def readouterr(self) -> Any:
        texts = [stream.getvalue() for stream in (sys.stdout, sys.stderr)]  # type: ignore[union-attr]
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        return namedtuple("CaptureResult", "out err")(*texts)


@contextlib.contextmanager
def temporary_folder() -> Any:
    yield pathlib.Path(tempfile.mkdtemp())


FIXTURES: dict[str, Any] = {"capsys": Captured, "tmp_path": temporary_folder, "monkeypatch": Patches}
