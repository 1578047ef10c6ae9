"""What runs in the candidate's process: the code, and the answers to the judge's questions; or a stdin/stdout program.

Nothing here is trusted: the code can change all of it. Standard library only; nothing is imported once the sandbox has
closed.
"""

import atexit
import builtins
import contextlib
import io
import os
import sys
import threading
import types
from typing import Any

from minirl.verify.code.channel import OPERATIONS, Gone, Peer, describe
from minirl.verify.code.remote import Remote

PRINTED_BYTES = 1 << 20  # of what one call prints, kept for tests that look at it; the rest is dropped


class Printed(io.RawIOBase):
    """What the code printed since the last `take`."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1

    def write(self, data: Any) -> int:
        self.data += data[: PRINTED_BYTES - len(self.data)]
        return len(data)

    def take(self) -> str:
        text = self.data.decode("utf-8", "replace")
        self.data.clear()
        return text


class JudgesInput(io.TextIOWrapper):
    """The judge's stdin, which tests may have replaced. Empty until the code is loaded: then the judge begins to listen."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(os.fdopen(0, "rb", closefd=False), encoding="utf-8")
        self.mode = "r"  # type: ignore[misc]
        self.peer, self.loaded = peer, False

    def ask(self, name: str, *arguments: Any) -> str:
        if not self.loaded:
            return ""
        return str(Remote(self.peer, name)(*arguments))

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        return self.ask("readline", size)

    def read(self, size: int | None = -1) -> str:
        return self.ask("read", size)

    def input(self, prompt: object = "", /) -> str:
        if not self.loaded:
            raise EOFError("EOF when reading a line")
        return self.ask("input", str(prompt))


def run_candidate(sock: Any, prelude: str, code: str) -> None:
    """Compiles and runs the code, then answers the judge until it is gone."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    peer = Peer(sock, module.__dict__, OPERATIONS)
    printed, entered = Printed(), JudgesInput(peer)
    out = io.TextIOWrapper(printed, encoding="utf-8", errors="surrogateescape", write_through=True)  # type: ignore[type-var]
    out.mode = "w"  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = out  # type: ignore[misc,assignment]
    sys.stdin = sys.__stdin__ = entered  # type: ignore[misc,assignment]
    builtins.input = entered.input
    peer.printed = printed.take
    try:
        exec(compile(prelude, "<prompt>", "exec", dont_inherit=True), module.__dict__)
        exec(compile(code, "<solution>", "exec", dont_inherit=True), module.__dict__)
        printed.take()
        peer.send(["=", True])
    except BaseException as error:  # noqa: BLE001 - whatever the candidate raises is its answer
        peer.send(["!", *describe(error)])
        return
    entered.loaded = True
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
