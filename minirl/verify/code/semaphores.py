"""Semaphores for multiprocessing that need no file: in the sandbox there is no /dev/shm, where the C library keeps them.

A program's processes are forks, which share anonymous memory; an unnamed POSIX semaphore in it does what
`_multiprocessing.SemLock` does (CPython, Modules/_multiprocessing/semaphore.c), so that locks, queues and pools work.
"""

import ctypes
import errno
import math
import mmap
import threading
import time
from typing import Any

RECURSIVE = 0  # the kind of a lock that its holder may take again
_BYTES = 64  # sem_t has 32


class SemLock:
    SEM_VALUE_MAX = 2**31 - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        self.kind, self.maxvalue, self.name = kind, maxvalue, None if unlink else name
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._memory = mmap.mmap(-1, _BYTES)
        self.handle = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._semaphore = ctypes.c_void_p(self.handle)
        self._libc.sem_init(self._semaphore, 1, value)
        self._after_fork()

    def _after_fork(self) -> None:
        self._held, self._holder = 0, 0

    def _is_mine(self) -> bool:
        return self._held > 0 and self._holder == threading.get_ident()

    def _count(self) -> int:
        return self._held

    def _get_value(self) -> int:
        value = ctypes.c_int()
        self._libc.sem_getvalue(self._semaphore, ctypes.byref(value))
        return value.value

    def _is_zero(self) -> bool:
        return self._get_value() == 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        if self.kind == RECURSIVE and self._is_mine():
            self._held += 1
            return True
        if not self._take(block, timeout):
            return False
        self._held, self._holder = self._held + 1, threading.get_ident()
        return True

    def _take(self, block: bool, timeout: float | None) -> bool:
        if self._libc.sem_trywait(self._semaphore) == 0:
            return True
        if not block:
            return False
        until = None
        if timeout is not None:
            fraction, whole = math.modf(time.time() + max(0.0, timeout))
            until = (ctypes.c_long * 2)(int(whole), int(fraction * 1e9))
        while True:
            result = self._libc.sem_timedwait(self._semaphore, until) if until else self._libc.sem_wait(self._semaphore)
            if result == 0:
                return True
            if ctypes.get_errno() == errno.ETIMEDOUT:
                return False

    def release(self) -> None:
        if self.kind == RECURSIVE:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._held > 1:
                self._held -= 1
                return
        elif self._get_value() >= self.maxvalue:
            raise ValueError("semaphore or lock released too many times")
        self._libc.sem_post(self._semaphore)
        self._held -= 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


def install() -> None:
    """Before multiprocessing.synchronize is imported, which takes the names from there. Shared values go to the temporary
    folder, as on systems without /dev/shm."""
    import _multiprocessing
    import multiprocessing.heap

    multiprocessing.heap.Arena._dir_candidates = []  # type: ignore[attr-defined]
    _multiprocessing.SemLock = SemLock  # type: ignore[misc,assignment]
    _multiprocessing.sem_unlink = lambda name: None  # type: ignore[attr-defined]
