"""Making upstream's parts: compiled config, environments, policies."""
from __future__ import annotations

import copy
import logging
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import torch
from ding.config import compile_config
from ding.envs import create_env_manager, get_vec_env_setting
from ding.policy import create_policy
from easydict import EasyDict

from ..core import ConfigError
from ..recipes import Recipe
from ..transport.weights import plain_names

FIELDS = ['learn', 'collect', 'eval']  # a policy without all three lacks parts that collecting needs


def compiled(
        recipe: Recipe, main_config: EasyDict, create_config: EasyDict, seed: int, device: str | None = None
) -> EasyDict:
    """Upstream's compiled config; creates the run's directory, under another name where the wanted one is taken."""
    recipe.settle(main_config)
    main_config.policy.device = recipe.device(main_config)
    if device is not None:
        recipe.place(main_config.policy, device)
    cfg = compile_config(main_config, seed=seed, env=None, auto=True, create_cfg=create_config, save_cfg=True)
    if recipe.offline_evaluation and cfg.policy.eval_offline:
        cfg.policy.learn.learner.hook.save_ckpt_after_iter = cfg.policy.eval_freq
    return cfg


def worker_config(recipe: Recipe, cfg: EasyDict, device: str | None) -> EasyDict:
    """A worker's private copy: its own device, and no wandb, which has one owner."""
    cfg = copy.deepcopy(cfg)
    recipe.place(cfg.policy, device or cfg.policy.device)
    cfg.policy.use_wandb = False
    return cfg


def environments(cfg: EasyDict, which: str, seed: int) -> Any:
    """The environment manager of a 'collector' or an 'evaluator', seeded as upstream does, not launched yet."""
    # A copy, as this takes the numbers of environments out of it (ding/envs/env/base_env.py:102).
    env_fn, collector_cfgs, evaluator_cfgs = get_vec_env_setting(copy.deepcopy(cfg.env))
    configs = collector_cfgs if which == 'collector' else evaluator_cfgs
    manager = create_env_manager(cfg.env.manager, [partial(env_fn, cfg=c) for c in configs])
    if which == 'collector':
        manager.seed(seed)
    else:
        manager.seed(seed, dynamic_seed=False)
    return manager


def policy_of(cfg: EasyDict, model: torch.nn.Module | None) -> Any:
    """A whole policy: one mutable knot of models, caches and counters, never to be shared between roles."""
    return create_policy(cfg.policy, model=model, enable_field=FIELDS)


def packed(model: torch.nn.Module | None) -> bytes | None:
    """A model of the caller's own, fit to travel. Upstream's hold lambdas, which only cloudpickle can take along."""
    if model is None:
        return None
    try:
        return cloudpickle.dumps(copy.deepcopy(model).cpu())
    except Exception as error:
        raise ConfigError(f'model={type(model).__name__}: it cannot be pickled for the workers ({error})') from error


def model_tensors(policy: Any) -> Mapping[str, torch.Tensor]:
    """The learnt tensors and buffers of a policy's model, by plain name. They are the model's own, not copies."""
    return plain_names(policy._learn_model.state_dict())


def worker_seed(seed: int, index: int) -> int:
    """Distinct for every worker of a run, the same in every run with that seed."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0] >> 1)


@contextmanager
def preserved_root_logger() -> Iterator[None]:
    """Leave the root logger as it was: upstream's loggers set it up anew (ding/utils/log_helper.py:84)."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Whatever draws or seeds in here, Python's, numpy's and torch's global random states are as before afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
