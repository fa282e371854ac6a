"""Every policy type on real LightZero, and all that upstream's serial entries honour."""
from __future__ import annotations

import copy
import importlib
import json
import logging
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from easydict import EasyDict
from tiny import tiny

import lzero_async
from lzero_async import train_muzero_segment_async, train_unizero_segment_async

pytestmark = pytest.mark.envtest


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(configs: list[EasyDict], max_env_step: int = 150, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    entry = train_unizero_segment_async if 'unizero' in configs[1].policy.type else train_muzero_segment_async
    policy = entry(configs, seed=0, max_env_step=max_env_step, **arguments)
    return policy, json.loads(Path(configs[0].exp_name, 'async', 'report.json').read_text())


def in_threads(**policy: Any) -> dict[str, Any]:
    return {'async_pipeline': {'placement': 'thread'}, **policy}


def events(kind: str) -> list[dict[str, Any]]:
    lines = Path('run', 'async', 'metrics.jsonl').read_text().splitlines()
    return [event for event in map(json.loads, lines) if event['event'] == kind]


def scalar_tags() -> set[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    accumulator = EventAccumulator(str(Path('run', 'log', 'serial')))
    accumulator.Reload()
    return set(accumulator.Tags()['scalars'])


def upstream_config(module: str, **policy: Any) -> list[EasyDict]:
    """An upstream config as it is, but for its size: none of this package's keys, none of the segment entry's."""
    imported = importlib.import_module(module)
    main, create = copy.deepcopy(imported.main_config), copy.deepcopy(imported.create_config)
    main.exp_name = 'run'
    main.env.update(collector_env_num=2, evaluator_env_num=1, n_evaluator_episode=1)
    main.policy.update(
        collector_env_num=2, evaluator_env_num=1, num_simulations=4, batch_size=16, update_per_collect=8,
        game_segment_length=20, eval_freq=16, n_episode=2, replay_buffer_size=1000, **policy
    )
    if 'world_model_cfg' in main.policy.model:
        main.policy.model.world_model_cfg.update(env_num=2, collector_env_num=2, evaluator_env_num=1)
    create.env_manager.type = 'base'
    return [main, create]


CARTPOLE = 'zoo.classic_control.cartpole.config.cartpole_{}_config'
PENDULUM = 'zoo.classic_control.pendulum.config.pendulum_cont_{}_config'


@pytest.mark.parametrize('module', [
    CARTPOLE.format('unizero'),
    PENDULUM.format('sampled_unizero'),
    CARTPOLE.format('muzero'),
    CARTPOLE.format('efficientzero'),
    CARTPOLE.format('gumbel_muzero'),
    CARTPOLE.format('sampled_efficientzero'),
    CARTPOLE.format('stochastic_muzero'),
])
@pytest.mark.parametrize('warmup', [0, 2])
def test_upstream_configs_run_as_they_are(module: str, warmup: int) -> None:
    configs = upstream_config(module, **in_threads(random_collect_episode_num=warmup))
    steps = 250 if not warmup else 650 if 'pendulum' in module else 350
    _, report = train(configs, steps)
    assert report['env_steps'] >= steps and report['train_iters'] >= 16 and report['eval_count'] >= 1
    assert report['batches_lost'] == 0
    if warmup:
        first, last = events('batch')[0], events('batch')[-1]
        assert first['warmup'] and first['updates'] == 0 and not last['warmup']


def test_the_run_directory_has_what_upstream_writes() -> None:
    policy, report = train(tiny(learn={'learner': {'hook': {'save_ckpt_after_iter': 10}}}), 300)
    assert {'ckpt_best.pth.tar', 'iteration_0.pth.tar', 'iteration_10.pth.tar', 'iteration_20.pth.tar',
            f"iteration_{report['train_iters']}.pth.tar"} <= set(os.listdir('run/ckpt'))
    tags = scalar_tags()
    for tag in ('learner_iter/weighted_total_loss_avg', 'learner_step/value_loss_avg', 'evaluator_step/reward_mean',
                'evaluator_iter/reward_mean', 'Buffer/num_of_transitions', 'Buffer/memory_usage/game_segment_buffer'):
        assert tag in tags, sorted(tags)
    assert Path('run/total_config.py').exists()
    assert Path('run/async/logs/collector-0.log').exists()
    best = torch.load('run/ckpt/ckpt_best.pth.tar', map_location='cpu')
    assert set(best) >= {'model', 'target_model', 'last_iter', 'last_step'}
    assert best['last_iter'] in [event['train_iters'] for event in events('evaluation') if event['best']]
    assert hasattr(policy, 'learn_mode')
    modules = policy._target_model.world_model.modules()
    assert not any('forward' in vars(module) for module in modules), "the policy is upstream's again"


def test_the_best_checkpoint_of_an_asynchronous_evaluation_holds_the_evaluated_snapshot() -> None:
    train(tiny(**in_threads(enable_async_eval=True)), 300)
    best = torch.load('run/ckpt/ckpt_best.pth.tar', map_location='cpu')
    evaluated = [event['train_iters'] for event in events('evaluation') if event['best']]
    assert best['last_iter'] == evaluated[-1]
    assert not list(Path('run/ckpt').glob('*.tmp'))


@pytest.mark.parametrize('placement', ['thread', 'process'])
def test_workers_and_learner_start_from_the_model_path(placement: str) -> None:
    policy, _ = train(tiny(**in_threads()), 100)
    torch.save(policy.learn_mode.state_dict(), 'start.pth.tar')
    configs = tiny(train_start_after_envsteps=10**6, async_pipeline={'placement': placement})  # nothing is learnt
    configs[0].exp_name = 'again'
    again, report = train(configs, 40, model_path='start.pth.tar')
    assert report['train_iters'] == 0
    for name, tensor in policy._learn_model.state_dict().items():
        assert torch.equal(tensor, again._learn_model.state_dict()[name]), name


def test_a_model_of_the_callers_own_is_trained() -> None:
    model = train(tiny(**in_threads()), 60)[0]._learn_model._orig_mod
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    configs = tiny()
    configs[0].exp_name = 'again'
    policy, report = train(configs, 150, model=model)
    assert policy._model._orig_mod is model and report['train_iters'] > 0
    assert any(not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize('frequency', [2, 0.5])
def test_both_schedules_of_reanalysis_run(frequency: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from lzero.mcts import UniZeroGameBuffer
    original, calls = UniZeroGameBuffer.reanalyze_buffer, []
    monkeypatch.setattr(
        UniZeroGameBuffer, 'reanalyze_buffer', lambda *args: calls.append(len(calls)) or original(*args)
    )
    configs = tiny(**in_threads(buffer_reanalyze_freq=frequency, reanalyze_batch_size=4, reanalyze_partition=0.75))
    _, report = train(configs, 300)
    updates = [event['updates'] for event in events('batch')]
    # As upstream counts: every updates // 2 updates, or at every second epoch but the first.
    wanted = [math.ceil(u / max(1, u // 2)) for u in updates if u] if frequency == 2 else updates[2::2]
    assert len(wanted) > 1
    most = sum(wanted) if frequency == 2 else len(wanted)
    few = sum(wanted[:2]) if frequency == 2 else 1  # there were not enough data yet
    assert most - few <= len(calls) <= most
    assert report['train_iters'] > 10


def test_fewer_updates_than_reanalyses_do_not_divide_by_zero() -> None:
    configs = tiny(**in_threads(
        buffer_reanalyze_freq=50, reanalyze_batch_size=4, reanalyze_partition=0.75, update_per_collect=3
    ))
    assert train(configs, 150)[1]['train_iters'] >= 3


def test_training_starts_after_the_env_steps_that_were_asked_for() -> None:
    train(tiny(**in_threads(train_start_after_envsteps=120)), 200)
    for event in events('batch'):
        assert (event['updates'] > 0) == (event['env_steps'] > 120)


def test_a_first_batch_smaller_than_batch_size_does_not_hang() -> None:
    _, report = train(tiny(**in_threads(batch_size=120, off_policy_degree=1)), 300)
    batches = events('batch')
    assert batches[0]['updates'] == 0 and batches[-1]['updates'] > 0 and report['batches_lost'] == 0


def test_replay_ratio_is_kept_to_the_fraction() -> None:
    _, report = train(tiny(**in_threads(replay_ratio=0.07, batch_size=8)), 300)
    assert 0 <= report['updates_granted'] - report['updates_done'] < 1
    assert report['updates_done'] > 3


def test_priorities_are_used_where_upstream_can() -> None:
    configs = tiny('muzero', **in_threads(use_priority=True))
    assert train(configs, 200)[1]['train_iters'] > 3


@pytest.mark.parametrize('degree', [0, 2])
def test_offline_evaluations_run_at_the_end(degree: int) -> None:
    policy, report = train(tiny('muzero', **in_threads(eval_offline=True, off_policy_degree=degree)), 600)
    evaluations = events('evaluation')
    assert len(evaluations) >= 2
    assert min(event['time'] for event in evaluations) >= max(event['time'] for event in events('batch'))
    last = torch.load(f"run/ckpt/iteration_{report['train_iters']}.pth.tar", map_location='cpu')
    for name, tensor in policy._learn_model.state_dict().items():
        assert torch.equal(tensor, last['model'][name]), 'the policy has the last weights, not those of an evaluation'


def test_wandb_is_initialised_once_and_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    train(tiny(**in_threads(use_wandb=True)), 150)
    assert wandb.run is None
    assert len(list(Path('wandb').glob('offline-run-*'))) == 1


def test_two_collectors_in_processes_serve_one_learner() -> None:
    # In turns, as the second process may come up when the first has done all the work.
    pipeline = {'placement': 'process', 'num_collectors': 2, 'deterministic': True}
    _, report = train(tiny(async_pipeline=pipeline), 300)
    assert {event['worker'] for event in events('batch')} == {0, 1}
    assert report['degree'] == 3 and report['max_age'] <= 2
    assert report['max_lag_updates'] <= report['lag_bound_updates']
    seeds = {event['worker']: event['seed'] for event in events('worker')}
    assert set(seeds) == {'collector-0', 'collector-1', 'evaluator'} and len(set(seeds.values())) == 3


def test_subprocess_environments_work_inside_process_workers() -> None:
    configs = tiny()
    configs[1].env_manager.type = 'subprocess'
    _, report = train(configs, 100)
    assert report['env_steps'] >= 100 and report['batches_lost'] == 0


def test_the_caller_is_left_as_it_was() -> None:
    root = logging.getLogger()
    handlers, level, directory, threads = list(root.handlers), root.level, os.getcwd(), torch.get_num_threads()
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    configs = tiny(**in_threads())
    before = json.dumps(configs, default=str)
    train(configs, 60)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == _fresh_draws()
    assert (root.handlers, root.level) == (handlers, level)
    assert os.getcwd() == directory and torch.get_num_threads() == threads
    assert json.dumps(configs, default=str) == before


def _fresh_draws() -> tuple[float, float, float]:
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_disabled_it_is_upstreams_own_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from lzero_async.recipes import UNIZERO
    called = []
    monkeypatch.setattr(type(UNIZERO), 'serial_entry', staticmethod(lambda *args: called.append(args) or 'policy'))
    assert train_unizero_segment_async(tiny(enable_async_training=False), seed=5, max_env_step=7) == 'policy'
    assert called[0][1:] == (5, None, None, 10**10, 7)


def test_the_entries_are_importable_from_lightzero() -> None:
    import lzero.entry
    assert lzero.entry.train_unizero_segment_async is train_unizero_segment_async
    try:
        lzero.entry.train_unizero_segment_async = 'upstream'
        lzero_async.register()
        assert lzero.entry.train_unizero_segment_async == 'upstream'
    finally:
        lzero_async.register(override=True)
    assert lzero.entry.train_unizero_segment_async is train_unizero_segment_async


def test_a_config_can_import_the_plugin_by_name() -> None:
    configs = tiny(**in_threads())
    configs[1].policy.import_names = [*configs[1].policy.import_names, 'lzero_async']
    assert train(configs, 60)[1]['env_steps'] >= 60
