"""Random schedules of collects, failures, trains, changes of degree and early ends, against a second set of books."""
from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import pytest
from conftest import Learner
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lzero_async.core import Boundary, Closed, Taken, Ticket
from lzero_async.gate import Gate
from lzero_async.ledger import Deadlines

pytestmark = pytest.mark.unittest
RATIOS = st.fractions(min_value=0, max_value=3, max_denominator=12)


def feasible(slacks: Sequence[int]) -> bool:
    """Brute force: whether some order takes every batch within its slack, one batch per payment."""
    return any(all(p <= slack for p, slack in enumerate(order)) for order in itertools.permutations(slacks))


def earliest_first(slacks: Sequence[int]) -> bool:
    """The same, by the order that is known to work if any does."""
    return all(p <= slack for p, slack in enumerate(sorted(slacks)))


def after(first: int, slacks: Sequence[int]) -> list[int]:
    """What taking ``first`` now, and paying it, leaves to the other ones."""
    rest = list(slacks)
    rest.remove(first)
    return [slack - 1 for slack in rest]


@dataclass
class Known:
    """What the model knows of an outstanding batch."""
    ticket: Ticket
    deadline: int
    payload: object
    finished: bool = False


class GateMachine(RuleBasedStateMachine):
    """Random schedules against a second set of books, kept without looking into the gate."""

    deterministic = False

    @initialize(degree=st.sampled_from([-1, 1, 2, 3, 4, 5, 6]), collectors=st.integers(1, 5), queue=st.integers(1, 4),
                interval=st.integers(1, 7), ratio=RATIOS, drains=st.sampled_from([True, True, False]),
                seed=st.integers(0, 2 ** 32))
    def open(self, degree: int, collectors: int, queue: int, interval: int, ratio: Fraction, drains: bool,
             seed: int) -> None:
        assume(not (self.deterministic and degree == -1))
        ticks = itertools.count()
        self.gate: Gate[object] = Gate(
            degree, num_collectors=collectors, data_queue_size=queue, weight_sync_interval=interval,
            deterministic=self.deterministic, clock=lambda: float(next(ticks))
        )
        self.cap = degree if degree > 0 else max(8, 2 * collectors)
        self.tuned, self.collectors, self.queue, self.ratio = degree == -1, collectors, queue, ratio
        self.drains, self.random = drains, random.Random(seed)
        self.learner = Learner(self.gate, interval)
        self.idle = set(range(collectors))
        self.known: dict[int, Known] = {}
        self.training: Taken[object] | None = None
        self.admitted = self.lost = self.done = self.most_outstanding = 0
        self.granted = Fraction(0)
        self.trained: list[int] = []
        self.history = [Boundary(0, 0, 0, 0)]  # one per batch that ended
        self.paid_after: list[int] = [0]  # updates done after each payment

    # ------------------------------------------------------------ what should happen

    def slacks(self, numbers: Iterable[int]) -> list[int]:
        return [self.known[number].deadline - len(self.trained) for number in numbers]

    def in_line(self) -> list[int]:
        """Outstanding batches that have not been taken."""
        return [number for number in self.known if self.training is None or number != self.training.number]

    def running(self) -> list[int]:
        return [number for number, known in self.known.items() if not known.finished]

    def waiting(self) -> list[int]:
        return [number for number in self.in_line() if self.known[number].finished]

    def allowed(self, number: int) -> bool:
        """Whether the bound lets the learner take this one, were it finished."""
        if self.training is not None:
            return False
        if self.deterministic:
            return number == min(self.known)
        return earliest_first(after(*self.slacks([number]), self.slacks(self.in_line())))

    def choice(self) -> int | None:
        """The batch that must be taken now."""
        ready = [number for number in self.waiting() if self.allowed(number)]
        return min(ready, key=lambda number: (self.known[number].deadline, number), default=None)

    def has_room(self, number: int) -> bool:
        return len(self.waiting()) < self.queue or self.choice() is None and self.allowed(number)

    # ------------------------------------------------------------ what happens

    def admit(self, worker: int) -> bool:
        turn = not self.deterministic or worker == self.admitted % self.collectors
        expected = len(self.known) < self.gate.degree and turn
        if expected or not self.deterministic:
            assert self.gate.can_collect() == (len(self.known) < self.gate.degree)
        ticket = self.gate.try_admit(worker)
        assert (ticket is not None) == expected
        if ticket is None:
            return False
        seen = max(0, self.admitted - self.gate.degree + 1) if self.deterministic else -1
        assert ticket == Ticket(self.admitted, worker, self.history[seen], self.gate.degree)
        self.known[ticket.number] = Known(ticket, len(self.trained) + ticket.degree - 1, object())
        self.idle.remove(worker)
        self.admitted += 1
        assert len(self.known) <= self.gate.degree
        return True

    def deliver(self, number: int) -> bool:
        expected = self.has_room(number)
        assert self.gate.try_deliver(number, self.known[number].payload) == expected
        if expected:
            self.known[number].finished = True
            self.idle.add(self.known[number].ticket.worker)
        return expected

    def take(self) -> bool:
        expected = self.choice()
        assert self.gate.can_train() == (expected is not None or self._unpaid_train_allowed())
        taken = self.gate.try_take()
        assert (taken and taken.number) == expected
        if taken is None:
            return False
        known = self.known[taken.number]
        assert taken.number not in self.trained and taken.payload is known.payload
        allowed = known.ticket.degree - 1
        assert 0 <= taken.age == len(self.trained) - known.ticket.boundary.paid <= allowed
        before = self.paid_after[max(0, len(self.paid_after) - 1 - allowed)]
        assert taken.lag_bound == self.paid_after[-1] - before + self.learner.interval - 1
        assert 0 <= taken.lag == self.learner.train_iter - known.ticket.boundary.version <= taken.lag_bound
        self.training = taken
        return True

    def _unpaid_train_allowed(self) -> bool:
        return not self.known and self.gate.get_statistics()['collect_count'] > 0

    def pay(self, exact: Fraction | None, transitions: int, undone: int) -> None:
        assert self.training is not None
        degree = self.gate.degree
        self.granted += exact or 0
        whole = floor(self.granted - self.done) if exact is not None else 0
        done = self.learner.learn(self.training, exact, transitions, undone)
        assert done == whole - min(undone, whole)
        self.granted -= whole - done
        self.done += done
        self.trained.append(self.training.number)
        del self.known[self.training.number]
        self.training = None
        self.paid_after.append(self.learner.train_iter)
        self.history.append(
            Boundary(len(self.trained), self.learner.train_iter, self.learner.env_steps, self.learner.version)
        )
        assert self.gate.degree == degree or self.tuned

    # ------------------------------------------------------------ rules

    @rule()
    def every_idle_collector_asks(self) -> None:
        while any(self.admit(worker) for worker in sorted(self.idle)):
            pass

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def a_collector_asks(self, data: st.DataObject) -> None:
        self.admit(data.draw(st.sampled_from(sorted(self.idle)), label='worker'))

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def a_collect_ends(self, data: st.DataObject) -> None:
        self.deliver(data.draw(st.sampled_from(self.running()), label='batch'))

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def a_collect_fails(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.running()), label='batch')
        self.gate.fail(number, 'bad luck')
        self.idle.add(self.known.pop(number).ticket.worker)
        self.lost += 1
        self.history.append(self.history[-1])

    @precondition(lambda self: self.training is None)
    @rule()
    def the_learner_asks(self) -> None:
        self.take()

    @precondition(lambda self: self.training is not None)
    @rule(transitions=st.integers(0, 9), warmup=st.integers(0, 4), undone=st.sampled_from([0, 0, 0, 1, 5]))
    def the_learner_pays(self, transitions: int, warmup: int, undone: int) -> None:
        self.pay(self.ratio * transitions if warmup else None, transitions, undone)

    @precondition(lambda self: self.tuned)
    @rule()
    def trouble_comes(self) -> None:
        before = self.gate.degree
        self.gate.report_trouble('NaN')
        assert self.gate.degree == max(1, before // 2)

    @precondition(lambda self: any(known.finished for known in self.known.values()))
    @rule(data=st.data())
    def a_late_failure_changes_nothing(self, data: st.DataObject) -> None:
        delivered = [number for number, known in self.known.items() if known.finished]
        self.gate.fail(data.draw(st.sampled_from(delivered), label='batch'), 'said too late')

    def check_that_everything_can_be_paid(self) -> None:
        """Liveness: from any state, in any order, if every collect ends then every batch can be trained."""
        while self.known:
            steps = [lambda number=number: self.deliver(number) for number in self.running()]
            self.random.shuffle(steps)
            if self.training is not None:
                self.pay(self.ratio, 1, 0)
            elif not self.take():
                assert any(step() for step in steps), 'deadlock'
        assert self.gate.can_collect(), 'deadlock'

    # ------------------------------------------------------------ always

    @invariant()
    def the_books_agree(self) -> None:
        statistics = self.gate.get_statistics()
        assert statistics['outstanding'] == statistics['lag'] == len(self.known)
        assert statistics['waiting'] == len(self.waiting()) <= self.queue + 1
        assert statistics['batches_admitted'] == self.admitted == (
            statistics['batches_trained'] + statistics['batches_lost'] + len(self.known)
        )
        assert statistics['batches_trained'] == len(self.trained) == len(set(self.trained))
        assert statistics['batches_lost'] == self.lost
        assert statistics['updates_done'] == self.done == self.learner.train_iter
        assert statistics['updates_granted'] == float(self.granted)
        assert self.training is not None or 0 <= self.granted - self.done < 1
        assert 1 <= statistics['degree'] <= self.cap
        assert len(self.known) <= self.cap
        assert statistics['max_lag_updates'] <= statistics['lag_bound_updates']
        in_use = {known.ticket.boundary.version for known in self.known.values() if not known.finished}
        seen_next = self.history[max(0, self.admitted - self.cap + 1):] if self.deterministic else self.history[-1:]
        in_use |= {boundary.version for boundary in seen_next}
        assert in_use <= self.gate.versions_in_use()  # nothing is overwritten too early ...
        assert len(self.gate.versions_in_use() - in_use) <= (self.cap if self.deterministic else 0)  # ... or kept on

    def teardown(self) -> None:
        """Drained or not, the run ends with every batch accounted for."""
        if not hasattr(self, 'gate'):
            return
        if self.drains:
            self.check_that_everything_can_be_paid()
        self.gate.stop()
        assert self.gate.try_admit(0) is None and self.gate.try_take() is None
        waiting, running = len(self.waiting()), self.running()
        at_door = running[::2]
        for number in at_door:
            with pytest.raises(Closed):
                self.gate.try_deliver(number, self.known[number].payload)
        self.gate.close()
        self.gate.close()
        statistics = self.gate.get_statistics()
        assert statistics['outstanding'] == statistics['waiting'] == 0
        assert statistics['batches_unused'] == waiting + len(at_door)
        assert statistics['batches_cancelled'] == len(running) - len(at_door)
        assert statistics['batches_lost'] == self.lost + (self.training is not None)
        assert self.admitted == sum(
            statistics[f'batches_{end}'] for end in ('trained', 'unused', 'cancelled', 'lost')
        )


class DeterministicGateMachine(GateMachine):
    deterministic = True


TestRandomSchedules = GateMachine.TestCase
TestRandomDeterministicSchedules = DeterministicGateMachine.TestCase
TestRandomSchedules.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestRandomDeterministicSchedules.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@settings(max_examples=300, deadline=None)
@given(slacks=st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_a_batch_may_be_taken_exactly_if_the_others_keep_their_chance(slacks: list[int]) -> None:
    assert feasible(slacks) == earliest_first(slacks)
    assume(feasible(slacks))
    deadlines = Deadlines()
    for slack in slacks:
        deadlines.add(slack)
    for slack in slacks:
        assert (slack <= deadlines.latest()) == feasible(after(slack, slacks))
