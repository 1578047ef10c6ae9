"""Stops a run between two steps: after a signal or a time limit, on all ranks together."""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from minirl.config.checks import duration
from minirl.utils.distributed import Ranks

ECHO = 1.0  # seconds: a launcher may pass on a Ctrl-C that the terminal has sent to everyone
PR_SET_PDEATHSIG = 1


class Stop:
    """While it is entered, SIGTERM and SIGINT only ask for an end; a second SIGINT ends the process at once.

    A thread learns of them: Python's own handlers wait for the main thread, which may be in a native call that does not end,
    such as a collective with a rank that hangs. Workers, sandboxes and the engine end with the process: they are tied to it by
    the kernel.
    """

    def __init__(self, after: str | None, start: float) -> None:
        """after: a time limit of this process, such as 2h50m, counted from `start`, a time.perf_counter()."""
        self.deadline = start + duration(after) if after else None
        self.asked_at: float | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self.reader, self.writer = socket.socketpair()
            self.writer.setblocking(False)
            self.thread = threading.Thread(target=self.listen, name="signals", daemon=True)
            self.thread.start()
            self.fd = signal.set_wakeup_fd(self.writer.fileno(), warn_on_full_buffer=False)
            self.before = {n: signal.signal(n, lambda *_: None) for n in (signal.SIGTERM, signal.SIGINT)}
        if sys.platform == "linux" and {"LOCAL_RANK", "ACCELERATE_MIXED_PRECISION"} & os.environ.keys():
            # A launcher that is killed would leave its ranks behind.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.before:
            return
        for number, handler in self.before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self.fd)
        self.writer.shutdown(socket.SHUT_RDWR)  # which ends the thread, also where a child has the socket too
        self.writer.close()
        self.thread.join()
        self.reader.close()

    def listen(self) -> None:
        """Takes the number of each signal, a byte that Python's C code writes as soon as it arrives."""
        while numbers := self.reader.recv(64):
            for number in numbers:
                self.take(number)

    def take(self, number: int) -> None:
        """Remembers a signal; ends the process where it is a second SIGINT."""
        now = time.perf_counter()
        if number in (signal.SIGTERM, signal.SIGINT) and self.asked_at is None:
            self.asked_at = now
            text = f"{signal.Signals(number).name}: the run ends after this step; Ctrl-C again ends it at once\n"
            with contextlib.suppress(OSError):  # who read it may have ended by the same Ctrl-C
                os.write(2, text.encode())
        elif number == signal.SIGINT and self.asked_at is not None and now - self.asked_at > ECHO:
            with contextlib.suppress(OSError):
                os.write(2, b"stopped at once\n")
            os._exit(130)

    def asked(self, ranks: Ranks, begun: bool = True) -> bool:
        """Whether any rank was asked to end, the same on all of them.

        begun: whether this process has taken a step; before that a time limit does not count, or one that is shorter than
        loading would let a run that is started again and again get nowhere.
        """
        late = begun and self.deadline is not None and time.perf_counter() >= self.deadline
        return any(ranks.gather([self.asked_at is not None or late]))
