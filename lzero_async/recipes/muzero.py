"""The MuZero family, as ``lzero.entry.train_muzero_segment`` treats it."""
from __future__ import annotations

from typing import Any

import torch
from lzero.entry import train_muzero_segment
from lzero.mcts import (
    EfficientZeroGameBuffer,
    GumbelMuZeroGameBuffer,
    MuZeroGameBuffer,
    SampledEfficientZeroGameBuffer,
    StochasticMuZeroGameBuffer,
)

from .base import Recipe, Verdict


class MuZeroRecipe(Recipe):
    """No caches to clear, no train_iter in the batch."""

    name = 'muzero'
    entry = 'train_muzero_segment_async'
    serial_entry = staticmethod(train_muzero_segment)
    buffers = {
        'muzero': MuZeroGameBuffer,
        'efficientzero': EfficientZeroGameBuffer,
        'gumbel_muzero': GumbelMuZeroGameBuffer,
        'sampled_efficientzero': SampledEfficientZeroGameBuffer,
        'stochastic_muzero': StochasticMuZeroGameBuffer,
    }
    offline_evaluation = True
    logs_buffer_times = True

    def device(self, main_config: Any) -> str:
        return 'cuda' if main_config.policy.cuda and torch.cuda.is_available() else 'cpu'

    def seeds_cuda(self, policy_cfg: Any) -> bool:
        return policy_cfg.cuda

    def verdict(self, policy_cfg: Any, buffer: Any, env_steps: int) -> Verdict:
        # Upstream's entry does not read train_start_after_envsteps, though its configs set it.
        return 'train' if buffer.get_num_of_transitions() > policy_cfg.batch_size else 'not yet'

    def reanalyzes_at(self, epoch: int, frequency: float) -> bool:
        return epoch % (1 // frequency) == 0

    def complete(self, train_data: list[Any], train_iter: int) -> list[Any]:
        return train_data


MUZERO = MuZeroRecipe()
