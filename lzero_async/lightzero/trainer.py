"""The single owner of upstream's learner, target model and replay buffer."""
from __future__ import annotations

import copy
import logging
import math
import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import wandb
from ding.rl_utils import get_epsilon_greedy_fn
from ding.utils import save_file
from ding.worker import BaseLearner
from easydict import EasyDict
from lzero.entry.utils import log_buffer_run_time
from lzero.policy import visit_count_temperature

from ..core import Batch, Boundary, EvalRequest, EvalResult, Weights
from ..recipes import Recipe
from ..transport.weights import plain_names
from .build import model_tensors

logger = logging.getLogger(__name__)


class LightZeroTrainer:
    """
    Overview:
        What upstream's segment entries do between two collects, step by step, so that the serial loop and the
        learner's thread share it.
    Arguments:
        - cfg (:obj:`EasyDict`): the compiled config.
        - recipe (:obj:`Recipe`): what differs between algorithms.
        - policy (:obj:`Policy`): the whole policy; its learn mode and target model are touched here only.
        - learner (:obj:`BaseLearner`): upstream's learner on that policy's learn mode.
        - buffer (:obj:`GameBuffer`): a mended replay buffer.
        - writer (:obj:`SummaryWriter`): the run's TensorBoard stream.
        - threads (:obj:`Optional[int]`): torch threads of the learner's thread; None leaves them alone.
        - min_buffer_size (:obj:`int`): transitions wanted before the first update.
    """

    def __init__(
            self, cfg: EasyDict, recipe: Recipe, policy: Any, learner: BaseLearner, buffer: Any, writer: Any,
            threads: int | None = None, min_buffer_size: int = 0
    ) -> None:
        self.cfg = cfg
        self.policy = policy
        self.learner = learner
        self.buffer = buffer
        self._recipe = recipe
        self._writer = writer
        self._threads = threads
        self._min_buffer_size = min_buffer_size
        self._env_steps = 0
        self._epoch = 0
        self._reanalyses = 0
        self._random_episodes = 0
        self._counted = True  # whether the epoch at hand counts
        self._update_in_epoch = 0
        self._reanalyze_interval = 0
        self._last_eval = 0
        self._offline: list[EvalRequest] = []
        self._trouble: str | None = None
        eps = cfg.policy.eps
        self._epsilon = get_epsilon_greedy_fn(
            start=eps.start, end=eps.end, decay=eps.decay, type_=eps.type
        ) if eps.eps_greedy_exploration_in_collect else None

    @property
    def train_iter(self) -> int:
        return self.learner.train_iter

    def start(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)

    # ------------------------------------------------------------------ one batch

    def push(self, batch: Batch, env_steps: int) -> None:
        cfg = self.cfg.policy
        self._env_steps = env_steps
        self.buffer.log_memory_usage(self.train_iter, self._writer)
        if self._recipe.logs_buffer_times:
            log_buffer_run_time(self.train_iter, self.buffer, self._writer)
        if batch.random_actions:
            self._random_episodes += len(batch.episode_returns)
        # Where collecting has a policy of its own, the learner would log the settings it was made with for ever.
        self.policy._collect_mcts_temperature = batch.temperature
        self.policy._collect_epsilon = batch.epsilon
        self.buffer.push_game_segments((batch.segments, batch.metas))
        self.buffer.remove_oldest_data_to_fit()
        if 0 < cfg.buffer_reanalyze_freq < 1 and self._recipe.reanalyzes_at(self._epoch, cfg.buffer_reanalyze_freq):
            self._reanalyze()

    def budget(self, batch: Batch) -> Fraction | None:
        cfg = self.cfg.policy
        verdict = self._recipe.verdict(cfg, self.buffer, self._env_steps)
        self._counted = verdict != 'insufficient'
        if verdict != 'train' or batch.random_actions or self.buffer.get_num_of_transitions() < self._min_buffer_size:
            if not self._counted:
                logger.warning(
                    'batch %d is not trained: %s, batch_size=%d needs more', batch.number, self.buffer, cfg.batch_size
                )
            return None
        if cfg.update_per_collect is not None:
            return Fraction(cfg.update_per_collect)
        transitions = sum(min(len(segment), cfg.game_segment_length) for segment in batch.segments)
        return Fraction(str(cfg.replay_ratio)) * transitions

    def begin_epoch(self, updates: int) -> None:
        frequency = self.cfg.policy.buffer_reanalyze_freq
        self._update_in_epoch = 0
        # Upstream divides by zero where there are fewer updates than reanalyses (train_unizero_segment.py:175, 202).
        self._reanalyze_interval = max(1, int(updates // frequency)) if frequency >= 1 else 0

    def update(self) -> None:
        cfg = self.cfg.policy
        if self._reanalyze_interval and self._update_in_epoch % self._reanalyze_interval == 0:
            self._reanalyze()
        self._update_in_epoch += 1
        train_data = self.buffer.sample(cfg.batch_size, self.policy)
        self._recipe.before_update(self.policy, self.train_iter, self._env_steps)
        train_data = self._recipe.complete(train_data, self.train_iter)
        log_vars = self.learner.train(train_data, self._env_steps)
        if cfg.use_priority:
            self.buffer.update_priority(train_data, log_vars[0]['value_priority_orig'])
        loss = log_vars[0].get('weighted_total_loss', 0.0)
        if not math.isfinite(loss):
            self._trouble = f'the loss was {loss} at update {self.train_iter}'

    def _reanalyze(self) -> None:
        cfg = self.cfg.policy
        stored = self.buffer.get_num_of_transitions() // cfg.num_unroll_steps
        if stored > int(cfg.reanalyze_batch_size / cfg.reanalyze_partition):
            self.buffer.reanalyze_buffer(cfg.reanalyze_batch_size, self.policy)
            self._reanalyses += 1
            logger.debug('replay buffer reanalyzed, %d times so far', self._reanalyses)

    def end_epoch(self) -> bool:
        if self._counted:
            self._epoch += 1
            self._recipe.after_epoch(self.policy)
        return self._counted

    def trouble(self) -> str | None:
        trouble, self._trouble = self._trouble, None
        return trouble

    # ------------------------------------------------------------------ collects

    def warming_up(self) -> bool:
        return self._random_episodes < self.cfg.policy.random_collect_episode_num

    def collect_settings(self, boundary: Boundary) -> tuple[float, float]:
        cfg = self.cfg.policy
        if boundary.warmup:
            return 1.0, 0.0
        temperature = visit_count_temperature(
            cfg.manual_temperature_decay, cfg.fixed_temperature_value,
            cfg.threshold_training_steps_for_final_temperature, trained_steps=boundary.train_iter
        )
        return temperature, self._epsilon(boundary.env_steps) if self._epsilon else 0.0

    def weights(self) -> Weights:
        return model_tensors(self.policy)

    # ------------------------------------------------------------------ evaluations

    def eval_due(self) -> bool:
        """Upstream's rule (muzero_evaluator.py:176), which counts from the last evaluation and never fires at 0."""
        train_iter = self.train_iter
        if train_iter == self._last_eval or train_iter - self._last_eval < self.cfg.policy.eval_freq:
            return False
        self._last_eval = train_iter
        if self._recipe.offline_evaluation and self.cfg.policy.eval_offline:
            self._offline.append(EvalRequest(train_iter, self._env_steps))
            # Upstream relies on a checkpoint of just this iteration, which only exists where eval_freq divides it.
            self.learner.save_checkpoint(f'iteration_{train_iter}.pth.tar')
            return False
        return True

    def offline_evaluations(self) -> Iterator[tuple[EvalRequest, Weights, Any]]:
        """What ``eval_offline`` put off: each request with its weights and its checkpoint's content."""
        for request in self._offline:
            path = self._checkpoint_path(f'iteration_{request.train_iter}.pth.tar')
            state = torch.load(path, map_location='cpu')
            yield request, plain_names(state['model']), state

    def checkpoint_state(self) -> dict[str, Any]:
        state = copy.deepcopy(self.policy.learn_mode.state_dict())
        return {**state, 'last_iter': self.train_iter, 'last_step': self._env_steps}

    def evaluated(self, result: EvalResult, state: Any) -> None:
        if self.cfg.policy.use_wandb:
            for tag, value, step in result.scalars:
                if tag.startswith('evaluator_step/'):
                    wandb.log({tag: value}, step=step)
        if not result.best:
            return
        if state is None:
            self.learner.save_checkpoint('ckpt_best.pth.tar')
        else:
            path = self._checkpoint_path('ckpt_best.pth.tar')
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix('.tmp')
            save_file(str(beside), state)
            os.replace(beside, path)

    def _checkpoint_path(self, name: str) -> Path:
        return Path(self.cfg.exp_name) / 'ckpt' / name

    def finish(self) -> None:
        self.learner.call_hook('after_run')
        if self.cfg.policy.use_wandb:
            wandb.finish()
