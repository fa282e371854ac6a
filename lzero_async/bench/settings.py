"""
What is measured: the pinned setting, or a config file's own.

The pinned one says every value that matters to speed here, so that a change of the drop-in config does not silently
change the benchmark.
"""
from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from easydict import EasyDict

from zoo_configs import cartpole_unizero_segment_async_config as drop_in

from .. import config_file
from ..recipes import MUZERO, UNIZERO, Recipe

SERIAL, BEST_THREADS, THREAD, PROCESS = ROWS = ('serial', 'serial_best_threads', 'thread', 'process')
NEVER = 10 ** 9  # updates until the first evaluation

# A collect drops the segments that are not complete when it ends, and their steps pay for no update: the longer
# segments are, the more updates per env step vary by chance. The shortest that upstream's targets allow vary the least.
PINNED: Mapping[str, Any] = {
    'env': {'env_id': 'CartPole-v0', 'collector_env_num': 4, 'evaluator_env_num': 3, 'n_evaluator_episode': 3},
    'policy': {
        'collector_env_num': 4,
        'evaluator_env_num': 3,
        'num_segments': 4,
        'num_simulations': 25,
        'game_segment_length': 10,
        'num_unroll_steps': 5,
        'td_steps': 5,
        'batch_size': 256,
        'replay_ratio': 0.25,
        'update_per_collect': None,
        'replay_buffer_size': 100_000,
        'optim_type': 'AdamW',
        'learning_rate': 1e-4,
        'grad_clip_value': 5,
        'target_update_freq': 100,
        'train_start_after_envsteps': 0,
        'random_collect_episode_num': 0,
        'use_priority': False,
        'use_augmentation': False,
        'reanalyze_ratio': 0,
        'buffer_reanalyze_freq': 1 / 100_000,
        'off_policy_degree': 3,
        'data_queue_size': 10,
        'enable_async_eval': False,
        'enable_async_debug_log': False,
        'async_pipeline': {'num_collectors': 1, 'weight_sync_interval': 1, 'deterministic': False},
        'model': {
            'model_type': 'mlp',
            'observation_shape': 4,
            'action_space_size': 2,
            'self_supervised_learning_loss': True,
            'discrete_action_encoding_type': 'one_hot',
            'norm_type': 'BN',
            'world_model_cfg': {
                'env_num': 4,
                'collector_env_num': 4,
                'evaluator_env_num': 3,
                'embed_dim': 64,
                'num_layers': 2,
                'num_heads': 2,
                'embed_pdrop': 0.1,
                'resid_pdrop': 0.1,
                'attn_pdrop': 0.1,
                'rotary_emb': True,
                'max_blocks': 10,
                'max_tokens': 20,
                'context_length': 8,
                'obs_type': 'vector',
                'norm_type': 'BN',
            },
        },
    },
}


def configs(config: Path | None, row: str, evaluate: bool = False) -> tuple[Recipe, list[EasyDict]]:
    """The recipe and ``[main_config, create_config]`` of one row; without evaluations unless they are wanted."""
    module = drop_in if config is None else config_file.load(config)
    entry = config_file.entry_of(module).__name__
    recipe = next(recipe for recipe in (UNIZERO, MUZERO) if recipe.entry == entry)
    main, create = EasyDict(copy.deepcopy(module.main_config)), EasyDict(copy.deepcopy(module.create_config))
    if config is None:
        merge(main, PINNED)
        create.env_manager = EasyDict(type='base')
    merge(main, {'exp_name': 'run', 'policy': {'use_wandb': False, 'enable_async_training': True}})
    if not evaluate:
        merge(main, {'policy': {'eval_freq': NEVER, 'async_pipeline': {'eval_at_start': False}}})
    if row in (THREAD, PROCESS):
        merge(main, {'policy': {'async_pipeline': {'placement': row}}})
    return recipe, [main, create]


def merge(into: EasyDict, values: Mapping[str, Any]) -> None:
    """Put nested values into a config; missing sections are made."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            if key not in into:
                into[key] = EasyDict()
            merge(into[key], value)
        else:
            into[key] = value
