"""What Linux offers to confine a process, by direct system calls: namespaces, dropped rights, a system call filter.

Used by the fork server only (minirl/verify/forkserver.py). Every function either does what it says or raises OSError;
nothing here decides which of them is needed.
"""

import ctypes
import os
import platform
import resource
import struct

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
# statvfs flags that a remount must repeat in a user namespace (mount_namespaces(7): they are locked), as MS_ flags
LOCKED = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
MNT_DETACH = 2
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


def hide_file_system(base: str, shown: list[str], devices: list[str]) -> None:
    """Makes `base` (an empty folder) the root of this mount namespace: only `shown` is in it, all of it read-only.

    Must run in a mount namespace of its own. /tmp in it is an empty folder, for a private mount of each child.
    """
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in shown:
        target = base + path
        if os.path.islink(path):  # /lib and /bin are links into /usr on most systems
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


def private_tmp(size_bytes: int) -> None:
    """A mount namespace of this process alone, with an empty /tmp in memory that vanishes with it."""
    unshare(CLONE_NEWNS)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"size={size_bytes},nr_inodes=2000,mode=1777")


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


# Numbers of system calls. Sources: the kernel's syscall_64.tbl and asm-generic/unistd.h (424 and above are common).
def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


# Looked at by their arguments.
_X86 = {"clone": 56, "socket": 41, "prctl": 157, "prlimit64": 302, "kill": 62, "tkill": 200, "tgkill": 234, "fcntl": 72}
_X86 |= {"ioctl": 16, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297}
_ARM = {"clone": 220, "socket": 198, "prctl": 167, "prlimit64": 261, "kill": 129, "tkill": 130, "tgkill": 131, "fcntl": 25}
_ARM |= {"ioctl": 29, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240}
# connect bind ptrace personality pivot_root chroot mount umount2 swapon reboot init_module kexec_load add_key request_key
# keyctl unshare perf_event_open open_by_handle_at setns process_vm_readv process_vm_writev kcmp finit_module bpf
# userfaultfd syslog; what other processes of the user would feel: setpriority sched_setparam sched_setscheduler
# sched_setaffinity sched_setattr ioprio_set migrate_pages move_pages; what outlives its maker: shmget semget msgget
# mq_open; and of the common ones pidfd_send_signal io_uring_* open_tree move_mount fsopen fsmount pidfd_open pidfd_getfd
# process_madvise mount_setattr process_mrelease
_X86_DENIED = _numbers("42 49 101 135 155 161 165 166 167 169 175 246 248 249 250 272 298 304 308 310 311 312 313 321 323 103")
_X86_DENIED += _numbers("141 142 144 203 314 251 256 279 29 64 68 240")
_ARM_DENIED = _numbers("203 200 117 92 41 51 40 39 224 142 105 104 217 218 219 97 241 265 268 270 271 272 273 280 282 116")
_ARM_DENIED += _numbers("140 118 119 122 274 30 238 239 194 190 186 180")
_COMMON_DENIED = _numbers("424 425 426 427 428 429 430 432 434 438 440 442 448")
# Landlock does not guard them: chmod fchmod fchmodat chown fchown lchown fchownat utime utimes futimesat utimensat
# setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr truncate, and fchmodat2
_X86_FILES = _numbers("90 91 268 92 93 94 260 132 235 261 280 188 189 190 197 198 199 76 452")
_ARM_FILES = _numbers("52 53 54 55 88 5 6 7 14 15 16 45 452")
_CLONE3 = 435
_MACHINES = {
    "x86_64": (0xC000003E, _X86, _X86_DENIED, _X86_FILES),
    "aarch64": (0xC00000B7, _ARM, _ARM_DENIED, _ARM_FILES),
}
_SET_OWNER = {"fcntl": (8, 10, 15), "ioctl": (0x8901, 0x8902)}  # F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
Step = tuple[int, int, int, int]  # operation, jump if true, jump if false, operand
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


_OWN_PID = 0x7EAD0001  # stands for the process's number until that is known


def system_call_filter(only_own_signals: bool, shared_files: bool) -> bytes:
    """The program for `install_filter`. OSError on a machine whose system call numbers are not known here.

    It denies network sockets, namespaces, mounts, tracing, keys, limits and priorities of other processes, shared memory
    that outlives them, undoing the death signal. only_own_signals: signals reach this process and its group only; for where
    no namespace hides the others. shared_files: modes, owners, times and lengths of files stay as they are; for where the
    files of this user are in sight.
    """
    if platform.machine() not in _MACHINES:
        raise OSError(f"no system call table for {platform.machine()}")
    architecture, numbers, denied, files = _MACHINES[platform.machine()]
    code: list[Step] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    code += [
        (_AT_LEAST, 0, 1, 0x40000000),
        (_RETURN, 0, 0, _EPERM),
    ]  # the x32 numbers are another way to the same calls
    for number in (*denied, *_COMMON_DENIED, *(files if shared_files else [])):
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _EPERM)]
    code += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ENOSYS)]  # its flags are in memory; libc falls back to clone

    def first_argument(name: str, test: int, value: int, if_true: int, if_false: int) -> list[Step]:
        steps = [(_EQUAL, 0, 4, numbers[name]), (_LOAD, 0, 0, 16), (test, 0, 1, value)]
        return [*steps, (_RETURN, 0, 0, if_true), (_RETURN, 0, 0, if_false)]

    def second_argument(name: str, values: tuple[int, ...]) -> list[Step]:
        tests = [step for value in values for step in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, _EPERM))]
        return [(_EQUAL, 0, 2 + len(tests), numbers[name]), (_LOAD, 0, 0, 24), *tests, (_RETURN, 0, 0, _ALLOW)]

    namespaces = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS
    code += first_argument("clone", _ANY_BIT, namespaces, _EPERM, _ALLOW)
    code += first_argument("socket", _EQUAL, 1, _ALLOW, _EPERM)  # AF_UNIX, which event loops use in pairs
    code += first_argument("prctl", _EQUAL, PR_SET_PDEATHSIG, _EPERM, _ALLOW)
    code += first_argument("prlimit64", _EQUAL, 0, _ALLOW, _EPERM)
    if only_own_signals:
        for name, values in _SET_OWNER.items():  # or the kernel would send the signal for it
            code += second_argument(name, values)
        for name in ("rt_sigqueueinfo", "rt_tgsigqueueinfo", "tkill", "tgkill"):
            code += first_argument(name, _EQUAL, _OWN_PID, _ALLOW, _EPERM)
        code += [(_EQUAL, 0, 5, numbers["kill"]), (_LOAD, 0, 0, 16), (_EQUAL, 1, 0, _OWN_PID), (_EQUAL, 0, 1, 0)]
        code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *step) for step in code)


def install_filter(program: bytes) -> None:
    """From here on this process and all it starts can make only the system calls that the program allows."""
    program = program.replace(struct.pack("<I", _OWN_PID), struct.pack("<I", os.getpid()))
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _check(libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), header, 0, 0), "seccomp")
