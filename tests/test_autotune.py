"""Degree -1: every rule with its reason, and the history that says why the degree is what it is."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import PATIENCE, Crew, Watch, nothing
from hypothesis import given
from hypothesis import strategies as st

from lzero_async.autotune import Autotuner, Window
from lzero_async.coordinator import AsyncTrainingCoordinator

pytestmark = pytest.mark.unittest

# Ten seconds in which both sides worked, overlapped, and waited just too little to matter.
CALM = Window(wall_s=10, learner_wait_s=0.5, collector_wait_s=0.5, learner_busy_s=9, collector_busy_s=9, overlap_s=8)
BOTH_WAIT = replace(CALM, learner_wait_s=1.0, collector_wait_s=2.0)
NEVER_WAITED = replace(CALM, collector_wait_s=0.0)
NO_OVERLAP = replace(CALM, learner_busy_s=5, collector_busy_s=5, overlap_s=0.2)


@pytest.mark.parametrize('collectors, cap, start, highest', [
    (1, None, 2, 8), (4, None, 5, 8), (10, None, 11, 20), (1, 1, 1, 1), (4, 3, 3, 3), (2, 50, 3, 50),
])
def test_it_starts_one_above_the_collectors_and_stops_at_the_cap(
        collectors: int, cap: int | None, start: int, highest: int
) -> None:
    tuner = Autotuner(collectors, cap)
    assert tuner.degree == start
    waits = replace(BOTH_WAIT, collector_wait_s=2.0 * collectors)
    for degree in range(start + 1, highest + 1):
        assert tuner.observe(waits) is not None and tuner.degree == degree
    for _ in range(5):
        assert tuner.observe(waits) is None and tuner.degree == highest


def test_it_rises_by_one_when_both_sides_wait_and_says_how_much() -> None:
    tuner = Autotuner(1)
    assert tuner.observe(BOTH_WAIT) == 'the learner waited for data 10%, collectors for the gate 20% of the time'
    assert tuner.degree == 3


@pytest.mark.parametrize('window', [
    CALM,
    replace(CALM, learner_wait_s=5.0),  # collecting is the bottleneck: only more collectors help
    replace(CALM, collector_wait_s=5.0),  # learning is
    replace(BOTH_WAIT, wall_s=0.0),  # nothing was measured
])
def test_it_stays_when_only_one_side_waits(window: Window) -> None:
    tuner = Autotuner(1)
    assert [tuner.observe(window) for _ in range(10)] == [None] * 10
    assert tuner.degree == 2


def test_the_collectors_share_is_of_one_collectors_time() -> None:
    tuner = Autotuner(4)
    assert tuner.observe(BOTH_WAIT) is None  # 2 of 40 collector seconds are not above 5 % ...
    assert tuner.observe(replace(BOTH_WAIT, collector_wait_s=2.4)) is not None  # ... 2.4 are


def test_it_falls_by_one_when_collectors_never_waited_twice_in_a_row() -> None:
    tuner = Autotuner(3)
    reason = 'collectors never waited for the gate: a lower degree costs nothing and is fresher'
    windows = [NEVER_WAITED, CALM, NEVER_WAITED, NEVER_WAITED, NEVER_WAITED, NEVER_WAITED]
    assert [tuner.observe(window) for window in windows] == [None, None, None, reason, None, reason]
    assert tuner.degree == 2
    for _ in range(10):
        tuner.observe(NEVER_WAITED)
    assert tuner.degree == 1


def test_it_settles_at_one_and_says_so_if_nothing_overlaps() -> None:
    tuner = Autotuner(3)
    assert tuner.observe(NO_OVERLAP) == \
        'nothing overlaps here: collecting and learning take turns, so a higher degree buys nothing'
    assert [tuner.observe(BOTH_WAIT) for _ in range(5)] == [None] * 5
    assert tuner.trouble('NaN') is None and tuner.degree == 1


def test_a_side_too_short_to_judge_by_does_not_settle_it() -> None:
    tuner = Autotuner(1)
    tuner.observe(replace(NO_OVERLAP, learner_busy_s=0.3, overlap_s=0.0))
    assert tuner.degree == 2


def test_trouble_halves_it_down_to_one() -> None:
    tuner = Autotuner(8)
    assert [(tuner.trouble('NaN in the loss'), tuner.degree) for _ in range(4)] == [
        ('NaN in the loss', 4), ('NaN in the loss', 2), ('NaN in the loss', 1), (None, 1)
    ]


def test_a_falling_evaluation_halves_it_once() -> None:
    tuner = Autotuner(7)
    assert [tuner.evaluated(score) for score in (10.0, 100.0, 56.0)] == [None] * 3  # above half of the range
    assert tuner.evaluated(54.0) == 'the evaluation fell to 54 from a best of 100'
    assert tuner.degree == 4
    assert [tuner.evaluated(score) for score in (54.0, 54.0, 60.0)] == [None] * 3  # judged anew from there
    assert tuner.degree == 4


@pytest.mark.parametrize('scores', [(1.0, 2.0), (5.0, 5.0, 5.0, 5.0), (1.0, 2.0, 3.0, 2.5), (-20.0, -10.0, -14.0)])
def test_evaluations_that_rise_or_hold_change_nothing(scores: tuple[float, ...]) -> None:
    tuner = Autotuner(7)
    assert [tuner.evaluated(score) for score in scores] == [None] * len(scores)


@pytest.mark.parametrize('score', [math.nan, math.inf, -math.inf])
def test_an_evaluation_that_is_no_number_is_trouble_and_blinds_nobody(score: float) -> None:
    tuner = Autotuner(7)
    assert tuner.evaluated(score) == f'the evaluation came out as {score}'
    assert [tuner.evaluated(score) for score in (10.0, 100.0)] == [None, None]
    assert tuner.evaluated(20.0) == 'the evaluation fell to 20 from a best of 100'
    assert tuner.degree == 2


@given(
    collectors=st.integers(1, 6),
    steps=st.lists(st.one_of(
        st.builds(Window, *[st.floats(0, 10) for _ in range(6)]), st.floats(), st.just('trouble')
    ), max_size=40),
)
def test_it_stays_between_one_and_the_cap_and_never_changes_without_a_reason(
        collectors: int, steps: list[Window | float | str]
) -> None:
    tuner = Autotuner(collectors)
    for step in steps:
        before = tuner.degree
        if isinstance(step, Window):
            reason = tuner.observe(step)
        else:
            reason = tuner.trouble(step) if isinstance(step, str) else tuner.evaluated(step)
        assert 1 <= tuner.degree <= tuner.cap
        assert (tuner.degree != before) == (reason is not None)


# ---------------------------------------------------------------------- in the coordinator, with a clock of our own


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def overlapping_batches(coordinator: AsyncTrainingCoordinator[None], clock: Clock, batches: int) -> None:
    """Each batch is trained while the next one is collected, a second long; nobody waits."""
    number = coordinator.admit().number
    for _ in range(batches):
        coordinator.deliver(number, None)
        taken = coordinator.take()
        number = coordinator.admit().number
        clock.now += 1
        coordinator.pay(taken.number, 0)
    coordinator.fail(number, 'the end of the test')


def history(coordinator: AsyncTrainingCoordinator[None]) -> list[tuple[int, int, str]]:
    return [(line['batch'], line['degree'], line['reason']) for line in coordinator.get_statistics()['degree_history']]


def test_the_degree_falls_where_nobody_waits_and_the_history_says_why() -> None:
    clock = Clock()
    coordinator: AsyncTrainingCoordinator[None] = AsyncTrainingCoordinator(-1, num_collectors=2, clock=clock)
    assert coordinator.get_statistics()['mode'] == 'auto'
    overlapping_batches(coordinator, clock, 16)
    assert history(coordinator) == [
        (0, 3, 'start'), (16, 2, 'collectors never waited for the gate: a lower degree costs nothing and is fresher')
    ]
    assert coordinator.degree == coordinator.get_statistics()['degree'] == 2


def test_the_degree_rises_where_both_sides_wait(crew: Crew, watch: Callable[[Any], Watch]) -> None:
    clock = Clock()
    coordinator: AsyncTrainingCoordinator[None] = AsyncTrainingCoordinator(-1, clock=clock)
    waits = watch(coordinator)
    tickets = [coordinator.admit()]
    for _ in range(8):
        taking = crew.start(coordinator.take)
        waits.take.expect_waiting()
        clock.now += 1  # the learner waits for data
        coordinator.deliver(tickets.pop().number, None)
        taken = taking.result(PATIENCE)
        tickets.append(coordinator.admit())
        admitting = crew.start(coordinator.admit)
        waits.admit.expect_waiting()
        clock.now += 1  # both work, and a collector waits at the gate
        degree = coordinator.degree
        coordinator.pay(taken.number, 0)
        coordinator.fail(admitting.result(PATIENCE).number, 'not needed')
    assert degree == 2 and coordinator.degree == 3
    assert history(coordinator)[1] == (
        8, 3, 'the learner waited for data 50%, collectors for the gate 44% of the time'
    )


def test_the_degree_settles_where_collect_and_train_take_turns() -> None:
    ticks = itertools.count()
    coordinator: AsyncTrainingCoordinator[None] = AsyncTrainingCoordinator(-1, clock=lambda: float(next(ticks)))
    for _ in range(20):
        coordinator.run_collect(nothing)
        coordinator.run_train(nothing)
    assert history(coordinator)[1:] == [
        (8, 1, 'nothing overlaps here: collecting and learning take turns, so a higher degree buys nothing')
    ]


def test_trouble_and_falling_evaluations_reach_the_tuner_and_nobody_else() -> None:
    tuned: AsyncTrainingCoordinator[None] = AsyncTrainingCoordinator(-1, num_collectors=7)
    fixed: AsyncTrainingCoordinator[None] = AsyncTrainingCoordinator(8)
    for coordinator in (tuned, fixed):
        coordinator.report_trouble('NaN in the loss')
        for score in (0.0, 10.0, 1.0):
            coordinator.report_evaluation(score)
    assert history(tuned) == [
        (0, 8, 'start'), (0, 4, 'NaN in the loss'), (0, 2, 'the evaluation fell to 1 from a best of 10')
    ]
    assert history(fixed) == [(0, 8, 'start')]


def test_a_collector_that_waits_is_admitted_as_soon_as_the_degree_rises(
        crew: Crew, watch: Callable[[Any], Watch]
) -> None:
    clock = Clock()
    coordinator: AsyncTrainingCoordinator[None] = AsyncTrainingCoordinator(-1, clock=clock)
    waits = watch(coordinator)
    first, second = coordinator.admit(), coordinator.admit()
    admitting = crew.start(coordinator.admit)
    waits.admit.expect_waiting()
    with coordinator._lock:
        coordinator._apply(coordinator._tuner.observe(BOTH_WAIT))
    assert admitting.result(PATIENCE).degree == 3
    assert (first.degree, second.degree) == (2, 2)
