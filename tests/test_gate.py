"""The gate: nothing is lost, staleness is bounded, the budget is exact, and somebody can always go on."""
from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE, Crew, Learner, Watch
from hypothesis import given, settings
from hypothesis import strategies as st

from lzero_async.core import AsyncTrainingError, Boundary, Closed, Ticket
from lzero_async.gate import Gate
from lzero_async.ledger import Budget, Deadlines

pytestmark = pytest.mark.unittest
GOLDEN = Path(__file__).parent / 'test_data' / 'deterministic_schedule.json'
RATIOS = st.fractions(min_value=0, max_value=3, max_denominator=12)


# ---------------------------------------------------------------------- the rule that decides who is taken


def test_a_missed_deadline_is_an_error_and_not_a_silence() -> None:
    deadlines = Deadlines()
    deadlines.add(0)
    with pytest.raises(AsyncTrainingError, match='staleness bound'):
        deadlines.payment()


def test_a_straggler_holds_up_the_others_only_when_the_bound_demands_it() -> None:
    gate: Gate[str] = Gate(3, num_collectors=2)
    learner = Learner(gate)
    straggler = gate.try_admit(0)
    for number, age in ((1, 0), (2, 0)):  # twice the other collector may overtake
        assert gate.try_admit(1).number == number
        assert gate.try_deliver(number, 'quick')
        taken = gate.try_take()
        assert (taken.number, taken.age) == (number, age)
        learner.learn(taken, Fraction(4))
    assert gate.try_admit(1).number == 3 and gate.try_deliver(3, 'quick')
    assert gate.try_take() is None and not gate.can_train()  # a third payment would age the straggler to 3
    assert gate.try_admit(1).number == 4 and gate.try_deliver(4, 'quick')  # collecting goes on up to the degree
    assert gate.try_admit(1) is None
    assert gate.try_deliver(straggler.number, 'slow')
    taken = gate.try_take()
    assert (taken.number, taken.age, taken.lag, taken.lag_bound) == (0, 2, 8, 8)
    learner.learn(taken, Fraction(4))
    taken = gate.try_take()
    assert (taken.number, taken.age, taken.lag) == (3, 1, 4)
    statistics = gate.get_statistics()
    assert (statistics['max_age'], statistics['max_lag_updates'], statistics['lag_bound_updates']) == (2, 8, 8)
    assert statistics['ages'] == {'0': 2, '1': 1, '2': 1}


@pytest.mark.parametrize('degree', [1, 2, 16, 17, 40])
def test_age_and_lag_reach_their_bounds_and_no_further(degree: int) -> None:
    gate: Gate[None] = Gate(degree, num_collectors=2)
    learner, straggler = Learner(gate), gate.try_admit(0)
    for _ in range(degree - 1):
        gate.deliver(gate.admit(1).number, None)
        learner.learn(gate.take(), Fraction(2))
    if degree > 1:
        gate.deliver(gate.admit(1).number, None)
    assert gate.try_take() is None
    gate.deliver(straggler.number, None)
    taken = gate.take()
    assert (taken.number, taken.age, taken.lag, taken.lag_bound) == (0, degree - 1, 2 * degree - 2, 2 * degree - 2)


def test_lag_is_checked_and_not_assumed() -> None:
    gate: Gate[None] = Gate(1)
    for train_iter, fine in ((1, True), (7, False)):  # six updates that no batch has paid for
        gate.deliver(gate.admit().number, None)
        taken = gate.try_take()
        gate.grant(Fraction(1))
        gate.pay(taken.number, 1, train_iter=train_iter, version=train_iter if fine else 1)
    gate.deliver(gate.admit().number, None)
    with pytest.raises(AsyncTrainingError, match='lags 6 updates'):
        gate.try_take()


@pytest.mark.parametrize('paid', [0, 7])
def test_counters_go_on_from_where_a_run_was_resumed(paid: int) -> None:
    start = Boundary(paid=paid, train_iter=500, env_steps=900, version=500)
    gate: Gate[None] = Gate(2, start=start)
    learner = Learner(gate)
    learner.train_iter = learner.version = 500
    tickets = [gate.admit(), gate.admit()]
    assert [ticket.boundary for ticket in tickets] == [start, start]
    for age, ticket in enumerate(tickets):
        gate.deliver(ticket.number, None)
        taken = gate.try_take()
        assert (taken.age, taken.lag) == (age, 3 * age)
        learner.learn(taken, Fraction(3))
    assert gate.admit().boundary == Boundary(paid + 2, 506, 2, 506)


# ---------------------------------------------------------------------- the deterministic schedule


def deterministic_trace(order: random.Random) -> list[dict[str, int]]:
    """Twelve batches of degree 3 on two collectors, weights every second update; running collects end in any order."""
    gate: Gate[Ticket] = Gate(3, num_collectors=2, data_queue_size=1, weight_sync_interval=2, deterministic=True)
    learner, busy, trace = Learner(gate, interval=2), {}, []
    for step in order.choices(['admit', 'finish', 'learn'], k=5000):  # far more than it takes
        if len(trace) == 12:
            break
        if step == 'admit':
            worker = order.randrange(2)
            if worker not in busy and (ticket := gate.try_admit(worker)):
                busy[worker] = ticket
        elif step == 'finish' and busy:
            worker = order.choice(sorted(busy))
            if gate.try_deliver(busy[worker].number, busy[worker]):
                del busy[worker]
        elif step == 'learn' and (taken := gate.try_take()):
            seen = taken.payload.boundary
            trace.append({
                'batch': taken.number, 'collector': taken.payload.worker, 'admitted_after_payments': seen.paid,
                'version': seen.version, 'train_iter': seen.train_iter, 'age': taken.age, 'lag': taken.lag,
            })
            learner.learn(taken, None if taken.number == 0 else Fraction(3, 2))
    return trace


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2 ** 32))
def test_the_deterministic_schedule_does_not_depend_on_who_finishes_first(seed: int) -> None:
    trace = deterministic_trace(random.Random(seed))
    assert trace == json.loads(GOLDEN.read_text())
    assert [line['batch'] for line in trace] == list(range(12))
    assert [line['collector'] for line in trace] == [k % 2 for k in range(12)]
    assert [line['admitted_after_payments'] for line in trace] == [max(0, k - 2) for k in range(12)]


# ---------------------------------------------------------------------- the budget


@given(ratio=RATIOS, transitions=st.lists(st.integers(0, 50), max_size=30))
def test_fractions_of_updates_carry_over_exactly(ratio: Fraction, transitions: list[int]) -> None:
    budget, truncating = Budget(), Budget(truncate=True)
    for count in transitions:
        budget.spend(budget.grant(ratio * count))
        granted = truncating.grant(ratio * count)
        assert granted == int(ratio * count)  # as upstream does
        truncating.spend(granted)
    assert budget.granted == ratio * sum(transitions)
    assert budget.done == floor(ratio * sum(transitions))


def test_a_tenth_a_thousand_times_is_a_hundred() -> None:
    budget = Budget()
    for _ in range(1000):
        budget.spend(budget.grant(Fraction(1, 10)))
    assert (budget.granted, budget.done) == (100, 100)


@pytest.mark.parametrize('updates', [2, 4])
def test_training_more_or_less_than_was_granted_is_refused(updates: int) -> None:
    budget = Budget()
    assert budget.grant(Fraction(7, 2)) == 3
    with pytest.raises(AsyncTrainingError, match='budget'):
        budget.spend(updates)
    with pytest.raises(AsyncTrainingError, match='-1'):
        budget.grant(Fraction(-1))


# ---------------------------------------------------------------------- real threads


def test_collectors_are_admitted_in_the_order_in_which_they_came(crew: Crew, watch: Callable[[Any], Watch]) -> None:
    gate: Gate[None] = Gate(1, num_collectors=8)
    waits, learner = watch(gate), Learner(gate)
    first, jobs = gate.admit(), []
    for worker in range(8):
        jobs.append(crew.start(gate.admit, worker))
        waits.admit.expect_waiting()  # one by one
    number = first.number
    for job in jobs:
        gate.deliver(number, None)
        learner.learn(gate.take(), None)
        number = job.result(PATIENCE).number
    assert [job.result().number for job in jobs] == list(range(1, 9))
    assert [job.result().worker for job in jobs] == list(range(8))


def test_a_full_queue_blocks_and_loses_nothing(crew: Crew, watch: Callable[[Any], Watch]) -> None:
    gate: Gate[str] = Gate(5, num_collectors=5, data_queue_size=1)
    waits, learner = watch(gate), Learner(gate)
    tickets = [gate.admit(worker) for worker in range(5)]
    gate.deliver(0, 'batch 0')
    jobs = [crew.start(gate.deliver, number, f'batch {number}') for number in (4, 2, 3, 1)]
    waits.deliver.expect_waiting(4)
    assert not any(job.done() for job in jobs) and gate.get_statistics()['waiting'] == 1
    payloads = []
    for _ in tickets:
        taken = gate.take()
        payloads.append(taken.payload)
        learner.learn(taken, None)
        assert gate.get_statistics()['waiting'] <= 1
    assert payloads == [f'batch {number}' for number in range(5)]  # the oldest first, wherever it had to wait
    statistics = gate.get_statistics()
    assert (statistics['batches_trained'], statistics['batches_lost'], statistics['outstanding']) == (5, 0, 0)


def test_everyone_at_the_door_comes_in_when_several_places_come_free_at_once(
        crew: Crew, watch: Callable[[Any], Watch]
) -> None:
    gate: Gate[None] = Gate(5, num_collectors=5, data_queue_size=2)
    waits, learner = watch(gate), Learner(gate)
    for worker in range(4):
        gate.admit(worker)
    gate.deliver(0, None)
    gate.deliver(1, None)
    jobs = []
    for number in (3, 2):  # the younger one is the first to be woken, and must not go in before the older one
        jobs.append(crew.start(gate.deliver, number, None))
        waits.deliver.expect_waiting()
    with gate._lock:
        for _ in range(2):
            learner.learn(gate.take(), None)
    for job in jobs:
        job.result(PATIENCE)


def test_the_batch_that_the_learner_waits_for_passes_a_full_queue(crew: Crew, watch: Callable[[Any], Watch]) -> None:
    gate: Gate[str] = Gate(3, num_collectors=3, data_queue_size=1, deterministic=True)
    waits, learner = watch(gate), Learner(gate)
    for worker in range(3):
        gate.admit(worker)
    gate.deliver(2, 'third')
    blocked = crew.start(gate.deliver, 1, 'second')
    waits.deliver.expect_waiting()
    taking = crew.start(gate.take)
    waits.take.expect_waiting()
    gate.deliver(0, 'first')  # does not block
    taken = taking.result(PATIENCE)
    assert taken.payload == 'first' and not blocked.done()
    learner.learn(taken, None)
    assert gate.take().payload == 'second'
    blocked.result(PATIENCE)


@pytest.mark.parametrize('end', ['stop', 'close'])
def test_everyone_who_waits_is_released_at_the_end(crew: Crew, watch: Callable[[Any], Watch], end: str) -> None:
    gate: Gate[None] = Gate(3, num_collectors=4, data_queue_size=1)
    learner = Learner(gate)
    gate.admit(0)  # a straggler, until only it may be taken
    for _ in range(2):
        gate.deliver(gate.admit(1).number, None)
        learner.learn(gate.take(), None)
    gate.deliver(gate.admit(1).number, None)
    waits = watch(gate)
    delivering = crew.start(gate.deliver, gate.admit(2).number, None)
    waits.deliver.expect_waiting()
    admitting, taking = crew.start(gate.admit, 3), crew.start(gate.take)
    waits.admit.expect_waiting()
    waits.take.expect_waiting()
    getattr(gate, end)()
    for job in (delivering, admitting, taking):
        assert isinstance(job.exception(PATIENCE), Closed)
    gate.close()
    with pytest.raises(Closed):
        gate.deliver(0, None)
    statistics = gate.get_statistics()
    assert [statistics[f'batches_{end}'] for end in ('admitted', 'trained', 'unused', 'cancelled', 'lost')] == \
        [5, 2, 2, 1, 0]


def test_a_collect_that_fails_after_the_stop_is_cancelled_and_not_lost() -> None:
    gate: Gate[None] = Gate(2)
    ticket = gate.admit()
    gate.stop()
    gate.fail(ticket.number, 'told to stop')
    gate.close()
    statistics = gate.get_statistics()
    assert (statistics['batches_cancelled'], statistics['batches_lost'], statistics['outstanding']) == (1, 0, 0)


def test_the_batch_in_training_can_be_paid_after_a_stop_but_not_after_the_close() -> None:
    for end, trained in (('stop', 1), ('close', 0)):
        gate: Gate[None] = Gate(2)
        gate.deliver(gate.admit().number, None)
        taken = gate.take()
        assert gate.grant(Fraction(2)) == 2
        getattr(gate, end)()
        if trained:
            gate.pay(taken.number, 1, rest=1, train_iter=1)
        else:
            with pytest.raises(Closed):
                gate.pay(taken.number, 2)
        gate.close()
        statistics = gate.get_statistics()
        assert (statistics['batches_trained'], statistics['batches_lost']) == (trained, 1 - trained)


@pytest.mark.parametrize('degree, collectors, size', [(1, 1, 1), (2, 1, 10), (3, 2, 1), (6, 5, 2), (-1, 3, 1)])
def test_a_run_that_warms_up_first_neither_hangs_nor_loses(crew: Crew, degree: int, collectors: int, size: int) -> None:
    """Batches smaller than ``batch_size`` are paid off with nothing until the data suffice."""
    gate: Gate[int] = Gate(degree, num_collectors=collectors, data_queue_size=size, weight_sync_interval=3)
    learner = Learner(gate, interval=3)
    failures = itertools.count(1)

    def collect(worker: int) -> None:
        while True:
            ticket = gate.admit(worker)
            if next(failures) % 7 == 0:
                gate.fail(ticket.number, 'the seventh fails')
            else:
                gate.deliver(ticket.number, 10)

    jobs = [crew.start(collect, worker) for worker in range(collectors)]
    for _ in range(200):
        taken = gate.take()
        enough = learner.env_steps + taken.payload >= 64  # batch_size
        learner.learn(taken, Fraction(taken.payload, 4) if enough else None, taken.payload)
    gate.close()
    assert all(isinstance(job.exception(PATIENCE), Closed) for job in jobs)
    statistics = gate.get_statistics()
    assert learner.train_iter == statistics['updates_done'] == floor(Fraction(10, 4) * (200 - 6))
    ends = Counter({end: statistics[f'batches_{end}'] for end in ('trained', 'unused', 'cancelled', 'lost')})
    assert ends['trained'] == 200 and ends.total() == statistics['batches_admitted']


@pytest.mark.benchmark
@pytest.mark.parametrize('collectors', [3, 100, 1000])
@pytest.mark.parametrize('deterministic', [False, True])
def test_time_per_decision(collectors: int, deterministic: bool, capsys: pytest.CaptureFixture[str]) -> None:
    gate: Gate[None] = Gate(collectors + 1, num_collectors=collectors, data_queue_size=collectors + 1,
                            deterministic=deterministic)
    learner, rounds = Learner(gate), 3000
    tickets = [gate.try_admit(worker) for worker in range(collectors)]
    started = time.perf_counter()
    for index in range(rounds):
        ticket = tickets[index % collectors]
        gate.try_deliver(ticket.number, None)
        learner.learn(gate.try_take(), Fraction(1, 2))
        tickets[index % collectors] = gate.try_admit(index % collectors)
    spent = (time.perf_counter() - started) / rounds
    with capsys.disabled():
        print(f'\n{collectors} collectors, deterministic={deterministic}: {spent * 1e6:.0f} us per batch')
