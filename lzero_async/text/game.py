"""Jericho's interpreter with a search of valid actions that is stable, cached and starts no processes."""
from __future__ import annotations

import os
from typing import Any

from jericho import FrotzEnv

from ..core import ConfigError
from . import games, words
from .recent import Recent
from .watchdog import watching

words.install()
games.register_cellar()

# A search costs as much as thousands of steps in the larger games, and all games of a process share what they found.
_FOUND: Recent[tuple[str, ...]] = Recent(20_000)


class Game(FrotzEnv):
    """One story, played by text."""

    def __init__(self, story: str, seed: int | None = None, timeout_s: float = 60.0) -> None:
        self._name = os.path.basename(story)
        self._timeout_s = timeout_s
        super().__init__(story, seed)
        if not self.is_fully_supported or self.act_gen is None:
            raise ConfigError(
                f'env.game_path is {story!r}: Jericho does not know this story file, so it can tell neither its score '
                'nor its valid actions; use a game of its suite, in the release that it knows'
            )

    def step(self, action: str) -> tuple[str, Any, bool, dict[str, Any]]:
        with self._watching(repr(action)):
            return super().step(action)

    def reset(self) -> tuple[str, dict[str, Any]]:
        with self._watching('a reset'):
            return super().reset()

    def _watching(self, what: str) -> Any:
        return watching(f'{what} ({self._name})', self._timeout_s)

    def get_valid_actions(
            self, use_object_tree: bool = True, use_ctypes: bool = True, use_parallel: bool = False
    ) -> list[str]:
        """Sorted; none where the game is over."""
        if self.game_over() or self.victory():  # the world may look the same as a moment before
            return []
        key = self.story_file, self.get_world_state_hash(), use_object_tree
        found = _FOUND.get(key)
        if found is None:
            # Jericho's default forks a pool of processes per game and never closes it (jericho.py:971).
            found = tuple(sorted(set(super().get_valid_actions(use_object_tree, use_ctypes, use_parallel=False))))
            _FOUND.put(key, found)
        return list(found)

    # Jericho goes through sets of words, whose order differs from process to process, and of names or actions that
    # are alike takes the first: without an order of their own, the same index would mean different actions in two
    # workers, and the same state even different words for them.

    def _identify_interactive_objects(self, observation: str = '', use_object_tree: bool = False) -> dict[str, Any]:
        objects = super()._identify_interactive_objects(observation, use_object_tree)
        return {description: sorted(objects[description]) for description in sorted(objects)}

    def _filter_candidate_actions(
            self, candidate_actions: Any, use_ctypes: bool = False, use_parallel: bool = False
    ) -> dict[Any, list[str]]:
        with self._watching('the search of valid actions'):
            found = super()._filter_candidate_actions(candidate_actions, use_ctypes, use_parallel)
        return {change: sorted(actions) for change, actions in found.items()}


def forget_valid_actions() -> None:
    """Empty the store of searches, for measurements."""
    _FOUND.clear()
