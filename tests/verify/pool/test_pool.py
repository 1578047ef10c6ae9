"""The pool: nothing hangs it, nothing is lost, nothing stays behind. The verifiers here are small files."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from minirl.verify.pool.pool import VerifierPool
from minirl.verify.pool.worker import INDEX, START, read_message, serve, write_message
from minirl.verify.types import ERROR, RIGHT, TIMEOUT, WRONG, Problem, VerifierError

ROOT = Path(__file__).parents[3]
SOURCE = '''
import os, sys, time
from minirl.verify import Verdict

CALLS = 0

def grade(problem, response, rollout):
    """What the response asks for: "sleep", "die", "raise", "exit", "sys", "who", or an answer."""
    global CALLS
    CALLS += 1
    if response == "sleep":
        time.sleep(60)
    if response == "spin":
        while True:
            pass
    if response == "bignum":
        10 ** (10 ** 10)
    if response == "family":
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        time.sleep(60)
    if response == "session":
        import subprocess
        subprocess.Popen(["sh", "-c", "(sleep 31.41593 &) ; sleep 31.41593"], start_new_session=True)
        time.sleep(60)
    if response == "die":
        os.kill(os.getpid(), 9)
    if response == "exit":
        sys.exit(0)
    if response == "leave":
        os._exit(3)
    if response == "raise":
        raise ValueError("no such luck")
    if response == "torch":
        return float("torch" in sys.modules)
    if response == "threads":
        return float(os.environ["OMP_NUM_THREADS"])
    if response == "main":
        return float(hasattr(sys.modules["__main__"], "I_AM_THE_TEST"))
    if response == "print":
        print("noise on stdout")
    if response.startswith("pid"):
        time.sleep(0.02)
        return float(os.getpid())
    if response == "calls":
        return float(CALLS)
    return float(response == problem.answer)
'''


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "behaves.py"
    path.write_text(SOURCE)
    return f"{path}:grade"


def problem(number: int = 0, answer: str = "42") -> Problem:
    return Problem(id=f"p{number}", prompt="", answer=answer)


def children(pid: int) -> list[int]:
    """Direct and indirect children of a process, zombies included."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found, ring = [], {pid}
    while ring:
        ring = {child for child, parent in parents.items() if parent in ring}
        found += ring
    return found


def wait_until(condition, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def test_verdicts_come_in_order(verifier):
    with VerifierPool(verifier, workers=2) as pool:
        items = [(problem(i, str(i)), str(i if i % 3 else -1)) for i in range(200)]
        verdicts = pool.grade(items)
    assert [v.status for v in verdicts] == [RIGHT if i % 3 else WRONG for i in range(200)]


@pytest.mark.parametrize("response", ["sleep", "spin", "bignum", "family"])
def test_a_stuck_item_times_out_alone_and_its_worker_is_replaced(verifier, response):
    with VerifierPool(verifier, workers=2, timeout=0.5) as pool:
        start = time.monotonic()
        items = [(problem(i), response if i == 40 else "42") for i in range(100)]
        verdicts = pool.grade(items)
        seconds = time.monotonic() - start
        assert [i for i, v in enumerate(verdicts) if v.status != RIGHT] == [40]
        assert (verdicts[40].status, verdicts[40].label) == (WRONG, TIMEOUT)
        assert seconds < 4
        assert pool.counts["timeouts"] == 1
        assert pool.grade([(problem(), "42")])[0].status == RIGHT
        assert len(children(os.getpid())) <= 2
    assert children(os.getpid()) == []


@pytest.mark.parametrize(("response", "cause"), [("die", "SIGKILL"), ("leave", "exit code 3")])
def test_a_crash_is_an_error_with_its_cause_and_spares_the_neighbours(verifier, response, cause):
    with VerifierPool(verifier, workers=1) as pool:
        verdicts = pool.grade([(problem(i), response if i == 5 else "42") for i in range(20)])
    assert [i for i, v in enumerate(verdicts) if v.status != RIGHT] == [5]
    assert verdicts[5].status == ERROR
    assert cause in verdicts[5].detail
    assert "p5" in verdicts[5].detail


@pytest.mark.parametrize("response", ["raise", "exit"])
def test_an_exception_of_the_verifier_is_an_error_that_names_it_and_the_problem(verifier, response):
    with VerifierPool(verifier, workers=1) as pool:
        bad, good = pool.grade([(problem(7), response), (problem(8), "42")])
        assert pool.counts["replaced workers"] == 0
    assert (bad.status, good.status) == (ERROR, RIGHT)
    assert "behaves.py:grade" in bad.detail
    assert "p7" in bad.detail
    assert ("no such luck" in bad.detail) == (response == "raise")


I_AM_THE_TEST = True


def test_workers_are_clean_processes(verifier):
    """No torch, one BLAS thread, not this __main__; a printing verifier does not disturb the protocol."""
    with VerifierPool(verifier, workers=1) as pool:
        rewards = [v.reward for v in pool.grade([(problem(), r) for r in ("torch", "threads", "main", "print")])]
    assert rewards == [0.0, 1.0, 0.0, 0.0]


def test_submitting_does_not_wait_and_all_workers_take_part(verifier):
    with VerifierPool(verifier, workers=2) as pool:
        start = time.monotonic()
        futures = [pool.submit(problem(i), f"pid{i}") for i in range(40)]
        assert time.monotonic() - start < 40 * 0.02 / 2, "less than two workers need"
        assert len({future.result().reward for future in futures}) == 2


def test_a_worker_says_since_when_before_it_says_what(verifier):
    """The pool reads the two numbers at any moment: a new item must never stand beside no start or an old one."""
    writes: list[tuple[int, float]] = []

    class Cell:
        def __setitem__(self, place: int, value: float) -> None:
            writes.append((place, value))

    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=serve, args=(theirs, Cell()))
        thread.start()
        before = time.monotonic()
        write_message(ours, (verifier, {}))
        assert read_message(ours)[0] == "ready"
        write_message(ours, [(problem(i), "42", None) for i in range(3)])
        answered = 0
        while answered < 3:
            answered += len(read_message(ours)[1])
        ours.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert [place for place, _ in writes] == [START, INDEX] * 3 + [INDEX]
    assert [value for place, value in writes if place == INDEX] == [0, 1, 2, -1]
    starts = [value for place, value in writes if place == START]
    assert before < starts[0] <= starts[1] <= starts[2] < time.monotonic()


def test_many_threads_may_share_a_pool(verifier):
    results: dict[int, list] = {}
    with VerifierPool(verifier, workers=2) as pool:

        def ask(number):
            results[number] = pool.grade([(problem(i, str(number)), str(number)) for i in range(50)])

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == list(range(8))
    assert all(v.status == RIGHT for verdicts in results.values() for v in verdicts)


def test_a_pool_outlives_the_thread_that_made_it(verifier):
    pools = []
    thread = threading.Thread(target=lambda: pools.append(VerifierPool(verifier, workers=1)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with pools[0] as pool:
        pids = children(os.getpid())
        assert pool.grade([(problem(), "42")])[0].status == RIGHT
        assert children(os.getpid()) == pids


def test_closing_cancels_and_leaves_no_process(verifier):
    pool = VerifierPool(verifier, workers=2)
    futures = [pool.submit(problem(i), "family") for i in range(6)]
    time.sleep(0.3)
    pool.close()
    pool.close()
    assert children(os.getpid()) == []
    assert all(future.cancelled() for future in futures)
    with pytest.raises(VerifierError, match="closed"):
        pool.submit(problem(), "42")


@pytest.mark.parametrize(
    ("name", "words"),
    [("maths", "unknown verifier 'maths'"), ("/no/such/file.py:f", "/no/such/file.py"), ("math", "refuses to work")],
)
def test_a_verifier_that_cannot_work_is_refused_at_once(name, words):
    options = {"grader": "no such grader"} if name == "math" else {}
    with pytest.raises(VerifierError, match=words):
        VerifierPool(name, options, workers=2)
    assert children(os.getpid()) == []


def test_a_failing_self_test_is_a_clear_error(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(
        "class Broken:\n    def self_test(self): return False\n    def __call__(self, *_): return 1.0\ngrade = Broken()\n"
    )
    with pytest.raises(VerifierError, match="self-test"):
        VerifierPool(f"{path}:grade", workers=1)


def test_a_session_that_a_reward_started_ends_with_its_worker(verifier):
    def sleepers() -> int:
        count = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    count += b"31.41593" in entry.joinpath("cmdline").read_bytes()
        return count

    with VerifierPool(verifier, workers=1, timeout=30) as pool:
        pool.submit(problem(), "session")
        assert wait_until(lambda: sleepers() == 3)  # the shell, the daemon that left it, and its own child
    assert wait_until(lambda: sleepers() == 0)


@pytest.mark.slow
def test_workers_that_are_killed_while_they_start_are_tried_again(tmp_path):
    """As when memory is short for a while. When no worker ever starts, it is said at once."""
    flag, path = tmp_path / "short", tmp_path / "grade.py"
    path.write_text(
        f"import os\nif os.path.exists({str(flag)!r}): os.kill(os.getpid(), 9)\n"
        "def grade(problem, response, rollout):\n    return os.kill(os.getpid(), 9) if response == 'die' else 1.0\n"
    )
    with VerifierPool(f"{path}:grade", workers=1) as pool:
        flag.touch()
        assert pool.grade([(problem(), "die")])[0].status == ERROR
        assert wait_until(lambda: pool.counts["replaced workers"] > 4, 30.0)
        later = pool.submit(problem(), "42")
        flag.unlink()
        assert later.result(timeout=30).status == RIGHT
        flag.touch()
    with pytest.raises(VerifierError, match="do not start: killed by SIGKILL"):
        VerifierPool(f"{path}:grade", workers=1)


PARENT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits it ignored
import sys, threading, time
from minirl.verify.types import Problem
from minirl.verify.pool.pool import VerifierPool
if __name__ == "__main__":
    pool = VerifierPool(sys.argv[1], workers=2, timeout=30)
    futures = [pool.submit(Problem(f"p{i}", "", "42"), "bignum") for i in range(2)]
    time.sleep(0.3)
    print("ready", flush=True)
    if sys.argv[2] == "exit":
        sys.exit(0)
    time.sleep(60)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, "exit"])
def test_no_orphans_however_the_parent_ends(verifier, tmp_path, end):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), verifier, str(end)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as parent:
        assert parent.stdout is not None
        if end != "exit":
            assert parent.stdout.readline() == b"ready\n"
            workers = children(parent.pid)
            assert len(workers) == 2
            parent.send_signal(end)
        else:
            assert wait_until(lambda: len(children(parent.pid)) == 2)
            workers = children(parent.pid)
            parent.stdout.readline()
        parent.wait(timeout=10)
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


RANK = """
import sys
from minirl.verify.types import Problem
from minirl.verify.pool.pool import VerifierPool
if __name__ == "__main__":
    with VerifierPool(sys.argv[1], workers=2) as pool:
        verdicts = pool.grade([(Problem(f"p{i}", "", sys.argv[2]), sys.argv[2]) for i in range(300)])
    print(sum(v.status == "right" for v in verdicts))
"""


def test_two_ranks_have_pools_beside_each_other(verifier):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RANK, verifier]
    ranks = [subprocess.Popen([*command, rank], stdout=subprocess.PIPE, env=environment) for rank in "01"]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == [b"300\n", b"300\n"]


def test_equal_questions_are_asked_once(verifier):
    with VerifierPool(verifier, workers=1) as pool:
        pool._shares = True  # as for the graders that ship with minirl, which depend on the response only
        futures = [pool.submit(problem(i % 2), "42") for i in range(10)] + [pool.submit(problem(), "calls")]
        assert [f.result().reward for f in futures] == [1.0] * 10 + [3.0]
        assert pool.counts["asked"] == 3
        assert pool.counts["questions"] == 11


def test_facts_that_cannot_be_sent_are_an_error_of_their_own_problem(verifier):
    stuck = Problem("p1", "", "42", {"lock": threading.Lock()})
    with VerifierPool(verifier, workers=1) as pool:
        verdicts = pool.grade([(problem(0), "42"), (stuck, "42"), *[(problem(i), "42") for i in range(2, 50)]])
    assert [i for i, v in enumerate(verdicts) if v.status != RIGHT] == [1]
    assert verdicts[1].status == ERROR
    assert "cannot be sent" in verdicts[1].detail
