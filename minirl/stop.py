"""Ends a run between two steps: a signal or a time limit is remembered, and all ranks act on it together."""

import ctypes
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from minirl.config import duration
from minirl.distributed import Ranks

ECHO = 1.0  # seconds: a launcher may pass on a Ctrl-C that the terminal has sent to everyone
PR_SET_PDEATHSIG = 1


class Stop:
    """While it is entered, SIGTERM and SIGINT only ask for an end; a second SIGINT ends the process at once.

    Workers, sandboxes and the engine end with the process: they are tied to it by the kernel.
    """

    def __init__(self, after: str | None) -> None:
        """after: a time limit of this process, such as 2h50m, counted from now."""
        self.deadline = time.monotonic() + duration(after) if after else None
        self.asked_at: float | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self.handle) for number in (signal.SIGTERM, signal.SIGINT)}
        if sys.platform == "linux" and {"LOCAL_RANK", "ACCELERATE_MIXED_PRECISION"} & os.environ.keys():
            # A launcher that is killed would leave its ranks behind.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remembers the signal."""
        now = time.monotonic()
        if self.asked_at is None:
            self.asked_at = now
            text = f"{signal.Signals(number).name}: the run ends after this step; Ctrl-C again ends it at once\n"
            os.write(2, text.encode())
        elif number == signal.SIGINT and now - self.asked_at > ECHO:
            os.write(2, b"stopped at once\n")
            os._exit(130)

    def asked(self, ranks: Ranks) -> bool:
        """Whether any rank was asked to end, the same on all of them."""
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return any(ranks.gather([self.asked_at is not None or late]))
