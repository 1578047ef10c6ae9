"""Signals and time limits; whole runs that are stopped are in tests/test_resume.py."""

import hashlib
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from minirl.run import signals as stop
from minirl.run.signals import Stop

ONE = SimpleNamespace(gather=list)  # a single rank


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_signal_asks_for_an_end_and_afterwards_all_is_as_before(capfd):
    before, threads = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)], set(threading.enumerate())
    with Stop(None, time.perf_counter()) as asked:
        assert not asked.asked(ONE)
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: asked.asked(ONE, begun=False))
        os.kill(os.getpid(), signal.SIGTERM)  # a second one is no Ctrl-C
    assert capfd.readouterr().err == "SIGTERM: the run ends after this step; Ctrl-C then ends it at once\n"
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert not set(threading.enumerate()) - threads  # a set and not a count: a thread of another test may end meanwhile
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_is_taken_where_nobody_can_be_told(monkeypatch):
    def broken(*_):
        raise BrokenPipeError

    with Stop(None, time.perf_counter()) as asked:
        monkeypatch.setattr("minirl.run.signals.os.write", broken)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: asked.asked(ONE, begun=False))
        assert asked.thread.is_alive(), "a second one is still taken"
        monkeypatch.undo()


def test_a_time_limit_counts_from_the_start_and_once_a_step_is_taken():
    assert not Stop("10s", time.perf_counter()).asked(ONE)
    late = Stop("10s", time.perf_counter() - 11)
    assert late.asked(ONE)
    assert not late.asked(ONE, begun=False)


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process with threads")
def test_a_second_interrupt_ends_a_process_whose_main_thread_hangs_in_native_code():
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not that of pytest
        signal.alarm(20)  # its end where the interrupts are not heard
        stop.ECHO = 0.1
        os.dup2(writer, 2)
        with Stop(None, 0.0):
            os.write(2, b"ready\n")
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # half an hour without a look at Python's signals
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        try:
            assert lines.readline() == "ready\n"
            time.sleep(0.2)  # it is in there now
            os.kill(pid, signal.SIGINT)
            assert lines.readline() == "SIGINT: the run ends after this step; Ctrl-C then ends it at once\n"
            time.sleep(0.3)
            os.kill(pid, signal.SIGINT)
            until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
            assert lines.readline() == "stopped at once\n"
        finally:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
