"""Grading in worker processes that can be killed at any moment.

    with VerifierPool("math", {"grader": "exact"}, workers=4, timeout=5.0) as pool:
        future = pool.submit(problem, response)          # starts at once; future.result() is a Verdict
        verdicts = pool.grade([(problem, response), ...])  # in order

verifier: "math", "code", "combine" or "path/to/file.py:function"; options go to its constructor in every worker.
timeout: seconds one response may take (for code: for problems whose tests name no limit of their own).

Promises:
* An item that takes longer than its deadline: its worker's process group is killed and replaced while the others go on;
  the verdict is status "wrong", label TIMEOUT. Items that were in the same message are asked again, never blamed.
* A worker that dies: the verdict of the item it was at is status "error" with the cause. An exception inside the
  verifier: status "error" naming the verifier and the problem. Both are counted in `pool.counts`.
* Equal questions (same problem, same response, no rollout extra_info) are asked once.
* A worker whose grader fails its self-test refuses to work, and VerifierPool(...) raises VerifierError.
* Usable from any thread. Workers end with the pool, and when this process ends in any way, SIGKILL included.

It never imports torch, never forks this process (a worker is a fresh interpreter: gloo and CUDA threads do not survive
a fork), and never runs the user's __main__ again.
"""

import atexit
import collections
import contextlib
import pickle
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from minirl.verify.code.verifier import pool_deadline
from minirl.verify.pool.worker import START_SECONDS, Worker, read_message
from minirl.verify.types import ERROR, TIMEOUT, WRONG, Problem, Verdict, VerifierError

BATCH = 32  # items a message, at most: a message costs about as much as ten easy answers
MAX_FAILED_STARTS = 3  # when no worker has ever been ready
GIVE_UP_SECONDS = 300.0  # without any worker, when there have been some: memory may be short for a while
REMEMBERED = 8192  # answered questions that are kept, so that repeats cost nothing


@dataclass(slots=True, eq=False)
class Item:
    problem: Problem
    response: str
    rollout: Mapping[str, Any] | None
    deadline: float
    key: tuple[str, ...] | None
    futures: list[Future] = field(default_factory=list)


class VerifierPool:
    """See the module's docstring. Constructing it waits until the first worker has passed its self-test."""

    def __init__(self, verifier: str, options: dict[str, Any] | None = None, workers: int = 2, timeout: float = 5.0) -> None:
        if workers < 1 or not timeout > 0:
            raise VerifierError(f"a pool needs workers >= 1 and timeout > 0, not {workers} and {timeout}")
        self.verifier, self.options, self.timeout = verifier, dict(options or {}), timeout
        if verifier == "code":
            self.options.setdefault("timeout", timeout)
        self.counts: collections.Counter[str] = collections.Counter()
        self._size = workers
        self._shares = verifier in ("math", "code")  # a custom reward may depend on more than the response
        self._lock = threading.Lock()
        self._pending: collections.deque[Item] = collections.deque()
        self._open: dict[tuple[str, ...], Item] = {}
        self._known: collections.OrderedDict[tuple[str, ...], Verdict] = collections.OrderedDict()
        self._broken: str | None = None
        self._closing = False
        self._asleep = False
        self._failed_starts, self._failing_since, self._next_start = 0, 0.0, 0.0
        self._workers: list[Worker] = []
        self._started = threading.Event()
        self._bell, self._ring = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        # Workers die with the thread that started them, so one thread starts them all and lives as long as the pool.
        self._thread = threading.Thread(target=self._manage, name="verifier-pool", daemon=True)
        self._thread.start()
        _pools.add(self)
        self._started.wait()
        if self._broken is not None:
            self.close()
            raise VerifierError(self._broken)

    def submit(self, problem: Problem, response: str, rollout: Mapping[str, Any] | None = None) -> Future:
        """A future of the Verdict. Grading starts at once. rollout: extra_info that a custom reward function reads."""
        future: Future = Future()
        # All that a verdict depends on: ids are unique within a data set only.
        extra_info = repr(problem.extra_info) if problem.extra_info else ""
        shared = self._shares and rollout is None
        key = (problem.id, problem.prompt, problem.answer, extra_info, response) if shared else None
        with self._lock:
            if self._broken is not None or self._closing:
                raise VerifierError(self._broken or "this pool is closed")
            self.counts["questions"] += 1
            if key is not None:
                if (verdict := self._known.get(key)) is not None:
                    future.set_result(verdict)
                    return future
                if (item := self._open.get(key)) is not None:
                    item.futures.append(future)
                    return future
            item = Item(problem, response, rollout, self._deadline(problem), key, [future])
            if key is not None:
                self._open[key] = item
            self._pending.append(item)
            wake, self._asleep = self._asleep, False
        if wake:
            self._ring.send(b"!")
        return future

    def grade(self, items: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        """The verdicts of (problem, response) pairs, in their order."""
        futures = [self.submit(problem, response) for problem, response in items]
        return [future.result() for future in futures]

    def close(self) -> None:
        """Kills the workers and reaps them; what was not graded yet is cancelled. May be called more than once."""
        with self._lock:
            self._closing = True
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            with contextlib.suppress(OSError):  # the thread has closed the bell already
                self._ring.send(b"!")
            self._thread.join()

    def __enter__(self) -> "VerifierPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _deadline(self, problem: Problem) -> float:
        names = [self.verifier, *(entry[0] for entry in self.options.get("rewards", ()))]
        return pool_deadline(problem, self.timeout) if "code" in names else self.timeout

    # Everything below runs in the pool's own thread.

    def _manage(self) -> None:
        try:
            while not self._closing and self._broken is None:
                while len(self._workers) < self._size and time.monotonic() >= self._next_start:
                    self._start_worker()
                self._hand_out()
                self._wait_and_read()
                self._kill_the_late()
        except Exception as error:
            self._broken = f"the verifier pool failed: {type(error).__name__}: {error}"
            raise
        finally:
            self._shut_down()

    def _start_worker(self) -> None:
        worker = Worker(self.verifier, self.options)
        self._workers.append(worker)
        self._selector.register(worker.socket, selectors.EVENT_READ, worker)

    def _hand_out(self) -> None:
        for worker in list(self._workers):
            if not worker.ready or worker.left:
                continue
            with self._lock:
                size = min(BATCH, max(1, len(self._pending) // (2 * self._size)))
                batch = [self._pending.popleft() for _ in range(min(size, len(self._pending)))]
            if not batch:
                continue
            self.counts["asked"] += len(batch)
            try:
                worker.send(batch)
            except (OSError, pickle.PicklingError, TypeError, AttributeError) as error:
                if isinstance(error, OSError):  # it died while idle, which is no item's fault: all are asked again
                    self._stop(worker)
                    self._remove(worker, None)
                else:  # something in extra_info that cannot be sent: find out whose fault by sending one at a time
                    worker.batch, worker.left = [], 0
                    self._blame(batch, error)

    def _blame(self, batch: list[Item], error: Exception) -> None:
        if len(batch) == 1:
            text = f"problem {batch[0].problem.id} cannot be sent to a worker: {type(error).__name__}: {error}"
            self._answer(batch[0], Verdict(ERROR, detail=text))
            return
        for item in batch:
            try:
                pickle.dumps((item.problem, item.rollout))
            except Exception as own:  # noqa: BLE001 - __reduce__ of a user's object may raise anything; it becomes a verdict
                self._blame([item], own)
            else:
                with self._lock:
                    self._pending.append(item)

    def _wait_and_read(self) -> None:
        now = time.monotonic()
        wait = min([1.0, *(worker.time_left(now) for worker in self._workers if worker.left or not worker.ready)])
        if len(self._workers) < self._size:
            wait = min(wait, self._next_start - now)
        with self._lock:
            idle = any(worker.ready and not worker.left for worker in self._workers)
            self._asleep = not (idle and self._pending)
        for key, _ in self._selector.select(max(0.0, wait) if self._asleep else 0.0):
            if key.data is None:
                self._bell.recv(4096)
                continue
            worker: Worker = key.data
            try:
                message = read_message(worker.socket)
            except OSError:
                message = None
            if message is None:
                self._lost(worker, gone=True)
            else:
                self._receive(worker, *message)
        with self._lock:
            self._asleep = False

    def _receive(self, worker: Worker, kind: str, content: Any) -> None:
        if kind == "ready":
            worker.ready, self._failed_starts = True, 0
            self._started.set()
        elif kind == "refused":
            self._broken = content
        else:
            for index, verdict in content:
                item = worker.batch[index]
                worker.batch[index] = None
                worker.left -= 1
                if item is not None:
                    self._answer(item, verdict)

    def _kill_the_late(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers):
            if (worker.left or not worker.ready) and worker.time_left(now) <= 0:
                if not worker.ready:
                    self._lost(worker, f"it was not ready after {START_SECONDS:.0f} s")
                    continue
                self._stop(worker)  # from here on the cell does not change
                item, start = worker.current()
                late = item is not None and now - start >= item.deadline  # else it went on in the last moment
                self._remove(worker, item if late else None)
                if late:
                    text = f"no verdict after {item.deadline:g} s; the worker was killed"
                    self._answer(item, Verdict(WRONG, label=TIMEOUT, seconds=item.deadline, detail=text))

    def _lost(self, worker: Worker, cause: str = "", gone: bool = False) -> None:
        """A worker that died or stopped talking: its current item is an error, the rest of its batch is asked again."""
        ending = self._stop(worker, gone)
        item = worker.current()[0] if worker.left else None
        ready = worker.ready
        self._remove(worker, item)
        cause = f"{cause} ({ending})" if cause else ending
        if item is not None:
            text = f"verifier {self.verifier}: the worker died on problem {item.problem.id}: {cause}"
            self._answer(item, Verdict(ERROR, detail=text))
        if not ready:
            self._start_failed(cause)

    def _start_failed(self, cause: str) -> None:
        """Tries again, later each time. Without any worker it gives up: at once at the beginning, else after a while."""
        now = time.monotonic()
        self._failing_since = self._failing_since if self._failed_starts else now
        self._failed_starts += 1
        self._next_start = now + min(0.1 * 2**self._failed_starts, 10.0)
        late = not self._started.is_set() or now - self._failing_since > GIVE_UP_SECONDS
        if self._failed_starts >= MAX_FAILED_STARTS and late and not any(worker.ready for worker in self._workers):
            self._broken = f"workers of verifier {self.verifier!r} do not start: {cause}"

    def _stop(self, worker: Worker, gone: bool = False) -> str:
        self._selector.unregister(worker.socket)
        return worker.stop(gone)

    def _remove(self, worker: Worker, answered: Item | None) -> None:
        """Takes a stopped worker out; what it left undone is asked again, but for the one item that is answered."""
        self._workers.remove(worker)
        self.counts["replaced workers"] += 1
        again = [item for item in worker.batch if item is not None and item is not answered]
        with self._lock:
            self._pending.extendleft(reversed(again))

    def _answer(self, item: Item, verdict: Verdict) -> None:
        self.counts["timeouts"] += verdict.label == TIMEOUT
        self.counts["errors"] += verdict.status == ERROR
        with self._lock:
            if item.key is not None:
                self._open.pop(item.key, None)
                if verdict.status != ERROR:
                    self._known[item.key] = verdict
                    if len(self._known) > REMEMBERED:
                        self._known.popitem(last=False)
            futures = item.futures
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_result(verdict)

    def _shut_down(self) -> None:
        for worker in self._workers:
            worker.stop()
        left = [item for worker in self._workers for item in worker.batch if item is not None]
        with self._lock:
            self._closing = True
            left += self._pending
            self._pending.clear()
            self._workers.clear()
        for future in (future for item in left for future in item.futures):
            if self._broken is None:
                future.cancel()
            elif future.set_running_or_notify_cancel():
                future.set_exception(VerifierError(self._broken))
        self._started.set()
        self._selector.close()
        self._bell.close()
        self._ring.close()


_pools: "weakref.WeakSet[VerifierPool]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
