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
from tests.verify.code.hostile_forgeries import FORGERIES as FORGERIES
from tests.verify.code.hostile_forgeries import WRITE
from tests.verify.code.hostile_harm import HARM as HARM

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
