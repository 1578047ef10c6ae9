"""No program learns anything of another one: neither by frames, nor by objects, nor by memory that was used before."""

import os
import platform
import socket
import subprocess
import sys
import tempfile

import pytest

from minirl.verify.code import syscalls
from minirl.verify.types import RIGHT, WRONG, Problem
from tests.verify.code.hostile_programs import DENIED, ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")


SECRET = "SECRET" + ":481516"
# Each defines look(), which returns the digits of a secret that it finds, or "".
FIND = """
import re
PATTERN = re.compile('SECRET' + ':([0-9]{6})')
def first(texts):
    return next((m[1] for t in texts if (m := PATTERN.search(t))), '')
"""
THIEVES = {
    "frames": """
import sys
def look():
    texts, frame = [], sys._getframe()
    while frame:
        texts += [repr(list(frame.f_locals.values())), repr(list(frame.f_globals.values()))]
        for value in list(frame.f_locals.values()):
            texts += [repr(getattr(value, "__dict__", ""))]
        frame = frame.f_back
    return first(texts)
""",
    "a generator's and a traceback's frames": """
import sys
def look():
    texts = []
    try:
        1 / 0
    except ZeroDivisionError as error:
        frame = error.__traceback__.tb_frame
    while frame:
        texts.append(repr(frame.f_locals))
        frame = frame.f_back
    for frame in sys._current_frames().values():
        while frame:
            texts.append(repr(frame.f_locals))
            frame = frame.f_back
    return first(texts)
""",
    "all objects": """
import gc
def look():
    gc.unfreeze()
    things = gc.get_objects()
    things += [x for t in things for x in gc.get_referents(t)]
    return first(t if isinstance(t, str) else t.decode('latin-1') for t in things if isinstance(t, (str, bytes, bytearray)))
""",
    "modules": """
import sys
def look():
    return first(repr(vars(m)) for m in list(sys.modules.values()) if hasattr(m, '__dict__'))
""",
    "memory by way of the kernel": """
import ctypes, os
def pages():
    c = ctypes.CDLL(None)
    c.sbrk.restype = ctypes.c_void_p
    c.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    places = {c.sbrk(0) >> 24, id(object()) >> 24, id(bytearray(1 << 20)) >> 24, ctypes.addressof(ctypes.c_int()) >> 24}
    places |= {ctypes.cast(ctypes.create_string_buffer(1 << n), ctypes.c_void_p).value >> 24 for n in (10, 16, 20, 24)}
    file = os.memfd_create('pages')
    for place in sorted({p + d for p in places for d in range(-3, 2)}):
        for page in range(place << 24, (place + 1) << 24, 1 << 16):
            os.ftruncate(file, 0)
            os.lseek(file, 0, 0)
            for part in range(page, page + (1 << 16), 1 << 12):
                c.write(file, part, 1 << 12)
            yield os.pread(file, 1 << 16, 0).decode('latin-1')
def look():
    return first(pages())
""",
    "memory through /proc": """
def pages():
    with open('/proc/self/mem', 'rb') as memory:
        for line in open('/proc/self/maps'):
            low, high = (int(n, 16) for n in line.split()[0].split('-'))
            if 'rw' in line:
                memory.seek(low)
                yield memory.read(high - low).decode('latin-1')
def look():
    try:
        return first(pages())
    except OSError:
        return ''
""",
    "descriptors and files": """
import os
def pages():
    for fd in range(4, 256):
        try: yield os.pread(fd, 1 << 20, 0).decode('latin-1')
        except OSError: pass
    for top in ('.', '..', '/tmp', '/dev/shm', '/var/tmp'):
        for (folder, _, names), _ in zip(os.walk(top), range(99)):
            for name in names[:99]:
                path = os.path.join(folder, name)
                try: yield open(path, 'rb').read(1 << 20).decode('latin-1') if os.path.isfile(path) else ''
                except OSError: pass
def look():
    return first(pages())
""",
}
STDIN = {"type": "stdin_stdout", "inputs": ["1"], "outputs": [SECRET]}
CALL = {"type": "call", "inputs": [[1]], "outputs": [SECRET]}
SCRIPT = f"EXPECTED = {SECRET!r}\nassert solve(1) == EXPECTED, f'expected {{EXPECTED}}'"


def test_there_are_seven_thieves():
    assert len(THIEVES) == 7


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stdin", "call", "script"])
def test_of_an_honest_program_and_seven_thieves_one_is_right(verifier, kind):
    tests, wrap = {
        "stdin": (STDIN, "{body}\nprint('SECRET' + ':' + look())"),
        "call": (CALL, "{body}\ndef solve(x): return 'SECRET' + ':' + look()"),
        "script": (SCRIPT, "{body}\ndef solve(x): return 'SECRET' + ':' + look()"),
    }[kind]
    honest = f"KEY = {SECRET!r} * 1000\n" + (f"print({SECRET!r})" if kind == "stdin" else f"def solve(x): return {SECRET!r}")
    wrong = f"# not {SECRET}\n" + ("print(0)" if kind == "stdin" else "def solve(x): return 0")
    problem = Problem("p", "", "", {"tests": tests, "entry_point": "solve", "timeout": 10.0})
    programs = [wrong, honest, *(wrap.format(body=FIND + body) for body in THIEVES.values())]
    verdicts = [verifier(problem, f"```python\n{program}\n```") for program in programs]
    assert verdicts[1].status == RIGHT, verdicts[1]
    found = [name for name, verdict in zip(THIEVES, verdicts[2:], strict=True) if verdict.status != WRONG]
    assert found == []
    assert {verdict.label for verdict in verdicts[2:]} <= {"WrongAnswer", "Crashed", "MemoryLimit"}, verdicts


def test_a_thief_finds_what_its_own_process_has_seen(verifier):
    """The thieves are no straw men: what is in their own memory they find."""
    problem = Problem("p", "", "", {"tests": STDIN, "timeout": 10.0})
    for name in ("frames", "all objects", "modules", "memory by way of the kernel"):
        program = f"{FIND}{THIEVES[name]}\nkept = 'SECRET' + ':' + str(int('481516'))\nprint('SECRET' + ':' + look())"
        assert verifier(problem, f"```python\n{program}\n```").status == RIGHT, name


ASKS = [  # a call of the C library that must fail, by (number on x86-64, number on arm64, arguments)
    ("datagrams", (41, 198), "1, 2, 0"),
    ("datagrams in pairs", (53, 199), "1, 2, 0, bytes(8)"),
    ("sequences of packets in pairs", (53, 199), "1, 5, 0, bytes(8)"),
    ("pairs of another family", (53, 199), "30, 1, 0, bytes(8)"),
    ("streams by name", (41, 198), "1, 1, 0"),
    ("to attach shared memory", (30, 196), "0, 0, 0"),
    ("to control shared memory", (31, 195), "0, 2, bytes(200)"),
    ("messages of a queue", (70, 188), "0, bytes(64), 8, 0, 2048"),
    ("to send to a queue", (69, 189), "0, bytes(64), 8, 2048"),
    ("to control a queue", (71, 187), "0, 2, bytes(200)"),
    ("semaphores of others", (65, 193), "0, bytes(6), 1"),
    ("attributes by descriptor", (463, 463), "-100, b'.', 0, b'user.x', bytes(32), 32"),
    ("to remove attributes by descriptor", (466, 466), "-100, b'.', 0, b'user.x'"),
    ("attributes of a file", (469, 469), "-100, b'.', bytes(32), 24, 0"),
    ("a call that no kernel has yet", (499, 499), "0"),
    ("the x32 form of a socket", (0x40000029, 198), "1, 2, 0"),
    ("asynchronous reading", (206, 0), "8, bytes(8)"),
    ("a quota", (179, 60), "0, b'/', 0, bytes(99)"),
    ("a clock of its own", (227, 112), "0, bytes(16)"),
    ("a table of segments", (154, 999), "0, bytes(16), 16"),
    ("watching everything", (300, 262), "0, 0"),
]


def test_calls_that_are_not_listed_are_refused(verifier):
    column = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
    if column is None:
        pytest.skip("no table for this machine")
    code = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\nfor name, number, arguments in ["
    code += ", ".join(f"({name!r}, {numbers[column]}, ({arguments},))" for name, numbers, arguments in ASKS)
    code += "]:\n    ctypes.set_errno(0)\n    done = c.syscall(number, *arguments)\n    print(name, done, ctypes.get_errno())"
    outcome = verifier.sandbox.run_program(code, "")
    rows = [line.rsplit(" ", 2) for line in outcome["output"].splitlines()]
    assert [row[0] for row in rows] == [name for name, _, _ in ASKS], outcome
    assert [row for row in rows if row[1] != "-1" or row[2] not in ("1", "38")] == []  # EPERM, ENOSYS


def test_a_datagram_socket_of_somebody_else_hears_nothing(verifier):
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        os.chmod(folder, 0o755)
        listener.bind(f"{folder}/s")
        os.chmod(f"{folder}/s", 0o777)
        listener.setblocking(False)
        code = f"""{DENIED}
import socket
def send(make):
    for s in make():
        s.sendto(b'x', {folder + "/s"!r})
for make in (lambda: [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)], lambda: socket.socketpair(),
             lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
             lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)):
    try: attempt(lambda: send(make))
    except Denied: print('denied')
a, b = socket.socketpair()
a.sendall(b'hello')
print(b.recv(5).decode())
"""
        assert verifier.sandbox.run_program(code, "")["output"] == "denied\n" * 4 + "hello\n"
        with pytest.raises(BlockingIOError):
            listener.recv(9)


def test_the_tables_of_system_calls_hold_no_number_twice():
    for column in (1, 2):
        names = syscalls.numbers_of(syscalls.ALLOWED + syscalls.ON_FILES, column)
        assert len(set(names.values())) == len(names) > 150
    assert syscalls.ranges([7, 1, 3, 2]) == [(1, 3), (7, 7)]


PROBE = r"""
import sys, tempfile
from minirl.verify.code.verifier import CodeVerifier
from minirl.verify.types import Problem
verifier = CodeVerifier(sandbox="full")
tests = {"type": "stdin_stdout", "inputs": [""], "outputs": ["1 ok"]}
code = "import csv, wave, special_module\nopen('/tmp/x', 'w').write('1')\nprint(open('/tmp/x').read(), special_module.WORD)"
print(sys.prefix, verifier(Problem("p", "", "", {"tests": tests}), f"```python\n{code}\n```"))
code = f"open({sys.prefix + '/x'!r}, 'w')"
print(verifier(Problem("p", "", "", {"tests": tests}), f"```python\n{code}\n```").label)
verifier.close()
"""


def test_a_virtual_environment_below_tmp_keeps_its_modules_in_mode_full():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", f"{folder}/deep/venv"], check=True)
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        with open(f"{folder}/deep/venv/lib/{version}/site-packages/special_module.py", "w") as file:
            file.write("WORD = 'ok'\n")
        command = [f"{folder}/deep/venv/bin/python", "-c", PROBE]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if "no sandbox can be started" in result.stderr:
            pytest.skip(result.stderr.splitlines()[-1])
        assert "status='right'" in result.stdout, result.stdout + result.stderr
        assert result.stdout.splitlines()[0].startswith(f"{folder}/deep/venv ")
        assert result.stdout.splitlines()[1] == "OSError"  # read-only
