"""CartPole whose every reset is seeded. Upstream's own never passes a seed to gymnasium."""
from __future__ import annotations

from typing import Any

from ding.utils import ENV_REGISTRY
from zoo.classic_control.cartpole.envs.cartpole_lightzero_env import CartPoleEnv


class _Reseeding:
    """An inner environment whose n-th reset has the n-th seed."""

    def __init__(self, env: Any, seed: int) -> None:
        self._env = env
        self._seed = seed
        self._resets = 0

    def reset(self) -> Any:
        self._resets += 1
        return self._env.reset(seed=(self._seed * 100003 + self._resets) % 2**31)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


@ENV_REGISTRY.register('cartpole_seeded', force_overwrite=True)
class SeededCartPole(CartPoleEnv):

    def reset(self) -> Any:
        if not self._init_flag:
            super().reset()
            self._env = _Reseeding(self._env, self._seed)
        return super().reset()
