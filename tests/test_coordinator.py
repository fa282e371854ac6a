"""The coordinator in anyone's own loop: real threads, forced interleavings, no sleeps."""
from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from conftest import PATIENCE, Crew, Held, Watch, nothing, repeat, until_closed

from lzero_async.coordinator import AsyncTrainingCoordinator

pytestmark = pytest.mark.unittest


# ---------------------------------------------------------------------- seed 001's table


def test_degree_zero_strictly_alternates_across_threads(crew: Crew) -> None:
    coordinator = AsyncTrainingCoordinator(0)
    order: list[str] = []
    jobs = [crew.start(repeat, 50, coordinator.run_train, lambda: order.append('train')) for _ in range(2)]
    jobs += [crew.start(repeat, 50, coordinator.run_collect, lambda: order.append('collect')) for _ in range(2)]
    for job in jobs:
        job.result(PATIENCE)
    assert order == ['collect', 'train'] * 100
    assert coordinator.get_statistics()['mode'] == 'serial'


def test_degree_zero_never_trains_twice_on_the_same_data(crew: Crew, watch: Callable[[Any], Watch]) -> None:
    coordinator = AsyncTrainingCoordinator(0)
    waits = watch(coordinator)
    coordinator.run_collect(nothing)
    assert not coordinator.can_collect() and coordinator.can_train()
    coordinator.run_train(nothing)
    assert coordinator.can_collect() and not coordinator.can_train()
    train = crew.start(coordinator.run_train, lambda: 'trained')
    waits.take.expect_waiting()
    assert not train.done()
    coordinator.run_collect(nothing)
    assert train.result(PATIENCE) == 'trained'


@pytest.mark.parametrize('degree', [2, 10, 50, -1])
def test_degrees_above_one_let_collect_and_train_overlap(crew: Crew, degree: int) -> None:
    coordinator = AsyncTrainingCoordinator(degree)
    both = threading.Barrier(2)  # can only be passed by a collect and a train at the same time
    coordinator.run_collect(nothing)
    train = crew.start(coordinator.run_train, lambda: both.wait(PATIENCE))
    collect = crew.start(coordinator.run_collect, lambda: both.wait(PATIENCE))
    assert {train.result(PATIENCE), collect.result(PATIENCE)} == {0, 1}
    assert coordinator.get_statistics()['overlap_s'] > 0


def test_degree_one_admits_no_collect_while_a_batch_is_unpaid() -> None:
    coordinator = AsyncTrainingCoordinator(1)
    assert coordinator.can_collect()
    assert coordinator.run_collect(coordinator.can_collect) is False
    assert not coordinator.can_collect()
    assert coordinator.run_train(coordinator.can_collect) is False
    assert coordinator.can_collect()


@pytest.mark.parametrize('degree', [1, 2, 5])
def test_outstanding_never_exceeds_the_degree(crew: Crew, degree: int) -> None:
    coordinator = AsyncTrainingCoordinator(degree, num_collectors=4)
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()

    def look() -> None:
        seen.put(coordinator.get_statistics()['outstanding'])

    collects = [crew.start(repeat, 30, coordinator.run_collect, look) for _ in range(4)]
    train = crew.start(until_closed, coordinator.run_train, look)
    for collect in collects:
        collect.result(PATIENCE)
    statistics = coordinator.get_statistics()
    coordinator.close()
    train.result(PATIENCE)
    looks = [seen.get() for _ in range(seen.qsize())]
    assert len(looks) > 120 and 1 <= max(looks) <= degree
    assert statistics['batches_admitted'] == statistics['collect_count'] == 120
    assert statistics['batches_trained'] + statistics['outstanding'] == 120
    assert statistics['max_age'] <= degree - 1


@pytest.mark.parametrize('degree', [1, 3])
def test_training_beyond_the_data_is_allowed_from_degree_one_and_pays_nothing(degree: int) -> None:
    coordinator = AsyncTrainingCoordinator(degree)
    assert not coordinator.can_train()
    coordinator.run_collect(nothing)
    repeat(4, coordinator.run_train, nothing)
    statistics = coordinator.get_statistics()
    assert (statistics['collect_count'], statistics['train_count'], statistics['outstanding']) == (1, 4, 0)
    assert statistics['batches_trained'] == 1


def test_training_waits_for_the_first_data(crew: Crew, watch: Callable[[Any], Watch]) -> None:
    coordinator = AsyncTrainingCoordinator(3)
    waits = watch(coordinator)
    train = crew.start(coordinator.run_train, nothing)
    waits.take.expect_waiting()
    with pytest.raises(KeyError):
        coordinator.run_collect(lambda: {}['no data'])
    waits.take.expect_waiting()  # woken, and back to waiting
    coordinator.run_collect(nothing)
    train.result(PATIENCE)


def test_only_one_train_runs_at_a_time(crew: Crew, watch: Callable[[Any], Watch]) -> None:
    coordinator = AsyncTrainingCoordinator(3)
    repeat(2, coordinator.run_collect, nothing)
    waits = watch(coordinator)
    first = Held()
    running = crew.start(coordinator.run_train, first)
    first.expect_running()
    second = crew.start(coordinator.run_train, lambda: first._go.is_set())
    waits.take.expect_waiting()
    first.release()
    running.result(PATIENCE)
    assert second.result(PATIENCE) is True


@pytest.mark.parametrize('trainers', [1, 2])
def test_trainers_in_several_threads_never_lock_up_with_a_full_queue(crew: Crew, trainers: int) -> None:
    coordinator = AsyncTrainingCoordinator(3, num_collectors=3, data_queue_size=1)
    collects = [crew.start(repeat, 100, coordinator.run_collect, nothing) for _ in range(3)]
    trains = [crew.start(until_closed, coordinator.run_train, nothing) for _ in range(trainers)]
    for collect in collects:
        collect.result(PATIENCE)
    coordinator.close()
    for train in trains:
        train.result(PATIENCE)
    statistics = coordinator.get_statistics()
    assert statistics['collect_count'] == 300 == statistics['batches_trained'] + statistics['batches_unused'] + \
        statistics['batches_lost']


def test_deterministic_collects_of_several_threads_share_the_turns(
        crew: Crew, watch: Callable[[Any], Watch]
) -> None:
    coordinator = AsyncTrainingCoordinator(1, num_collectors=2, deterministic=True)
    waits = watch(coordinator)
    running = Held()
    first = crew.start(coordinator.run_collect, running)
    running.expect_running()
    others = [crew.start(coordinator.run_collect, nothing) for _ in range(2)]  # who was asked at the same turn
    waits.admit.expect_waiting(2)
    running.release()
    first.result(PATIENCE)
    repeat(3, coordinator.run_train, nothing)
    for other in others:
        other.result(PATIENCE)


# ---------------------------------------------------------------------- results and errors


def test_results_are_returned_and_called_in_the_calling_thread() -> None:
    coordinator = AsyncTrainingCoordinator(2)
    result = object()
    assert coordinator.run_collect(threading.current_thread) is threading.current_thread()
    assert coordinator.run_train(threading.current_thread) is threading.current_thread()
    assert coordinator.run_eval(threading.current_thread) is threading.current_thread()
    assert coordinator.run_collect(lambda: result) is result


def test_errors_come_out_as_they_went_in_and_a_failed_collect_gives_its_slot_back() -> None:
    coordinator = AsyncTrainingCoordinator(0)
    error = KeyboardInterrupt('mine')

    def fail() -> None:
        raise error

    for _ in range(3):  # the one slot is free each time
        with pytest.raises(KeyboardInterrupt) as caught:
            coordinator.run_collect(fail)
        assert caught.value is error and caught.value.__cause__ is None
    coordinator.run_collect(nothing)
    for run in (coordinator.run_train, coordinator.run_eval):
        with pytest.raises(KeyboardInterrupt) as caught:
            run(fail)
        assert caught.value is error
    statistics = coordinator.get_statistics()
    assert (statistics['batches_lost'], statistics['outstanding'], statistics['collect_count']) == (3, 0, 1)
    assert "KeyboardInterrupt('mine')" in statistics['loss_causes'][0]
    coordinator.run_collect(nothing)
    coordinator.run_train(nothing)


def test_an_interrupted_delivery_gives_its_slot_back(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = AsyncTrainingCoordinator(3, data_queue_size=1)
    coordinator.run_collect(nothing)

    def interrupted(timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(coordinator._may_deliver, 'wait', interrupted)
        with pytest.raises(KeyboardInterrupt):
            coordinator.run_collect(nothing)
    assert coordinator.get_statistics()['batches_lost'] == 1
    coordinator.run_train(nothing)
    coordinator.run_collect(nothing)
    coordinator.run_train(nothing)
    assert coordinator.get_statistics()['outstanding'] == 0


# ---------------------------------------------------------------------- statistics and the end


def test_statistics_are_complete_and_can_be_written_as_json() -> None:
    ticks = iter(range(1000))
    coordinator = AsyncTrainingCoordinator(2, clock=lambda: float(next(ticks)))
    repeat(2, coordinator.run_collect, nothing)
    coordinator.run_train(nothing)
    coordinator.run_eval(nothing)
    statistics = json.loads(json.dumps(coordinator.get_statistics()))
    counts = ('collect_count', 'train_count', 'eval_count', 'lag', 'outstanding', 'degree', 'mode')
    assert [statistics[key] for key in counts] == [2, 1, 1, 1, 1, 2, 'async']
    for role, count in (('collect', 2), ('train', 1), ('eval', 1)):
        times = statistics['roles'][role]
        assert times['count'] == times['busy']['count'] == count and times['busy_s'] > 0
        assert times['wait_s'] == times['wait_gate_s'] + times['wait_data_s'] >= 0
        assert {'mean', 'p95', 'max'} <= times['busy'].keys() & times['wait_gate'].keys() & times['wait_data'].keys()
    assert statistics['degree_history'] == [{'batch': 0, 'degree': 2, 'reason': 'start'}]
    assert statistics['ages'] == {'0': 1}


def test_waits_are_charged_to_whom_they_delay(crew: Crew, watch: Callable[[Any], Watch]) -> None:
    now = [0.0]
    coordinator = AsyncTrainingCoordinator(1, clock=lambda: now[0])
    waits = watch(coordinator)
    train = crew.start(coordinator.run_train, nothing)
    waits.take.expect_waiting()
    now[0] += 3
    coordinator.run_collect(lambda: now.__setitem__(0, now[0] + 5))
    train.result(PATIENCE)
    held = Held()
    coordinator.run_collect(nothing)
    train = crew.start(coordinator.run_train, held)
    held.expect_running()
    collect = crew.start(coordinator.run_collect, nothing)
    waits.admit.expect_waiting()
    now[0] += 7
    held.release()
    collect.result(PATIENCE)
    train.result(PATIENCE)
    roles = coordinator.get_statistics()['roles']
    assert (roles['train']['wait_data_s'], roles['train']['busy_s']) == (8, 7)
    assert (roles['collect']['wait_gate_s'], roles['collect']['busy_s'], roles['collect']['wait_data_s']) == (7, 5, 0)


def test_counters_can_be_reset_between_batches_only(crew: Crew) -> None:
    coordinator = AsyncTrainingCoordinator(2)
    coordinator.run_collect(nothing)
    with pytest.raises(RuntimeError, match='outstanding'):
        coordinator.reset_counters()
    coordinator.run_train(nothing)
    coordinator.run_eval(coordinator.reset_counters)  # in the middle of an evaluation
    statistics = coordinator.get_statistics()
    assert [statistics[key] for key in ('collect_count', 'train_count', 'batches_admitted', 'overlap_s')] == [0] * 4
    coordinator.run_collect(nothing)
    coordinator.run_train(nothing)  # nothing is paused for good
    statistics = coordinator.get_statistics()
    assert (statistics['batches_trained'], statistics['overlap_s']) == (1, 0)


def test_a_reset_does_not_forget_collectors_that_wait(crew: Crew, watch: Callable[[Any], Watch]) -> None:
    coordinator = AsyncTrainingCoordinator(0)
    waits = watch(coordinator)
    held = Held()
    evaluation = crew.start(coordinator.run_eval, held)
    held.expect_running()
    collect = crew.start(coordinator.run_collect, lambda: 'collected')
    waits.admit.expect_waiting()
    coordinator.reset_counters()
    held.release()
    evaluation.result(PATIENCE)
    assert collect.result(PATIENCE) == 'collected'


def test_closing_twice_and_leaving_a_with_block_are_fine() -> None:
    with AsyncTrainingCoordinator(3, enable_async_eval=True) as coordinator:
        coordinator.run_collect(nothing)
        coordinator.run_eval(nothing)
        coordinator.close()
    coordinator.close()
    statistics = coordinator.get_statistics()
    assert (statistics['batches_admitted'], statistics['batches_unused'], statistics['outstanding']) == (1, 1, 0)


def test_closing_during_a_train_lets_it_end_and_counts_its_batch_as_lost(crew: Crew) -> None:
    coordinator = AsyncTrainingCoordinator(2)
    coordinator.run_collect(nothing)
    held = Held('trained')
    train = crew.start(coordinator.run_train, held)
    held.expect_running()
    coordinator.close()
    held.release()
    assert train.result(PATIENCE) == 'trained'
    statistics = coordinator.get_statistics()
    assert (statistics['batches_trained'], statistics['batches_lost']) == (0, 1)
    assert 'being trained' in statistics['loss_causes'][0]


def test_it_works_from_an_event_loop() -> None:
    coordinator = AsyncTrainingCoordinator(2)
    both = threading.Barrier(2)

    async def main() -> list[Any]:
        await asyncio.to_thread(coordinator.run_collect, nothing)
        return await asyncio.gather(
            asyncio.to_thread(coordinator.run_train, lambda: both.wait(PATIENCE)),
            asyncio.to_thread(coordinator.run_collect, lambda: both.wait(PATIENCE)),
        )

    assert sorted(asyncio.run(main())) == [0, 1]
    assert coordinator.get_statistics()['outstanding'] == 1


@pytest.mark.parametrize('arguments', [
    dict(off_policy_degree=-2), dict(off_policy_degree=1, num_collectors=0),
    dict(off_policy_degree=1, data_queue_size=0), dict(off_policy_degree=1, weight_sync_interval=0),
    dict(off_policy_degree=-1, max_degree=0), dict(off_policy_degree=-1, deterministic=True),
])
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        AsyncTrainingCoordinator(**arguments)
