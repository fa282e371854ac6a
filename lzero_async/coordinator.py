"""The coordinator: the gate, the evaluation desk, and the three calls with which anyone's own loop can use them."""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .core import Payload
from .evaluation import EvalDesk
from .gate import Gate

T = TypeVar('T')


class AsyncTrainingCoordinator(Gate[Payload]):
    """
    Overview:
        Lets collection, training and evaluation run at the same time within the staleness that ``off_policy_degree``
        allows. The engine drives it by ``admit, deliver, take, grant, pay``; anyone's own loop by ``run_collect,
        run_train, run_eval``, which block until allowed and call the function in the calling thread.
    Arguments:
        - off_policy_degree (:obj:`int`): 0 strictly alternates; N >= 1 allows N outstanding batches; -1 tunes itself.
        - enable_async_eval (:obj:`bool`): run evaluations beside training instead of pausing it.
        - settings: see :class:`lzero_async.gate.Gate`.
    """

    def __init__(self, off_policy_degree: int = 0, enable_async_eval: bool = False, **settings: Any) -> None:
        super().__init__(off_policy_degree, **settings)
        self._background_eval = enable_async_eval
        self._desk = EvalDesk()

    def run_collect(self, fn: Callable[[], T]) -> T:
        """
        Overview:
            Block until a collect is allowed, call ``fn`` here, hand its result on. Where it raises, the slot is given
            back and the exception goes on unwrapped.
        """
        ticket = self.admit(None)
        try:
            result = fn()
        except BaseException as error:
            self.fail(ticket.number, repr(error))
            raise
        self.deliver(ticket.number, None)  # type: ignore[arg-type]  # who trains knows where the data are
        return result

    def run_train(self, fn: Callable[[], T]) -> T:
        """
        Overview:
            Block until a train is allowed, call ``fn`` here: it pays off one batch. With degree >= 1 and nothing
            outstanding it is allowed as soon as there are any data, and pays nothing.
        """
        taken = self._wait_to_train(unpaid=True)
        try:
            return fn()
        finally:
            with self._lock:
                if taken is not None and not self._closed:
                    self.pay(taken.number, 0)
                else:
                    self._end_training()

    def run_eval(self, fn: Callable[[], T], dropped: Callable[[], None] | None = None) -> T | None:
        """
        Overview:
            Evaluate. Blocking: training pauses (with degree 0 collecting too), ``fn`` is called here and its result
            returned. With ``enable_async_eval`` it runs on the coordinator's own thread and None is returned at once;
            a running one is never cancelled, and of those that wait only the latest is kept (``dropped`` is called
            for the others).
        """
        timed = self._timed_eval(fn)
        if self._background_eval:
            self._desk.submit(timed, dropped)
            return None
        with self._lock:
            if self._training is not None and self._training_thread == threading.get_ident():
                raise RuntimeError('run_eval inside run_train would wait for itself: call it between two trains')
            self._paused += 1
            try:
                self._wait(self._may_take, self._is_quiet)
            except BaseException:
                self._paused -= 1
                self._wake_all()
                raise
        try:
            return timed()
        finally:
            with self._lock:
                self._paused -= 1
                self._wake_all()

    def _is_quiet(self) -> bool:
        return self._training is None and (self._degree != 0 or not self._ledger.running)

    def _timed_eval(self, fn: Callable[[], T]) -> Callable[[], T]:

        def timed() -> T:
            with self.busy('eval'):
                return fn()

        return timed

    def wait_for_eval(self) -> Any:
        """Block until no evaluation runs or waits; the result of the latest, or the exception of any not raised yet."""
        return self._desk.wait()

    def close(self, drop_evaluation: bool = False) -> None:
        """Stop, account for every batch, and wait for evaluations; one that only waits may be dropped."""
        super().close()
        self._desk.close(drop_evaluation)

    def __enter__(self) -> AsyncTrainingCoordinator[Payload]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
