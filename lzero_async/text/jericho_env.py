"""
LightZero's Jericho environment, mended: ``jericho_async``.

Every observation also carries what a language model would read: ``raw_text``, the game's text; ``valid_actions``, whose
index is the action; ``actions_dropped``, how many more are valid; ``history``, the last turns of this episode.
"""
from __future__ import annotations

import functools
import logging
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
from ding.envs import BaseEnvTimestep
from ding.utils import ENV_REGISTRY

from ..core import AsyncTrainingError, ConfigError
from .extras import encoder_path, need
from .games import story_file
from .rebound import rebound

need('jericho', 'transformers')

from zoo.jericho.envs.jericho_env import JerichoEnv  # noqa: E402 (after it is known to be there)

from .game import Game  # noqa: E402

logger = logging.getLogger(__name__)

NOTHING_TO_DO = 'look'  # the action where Jericho finds none


class IllegalAction(AsyncTrainingError):
    """An action that its observation's mask does not allow: a defect of whoever chose it."""


@functools.cache
def _tokenizer_of(path: str) -> SimpleNamespace:
    """Where upstream keeps the tokenizer of one path; its own place for it is one for all (jericho_env.py:92)."""
    return SimpleNamespace(tokenizer=None)


def _unheard(*words: Any, **_: Any) -> None:
    """Upstream prints at every end of an episode (jericho_env.py:326)."""
    logger.debug('%s', ' '.join(map(str, words)))


_quiet_step = rebound(JerichoEnv.step, print=_unheard)


@ENV_REGISTRY.register('jericho_async')
class JerichoAsyncEnv(JerichoEnv):
    """
    Overview:
        Upstream's environment with a stable order of actions, without a spaCy model, without processes of its own, and
        with an error where it would act at random.
    Arguments:
        - cfg (:obj:`dict`): Upstream's settings, and
            - game_path (:obj:`Optional[str]`): a story file; None or 'cellar' is the shipped game.
            - tokenizer_path (:obj:`Optional[str]`): as for Hugging Face; None is the packaged MiniLM.
            - history_length (:obj:`int`): how many turns ``history`` holds at most.
            - game_timeout_s (:obj:`float`): after how long a call into the interpreter counts as hanging.
    """

    _action_list: list[str] | None
    blocked_actions: set[str]

    DEFAULT_CONFIG = {
        **JerichoEnv.DEFAULT_CONFIG,
        'game_path': None,
        'tokenizer_path': None,
        'for_unizero': True,
        'history_length': 2,
        'game_timeout_s': 60.0,
    }

    def __init__(self, cfg: dict[str, Any]) -> None:
        cfg = {**self.DEFAULT_CONFIG, **cfg}
        cfg['game_path'] = story_file(cfg['game_path'])
        cfg['tokenizer_path'] = encoder_path(cfg['tokenizer_path'], 'env.tokenizer_path')
        for key, least in (('history_length', 0), ('max_action_num', 1), ('max_steps', 1)):
            if cfg[key] < least:
                raise ConfigError(f'env.{key} is {cfg[key]}: it must be at least {least}')
        self._text = ''
        self._history: deque[tuple[str, str, float]] = deque(maxlen=cfg['history_length'])
        self.steps = 0  # of all episodes; each of them was legal, or it would have raised
        self.actions_dropped = 0  # valid ones that found no room in max_action_num, over all observations
        self._dropped_before = 0  # of these, those of earlier episodes
        self._dropped_here = 0  # and those of the present observation
        game = functools.partial(Game, timeout_s=cfg['game_timeout_s'])
        keeper = _tokenizer_of(cfg['tokenizer_path'])
        self._prepare = rebound(JerichoEnv.prepare_obs, JerichoEnv=keeper)
        rebound(JerichoEnv.__init__, FrotzEnv=game, JerichoEnv=keeper)(self, cfg)

    # ------------------------------------------------------------------ observations

    def prepare_obs(self, obs: str, return_str: bool = False) -> dict[str, Any]:
        self._text = obs
        if self._action_list is None:
            self._action_list = self._allowed_actions()
        return self._prepare(self, obs, return_str)

    def _allowed_actions(self) -> list[str]:
        valid = self._env.get_valid_actions()
        self._dropped_here = excess = max(0, len(valid) - self.max_action_num)
        if excess:
            if not self.actions_dropped:
                logger.warning(
                    '%r: %d actions are valid but max_action_num is %d, so the last %d in alphabetical order cannot be '
                    'taken; said once, counted in actions_dropped', self, len(valid), self.max_action_num, excess
                )
            self.actions_dropped += excess
        # Upstream's mask would allow action 0 of an empty list (jericho_env.py:168).
        return valid[:self.max_action_num] or [NOTHING_TO_DO]

    def _complete(self, observation: dict[str, Any]) -> dict[str, Any]:
        observation.update(
            raw_text=self._text, valid_actions=tuple(self._action_list or ()), actions_dropped=self._dropped_here,
            history=tuple(self._history)
        )
        return observation

    # ------------------------------------------------------------------ an episode

    def reset(self, return_str: bool = False) -> dict[str, Any]:
        self._history.clear()
        self.blocked_actions = set()  # upstream's would block in the new episode what was of no use in the last
        self._dropped_before = self.actions_dropped
        return self._complete(super().reset(return_str))

    def step(self, action: int | np.ndarray | str, return_str: bool = False) -> BaseEnvTimestep:
        text, words = self._text, action if isinstance(action, str) else self._legal(int(action))
        timestep = _quiet_step(self, words, return_str)
        self.steps += 1
        self._history.append((text, words, float(np.asarray(timestep.reward).item())))
        self._complete(timestep.obs)
        timestep.info['action'] = words
        if timestep.done:
            timestep.info['game_over'] = bool(self._env.game_over() or self._env.victory())  # or just max_steps
            # Upstream's evaluator logs the mean of each of these.
            timestep.info['episode_info'] = {
                'game_steps': self.env_step, 'actions_dropped': self.actions_dropped - self._dropped_before
            }
        return timestep

    def _legal(self, action: int) -> str:
        """The words of an action. Upstream takes another one at random where it is illegal (jericho_env.py:275)."""
        allowed = self._action_list or []
        if not 0 <= action < len(allowed):
            mask = [1] * len(allowed) + [0] * (self.max_action_num - len(allowed))
            raise IllegalAction(
                f'action {action} is illegal in {self!r} at step {self.env_step}: the mask is {mask}, for {allowed}'
                + ('' if allowed else '; reset comes first')
            )
        return allowed[action]

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.game_path})'
