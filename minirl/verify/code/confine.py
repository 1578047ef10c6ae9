"""What Linux offers to confine a process, by direct system calls: namespaces, dropped rights, a system call filter.

Used by the fork server only; the list of allowed calls is in syscalls.py. Every function either does what it says or
raises OSError; nothing here decides which of them is needed.
"""

import ctypes
import os
import platform
import resource
import struct

from minirl.verify.code import syscalls

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
# statvfs flags that a remount must repeat in a user namespace (mount_namespaces(7): they are locked), as MS_ flags
LOCKED = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
MNT_DETACH = 2
_ASIDE = "/.below-tmp-{}"
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38

libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int) -> None:
    _check(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def unshare(flags: int) -> None:
    _check(libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    _check(libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    arguments = source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    _check(libc.mount(*arguments), f"mount {kind or 'bind'} {target}")


def own_user_namespace() -> None:
    """A user namespace in which this process may unshare and mount; its user and group keep their numbers."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def hide_file_system(base: str, shown: list[str], covered: list[str], devices: list[str]) -> None:
    """Makes `base` (an empty folder) the root of this mount namespace: only `shown` is in it, all of it read-only.

    Must run in a mount namespace of its own. /tmp in it is an empty folder, for a private mount of each job.
    covered: those of `shown` that lie below /tmp, put aside for `private_tmp`.
    """
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in shown:
        target = base + (_ASIDE.format(covered.index(path)) if path in covered else path)
        if os.path.islink(path) and path not in covered:  # /lib and /bin are links into /usr on most systems
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.symlink(os.readlink(path), target)
        else:
            os.makedirs(target, exist_ok=True)
            _bind(path, target, MS_RDONLY | MS_NOSUID)
    for path in devices:
        os.makedirs(os.path.dirname(base + path), exist_ok=True)
        with open(base + path, "w"):
            pass
        _bind(path, base + path, 0)
    for folder in ("/tmp", "/old"):
        os.makedirs(base + folder, exist_ok=True)
    os.chdir(base)
    number = {"x86_64": 155, "aarch64": 41}[platform.machine()]
    _check(libc.syscall(number, b".", b"old"), "pivot_root")
    os.chdir("/")
    _check(libc.umount2(b"/old", MNT_DETACH), "umount2")
    os.rmdir("/old")
    mount("none", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _bind(source: str, target: str, flags: int) -> None:
    mount(source, target, "", MS_BIND | MS_REC)
    if flags:
        present = os.statvfs(target).f_flag
        kept = sum(to for flag, to in LOCKED.items() if present & flag)
        mount("none", target, "", MS_REMOUNT | MS_BIND | flags | kept)


def private_tmp(size_bytes: int, covered: list[str]) -> None:
    """A mount namespace of its own, with an empty /tmp in memory but for the folders that `hide_file_system` put aside."""
    unshare(CLONE_NEWNS)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"size={size_bytes},nr_inodes=2000,mode=1777")
    for number, path in enumerate(covered):
        os.makedirs(path, exist_ok=True)
        mount(_ASIDE.format(number), path, "", MS_BIND | MS_REC)  # as read-only as the mount that it repeats


def landlock(readable: list[str], writable: list[str]) -> None:
    """From here on this process sees only these files, and can neither read nor trace a process outside (Linux 5.13).

    For where no mount namespace may be made. Source: the kernel's userspace-api/landlock.rst; the numbers are common.
    """
    version = _check(libc.syscall(444, None, 0, 1), "landlock_create_ruleset")
    everything = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    handled = struct.pack("<QQQ", everything, 3 if version >= 4 else 0, 3 if version >= 6 else 0)  # files, TCP, scopes
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = _check(libc.syscall(444, handled, ctypes.c_size_t(size), 0), "landlock_create_ruleset")
    read, file_only = 0b1101, 0b100000000000111 & everything
    allowed = [(path, read) for path in readable] + [(path, everything) for path in writable]
    for path, access in allowed:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        access = access if os.path.isdir(path) else access & file_only
        _check(libc.syscall(445, rules, 1, struct.pack("<Qi", access, fd), 0), f"landlock_add_rule {path}")
        os.close(fd)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _check(libc.syscall(446, rules, 0), "landlock_restrict_self")
    os.close(rules)


def set_limits(memory: int, cpu_seconds: int, file_bytes: int, processes: int) -> None:
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_DATA: memory,  # the worker's own limit for this one is another
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in limits.items():
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def drop_rights(uid: int | None) -> None:
    """No capability is left, none can be gained, no other process of the same user can be read through ptrace."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header = struct.pack("<Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    _check(libc.capset(header, bytes(24)), "capset")
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_DUMPABLE, 0)


def install_filter(program: bytes) -> None:
    """From here on this process and all it starts can make only the system calls that the program allows."""
    program = syscalls.with_own_pid(program, os.getpid())
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _check(libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), header, 0, 0), "seccomp")
