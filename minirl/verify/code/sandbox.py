"""Runs a Python program against tests, in the strongest confinement that is offered here. See docs/verifiers_code.md.

    with Sandbox() as sandbox:
        print(sandbox.describe())
        outcome = sandbox.run_tests(code, entry_point="f", cases=[([1], {}, 2)])

Promises: every process of a program is dead and reaped, and its folder gone, before its outcome is returned; an outcome
"error" is the machine's or the tests' fault, never the program's. Not thread-safe: one Sandbox per worker.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from minirl.verify.code import channel
from minirl.verify.code.forkserver import CLEAR, PROGRAM, REQUEST, TESTS, VERDICT_BYTES
from minirl.verify.pool.children import remove_folder, signal_name
from minirl.verify.pool.start import python_command
from minirl.verify.types import VerifierError

MODES = ("full", "shared files", "process")  # strongest first
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PREFIX = "minirl-sandbox-"
GRACE_SECONDS = 10.0  # the fork server starts and clears a job within this time; after it, it is taken for dead
ENDING_SECONDS = 0.2  # how long a process that said or closed everything may take to end


def in_memory(content: bytes) -> IO[bytes]:
    """A file without a name that is in memory only, to be read from its beginning."""
    file = os.fdopen(os.memfd_create("payload"), "w+b")
    try:
        file.write(content)
        file.seek(0)
    except OSError:
        file.close()
        raise
    return file


def pipe(stack: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    return stack.enter_context(os.fdopen(reader, "rb", 0)), stack.enter_context(os.fdopen(writer, "wb", 0))


def remove_stale_folders() -> None:
    """Removes what users of a sandbox left who were killed themselves: folders that nobody holds a lock on. Warns of
    what has to stay."""
    for path in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        with contextlib.suppress(OSError):  # somebody else's, in use, or gone by now
            fd = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.stat().st_uid == os.geteuid() and path.stat().st_mtime < time.time() - 60.0:
                    _remove(str(path))
            finally:
                os.close(fd)


def _remove(folder: str) -> None:
    if why := remove_folder(folder):
        warnings.warn(f"a sandbox's folder stays: {why}", RuntimeWarning, stacklevel=2)


class JobError(Exception):
    """The fork server could not start the processes of a job."""


class Sandbox:
    """One fork server. mode: None tries MODES in order; a name insists on it (VerifierError when it is refused)."""

    def __init__(self, mode: str | None = None, memory_bytes: int = 2 << 30, output_bytes: int = 8 << 20) -> None:
        if mode is not None and mode not in MODES:
            raise VerifierError(f"unknown sandbox mode {mode!r}: expected one of {', '.join(MODES)}")
        self.memory_bytes, self.output_bytes = memory_bytes, output_bytes
        if sys.platform != "linux":
            raise VerifierError(f"the sandbox needs Linux (prctl, namespaces, seccomp); this is {sys.platform}")
        self.refused: dict[str, str] = {}
        self._process: subprocess.Popen | None = None
        self.mode = ""
        for candidate in [mode] if mode else MODES:
            try:
                self._start(candidate)
                self._probe()
                self.mode = candidate
                break
            except (OSError, ValueError, VerifierError) as error:
                self.refused[candidate] = str(error)
                self.close()
        if not self.mode:
            raise VerifierError(f"no sandbox can be started here: {self.refused}")

    def describe(self) -> str:
        """Which confinement is in force, which is missing, and why."""
        yes = [name for name, present in self.in_force.items() if present]
        no = [name for name, present in self.in_force.items() if not present]
        text = f"sandbox mode {self.mode!r}: {'; '.join(yes)}"
        text += f". Missing: {'; '.join(no)}" if no else ""
        return text + "".join(f". Mode {name!r} was refused: {why}" for name, why in self.refused.items())

    def run_tests(
        self,
        code: str,
        *,
        entry_point: str | None,
        tests: str | None = None,
        cases: Sequence[tuple[Sequence[Any], dict[str, Any], Any]] = (),
        prelude: str = "",
        prompt: str = "",
        tolerance: float = 1e-6,
        wrapped: bool = False,
        seconds: float = 5.0,
    ) -> dict[str, Any]:
        """Runs a test script (tests) or calls (cases: arguments, keyword arguments, expected value).

        wrapped: an expected list of one value may stand for that value.
        """
        payload: dict[str, Any] = {"entry_point": entry_point, "prelude": prelude, "prompt": prompt, "tolerance": tolerance}
        if tests is not None:
            payload |= {"kind": "script", "tests": tests}
        else:
            peer = channel.Peer(None, {}, {})
            cases_sent = [[peer.encode(part) for part in case] for case in cases]
            payload |= {"kind": "calls", "cases": cases_sent, "wrapped": wrapped}

        def run(stack: contextlib.ExitStack) -> dict[str, Any]:
            judges, candidates = (stack.enter_context(sock) for sock in socket.socketpair())
            verdict, writer = pipe(stack)
            texts = [stack.enter_context(in_memory(json.dumps(text).encode())) for text in (payload, [prelude, code])]
            self._begin(TESTS, seconds, [judges, texts[0], writer, candidates, texts[1]])
            data, why = self._collect(verdict.fileno(), time.monotonic() + seconds, VERDICT_BYTES)
            if why == "timeout":
                return {"status": "timeout"}
            if not data:  # the tests ended it, or the machine did: a candidate cannot reach it
                return {"status": "error", "detail": f"the judge ended without a verdict: {self._ending(0)}"}
            outcome = json.loads(data)
            return outcome | {"ending": self._ending(1)} if outcome["status"] == "gone" else outcome

        return self._run(run)

    def run_program(self, code: str, stdin: str, seconds: float = 5.0) -> dict[str, Any]:
        """Runs a program with the given stdin. The outcome has its output (cut at output_bytes) and how it ended."""

        def run(stack: contextlib.ExitStack) -> dict[str, Any]:
            ours, theirs = (stack.enter_context(sock) for sock in socket.socketpair())
            output, writer = pipe(stack)
            texts = [stack.enter_context(in_memory(text)) for text in (stdin.encode(), json.dumps([code]).encode())]
            self._begin(PROGRAM, seconds, [texts[0], writer, theirs, texts[1]])
            data, why = self._collect(output.fileno(), time.monotonic() + seconds, self.output_bytes)
            outcome = {"status": why, "output": data.decode("utf-8", "replace")}
            if why == "end":
                outcome["ending"] = self._ending(0)
                self._clear()
                ours.settimeout(0.0)
                with contextlib.suppress(channel.Gone):
                    message = channel.Peer(ours, {}, {}).receive()
                    if message[0] == "!" and [type(part) for part in message] == [str] * 3:
                        outcome |= {"status": "raised", "label": message[1], "detail": message[2]}
            return outcome

        return self._run(run)

    def close(self) -> None:
        """Ends the fork server and everything it started."""
        if self._process is None:
            return
        self._socket.close()  # the server kills its children when it sees this
        try:
            self._process.wait(timeout=3.0)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._process = None
        os.close(self._lock)
        _remove(self._base)

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, mode: str) -> None:
        remove_stale_folders()
        self._base = tempfile.mkdtemp(prefix=PREFIX)
        os.chmod(self._base, 0o711)
        self._lock = os.open(self._base, os.O_RDONLY)  # held for as long as the folder is in use
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._socket, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                [*python_command("minirl.verify.code.forkserver", "-s"), str(theirs.fileno()), mode, self._base],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            theirs.close()
            self._socket.settimeout(60.0)
            try:
                hello = self._receive()
                self.in_force, self._paths = hello["in force"], hello["paths"]
                if mode == "full":
                    os.rmdir(self._base)  # the programs' folders are in memory, in the server's own mounts
            except OSError as error:
                self._process.wait(timeout=5.0)
                errors.seek(0)
                lines = errors.read().decode(errors="replace").strip().splitlines()
                raise VerifierError(lines[-1] if lines else f"the fork server did not start: {error}") from error

    def _probe(self) -> None:
        """Runs a program; VerifierError when it does not do what it should, or (mode "full") lacks Python's modules."""
        code = "import os\nprint(sum(map(int, input().split())))\n"
        code += f"for path, count in {self._paths!r}.items():\n"
        code += "    if not os.path.isdir(path) or len(os.listdir(path)) != count: print(path)\n"
        outcome = self.run_program(
            code if self.in_force["the whole standard library"] else code.partition("for")[0], "1 2", 10.0
        )
        first, *hidden = outcome.get("output", "").splitlines() or [""]
        if first != "3":
            raise VerifierError(f"a program that adds two numbers did not run: {outcome}")
        if hidden:
            raise VerifierError(f"programs would not see Python's modules in {', '.join(hidden)}")

    def _run(self, run: Callable[[contextlib.ExitStack], dict[str, Any]]) -> dict[str, Any]:
        """What `run` found, after everything that it started has been cleared away."""
        if self._process is None:
            self._start(self.mode)
        start = time.monotonic()
        self._ended: dict[int, str] = {}
        self._open = False
        try:
            with contextlib.ExitStack() as stack:
                outcome = run(stack)
                self._clear()
        except JobError as error:  # no child, no descriptor: the machine's fault, not the program's
            return {"status": "error", "detail": f"the sandbox could not start a program: {error}"}
        except TimeoutError:  # the program left so much behind that it cannot be cleared away in time
            self.close()
            return {"status": "timeout"}
        except (OSError, ValueError) as error:
            self.close()  # the next run starts a new one
            return {"status": "error", "detail": f"the fork server was lost: {type(error).__name__}: {error}"}
        return outcome | {"seconds": time.monotonic() - start}

    def _begin(self, kind: int, seconds: float, files: Sequence[Any]) -> None:
        """Starts the processes of a job with these descriptors, which are closed here. Returns when they are confined."""
        self._socket.settimeout(GRACE_SECONDS)
        request = REQUEST.pack(kind, seconds, self.memory_bytes)
        socket.send_fds(self._socket, [request], [file.fileno() for file in files])
        self._open = True
        for file in files:
            file.close()
        try:
            message = self._receive()
        except TimeoutError:
            raise ConnectionError("it did not start a program in time") from None
        if "ready" not in message:
            self._open = False
            raise JobError(message["failed"])

    def _collect(self, fd: int, deadline: float, limit: int) -> tuple[bytes, str]:
        """What comes from fd, and why reading ended: "end" (end of file, or process 0 is gone), "timeout", "output limit"."""
        data = bytearray()
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.register(self._socket, select.POLLIN)
        os.set_blocking(fd, False)
        while (left := deadline - time.monotonic()) > 0:
            for number, _ in poller.poll(0 if 0 in self._ended else left * 1000 + 1):
                if number != fd:
                    self._note(self._receive())
            try:
                while part := os.read(fd, 1 << 16):
                    data += part
                    if len(data) > limit:
                        return bytes(data[:limit]), "output limit"
                return bytes(data), "end"
            except BlockingIOError:
                if 0 in self._ended:
                    return bytes(data), "end"
        return bytes(data), "timeout"

    def _note(self, message: dict[str, Any]) -> None:
        status = message["status"]
        self._ended[message["ended"]] = f"exit code {status}" if message["exited"] else signal_name(status)

    def _ending(self, index: int) -> str:
        """How a process of the job ended, if it did within a moment: "exit code 3", "SIGSEGV", or ""."""
        end = time.monotonic() + ENDING_SECONDS
        while index not in self._ended and (left := end - time.monotonic()) > 0:
            if select.select([self._socket], [], [], left)[0]:
                self._note(self._receive())
        return self._ended.get(index, "")

    def _clear(self) -> None:
        """Ends the job: every process of it is dead and reaped, and its folder gone, when this returns."""
        if not self._open:
            return
        self._socket.settimeout(GRACE_SECONDS)
        self._socket.sendall(REQUEST.pack(CLEAR, 0.0, 0))
        while "cleared" not in (message := self._receive()):
            pass
        self._open = False
        if why := message["left"]:
            warnings.warn(f"a program's folder stays for now: {why}", RuntimeWarning, stacklevel=2)

    def _receive(self) -> dict[str, Any]:
        def exactly(count: int) -> bytes:
            data = bytearray()
            while len(data) < count:
                part = self._socket.recv(min(count - len(data), 1 << 20))
                if not part:
                    raise ConnectionResetError("the fork server ended")
                data += part
            return bytes(data)

        return json.loads(exactly(int.from_bytes(exactly(4), "little")))
