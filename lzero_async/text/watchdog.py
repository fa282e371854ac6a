"""
Names the game interpreter as the cause where it hangs.

A step of the interpreter is a call into C that nothing in Python can break off, but it lets other threads run. One
thread per process looks at the calls under way. It sleeps until the earliest of them would be overdue, so calls that
take microseconds never wake it, and it ends where there is nothing to look at.
"""
from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from ..placement.process import last_words

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Call:
    what: str
    timeout_s: float
    deadline: float
    thread: int

    def cause(self) -> str:
        return f'the game interpreter hung for {self.timeout_s:g} s in {self.what}'

    def stack(self) -> str:
        frame = sys._current_frames().get(self.thread)
        return ''.join(traceback.format_stack(frame)) if frame else ''


class Watchdog:
    """One per process; its thread is a daemon, as a hanging call must not keep the process from its end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # protects what follows; waited on by the thread alone
        self._calls: set[_Call] = set()
        self._wakes_at: float | None = None  # None while there is no thread

    @contextlib.contextmanager
    def watching(self, what: str, timeout_s: float) -> Iterator[None]:
        """Around one call into the interpreter."""
        call = _Call(what, timeout_s, time.monotonic() + timeout_s, threading.get_ident())
        with self._changed:
            self._calls.add(call)
            if self._wakes_at is None:
                self._wakes_at = call.deadline
                threading.Thread(target=self._look, name='game-watchdog', daemon=True).start()
            elif call.deadline < self._wakes_at:
                self._wakes_at = call.deadline
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._calls.discard(call)

    def _look(self) -> None:
        with self._changed:
            while self._calls:
                self._wakes_at = min(call.deadline for call in self._calls)
                self._changed.wait(max(0.0, self._wakes_at - time.monotonic()))
                for call in [call for call in self._calls if call.deadline <= time.monotonic()]:
                    self._calls.discard(call)  # told once
                    if not last_words(call.cause(), call.stack()):
                        # In the driver's own process there is no way to end the call.
                        logger.error('%s; it cannot be ended here, only in a worker process', call.cause())
            self._wakes_at = None


_watchdog = Watchdog()


def watching(what: str, timeout_s: float) -> contextlib.AbstractContextManager[None]:
    """Around one call into the interpreter: after ``timeout_s`` a worker process ends and the driver says why."""
    return _watchdog.watching(what, timeout_s)


def _anew() -> None:
    """A forked process has a copy of the calls under way, but no thread."""
    global _watchdog
    _watchdog = Watchdog()


os.register_at_fork(after_in_child=_anew)
