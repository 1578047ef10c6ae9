"""Programs that try to do harm, or that do it without meaning to. See hostile_programs.py."""
# ruff: noqa: E501 - a line of a program is clearer whole

HARM = [
    (
        "nests folders without end",
        "import os\nfor _ in range(600):\n    os.mkdir('MARK')\n    os.chdir('MARK')",
        {"NameError", "OutputLimit", "<timeout>"},
    ),
    (
        "folders that nobody may enter",
        "import os\nos.makedirs('a/b/MARK')\nos.mkdir('c', 0)\nos.mkdir('a/b/d', 0)",
        {"NameError"},
    ),
    (
        "links, pipes and sockets",
        "import os, socket\nos.mkdir('d')\nfor n, t in enumerate(['/', '/etc', '..', '.', 'd', 'd/loop']): os.symlink(t, f'd/MARK{n}')\n"
        "os.symlink('.', 'd/loop')\nos.mkfifo('pipe')\nos.link('pipe', 'd/hard')\nos.mkdir(b'\\xff\\n')",
        {"NameError"},
    ),
    ("links to a file outside", "attempt(lambda: os.link('/usr/bin/env', 'MARK'))", {"Denied"}),
    ("renames its folder", "attempt(lambda: os.rename(os.getcwd(), os.getcwd() + 'MARK'))", {"Denied"}),
    ("removes its folder", "attempt(lambda: os.rmdir(os.getcwd()))", {"Denied"}),
    *[
        (f"changes {what} of files outside", f"attempt(lambda: {call})", {"Denied"})
        for what, call in [
            ("the mode", "os.chmod(os.__file__, 0o777)"),
            ("the times", "os.utime(os.__file__, (0, 0))"),
            ("the owner", "os.chown(os.__file__, os.getuid(), -1)"),
            ("the length", "os.truncate(os.__file__, 0)"),
            ("the attributes", "os.setxattr(os.__file__, 'user.MARK', b'x')"),
        ]
    ],
    *[
        (
            f"asks for {name}",
            f"import ctypes\nc = ctypes.CDLL(None, use_errno=True)\nattempt(lambda: c.{call} >= 0 or 1 / 0)",
            {"Denied"},
        )
        for name, call in [
            ("shared memory that stays", "shmget(0, 4096, 0o1600)"),
            ("a semaphore that stays", "semget(0, 1, 0o1600)"),
            ("a message queue that stays", "msgget(0, 0o1600)"),
            ("a queue with a name", "mq_open(b'/MARK', 0o102, 0o600, None)"),
            ("a key that stays", "syscall(248, b'user', b'MARK', b'x', 1, -4)"),
            ("another process's priority", "setpriority(0, 0, 19)"),
            ("another process's cores", "sched_setaffinity(0, 8, b'\\1' + bytes(7))"),
            ("a ring of its own", "syscall(425, 8, bytes(120))"),
            ("a handle of a process", "syscall(434, 1, 0)"),
            ("the kernel's log", "klogctl(3, bytes(99), 99)"),
            ("a raw socket", "socket(17, 3, 0)"),
            ("a netlink socket", "socket(16, 3, 0)"),
        ]
    ],
    ("writes to shared memory", "attempt(lambda: open('/dev/shm/MARK', 'w').write('x'))", {"Denied"}),
    ("makes a device", "import stat\nattempt(lambda: os.mknod('MARK', 0o600 | stat.S_IFBLK, 0x0801))", {"Denied"}),
    ("kills the first process", "attempt(lambda: os.getpid() == 1 and 1 / 0 or os.kill(1, 9))", {"Denied"}),
    (
        "lets the kernel kill its parent",
        "import fcntl, socket\na, b = socket.socketpair()\ndef aim():\n    os.getppid() or 1 / 0\n    fcntl.fcntl(a, fcntl.F_SETOWN, os.getppid())\n"
        "    fcntl.fcntl(a, 10, 9)\n    fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC)\n    b.send(b'x')\n    time.sleep(0.1)\nattempt(aim)",
        {"Denied"},
    ),
    (
        "a chain of processes that run away",
        "import os\nif os.fork() == 0:\n    while True:\n        if os.fork(): os._exit(0)\n        os.setsid()\ndef solve(x): return 0",
        {"WrongAnswer"},
    ),
    (
        "a storm of zombies",
        "import os\ndef solve(x):\n    while True:\n        if os.fork() == 0: os._exit(0)",
        {"BlockingIOError"},
    ),
    (
        "adopts what it orphans",
        "import ctypes, os\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n            os.execv('/bin/sleep', ['sleep', '31.4159'])\n        os._exit(0)\ndef solve(x): return 0",
        {"WrongAnswer"},
    ),
    (
        "stops its children and waits",
        "import os, signal\npid = os.fork()\nif pid == 0: os.kill(os.getpid(), signal.SIGSTOP)\ndef solve(x): os.waitpid(pid, 0)",
        {"<timeout>", "WrongAnswer", "PermissionError"},
    ),
    (
        "files in memory without number",
        "import os\ndef solve(x): return [os.truncate(os.memfd_create('MARK'), 1 << 40) for _ in range(99)]",
        {"OutputLimit", "OSError", "PermissionError"},
    ),
    (
        "watches without number",
        "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\ndef solve(x):\n    while c.inotify_init() >= 0: pass\n    raise OSError",
        {"OSError"},
    ),
    (
        "descriptors in flight without number",
        "import socket\ndef solve(x):\n    while True:\n        a, b = socket.socketpair()\n        socket.send_fds(a, [b'x'], [a.fileno(), b.fileno()])\n        socket.send_fds(b, [b'x'], [a.fileno(), b.fileno()])",
        {"OSError"},
    ),
    ("kills its parent", "attempt(lambda: os.kill(os.getppid() or 10**7, 9))", {"Denied"}),
    ("kills everything", "attempt(lambda: os.kill(-1, 9))", {"Denied", "Harm"}),  # in its own process namespace it may
    (
        "traces its parent",
        "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\nattempt(lambda: c.ptrace(16, os.getppid(), 0, 0) == 0 or 1 / 0)",
        {"Denied"},
    ),
    ("reads its parent's memory", "attempt(lambda: open(f'/proc/{os.getppid()}/mem', 'rb').read(1))", {"Denied"}),
    ("reads its parent's environment", "attempt(lambda: open(f'/proc/{os.getppid()}/environ').read())", {"Denied"}),
    (
        "finds a secret in its environment",
        "attempt(lambda: 'hush' in str(os.environ) or 1 / 0)",
        {"Denied"},
    ),
    (
        "finds inherited descriptors",
        "attempt(lambda: [fd for fd in range(4, 1024) if not os.set_blocking(fd, True)])",
        {"Denied"},
    ),
    (
        "connects to this machine",
        "import socket\nattempt(lambda: socket.create_connection(('127.0.0.1', PORT), timeout=1))",
        {"Denied"},
    ),
    (
        "sends a datagram",
        "import socket\nattempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT)))",
        {"Denied"},
    ),
    (
        "resolves a name",
        "import socket\nattempt(lambda: socket.getaddrinfo('example.com', 80))",
        {"Denied", "<timeout>"},
    ),
    (
        "connects to an abstract socket",
        "import socket\nattempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0minirl-test-PORT'))",
        {"Denied"},
    ),
    *[
        (f"writes to {folder}", f"attempt(lambda: open('{folder}/MARK', 'w').write('x'))", {"Denied"})
        for folder in ("/", "/usr", "/etc", "/root", "REPOSITORY", "/proc/self")
    ],
    (
        "writes over the harness",
        "attempt(lambda: open(sys.modules['minirl.verify.code.harness'].__file__, 'a').write('x'))",
        {"Denied"},
    ),
    ("becomes root", "attempt(lambda: os.setuid(0) or os.getuid() and 1 / 0)", {"Denied"}),
    (
        "lifts its limits",
        "import resource\nattempt(lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)))",
        {"Denied"},
    ),
    (
        "makes a user namespace",
        "import ctypes\nc = ctypes.CDLL(None)\nattempt(lambda: c.unshare(0x10000000) == 0 or 1 / 0)",
        {"Denied"},
    ),
    (
        "mounts",
        "import ctypes\nc = ctypes.CDLL(None)\nattempt(lambda: c.mount(b'none', b'/tmp', b'tmpfs', 0, 0) == 0 or 1 / 0)",
        {"Denied"},
    ),
    ("changes its root", "attempt(lambda: os.chroot('/tmp'))", {"Denied"}),
    (
        "outlives the server",
        "import ctypes\nc = ctypes.CDLL(None)\nattempt(lambda: c.prctl(1, 0, 0, 0, 0) == 0 or 1 / 0)",
        {"Denied"},
    ),
    (
        "a fork bomb",
        "import os\ndef solve(x):\n    while True:\n        try: os.fork()\n        except OSError: pass",
        {"<timeout>", "Crashed"},
    ),
    (
        "a thread bomb",
        "import threading, time\ndef solve(x):\n    while True: threading.Thread(target=time.sleep, args=(99,)).start()",
        {"RuntimeError", "MemoryLimit", "<timeout>"},
    ),
    (
        "a child that outlives it",
        "import os, time\nif os.fork() == 0:\n    time.sleep(31.4)\n    os._exit(0)\ndef solve(x): return 0",
        {"WrongAnswer"},
    ),
    (
        "a daemon",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True: time.sleep(31.4)\n    os._exit(0)\n"
        "def solve(x): return 0",
        {"WrongAnswer"},
    ),
    (
        "a program that outlives it",
        "import os\nif os.fork() == 0:\n    os.setsid()\n    os.execv('/bin/sleep', ['sleep', '31.4159'])\ndef solve(x): return 0",
        {"WrongAnswer"},
    ),
    ("a list that fills memory", "def solve(x):\n    return [1] * 10**10", {"MemoryLimit"}),
    ("a list that grows", "def solve(x):\n    a = [0]\n    while True: a += a", {"MemoryLimit", "<timeout>"}),
    ("an endless loop", "def solve(x):\n    while True: pass", {"<timeout>"}),
    ("an endless loop when loaded", "while True: pass", {"<timeout>"}),
    ("endless recursion", "def solve(x): return solve(x)", {"RecursionError"}),
    (
        "recursion in C",
        "import sys\nsys.setrecursionlimit(10**9)\ndef solve(x): return solve(x)",
        {"Crashed", "MemoryLimit", "<timeout>"},
    ),
    ("endless output", "def solve(x):\n    while True: print('x' * 10**5)", {"<timeout>"}),
    ("sleeps", "import time\ndef solve(x): time.sleep(99)", {"<timeout>"}),
    ("waits for input", "def solve(x): return input()", {"EOFError"}),
    (
        "ignores signals",
        "import signal, time\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "def solve(x): time.sleep(99)",
        {"<timeout>"},
    ),
    ("stops itself", "import os, signal, time\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(99)", {"<timeout>"}),
    ("a tower of powers", "def solve(x): return 9 ** 9 ** 9 ** 9", {"<timeout>", "MemoryLimit", "OverflowError"}),
    ("a regular expression", "import re\ndef solve(x): return re.match('(a+)+$', 'a' * 40 + 'b')", {"<timeout>"}),
    (
        "a file without end",
        "def solve(x):\n    with open('big', 'wb') as f:\n        while True: f.write(b'x' * 2**20)",
        {"OSError", "OutputLimit"},
    ),
    (
        "files without number",
        "def solve(x):\n    for n in range(10**9): open(f'MARK{n}', 'w').close()",
        {"OSError", "OutputLimit", "<timeout>"},
    ),
    ("descriptors without number", "def solve(x): return [open('/dev/null') for _ in range(10**6)]", {"OSError"}),
    (
        "folders that cannot be removed",
        "import os\nos.makedirs('a/b/MARK')\nos.chmod('a/b', 0)\nos.chmod('a', 0)\nos.chmod('.', 0)",
        {"NameError", "PermissionError"},
    ),
    ("an answer without end", "import itertools\ndef solve(x): return itertools.count()", {"WrongAnswer"}),
    ("an answer too large", "def solve(x): return 'x' * (64 << 20)", {"OutputLimit", "MemoryLimit", "<timeout>"}),
    ("an answer in itself", "def solve(x):\n    a = []\n    a.append(a)\n    return a", {"OutputLimit"}),
    (
        "an answer too deep",
        "def solve(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
        {"OutputLimit"},
    ),
    (
        "an answer that multiplies",
        "def solve(x):\n    a = [0]\n    for _ in range(40): a = [a, a]\n    return a",
        {"<timeout>", "MemoryLimit", "OutputLimit"},
    ),
    (
        "an integer without end",
        "def solve(x): return 1 << (1 << 27)",
        {"<timeout>", "OutputLimit", "WrongAnswer", "MemoryLimit"},
    ),
    (
        "an exception that raises",
        "class E(Exception):\n    def __str__(self): raise self\ndef solve(x): raise E",
        {"Exception", "E"},
    ),
    ("crashes the interpreter", "import ctypes\ndef solve(x): ctypes.string_at(1)", {"Crashed"}),
    (
        "ends by a signal without a name",
        "import os\ndef solve(x):\n    os.kill(os.getpid(), 40)\n    return 0",
        {"Crashed", "WrongAnswer"},
    ),
    ("aborts", "import os\ndef solve(x): os.abort()", {"Crashed"}),
    ("does not compile", "def solve(x) return x * x", {"SyntaxError"}),
    ("is indented badly", "def solve(x):\nreturn x * x", {"IndentationError"}),
    ("has a null byte", "def solve(x): return '\0'", {"SyntaxError", "ValueError"}),
    (
        "nests too deeply to compile",
        "solve = " + "(" * 5000 + ")" * 5000,
        {"SyntaxError", "MemoryLimit", "RecursionError"},
    ),
    (
        "takes long to compile",
        "solve = " + "-" * 150_000 + "1",
        {"MemoryLimit", "RecursionError", "Crashed", "<timeout>", "TypeError"},
    ),
]
