"""Configs small enough for a test: CartPole with two environments and a model of a few thousand parameters."""
from __future__ import annotations

import copy
import importlib
from typing import Any

from easydict import EasyDict


def tiny(policy_type: str = 'unizero', seeded: bool = False, **policy: Any) -> list[EasyDict]:
    """``[main_config, create_config]`` from the drop-in config of that family; ``policy`` overrides its keys."""
    family = 'unizero' if 'unizero' in policy_type else 'muzero'
    module = importlib.import_module(f'zoo_configs.cartpole_{family}_segment_async_config')
    main, create = copy.deepcopy(module.main_config), copy.deepcopy(module.create_config)
    main.exp_name = 'run'
    main.env.update(collector_env_num=2, evaluator_env_num=1, n_evaluator_episode=1, stop_value=10**6)
    main.policy.update(
        collector_env_num=2, evaluator_env_num=1, num_segments=2, num_simulations=4, batch_size=16, replay_ratio=0.25,
        game_segment_length=20, eval_freq=20, replay_buffer_size=1000
    )
    if family == 'unizero':
        main.policy.model.world_model_cfg.update(env_num=2, collector_env_num=2, evaluator_env_num=1, embed_dim=16)
    for key, value in policy.items():
        if isinstance(value, dict) and key in main.policy:
            main.policy[key].update(value)
        else:
            main.policy[key] = value
    if seeded:
        create.env = EasyDict(type='cartpole_seeded', import_names=['seeded_env'])
    return [main, create]
