"""Stops a run between two steps, after a signal or a time limit, on all ranks together."""

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

ECHO = 1.0  # seconds in which a second SIGINT may be the launcher's copy of the same Ctrl-C
PR_SET_PDEATHSIG = 1


class Stop:
    """A context in which SIGTERM and SIGINT request a stop; a second SIGINT ends the process at once.

    A thread receives them, since Python's handlers run in the main thread, which may hang in a native call such as a
    collective. Verifier workers and sandboxes end with the process, by the kernel's parent death signal.
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
            # So that ranks do not outlive a launcher that is killed.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.before:
            return
        for number, handler in self.before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self.fd)
        self.writer.shutdown(socket.SHUT_RDWR)  # ends the thread, even if a child process has the socket too
        self.writer.close()
        self.thread.join()
        self.reader.close()

    def listen(self) -> None:
        """Handles each signal; its number is a byte that Python's C handler writes to the socket."""
        while numbers := self.reader.recv(64):
            for number in numbers:
                self.take(number)

    def take(self, number: int) -> None:
        """Records the first signal; ends the process on a second SIGINT."""
        now = time.perf_counter()
        if number in (signal.SIGTERM, signal.SIGINT) and self.asked_at is None:
            self.asked_at = now
            text = f"{signal.Signals(number).name}: the run ends after this step; Ctrl-C then ends it at once\n"
            with contextlib.suppress(OSError):  # its reader may have ended by the same Ctrl-C
                os.write(2, text.encode())
        elif number == signal.SIGINT and self.asked_at is not None and now - self.asked_at > ECHO:
            with contextlib.suppress(OSError):
                os.write(2, b"stopped at once\n")
            os._exit(130)

    def asked(self, ranks: Ranks, begun: bool = True) -> bool:
        """Whether any rank was asked to stop, the same on all of them.

        begun: whether this process has done a step. Before that the time limit does not count: with one shorter than the
        start-up, a run would never make progress however often it is resumed.
        """
        late = begun and self.deadline is not None and time.perf_counter() >= self.deadline
        return any(ranks.gather([self.asked_at is not None or late]))
