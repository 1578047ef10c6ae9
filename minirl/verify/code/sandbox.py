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
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from minirl.verify.code import channel
from minirl.verify.pool.children import remove_folder
from minirl.verify.types import VerifierError

MODES = ("full", "shared files", "process")  # strongest first
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
START = "import sys; sys.path.insert(0, sys.argv[4]); from minirl.verify.code import forkserver as f; del sys.path[0]; f.main()"
PREFIX = "minirl-sandbox-"
GRACE_SECONDS = 10.0  # the fork server answers within a job's limit; after this it is taken for dead


def open_in_memory() -> IO[bytes]:
    """A file without a name that is in memory only."""
    return os.fdopen(os.memfd_create("payload"), "w+b")


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
        seconds: float = 5.0,
    ) -> dict[str, Any]:
        """Runs a test script (tests) or calls (cases: arguments, keyword arguments, expected value)."""
        payload: dict[str, Any] = {"entry_point": entry_point, "prelude": prelude, "prompt": prompt, "tolerance": tolerance}
        if tests is not None:
            payload |= {"kind": "script", "tests": tests}
        else:
            peer = channel.Peer(None, {}, {})
            payload |= {"kind": "calls", "cases": [[peer.encode(part) for part in case] for case in cases]}
        return self._run({"kind": "tests", "code": code, "prelude": prelude}, json.dumps(payload).encode(), seconds)

    def run_program(self, code: str, stdin: str, seconds: float = 5.0) -> dict[str, Any]:
        """Runs a program with the given stdin. The outcome has its output (cut at output_bytes) and how it ended."""
        return self._run({"kind": "program", "code": code}, stdin.encode(), seconds)

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
        root = str(Path(__file__).parents[3])
        with theirs, tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-c", START, str(theirs.fileno()), mode, self._base, root],
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
                self.in_force = self._receive()["in force"]
                if mode == "full":
                    os.rmdir(self._base)  # the programs' folders are in memory, in the server's own mounts
            except OSError as error:
                self._process.wait(timeout=5.0)
                errors.seek(0)
                lines = errors.read().decode(errors="replace").strip().splitlines()
                raise VerifierError(lines[-1] if lines else f"the fork server did not start: {error}") from error

    def _probe(self) -> None:
        outcome = self.run_program("print(sum(map(int, input().split())))", "1 2", 10.0)
        if outcome.get("output") != "3\n":
            raise VerifierError(f"a program that adds two numbers did not run: {outcome}")

    def _run(self, job: dict[str, Any], payload: bytes, seconds: float) -> dict[str, Any]:
        if self._process is None:
            self._start(self.mode)
        job |= {"seconds": seconds, "memory bytes": self.memory_bytes, "output bytes": self.output_bytes}
        body = json.dumps(job).encode()
        try:
            with open_in_memory() as file:
                file.write(payload)
                file.flush()
                file.seek(0)
                socket.send_fds(self._socket, [len(body).to_bytes(4, "little")], [file.fileno()])
                self._socket.sendall(body)
            self._socket.settimeout(seconds + GRACE_SECONDS)
            outcome = self._receive()
        except TimeoutError:  # the program left so much behind that it cannot be cleared away in time
            self.close()
            return {"status": "timeout"}
        except (OSError, ValueError) as error:
            self.close()  # the next run starts a new one
            return {"status": "error", "detail": f"the fork server was lost: {type(error).__name__}: {error}"}
        if why := outcome.pop("left", ""):
            warnings.warn(f"a program's folder stays for now: {why}", RuntimeWarning, stacklevel=2)
        return outcome

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
