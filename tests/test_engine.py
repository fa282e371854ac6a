"""The engine with fake parts: accounting, bounds, evaluations, failures and signals, in both placements."""
from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeTrainer

from lzero_async.config import AsyncConfig
from lzero_async.core import Limits, WorkerError, WorkerSpec
from lzero_async.engine import Engine
from lzero_async.placement import make_handle
from lzero_async.priorzero.config import PriorTraining, PriorZeroConfig
from lzero_async.priorzero.teacher import Teacher
from lzero_async.resources import Turns
from lzero_async.telemetry.recorder import Recorder
from lzero_async.transport.memory import new_prefix

pytestmark = pytest.mark.unittest
PLACEMENTS = ['thread', 'process']


def left_in_shared_memory(prefix: str) -> list[str]:
    directory = Path('/dev/shm')
    return [path.name for path in directory.glob(f'{prefix}*')] if directory.exists() else []


def children() -> set[int]:
    """Processes that have this one as their parent, but for multiprocessing's resource tracker."""
    found = set()
    for path in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):  # it ended while we looked
            fields = (path / 'stat').read_text().rpartition(')')[2].split()
            if int(fields[1]) == os.getpid() and b'resource_tracker' not in (path / 'cmdline').read_bytes():
                found.add(int(path.name))
    return found


def make_engine(
        directory: Path, placement: str = 'thread', trainer: FakeTrainer | None = None, max_env_step: int = 300,
        collector: dict[str, Any] | None = None, evaluator: dict[str, Any] | None = None, duration_s: float = 0.002,
        prior: dict[str, Any] | None = None, **settings: Any
) -> Engine:
    config = AsyncConfig(**{
        'placement': placement, 'num_collectors': 2, 'off_policy_degree': 3, 'shutdown_timeout_s': 5.0, **settings
    })
    prefix = new_prefix()

    def handle(name: str, factory: str = 'make_worker', **arguments: Any) -> Any:
        spec = WorkerSpec(name, f'fakes:{factory}', arguments)
        return make_handle(config.placement, spec, prefix, directory / 'logs', config.worker_timeout_s)

    # Only collector-0 misbehaves.
    collectors = [
        handle(f'collector-{i}', **{'index': i, 'duration_s': duration_s, **(collector or {} if i == 0 else {})})
        for i in range(config.num_collectors)
    ]
    recorder, shared, extra = Recorder(directory), prefix if placement == 'process' else None, ()
    if prior is not None:
        teacher = Teacher(
            PriorZeroConfig(train=PriorTraining(batch_size=2, **prior.pop('train', {}))), config, 'cpu', 0, Turns()
        )
        extra = (
            handle('prior-trainer', 'make_prior_trainer', **prior),
            partial(teacher.role, recorder=recorder, prefix=shared)
        )
    engine = Engine(
        config, trainer or FakeTrainer(), collectors, handle('evaluator', **(evaluator or {})), recorder,
        Limits(max_env_step=max_env_step), shared, *extra
    )
    engine.prefix = prefix  # type: ignore[attr-defined]
    return engine


def assert_nothing_is_left(engine: Engine, before: set[int]) -> None:
    assert left_in_shared_memory(engine.prefix) == []  # type: ignore[attr-defined]
    assert children() <= before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith('lzero-async')]


def assert_books_balance(report: dict[str, Any]) -> None:
    parts = ('trained', 'unused', 'cancelled', 'lost')
    assert report['batches_admitted'] == sum(report[f'batches_{part}'] for part in parts)
    assert 0 <= report['updates_granted'] - report['updates_done'] < 1
    assert report['max_lag_updates'] <= report['lag_bound_updates']


@pytest.mark.parametrize('placement', PLACEMENTS)
def test_a_run_accounts_for_every_batch_and_leaves_nothing(tmp_path: Path, placement: str) -> None:
    before = children()
    trainer = FakeTrainer(ratio=Fraction(1, 3))
    engine = make_engine(tmp_path, placement, trainer)
    engine.run()
    report = engine.report()
    assert_books_balance(report)
    assert report['env_steps'] == 300 and report['batches_trained'] == 30 and report['batches_lost'] == 0
    assert report['train_iters'] == report['updates_done'] == 100
    assert len({batch.number for batch in trainer.pushed}) == 30
    assert report['max_age'] <= 2
    if placement == 'thread':  # a process may come up when the other has done all the work
        assert {batch.worker for batch in trainer.pushed} == {0, 1}
    assert trainer.finished == 1
    json.dumps(report)
    assert_nothing_is_left(engine, before)


@pytest.mark.parametrize('degree', [1, 2, 5])
@pytest.mark.parametrize('interval', [1, 7])
def test_every_batch_stays_within_its_bounds(tmp_path: Path, degree: int, interval: int) -> None:
    engine = make_engine(tmp_path, off_policy_degree=degree, weight_sync_interval=interval)
    engine.run()
    events = [json.loads(line) for line in (tmp_path / 'metrics.jsonl').read_text().splitlines()]
    batches = [event for event in events if event['event'] == 'batch']
    assert len(batches) == 30
    for batch in batches:
        assert batch['age'] <= degree - 1
        assert batch['lag'] <= batch['lag_bound']
    versions = [event['version'] for event in events if event['event'] == 'publication']
    assert versions and all(b - a >= interval for a, b in zip([0, *versions], versions, strict=False))
    assert_books_balance(engine.report())


def test_warm_up_batches_pay_nothing_and_do_not_hang(tmp_path: Path) -> None:
    trainer = FakeTrainer(ratio=Fraction(1), warmup_batches=5)
    engine = make_engine(tmp_path, trainer=trainer, off_policy_degree=2)
    engine.run()
    assert engine.report()['updates_done'] == 25 * 10


def test_deterministic_batches_are_taken_in_order(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    engine = make_engine(tmp_path, 'process', trainer, collector={'duration_s': 0.01}, deterministic=True)
    engine.run()
    assert [batch.number for batch in trainer.pushed] == list(range(30))
    assert [batch.worker for batch in trainer.pushed] == [k % 2 for k in range(30)]
    # Batch k saw the boundary after batch k - 3 was paid, each batch paying for five updates.
    assert [batch.version for batch in trainer.pushed] == [5 * max(0, k - 2) for k in range(30)]


@pytest.mark.parametrize('placement', PLACEMENTS)
@pytest.mark.parametrize('asynchronous', [False, True])
def test_an_evaluation_sees_the_exact_snapshot_and_its_stop_ends_the_run(
        tmp_path: Path, placement: str, asynchronous: bool
) -> None:
    trainer = FakeTrainer(eval_freq=12)
    engine = make_engine(
        tmp_path, placement, trainer, max_env_step=10**6, evaluator={'how': 'stop', 'at': 3},
        enable_async_eval=asynchronous, weight_sync_interval=100
    )
    engine.run()
    report = engine.report()
    assert report['ended'] == 'the stop value was reached'
    assert report['eval_count'] >= 3
    assert_books_balance(report)
    assert all(state == (iteration if asynchronous else None) for iteration, state in trainer.best)


def test_an_asynchronous_evaluation_does_not_hold_up_learning(tmp_path: Path) -> None:
    engine = make_engine(
        tmp_path, trainer=FakeTrainer(eval_freq=5), evaluator={'duration_s': 2.0}, enable_async_eval=True
    )
    engine.run()
    report = engine.report()
    # Thirty batches are over long before the first evaluation is; that and the latest that waited are still awaited.
    assert report['train_iters'] == 150 and report['eval_count'] == 2
    events = [json.loads(line) for line in (tmp_path / 'metrics.jsonl').read_text().splitlines()]
    assert [event['train_iters'] for event in events if event['event'] == 'evaluation'][-1] == 145


@pytest.mark.parametrize(('placement', 'how', 'words'), [
    ('thread', 'raise', 'the environment broke'),
    ('process', 'raise', 'the environment broke'),
    ('process', 'exit', 'exited with code 7'),
    ('process', 'kill', 'killed by SIGKILL'),
    ('thread', 'init', 'no environment today'),
    ('process', 'init', 'no environment today'),
    ('process', 'hang', 'no sign of life for 2 s'),
])
def test_a_collector_that_breaks_ends_the_run_with_its_cause(
        tmp_path: Path, placement: str, how: str, words: str
) -> None:
    before = children()
    trainer = FakeTrainer()
    engine = make_engine(
        tmp_path, placement, trainer, max_env_step=10**6, collector={'how': how, 'at': 4}, worker_timeout_s=2.0
    )
    started = time.monotonic()
    with pytest.raises(WorkerError, match=words) as caught:
        engine.run()
    assert time.monotonic() - started < 20
    assert caught.value.worker == 'collector-0'
    if how in ('raise', 'init'):
        assert '_misbehave' in caught.value.detail or '__init__' in caught.value.detail
    report = engine.report()
    assert_books_balance(report)
    if how != 'init':
        assert report['batches_lost'] == 1 and words in report['loss_causes'][0]
    assert trainer.finished == 1, 'the learner is sound: its last checkpoint is written'
    assert_nothing_is_left(engine, before)


@pytest.mark.parametrize('placement', PLACEMENTS)
@pytest.mark.parametrize('asynchronous', [False, True])
def test_an_evaluator_that_breaks_ends_the_run_with_its_cause(
        tmp_path: Path, placement: str, asynchronous: bool
) -> None:
    before = children()
    engine = make_engine(
        tmp_path, placement, FakeTrainer(eval_freq=10), max_env_step=10**6, evaluator={'how': 'raise', 'at': 2},
        enable_async_eval=asynchronous
    )
    with pytest.raises(WorkerError, match='the environment broke') as caught:
        engine.run()
    assert caught.value.worker == 'evaluator'
    assert_books_balance(engine.report())
    assert_nothing_is_left(engine, before)


@pytest.mark.parametrize('how', ['init', 'die'])
def test_an_evaluator_that_dies_unasked_is_noticed(tmp_path: Path, how: str) -> None:
    before = children()
    engine = make_engine(
        tmp_path, 'process', FakeTrainer(), max_env_step=10**6, evaluator={'how': how} if how == 'init' else {}
    )
    if how == 'die':
        killer = threading.Thread(target=lambda: os.kill(_pid_once_started(engine._eval_handle), signal.SIGKILL))
        killer.start()
    with pytest.raises(WorkerError, match='no environment today' if how == 'init' else 'killed by SIGKILL') as caught:
        engine.run()
    assert caught.value.worker == 'evaluator'
    assert_books_balance(engine.report())
    assert_nothing_is_left(engine, before)


def _pid_once_started(handle: Any) -> int:
    while handle.pid is None or not handle.log_path.exists():  # it is another process that makes the file
        time.sleep(0.01)
    return handle.pid


@pytest.mark.parametrize('placement', PLACEMENTS)
def test_an_error_of_the_learner_reaches_the_caller_as_it_was(tmp_path: Path, placement: str) -> None:
    before = children()
    trainer = FakeTrainer(fail_at=42)
    engine = make_engine(tmp_path, placement, trainer, max_env_step=10**6)
    with pytest.raises(ArithmeticError, match='the update exploded'):
        engine.run()
    report = engine.report()
    assert_books_balance(report)
    assert report['batches_lost'] == 1 and 'the update exploded' in report['loss_causes'][0]
    assert report['updates_done'] == report['train_iters'] == 42
    assert trainer.finished == 0, 'a learner that failed is not saved'
    assert_nothing_is_left(engine, before)


@pytest.mark.parametrize('placement', PLACEMENTS)
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_update_at_hand(tmp_path: Path, placement: str, number: int) -> None:
    before, handlers = children(), signal.getsignal(number)

    class Interrupting(FakeTrainer):

        def update(self) -> None:
            super().update()
            if self.train_iter == 7:
                self.told_at = time.monotonic()
                os.kill(os.getpid(), number)

    trainer = Interrupting(ratio=Fraction(100), update_s=0.002)
    engine = make_engine(tmp_path, placement, trainer, max_env_step=10**6, collector={'duration_s': 60.0})
    engine.run()
    assert time.monotonic() - trainer.told_at < 15
    report = engine.report()
    assert engine.interrupted_by == number
    assert 7 <= report['updates_done'] < 1000 and report['updates_returned'] > 0
    assert_books_balance(report)
    assert trainer.finished == 1
    assert signal.getsignal(number) is handlers
    assert_nothing_is_left(engine, before)


@pytest.mark.parametrize('placement', PLACEMENTS)
def test_a_second_signal_does_not_wait_for_the_update_at_hand(tmp_path: Path, placement: str) -> None:
    before, go_on = children(), threading.Event()

    class Slow(FakeTrainer):

        def update(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            go_on.wait(60)
            super().update()

    engine = make_engine(tmp_path, placement, Slow(), max_env_step=10**6, collector={'duration_s': 60.0})
    # The second one comes once the first has been heeded.
    heeded, stop = threading.Event(), engine.gate.stop
    engine.gate.stop = lambda: (stop(), heeded.set())  # type: ignore[method-assign]
    second = threading.Thread(target=lambda: heeded.wait(60) and os.kill(os.getpid(), signal.SIGINT))
    second.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    assert time.monotonic() - started < 20
    second.join()
    assert_books_balance(engine.report())
    assert engine.report()['wall_s'] > 0
    assert left_in_shared_memory(engine.prefix) == [] and children() <= before  # type: ignore[attr-defined]
    go_on.set()
    for thread in engine._threads:
        thread.join(20)
    assert left_in_shared_memory(engine.prefix) == []  # type: ignore[attr-defined]


def test_a_signal_while_the_last_evaluation_is_awaited_cancels_it(tmp_path: Path) -> None:
    before = children()
    trainer = FakeTrainer(eval_freq=10)
    engine = make_engine(
        tmp_path, trainer=trainer, max_env_step=100, evaluator={'duration_s': 60.0}, enable_async_eval=True
    )
    close = engine.gate.close
    engine.gate.close = lambda *args: (os.kill(os.getpid(), signal.SIGINT), close(*args))  # type: ignore
    started = time.monotonic()
    engine.run()
    assert time.monotonic() - started < 20
    assert engine.interrupted_by == signal.SIGINT and engine.report()['train_iters'] == 50
    assert_nothing_is_left(engine, before)


def test_a_collect_that_ignores_the_cancel_is_ended_by_force(tmp_path: Path) -> None:
    before = children()
    engine = make_engine(
        tmp_path, 'process', FakeTrainer(), max_env_step=200, collector={'how': 'hang', 'at': 1},
        shutdown_timeout_s=0.5, off_policy_degree=40, duration_s=0.3  # the other one leaves it time to come up
    )
    engine.run()
    assert engine.report()['batches_cancelled'] >= 1
    assert_nothing_is_left(engine, before)


def test_a_full_queue_blocks_collectors_and_loses_nothing(tmp_path: Path) -> None:
    trainer = FakeTrainer(update_s=0.002)
    engine = make_engine(tmp_path, trainer=trainer, off_policy_degree=6, data_queue_size=1)
    engine.run()
    assert_books_balance(engine.report())
    assert len(trainer.pushed) == 30
