"""The cache of a prior: asked once, never out of date, bounded."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lzero_async.priorzero import CachedPrior, Context, TrainStats, UniformPrior

pytestmark = pytest.mark.unittest

KITCHEN, CELLAR, CAFE = Context('The kitchen.'), Context('It is dark.', (('Stairs.', 'down', 0.0),)), Context('A cafe')


def assert_close(scores: Sequence[np.ndarray], expected: Sequence[Any]) -> None:
    assert [list(row) for row in scores] == [list(row) for row in expected]


class Counting(UniformPrior):
    """A prior whose scores tell its version, and which remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[tuple[Context, tuple[str, ...]]]] = []
        self.closed = False

    def train_step(self, batch: Any) -> TrainStats:
        self._version += 1
        return TrainStats(0.0, 0.0, 0.0, 0)

    def score(self, contexts: Any, actions: Any) -> tuple[list[np.ndarray], int]:
        self.asked.append(list(zip(contexts, actions, strict=True)))
        return [np.full(len(choices), self.version + len(c.observation), np.float32)
                for c, choices in zip(contexts, actions, strict=True)], self.version

    def close(self) -> None:
        self.closed = True


def test_only_what_is_missing_is_asked_for_once_and_in_one_batch() -> None:
    inner = Counting()
    cached = CachedPrior(inner, 10)
    cached.score([KITCHEN], [['a']])
    scores, _ = cached.score([CELLAR, KITCHEN, CAFE, CELLAR], [['b', 'c'], ['a'], ['d'], ('b', 'c')])
    assert inner.asked == [[(KITCHEN, ('a',))], [(CELLAR, ('b', 'c')), (CAFE, ('d',))]]
    assert (cached.hits, cached.misses) == (2, 3)
    assert_close(scores, [[len(c.observation)] * n for c, n in ((CELLAR, 2), (KITCHEN, 1), (CAFE, 1), (CELLAR, 2))])


def test_other_actions_are_another_entry() -> None:
    inner = Counting()
    cached = CachedPrior(inner, 10)
    for choices in (['a'], ['a', 'b'], ['b', 'a'], ['a']):
        assert len(cached.score([KITCHEN], [choices])[0][0]) == len(choices)
    assert (cached.hits, cached.misses) == (1, 3)


def test_a_new_version_drops_what_the_old_one_said() -> None:
    inner = Counting()
    cached = CachedPrior(inner, 10)
    (old,), _ = cached.score([KITCHEN], [['a']])
    cached.load({}, 5)
    assert len(cached) == 0 and cached.version == 5
    (new,), version = cached.score([KITCHEN], [['a']])
    assert (version, new[0] - old[0]) == (5, 5.0)


def test_a_training_step_is_a_new_version() -> None:
    cached = CachedPrior(Counting(), 10)
    (old,), first = cached.score([KITCHEN], [['a']])
    cached.train_step([])
    (new,), second = cached.score([KITCHEN], [['a']])
    assert (first, second, cached.hits) == (0, 1, 0)
    assert new[0] - old[0] == 1.0


def test_a_load_of_the_same_number_drops_them_too() -> None:
    cached = CachedPrior(Counting(), 10)
    cached.score([KITCHEN], [['a']])
    cached.load({}, cached.version)
    cached.score([KITCHEN], [['a']])
    assert cached.misses == 2


def test_the_least_recently_used_go_first() -> None:
    inner = Counting()
    cached = CachedPrior(inner, 2)
    for context in (KITCHEN, CELLAR, KITCHEN, CAFE, KITCHEN):
        cached.score([context], [['a']])
    assert (cached.hits, cached.misses, len(cached)) == (2, 3, 2)
    cached.score([CELLAR], [['a']])
    assert cached.misses == 4


def test_a_call_larger_than_the_cache_is_answered_whole() -> None:
    cached = CachedPrior(Counting(), 1)
    scores, _ = cached.score([KITCHEN, CELLAR, KITCHEN, CAFE], [['a']] * 4)
    assert_close(scores, [[len(c.observation)] for c in (KITCHEN, CELLAR, KITCHEN, CAFE)])
    assert len(cached) == 1


def test_callers_cannot_spoil_what_is_remembered() -> None:
    cached = CachedPrior(Counting(), 2)
    for _ in range(2):
        (scores,), _ = cached.score([KITCHEN], [['a']])
        assert scores[0] == len(KITCHEN.observation)
        scores[:] = 99


def test_it_closes_the_prior_that_it_wraps() -> None:
    inner = Counting()
    CachedPrior(inner, 1).close()
    assert inner.closed
