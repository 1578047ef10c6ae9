"""The process that grades: started by VerifierPool as `python -m minirl.verify.worker FD CELL_FD PARENT_PID`.

It promises: it imports the verifier and nothing of the trainer (no torch); it tests its grader before it takes work; it
says in a shared cell which item of a batch it is at and since when; it dies with its parent. Deadlines are the pool's.
"""

import ctypes
import mmap
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any

from minirl.verify import ERROR, Verdict, VerifierError, load_verifier

CELL = struct.Struct("<qd")  # index of the current item in its batch (-1: idle), time.monotonic() of its start
LENGTH = struct.Struct("<Q")
FLUSH_SECONDS = 0.005  # results wait at most this long, or until an item that takes longer ends
MATH_MEMORY = 4 << 30  # bytes of address space: a tower of powers must not take the memory of the node
PR_SET_PDEATHSIG = 1


def write_message(sock: socket.socket, message: Any) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    sock.sendall(LENGTH.pack(len(data)) + data)


def read_message(sock: socket.socket) -> Any:
    """The next message, or None when the other side has gone."""
    head = _read_exactly(sock, LENGTH.size)
    body = head and _read_exactly(sock, LENGTH.unpack(head)[0])
    return pickle.loads(body) if body else None


def _read_exactly(sock: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = sock.recv(min(count, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel to kill this process when the thread that started it ends; elsewhere than on Linux: a watcher."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:

        def watch() -> None:
            while os.getppid() == parent_pid:
                time.sleep(0.5)
            os.killpg(0, signal.SIGKILL)

        threading.Thread(target=watch, daemon=True).start()
    if os.getppid() != parent_pid:  # it went before we asked
        os._exit(1)


def prepare(name: str, options: dict[str, Any]) -> Any:
    """The verifier, loaded and tested. Raises VerifierError with the reason when it must not be used."""
    if name == "math":
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (MATH_MEMORY, hard))
    verifier = load_verifier(name, **options)
    self_test = getattr(verifier, "self_test", None)
    if self_test is not None and self_test() is False:
        raise VerifierError(f"the self-test of verifier {name!r} failed in this worker: it cannot be trusted here")
    return verifier


def grade_one(verifier: Any, name: str, problem: Any, response: str, rollout: Any) -> Verdict:
    """One verdict. An exception of the verifier is status "error" with its text: our fault, never a 0."""
    start = time.monotonic()
    try:
        if getattr(verifier, "wants_rollout", False):
            verdict = verifier(problem, response, rollout)
        else:
            verdict = verifier(problem, response)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"it returned {type(verdict).__name__}, not a Verdict")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any fault of the verifier becomes a counted "error" verdict
        text = f"verifier {name} failed on problem {problem.id}: {type(error).__name__}: {error}"
        return Verdict(ERROR, detail=text[:2000], seconds=time.monotonic() - start)
    return verdict


def serve(sock: socket.socket, cell: mmap.mmap) -> None:
    first = read_message(sock)
    if first is None:
        return
    name, options = first
    try:
        verifier = prepare(name, options)
    except Exception as error:  # noqa: BLE001 - the pool raises it with this text, and nothing is graded
        text = str(error) if isinstance(error, VerifierError) else f"{type(error).__name__}: {error}"
        write_message(sock, ("refused", f"verifier {name!r} refuses to work: {text}"))
        return
    write_message(sock, ("ready", os.getpid()))
    while (batch := read_message(sock)) is not None:
        done: list[tuple[int, Verdict]] = []
        flushed = time.monotonic()
        for index, (problem, response, rollout) in enumerate(batch):
            CELL.pack_into(cell, 0, index, time.monotonic())
            done.append((index, grade_one(verifier, name, problem, response, rollout)))
            if time.monotonic() - flushed > FLUSH_SECONDS and index < len(batch) - 1:
                write_message(sock, ("done", done))
                done, flushed = [], time.monotonic()
        CELL.pack_into(cell, 0, -1, 0.0)
        write_message(sock, ("done", done))


def main() -> None:
    sock_fd, cell_fd, parent_pid = (int(argument) for argument in sys.argv[1:4])
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    with socket.socket(fileno=sock_fd) as sock, mmap.mmap(cell_fd, mmap.PAGESIZE) as cell:
        try:
            serve(sock, cell)
        except (BrokenPipeError, ConnectionResetError):
            return  # the parent closed the pool while a result was on its way


if __name__ == "__main__":
    main()
