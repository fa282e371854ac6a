"""The driver's parts of a run: what both the serial loop and the engine need, made in upstream's order."""
from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import wandb
from ding.utils import set_pkg_seed
from ding.worker import BaseLearner
from easydict import EasyDict
from torch.utils.tensorboard import SummaryWriter

from ..config import AsyncConfig
from ..recipes import Recipe
from ..replay import mend
from .build import policy_of
from .trainer import LightZeroTrainer

logger = logging.getLogger(__name__)


@dataclass
class Parts:
    """Made by ``make_parts``; the writer is closed by whoever asked for them."""
    cfg: EasyDict
    recipe: Recipe
    trainer: LightZeroTrainer
    writer: SummaryWriter
    restore: Callable[[], None]  # makes the policy upstream's again, for the caller

    @property
    def policy(self) -> Any:
        return self.trainer.policy

    @property
    def directory(self) -> Path:
        return Path(self.cfg.exp_name) / 'async'


def make_parts(
        recipe: Recipe,
        cfg: EasyDict,
        config: AsyncConfig,
        model: torch.nn.Module | None,
        model_path: str | None,
        threads: int | None,
) -> Parts:
    """Seed, policy, learner, buffer, in that order; the environments come before, as they may seed too."""
    set_pkg_seed(cfg.seed, use_cuda=recipe.seeds_cuda(cfg.policy))
    if cfg.policy.use_wandb and wandb.run is None:
        # Upstream's policy watches its model before anyone has called init (lzero/policy/unizero.py:354).
        wandb.init(project='lzero_async', name=cfg.exp_name, config=cfg)
    policy = policy_of(cfg, model)
    recipe.ready(policy)
    restore = recipe.lighten(policy._target_model)
    if model_path is not None:
        logger.info('loading %s', model_path)
        policy.learn_mode.load_state_dict(torch.load(model_path, map_location=cfg.policy.device))
    writer = SummaryWriter(os.path.join(f'./{cfg.exp_name}/log/', 'serial'))
    learner = BaseLearner(cfg.policy.learn.learner, policy.learn_mode, writer, exp_name=cfg.exp_name)
    buffer = mend(recipe.buffers[cfg.policy.type])(cfg.policy)
    buffer.exact_draws = config.off_policy_degree == 0  # which is to equal upstream
    trainer = LightZeroTrainer(cfg, recipe, policy, learner, buffer, writer, threads, config.min_buffer_size)
    return Parts(cfg, recipe, trainer, writer, restore)
