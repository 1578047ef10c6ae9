"""Programs that try to pass without the answer, or to do harm. Each is (name, source, labels that are acceptable).

The question is `solve(x)`, x squared. A program that does what it should not be able to do raises Harm; one that finds
the way closed raises Denied. PORT stands for a port on which the test listens, MARK for a name in files that it must
not leave.
"""
# ruff: noqa: E501 - a line of a program is clearer whole

import dataclasses
import os
import tempfile
from pathlib import Path

from minirl.verify.types import Problem

ROOT = Path(__file__).parents[3]
MARK = "minirl-hostile-mark"
TESTS = "assert solve(3) == 9\nassert solve(1) == 1\nassert solve(5) == 25"
SCRIPT = Problem("square", "", "", {"tests": TESTS, "entry_point": "solve"})
CALL = {"type": "call", "inputs": [[3], [1], [5]], "outputs": [9, 1, 25]}
CALLS = Problem("square", "", "", {"tests": CALL, "entry_point": "solve"})
STDIN = Problem("square", "", "", {"tests": {"type": "stdin_stdout", "inputs": ["3", "5"], "outputs": ["9", "25"]}})


def grade(verifier, problem, source, port, seconds=3.0):
    """A verdict. seconds: short for programs that are meant to run out of it, long for the others on a busy machine."""
    problem = dataclasses.replace(problem, extra_info=problem.extra_info | {"timeout": seconds})
    source = DENIED + source if "attempt(" in source else source
    source = source.replace("PORT", str(port)).replace("REPOSITORY", str(ROOT)).replace("MARK", MARK)
    return verifier(problem, f"Here it is.\n```python\n{source}\n```\n")


def unexpected(verifier, problem, programs, port=9):
    """(name, verdict) of the programs that did not fail, or not with a label that is acceptable."""
    verdicts = [
        (name, grade(verifier, problem, source, port, 0.2 if "<timeout>" in labels else 3.0), labels)
        for name, source, labels in programs
    ]
    return [(name, v) for name, v, labels in verdicts if v.status != "wrong" or v.label not in labels]


def processes_left(verifier) -> list[str]:
    """Command lines of the processes that a program may have left: forks of the server, and the marked program."""
    found = []
    base, launcher = verifier.sandbox._base, verifier.sandbox._process.pid
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != launcher:
            try:
                line = entry.joinpath("cmdline").read_text()
                parent = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            server = parent == launcher and verifier.sandbox.mode != "process"
            if (base in line and not server) or "31.4159" in line:
                found.append(f"{entry.name}: {line}")
    return found


def files_left(verifier) -> list[str]:
    folders = {"/", "/usr", "/etc", "/root", "/tmp", "/var/tmp", "/dev/shm", tempfile.gettempdir(), str(ROOT)}
    marked = [f"{folder}/{name}" for folder in folders if os.access(folder, os.R_OK) for name in os.listdir(folder)]
    base = verifier.sandbox._base
    return [path for path in marked if MARK in path] + (os.listdir(base) if os.path.exists(base) else [])


DENIED = """
class Denied(Exception): pass
class Harm(Exception): pass
import os, sys, time
def attempt(function):
    try:
        function()
    except BaseException as error:
        raise Denied(repr(error)) from None
    raise Harm
"""

WRITE = """
import os, json
def write(*messages):
    for m in messages:
        m = m if isinstance(m, bytes) else json.dumps(m).encode()
        os.write(3, m if m[:1] == b"\\xff" else len(m).to_bytes(4, "little") + m)
"""

FORGERIES = [
    ("os._exit when loaded", "import os\nos._exit(0)", {"Crashed"}),
    ("sys.exit when loaded", "import sys\nsys.exit(0)", {"SystemExit"}),
    ("os._exit in the call", "import os\ndef solve(x): os._exit(0)", {"Crashed"}),
    ("sys.exit in the call", "import sys\ndef solve(x): sys.exit(0)", {"SystemExit"}),
    ("quit", "quit()", {"SystemExit", "NameError"}),
    ("prints a verdict", 'print(\'{"status": "right"}\')\ndef solve(x): pass', {"WrongAnswer"}),
    (
        "writes a verdict to every descriptor",
        'import os\nfor fd in range(64):\n    try: os.write(fd, b\'{"status": "right"}\')\n    except OSError: pass\nos._exit(0)',
        {"Crashed"},
    ),
    (
        "floods the channel with answers",
        "import os, json\nm = json.dumps(['=', True, []]).encode()\nfor _ in range(50): os.write(3, len(m).to_bytes(4, 'little') + m)",
        {"WrongAnswer", "Crashed", "TypeError"},
    ),
    ("garbage on the channel", "import os\nos.write(3, b'\\xff' * 4096)\nos._exit(0)", {"Crashed"}),
    ("broken JSON on the channel", "import os\nos.write(3, b'\\x05\\0\\0\\0[[[[[')\nos._exit(0)", {"Crashed"}),
    (
        "a setup error on the channel",
        "import os, json\nm = json.dumps(['error', 'x']).encode()\nos.write(3, len(m).to_bytes(4, 'little') + m)\nos._exit(0)",
        {"error", "x", "Crashed"},
    ),
    (
        "an answer equal to everything",
        "class E:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    def __bool__(self): return True\ndef solve(x): return E()",
        {"WrongAnswer"},
    ),
    (
        "an int equal to everything",
        "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef solve(x): return E(0)",
        {"WrongAnswer"},
    ),
    (
        "a str, list and float equal to everything",
        "def make(t): return type('E', (t,), {'__eq__': lambda *_: True, '__ne__': lambda *_: False, '__hash__': None})\n"
        "def solve(x): return [make(str)(), make(list)(), make(float)()][x % 3]",
        {"WrongAnswer"},
    ),
    (
        "a metaclass that is equal to everything",
        "class M(type):\n    def __eq__(self, other): return True\n    __hash__ = type.__hash__\n"
        "    def __instancecheck__(self, other): return True\nclass E(metaclass=M): pass\ndef solve(x): return E",
        {"WrongAnswer"},
    ),
    (
        "patched built-ins",
        "import builtins\nfor n in ('all', 'any', 'isinstance', 'abs', 'len', 'bool', 'type', 'getattr'):\n"
        "    setattr(builtins, n, lambda *a, **k: True)\ndef solve(x): return 0",
        {"WrongAnswer", "Crashed", "TypeError", "Exception", "AttributeError", "bool"},
    ),
    (
        "patched harness",
        "import sys\nh = sys.modules['minirl.verify.code.harness']\nh.same = lambda *_: True\nh.run_calls = h.run_script = lambda *_: None\n"
        "h.judge = lambda *_: {'status': 'right'}\ndef solve(x): return 0",
        {"WrongAnswer"},
    ),
    (
        "an exception that claims to be a pass",
        "class right(BaseException):\n    status = 'right'\n    def __str__(self): return 'right'\ndef solve(x): raise right",
        {"right"},
    ),
    (
        "looks up the stack",
        "import sys\ndef solve(x):\n    frame = sys._getframe()\n    while frame:\n        for scope in (frame.f_locals, frame.f_globals):\n"
        "            for value in list(scope.values()):\n                text = repr(value)\n                if 'solve(%d) ==' % x in text:\n"
        "                    return int(text.split('solve(%d) ==' % x)[1].split()[0])\n        frame = frame.f_back\n    return None",
        {"WrongAnswer"},
    ),
    (
        "looks through all objects",
        "import gc\ndef solve(x):\n    for thing in gc.get_objects():\n        for text in [thing] + gc.get_referents(thing):\n"
        "            if type(text) is str and ' '.join(['assert', 'solve(']) in text: return x * x\n    return None",
        {"WrongAnswer", "Timeout", "<timeout>"},
    ),
    (
        "searches its memory",
        "import ctypes, re\ndef solve(x):\n    wanted = re.compile(rb'assert solve\\(%d\\) == (\\d+)' % x)\n"
        "    for line in open('/proc/self/maps'):\n        m = re.match(r'(\\w+)-(\\w+) rw', line)\n        if m:\n"
        "            a, b = (int(g, 16) for g in m.groups())\n            found = wanted.search(ctypes.string_at(a, b - a))\n"
        "            if found: return int(found[1])\n    return None",
        {"WrongAnswer", "FileNotFoundError", "PermissionError", "<timeout>", "MemoryLimit"},
    ),
    (
        "reads from every descriptor",
        "import os\ndef solve(x):\n    for fd in range(64):\n        if fd == 3: continue\n        try:\n            os.set_blocking(fd, False)\n"
        "            if b'solve' in os.read(fd, 1 << 20): return x * x\n        except OSError: pass\n    return None",
        {"WrongAnswer"},
    ),
    (
        "an exit handler that prints a verdict",
        'import atexit, os\natexit.register(lambda: [os.write(n, b\'{"status": "right"}\') for n in (1, 2)])\ndef solve(x): return 0',
        {"WrongAnswer"},
    ),
    (
        "a thread that answers",
        "import threading, os, json\nm = json.dumps(['=', 9, []]).encode()\n"
        "def run():\n    while True: os.write(3, len(m).to_bytes(4, 'little') + m)\n"
        "threading.Thread(target=run, daemon=True).start()\ndef solve(x): return None",
        {"WrongAnswer", "Crashed", "TypeError"},
    ),
    *[
        (f"writes {name} on the channel", f"{WRITE}write({message})", {"Crashed", "WrongAnswer", "TypeError", *labels})
        for name, message, labels in [
            ("a length without end", "b'\\xff\\xff\\xff\\x7f'", set()),
            ("half a message", "b'\\x05\\0\\0\\0[1'), __import__('time').sleep(9", {"<timeout>"}),
            ("an integer without end", "b'[\\\"=\\\",' + b'9' * 9999 + b']'", set()),
            ("nested lists", "b'[' * 10**6", set()),
            ("a set of lists", "['=', ['set', [['list', []]]], []]", set()),
            ("a tag of its own", "['=', ['eval', '9'], []]", set()),
            ("a built-in that is no type", "['=', ['type', 'eval'], []]", set()),
            ("a named tuple with source in its name", "['=', ['namedtuple', ['P', 'a=1): pass #'], [1]], []]", set()),
            ("a named tuple with __eq__", "['=', ['namedtuple', ['P', '__eq__'], [1]], []]", set()),
            ("a number that is none", "['=', ['Decimal', ['nine']], []]", set()),
            ("a fraction over zero", "['=', ['Fraction', [9, 0]], []]", set()),
            ("a handle of the judge's", "['=', ['yours', 1], []]", set()),
            ("a name of the judge's", "['=', ['yours', 'solve'], []]", set()),
            ("arguments that changed", "['=', None, [[0, 9], [-1, ['list', []]], [7, 1]]]", set()),
            ("no answer", "['=']", set()),
            ("an object as an answer", "{'=': 9}", set()),
            ("a call of the tests", "['?', 'call', 'check', [], {}]", set()),
            ("a look at the tests", "['?', 'getattr', 0, ['__globals__'], {}]", set()),
            ("an operation of its own", "['?', 'eval', 1, ['9'], {}]", set()),
            ("questions without end", "*[['?', 'call', 0, [], {}]] * 10**5", {"<timeout>"}),
        ]
    ],
    (
        "an object that lies about its class",
        "class E:\n    __class__ = int\n    def __int__(self): return 9\n    __index__ = __hash__ = __int__\ndef solve(x): return E()",
        {"WrongAnswer"},
    ),
    (
        "an object whose every operator says yes",
        "def yes(*_): return True\nE = type('E', (), {f'__{n}__': yes for n in 'eq ne lt le gt ge sub rsub contains bool abs'.split()})\ndef solve(x): return E()",
        {"WrongAnswer"},
    ),
    (
        "an object that rebuilds as the answer",
        "class E:\n    def __reduce__(self): return int, ('9',)\ndef solve(x): return E()",
        {"WrongAnswer"},
    ),
    ("a repr without end", "class E:\n    def __repr__(self): return repr(self)\ndef solve(x): return [E()]", {"WrongAnswer"}),
    (
        "a repr that exits",
        "import os\nclass E:\n    def __repr__(self): os._exit(0)\ndef solve(x): return E()",
        {"WrongAnswer", "Crashed"},
    ),
    ("patched JSON", "import json\njson.dumps = lambda m: '[\"=\", 9, []]'\ndef solve(x): pass", {"WrongAnswer", "TypeError"}),
    (
        "a trace of the harness",
        "import sys, threading\nseen = []\ndef look(frame, *_):\n    seen.extend(v for v in frame.f_locals.values() if type(v) is int and v > 5)\n    return look\n"
        "def solve(x):\n    sys.settrace(look)\n    sys._getframe(1).f_trace = look\n    return seen[-1] if seen else None",
        {"WrongAnswer"},
    ),
    (
        "an audit hook that raises",
        "import sys\ndef hook(*_): raise RuntimeError\nsys.addaudithook(hook)\ndef solve(x): return open('/x')",
        {"RuntimeError", "Crashed"},
    ),
    (
        "a timer that raises in the harness",
        "import signal\ndef ring(*_): raise SystemExit\nsignal.signal(signal.SIGALRM, ring)\nsignal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)\ndef solve(x): return None",
        {"WrongAnswer", "Crashed", "SystemExit"},
    ),
    (
        "a finalizer that answers",
        WRITE + "class E:\n    def __del__(self): write(['=', 9, []])\ndef solve(x): E()",
        {"WrongAnswer"},
    ),
    ("an exception with half a character", "raise type('E', (Exception,), {})('\\ud800')", {"E"}),
    ("a name without end", "raise type('E' * 10**6, (Exception,), {})('x' * 10**7)", {"E" * 60}),
    ("a table too large to send", "answer = solve = ['x' * 10**7] * 9", {"TypeError", "OutputLimit"}),
    (
        "a child that goes on as the program",
        "import os\nif os.fork(): os._exit(0)\ndef solve(x): return 0",
        {"WrongAnswer", "Crashed"},
    ),
    ("True for 1, 1 for True", "def solve(x): return x == 1", {"WrongAnswer"}),
    ("returns nan", "def solve(x): return float('nan')", {"WrongAnswer"}),
    ("an exception with a name of ours", "raise type('<timeout>', (Exception,), {})", {"Exception"}),
    ("asserts itself", "def solve(x): assert False", {"AssertionError"}),
    ("redefines check", "def check(c): pass\ndef test(): pass\nsolve = None", {"TypeError"}),
    ("no function", "answer = 9", {"NameError"}),
]

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

PROGRAMS = [  # read an integer from stdin, print its square
    (
        "answers and stops itself",
        "import os, signal\nprint(int(input()) ** 2, flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
        {"<timeout>"},
    ),
    ("closes everything", "import os\nos.closerange(0, 64)", {"Crashed", "WrongAnswer", "OSError"}),
    ("prints half a character", "print('\\ud800')", {"UnicodeEncodeError"}),
    ("prints bytes that are no text", "import os\nos.write(1, bytes(range(256)))", {"WrongAnswer"}),
    ("raises half a character", "raise Exception('\\ud800')", {"Exception"}),
    ("an integer of many digits", "print(9 ** 9 ** 5)", {"WrongAnswer"}),
    (
        "writes a report of its own",
        WRITE + "write(['!', ['a'] * 9, {'b': 1}], ['=', 1], b'[' * 5000)\nprint(1)",
        {"WrongAnswer"},
    ),
    ("a report with a label of ours", WRITE + "write(['!', '<timeout>', 'x'])", {"Exception"}),
    ("an exit handler that kills", "import atexit, os\nprint(int(input()) ** 2)\natexit.register(os.abort)", {"Crashed"}),
    (
        "a thread that goes on",
        "import threading\nprint(int(input()))\ndef run():\n    while True: pass\nthreading.Thread(target=run).start()",
        {"<timeout>"},
    ),
    (
        "a stdout of its own",
        "import sys\nclass E:\n    def write(self, t): pass\n    def flush(self): raise SystemExit(0)\nsys.stdout = E()\nprint(input())",
        {"WrongAnswer", "SystemExit"},
    ),
    ("floods stdout", "while True: print('x' * 10**5)", {"OutputLimit"}),
    ("prints and fails", "import sys\nprint(int(input()) ** 2)\nsys.exit(3)", {"SystemExit"}),
    ("prints and dies", "import os\nprint(int(input()) ** 2, flush=True)\nos._exit(3)", {"Crashed"}),
    ("exits before it prints", "import os\nos._exit(0)", {"WrongAnswer"}),
    ("claims to be right", 'print(\'{"status": "right"}\')', {"WrongAnswer"}),
    ("prints too much", "x = int(input())\nprint(*range(10000))", {"WrongAnswer"}),
    ("raises after the answer", "print(int(input()) ** 2)\n1 / 0", {"ZeroDivisionError"}),
    (
        "raises in an exit handler's place",
        "import atexit\natexit.register(lambda: print(9))\nprint(int(input()))",
        {"WrongAnswer"},
    ),
    ("waits for more input", "input()\ninput()", {"EOFError"}),
    (
        "leaves a child with its stdout",
        "import os, time\nif os.fork() == 0: time.sleep(31.4)\nprint(1)",
        {"WrongAnswer", "<timeout>"},
    ),
    (
        "closes its stdout and sleeps",
        "import os, time\nos.close(1)\ntime.sleep(99)",
        {"<timeout>", "Crashed", "WrongAnswer"},
    ),
]
