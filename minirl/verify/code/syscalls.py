"""The system calls that a program in the sandbox may make: a list of what is allowed, as a program for seccomp.

Everything that is not listed is refused, so a call that a later kernel brings is refused until somebody has looked at it.
Sources of the numbers: the kernel's syscall_64.tbl and asm-generic/unistd.h (from 424 on they are common).
"""

import platform
import struct

# name, number on x86-64, number on arm64 ("-": it has none)
ALLOWED = """
read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291, poll 7 -,
ppoll 271 73, select 23 -, pselect6 270 72, lseek 8 62, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66,
preadv 295 69, pwritev 296 70, preadv2 327 286, pwritev2 328 287, access 21 -, faccessat 269 48, faccessat2 439 439,
pipe 22 -, pipe2 293 59, dup 32 23, dup2 33 -, dup3 292 24, fcntl 72 25, flock 73 32, fsync 74 82, fdatasync 75 83,
ftruncate 77 46, getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, rename 82 -, renameat 264 38,
renameat2 316 276, mkdir 83 -, mkdirat 258 34, rmdir 84 -, creat 85 -, link 86 -, linkat 265 37, unlink 87 -,
unlinkat 263 35, symlink 88 -, symlinkat 266 36, readlink 89 -, readlinkat 267 78, umask 95 166, statfs 137 43,
fstatfs 138 44, openat 257 56, openat2 437 437, mknod 133 -, mknodat 259 33, sendfile 40 71, splice 275 76, tee 276 77,
vmsplice 278 75, copy_file_range 326 285, fallocate 285 47, fadvise64 221 223, readahead 187 213, sync_file_range 277 84,
memfd_create 319 279, close_range 436 436, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11,
llistxattr 195 12, flistxattr 196 13, ioctl 16 29,
mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, brk 12 214, madvise 28 233, mincore 27 232, msync 26 227,
mlock 149 228, munlock 150 229, mlock2 325 284, mlockall 151 230, munlockall 152 231, membarrier 324 283,
pkey_mprotect 329 288, pkey_alloc 330 289, pkey_free 331 290, mbind 237 235, set_mempolicy 238 237, get_mempolicy 239 236,
map_shadow_stack 453 453, mseal 462 462,
clone 56 220, fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, exit 60 93, exit_group 231 94, wait4 61 260,
waitid 247 95, getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158, getpgid 121 155, getpgrp 111 -, getsid 124 156,
setpgid 109 154, setsid 112 157, capget 125 90, uname 63 160, sysinfo 99 179, times 100 153, getrusage 98 165,
getrlimit 97 163, setrlimit 160 164, prlimit64 302 261, prctl 157 167, arch_prctl 158 -, set_tid_address 218 96,
set_robust_list 273 99, get_robust_list 274 100, rseq 334 293, futex 202 98, futex_waitv 449 449, futex_wake 454 454,
futex_wait 455 455, futex_requeue 456 456, sched_yield 24 124, sched_getaffinity 204 123, sched_getparam 143 121,
sched_getscheduler 145 120, sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_rr_get_interval 148 127,
sched_getattr 315 275, getpriority 140 141, ioprio_get 252 31, getcpu 309 168, getrandom 318 278,
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137,
rt_sigsuspend 130 133, sigaltstack 131 132, kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138,
rt_tgsigqueueinfo 297 240, pause 34 -, alarm 37 -, getitimer 36 102, setitimer 38 103, signalfd 282 -, signalfd4 289 74,
restart_syscall 219 128, nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114,
gettimeofday 96 169, time 201 -, timer_create 222 107, timer_settime 223 110, timer_gettime 224 108,
timer_getoverrun 225 109, timer_delete 226 111, timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87,
eventfd 284 -, eventfd2 290 19, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -,
epoll_pwait 281 22, epoll_pwait2 441 441,
socketpair 53 199, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, sendmmsg 307 269, recvmmsg 299 243,
shutdown 48 210, getsockname 51 204, getpeername 52 205, getsockopt 55 209, setsockopt 54 208,
"""
# Modes, owners, times, attributes and lengths of files, which Landlock does not guard, and watching what others do with
# theirs: allowed only where no file of anybody else's is in sight.
ON_FILES = """
chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54,
utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7,
removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16, truncate 76 45, inotify_init 253 -, inotify_init1 294 26,
inotify_add_watch 254 27, inotify_rm_watch 255 28,
"""

_MACHINES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}  # seccomp's number of the architecture, our column
_CLONE_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_COMMON = 424  # calls that are not listed from here on are answered as by a kernel that lacks them: libc then falls back
_PR_SET_PDEATHSIG, _AF_UNIX, _NOT_STREAM = 1, 1, 0b1110
_SET_OWNER = {"fcntl": (8, 10, 15), "ioctl": (0x8901, 0x8902)}  # F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_OWN_PID = 0x7EAD0001  # stands for the process's number until that is known
Step = tuple[int, int, int, int]  # operation, jump if true, jump if false, operand


def numbers_of(table: str, column: int) -> dict[str, int]:
    rows = [entry.split() for entry in table.replace("\n", " ").split(",") if entry.strip()]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def system_call_filter(only_own_signals: bool, shared_files: bool) -> bytes:
    """The program for `confine.install_filter`. OSError on a machine whose system call numbers are not known here.

    Besides the list: no namespaces, no sockets but pairs of unix streams (a datagram socket could send to any path), no
    limits of other processes, no undoing of the death signal. only_own_signals: signals reach this process and its group
    only; for where no namespace hides the others. shared_files: where files of this user are in sight.
    """
    if platform.machine() not in _MACHINES:
        raise OSError(f"no system call table for {platform.machine()}")
    architecture, column = _MACHINES[platform.machine()]
    numbers = numbers_of(ALLOWED if shared_files else ALLOWED + ON_FILES, column)
    code: list[Step] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]

    def argument(name: str, index: int, test: int, value: int, if_true: int, if_false: int | None) -> None:
        """A decision by the low half of an argument. if_false None: it goes on with what follows."""
        steps: list[Step] = [(_LOAD, 0, 0, 16 + 8 * index), (test, 0, 1, value), (_RETURN, 0, 0, if_true)]
        steps += [(_LOAD, 0, 0, 0)] if if_false is None else [(_RETURN, 0, 0, if_false)]
        code.extend([(_EQUAL, 0, len(steps), numbers[name]), *steps])

    argument("clone", 0, _ANY_BIT, _CLONE_NAMESPACES, _EPERM, _ALLOW)
    argument("socketpair", 1, _ANY_BIT, _NOT_STREAM, _EPERM, None)
    argument("socketpair", 0, _EQUAL, _AF_UNIX, _ALLOW, _EPERM)
    argument("prctl", 0, _EQUAL, _PR_SET_PDEATHSIG, _EPERM, _ALLOW)
    argument("prlimit64", 0, _EQUAL, 0, _ALLOW, _EPERM)
    if only_own_signals:
        for name, commands in _SET_OWNER.items():  # or the kernel would send the signal for it
            for command in commands:
                argument(name, 1, _EQUAL, command, _EPERM, None)
        argument("kill", 0, _EQUAL, 0, _ALLOW, None)  # its own group
        for name in ("kill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "tkill", "tgkill"):
            argument(name, 0, _EQUAL, _OWN_PID, _ALLOW, _EPERM)
    listed = sorted(numbers.values())
    for refused, end, part in (
        (_EPERM, _COMMON, [number for number in listed if number < _COMMON]),
        (_ENOSYS, 1 << 31, [number for number in listed if number >= _COMMON]),  # x32, another way to the same calls, too
    ):
        for low, high in ranges(part):
            code += [(_AT_LEAST, 1, 0, low), (_RETURN, 0, 0, refused), (_AT_LEAST, 1, 0, high + 1), (_RETURN, 0, 0, _ALLOW)]
        code += [(_AT_LEAST, 1, 0, end), (_RETURN, 0, 0, refused)]
    code.append((_RETURN, 0, 0, _ENOSYS))
    return b"".join(struct.pack("<HBBI", *step) for step in code)


def ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """[1, 2, 3, 7] -> [(1, 3), (7, 7)]"""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def with_own_pid(program: bytes, pid: int) -> bytes:
    return program.replace(struct.pack("<I", _OWN_PID), struct.pack("<I", pid))
