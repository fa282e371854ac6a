"""UniZero and Sampled UniZero, as ``lzero.entry.train_unizero_segment`` treats them."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lzero.entry import train_unizero_segment
from lzero.mcts import SampledUniZeroGameBuffer, UniZeroGameBuffer

from ..lightzero.heads import read_heads_only
from .base import Recipe, Verdict


class UniZeroRecipe(Recipe):
    """A world model with key-value caches, which every new set of weights makes stale."""

    name = 'unizero'
    entry = 'train_unizero_segment_async'
    serial_entry = staticmethod(train_unizero_segment)
    buffers = {'unizero': UniZeroGameBuffer, 'sampled_unizero': SampledUniZeroGameBuffer}
    offline_evaluation = False
    logs_buffer_times = False

    def device(self, main_config: Any) -> str:
        return main_config.policy.model.world_model_cfg.device if torch.cuda.is_available() else 'cpu'

    def seeds_cuda(self, policy_cfg: Any) -> bool:
        return torch.cuda.is_available()

    def verdict(self, policy_cfg: Any, buffer: Any, env_steps: int) -> Verdict:
        if env_steps <= policy_cfg.train_start_after_envsteps:
            return 'not yet'
        by_episode = policy_cfg.sample_type == 'episode'
        stored = buffer.get_num_of_game_segments() if by_episode else buffer.get_num_of_transitions()
        return 'train' if stored > policy_cfg.batch_size else 'insufficient'

    def reanalyzes_at(self, epoch: int, frequency: float) -> bool:
        return epoch > 0 and epoch % int(1 / frequency) == 0

    def complete(self, train_data: list[Any], train_iter: int) -> list[Any]:
        return [*train_data, train_iter]

    def before_update(self, policy: Any, train_iter: int, env_steps: int) -> None:
        if policy._cfg.use_wandb:
            policy.set_train_iter_env_step(train_iter, env_steps)

    def after_epoch(self, policy: Any) -> None:
        policy.recompute_pos_emb_diff_and_clear_cache()

    def after_load(self, policy: Any) -> None:
        world_model = policy._collect_model.world_model
        if not policy._cfg.model.world_model_cfg.rotary_emb:
            world_model.precompute_pos_emb_diff_kv()
        world_model.clear_caches()

    def lighten(self, model: Any) -> Callable[[], None]:
        return read_heads_only(model.world_model)

    def place(self, policy_cfg: Any, device: str) -> None:
        super().place(policy_cfg, device)
        policy_cfg.model.world_model_cfg.device = device

    def act_at_random(self, policy: Any, output: dict[int, Any], choose: Callable[[int], Any]) -> None:
        super().act_at_random(policy, output, choose)
        # The next search starts from the action that was taken (lzero/policy/unizero.py:711); 0.2.0 has one slot for
        # collect and eval, main one for each.
        actions = [output[env_id]['action'] for env_id in output]
        slot = 'last_batch_action_collect' if hasattr(policy, 'last_batch_action_collect') else 'last_batch_action'
        if len(getattr(policy, slot)) == len(actions):
            setattr(policy, slot, actions)


UNIZERO = UniZeroRecipe()
