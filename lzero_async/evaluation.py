"""One evaluation at a time, beside everything else: one may run, one may wait, and the latest wins that place."""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .core import Closed


def _nothing() -> None:
    """What there is to do when nobody asked for more."""


class EvalDesk:
    """
    Owns the thread on which background evaluations run. Its condition protects the waiting place and the result;
    only ``wait`` and ``close`` block, for as long as an evaluation takes.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._waiting: Callable[[], Any] | None = None
        self._drop_waiting: Callable[[], None] = _nothing
        self._running = False
        self._closed = False
        self._result: Any = None
        self._error: BaseException | None = None
        self.replaced = 0  # evaluations that waited and were overtaken by a later one

    def submit(self, fn: Callable[[], Any], dropped: Callable[[], None] | None = None) -> None:
        """
        Run ``fn`` as soon as the running one is done, in place of any other that waits; ``dropped`` is called where
        that never happens. Raises the error of an earlier one, and ``Closed`` after the end.
        """
        with self._changed:
            self._raise_error()
            if self._closed:
                raise Closed
            self._drop()
            self._waiting, self._drop_waiting = fn, dropped or _nothing
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name='lzero-async-eval', daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closed)
                fn, self._waiting = self._waiting, None
                if fn is None:
                    return
                self._running = True
            try:
                result, error = fn(), None
            except BaseException as raised:  # handed to whoever waits, submits or closes next
                result, error = None, raised
            with self._changed:
                self._running = False
                self._result, self._error = result, self._error or error  # a later success hides no error
                self._changed.notify_all()

    def wait(self) -> Any:
        """Block until none runs or waits; the latest result, or the first error that nobody has seen yet."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running and self._waiting is None)
            self._raise_error()
            return self._result

    def close(self, drop_waiting: bool = False) -> None:
        """Let the running one end (and the waiting one, unless dropped), then the thread; raises an earlier error."""
        with self._changed:
            self._closed = True
            if drop_waiting:
                self._drop()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        with self._changed:
            self._raise_error()

    def _drop(self) -> None:
        if self._waiting is not None:
            self._waiting = None
            self.replaced += 1
            self._drop_waiting()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
