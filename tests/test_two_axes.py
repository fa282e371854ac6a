"""A language model beside the world model: two gates, two stores, two bounds, in both placements, with fake parts."""
from __future__ import annotations

import json
import os
import signal
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from conftest import Crew, Watched
from fakes import FakeTrainer
from test_engine import PLACEMENTS, assert_books_balance, assert_nothing_is_left, children, make_engine

from lzero_async.core import WorkerError
from lzero_async.resources import Turns, shared_devices

pytestmark = pytest.mark.unittest


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (directory / 'metrics.jsonl').read_text().splitlines()]
    return [line for line in lines if line['event'] == name]


@pytest.mark.parametrize('placement', PLACEMENTS)
def test_both_models_learn_from_every_batch_within_their_own_bounds(tmp_path: Path, placement: str) -> None:
    before = children()
    engine = make_engine(
        tmp_path, placement, FakeTrainer(ratio=Fraction(1, 2), eval_freq=20), max_env_step=400,
        prior={'duration_s': 0.004, 'train': {'replay_ratio': 0.5, 'off_policy_degree': 2}}, off_policy_degree=4
    )
    engine.run()
    report = engine.report()
    assert_nothing_is_left(engine, before)
    assert_books_balance(report)
    assert_books_balance(report['llm'])
    assert report['batches_lost'] == report['llm']['batches_lost'] == 0
    # Two batches of ten records may be outstanding, of which each pays for two and a half updates.
    assert 0 < report['llm_max_lag'] <= report['llm_lag_bound'] <= 5
    assert report['llm']['max_age'] <= 1 and report['max_age'] <= 3
    trained = events(tmp_path, 'prior')
    assert report['llm_records'] == 10 * len(trained) == report['llm_store']['received']
    assert report['llm_updates'] == sum(each['updates'] for each in trained) == int(2.5 * len(trained))
    assert report['llm_held_out'] == {'records': 32, 'before': 1.0, 'after': 0.5}
    assert report['overlap_s'] > 0 and report['roles']['prior']['count'] == len(trained)


@pytest.mark.parametrize('placement', PLACEMENTS)
def test_evaluations_pin_a_pair_of_versions(tmp_path: Path, placement: str) -> None:
    engine = make_engine(
        tmp_path, placement, FakeTrainer(eval_freq=10), prior={'train': {'replay_ratio': 1.0}}, enable_async_eval=True,
        evaluator={'duration_s': 0.02}, eval_at_start=True
    )
    engine.run()
    versions = [each['prior_version'] for each in events(tmp_path, 'evaluation')]
    published = {0, *(each['version'] for each in events(tmp_path, 'prior'))}
    assert len(versions) > 1 and versions == sorted(versions) and set(versions) <= published


@pytest.mark.parametrize('placement', PLACEMENTS)
@pytest.mark.parametrize('degree', [2, 8])
def test_low_and_high_degrees_overlap_within_their_bounds(tmp_path: Path, placement: str, degree: int) -> None:
    engine = make_engine(
        tmp_path, placement, FakeTrainer(ratio=Fraction(1, 2), update_s=0.001), max_env_step=300, duration_s=0.004,
        prior={'duration_s': 0.004, 'train': {'replay_ratio': 0.5}}, off_policy_degree=degree
    )
    engine.run()
    report = engine.report()
    for books in (report, report['llm']):
        assert_books_balance(books)
        assert books['batches_lost'] == 0 and books['max_age'] <= degree - 1
    assert report['overlap_s'] > 0 and report['llm_max_lag'] <= report['llm_lag_bound']


@pytest.mark.parametrize('beside', [False, True])
def test_both_models_learn_on_beside_an_asynchronous_evaluation(tmp_path: Path, beside: bool) -> None:
    ahead: list[tuple[int, int]] = []  # env steps that each model had learnt from since, when a result came in

    class Trainer(FakeTrainer):

        def evaluated(self, result: Any, state: Any) -> None:
            ahead.append((10 * len(self.pushed) - result.env_steps, engine.prior.records - result.env_steps))

    engine = make_engine(
        tmp_path, 'thread', Trainer(eval_freq=50), max_env_step=800, prior={'train': {}},
        evaluator={'duration_s': 0.1}, enable_async_eval=beside
    )
    engine.run()
    world, prior = (max(each) for each in zip(*ahead, strict=True))
    assert world > 0 and prior > 0 if beside else world == 0


def test_automatic_degrees_follow_measured_times_on_each_axis(tmp_path: Path) -> None:
    engine = make_engine(
        tmp_path, 'thread', FakeTrainer(ratio=Fraction(1, 10)), max_env_step=250, duration_s=0.001, num_collectors=1,
        prior={'duration_s': 0.15, 'train': {}}, off_policy_degree=-1
    )
    engine.run()
    report = engine.report()
    assert report['mode'] == report['llm']['mode'] == 'auto'
    for books in (report, report['llm']):
        assert_books_balance(books)
        assert books['degree_history'][0] == {'batch': 0, 'degree': 2, 'reason': 'start'}
    # The language model holds everything up: its learner never waits, so there is nothing to gain from a higher degree.
    assert {change['degree'] for change in report['llm']['degree_history']} <= {1, 2}


def test_a_slow_language_model_holds_collects_back(tmp_path: Path) -> None:
    engine = make_engine(
        tmp_path, 'thread', max_env_step=100,
        prior={'duration_s': 0.05, 'train': {'off_policy_degree': 1}}, off_policy_degree=8
    )
    engine.run()
    ahead = [each['age'] for each in events(tmp_path, 'prior')]
    assert ahead and set(ahead) == {0}  # nothing was collected with a model older than the one it then taught


def test_a_trainer_that_fails_ends_the_run_with_its_name(tmp_path: Path) -> None:
    before = children()
    engine = make_engine(tmp_path, 'process', prior={'how': 'raise', 'at': 2, 'train': {}})
    with pytest.raises(WorkerError, match='prior-trainer failed: .*the language model broke'):
        engine.run()
    assert_nothing_is_left(engine, before)
    report = engine.report()
    assert report['llm']['batches_lost'] == 1 and 'prior-trainer failed' in report['llm']['loss_causes'][0]
    assert_books_balance(report)


@pytest.mark.parametrize('placement', PLACEMENTS)
def test_a_signal_loses_nothing_on_either_axis(tmp_path: Path, placement: str) -> None:
    before = children()
    engine = make_engine(tmp_path, placement, max_env_step=10**9, prior={'duration_s': 0.2, 'train': {}})
    publish = engine.prior.store.publish

    def and_interrupt(version: int, weights: Any) -> bool:
        if version:
            os.kill(os.getpid(), signal.SIGINT)
        return publish(version, weights)

    engine.prior.store.publish = and_interrupt
    engine.run()
    report = engine.report()
    assert engine.interrupted_by == signal.SIGINT and report['ended'] == 'interrupted by SIGINT'
    assert_nothing_is_left(engine, before)
    for books in (report, report['llm']):
        assert_books_balance(books)
        assert books['batches_lost'] == 0
    assert report['llm_held_out'] is None  # there was no time for it


def test_a_collector_that_never_started_does_not_spoil_the_end(tmp_path: Path) -> None:
    engine = make_engine(
        tmp_path, 'process', max_env_step=50, collector={'how': 'slow start'}, num_collectors=2,
        prior={'duration_s': 0.5, 'train': {}}
    )
    engine.run()
    report = engine.report()
    assert report['env_steps'] >= 50 and report['batches_lost'] == 0 and report['llm_held_out'] is not None


def test_roles_on_one_device_alternate(crew: Crew) -> None:
    turns = Turns({'learner': ('gpu', 'bus'), 'prior': ('bus', 'gpu')})
    inside, order = threading.Semaphore(1), []

    def work(role: str) -> None:
        for _ in range(50):
            with turns.turn(role):
                assert inside.acquire(blocking=False), 'two roles at once'
                order.append(role)
                inside.release()

    for each in [crew.start(work, role) for role in ('learner', 'prior')]:
        each.result(timeout=20)
    assert sorted(order) == ['learner'] * 50 + ['prior'] * 50


def test_whoever_waits_comes_before_who_comes_back(crew: Crew) -> None:
    turns, order = Turns({'learner': ('gpu',), 'prior': ('gpu',)}), []
    turns._moved = watched = Watched(threading.RLock())
    with turns.turn('learner'):
        waiting = crew.start(lambda: _note(turns, 'prior', order))
        watched.expect_waiting()
    with turns.turn('learner'):
        order.append('learner')
    waiting.result(timeout=20)
    assert order == ['prior', 'learner']


def _note(turns: Turns, role: str, order: list[str]) -> None:
    with turns.turn(role):
        order.append(role)


def test_a_role_without_needs_never_waits() -> None:
    turns = Turns({'learner': ('gpu',)})
    with turns.turn('learner'), turns.turn('prior'):
        pass


def test_only_accelerators_are_taken_in_turns() -> None:
    assert not shared_devices({'learner': 'cpu', 'prior': 'cpu'})._lines
    assert not shared_devices({'learner': 'cuda:0', 'prior': 'cuda:1'})._lines
    assert list(shared_devices({'learner': 'cuda:0', 'prior': 'cuda:0'})._lines) == ['cuda:0']
