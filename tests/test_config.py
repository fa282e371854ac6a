"""AsyncConfig, prepare and validate_run: what is accepted, what is refused by name, what upstream's configs become."""
import copy
import dataclasses
import importlib
import importlib.util
import inspect
import logging
import pickle
import re
from contextlib import nullcontext
from pathlib import Path

import ding.utils
import lzero.entry
import numpy as np
import pytest
import torch
from ding.config import compile_config
from easydict import EasyDict

from lzero_async import config as config_module
from lzero_async import validate as validate_module
from lzero_async.config import ROLES, UPSTREAM_NAMES, AsyncConfig, default_threads
from lzero_async.core import ConfigError
from lzero_async.validate import effective_policy, prepare, returns_priorities, validate_run

UNIZERO_TYPES = ('unizero', 'sampled_unizero')
MUZERO_TYPES = ('muzero', 'efficientzero', 'gumbel_muzero', 'sampled_efficientzero', 'stochastic_muzero')
ALL_TYPES = UNIZERO_TYPES + MUZERO_TYPES
ZOO = Path(next(iter(importlib.util.find_spec('zoo').submodule_search_locations)))

# The section of upstream main's zoo/atari/config/atari_unizero_segment_async_config.py, as it stands when run with
# --async-pipeline --num-collector-actors 2.
UPSTREAM_SECTION = dict(
    enabled=True,
    num_collector_actors=2,
    num_evaluator_actors=1,
    max_collect_inflight=2,
    max_eval_inflight=1,
    max_train_chunk_steps=4,
    weight_sync_interval=1,
    max_policy_lag=0,
    eval_at_start=True,
    collector_num_cpus=1,
    evaluator_num_cpus=1,
    collector_num_gpus=0,
    evaluator_num_gpus=0,
    buffer_stats_interval=100,
    poll_interval_s=0.1,
    shutdown_timeout_s=30,
)

pytestmark = pytest.mark.unittest


def read(**policy):
    return AsyncConfig.from_policy(EasyDict(policy))


def section(**keys):
    return AsyncConfig.from_policy({'async_pipeline': keys})


def refused(*words, **policy):
    """The policy is refused in one line that has every one of the words."""
    with pytest.raises(ConfigError) as caught:
        AsyncConfig.from_policy(policy)
    message = str(caught.value)
    assert '\n' not in message
    for word in words:
        assert word in message, message


# ---------------------------------------------------------------------------------------------------------- defaults


def test_defaults_without_any_key():
    config = read(batch_size=256)
    assert config.enable_async_training and config.evaluate
    assert not (config.enable_async_eval or config.enable_async_debug_log or config.deterministic)
    assert (config.off_policy_degree, config.num_collectors, config.data_queue_size) == (2, 1, 10)
    assert (config.placement, config.weight_sync_interval, config.min_buffer_size) == ('process', 1, 0)
    assert (config.max_restarts, config.worker_timeout_s, config.shutdown_timeout_s) == (3, 300.0, 10.0)
    assert config.devices == {'learner': None, 'collector': None, 'evaluator': None}
    assert config == AsyncConfig()
    assert read(async_pipeline=None) == AsyncConfig()


def test_degree_defaults_to_one_more_than_collectors():
    assert section(num_collectors=3).off_policy_degree == 4


def test_given_values_are_taken_and_the_source_is_left_alone():
    policy = EasyDict(
        off_policy_degree=-1, data_queue_size=3, async_pipeline=dict(placement='thread', num_collectors=2, threads=2)
    )
    before = copy.deepcopy(policy)
    config = AsyncConfig.from_policy(policy)
    assert (config.off_policy_degree, config.data_queue_size, config.placement) == (-1, 3, 'thread')
    assert config.threads == {role: 2 for role in ROLES}
    assert policy == before


def test_flat_names_are_accepted_in_the_section():
    assert section(off_policy_degree=5, enable_async_eval=True).off_policy_degree == 5


def test_numbers_are_normalised():
    config = read(off_policy_degree=np.int64(4), async_pipeline=dict(worker_timeout_s=5, deterministic=np.bool_(True)))
    assert type(config.off_policy_degree) is int
    assert type(config.worker_timeout_s) is float
    assert config.deterministic is True


def test_config_is_frozen_and_travels():
    config = section(num_collectors=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_collectors = 3
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    'cores, collectors, placement, learner', [
        (1, 1, 'process', 1), (2, 1, 'process', 1), (8, 2, 'process', 6), (2, 4, 'thread', 1), (8, 2, 'ray', 8)
    ]
)
def test_default_threads_leave_cores_to_collectors_and_never_starve(cores, collectors, placement, learner):
    assert default_threads(cores, collectors, placement) == {'learner': learner, 'collector': 1, 'evaluator': 1}


def test_threads_and_devices_may_be_partial(monkeypatch):
    monkeypatch.setattr(config_module, 'available_cores', lambda: 8)
    config = section(num_collectors=2, threads=dict(collector=2), devices=dict(collector='cpu'))
    assert config.threads == {'learner': 6, 'collector': 2, 'evaluator': 1}
    assert config.devices == {'learner': None, 'collector': 'cpu', 'evaluator': None}
    assert section(devices='cpu').devices == {role: 'cpu' for role in ROLES}


def test_explain_names_every_value_and_why(monkeypatch):
    monkeypatch.setattr(config_module, 'available_cores', lambda: 8)
    text = read(data_queue_size=4, async_pipeline=dict(num_collector_actors=2)).explain()
    for item in dataclasses.fields(AsyncConfig):
        assert item.name == 'sources' or item.name in text
    assert 'off_policy_degree = 3 (default: num_collectors + 1, so that ' in text
    assert 'num_collectors = 2 (policy.async_pipeline.num_collector_actors)' in text
    assert 'data_queue_size = 4 (policy.data_queue_size)' in text
    assert 'learner 6' in text and '8 cores' in text


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    'key, value', [
        ('enable_async_training', 1), ('enable_async_eval', 'yes'), ('enable_async_debug_log', None),
        ('off_policy_degree', 2.0), ('off_policy_degree', True), ('off_policy_degree', None), ('data_queue_size', '10')
    ]
)
def test_flat_key_of_wrong_type_is_refused(key, value):
    refused(f'policy.{key}', repr(value), **{key: value})


@pytest.mark.parametrize(
    'key, value', [
        ('placement', 1), ('num_collectors', True), ('num_collectors', 1.5), ('deterministic', 1),
        ('weight_sync_interval', '1'), ('min_buffer_size', 0.5), ('max_restarts', None), ('worker_timeout_s', '300'),
        ('worker_timeout_s', True), ('worker_timeout_s', float('nan')), ('shutdown_timeout_s', float('inf')),
        ('eval_at_start', 0), ('evaluate', 0), ('devices', 0), ('threads', 1.0), ('threads', dict(learner='1')),
        ('devices', dict(learner=1)), ('num_collector_actors', '2'), ('enabled', 1), ('num_evaluator_actors', 'one'),
        ('max_policy_lag', 'none'), ('collector_num_gpus', '0'), ('max_collect_inflight', 1.5)
    ]
)
def test_section_key_of_wrong_type_is_refused(key, value):
    refused(f'policy.async_pipeline.{key}', async_pipeline={key: value})


@pytest.mark.parametrize('key, value', [('off_policy_degree', -2), ('data_queue_size', 0)])
def test_flat_key_out_of_range_is_refused(key, value):
    refused(f'policy.{key}', str(value), 'at least', **{key: value})


@pytest.mark.parametrize(
    'key, value', [
        ('num_collectors', 0), ('weight_sync_interval', 0), ('min_buffer_size', -1), ('max_restarts', -1),
        ('worker_timeout_s', 0), ('shutdown_timeout_s', -1.0), ('threads', 0), ('threads', dict(evaluator=0)),
        ('num_collector_actors', 0), ('num_evaluator_actors', -1), ('max_eval_inflight', -1),
        ('max_collect_inflight', 0), ('max_train_budget_queue_size', 0), ('evaluator_num_gpus', -1)
    ]
)
def test_section_key_out_of_range_is_refused(key, value):
    refused(f'policy.async_pipeline.{key}', async_pipeline={key: value})


def test_unknown_section_key_is_refused_with_the_nearest():
    refused('num_colectors', "'num_collectors'", async_pipeline=dict(num_colectors=2))
    refused('max_policy_lags', "'max_policy_lag'", async_pipeline=dict(max_policy_lags=2))
    refused('zzz', 'placement', async_pipeline=dict(zzz=2))


def test_section_must_be_a_dict():
    refused('policy.async_pipeline', async_pipeline=True)


@pytest.mark.parametrize(
    'key, meant', [
        ('off_policy_degre', 'off_policy_degree'), ('enable_async_trainig', 'enable_async_training'),
        ('data_queue_sise', 'data_queue_size'), ('async_pipline', 'async_pipeline')
    ]
)
def test_misspelled_flat_key_is_refused_with_the_nearest(key, meant):
    refused(key, repr(meant), **{key: 1})


def test_unknown_role_is_refused_with_the_nearest():
    refused('devices', 'colector', "'collector'", async_pipeline=dict(devices=dict(colector='cpu')))
    refused('threads', 'lerner', "'learner'", async_pipeline=dict(threads=dict(lerner=1)))


def test_unknown_placement_is_refused_with_the_known_ones():
    refused('placement', 'procces', 'thread', 'process', 'ray', async_pipeline=dict(placement='procces'))


def test_ray_names_its_remedy(monkeypatch):
    monkeypatch.setattr(config_module.importlib.util, 'find_spec', lambda name: None)
    refused('placement', 'pip install lzero-async[ray]', async_pipeline=dict(placement='ray'))
    monkeypatch.setattr(config_module.importlib.util, 'find_spec', lambda name: object())
    refused('placement', 'not built yet', 'process', async_pipeline=dict(placement='ray'))


def test_a_setting_given_twice_must_agree():
    refused(
        'policy.off_policy_degree', 'policy.async_pipeline.off_policy_degree', off_policy_degree=2,
        async_pipeline=dict(off_policy_degree=3)
    )
    refused('num_collectors', 'num_collector_actors', async_pipeline=dict(num_collectors=2, num_collector_actors=3))
    refused('enable_async_training', 'enabled', enable_async_training=True, async_pipeline=dict(enabled=False))
    refused('evaluate', 'num_evaluator_actors', async_pipeline=dict(evaluate=True, num_evaluator_actors=0))
    assert read(off_policy_degree=3, async_pipeline=dict(off_policy_degree=3)).off_policy_degree == 3


def test_combinations_that_cannot_work_are_refused():
    refused('off_policy_degree', 'num_collectors', off_policy_degree=0, async_pipeline=dict(num_collectors=2))
    refused('off_policy_degree', 'enable_async_eval', off_policy_degree=0, enable_async_eval=True)
    refused('off_policy_degree', 'deterministic', off_policy_degree=-1, async_pipeline=dict(deterministic=True))
    refused('off_policy_degree', 'deterministic', off_policy_degree=0, async_pipeline=dict(deterministic=True))


def test_direct_construction_is_checked_too():
    with pytest.raises(ConfigError, match='num_collectors'):
        AsyncConfig(num_collectors=0)
    with pytest.raises(ConfigError, match='deterministic'):
        dataclasses.replace(AsyncConfig(), off_policy_degree=0, deterministic=True)


# ----------------------------------------------------------------------------------------------------------- warnings


def test_too_small_a_degree_warns(caplog):
    read(off_policy_degree=2, async_pipeline=dict(num_collectors=2))
    assert 'off_policy_degree' in caplog.text
    caplog.clear()
    read(off_policy_degree=3, async_pipeline=dict(num_collectors=2))
    read(off_policy_degree=-1, async_pipeline=dict(num_collectors=2))
    read(off_policy_degree=0)
    assert not caplog.text


def test_deterministic_with_async_eval_warns(caplog):
    assert read(enable_async_eval=True, async_pipeline=dict(deterministic=True)).deterministic
    assert 'deterministic' in caplog.text


def test_section_key_that_stands_flat_warns(caplog):
    assert read(num_collectors=4).num_collectors == 1
    assert 'policy.num_collectors' in caplog.text


# ----------------------------------------------------------------------------------------------------- upstream's names


def test_upstream_section_is_taken_unchanged(caplog):
    config = section(**UPSTREAM_SECTION)
    assert not caplog.text
    assert config.enable_async_training and config.enable_async_eval and config.eval_at_start and config.evaluate
    assert (config.num_collectors, config.off_policy_degree, config.weight_sync_interval) == (2, 3, 1)
    assert config.devices == {'learner': None, 'collector': 'cpu', 'evaluator': 'cpu'}
    assert config.shutdown_timeout_s == 30.0


def test_upstream_section_may_be_off():
    assert not section(**{**UPSTREAM_SECTION, 'enabled': False}).enable_async_training


def test_every_name_of_upstreams_default_section_is_known():
    for key in (*UPSTREAM_SECTION, 'ray_local_mode', 'ray_ignore_reinit_error', 'max_train_budget_queue_size'):
        assert key in UPSTREAM_NAMES or key in config_module._RULES


def test_no_evaluator_means_no_evaluation():
    assert not section(num_evaluator_actors=0).evaluate
    assert not section(num_evaluator_actors=1, max_eval_inflight=0).evaluate


def test_several_evaluators_warn(caplog):
    assert section(num_evaluator_actors=3).evaluate
    assert 'num_evaluator_actors' in caplog.text


def test_upstream_evaluates_beside_training_unless_told_otherwise():
    assert section(max_eval_inflight=1).enable_async_eval
    assert not read(enable_async_eval=False, async_pipeline=dict(max_eval_inflight=1)).enable_async_eval
    assert not read(off_policy_degree=0, async_pipeline=dict(max_eval_inflight=1)).enable_async_eval


def test_inflight_limit_caps_collectors_and_warns(caplog):
    config = section(num_collector_actors=4, max_collect_inflight=2)
    assert (config.num_collectors, config.off_policy_degree) == (2, 3)
    assert 'max_collect_inflight' in caplog.text
    caplog.clear()
    assert section(max_collect_inflight=4).num_collectors == 1
    assert not caplog.text


def test_budget_queue_sets_the_degree_unless_given():
    assert section(num_collector_actors=2, max_train_budget_queue_size=4).off_policy_degree == 6
    assert read(off_policy_degree=3, async_pipeline=dict(max_train_budget_queue_size=4)).off_policy_degree == 3


@pytest.mark.parametrize('interval, lag, expected', [(4, 1, 2), (4, 9, 4), (4, -1, 4), (4, None, 4), (1, 0, 1)])
def test_policy_lag_bounds_the_sync_interval(interval, lag, expected):
    assert section(weight_sync_interval=interval, max_policy_lag=lag).weight_sync_interval == expected


def test_gpus_set_devices_unless_given():
    assert section(collector_num_gpus=0.5).devices['collector'] is None
    assert section(collector_num_gpus=0).devices['collector'] == 'cpu'
    config = section(collector_num_gpus=0, evaluator_num_gpus=0, devices=dict(collector='cuda:1'))
    assert config.devices == {'learner': None, 'collector': 'cuda:1', 'evaluator': 'cpu'}


def test_names_without_consequence_say_so(caplog):
    with caplog.at_level(logging.DEBUG, logger=config_module.__name__):
        section(poll_interval_s=0.5, ray_local_mode=True)
    assert 'poll_interval_s' in caplog.text and 'ray_local_mode' in caplog.text


# --------------------------------------------------------------------------------------------- prepare and validate_run


def configs(policy_type='unizero', **policy):
    """The least that a user must write for CartPole."""
    main = EasyDict(
        env=dict(collector_env_num=4, evaluator_env_num=2, n_evaluator_episode=2),
        policy=dict(
            model=dict(observation_shape=4, action_space_size=2, model_type='mlp'),
            collector_env_num=4,
            evaluator_env_num=2,
        )
    )
    main.policy.update(policy)
    create = EasyDict(
        env=dict(
            type='cartpole_lightzero', import_names=['zoo.classic_control.cartpole.envs.cartpole_lightzero_env']
        ),
        env_manager=dict(type='base'),
        policy=dict(type=policy_type, import_names=[f'lzero.policy.{policy_type}']),
    )
    return main, create


def check(main, create, model_path=None, entry='train_x_async', supported=ALL_TYPES):
    validate_run(main, create, AsyncConfig.from_policy(main.policy), supported, entry, model_path)


def run_refused(*words, policy_type='unizero', env=None, model_path=None, **policy):
    main, create = configs(policy_type, **policy)
    main.env.update(env or {})
    with pytest.raises(ConfigError) as caught:
        check(main, create, model_path)
    message = str(caught.value)
    assert '\n' not in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize('policy_type', ALL_TYPES)
def test_prepared_config_has_every_key_that_the_segment_entry_reads(policy_type):
    main, create = prepare(*configs(policy_type))
    policy = effective_policy(main, create)
    entry = 'lzero.entry.train_unizero_segment' if policy_type in UNIZERO_TYPES else 'lzero.entry.train_muzero_segment'
    readers = (entry, 'lzero.worker.muzero_segment_collector', 'lzero.worker.muzero_evaluator', 'lzero.entry.utils')
    source = '\n'.join(inspect.getsource(importlib.import_module(name)) for name in readers)
    keys = set(re.findall(r'(?:(?<!create_)cfg\.policy|policy_config|policy_cfg)\.(\w+)', source))
    assert len(keys) > 20
    for key in keys - {'device', 'get'}:  # the entry itself sets device
        assert key in policy, key
    for key in config_keys_without_default(policy_type):
        assert key in main.policy
    if policy_type in UNIZERO_TYPES:
        assert main.policy.model.world_model_cfg.device == 'cpu'
    check(main, create)


def config_keys_without_default(policy_type):
    keys = {'buffer_reanalyze_freq', 'reanalyze_batch_size', 'reanalyze_partition', 'replay_buffer_size', 'cuda'}
    return keys if policy_type in UNIZERO_TYPES else keys | {'eval_freq', 'train_start_after_envsteps', 'sample_type'}


@pytest.mark.parametrize('policy_type', ALL_TYPES)
def test_prepared_config_compiles_as_upstream_does_it(policy_type):
    main, create = prepare(*configs(policy_type))
    compiled = compile_config(main, seed=0, env=None, auto=True, create_cfg=create, save_cfg=False)
    assert compiled.policy.num_segments == compiled.env.collector_env_num == 4
    assert compiled.policy.reanalyze_batch_size == 160
    assert compiled.policy.eval_freq == 2000
    assert compiled.env.stop_value == int(1e10)


def test_prepare_never_touches_what_it_was_given():
    main, create = configs()
    before = copy.deepcopy((main, create))
    prepared_main, prepared_create = prepare(main, create)
    prepared_main.policy.model.action_space_size = 9
    prepared_create.policy.import_names.append('x')
    assert (main, create) == before


def test_prepare_keeps_what_the_user_set_and_follows_the_environments():
    main, create = prepare(*configs(buffer_reanalyze_freq=2, eval_freq=7, replay_buffer_size=999))
    policy = main.policy
    assert (policy.buffer_reanalyze_freq, policy.eval_freq, policy.replay_buffer_size) == (2, 7, 999)
    assert policy.num_segments == 4
    assert prepare(*configs(num_segments=8))[0].policy.num_segments == 8  # validate_run refuses it
    main, create = configs()
    del main.env['n_evaluator_episode']
    assert prepare(main, create)[0].env.n_evaluator_episode == 2


def test_plain_dicts_are_accepted():
    main, create = configs()
    plain = {'env': dict(main.env), 'policy': {**main.policy, 'model': dict(main.policy.model)}}
    prepared, _ = prepare(plain, {key: dict(value) for key, value in create.items()})
    assert prepared.policy.num_segments == 4 and 'num_segments' not in plain['policy']


def test_policy_type_without_a_recipe_is_refused():
    main, create = configs('muzero')
    with pytest.raises(ConfigError, match='policy.type.*muzero.*train_unizero_segment_async supports.*sampled_unizero'):
        check(main, create, entry='train_unizero_segment_async', supported=UNIZERO_TYPES)


def test_policy_that_cannot_be_imported_is_refused():
    main, create = configs()
    create.policy.import_names = ['lzero.policy.no_such']
    with pytest.raises(ConfigError, match='import_names'):
        check(main, create)


def test_missing_sections_are_refused():
    main, create = configs()
    with pytest.raises(ConfigError, match='main_config.policy'):
        prepare({'env': main.env}, create)
    with pytest.raises(ConfigError, match='create_config.policy'):
        prepare(main, {'env': create.env})
    with pytest.raises(ConfigError, match='main_config.env'):
        prepare({'policy': main.policy}, create)


def test_num_segments_must_equal_the_environments():
    run_refused('policy.num_segments', '8', 'collector_env_num', '4', num_segments=8)


def test_world_model_needs_room_for_every_environment():
    run_refused('world_model_cfg.env_num', '3', '4', model=dict(world_model_cfg=dict(env_num=3)))
    run_refused('world_model_cfg.env_num', '8', '9', env=dict(evaluator_env_num=9))  # upstream's default is 8
    main, create = configs('muzero')
    main.env.evaluator_env_num = 9
    check(main, create)


@pytest.mark.parametrize('length', [0, -5, 2.5, None])
def test_segment_without_positions_is_refused(length):
    run_refused('policy.game_segment_length', repr(length), game_segment_length=length)


def test_oddities_only_warn(caplog):
    main, create = configs(game_segment_length=10, reanalyze_partition=1)
    main.env.n_evaluator_episode = 5
    main.env.collector_env_num = 3
    check(main, create)
    for key in ('game_segment_length', 'reanalyze_partition', 'n_evaluator_episode', 'policy.collector_env_num'):
        assert key in caplog.text


@pytest.mark.parametrize('policy_type', UNIZERO_TYPES)
def test_priority_is_refused_where_the_policy_has_none(policy_type):
    main, create = configs(policy_type)
    policy_cls = validate_module._policy_cls(create)
    if returns_priorities(policy_cls):
        pytest.skip('the installed LightZero has priorities for this policy')
    run_refused('policy.use_priority', policy_type=policy_type, use_priority=True)


@pytest.mark.parametrize('policy_type', MUZERO_TYPES)
def test_priority_is_accepted_where_the_policy_has_it(policy_type):
    check(*configs(policy_type, use_priority=True))


def test_more_than_one_learner_is_refused(monkeypatch):
    run_refused('policy.multi_gpu', multi_gpu=True)
    monkeypatch.setattr(validate_module, 'get_world_size', lambda: 2)
    run_refused('world size', '2')


def test_model_path_must_exist(tmp_path):
    run_refused('model_path', 'absent.pth.tar', model_path=str(tmp_path / 'absent.pth.tar'))
    (tmp_path / 'ckpt.pth.tar').touch()
    check(*configs(), model_path=str(tmp_path / 'ckpt.pth.tar'))


def test_devices_must_exist(monkeypatch):
    run_refused('devices.collector', 'cdua', async_pipeline=dict(devices=dict(collector='cdua')))
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 1)
    run_refused('devices.evaluator', 'cuda:1', async_pipeline=dict(devices=dict(evaluator='cuda:1')))
    check(*configs(async_pipeline=dict(devices=dict(learner='cuda', collector='cpu'))))


def test_replay_buffer_must_exceed_the_batch():
    run_refused('policy.replay_buffer_size', 'batch_size', '64', replay_buffer_size=64, batch_size=64)
    run_refused('min_buffer_size', replay_buffer_size=1000, async_pipeline=dict(min_buffer_size=1001))


def test_updates_must_be_paid_for():
    run_refused('policy.replay_ratio', '0', replay_ratio=0)
    run_refused('policy.update_per_collect', '0', update_per_collect=0)
    run_refused('policy.update_per_collect', '1.5', update_per_collect=1.5)
    check(*configs(replay_ratio=0, update_per_collect=10))


# -------------------------------------------------------------------------------------------------- upstream's own zoo


def zoo_files():
    patterns = (
        'classic_control/cartpole/config/*_config.py', 'atari/config/*unizero*segment*.py',
        'atari/config/*muzero*segment*.py', 'atari/config/atari_unizero_config.py'
    )
    return sorted(str(path.relative_to(ZOO)) for pattern in patterns for path in ZOO.glob(pattern))


def load_zoo_config(file, monkeypatch):
    """The two configs of an upstream file; where its ``main`` builds and runs them, they are caught on the way."""
    module = importlib.import_module('zoo.' + file[:-len('.py')].replace('/', '.'))
    if hasattr(module, 'main_config'):
        return module.main_config, module.create_config
    caught = []
    for name in ('train_unizero', 'train_unizero_segment', 'train_muzero_segment'):
        monkeypatch.setattr(lzero.entry, name, lambda configs, **_: caught.extend(configs))
    monkeypatch.setattr(ding.utils, 'DDPContext', nullcontext)
    module.main('PongNoFrameskip-v4', 0)
    return tuple(caught)


def test_zoo_configs_are_found():
    assert len(zoo_files()) >= 8


@pytest.mark.parametrize('file', zoo_files())
def test_upstream_config_is_accepted_as_it_is(file, monkeypatch):
    user_main, user_create = load_zoo_config(file, monkeypatch)
    main, create = prepare(user_main, user_create)
    if 'ddp' in file:
        with pytest.raises(ConfigError, match='policy.multi_gpu'):
            check(main, create)
        return
    check(main, create)
    assert main.policy.num_segments == main.env.collector_env_num
    assert AsyncConfig.from_policy(main.policy) == AsyncConfig()
    for key, value in user_main.policy.items():
        if key != 'model':
            assert main.policy[key] == value


def test_no_default_key_of_any_policy_looks_like_one_of_ours():
    for policy_type in ALL_TYPES:
        AsyncConfig.from_policy(effective_policy(*configs(policy_type)))
