"""
Variable action spaces: searches whose visits have a place for every action, illegal ones included.

Upstream stores visits of legal actions only and spreads them later by masks that it does not have any more for what was
padded on from the next segment: IndexError in game_buffer_muzero.py:737, wrong actions by game_buffer.py:403.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from lzero.mcts import UniZeroGameBuffer
from lzero.mcts.tree_search.mcts_ctree import UniZeroMCTSCtree

from .rebound import rebound


def full_width(visits: Sequence[float], legal: Sequence[int], width: int) -> list[float]:
    """The visits of the legal actions, in their places; 0 for the others."""
    spread = [0.0] * width
    for action, count in zip(legal, visits, strict=True):
        spread[action] = count
    return spread


def legal_actions(mask: Any) -> list[int]:
    return np.flatnonzero(np.asarray(mask) == 1).tolist()


class _Roots:
    """Upstream's roots of a search tree, whose distributions are of full width."""

    def __init__(self, legal: Sequence[Sequence[int]], width: int) -> None:
        self.tree = UniZeroMCTSCtree.roots(len(legal), legal)
        self._legal, self._width = legal, width

    def prepare(self, *args: Any) -> None:
        self.tree.prepare(*args)

    def get_distributions(self) -> list[list[float]]:
        found = self.tree.get_distributions()
        return [full_width(visits, legal, self._width) for visits, legal in zip(found, self._legal, strict=True)]


class TextGameBuffer(UniZeroGameBuffer):
    """Upstream's buffer, whose reanalyses write visits of full width (game_buffer_unizero.py:479, 490)."""

    def _compute_target_policy_reanalyzed(self, *args: Any, **kwargs: Any) -> Any:
        width = self._cfg.model.action_space_size

        class FullWidth(UniZeroMCTSCtree):
            """Upstream's search on such roots."""

            @classmethod
            def roots(cls, number: int, legal: Sequence[Sequence[int]]) -> _Roots:
                return _Roots(legal, width)

            def search(self, roots: _Roots, *rest: Any) -> None:
                super().search(roots.tree, *rest)

        compute = rebound(UniZeroGameBuffer._compute_target_policy_reanalyzed, MCTSCtree=FullWidth)
        return compute(self, *args, **kwargs)
