"""A small warm Python process that forks fresh confined children: the sandbox's engine.

Started by minirl/verify/code/sandbox.py with SOCKET_FD MODE BASE. Every candidate and every judge descends from this
process, so it never sees what one of them must not know of another: a job arrives as three numbers and some descriptors.
What the descriptors hold (source, tests, stdin) is read by the child that they are for; what the child writes (verdict,
output, answers) is read by the caller at their other ends. All that this process learns of a program is how it ended.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from minirl.verify.code import candidate, channel, confine, harness, semaphores, syscalls
from minirl.verify.pool.children import children_of, folders_of_python, remove_folder, tasks_of_this_user, works

# Imported once here, so that no program pays for them.
WARM = "bisect collections copy datetime decimal fractions functools heapq io itertools math operator random re statistics"
WARM += " string sys threading time typing types dataclasses enum array cmath queue hashlib"
TMP_BYTES = 64 << 20
FILE_BYTES = 16 << 20
PROCESSES = 32
VERDICT_BYTES = 1 << 16
DEVICES = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"]
REQUEST = struct.Struct("<BdQ")  # kind, seconds, bytes of memory; the descriptors come with it
TESTS, PROGRAM, CLEAR = 1, 2, 3


class Server:
    def __init__(self, sock: socket.socket, mode: str, base: str) -> None:
        self.sock, self.mode, self.base = sock, mode, base
        self.children: dict[int, int] = {}  # process, and where it says that it is confined
        self.namespaces = mode in ("full", "shared files")
        other_user = 61184 + os.getpid() % 4096  # a number without processes and without a name
        tasks = tasks_of_this_user()
        self.shown = folders_of_python()
        self.covered = [path for path in self.shown if mode == "full" and f"{path}/".startswith("/tmp/")]
        self.paths = {path: len(os.listdir(path)) for path in sys.path if os.path.isdir(path) and self.is_shown(path)}
        for name in WARM.split():
            importlib.import_module(name)
        semaphores.install()
        sys.set_int_max_str_digits(0)
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self.namespaces:
            self.enter_namespaces()
        # The server may leave no child behind, so without namespaces it gets a signal on which it kills them.
        confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL if self.namespaces else signal.SIGTERM)
        confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
        confine.prctl(confine.PR_SET_DUMPABLE, 0)
        self.uid = other_user if works(lambda: confine.drop_rights(other_user)) else None
        self.processes = PROCESSES if self.uid is not None else PROCESSES + tasks
        self.filter = self.system_call_filter()
        self.locked = self.mode != "full" and works(lambda: confine.landlock(self.shown, [self.base]))
        self.readable = works(self.read_library)
        self.poller = select.poll()
        self.woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for fd in (self.sock.fileno(), self.woken):
            self.poller.register(fd, select.POLLIN)
        gc.collect()
        gc.freeze()

    def is_shown(self, path: str) -> bool:
        return any(f"{path}/".startswith(f"{top}/") for top in self.shown)

    def enter_namespaces(self) -> None:
        """Goes on in a child that is the first process of its namespace: when that ends, everything under it ends."""
        kinds = confine.CLONE_NEWNET | confine.CLONE_NEWIPC | confine.CLONE_NEWUTS | confine.CLONE_NEWNS
        try:
            confine.unshare(kinds | confine.CLONE_NEWPID)
        except PermissionError:  # not root, or root of a container: a user namespace gives the right to do it
            confine.own_user_namespace()
            confine.unshare(kinds | confine.CLONE_NEWPID)
        if pid := os.fork():
            self.sock.close()
            signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
            confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGTERM)
            status = os.waitpid(pid, 0)[1]
            remove_folder(self.base)
            os._exit(os.waitstatus_to_exitcode(status) % 256)
        self.own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.own_mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        if self.mode == "full":
            devices = [path for path in DEVICES if os.path.exists(path)]
            confine.hide_file_system(self.base, self.shown, self.covered, devices)

    def system_call_filter(self) -> bytes:
        """The filter for every program, or b"" where this system does not have it."""
        try:
            program = syscalls.system_call_filter(not self.namespaces, self.mode != "full")
        except OSError:
            return b""
        return program if works(lambda: confine.install_filter(program)) else b""

    def read_library(self) -> None:
        """Raises OSError when a program cannot import what is not warm (Python in a folder that only root may read)."""
        if self.uid is not None:
            os.setresuid(self.uid, self.uid, self.uid)
        os.stat(os.path.dirname(importlib.__file__))

    def in_force(self) -> dict[str, bool]:
        return {
            "own session and process group, killed whole": True,
            "resource limits": True,
            "empty environment, no inherited descriptors": True,
            "no rights, no way to gain any": True,
            "a user of its own": self.uid is not None,
            "system call filter": bool(self.filter),
            "process namespace": self.namespaces,
            "no network": self.namespaces or bool(self.filter),
            "file system hidden and read-only": self.mode == "full" or self.locked,
            "other processes cannot be read": self.uid is not None or self.namespaces or self.locked,
            "the whole standard library": self.readable,
        }

    def serve(self) -> None:
        send(self.sock, {"in force": self.in_force(), "paths": self.paths})
        while (request := receive_request(self.sock)) is not None:
            kind, seconds, memory, fds = request
            folder, failed = "/tmp", ""
            try:
                if self.mode != "full":
                    folder = tempfile.mkdtemp(prefix="program-", dir=self.base)
                    os.chown(folder, -1 if self.uid is None else self.uid, -1)
                pids = self.start(kind, fds, (folder, seconds, memory))
            except (OSError, ValueError) as error:  # no child, no descriptor: the machine's fault, not the program's
                failed = str(error) or type(error).__name__
            finally:
                for fd in fds:
                    os.close(fd)
            if not failed:
                send(self.sock, {"ready": True})
                self.watch(pids)
            self.kill_children()
            left = remove_folder(folder) if folder != "/tmp" else ""
            send(self.sock, {"cleared": True, "left": left, "failed": failed})

    def start(self, kind: int, fds: list[int], limits: tuple[str, float, int]) -> list[int]:
        """The processes of a job, all of them confined: the judge and the candidate, or one program. OSError: one is not.

        Those of one job share a folder for files, so that tests find what the candidate wrote.
        """
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            with self.fresh_tmp():
                if kind == PROGRAM:
                    stdin, stdout, report, code = fds
                    pids = [self.fork([stdin, stdout, null, report, code], program_main, limits)]
                else:
                    judges, payload, verdict, candidates, code = fds
                    pids = [self.fork([null, null, null, judges, payload, verdict], judge_main, limits)]
                    pids.append(self.fork([null, null, null, candidates, code], candidate_main, limits))
            for pid in pids:
                if (told := os.read(self.children[pid], 1000)) != b"1":
                    raise OSError(told.decode(errors="replace") or "a child ended before it was confined")
            return pids
        finally:
            os.close(null)

    @contextlib.contextmanager
    def fresh_tmp(self) -> Iterator[None]:
        """What is forked inside has an empty /tmp in memory, in a mount namespace that vanishes with it (mode "full")."""
        if self.mode != "full":
            yield
            return
        confine.private_tmp(TMP_BYTES, self.covered)
        try:
            yield
        finally:
            confine.setns(self.own_mounts, confine.CLONE_NEWNS)

    def fork(self, fds: list[int], main: Callable[[], None], limits: tuple[str, float, int]) -> int:
        """A confined child that runs main with `fds` as its descriptors 0, 1, 2 ... and no other. OSError: no child."""
        ready, tell = os.pipe()
        try:
            if self.namespaces:
                confine.unshare(confine.CLONE_NEWPID)
            try:
                pid = os.fork()
                if pid == 0:
                    self.child([*fds, tell], main, *limits)
            finally:
                if self.namespaces:  # the next child gets a process namespace of its own again
                    confine.setns(self.own_pids, confine.CLONE_NEWPID)
        except OSError:
            os.close(ready)
            raise
        finally:
            os.close(tell)
        self.children[pid] = ready
        return pid

    def child(self, fds: list[int], main: Callable[[], None], folder: str, seconds: float, memory: int) -> None:
        """Confines this process for good, tells the server so, and runs main. Never returns."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            for place, high in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD, 256) for fd in fds]):
                os.dup2(high, place)
            os.closerange(len(fds), os.sysconf("SC_OPEN_MAX"))
            told = len(fds) - 1
            try:
                self.confine(folder, seconds, memory)
            except (OSError, ValueError) as error:
                os.write(told, str(error).encode())
                os._exit(1)
            os.write(told, b"1")
            os.close(told)
            main()
        finally:
            os._exit(1)  # main ends the process itself; an exception must not return into the server's loop

    def confine(self, folder: str, seconds: float, memory: int) -> None:
        os.chdir(folder)
        confine.set_limits(memory, int(seconds) + 2, FILE_BYTES, self.processes)
        if self.locked:
            confine.landlock([path for path in self.shown + DEVICES if os.path.exists(path)], [folder, "/dev/null"])
        confine.drop_rights(self.uid)
        confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
        if self.filter:
            confine.install_filter(self.filter)

    def watch(self, pids: list[int]) -> None:
        """Tells the caller when a process of the job ends, and how, until the caller asks to clear the job away."""
        running = dict(enumerate(pids))
        while True:
            for index, pid in list(running.items()):
                if (state := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                    del running[index]
                    exited = state.si_code == os.CLD_EXITED
                    send(self.sock, {"ended": index, "exited": exited, "status": state.si_status})
            for fd, _ in self.poller.poll():
                if fd == self.woken:
                    os.read(fd, 4096)
                elif not self.sock.recv(REQUEST.size):
                    self.stop()  # the caller is gone
                else:
                    return

    def kill_children(self) -> None:
        """Kills every process of the job and reaps it. In a namespace the death of the first takes the others along."""
        for pid in self.children:
            for kill in (os.kill, os.killpg):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)
        while self.children:
            pid, ready = self.children.popitem()
            os.close(ready)
            os.waitpid(pid, 0)
        while not self.namespaces:  # those who left the session are now children of this process, their subreaper
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                for orphan in children_of(os.getpid()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(orphan, signal.SIGKILL)
                time.sleep(0.001)

    def stop(self, *_: Any) -> None:
        """Leaves nothing behind, and ends this process."""
        self.kill_children()
        remove_folder(self.base)
        os._exit(0)


def read_text(fd: int) -> Any:
    """What the caller put into a file for this process alone."""
    with open(fd, "rb") as file:
        file.seek(0)
        return json.loads(file.read())


def judge_main() -> None:
    """The judge's process: channel 3, tests 4, verdict to 5."""
    payload = read_text(4)
    verdict = harness.judge(socket.socket(fileno=3), payload)
    os.write(5, json.dumps(verdict).encode()[:VERDICT_BYTES])
    os._exit(0)


def candidate_main() -> None:
    """The candidate's process: channel 3, code 4."""
    random.seed(0)  # a verdict must not depend on the sandbox's history
    with contextlib.suppress(channel.Gone):
        candidate.run_candidate(socket.socket(fileno=3), *read_text(4))
    os._exit(0)


def program_main() -> None:
    """A stdin/stdout program: report to 3, code 4."""
    random.seed(0)
    with contextlib.suppress(channel.Gone):
        candidate.run_program(socket.socket(fileno=3), *read_text(4))
    os._exit(0)


def receive_request(sock: socket.socket) -> tuple[int, float, int, list[int]] | None:
    """The next job and its descriptors, or None when the caller has gone."""
    head, fds, _, _ = socket.recv_fds(sock, REQUEST.size, 8)
    if len(head) < REQUEST.size:
        return None
    for fd in fds:
        os.set_inheritable(fd, False)
    kind, seconds, memory = REQUEST.unpack(head)
    return kind, seconds, memory, fds


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    sock.sendall(len(data).to_bytes(4, "little") + data)


def main() -> None:
    fd, mode, base = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    with socket.socket(fileno=fd) as sock:
        server = Server(sock, mode, base)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            server.serve()
        server.stop()
