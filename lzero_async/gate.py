"""
The gate: decides who may go on, so that staleness stays bounded and the replay ratio is kept.

One lock protects everything here. Who may block: collectors in ``admit`` (until fewer than ``degree`` batches are
outstanding) and in ``deliver`` (until the data queue has room or the learner waits for this very batch), the learner in
``take`` (until a batch may be taken without ageing another past its bound). Nobody sleeps or polls, nothing is dropped,
and ``close`` wakes everyone. The methods named ``try_*`` never block.
"""
from __future__ import annotations

import contextlib
import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, Generic

from .autotune import Autotuner, Window
from .core import Boundary, Closed, Payload, Taken, Ticket
from .ledger import Ledger
from .timing import Timing

logger = logging.getLogger(__name__)


class Gate(Generic[Payload]):
    """
    Overview:
        Admission, delivery, taking and paying of batches.
    Arguments:
        - off_policy_degree (:obj:`int`): 0 strictly alternates; N >= 1 allows N outstanding batches; -1 tunes itself.
        - num_collectors (:obj:`int`): how many collectors ask for admission.
        - data_queue_size (:obj:`int`): finished batches that may wait for the learner.
        - weight_sync_interval (:obj:`int`): updates between two publications of weights, at least.
        - deterministic (:obj:`bool`): batch k runs on collector k mod n and batches are taken in order.
        - truncate_budget (:obj:`bool`): drop fractions of an update instead of carrying them over, as upstream does.
        - max_degree (:obj:`Optional[int]`): the most that -1 may choose; default 8, or twice the collectors.
        - start (:obj:`Optional[Boundary]`): counters to start from.
        - clock (:obj:`Callable[[], float]`): seconds, monotonic.
    """

    def __init__(
            self,
            off_policy_degree: int = 0,
            *,
            num_collectors: int = 1,
            data_queue_size: int = 10,
            weight_sync_interval: int = 1,
            deterministic: bool = False,
            truncate_budget: bool = False,
            max_degree: int | None = None,
            start: Boundary | None = None,
            clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if off_policy_degree < -1:
            raise ValueError(f'off_policy_degree={off_policy_degree}: must be -1 (automatic), 0 (serial) or positive')
        if min(num_collectors, data_queue_size, weight_sync_interval) < 1:
            raise ValueError('num_collectors, data_queue_size and weight_sync_interval must be at least 1')
        if max_degree is not None and max_degree < 1:
            raise ValueError(f'max_degree={max_degree}: must be at least 1')
        if deterministic and off_policy_degree == -1:
            raise ValueError('off_policy_degree=-1 follows measured times, so deterministic=True needs a degree >= 0')
        self._tuner = Autotuner(num_collectors, max_degree) if off_policy_degree == -1 else None
        self._degree = self._tuner.degree if self._tuner else off_policy_degree
        self._num_collectors = num_collectors
        self._queue_size = data_queue_size
        self._deterministic = deterministic
        self._truncate_budget = truncate_budget
        self._clock = clock
        self._lock = threading.RLock()
        self._may_collect = threading.Condition(self._lock)
        self._may_deliver = threading.Condition(self._lock)
        self._may_take = threading.Condition(self._lock)
        self._stopped = False  # nobody may go on
        self._closed = False  # and the books are shut
        self._line: deque[object] = deque()  # collectors that wait for admission, first come first served
        self._paused = 0  # evaluations that hold up learning
        self._timing = Timing()
        self._sync_interval = weight_sync_interval
        self._start = start or Boundary(paid=0, train_iter=0, env_steps=0, version=0)
        self._reset()

    def _reset(self) -> None:
        self._ledger = Ledger(self._sync_interval, self._truncate_budget)
        self._timing.restart()
        self._started: dict[int, float] = {}  # batch -> when its collect began
        self._finished: dict[int, Payload] = {}  # the data queue
        self._order: list[tuple[int, int]] = []  # heap of (deadline, number) of the data queue
        self._at_door: set[int] = set()  # finished, but the queue is full
        self._training: int | None = None
        self._training_since = 0.0
        self._training_thread: int | None = None
        self._collected = 0
        self._boundaries = {0: self._start}
        self._history: list[dict[str, Any]] = [self._change('start')]
        self._mark = self._totals()

    # ------------------------------------------------------------------ collectors

    def can_collect(self) -> bool:
        """Whether a collect would be admitted now."""
        with self._lock:
            return self._may_admit(None)

    def _may_admit(self, worker: int | None) -> bool:
        if self._stopped or len(self._ledger.outstanding) >= max(1, self._degree):
            return False
        if self._degree == 0 and self._paused:
            return False
        return worker is None or not self._deterministic or worker == self._turn()

    def _turn(self) -> int:
        return self._ledger.admitted % self._num_collectors

    def admit(self, worker: int | None = 0) -> Ticket:
        """Block until this collector, or with None whichever is next, may start a batch."""
        started = self._clock()
        me = object()
        with self._lock:
            self._line.append(me)
            try:
                # In the deterministic schedule a collector's turn decides, otherwise the place in the line.
                by_turn = self._deterministic and worker is not None
                self._wait(self._may_collect, lambda: self._may_admit(worker) and (by_turn or self._line[0] is me))
                ticket = self._admit(worker)
            finally:
                self._line.remove(me)
                self._may_collect.notify_all()
            waited = self._clock() - started
            self._timing.roles['collect'].gate.add(waited)
            logger.debug('collector %d waited %.3f s for the gate', ticket.worker, waited)
            return ticket

    def try_admit(self, worker: int = 0) -> Ticket | None:
        """A ticket, or None where the gate is shut for this collector."""
        with self._lock:
            if not self._may_admit(worker):
                return None
            self._may_collect.notify_all()  # it may be the turn of one that waits
            return self._admit(worker)

    def _admit(self, worker: int | None) -> Ticket:
        number = self._ledger.admitted
        worker = self._turn() if worker is None else worker
        ended = self._ledger.trained + self._ledger.lost
        # Deterministic: what batch k sees is fixed by the payment that made room for it, not by when it was asked for.
        seen = max(0, number - self._degree + 1) if self._deterministic else ended
        ticket = Ticket(number, worker, self._boundaries[min(seen, ended)], self._degree)
        self._ledger.admit(ticket)
        now = self._clock()
        self._started[number] = now
        self._timing.enter('collect', now)
        logger.debug('batch %d admitted on collector %d, outstanding %d of %d, version %d', number, worker,
                     len(self._ledger.outstanding), self._degree, ticket.boundary.version)
        return ticket

    def deliver(self, number: int, payload: Payload) -> None:
        """Hand over a finished batch; blocks while the data queue is full and the learner waits for another one."""
        with self._lock:
            if self._closed:
                raise Closed
            now = self._clock()
            self._timing.leave('collect', now, self._started.pop(number))
            self._at_door.add(number)
            try:
                self._wait(self._may_deliver, lambda: self._has_room(number))
            except Closed:
                raise  # the batch stays at the door, where close() finds it
            except BaseException as error:
                self._at_door.remove(number)
                self._lose(number, repr(error))
                raise
            self._timing.roles['collect'].data.add(self._clock() - now)
            self._enqueue(number, payload)

    def try_deliver(self, number: int, payload: Payload) -> bool:
        """Hand over a finished batch; False where the data queue is full."""
        with self._lock:
            if self._stopped:
                self._at_door.add(number)
                raise Closed
            if not self._has_room(number):
                return False
            self._timing.leave('collect', self._clock(), self._started.pop(number))
            self._enqueue(number, payload)
            return True

    def _has_room(self, number: int) -> bool:
        """Whether this one may come in: there is room and none older waits for it, or the learner needs it to go on."""
        if len(self._finished) < self._queue_size:
            return number <= min(self._at_door, default=number)
        return self._training is None and not self._paused and self._ready() is None and self._is_next(number)

    def _enqueue(self, number: int, payload: Payload) -> None:
        self._at_door.discard(number)
        self._finished[number] = payload
        heapq.heappush(self._order, (self._ledger.deadline(number), number))
        self._ledger.deliver(number)
        self._collected += 1
        self._may_take.notify_all()
        self._may_deliver.notify_all()

    def fail(self, number: int, cause: str) -> None:
        """A collect failed: its batch is lost and its slot free again. After a stop it only counts as cancelled."""
        with self._lock:
            if self._closed or number not in self._started:
                return
            self._timing.leave('collect', self._clock(), self._started.pop(number))
            if not self._stopped:
                self._lose(number, cause)

    def _lose(self, number: int, cause: str) -> None:
        latest = self._latest
        self._ledger.lose(number, cause)
        self._keep_boundary(latest)
        logger.warning('batch %d is lost: %s', number, cause)
        self._wake_all()

    # ------------------------------------------------------------------ learner

    def can_train(self) -> bool:
        """Whether a train would be allowed now."""
        with self._lock:
            return self._ready() is not None or self._may_train_unpaid()

    def _is_next(self, number: int) -> bool:
        if self._deterministic:
            return number == next(iter(self._ledger.outstanding))  # they stand in the order of admission
        return self._ledger.may_take(number)

    def _ready(self) -> int | None:
        """The finished batch to take now: the one that is due first, if taking it hurts no other."""
        if self._stopped or not self._order or self._training is not None or self._paused:
            return None
        number = self._order[0][1]
        return number if self._is_next(number) else None

    def _may_train_unpaid(self) -> bool:
        return (
            self._degree != 0 and self._collected > 0 and not self._ledger.outstanding and not self._paused
            and self._training is None and not self._stopped and not self._line
        )

    def take(self) -> Taken[Payload]:
        """Block until a batch may be trained."""
        taken = self._wait_to_train(unpaid=False)
        assert taken is not None
        return taken

    def _wait_to_train(self, unpaid: bool) -> Taken[Payload] | None:
        started = self._clock()
        with self._lock:
            self._wait(self._may_take, lambda: self._ready() is not None or unpaid and self._may_train_unpaid())
            waited = self._clock() - started
            self._timing.roles['train'].data.add(waited)
            logger.debug('the learner waited %.3f s for data', waited)
            return self._take()

    def try_take(self) -> Taken[Payload] | None:
        """A batch, or None where none may be taken."""
        with self._lock:
            return self._take() if self._ready() is not None else None

    def _take(self) -> Taken[Payload] | None:
        number = self._ready()
        self._training_since = self._clock()
        self._training_thread = threading.get_ident()
        self._timing.enter('train', self._training_since)
        if number is None:
            self._training = -1
            return None
        heapq.heappop(self._order)
        self._training = number
        self._may_deliver.notify_all()
        age, lag, bound = self._ledger.take(number, self._latest)
        logger.debug('batch %d taken: age %d, lag %d of at most %d', number, age, lag, bound)
        return Taken(number, self._finished.pop(number), age, lag, bound)

    def grant(self, exact: Fraction | None) -> int:
        """The whole updates that may be done for the batch in training; None is warm-up and grants nothing."""
        with self._lock:
            return self._ledger.budget.grant(exact) if exact is not None else 0

    def pay(
            self,
            number: int,
            updates: int,
            *,
            train_iter: int = 0,
            env_steps: int = 0,
            version: int = 0,
            warmup: bool = False,
            rest: int = 0,
    ) -> Boundary:
        """The batch is paid off: its slot is free and collects that start now see these counters."""
        with self._lock:
            if self._closed:
                raise Closed
            self._ledger.pay(number, updates, rest)
            boundary = Boundary(self._start.paid + self._ledger.trained, train_iter, env_steps, version, warmup)
            self._keep_boundary(boundary)
            self._end_training()
            if self._tuner and self._ledger.trained % self._tuner.window_batches == 0:
                self._apply(self._tuner.observe(self._window()))
            logger.debug(
                'batch %d paid with %d updates, outstanding %d', number, updates, len(self._ledger.outstanding)
            )
            return boundary

    def fail_training(self, number: int, updates: int, cause: str) -> None:
        """Training a batch failed after so many updates: it is lost."""
        with self._lock:
            if self._closed or self._training != number:
                return
            latest = self._latest
            self._ledger.lose(number, cause, updates)
            self._keep_boundary(latest)
            self._end_training()

    @property
    def _latest(self) -> Boundary:
        return self._boundaries[self._ledger.trained + self._ledger.lost]

    def _keep_boundary(self, boundary: Boundary) -> None:
        ended = self._ledger.trained + self._ledger.lost
        self._boundaries[ended] = boundary
        oldest = max(0, self._ledger.admitted - max(1, self._degree) + 1) if self._deterministic else ended
        for index in [index for index in self._boundaries if index < min(oldest, ended)]:
            del self._boundaries[index]

    def _end_training(self) -> None:
        self._timing.leave('train', self._clock(), self._training_since)
        self._training = None
        self._wake_all()

    def versions_in_use(self) -> set[int]:
        """Versions that a running collect was admitted with, or that one to come may ask for."""
        with self._lock:
            to_come = {boundary.version for boundary in self._boundaries.values()}
            return to_come | {ticket.boundary.version for ticket in self._ledger.running_tickets()}

    # ------------------------------------------------------------------ the degree

    @property
    def degree(self) -> int:
        return self._degree

    @property
    def admitted(self) -> int:
        """Batches admitted so far."""
        return self._ledger.admitted

    def report_trouble(self, what: str) -> None:
        """Something points to too much staleness (a NaN, say): with degree -1 the degree is halved."""
        with self._lock:
            self._apply(self._tuner.trouble(what) if self._tuner else None)

    def report_evaluation(self, mean_return: float) -> None:
        """An evaluation came in: with degree -1 a falling one halves the degree."""
        with self._lock:
            self._apply(self._tuner.evaluated(mean_return) if self._tuner else None)

    def _apply(self, reason: str | None) -> None:
        if reason is None or self._tuner is None:
            return
        before, self._degree = self._degree, self._tuner.degree
        self._history.append(self._change(reason))
        logger.info('off_policy_degree %d -> %d: %s', before, self._degree, reason)
        self._wake_all()

    def _change(self, reason: str) -> dict[str, Any]:
        return {'batch': self._ledger.trained, 'degree': self._degree, 'reason': reason}

    def _totals(self) -> Window:
        collect, train = self._timing.roles['collect'], self._timing.roles['train']
        return Window(
            wall_s=self._clock(), learner_wait_s=train.data.total, collector_wait_s=collect.gate.total,
            learner_busy_s=train.busy.total, collector_busy_s=collect.busy.total, overlap_s=self._timing.overlap_s
        )

    def _window(self) -> Window:
        before, self._mark = self._mark, self._totals()
        return Window(*(b - a for a, b in zip(vars(before).values(), vars(self._mark).values(), strict=True)))

    # ------------------------------------------------------------------ statistics and the end

    @contextlib.contextmanager
    def busy(self, role: str) -> Iterator[None]:
        """A role that this gate does not schedule is at work: it counts for the overlap."""
        started = self._clock()
        with self._lock:
            self._timing.enter(role, started)
        try:
            yield
        finally:
            with self._lock:
                self._timing.leave(role, self._clock(), started)

    def get_statistics(self) -> dict[str, Any]:
        """
        Overview:
            Everything the gate has counted so far, in numbers, strings, lists and dicts only.
        """
        with self._lock:
            ledger, roles = self._ledger, self._timing.summary()
            return {
                'mode': 'serial' if self._degree == 0 else 'auto' if self._tuner else 'async',
                'degree': self._degree,
                'degree_history': [dict(change) for change in self._history],
                'collect_count': self._collected,
                'train_count': roles['train']['count'],
                'eval_count': roles['eval']['count'],
                'lag': len(ledger.outstanding),
                'outstanding': len(ledger.outstanding),
                'waiting': len(self._finished),
                **ledger.counts(),
                'loss_causes': list(ledger.causes),
                'updates_granted': float(ledger.budget.granted),
                'updates_done': ledger.budget.done,
                'updates_returned': ledger.budget.returned,
                'max_age': max(ledger.ages, default=0),
                'ages': {str(age): count for age, count in sorted(ledger.ages.items())},
                'max_lag_updates': ledger.largest_lag,
                'lag_bound_updates': ledger.largest_bound,
                'lag_updates': ledger.lags.summary(),
                'overlap_s': self._timing.overlap_s,
                'roles': roles,
            }

    def reset_counters(self) -> None:
        """Start counting anew; only while nothing is outstanding."""
        with self._lock:
            if self._ledger.outstanding or self._training is not None:
                raise RuntimeError('reset_counters: batches are outstanding; let them finish first')
            self._reset()

    def stop(self) -> None:
        """Shut the gate: everyone who waits or asks gets ``Closed``; the batch in training can still be paid."""
        with self._lock:
            self._stopped = True
            self._wake_all()

    def close(self) -> None:
        """Stop and account for every batch. May be repeated."""
        self.stop()
        with self._lock:
            if not self._closed:
                self._closed = True
                self._ledger.close(self._at_door)
                self._finished.clear()

    def _wait(self, condition: threading.Condition, allowed: Callable[[], bool]) -> None:
        condition.wait_for(lambda: self._stopped or allowed())
        if self._stopped:
            raise Closed

    def _wake_all(self) -> None:
        for condition in (self._may_collect, self._may_deliver, self._may_take):
            condition.notify_all()
