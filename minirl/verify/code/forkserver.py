"""A small warm Python process that forks a fresh confined child for every program: the sandbox's engine.

Started by minirl/verify/sandbox.py with SOCKET_FD MODE BASE. One job at a time: a JSON header with the code arrives
with one descriptor (the tests for the judge, or the program's stdin). The tests are read by the judge's process only,
after the fork: they are never in the memory that a candidate inherits. This process runs no code of anybody.
"""

import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from minirl.verify.code import channel, confine, harness
from minirl.verify.pool.children import (
    Descriptor,
    children_of,
    ending,
    folders_of_python,
    has_ended,
    remove_folder,
    tasks_of_this_user,
    works,
)

# Imported once here, so that no program pays for them.
WARM = "bisect collections copy datetime decimal fractions functools heapq io itertools math operator random re statistics"
WARM += " string sys threading time typing types dataclasses enum array cmath queue hashlib"
TMP_BYTES = 64 << 20
FILE_BYTES = 16 << 20
PROCESSES = 32
VERDICT_BYTES = 1 << 16
DEVICES = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"]


class Server:
    def __init__(self, sock: socket.socket, mode: str, base: str) -> None:
        self.sock, self.mode, self.base = sock, mode, base
        self.children: dict[int, int] = {}  # process, and where it says that it is confined
        self.namespaces = mode in ("full", "shared files")
        other_user = 61184 + os.getpid() % 4096  # a number without processes and without a name
        tasks = tasks_of_this_user()
        self.shown = folders_of_python()
        for name in WARM.split():
            importlib.import_module(name)
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
        gc.collect()
        gc.freeze()

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
        if self.mode == "full":
            confine.hide_file_system(self.base, self.shown, [path for path in DEVICES if os.path.exists(path)])

    def system_call_filter(self) -> bytes:
        """The filter for every program, or b"" where this system does not have it."""
        try:
            program = confine.system_call_filter(not self.namespaces, self.mode != "full")
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
        send(self.sock, {"in force": self.in_force()})
        while (received := receive_job(self.sock)) is not None:
            job, payload = received
            folder, left = "/tmp", ""
            if self.mode != "full":
                folder = tempfile.mkdtemp(prefix="program-", dir=self.base)
                os.chown(folder, -1 if self.uid is None else self.uid, -1)
            try:
                outcome = (self.run_program if job["kind"] == "program" else self.run_tests)(job, payload, folder)
            except (OSError, ValueError) as error:  # no child, no descriptor: the machine's fault, not the program's
                outcome = {"status": "error", "detail": f"the sandbox could not start a program: {error}"}
            finally:
                os.close(payload)
                self.kill_children()
                if folder != "/tmp":
                    left = remove_folder(folder)
            send(self.sock, outcome | {"left": left})

    def run_tests(self, job: dict[str, Any], payload: int, folder: str) -> dict[str, Any]:
        """The judge with the tests, and the candidate with the code, in two children that share one socket pair."""
        with contextlib.ExitStack() as stack:
            null, result, report = (stack.enter_context(Descriptor(fd)) for fd in (os.open("/dev/null", os.O_RDWR), *os.pipe()))
            judges, candidates = (stack.enter_context(sock) for sock in socket.socketpair())
            nulls = [null.fd] * 3
            judge = self.fork([*nulls, judges.fileno(), payload, report.fd], judge_main, job, folder)
            main = functools.partial(candidate_main, harness.run_candidate, job["prelude"], job["code"])
            candidate = self.fork([*nulls, candidates.fileno()], main, job, folder)
            self.confirm(judge, candidate)
            for mine in (judges, candidates, report):
                mine.close()
            start = time.monotonic()
            data, why = self.read_until(result.fd, None, start + job["seconds"], VERDICT_BYTES)
            if why != "timeout" and not data:  # the tests ended it, or the machine did: a candidate cannot reach it
                data = json.dumps({"status": "error", "detail": f"the judge ended without a verdict: {ending(judge)}"}).encode()
            outcome = {"status": "timeout"} if why == "timeout" else json.loads(data)
            if outcome["status"] == "gone":
                outcome["ending"] = ending(candidate)
            return outcome | {"seconds": time.monotonic() - start}

    def run_program(self, job: dict[str, Any], stdin: int, folder: str) -> dict[str, Any]:
        """One program with its stdin; what it wrote to stdout, and how it ended."""
        with contextlib.ExitStack() as stack:
            null, output, writer = (stack.enter_context(Descriptor(fd)) for fd in (os.open("/dev/null", os.O_RDWR), *os.pipe()))
            ours, theirs = (stack.enter_context(sock) for sock in socket.socketpair())
            main = functools.partial(candidate_main, harness.run_program, job["code"])
            program = self.fork([stdin, writer.fd, null.fd, theirs.fileno()], main, job, folder)
            self.confirm(program)
            for mine in (writer, theirs):
                mine.close()
            start = time.monotonic()
            data, why = self.read_until(output.fd, program, start + job["seconds"], job["output bytes"])
            outcome = {"status": why, "output": data.decode("utf-8", "replace"), "seconds": time.monotonic() - start}
            if why == "end":
                outcome["ending"] = ending(program)
                self.kill_children()
                ours.settimeout(0.0)
                with contextlib.suppress(channel.Gone):
                    message = channel.Peer(ours, {}, {}).receive()
                    if message[0] == "!" and [type(part) for part in message] == [str] * 3:
                        outcome |= {"status": "raised", "label": message[1], "detail": message[2]}
            return outcome

    def fork(self, fds: list[int], main: Callable[[], None], job: dict[str, Any], folder: str) -> int:
        """A confined child that runs main with `fds` as its descriptors 0, 1, 2 ... and no other. OSError: no child."""
        ready, tell = os.pipe()
        with Descriptor(tell):
            if self.namespaces:
                confine.unshare(confine.CLONE_NEWPID)
            try:
                pid = os.fork()
                if pid == 0:
                    self.child([*fds, tell], main, job, folder)
            finally:
                if self.namespaces:  # the next child gets a process namespace of its own again
                    confine.setns(self.own_pids, confine.CLONE_NEWPID)
        self.children[pid] = ready
        return pid

    def confirm(self, *pids: int) -> None:
        """Waits until the children are confined; OSError with the reason when one could not be."""
        for pid in pids:
            if (told := os.read(self.children[pid], 1000)) != b"1":
                raise OSError(told.decode(errors="replace") or "a child ended before it was confined")

    def child(self, fds: list[int], main: Callable[[], None], job: dict[str, Any], folder: str) -> None:
        """Confines this process for good, tells the server so, and runs main. Never returns."""
        try:
            os.setsid()
            for number, high in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD, 256) for fd in fds]):
                os.dup2(high, number)
            os.closerange(len(fds), os.sysconf("SC_OPEN_MAX"))
            told = len(fds) - 1
            try:
                self.confine(job, folder)
            except (OSError, ValueError) as error:
                os.write(told, str(error).encode())
                os._exit(1)
            os.write(told, b"1")
            os.close(told)
            main()
        finally:
            os._exit(1)  # main ends the process itself; an exception must not return into the server's loop

    def confine(self, job: dict[str, Any], folder: str) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        if self.mode == "full":
            confine.private_tmp(TMP_BYTES)
        os.chdir(folder)
        confine.set_limits(job["memory bytes"], int(job["seconds"]) + 2, FILE_BYTES, self.processes)
        if self.locked:
            confine.landlock([path for path in self.shown + DEVICES if os.path.exists(path)], [folder, "/dev/null"])
        confine.drop_rights(self.uid)
        confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
        if self.filter:
            confine.install_filter(self.filter)

    def read_until(self, fd: int, child: int | None, deadline: float, limit: int) -> tuple[bytes, str]:
        """What comes from fd, and why reading ended: "end" (end of file, or the child is gone), "timeout", "output"."""
        data = bytearray()
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.register(self.sock, select.POLLIN)
        os.set_blocking(fd, False)
        while (left := deadline - time.monotonic()) > 0:
            gone = child is not None and has_ended(child)
            for number, _ in poller.poll(0 if gone else min(left, 0.02 if child is not None else left) * 1000 + 1):
                if number != fd:  # the parent never speaks during a job, so this is its end
                    self.stop()
            try:
                while part := os.read(fd, 1 << 16):
                    data += part
                    if len(data) > limit:
                        return bytes(data[:limit]), "output limit"
                return bytes(data), "end"
            except BlockingIOError:
                if gone:
                    return bytes(data), "end"
        return bytes(data), "timeout"

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


def judge_main() -> None:
    """The judge's process: channel 3, tests 4, verdict to 5."""
    with open(4, "rb") as file:
        payload = json.loads(file.read())
    verdict = harness.judge(socket.socket(fileno=3), payload)
    os.write(5, json.dumps(verdict).encode()[:VERDICT_BYTES])
    os._exit(0)


def candidate_main(run: Callable[..., None], *texts: str) -> None:
    random.seed(0)  # a verdict must not depend on the sandbox's history
    with contextlib.suppress(channel.Gone):
        run(socket.socket(fileno=3), *texts)
    os._exit(0)


def receive_job(sock: socket.socket) -> tuple[dict[str, Any], int] | None:
    """The next job and its descriptor, or None when the parent has gone."""
    head, fds, _, _ = socket.recv_fds(sock, 4, 1)
    if len(head) < 4 or not fds:
        return None
    os.set_inheritable(fds[0], False)
    length = int.from_bytes(head, "little")
    body = bytearray()
    while len(body) < length:
        part = sock.recv(min(1 << 20, length - len(body)))
        if not part:
            return None
        body += part
    return json.loads(body), fds[0]


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    sock.sendall(len(data).to_bytes(4, "little") + data)


def main() -> None:
    fd, mode, base = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    with socket.socket(fileno=fd) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        server = Server(sock, mode, base)
        server.serve()
        server.stop()
