"""
Upstream's segment collector and evaluator on text games, mended by subclass, with places to look in.

What ``MuZeroSegmentCollector.collect`` (lzero/worker/muzero_segment_collector.py) gets wrong where masks change and
episodes are short:

- :380-384, 453-459, 583-586  the masks, players and timesteps of a collect's first observations serve all of it
- :577    the timestep stored with an action is that of the observation it led to
- :712-719  after an episode's end the next segment begins with the terminal observation, not with the new one
- :393-399  a segment that is not full when a collect ends is thrown away, and the one before it goes on with a gap

The environments' own ``ready_obs`` is right at every moment, so it is what everything here is taken from.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from ding.torch_utils import to_ndarray
from lzero.mcts.buffer.game_segment import GameSegment
from lzero.worker import MuZeroEvaluator, MuZeroSegmentCollector

from .rebound import rebound
from .search import full_width, legal_actions

Phase = Literal['collect', 'eval']
Observations = Mapping[int, Mapping[str, Any]]  # env id -> observation, in the order of the search's rows


class Hooks(Protocol):
    """What a recipe may see and do around searches and steps; see ``TextUniZeroRecipe``."""

    def before_search(self, policy: Any, ready_obs: Observations, phase: Phase) -> None:
        """Called before each search."""

    def after_search(self, policy: Any, ready_obs: Observations, output: dict[int, Any], phase: Phase) -> None:
        """Called after each search, before anyone reads its output."""

    def after_step(
            self, policy: Any, actions: Mapping[int, Any], timesteps: Mapping[int, Any], phase: Phase
    ) -> None:
        """Called after each step of the environments."""


@dataclass(frozen=True)
class Watched:
    """The hooks of one worker, with the worker's policy."""
    hooks: Hooks
    policy: Any
    phase: Phase

    def search(self, ready_obs: Observations, search: Callable[[], dict[int, Any]]) -> dict[int, Any]:
        self.hooks.before_search(self.policy, ready_obs, self.phase)
        output = search()
        self.hooks.after_search(self.policy, ready_obs, output, self.phase)
        return output

    def stepped(self, actions: Mapping[int, Any], timesteps: Mapping[int, Any]) -> None:
        self.hooks.after_step(self.policy, actions, timesteps, self.phase)


class _Environments:
    """An environment manager that tells of its steps."""

    def __init__(self, manager: Any, tell: Callable[[Mapping[int, Any], Mapping[int, Any]], None]) -> None:
        self._manager, self._tell = manager, tell

    def step(self, actions: Mapping[int, Any]) -> Mapping[int, Any]:
        timesteps = self._manager.step(actions)
        self._tell(actions, timesteps)
        return timesteps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


class _Ready(dict):
    """One entry of the observation that each environment is at; what upstream writes here is older than that."""

    def __init__(self, env: Any, key: str) -> None:
        super().__init__()
        self._env, self._key = env, key

    def __getitem__(self, env_id: int) -> Any:
        return to_ndarray(self._env.ready_obs[env_id][self._key])

    def __setitem__(self, env_id: int, value: Any) -> None:
        pass


class OpenSegment(GameSegment):
    """A segment that is being filled: it reports when it is asked for its observation. Finished, it is upstream's."""

    def __init__(self, *args: Any, asked: list[OpenSegment], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._asked = asked
        self.game_over = False  # whether its last observation is the end of the game

    def reset(self, init_observations: Any) -> None:
        if not self.obs_segment:  # one that is carried over from the last collect has begun already
            super().reset(init_observations)

    def get_obs(self) -> list[Any]:
        self._asked.append(self)
        return super().get_obs()

    def append(self, *args: Any, timestep: Any, **kwargs: Any) -> None:
        super().append(*args, timestep=to_ndarray(timestep - 1), **kwargs)  # :577 passes that of the next observation

    def game_segment_to_array(self) -> None:
        if self.game_over:
            self._rest()
        super().game_segment_to_array()
        del self._asked, self.game_over
        self.__class__ = GameSegment  # which is all that whoever gets it has to know

    def _rest(self) -> None:
        """
        One more step, in which nothing happens. What follows an end is masked out of UniZero's losses
        (game_buffer_unizero.py:141), so nothing would teach that a game that is over is worth nothing: losing it at
        once would look as good as going on.
        """
        only = np.zeros_like(self.action_mask_segment[-1])
        only[0] = 1
        moment = self.timestep_segment[-1] + 2  # append takes one off
        self.store_search_stats(only.tolist(), 0.0)
        self.append(0, self.obs_segment[-1], 0.0, only, self.to_play_segment[-1], timestep=moment)


class TextCollector(MuZeroSegmentCollector):
    """
    Overview:
        ``MuZeroSegmentCollector`` on what its environments are really at.
    Arguments:
        - watched (:obj:`Watched`): what to call around searches and steps.
        - arguments (:obj:`Any`): upstream's.
    """

    def __init__(self, watched: Watched, env: Any, policy: Any, policy_config: Any, **arguments: Any) -> None:
        self._watched = watched
        self.actions_dropped = 0  # valid ones that searches could not consider
        self._asked: list[OpenSegment] = []  # since the last search, in the order of its rows
        self._open: dict[int, OpenSegment] = {}  # by environment, as of the last search
        self._carried: list[OpenSegment | None] = []  # what a collect that begins goes on with, by environment
        self._search = policy.forward
        super().__init__(
            env=_Environments(env, self._stepped), policy=policy._replace(forward=self._forward),
            policy_config=policy_config, **arguments
        )
        self._collect = rebound(MuZeroSegmentCollector.collect, GameSegment=self._new_segment)

    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        super().reset(_policy, _env)
        self.action_mask_dict = _Ready(self._env, 'action_mask')
        self.to_play_dict = _Ready(self._env, 'to_play')
        self.timestep_dict = _Ready(self._env, 'timestep')

    def collect(self, *args: Any, **kwargs: Any) -> Any:
        finished = [segment for segment in self.last_game_segments if segment is not None]
        self._carried = [
            segment if isinstance(segment, OpenSegment) and segment not in finished else None
            for segment in (self._open.get(env_id) for env_id in range(self._env_num))
        ]
        return self._collect(self, *args, **kwargs)

    def _new_segment(self, action_space: Any, **kwargs: Any) -> OpenSegment:
        carried = self._carried.pop(0) if self._carried else None
        if carried is not None:
            return carried
        # Without the random state that the manager seeded: gym's cannot be unpickled beside numpy 2.
        return OpenSegment(type(action_space)(action_space.n), asked=self._asked, **kwargs)

    def _forward(self, data: torch.Tensor, action_mask: Any, *args: Any, ready_env_id: Any, **kwargs: Any) -> Any:
        current = self._env.ready_obs
        ready_obs = {env_id: current[env_id] for env_id in ready_env_id}
        self._open = dict(zip(ready_env_id, self._asked, strict=True))
        self._asked.clear()
        self.actions_dropped += sum(obs.get('actions_dropped', 0) for obs in ready_obs.values())
        texts = {env_id: to_ndarray(obs['observation']) for env_id, obs in ready_obs.items()}
        for env_id, segment in self._open.items():
            if not segment.action_segment:
                segment.obs_segment[-1] = texts[env_id]
        data = torch.from_numpy(np.stack(list(texts.values()))).to(data.device)

        def search() -> dict[int, Any]:
            output = self._search(data, action_mask, *args, ready_env_id=ready_env_id, **kwargs)
            for env_id, mask in zip(ready_env_id, action_mask, strict=True):
                found = output[env_id]
                found['visit_count_distributions'] = full_width(
                    found['visit_count_distributions'], legal_actions(mask), len(mask)
                )
            return output

        return self._watched.search(ready_obs, search)

    def _stepped(self, actions: Mapping[int, Any], timesteps: Mapping[int, Any]) -> None:
        for env_id, timestep in timesteps.items():
            self._open[env_id].game_over = bool(timestep.info.get('game_over', False))
        self._watched.stepped(actions, timesteps)

    def pad_and_save_last_trajectory(
            self, i: int, last_game_segments: Any, last_game_priorities: Any, game_segments: Any, done: Any
    ) -> None:
        # Upstream pads all but the masks, and a reanalysis then takes every action for legal (game_buffer.py:403).
        masks = game_segments[i].action_mask_segment[:self.unroll_plus_td_steps]
        last_game_segments[i].action_mask_segment.extend(masks)
        super().pad_and_save_last_trajectory(i, last_game_segments, last_game_priorities, game_segments, done)


class TextEvaluator(MuZeroEvaluator):
    """Upstream's evaluator, which treats masks and resets as it should, with places to look in."""

    def __init__(self, watched: Watched, env: Any, policy: Any, **arguments: Any) -> None:
        forward = policy.forward

        def search(*args: Any, ready_env_id: Any, **kwargs: Any) -> dict[int, Any]:
            current = self._env.ready_obs
            ready_obs = {env_id: current[env_id] for env_id in ready_env_id}
            return watched.search(ready_obs, lambda: forward(*args, ready_env_id=ready_env_id, **kwargs))

        super().__init__(env=_Environments(env, watched.stepped), policy=policy._replace(forward=search), **arguments)
