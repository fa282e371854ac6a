"""How a language model's prior and the world model's policy become the logits of a search's root."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ..core import ConfigError

Mode = Literal['fixed', 'adaptive', 'llm', 'world_model']
MODES: tuple[str, ...] = get_args(Mode)
TINY = 1e-8  # of a probability, so that its logarithm is finite


@dataclass(frozen=True)
class Mixing:
    """
    ``p = w * softmax(llm / temperature) + (1 - w) * softmax(world model)`` over the valid actions.

    In mode 'fixed' w is ``weight``. In 'adaptive' it is ``weight * (1 - entropy of the world model / its maximum)``. In
    'llm' it is 1, in 'world_model' 0.
    """
    mode: Mode = 'fixed'
    weight: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"policy.priorzero.mixing.mode={self.mode!r}: must be one of {', '.join(MODES)}")
        if not 0 <= self.weight <= 1:
            raise ConfigError(f'policy.priorzero.mixing.weight={self.weight!r}: must be between 0 and 1')
        if not self.temperature > 0:
            raise ConfigError(f'policy.priorzero.mixing.temperature={self.temperature!r}: must be greater than 0')

    @property
    def needs_llm(self) -> bool:
        """Whether the prior can make any difference."""
        return self.mode == 'llm' or self.mode != 'world_model' and self.weight > 0

    def share(self, world_model: np.ndarray) -> float:
        """w, for the world model's distribution over the valid actions."""
        if self.mode == 'llm':
            return 1.0
        if self.mode == 'adaptive' and len(world_model) > 1:
            entropy = -float(np.sum(world_model * np.log(np.maximum(world_model, TINY))))
            return self.weight * (1.0 - min(1.0, entropy / float(np.log(len(world_model)))))
        return self.weight

    def logits(self, world_model: np.ndarray, llm: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """
        The root's logits in full width, the logarithm of nothing where an action is not valid.

        ``world_model`` has a logit per action, ``valid`` the indices of valid actions, ``llm`` a log-probability for
        each of these, in their order.
        """
        own = softmax(world_model[valid])
        w = self.share(own)
        mixed = np.full(len(world_model), np.log(TINY), dtype=np.float32)
        mixed[valid] = np.log(np.maximum(w * softmax(llm / self.temperature) + (1 - w) * own, TINY))
        return mixed


def softmax(logits: np.ndarray) -> np.ndarray:
    """In double precision."""
    shifted = np.exp(np.asarray(logits, dtype=np.float64) - np.max(logits))
    return shifted / shifted.sum()
