"""Small things that the fork server does with processes, descriptors and folders."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def works(attempt: Callable[[], Any]) -> bool:
    """Whether a forked child could do it."""
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def folders_of_python() -> list[str]:
    """What an interpreter needs to see: the system's libraries and its own prefixes."""
    prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))]
    prefixes += [os.path.realpath(path) for path in prefixes]
    shown = [path for path in ("/usr", "/lib", "/lib64", "/bin") if os.path.isdir(path)]
    for path in sorted(set(prefixes)):
        if not any(path == top or path.startswith(top + "/") for top in shown):
            shown.append(path)
    return shown


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time signals between the first and the last have no names
        return f"signal {number}"


def _stat(pid: int | str) -> list[str]:
    """/proc/PID/stat from the state on; OSError when there is no such process (or no /proc)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir() if Path("/proc/self/stat").exists() else []:
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int(_stat(entry.name)[1]) == pid:
                    found.append(int(entry.name))
    return found


def descendants_of(pid: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir() if Path("/proc/self/stat").exists() else []:
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int(_stat(entry.name)[1])
    found: list[int] = []
    ring = {pid}
    while ring:
        ring = {child for child, parent in parents.items() if parent in ring}
        found += ring
    return found


def session_of(pid: int) -> int:
    """The process's session, 0 when it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def tasks_of_this_user() -> int:
    """Threads that count against this user's process limit before any program runs."""
    count = 0
    for entry in Path("/proc").iterdir() if Path("/proc/self/task").exists() else []:
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                count += len(os.listdir(entry / "task")) if entry.stat().st_uid == os.geteuid() else 0
    return count


def remove_folder(folder: str) -> str:
    """Removes a folder whatever is in it: any depth, any permissions; links are removed, not followed. Never raises.

    "" or why something had to stay. It walks with one descriptor, down by a name and up by "..": no recursion, and no
    path that could grow longer than PATH_MAX.
    """
    try:
        os.chmod(folder, 0o700)
        here = os.open(folder, FOLDER)
        try:
            levels = [(folder, _empty(here))]  # the name of each folder down to here, and the folders left in it
            while levels:
                if levels[-1][1]:
                    name = levels[-1][1].pop()
                    here = _move(here, name)
                    levels.append((name, _empty(here)))
                else:
                    name, _ = levels.pop()
                    if levels:
                        here = _move(here, "..")
                        os.rmdir(name, dir_fd=here)
        finally:
            os.close(here)
        os.rmdir(folder)
    except FileNotFoundError:
        pass  # it is gone, which was the aim
    except OSError as error:
        return f"{folder} could not be removed: {error}"
    return ""


def _move(here: int, name: str) -> int:
    there = os.open(name, FOLDER, dir_fd=here)
    os.close(here)
    return there


def _empty(here: int) -> list[str]:
    """Removes what is not a folder; the names of the folders, which can be opened afterwards."""
    folders = []
    for entry in list(os.scandir(here)):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.name, 0o700, dir_fd=here)
            folders.append(entry.name)
        else:
            os.unlink(entry.name, dir_fd=here)
    return folders
