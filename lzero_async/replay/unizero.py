"""
UniZero's training batches, built with arrays.

Upstream builds a batch of 256 sequences number by number, in Python lists: a third of an update on a CPU
(game_buffer_unizero.py:98, 517, game_buffer_muzero.py:265, 674). Here one pass over the drawn segments slices them into
arrays and the targets are computed on these. The same numbers come out, bit for bit, from the same random draws. What
is not the plain case (reanalyzed targets, board games, continuous or varying actions, compressed frames, whole
episodes) is left to upstream.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lzero.mcts.utils import prepare_observation
from lzero.policy import inverse_scalar_transform, to_detach_cpu_numpy

from .mended import MendedGameBuffer


@dataclass
class _Values:
    """What the targets of reward and value are computed from, a row per sequence, a column per unrolled step."""
    observations: np.ndarray  # to bootstrap from; zeros where there is nothing to bootstrap
    valid: np.ndarray  # whether there is
    td_steps: np.ndarray  # per row
    rewards: np.ndarray  # from the first step on, td_steps further than the unrolled ones
    known: np.ndarray  # whether there is such a reward


class ArrayBatches(MendedGameBuffer):
    """Put before ``UniZeroGameBuffer``; see ``mend``."""

    def _plain(self, reanalyze_ratio: float) -> bool:
        """Whether this is the case that is built here; LightZero main, with its value supports, is not."""
        cfg = self._cfg
        if (
            hasattr(self, 'value_support') or reanalyze_ratio > 0 or self.sample_type != 'transition'
            or cfg.env_type != 'not_board_games' or cfg.action_type != 'fixed_action_space'
            or cfg.model.continuous_action_space or cfg.transform2string or cfg.use_root_value
        ):
            return False
        stored = self.game_segment_buffer[0]
        return stored.reward_segment.ndim == stored.action_segment.ndim == 1 and stored.child_visit_segment.ndim == 2

    def _make_batch(self, batch_size: int, reanalyze_ratio: float) -> tuple:
        if not self._plain(reanalyze_ratio):
            return super()._make_batch(batch_size, reanalyze_ratio)
        segments, starts, indices, weights, made = self._sample_orig_data(batch_size)
        self.reanalyze_num = 0
        unrolled, td_steps = self._cfg.num_unroll_steps, self._cfg.td_steps
        stacked, columns = self._cfg.model.frame_stack_num, self._cfg.num_unroll_steps + 1
        size = len(segments)
        # Actions, and beside them those taken td_steps later, so that one draw fills the gaps in upstream's order.
        actions, filled = np.zeros((size, 2 * unrolled), np.int64), np.zeros((size, 2 * unrolled), bool)
        timesteps = np.zeros((size, unrolled), np.int64)
        mask = np.zeros((size, columns))
        observations = []
        policies = np.zeros((size, columns, self._cfg.model.action_space_size))
        # Segments may differ in type: one whose rewards are all whole numbers has integers.
        frame_type = np.result_type(*{segment.obs_segment.dtype for segment in segments})
        reward_type = np.result_type(*{segment.reward_segment.dtype for segment in segments})
        bootstrap = np.zeros((size, columns, stacked, *segments[0].obs_segment.shape[1:]), frame_type)
        valid = np.zeros((size, columns), bool)
        steps = np.zeros(size, np.int32)
        rewards = np.zeros((size, columns + td_steps), reward_type)
        known = np.zeros((size, columns + td_steps), bool)

        for row, (segment, start) in enumerate(zip(segments, starts, strict=True)):
            length = len(segment.action_segment)
            taken = segment.action_segment[start:start + unrolled]
            actions[row, :len(taken)], filled[row, :len(taken)] = taken, True
            mask[row, :min(len(taken), self._cfg.game_segment_length - start)] = 1
            later = segment.action_segment[start + td_steps:start + td_steps + unrolled]
            end = unrolled + len(later)
            actions[row, unrolled:end], filled[row, unrolled:end] = later, True
            moments = segment.timestep_segment[start:start + unrolled]
            timesteps[row, :len(moments)] = moments
            observations.append(segment.get_unroll_obs(start, num_unroll_steps=unrolled, padding=True))

            searched = min(columns, length - start)
            policies[row, :searched] = segment.child_visit_segment[start:start + searched]

            ahead = steps[row] = min(max(td_steps, 1), max(1, length - start))
            there = max(0, min(columns, length - start - ahead))
            valid[row, :there] = True
            for frame in range(stacked):
                begin = start + ahead + frame
                bootstrap[row, :there, frame] = segment.obs_segment[begin:begin + there]
            paid = segment.reward_segment[start:start + columns + td_steps]
            rewards[row, :len(paid)], known[row, :len(paid)] = paid, True

        gaps = ~filled
        actions[gaps] = np.random.randint(0, self._cfg.model.action_space_size, size=int(gaps.sum()))
        current = [
            prepare_observation(observations, self._cfg.model.model_type), actions[:, :unrolled], actions[:, unrolled:],
            mask, np.asarray(indices), np.asarray(weights), np.asarray(made), timesteps
        ]
        if not valid.all():  # upstream's zeros for them are float32
            bootstrap = bootstrap.astype(np.promote_types(bootstrap.dtype, np.float32), copy=False)
        return _Values(bootstrap, valid, steps, rewards, known), None, policies, current

    def _compute_target_reward_value(self, context: Any, model: Any, batch_action: Any, batch_timestep: Any) -> tuple:
        if not isinstance(context, _Values):
            return super()._compute_target_reward_value(context, model, batch_action, batch_timestep)
        size, columns = context.valid.shape
        discount = self._cfg.discount_factor
        with torch.no_grad():
            flat = context.observations.reshape(size * columns, *context.observations.shape[2:])
            observations = prepare_observation(flat, self._cfg.model.model_type)
            output = model.initial_inference(
                torch.from_numpy(observations).to(self._cfg.device), batch_action, start_pos=batch_timestep
            )
            value = to_detach_cpu_numpy(inverse_scalar_transform(output.value, self._cfg.model.support_scale))
        ahead = np.repeat(context.td_steps, columns)
        targets = value.reshape(-1) * (np.full(size * columns, discount)**ahead) * context.valid.reshape(-1)
        targets = targets.reshape(size, columns)
        for step in range(int(context.td_steps.max())):
            until = slice(step, step + columns)
            due = context.known[:, until] & (step < context.td_steps)[:, None]
            np.add(targets, context.rewards[:, until].astype(np.float64) * discount**step, out=targets, where=due)
        rewards = context.rewards[:, :columns]
        if not context.known[:, :columns].all():  # upstream's zeros for them are float64
            rewards = rewards.astype(np.promote_types(rewards.dtype, np.float64), copy=False)
        return rewards, targets

    def _compute_target_policy_non_reanalyzed(self, context: Any, policy_shape: int | None) -> Any:
        if isinstance(context, np.ndarray):
            return context
        return super()._compute_target_policy_non_reanalyzed(context, policy_shape)
