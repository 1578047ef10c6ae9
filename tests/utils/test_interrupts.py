import os
import signal
import subprocess
import sys
import time

import pytest

from ..conftest import ROOT

PROGRAM = """
import sys, time
from minirl.utils.interrupts import say_interrupts
say_interrupts()
{work}
"""
WORK = {
    "in the work": "print('ready', flush=True)\ntime.sleep(60)",
    "in an error that it led to": "try:\n    print('ready', flush=True); time.sleep(60)\n"
    "except KeyboardInterrupt:\n    raise ImportError('half imported') from None",
    "in a finaliser": "class F:\n    def __del__(self):\n        print('ready', flush=True)\n        time.sleep(60)\nF()",
    "with a thread that does not end": "import threading\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    "print('ready', flush=True)\ntime.sleep(60)",
}


def left(group):
    """Whether a process group still has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def heeds_interrupts():
    """In the child: a shell starts what runs in its background with SIGINT ignored, and Python then leaves it so."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupted(command, ready):
    """(exit code, standard error, seconds it took) of a command whose process group gets SIGINT when `ready(its output)`."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heeds_interrupts,
    ) as p:
        ready(p)
        start = time.monotonic()
        os.killpg(p.pid, signal.SIGINT)
        said = p.communicate(timeout=30)[1]
        while left(p.pid) and time.monotonic() - start < 30:
            time.sleep(0.1)
        assert not left(p.pid)
        return p.returncode, said, time.monotonic() - start


@pytest.mark.parametrize("where", WORK)
def test_an_interrupt_is_one_line_and_130(where, tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAM.format(work=WORK[where]))
    code, said, seconds = interrupted([sys.executable, str(tmp_path / "mine.py")], lambda p: p.stdout.readline())
    assert (code, said.strip()) == (130, "mine.py: interrupted; start the same command again")
    assert seconds < 20


def test_another_error_is_shown_as_ever(tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAM.format(work="raise LookupError('this one')"))
    done = subprocess.run([sys.executable, str(tmp_path / "mine.py")], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "LookupError: this one" in done.stderr


COMMANDS = ["train.py", "eval.py embedded --benchmark rules --out OUT", "-m minirl.ablate --quick --out OUT",
            "-m minirl.analysis paper", "-m minirl.view OUT", "-m minirl.verify OUT", "-m minirl.tiny.make rules OUT",
            "-m benchmarks.estimators"]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_ends_so_while_it_imports(command, tmp_path):
    """Held up in its first import of a package that takes long; before that lies what Python itself imports."""
    blocked = tmp_path / "sitecustomize.py"
    blocked.write_text(
        "import sys, time\nclass Wait:\n    def find_spec(self, name, path, target=None):\n"
        "        if name in ('numpy', 'yaml', 'torch', 'tqdm', 'sympy', 'minirl.verify.registry'):\n"
        "            print('ready', flush=True)\n            time.sleep(60)\n"
        "sys.meta_path.insert(0, Wait())\n"
    )
    words = [word.replace("OUT", str(tmp_path / "out")) for word in command.split()]
    environment = ["env", f"PYTHONPATH={tmp_path}:{ROOT}", sys.executable, *words]
    code, said, _ = interrupted(environment, lambda p: p.stdout.readline())
    assert code == 130
    assert said.strip().endswith(": interrupted; start the same command again")
    assert "Traceback" not in said
