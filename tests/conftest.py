"""Threads whose waiting can be seen and jobs that end when told, so that tests force interleavings without sleeping."""
from __future__ import annotations

import contextlib
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from lzero_async.core import Closed, Taken
from lzero_async.gate import Gate

PATIENCE = 20.0  # seconds until a thread that should have gone on counts as stuck; never waited for where all is well


class Crew:
    """Threads of one test; every one of them must have ended when the test has."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call ``fn`` in a thread of its own."""
        future: Future[Any] = Future()

        def body() -> None:
            try:
                future.set_result(fn(*args))
            except BaseException as error:  # raised by whoever asks for the result
                future.set_exception(error)

        self._threads.append(threading.Thread(target=body, daemon=True))
        self._threads[-1].start()
        return future

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in self._threads), 'a thread is stuck'


class Watched(threading.Condition):
    """A condition that tells when a thread begins to wait on it: whoever gets the lock then finds it waiting."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self._begun: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(self, timeout: float | None = None) -> bool:
        self._begun.put(None)
        return super().wait(timeout)

    def expect_waiting(self, threads: int = 1) -> None:
        """Block until so many more waits have begun."""
        for _ in range(threads):
            self._begun.get(timeout=PATIENCE)

    def waits_begun(self) -> int:
        """Waits that have begun and were not expected yet."""
        return self._begun.qsize()


class Watch:
    """The three places where a thread can wait at a gate."""

    def __init__(self, gate: Any) -> None:
        self.admit = gate._may_collect = Watched(gate._lock)
        self.deliver = gate._may_deliver = Watched(gate._lock)
        self.take = gate._may_take = Watched(gate._lock)


def nothing() -> None:
    """A job that takes no time."""


class Held:
    """A job that tells that it runs and ends when told to."""

    def __init__(self, result: Any = None) -> None:
        self._result = result
        self._runs, self._go = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self) -> Any:
        self.thread = threading.current_thread()
        self._runs.set()
        assert self._go.wait(PATIENCE)
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result

    def expect_running(self) -> None:
        assert self._runs.wait(PATIENCE)

    def release(self) -> None:
        self._go.set()


def repeat(times: int, run: Callable[[Callable[[], Any]], Any], fn: Callable[[], Any]) -> None:
    for _ in range(times):
        run(fn)


def until_closed(run: Callable[[Callable[[], Any]], Any], fn: Callable[[], Any]) -> None:
    with contextlib.suppress(Closed):
        while True:
            run(fn)


class Learner:
    """The learner's side of the contract: updates, publication every ``interval`` updates, payment."""

    def __init__(self, gate: Gate[Any], interval: int = 1) -> None:
        self.gate, self.interval = gate, interval
        self.train_iter = self.version = self.env_steps = 0

    def learn(self, taken: Taken[Any], exact: Fraction | None, transitions: int = 1, undone: int = 0) -> int:
        """Do the updates that were granted, except the last ``undone``; how many were done."""
        granted = self.gate.grant(exact)
        rest = min(undone, granted)
        self.train_iter += granted - rest
        self.env_steps += transitions
        if self.train_iter - self.version >= self.interval:
            self.version = self.train_iter
        self.gate.pay(taken.number, granted - rest, rest=rest, train_iter=self.train_iter, env_steps=self.env_steps,
                      version=self.version)
        return granted - rest


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.join()


@pytest.fixture
def watch() -> Callable[[Any], Watch]:
    return Watch


# Upstream's C++ tree calls srand with the time of day on every traverse (ctree/common_lib/utils.cpp:12).
STUB = """
int rand(void) { return 4; }
void srand(unsigned int seed) { (void)seed; }
"""


@pytest.fixture(scope='session')
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library to preload, with which upstream's search does not draw from the time of day."""
    compiler = shutil.which('cc') or shutil.which('gcc') or shutil.which('clang')
    if compiler is None or sys.platform != 'linux':
        pytest.skip('no C compiler on Linux: the C++ tree draws from the time of day and cannot be pinned')
    directory = tmp_path_factory.mktemp('stub')
    (directory / 'stub.c').write_text(STUB)
    library = directory / 'stub.so'
    subprocess.run([compiler, '-shared', '-fPIC', '-o', library, directory / 'stub.c'], check=True)
    return library
