"""
The engine: starts the roles, watches over them, stops them, and accounts for everything.

The caller's thread does nothing but wait for news: a role that ended or failed, or a signal. It is the owner of every
thread and worker and joins them all before ``run`` returns or raises.
"""
from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any

from .config import AsyncConfig
from .core import MODEL, PRIOR, AsyncTrainingError, Cancelled, Closed, Limits, Trainer, WorkerError
from .gate import Gate
from .placement import Handle, children_ignore_interrupts
from .resources import Turns
from .roles.collector import Axis, collector_loop
from .roles.evaluator import Evaluator
from .roles.prior import PriorRole
from .run import Run
from .telemetry.recorder import Recorder
from .transport.weights import Layout, WeightStore

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Engine(Run):
    """
    Overview:
        One asynchronous run.
    Arguments:
        - config (:obj:`AsyncConfig`): the settings.
        - trainer (:obj:`Trainer`): owner of learner and replay buffer.
        - collectors (:obj:`Sequence[Handle]`): workers, not yet started.
        - evaluator (:obj:`Optional[Handle]`): likewise; None runs without evaluations.
        - recorder (:obj:`Recorder`): where events go.
        - limits (:obj:`Limits`): when the run ends by itself.
        - prefix (:obj:`Optional[str]`): of shared memory's names; None where no worker is in another process.
        - prior_trainer (:obj:`Optional[Handle]`): trains a language model that collectors ask, not yet started.
        - make_prior (:obj:`Optional[Callable]`): makes its role from that handle and this run's gate.
        - turns (:obj:`Optional[Turns]`): devices that roles share.
    """

    def __init__(
            self,
            config: AsyncConfig,
            trainer: Trainer,
            collectors: Sequence[Handle],
            evaluator: Handle | None,
            recorder: Recorder,
            limits: Limits,
            prefix: str | None = None,
            prior_trainer: Handle | None = None,
            make_prior: Callable[[Handle, Gate[Any]], PriorRole] | None = None,
            turns: Turns | None = None,
    ) -> None:
        super().__init__(config, trainer, recorder, len(collectors), turns)
        self._collectors = collectors
        self._eval_handle = evaluator
        self.store = WeightStore(Layout.of(trainer.weights()), self.gate.versions_in_use, prefix)
        self._prior_handle = prior_trainer
        self.prior = make_prior(prior_trainer, self.gate) if make_prior and prior_trainer else None
        evaluations = Evaluator(
            evaluator, self.store, self.on_evaluation, self._on_eval_error,
            beside={PRIOR: self.prior.store} if self.prior else None
        ) if evaluator else None
        self._loop = self.make_learner(self.gate.take, self.store, evaluations, limits)
        opened = threading.Event()
        opened.set()
        # The language model's gate first: who waits at the world model's is not busy, and its gate counts that right.
        self._axes = [
            *([self.prior.axis] if self.prior else []),
            Axis(MODEL, self.gate, self.store, share=lambda batch: batch, opened=opened)
        ]
        # What the caller's thread waits for. Reentrant, so that a signal handler may put; nobody else takes.
        self._news: queue.SimpleQueue[tuple[str, BaseException | int | None]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unwatched, self._unwatch = multiprocessing.Pipe(duplex=False)  # its closing ends the watch

    @property
    def handles(self) -> list[Handle]:
        rest = (self._eval_handle, self._prior_handle)
        return [*self._collectors, *(handle for handle in rest if handle is not None)]

    def run(self) -> None:
        """
        Overview:
            Run to the end. Raises what a role raised; after a signal it returns, with ``interrupted_by`` set.
        """
        started = time.monotonic()
        failure: BaseException | None = None
        with self._signals():
            try:
                self._start()
                failure = self._supervise()
            except BaseException as error:  # raised again below, once everything has ended
                failure = error
            try:
                late = self._stop(hurried=failure is not None or self.interrupted_by is not None)
            except BaseException:
                self._abandon()
                raise
            finally:
                self.wall_s = time.monotonic() - started
            failure = failure or late
        if failure is None or isinstance(failure, WorkerError):
            self.trainer.finish()  # upstream's last checkpoint; the trainer itself is sound
        if failure is not None:
            raise failure

    def _start(self) -> None:
        self.store.publish(self.trainer.train_iter, self.trainer.weights())
        with children_ignore_interrupts():
            for handle in self.handles:
                handle.start()
        for index, handle in enumerate(self._collectors):
            self._spawn(handle.name, collector_loop, index, handle, self._axes, self.request_for)
        self._spawn('learner', self._learn)
        if self.prior is not None:
            self._spawn('prior', self.prior.run)
        self._spawn('watch', self._watch)

    def _spawn(self, name: str, loop: Callable[..., None], *args: Any) -> None:

        def body() -> None:
            try:
                loop(*args)
                self._news.put((name, None))
            except (Closed, Cancelled):
                self._news.put((name, None))
            except BaseException as error:  # raised again in the caller's thread
                self._news.put((name, error))

        thread = threading.Thread(target=body, name=f'lzero-async-{name}', daemon=True)
        self._threads.append(thread)
        thread.start()

    def _learn(self) -> None:
        if self.prior is not None:
            self.prior.opened.wait()  # evaluations need its first snapshot too
            if self._loop.stopping.is_set():
                raise Closed
        self._loop.run()

    def _watch(self) -> None:
        """Notice the death of a worker that nobody is waiting for, such as an evaluator between two evaluations."""
        alive: dict[Any, Handle] = {handle.sentinel: handle for handle in self.handles if handle.sentinel is not None}
        while alive:
            for ready in connection.wait([*alive, self._unwatched]):
                if ready is self._unwatched:
                    return
                handle = alive.pop(ready)
                if not handle.busy:
                    raise handle.death()

    def _on_eval_error(self, error: BaseException) -> None:
        if not isinstance(error, Cancelled):
            self._news.put(('evaluator', error))

    # ------------------------------------------------------------------ while it runs

    def _supervise(self) -> BaseException | None:
        """Wait until the learners have ended, someone has failed, or a signal has come; what failed."""
        last = 'learner'
        while True:
            name, news = self._news.get()
            if name == 'signal':
                self.interrupted_by = news if isinstance(news, int) else None
                logger.warning('%s: finishing the update at hand', signal.Signals(self.interrupted_by or 0).name)
                return None
            if isinstance(news, BaseException):
                if last == 'learner' or not self._is_of_a_collector(news):
                    return news
            elif name == 'learner' and self.prior is not None:
                self.gate.stop()
                for handle in self._collectors:
                    handle.cancel()
                self.prior.stop(hurried=False)  # it takes its time, in which signals are heeded
                last = 'prior'
            elif name == last:
                return None

    def _is_of_a_collector(self, error: BaseException) -> bool:
        """Whether an error may be no more than a collector's answer to being cancelled while it was still starting."""
        return isinstance(error, WorkerError) and error.worker in {handle.name for handle in self._collectors}

    def _stop(self, hurried: bool) -> BaseException | None:
        """Bring every role to its end; an error that only came up on the way."""
        self._loop.stopping.set()
        self.gate.stop()
        if self.prior is not None:
            self.prior.stop(hurried)
        self._unwatch.close()
        for handle in self.handles if hurried else self._collectors:
            handle.cancel()
        stuck = [thread.name for thread in self._threads if not self._join(thread, hurried)]
        late = self._close_gate(hurried)
        for handle in self.handles:
            handle.dismiss()
        patience = time.monotonic() + self.config.shutdown_timeout_s
        for handle in self.handles:
            handle.close(max(0.0, patience - time.monotonic()))
        self._close_stores()
        self._unwatched.close()
        if stuck:
            return late or AsyncTrainingError(f"{', '.join(stuck)} did not end within shutdown_timeout_s")
        return late

    def _join(self, thread: threading.Thread, hurried: bool) -> bool:
        """Wait for a role's thread; workers that do not heed the cancel are ended by force on the way."""
        thread.join(self.config.shutdown_timeout_s)
        if thread.is_alive():
            for handle in self.handles if hurried else self._collectors:
                handle.kill()
            thread.join(self.config.shutdown_timeout_s)
        return not thread.is_alive()

    def _close_gate(self, hurried: bool) -> BaseException | None:
        """Close the books, once evaluations are over; a signal that comes meanwhile cancels them. What went wrong."""
        late: BaseException | None = None
        self._spawn('closing', self.gate.close, hurried)
        name = ''
        while name != 'closing':
            name, news = self._news.get()
            if name == 'signal':
                hurried, self.interrupted_by = True, news if isinstance(news, int) else None
                if self._eval_handle is not None:
                    self._eval_handle.cancel()
            elif isinstance(news, BaseException) and not self._is_consequence(news, hurried):
                late = late or news
        self._threads.pop().join()
        return late

    @staticmethod
    def _is_consequence(error: BaseException, hurried: bool) -> bool:
        """Whether an error says no more than that a worker was told to end."""
        return isinstance(error, WorkerError) and (hurried or error.worker != 'evaluator')

    def _abandon(self) -> None:
        """A second signal: nothing is waited for, and yet nothing is left behind."""
        for handle in self.handles:
            handle.kill()
        for handle in self.handles:
            handle.close(0.0)
        self._close_stores()
        Gate.close(self.gate)  # the books alone; the coordinator's own close would wait for an evaluation

    def _close_stores(self) -> None:
        for axis in self._axes:
            axis.store.close()
            if axis.gate is not self.gate:
                axis.gate.close()

    # ------------------------------------------------------------------ signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first SIGINT or SIGTERM asks the run to end; the second one kills the workers and goes its usual way."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def second(number: int, frame: Any) -> None:
            for handle in self.handles:
                handle.kill()
            self._restore(before)
            os.kill(os.getpid(), number)

        def first(number: int, frame: Any) -> None:
            for each in SIGNALS:
                signal.signal(each, second)
            self._news.put(('signal', number))

        for number in SIGNALS:
            signal.signal(number, first)
        try:
            yield
        finally:
            self._restore(before)

    @staticmethod
    def _restore(before: dict[signal.Signals, Any]) -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
