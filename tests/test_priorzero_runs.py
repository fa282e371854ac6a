"""PriorZero on the shipped game, end to end: real Jericho, real LightZero, a tiny random BERT and Llama."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_lm
import torch
from completions_server import CompletionsServer
from easydict import EasyDict
from tiny_text import tiny_encoder, tiny_text

from lzero_async import ConfigError, WorkerError, train_priorzero_async
from lzero_async.core import Batch, CollectRequest
from lzero_async.lightzero.build import compiled, environments, policy_of
from lzero_async.lightzero.workers import CollectWorker
from lzero_async.priorzero import UniformPrior
from lzero_async.priorzero.config import Asking
from lzero_async.priorzero.mixing import Mixing
from lzero_async.priorzero.workers import PriorCollectWorker, PriorDesk
from lzero_async.recipes import PRIORZERO, TEXT_UNIZERO
from lzero_async.telemetry import recorder
from lzero_async.validate import prepare

pytestmark = pytest.mark.envtest


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # models this small gain nothing from more
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope='module')
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_encoder(tmp_path_factory.mktemp('text') / 'bert')


@pytest.fixture(scope='module')
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_lm.save(tmp_path_factory.mktemp('lm') / 'llama', window=512)


# ---------------------------------------------------------------------- searches


class OneAction(UniformPrior):
    """Always wants the last one."""

    def score(self, contexts: Any, actions: Any) -> Any:
        return [np.array([*[-50.0] * (len(row) - 1), 0.0], np.float32) for row in actions], 0


def collected(encoder: str, mixing: Mixing | None, batches: int = 3) -> list[Batch]:
    """Batches of a fresh policy with chance pinned; without a mixing they are plain text UniZero's."""
    recipe: Any = TEXT_UNIZERO if mixing is None else PRIORZERO
    section = dict(llm=dict(backend='uniform'), train=dict(enabled=False))
    configs = tiny_text(encoder, num_simulations=12, root_noise_weight=0.0, priorzero=section)
    cfg: EasyDict = compiled(recipe, *prepare(*configs), 0)
    torch.manual_seed(0)
    policy = policy_of(cfg, None)
    recipe.ready(policy)
    env = environments(cfg, 'collector', 0)
    np.random.seed(1)
    worker: CollectWorker
    if mixing is None:
        worker = CollectWorker(cfg, env, policy=policy, recipe=recipe)
    else:
        desk = PriorDesk(policy, OneAction(), Asking({}, 'cpu', mixing, recording=True))
        worker = PriorCollectWorker(cfg, env, policy=policy, recipe=recipe, desk=desk)
    made = [worker.run(CollectRequest(number, 0, 0, 0, 1.0, 0.0)) for number in range(batches)]
    worker.close()
    return made


def visits(batches: list[Batch]) -> list[Any]:
    return [segment.child_visit_segment for batch in batches for segment in batch.segments]


def compare(encoder: str) -> None:
    """For a process in which the search tree's chance is pinned."""
    torch.set_num_threads(1)
    plain, mixed, other = (visits(collected(encoder, each)) for each in (None, Mixing(weight=0.0), Mixing(weight=0.9)))
    for ours, theirs in zip(mixed, plain, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    assert not np.array_equal(np.asarray(other[0]), np.asarray(plain[0]))


def test_without_weight_searches_are_plain_unizeros(encoder: str, pinned: Path) -> None:
    here = str(Path(__file__).parent)
    environment = {**os.environ, 'LD_PRELOAD': str(pinned), 'PYTHONHASHSEED': '0', 'PYTHONPATH': here}
    done = subprocess.run(
        [sys.executable, '-c', f'import test_priorzero_runs; test_priorzero_runs.compare({encoder!r})'],
        env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_prior_on_one_action_draws_the_visits_there(encoder: str) -> None:
    records = [record for batch in collected(encoder, Mixing('llm')) for record in batch.records]
    shares = [record.visits[-1] for record in records if len(record.actions) > 1]
    assert len(shares) > 20 and np.mean(shares) > 0.8


def test_every_step_leaves_a_record_that_says_what_happened(encoder: str) -> None:
    batches = collected(encoder, Mixing('fixed', weight=0.5))
    records = [record for batch in batches for record in batch.records]
    assert len(records) == sum(batch.env_steps for batch in batches)
    assert sum(record.done for record in records) == sum(len(batch.episode_returns) for batch in batches)
    for record in records:
        assert len(record.actions) == len(record.visits) == len(record.log_probs) and 0 <= record.action
        assert record.visits.sum() == pytest.approx(1.0) and record.visits[record.action] > 0
        assert len(record.context.history) == min(record.step, 2)
    returns: dict[Any, float] = {}
    for record in records:
        returns[record.episode] = returns.get(record.episode, 0.0) + record.reward
    ended = sorted(returns[record.episode] for record in records if record.done)
    assert ended == sorted(value for batch in batches for value in batch.episode_returns)


# ---------------------------------------------------------------------- runs


def train(encoder: str, llm: dict[str, Any], max_env_step: int = 120, train: dict[str, Any] | None = None,
          env: dict[str, Any] | None = None, **policy: Any) -> dict[str, Any]:
    section = dict(llm=llm, mixing=dict(weight=0.5), train={'batch_size': 4, **(train or {})})
    train_priorzero_async(tiny_text(encoder, env, priorzero=section, **policy), seed=0, max_env_step=max_env_step)
    return json.loads(Path('run', 'async', 'report.json').read_text())


def prior_events() -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in Path('run', 'async', 'metrics.jsonl').read_text().splitlines()]
    return [line for line in lines if line['event'] == 'prior']


@pytest.mark.parametrize('placement', ['process', 'thread'])
def test_both_models_are_trained_at_once_and_nothing_is_lost(encoder: str, llama: str, placement: str) -> None:
    report = train(
        encoder, dict(path=llama, lr=3e-3), train=dict(replay_ratio=0.5), off_policy_degree=3, eval_freq=10,
        async_pipeline=dict(placement=placement, num_collectors=1)
    )
    assert report['env_steps'] >= 120 and report['train_iters'] > 0 and report['eval_count'] >= 1
    assert report['batches_lost'] == report['llm']['batches_lost'] == 0
    assert report['max_lag_updates'] <= report['lag_bound_updates']
    assert report['llm_updates'] >= 8 and report['llm_max_lag'] <= report['llm_lag_bound']
    store = report['llm_store']
    assert report['llm_records'] == store['received'] == store['held'] + store['evicted']
    assert report['overlap_s'] > 0 and report['llm_held_out']['records'] > 0
    assert report['left_out'] == {'actions_dropped': 0, 'prompts_cut': 0}


@pytest.mark.parametrize('degree', [0, 2])
def test_what_finds_no_room_is_counted_and_told_by_the_run_itself(
        encoder: str, tmp_path: Path, degree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(recorder.logger, 'warning', lambda message, *values: told.append(message % values))
    report = train(
        encoder, dict(path=tiny_lm.save(tmp_path / 'short', window=96)), env=dict(max_action_num=2), max_env_step=40,
        train=dict(enabled=False), off_policy_degree=degree
    )
    # Three actions or more are valid in all states but a few, and no prompt of the game is as short as the window.
    assert report['env_steps'] / 2 < report['left_out']['actions_dropped'] < 10 * report['env_steps']
    assert 0 < report['left_out']['prompts_cut'] <= report['env_steps']
    assert len(told) == 2, 'once each'
    assert re.match(r'batch 0: \d+ valid actions found no room in env.max_action_num', told[0])
    assert re.match(r'batch 0: \d+ prompts were longer than the language model reads', told[1])


def test_degree_0_strictly_alternates(encoder: str, llama: str) -> None:
    report = train(encoder, dict(path=llama), train=dict(replay_ratio=0.5), off_policy_degree=0, max_env_step=60)
    assert report['max_age'] == report['llm']['max_age'] == 0 and report['overlap_s'] == 0
    events = prior_events()
    assert report['llm_updates'] > 0 and {event['lag'] for event in events} == {0}
    assert len(events) == report['batches_trained']


def test_a_frozen_prior_needs_no_trainer(encoder: str, llama: str) -> None:
    report = train(encoder, dict(path=llama), train=dict(enabled=False), off_policy_degree=2, max_env_step=60)
    assert report['batches_lost'] == 0 and 'llm_updates' not in report and prior_events() == []


def test_a_server_that_is_not_there_ends_the_run_with_its_address(encoder: str) -> None:
    llm = dict(
        backend='openai', base_url='http://127.0.0.1:9/v1', model='none', eos_token='', retries=1, backoff_s=0.01
    )
    with pytest.raises(WorkerError, match='collector-0 failed: .*127.0.0.1:9'):
        train(encoder, llm, train=dict(enabled=False), off_policy_degree=2)
    report = json.loads(Path('run', 'async', 'report.json').read_text())
    assert report['batches_lost'] == 1 and report['batches_trained'] == 0


@pytest.fixture
def server(llama: str) -> Iterator[CompletionsServer]:
    server = CompletionsServer(llama)
    yield server
    server.close()


def test_a_server_that_stumbles_costs_a_run_nothing(encoder: str, server: CompletionsServer) -> None:
    server.script.extend([500, 'half', 'answer', 503, 'hang up', 'answer', 'one less', 429])
    llm = dict(
        backend='openai', base_url=server.url, model='tiny', eos_token=tiny_lm.EOS, retries=3, backoff_s=0.01,
        timeout_s=30.0
    )
    report = train(encoder, llm, train=dict(enabled=False), off_policy_degree=2, max_env_step=40)
    assert report['env_steps'] >= 40 and report['batches_lost'] == 0 and report['train_iters'] > 0
    assert not server.script


def test_a_model_that_does_not_exist_is_named_before_anything_starts(encoder: str) -> None:
    with pytest.raises(ConfigError, match="policy.priorzero.llm.path is 'nowhere'"):
        train(encoder, dict(path='nowhere'))
    assert not Path('run').exists()


def test_without_asynchronous_training_there_is_nothing_to_fall_back_on(encoder: str, llama: str) -> None:
    with pytest.raises(ConfigError, match='off_policy_degree=0'):
        train(encoder, dict(path=llama), enable_async_training=False)
