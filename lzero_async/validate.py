"""
What a run needs of LightZero's own configuration: fill in what the segment entries read, refuse what cannot work.

``prepare`` makes any upstream config runnable by the segment entries, those written for ``train_unizero`` or
``train_muzero`` too. ``validate_run`` refuses, before any process starts, what would only fail deep inside a worker. A
config that works upstream is never refused; what merely looks odd is a warning.
"""
from __future__ import annotations

import ast
import copy
import inspect
import logging
import numbers
import os
import textwrap
from collections.abc import Collection, Mapping
from typing import Any

import torch
from ding.envs import get_env_cls
from ding.policy.base_policy import get_policy_cls
from ding.utils import deep_merge_dicts, get_world_size
from easydict import EasyDict
from lzero.mcts.buffer.game_buffer import GameBuffer

from lzero_async.config import ROLES, AsyncConfig, nearest
from lzero_async.core import ConfigError

logger = logging.getLogger(__name__)

# Keys that the segment entries read and that no policy, or not every policy, has a default for. The values are those of
# upstream's own segment configs (zoo/atari/config/*_segment*_config.py) and of UniZeroPolicy.config.
SEGMENT_DEFAULTS: Mapping[str, Any] = {
    'buffer_reanalyze_freq': 1 / 100000,  # once in 100000 epochs: never
    'reanalyze_batch_size': 160,
    'reanalyze_partition': 0.75,  # upstream's buffer asserts that it is not more
    'eval_freq': 2000,  # the MuZero family has no default
    'train_start_after_envsteps': 0,
}


def effective_policy(main_cfg: Mapping[str, Any], create_cfg: Mapping[str, Any]) -> EasyDict:
    """
    Overview:
        The policy config as upstream's code will see it: the user's values over the policy class's defaults, over those
        of the replay buffer and of the segment entries.
    Arguments:
        - main_cfg (:obj:`Mapping[str, Any]`): The user's ``main_config``.
        - create_cfg (:obj:`Mapping[str, Any]`): The user's ``create_config``.
    Returns:
        - policy (:obj:`EasyDict`): The merged config, a copy.
    """
    return EasyDict(deep_merge_dicts(_policy_defaults(create_cfg), _section(main_cfg, 'main_config', 'policy')))


def prepare(main_cfg: Mapping[str, Any], create_cfg: Mapping[str, Any]) -> tuple[EasyDict, EasyDict]:
    """
    Overview:
        Copies of the user's configs that the segment entries can run. What the user set stays; what those entries read
        and neither the user nor the policy's defaults provide is filled in, and ``num_segments`` follows
        ``collector_env_num``.
    Arguments:
        - main_cfg (:obj:`Mapping[str, Any]`): The user's ``main_config``. It is not changed.
        - create_cfg (:obj:`Mapping[str, Any]`): The user's ``create_config``. It is not changed.
    Returns:
        - configs (:obj:`tuple[EasyDict, EasyDict]`): ``main_config`` and ``create_config``.
    """
    user = _section(main_cfg, 'main_config', 'policy')
    policy = effective_policy(main_cfg, create_cfg)
    main, create = EasyDict(copy.deepcopy(dict(main_cfg))), EasyDict(copy.deepcopy(dict(create_cfg)))
    class_defaults = _policy_cls(create_cfg).default_config()
    for key in (*GameBuffer.config, *SEGMENT_DEFAULTS):
        if key not in user and key not in class_defaults:
            main.policy[key] = policy[key]
    # Both are read before upstream merges its defaults in (train_muzero_segment.py:69, train_unizero_segment.py:67).
    if 'cuda' not in user:
        main.policy.cuda = policy.cuda
    if 'world_model_cfg' in policy.model:
        device = {'device': policy.model.world_model_cfg.device}
        main.policy = EasyDict(deep_merge_dicts({'model': {'world_model_cfg': device}}, main.policy))
    if 'num_segments' not in user:
        main.policy.num_segments = _env_setting(main_cfg, create_cfg, 'collector_env_num', policy.collector_env_num)
    # Upstream's evaluator wants one episode per environment; ding's template would say four.
    evaluators = _env_setting(main_cfg, create_cfg, 'evaluator_env_num', policy.evaluator_env_num)
    main.env.n_evaluator_episode = _env_setting(main_cfg, create_cfg, 'n_evaluator_episode', evaluators)
    return main, create


def validate_run(
        main_cfg: Mapping[str, Any],
        create_cfg: Mapping[str, Any],
        async_cfg: AsyncConfig,
        supported_types: Collection[str],
        entry: str,
        model_path: str | None,
) -> None:
    """
    Overview:
        Raise ``ConfigError`` for a run that cannot work, and log a warning for what looks odd.
    Arguments:
        - main_cfg (:obj:`Mapping[str, Any]`): The user's ``main_config``, prepared or not.
        - create_cfg (:obj:`Mapping[str, Any]`): The user's ``create_config``.
        - async_cfg (:obj:`AsyncConfig`): The settings of the asynchronous run.
        - supported_types (:obj:`Collection[str]`): Policy types that the entry has a recipe for.
        - entry (:obj:`str`): Name of the entry, for messages.
        - model_path (:obj:`str | None`): The pretrained model, if any.
    """
    policy_type = _section(create_cfg, 'create_config', 'policy').get('type')
    if policy_type not in supported_types:
        match = nearest(policy_type, supported_types)
        raise ConfigError(
            f"create_config.policy.type is {policy_type!r}: {entry} supports {', '.join(sorted(supported_types))}"
            + (f'; did you mean {match!r}?' if match else '.')
        )
    policy = effective_policy(main_cfg, create_cfg)
    _check_machine(policy, async_cfg, model_path)
    _check_environments(main_cfg, create_cfg, policy)
    _check_replay(policy, async_cfg, _policy_cls(create_cfg))
    _check_updates(policy)


def _check_machine(policy: EasyDict, async_cfg: AsyncConfig, model_path: str | None) -> None:
    """One learner, devices that exist, a model that exists."""
    if policy.multi_gpu:
        raise ConfigError('policy.multi_gpu is True: there is one learner here; set it to False.')
    world_size = get_world_size()
    if world_size > 1:
        raise ConfigError(f'the world size is {world_size}: there is one learner here; start one process, no torchrun.')
    if model_path is not None and not os.path.isfile(model_path):
        raise ConfigError(f'model_path is {model_path!r}: no such file; give an existing checkpoint, or None.')
    for role in ROLES:
        name = async_cfg.devices[role]
        path = f'policy.async_pipeline.devices.{role} is {name!r}'
        if name is None:
            continue
        try:
            device = torch.device(name)
        except RuntimeError:
            raise ConfigError(f"{path}: it must be a torch device such as 'cpu' or 'cuda:0'.") from None
        gpus = torch.cuda.device_count()
        if device.type == 'cuda' and (device.index or 0) >= gpus:
            raise ConfigError(f"{path}: torch sees {gpus} CUDA devices; use one of them, or 'cpu'.")


def _check_environments(main_cfg: Mapping[str, Any], create_cfg: Mapping[str, Any], policy: EasyDict) -> None:
    """Environment counts that fit together."""
    collectors = _env_setting(main_cfg, create_cfg, 'collector_env_num', policy.collector_env_num)
    evaluators = _env_setting(main_cfg, create_cfg, 'evaluator_env_num', policy.evaluator_env_num)
    user = _section(main_cfg, 'main_config', 'policy')
    if 'num_segments' in user and user['num_segments'] != collectors:
        raise ConfigError(
            f"policy.num_segments is {user['num_segments']} but collector_env_num is {collectors}: "
            'make them equal, or leave num_segments out.'
        )
    for key, count in (('collector_env_num', collectors), ('evaluator_env_num', evaluators)):
        if policy[key] != count:
            logger.warning('policy.%s is %s but env.%s is %s; they should be equal.', key, policy[key], key, count)
    if 'world_model_cfg' in policy.model:
        wanted, env_num = max(collectors, evaluators), policy.model.world_model_cfg.env_num
        if env_num < wanted:
            raise ConfigError(
                f'policy.model.world_model_cfg.env_num is {env_num} with collector_env_num {collectors} and '
                f'evaluator_env_num {evaluators}: set it to at least {wanted}.'
            )
    episodes = _env_setting(main_cfg, create_cfg, 'n_evaluator_episode', evaluators)
    if episodes != evaluators:
        logger.warning(
            'env.n_evaluator_episode is %s but evaluator_env_num is %s; LightZero 0.2.0 evaluates well only where they '
            'are equal.', episodes, evaluators
        )


def _check_replay(policy: EasyDict, async_cfg: AsyncConfig, policy_cls: type) -> None:
    """A replay buffer that can be filled and sampled."""
    length = policy.game_segment_length
    if not _is_int(length) or length < 1:
        raise ConfigError(
            f'policy.game_segment_length is {length!r}: no position could be sampled from such a segment; '
            'give a whole number of at least 1.'
        )
    if length < policy.num_unroll_steps + policy.td_steps:
        logger.warning(
            'policy.game_segment_length is %s, less than num_unroll_steps + td_steps = %s + %s; longer segments give '
            'better targets.', length, policy.num_unroll_steps, policy.td_steps
        )
    if policy.reanalyze_partition > 0.75:
        logger.warning(
            "policy.reanalyze_partition is %s; upstream's buffer fails above 0.75 when a reanalysis takes place.",
            policy.reanalyze_partition
        )
    if policy.replay_buffer_size <= policy.batch_size:
        raise ConfigError(
            f'policy.replay_buffer_size is {policy.replay_buffer_size} but batch_size is {policy.batch_size}: '
            'the buffer must be the larger one.'
        )
    if async_cfg.min_buffer_size > policy.replay_buffer_size:
        raise ConfigError(
            f'policy.async_pipeline.min_buffer_size is {async_cfg.min_buffer_size} but replay_buffer_size is '
            f'{policy.replay_buffer_size}: training would never start; lower the former.'
        )
    if policy.use_priority and not returns_priorities(policy_cls):
        raise ConfigError(
            f'policy.use_priority is True: {policy_cls.__name__} of the installed LightZero computes no priorities; '
            'set it to False.'
        )


def _check_updates(policy: EasyDict) -> None:
    """Collected data must pay for updates."""
    updates = policy.update_per_collect
    if updates is None:
        if policy.replay_ratio <= 0:
            raise ConfigError(
                f'policy.replay_ratio is {policy.replay_ratio} and update_per_collect is None: nothing would ever be '
                'trained; give a replay_ratio greater than 0.'
            )
    elif not _is_int(updates) or updates < 1:
        raise ConfigError(
            f'policy.update_per_collect is {updates!r}: give a whole number of at least 1, or None to use replay_ratio.'
        )


def returns_priorities(policy_cls: type) -> bool:
    """
    Whether the learner of this policy returns real priorities: in 0.2.0 UniZero returns none and Sampled UniZero zeros.

    Read off the source, because the upstream versions that can and that cannot carry the same version number.
    """
    try:
        source = textwrap.dedent(inspect.getsource(policy_cls._forward_learn))  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return True
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == 'value_priority_orig':
                return not (isinstance(value, ast.Call) and ast.unparse(value.func).endswith('zeros'))
    return False


def _is_int(value: Any) -> bool:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _section(cfg: Mapping[str, Any], cfg_name: str, name: str) -> Mapping[str, Any]:
    """A part that every config must have."""
    section = cfg.get(name)
    if not isinstance(section, Mapping):
        raise ConfigError(f'{cfg_name}.{name} is {section!r}: it must be a dict of settings.')
    return section


def _policy_cls(create_cfg: Mapping[str, Any]) -> Any:
    """The registered policy class."""
    policy = EasyDict(_section(create_cfg, 'create_config', 'policy'))
    try:
        return get_policy_cls(policy)
    except (ImportError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"create_config.policy has type {policy.get('type')!r} and import_names {policy.get('import_names')!r}: "
            f'no such policy can be had ({error}); name the module that registers it.'
        ) from error


def _policy_defaults(create_cfg: Mapping[str, Any]) -> EasyDict:
    """All defaults that upstream's code falls back to."""
    return deep_merge_dicts({**GameBuffer.config, **SEGMENT_DEFAULTS}, _policy_cls(create_cfg).default_config())


def _env_setting(main_cfg: Mapping[str, Any], create_cfg: Mapping[str, Any], key: str, fallback: Any) -> Any:
    """A value of the env config: the user's, else the environment class's, else ``fallback``."""
    env = _section(main_cfg, 'main_config', 'env')
    if key in env:
        return env[key]
    create = EasyDict(_section(create_cfg, 'create_config', 'env'))
    try:
        env_cls = get_env_cls(create)
    except (ImportError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"create_config.env has type {create.get('type')!r} and import_names {create.get('import_names')!r}: "
            f'no such environment can be had ({error}); name the module that registers it.'
        ) from error
    defaults = env_cls.default_config() if hasattr(env_cls, 'default_config') else {}
    return defaults.get(key, fallback)
