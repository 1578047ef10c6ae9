"""Ctrl-C ends a command with one line and exit code 130, at whatever moment it comes."""

import os
import sys
from contextlib import suppress
from typing import Any


def say_interrupts() -> None:
    """From now on an interrupt that nobody handles is one line, not a traceback: also one in an import or in a finaliser."""
    sys.excepthook = uncaught
    sys.unraisablehook = unraisable


def uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """The excepthook: `end` for an interrupt, or for an error that it led to."""
    if any(isinstance(one, KeyboardInterrupt) for one in chain(error)):
        end()
    sys.__excepthook__(kind, error, trace)


def unraisable(found: Any) -> None:
    """The unraisablehook, for exceptions in finalisers and callbacks, after which Python would go on."""
    if found.exc_type is KeyboardInterrupt:
        end()
    sys.__unraisablehook__(found)


def chain(error: BaseException | None) -> list[BaseException]:
    """An error, what it was raised from or while handling, and so on."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def end() -> None:
    """Ends the process at once: what holds threads or children has been left by now, and they end with it."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    program = spec.name.removesuffix(".__main__") if spec else os.path.basename(sys.argv[0])
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a reader that ended by the same Ctrl-C
            stream.flush()
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):
            os.write(2, f"\n{program}: interrupted; start the same command again\n".encode())
    os._exit(130)
