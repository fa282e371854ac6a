"""
What the gate counts: batches, updates, ages and lags. Plain bookkeeping without a lock; the gate holds one.

The bounds.  A batch that is admitted under degree N may see at most N - 1 batches paid off before it is taken, so its
last chance is after N - 1 further payments.  Counting the outstanding batches by that deadline gives the whole rule:
with ``count(d)`` batches due within d payments, ``count(d) <= d + 1`` must hold for every d, as only one is taken
between two payments.  Where it holds with equality nothing due later may be taken: the learner has to wait for one of
those, even if it is still running.  Admission while fewer than N are outstanding keeps the rule, and so does taking any
batch that is not due later than the first such d.  Hence age <= N - 1 always, and a straggler holds up the others only
when the bound demands it.
"""
from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np

from .core import AsyncTrainingError, Boundary, Ticket

SAMPLES = 1024  # most recent values kept for percentiles


class Deadlines:
    """How many outstanding batches are due within how many payments."""

    def __init__(self) -> None:
        self._due = np.zeros(16, dtype=np.int64)  # [d]: batches that must be taken after at most d more payments
        self._slots = np.arange(1, 17)  # [d]: batches that can be taken by then

    def add(self, within: int) -> None:
        """A batch was admitted that must be taken after at most ``within`` payments."""
        while within >= len(self._due):
            self._due = np.concatenate([self._due, np.zeros_like(self._due)])
            self._slots = np.arange(1, len(self._due) + 1)
        self._due[within] += 1

    def remove(self, within: int) -> None:
        """A batch with that deadline was taken, or lost."""
        self._due[within] -= 1

    def payment(self) -> None:
        """A batch was paid off: every deadline is one closer."""
        if self._due[0]:
            raise AsyncTrainingError('a batch missed its deadline: the staleness bound is broken; please report this')
        self._due[:-1] = self._due[1:]
        self._due[-1] = 0

    def latest(self) -> int:
        """The latest deadline that may be taken now without making another one impossible."""
        tight = np.cumsum(self._due) == self._slots
        first = int(tight.argmax())
        return first if tight[first] else len(self._due)


class Budget:
    """Updates granted against updates done; fractions carry over, so that the replay ratio is kept exactly."""

    def __init__(self, truncate: bool = False) -> None:
        self.truncate = truncate  # as upstream does in its serial entry
        self.granted = Fraction(0)
        self.done = 0
        self.returned = 0  # granted, then handed back because the run was interrupted in mid-batch

    def grant(self, exact: Fraction) -> int:
        """The whole updates that may be done now that a batch brought ``exact`` of them."""
        if exact < 0:
            raise AsyncTrainingError(f'a batch cannot pay for {exact} updates')
        if self.truncate:
            exact = Fraction(floor(exact))
        self.granted += exact
        return floor(self.granted - self.done)

    def spend(self, updates: int, rest: int = 0) -> None:
        """``updates`` were done; ``rest`` of the grant never will be."""
        self.done += updates
        self.granted -= rest
        self.returned += rest
        if not 0 <= self.granted - self.done < 1:
            raise AsyncTrainingError(f'{self.done} updates done, {float(self.granted)} granted: the budget is broken')


class Sample:
    """Count, mean, maximum and 95th percentile of a stream of numbers, in bounded memory."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.maximum = 0.0
        self._recent: deque[float] = deque(maxlen=SAMPLES)

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.maximum = max(self.maximum, value)
        self._recent.append(value)

    def summary(self) -> dict[str, float]:
        """The p95 is over the most recent values, the rest over all."""
        return {
            'count': self.count,
            'mean': self.total / self.count if self.count else 0.0,
            'max': self.maximum,
            'p95': float(np.percentile(self._recent, 95)) if self._recent else 0.0,
        }


@dataclass
class _Entry:
    ticket: Ticket
    state: str  # running, waiting, training
    deadline: int  # payments made in all when its last chance comes


class Ledger:
    """Every batch from admission to its end: ``admitted = trained + unused + cancelled + lost + outstanding``."""

    def __init__(self, weight_sync_interval: int, truncate_budget: bool = False) -> None:
        self.weight_sync_interval = weight_sync_interval
        self.budget = Budget(truncate_budget)
        self.admitted = 0
        self.trained = 0
        self.unused = 0
        self.cancelled = 0
        self.lost = 0
        self.causes: deque[str] = deque(maxlen=32)  # of the most recent losses
        self.ages = Counter[int]()
        self.lags = Sample()
        self.largest_lag = 0
        self.largest_bound = 0
        self.outstanding: dict[int, _Entry] = {}
        self.running = 0
        self._deadlines = Deadlines()
        self._done_after: deque[int] = deque([0], maxlen=16)  # updates done in all after each of the last payments

    def admit(self, ticket: Ticket) -> None:
        within = max(0, ticket.degree - 1)
        self._deadlines.add(within)
        if ticket.degree > (self._done_after.maxlen or 0):
            self._done_after = deque(self._done_after, maxlen=2 * ticket.degree)
        self.outstanding[ticket.number] = _Entry(ticket, 'running', self.trained + within)
        self.admitted += 1
        self.running += 1

    def deadline(self, number: int) -> int:
        return self.outstanding[number].deadline

    def may_take(self, number: int) -> bool:
        """Whether taking this one leaves every other outstanding batch its last chance."""
        return self.outstanding[number].deadline - self.trained <= self._deadlines.latest()

    def running_tickets(self) -> list[Ticket]:
        return [entry.ticket for entry in self.outstanding.values() if entry.state == 'running']

    def deliver(self, number: int) -> None:
        entry = self.outstanding[number]
        entry.state = 'waiting'
        self.running -= 1

    def take(self, number: int, now: Boundary) -> tuple[int, int, int]:
        """Age, lag and lag bound of the batch that is taken; raises where a bound is broken."""
        entry = self.outstanding[number]
        entry.state = 'training'
        self._deadlines.remove(entry.deadline - self.trained)
        age = now.paid - entry.ticket.boundary.paid
        lag = now.train_iter - entry.ticket.boundary.version
        allowed = max(0, entry.ticket.degree - 1)
        before = self._done_after[max(-1 - allowed, -len(self._done_after))]
        bound = self._done_after[-1] - before + self.weight_sync_interval - 1
        if age > allowed or lag > bound:
            raise AsyncTrainingError(
                f'batch {number} is {age} batches old (bound {allowed}) and lags {lag} updates (bound {bound}): '
                'the staleness bound is broken; please report this'
            )
        self.ages[age] += 1
        self.lags.add(lag)
        self.largest_lag = max(self.largest_lag, lag)
        self.largest_bound = max(self.largest_bound, bound)
        return age, lag, bound

    def pay(self, number: int, updates: int, rest: int = 0) -> None:
        if self.outstanding[number].state != 'training':
            raise AsyncTrainingError(f'batch {number} is paid off but was not taken')
        self.budget.spend(updates, rest)
        del self.outstanding[number]
        self._deadlines.payment()
        self.trained += 1
        self._done_after.append(self._done_after[-1] + updates)

    def lose(self, number: int, cause: str, updates: int = 0) -> None:
        """A batch will never be paid off; of one in training ``updates`` were done, and the rest is not owed."""
        entry = self.outstanding.pop(number)
        if entry.state == 'training':
            self.budget.spend(updates, floor(self.budget.granted - self.budget.done) - updates)
        else:
            self._deadlines.remove(entry.deadline - self.trained)
        self.running -= entry.state == 'running'
        self.lost += 1
        self.causes.append(f'batch {number} on collector {entry.ticket.worker}: {cause}')

    def close(self, finished: set[int]) -> None:
        """Everything outstanding ends here; ``finished`` are those whose data had come in or stood at the door."""
        for number in sorted(self.outstanding):
            state = self.outstanding[number].state
            if state == 'training':
                self.lose(number, 'the run ended while it was being trained')
                continue
            if state == 'waiting' or number in finished:
                self.unused += 1
            else:
                self.cancelled += 1
            self.running -= state == 'running'
            del self.outstanding[number]

    def counts(self) -> dict[str, int]:
        return {
            'batches_admitted': self.admitted,
            'batches_trained': self.trained,
            'batches_unused': self.unused,
            'batches_cancelled': self.cancelled,
            'batches_lost': self.lost,
        }
