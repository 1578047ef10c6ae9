"""Nothing that a program does makes it pass, harms the machine, or leaves a process or a file behind."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from minirl.verify.code.sandbox import MODES, PREFIX, Sandbox, remove_stale_folders
from minirl.verify.pool.children import remove_folder
from minirl.verify.types import RIGHT, VerifierError
from tests.verify.code.hostile_programs import (
    CALLS,
    FORGERIES,
    HARM,
    PROGRAMS,
    ROOT,
    SCRIPT,
    STDIN,
    files_left,
    grade,
    processes_left,
    unexpected,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox's namespaces are Linux's")


@pytest.fixture(scope="module")
def listener():
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as abstract:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        port = tcp.getsockname()[1]
        abstract.bind(f"\0minirl-test-{port}")
        abstract.listen()
        yield port


def check_nothing_is_left(verifier):
    assert processes_left(verifier) == []
    assert files_left(verifier) == []


def test_there_are_at_least_forty_hostile_programs():
    names = [name for name, _, _ in FORGERIES + HARM + PROGRAMS]
    assert len(set(names)) == len(names) >= 40


@pytest.mark.parametrize("problem", [SCRIPT, CALLS], ids=["script", "calls"])
def test_no_forgery_passes(verifier, listener, problem):
    assert unexpected(verifier, problem, FORGERIES, listener) == []
    check_nothing_is_left(verifier)
    assert grade(verifier, problem, "def solve(x): return x * x", listener).status == RIGHT


def test_no_harm_is_done_and_nothing_is_left(verifier, listener):
    assert unexpected(verifier, SCRIPT, HARM, listener) == []
    check_nothing_is_left(verifier)
    assert grade(verifier, SCRIPT, "def solve(x): return x * x", listener).status == RIGHT


def test_hostile_programs_of_stdin_and_stdout(verifier, listener):
    assert unexpected(verifier, STDIN, PROGRAMS, listener) == []
    check_nothing_is_left(verifier)
    assert grade(verifier, STDIN, "print(int(input()) ** 2)", listener).status == RIGHT


# Of the machine's /tmp only what holds Python itself is seen, as in an environment that was made there.
# This checkout, which pytest puts on the path, is not a part of it, wherever it lies.
PYTHON_BELOW_TMP = sorted(
    {
        path.split("/")[2]
        for path in (sys.prefix, sys.base_prefix, *sys.path)
        if path.startswith("/tmp/") and not Path(path).is_relative_to(ROOT)
    }
)


def test_the_full_mode_shows_nothing_but_python():
    with Sandbox() as sandbox:
        if sandbox.mode != "full":
            pytest.skip(sandbox.describe())
        code = f"import os\nprint(sorted(os.listdir('/')), os.path.exists({str(ROOT)!r}), os.listdir('/tmp'), os.getpid())"
        output = sandbox.run_program(code, "")["output"]
    assert f"False {PYTHON_BELOW_TMP} 1" in output
    assert not {"home", "proc", "var", "etc"} & set(eval(output.split("]")[0] + "]"))


@pytest.fixture
def memory():
    """A folder in memory where there is one: thousands of folders are slow on some disks."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


def fill(folder: Path) -> None:
    """Too deep for recursion and for a path, unreadable, wide, with links that lead out."""
    here = os.getcwd()
    os.chdir(folder)
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(folder)
    os.mkdir("wide")
    for number in range(20_000):
        os.symlink("/", f"wide/{number}")
    os.makedirs("closed/inside")
    os.mkfifo("closed/inside/pipe")
    os.symlink(here, "closed/out")
    os.chmod("closed/inside", 0)
    os.chmod("closed", 0)
    os.chdir(here)


def test_a_folder_of_any_depth_is_removed_and_links_are_not_followed(memory):
    (memory / "program").mkdir()
    fill(memory / "program")
    assert remove_folder(str(memory / "program")) == ""
    assert not (memory / "program").exists()
    assert Path(__file__).exists()
    assert remove_folder(str(memory / "program")) == ""
    assert "could not be removed" in remove_folder(__file__)


def test_stale_folders_are_swept_and_what_must_stay_is_said(memory, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(memory))
    old, new, odd = (memory / f"{PREFIX}{name}" for name in ("old", "new", "odd"))
    old.mkdir()
    new.mkdir()
    odd.write_text("a file where a folder should be")
    fill(old)
    for path in (old, odd):
        os.utime(path, (0, 0))
    with pytest.warns(RuntimeWarning, match=f"{odd} could not be removed"):
        remove_stale_folders()
    assert (old.exists(), new.exists(), odd.exists()) == (False, True, True)


def test_it_says_what_is_in_force_and_what_is_missing():
    with Sandbox("process") as sandbox:
        text = sandbox.describe()
    assert "resource limits" in text.split("Missing")[0]
    assert "process namespace" in text.split("Missing")[1]
    with pytest.raises(VerifierError, match="unknown sandbox mode"):
        Sandbox("best")


def test_a_mode_in_which_python_lacks_modules_is_refused(monkeypatch):
    start = Sandbox._start

    def without_a_folder(self, mode):
        start(self, mode)
        self._paths["/no/such/folder"] = 3

    try:
        Sandbox("full").close()
    except VerifierError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(Sandbox, "_start", without_a_folder)
    with pytest.raises(VerifierError, match="would not see Python's modules in /no/such/folder"):
        Sandbox("full")


def test_a_lost_server_is_an_error_and_the_next_program_gets_a_new_one():
    with Sandbox("process") as sandbox:
        assert sandbox._process is not None
        sandbox._process.kill()
        assert sandbox.run_program("print(1)", "")["status"] == "error"
        assert sandbox.run_program("print(1)", "")["output"] == "1\n"


def test_programs_do_not_see_each_other():
    with Sandbox() as sandbox:
        write = "open('trace', 'w').write('x')\nimport builtins, math\nbuiltins.trace = math.trace = 1\nprint('done')"
        look = "import os, builtins, math\nprint(os.listdir('.'), hasattr(builtins, 'trace'), hasattr(math, 'trace'))"
        assert sandbox.run_program(write, "")["output"] == "done\n"
        below = PYTHON_BELOW_TMP if sandbox.mode == "full" else []
        assert sandbox.run_program(look, "")["output"] == f"{below} False False\n"


ORPHAN = """
import sys, os
from minirl.verify.code.sandbox import Sandbox
sandbox = Sandbox(sys.argv[1])
print(sandbox._base, flush=True)
sandbox.run_tests("import os, time\\nos.fork()\\nos.fork()\\ntime.sleep(99)", entry_point="f", tests="f()", seconds=60)
"""


@pytest.mark.parametrize("mode", MODES)
def test_nothing_survives_the_death_of_the_process_that_uses_it(mode):
    command = [sys.executable, "-c", ORPHAN, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True) as user:
        base = user.stdout.readline().strip()
        if not base:
            pytest.skip(user.stderr.read())

        def alive() -> int:
            count = 0
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        count += base in entry.joinpath("cmdline").read_text()
                    except OSError:
                        continue
            return count

        end = time.monotonic() + 5
        expected = 6 if mode == "process" else 7  # server, judge, four copies of the candidate; and the server's launcher
        while alive() < expected and time.monotonic() < end:
            time.sleep(0.02)
        assert alive() == expected
        user.kill()
        user.wait()
        end = time.monotonic() + 5
        while (alive() or Path(base).exists()) and time.monotonic() < end:
            time.sleep(0.02)
        assert alive() == 0
        assert not Path(base).exists()


AS_USER = """
import os, sys, tempfile
from minirl.verify.code.verifier import CodeVerifier
from tests.verify.code.hostile_programs import *
verifier = CodeVerifier(memory_mb=1024, sandbox=sys.argv[1])
print("mode", verifier.describe())
print("failed", unexpected(verifier, SCRIPT, HARM))
with tempfile.NamedTemporaryFile() as mine:
    os.chmod(mine.name, 0o640)
    calls = [f"os.chmod({mine.name!r}, 0)", f"os.utime({mine.name!r}, (0, 0))", f"open({mine.name!r}, 'r+')", "os.nice(-5)"]
    calls += [f"os.truncate({mine.name!r}, 0)", f"os.setxattr({mine.name!r}, 'user.x', b'')", "os.kill(os.getppid() or -9, 9)"]
    labels = {grade(verifier, SCRIPT, f"attempt(lambda: {call})", 9).label for call in calls}
    print("own", labels, oct(os.stat(mine.name).st_mode))
print("left", processes_left(verifier) + files_left(verifier))
print("right", grade(verifier, SCRIPT, "def solve(x): return x * x", 9).status)
verifier.close()
"""


def python_of_everybody() -> str | None:
    """An interpreter that an ordinary user may run: this one may be in a folder of root's."""
    for path in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin")):
        check = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"] if path else ["false"]
        with contextlib.suppress(OSError):
            if subprocess.run(check, user=54321, group=54321, extra_groups=[], check=False).returncode == 0:
                return path
    return None


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; then the other tests are these")
@pytest.mark.parametrize("mode", ["full", "process"])
def test_an_ordinary_user_is_protected_too(mode):
    python = python_of_everybody()
    if python is None:
        pytest.skip("no Python here that an ordinary user may run")
    result = subprocess.run(
        [python, "-B", "-c", AS_USER, mode],
        cwd=ROOT,
        user=54321,
        group=54321,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    if "no sandbox can be started" in result.stderr:
        pytest.skip(result.stderr.splitlines()[-1])
    assert "failed []\nown {'Denied'} 0o100640\nleft []\nright right\n" in result.stdout, result.stdout + result.stderr
