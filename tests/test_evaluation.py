"""Evaluations: they pause learning, or run beside it; the latest wins the waiting place; no error is swallowed."""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from conftest import PATIENCE, Crew, Held, Watch, nothing

from lzero_async.coordinator import AsyncTrainingCoordinator
from lzero_async.core import Closed
from lzero_async.evaluation import EvalDesk

pytestmark = pytest.mark.unittest



@pytest.mark.parametrize('degree', [0, 2])
def test_a_blocking_evaluation_pauses_training(
        crew: Crew, watch: Callable[[Any], Watch], degree: int
) -> None:
    coordinator = AsyncTrainingCoordinator(degree)
    coordinator.run_collect(nothing)
    waits = watch(coordinator)
    held = Held('score')
    evaluation = crew.start(coordinator.run_eval, held)
    held.expect_running()
    assert not coordinator.can_train() and coordinator.can_collect() == (degree == 2)
    train = crew.start(coordinator.run_train, held._go.is_set)
    waits.take.expect_waiting()
    held.release()
    assert evaluation.result(PATIENCE) == 'score'
    assert train.result(PATIENCE) is True


def test_the_queue_keeps_its_size_while_an_evaluation_pauses_training(
        crew: Crew, watch: Callable[[Any], Watch]
) -> None:
    coordinator = AsyncTrainingCoordinator(3, data_queue_size=1)
    coordinator.run_collect(nothing)
    waits = watch(coordinator)
    held = Held()
    evaluation = crew.start(coordinator.run_eval, held)
    held.expect_running()
    train = crew.start(coordinator.run_train, nothing)
    waits.take.expect_waiting()
    collect = crew.start(coordinator.run_collect, nothing)
    waits.deliver.expect_waiting()  # the learner waits, but not for this one
    assert coordinator.get_statistics()['waiting'] == 1
    held.release()
    for job in (evaluation, train, collect):
        job.result(PATIENCE)


def test_a_blocking_evaluation_waits_for_the_train_at_hand(crew: Crew, watch: Callable[[Any], Watch]) -> None:
    coordinator = AsyncTrainingCoordinator(2)
    coordinator.run_collect(nothing)
    waits = watch(coordinator)
    held = Held()
    train = crew.start(coordinator.run_train, held)
    held.expect_running()
    evaluation = crew.start(coordinator.run_eval, held._go.is_set)
    waits.take.expect_waiting()
    held.release()
    train.result(PATIENCE)
    assert evaluation.result(PATIENCE) is True


def test_in_series_a_blocking_evaluation_waits_for_the_collect_at_hand_too(
        crew: Crew, watch: Callable[[Any], Watch]
) -> None:
    coordinator = AsyncTrainingCoordinator(0)
    waits = watch(coordinator)
    held = Held()
    collect = crew.start(coordinator.run_collect, held)
    held.expect_running()
    evaluation = crew.start(coordinator.run_eval, held._go.is_set)
    waits.take.expect_waiting()
    held.release()
    collect.result(PATIENCE)
    assert evaluation.result(PATIENCE) is True


def test_a_background_evaluation_returns_at_once_and_runs_on_its_own_thread() -> None:
    with AsyncTrainingCoordinator(2, enable_async_eval=True) as coordinator:
        held = Held('score')
        assert coordinator.run_eval(held) is None
        held.expect_running()
        assert held.thread is not threading.current_thread()
        coordinator.run_collect(nothing)
        coordinator.run_train(nothing)  # goes on meanwhile
        held.release()
        assert coordinator.wait_for_eval() == 'score'
        assert coordinator.get_statistics()['eval_count'] == 1
        again = Held('better')
        again.release()
        coordinator.run_eval(again)
        assert coordinator.wait_for_eval() == 'better'
        assert again.thread is held.thread


def test_the_latest_evaluation_waits_and_the_running_one_is_never_cancelled() -> None:
    coordinator = AsyncTrainingCoordinator(2, enable_async_eval=True)
    running, dropped, called = Held('first'), [], []
    coordinator.run_eval(running, lambda: dropped.append(0))
    running.expect_running()
    for number in (1, 2, 3):
        coordinator.run_eval(lambda number=number: called.append(number) or number,
                             lambda number=number: dropped.append(number))
    assert dropped == [1, 2]
    running.release()
    assert coordinator.wait_for_eval() == 3
    assert (called, dropped) == ([3], [1, 2])
    assert coordinator.get_statistics()['eval_count'] == 2
    coordinator.close()


def test_the_error_of_an_evaluation_surfaces_once_even_if_a_later_one_succeeds() -> None:
    coordinator = AsyncTrainingCoordinator(2, enable_async_eval=True)
    error = RuntimeError('the environment is gone')
    failing = Held(error)
    coordinator.run_eval(failing)
    failing.expect_running()
    coordinator.run_eval(lambda: 'fine')  # waits behind it
    failing.release()
    with pytest.raises(RuntimeError) as caught:
        coordinator.wait_for_eval()
    assert caught.value is error
    assert coordinator.wait_for_eval() == 'fine'
    coordinator.close()


def test_the_error_of_an_evaluation_surfaces_at_the_next_one_or_at_the_end() -> None:
    desk = EvalDesk()
    for surface in (lambda: desk.submit(nothing), desk.close):
        failing = Held(RuntimeError('gone'))
        desk.submit(failing)
        failing.expect_running()
        with desk._changed:
            failing.release()
            desk._changed.wait_for(lambda: not desk._running, PATIENCE)
        with pytest.raises(RuntimeError, match='gone'):
            surface()
    desk.close()


@pytest.mark.parametrize('drop', [False, True])
def test_closing_awaits_evaluations_or_drops_the_one_that_waits(crew: Crew, drop: bool) -> None:
    coordinator = AsyncTrainingCoordinator(2, enable_async_eval=True)
    running, called, dropped = Held(), threading.Event(), threading.Event()
    coordinator.run_eval(running)
    running.expect_running()
    coordinator.run_eval(called.set, dropped.set)
    closing = crew.start(coordinator.close, drop)
    assert not drop or dropped.wait(PATIENCE)  # while the other one still runs
    running.release()
    closing.result(PATIENCE)
    assert (called.is_set(), dropped.is_set()) == (not drop, drop)
    assert running.thread is not None and not running.thread.is_alive()


def test_nothing_starts_once_closed() -> None:
    for background in (False, True):
        coordinator = AsyncTrainingCoordinator(2, enable_async_eval=background)
        coordinator.close()
        for run in (coordinator.run_collect, coordinator.run_train, coordinator.run_eval):
            with pytest.raises(Closed):
                run(lambda: pytest.fail('ran after close'))
        assert coordinator.wait_for_eval() is None


def test_a_blocking_evaluation_inside_a_train_is_refused_instead_of_waiting_for_itself() -> None:
    coordinator: AsyncTrainingCoordinator[None] = AsyncTrainingCoordinator(1)
    coordinator.run_collect(nothing)
    with pytest.raises(RuntimeError, match='between two trains'):
        coordinator.run_train(lambda: coordinator.run_eval(nothing))
    assert coordinator.run_eval(lambda: 'result') == 'result'
    coordinator.close()
