"""The process that grades: started by VerifierPool with FD CELL_FD PARENT_PID (start.py).

It promises: it imports the verifier and nothing of the trainer (no torch); it tests its grader before it takes work; it
says in a shared cell which item of a batch it is at and since when; it dies with its parent. Deadlines are the pool's.
"""

import contextlib
import ctypes
import mmap
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from minirl.verify.pool.children import descendants_of, session_of, signal_name
from minirl.verify.pool.start import python_command
from minirl.verify.registry import load_verifier
from minirl.verify.types import ERROR, Verdict, VerifierError

# The cell: two doubles, the index of the current item in its batch (-1: none) and time.monotonic() of its start. Each
# is written in one piece (struct's pack_into is not: it clears the bytes first), the start before the index.
INDEX, START = 0, 1
LENGTH = struct.Struct("<Q")
FLUSH_SECONDS = 0.005  # results wait at most this long, or until an item that takes longer ends
MEMORY = 4 << 30  # bytes: a tower of powers must not take the memory of the node
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
START_SECONDS = 120.0  # importing sympy on a busy machine
TALK_SECONDS = 20.0  # a message that is under way for longer means a stopped worker


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


class Worker:
    """The pool's side: one process, its socket, and the cell in which it says what it is doing."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as cell:
            cell.write(bytes(mmap.PAGESIZE))  # not sparse: on a full disk that would be a SIGBUS later
            cell.flush()
            self.cell = memoryview(mmap.mmap(cell.fileno(), mmap.PAGESIZE)).cast("d")
            self.cell[INDEX] = -1
            environment = os.environ | {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
            environment |= {"MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            numbers = [str(number) for number in (theirs.fileno(), cell.fileno(), os.getpid())]
            self.process = subprocess.Popen(
                [*python_command("minirl.verify.pool.worker"), *numbers],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__ if sys.__stderr__ is not None else subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), cell.fileno()),
                env=environment,
                start_new_session=True,
            )
        self.socket = ours
        self.socket.settimeout(TALK_SECONDS)
        self.started = time.monotonic()
        self.ready = False
        self.batch: list[Any | None] = []
        self.left = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is dead already, which reading from it will tell
            write_message(self.socket, (name, options))

    def send(self, batch: list[Any]) -> None:
        self.batch, self.left = list(batch), len(batch)
        self.cell[START] = time.monotonic()
        self.cell[INDEX] = 0
        write_message(self.socket, [(item.problem, item.response, item.rollout) for item in batch])

    def time_left(self, now: float) -> float:
        """Seconds until this worker is late; negative when it is late."""
        if not self.ready:
            return self.started + START_SECONDS - now
        item, start = self.current()
        return start + item.deadline - now if item is not None else TALK_SECONDS

    def current(self) -> tuple[Any, float]:
        """The item that the worker is at, None when there is none, and since when."""
        index, start = int(self.cell[INDEX]), self.cell[START]
        return (self.batch[index] if 0 <= index < len(self.batch) else None), start

    def stop(self, gone: bool = False) -> str:
        """Kills the whole process group, reaps it, and says how the process ended. gone: its socket is closed."""
        try:
            code = self.process.wait(timeout=1.0 if gone else 0.0)  # the socket closes a little before the exit code is known
        except subprocess.TimeoutExpired:
            code = None
        # Processes with a session of their own: a sandbox's server, which cleans up, or what a reward of the user's started.
        others = [pid for pid in descendants_of(self.process.pid) if session_of(pid) != self.process.pid]
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is gone (macOS: PermissionError)
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
        self.process.wait()
        self.socket.close()
        if code is None:
            return "killed by the pool"
        return f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel to kill this process when the thread that started it ends; elsewhere than on Linux: a watcher."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # daemons of a reward stay under it, where the pool finds them
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
    # Address space where the code is ours; only data for others, whose libraries may map much more than they use. Either
    # is a soft limit, which a reward that needs more may raise, and the sandbox's programs have limits of their own.
    kind = resource.RLIMIT_AS if name in ("math", "rows", "code") else resource.RLIMIT_DATA
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard), hard))
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


def serve(sock: socket.socket, cell: "memoryview[float]") -> None:
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
            cell[START] = time.monotonic()
            cell[INDEX] = index
            done.append((index, grade_one(verifier, name, problem, response, rollout)))
            if time.monotonic() - flushed > FLUSH_SECONDS and index < len(batch) - 1:
                write_message(sock, ("done", done))
                done, flushed = [], time.monotonic()
        cell[INDEX] = -1
        write_message(sock, ("done", done))


def main() -> None:
    sock_fd, cell_fd, parent_pid = (int(argument) for argument in sys.argv[1:4])
    die_with_parent(parent_pid)
    sys.path.append(os.getcwd())  # for rewards that import their neighbours; last, so that nothing of Python's is hidden
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    with socket.socket(fileno=sock_fd) as sock:
        try:
            serve(sock, memoryview(mmap.mmap(cell_fd, mmap.PAGESIZE)).cast("d"))
        except (BrokenPipeError, ConnectionResetError):
            return  # the parent closed the pool while a result was on its way
