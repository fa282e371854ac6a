"""
Upstream's game buffers, mended without a line of theirs changed.

``mend(UniZeroGameBuffer)`` is a subclass that keeps its capacity, reanalyzes the segments that it drew, bears short
segments and knows its size in bytes. Until the first eviction, and with segments long enough, it does exactly what its
parent does, numpy's global random state included. Like its parent it belongs to one thread.

Three views of the same data must agree at every moment: the segments, one look-up entry per stored position, and one
priority per stored position. A segment stores its own positions; those padded on from the next segment do not count.
"""

from __future__ import annotations

import inspect
import os
import time
from collections import deque
from collections.abc import Mapping
from functools import cache
from itertools import islice
from typing import Any, Protocol

import numpy as np
import psutil
from lzero.mcts.buffer.game_buffer import GameBuffer
from lzero.mcts.buffer.game_buffer_unizero import UniZeroGameBuffer

_MEGABYTE = 1024 * 1024
# LightZero main's has more parameters and further rules about positions.
PLAIN_DRAWS = list(inspect.signature(GameBuffer._sample_orig_data).parameters) == ['self', 'batch_size']


class ScalarWriter(Protocol):
    """The part of a TensorBoard writer that is used here."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Record one value."""


def segment_nbytes(segment: Any) -> int:
    """The bytes of the arrays that a game segment holds, one list deep (``root_sampled_actions`` stays a list)."""
    total = 0
    for value in vars(segment).values():
        if isinstance(value, np.ndarray):
            total += value.nbytes
        elif isinstance(value, list):
            total += sum(item.nbytes for item in value if isinstance(item, np.ndarray))
    return total


def distinct(total: int, count: int) -> np.ndarray:
    """``count`` different numbers below ``total``, all choices alike likely, from numpy's global random state."""
    if total < 4 * count:
        return np.random.choice(total, count, replace=False)
    drawn = np.random.randint(0, total, count)
    while len(first := np.unique(drawn, return_index=True)[1]) < count:  # one that came up again is drawn anew
        drawn = np.concatenate([drawn[np.sort(first)], np.random.randint(0, total, count - len(first))])
    return drawn


class MendedGameBuffer(GameBuffer):
    """
    Overview:
        What every mended buffer adds to its upstream parent. Not a buffer by itself: see ``mend``.
    """

    base_idx: int  # segments removed so far; the look-up counts from the first segment ever stored
    game_pos_priorities: np.ndarray  # one per stored position
    game_segment_buffer: list[Any]  # oldest first
    game_segment_game_pos_look_up: list[tuple[int, int]]  # (segment, position in it) per stored position
    exact_draws: bool  # True: the parent's random draws, which cost as much as the buffer is large

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.exact_draws = True
        self._store = np.empty(0)  # behind game_pos_priorities, which are a view of it from _begin on
        self._begin = 0
        self._nbytes = 0
        self._nbytes_per_segment: deque[int] = deque()  # as counted at the push, so that the sum cannot drift

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays in all stored segments, kept up to date by every push and removal."""
        return self._nbytes

    def log_memory_usage(self, train_iter: int, writer: ScalarWriter | None) -> None:
        """
        Overview:
            Write the tags of upstream's ``log_buffer_memory_usage`` in constant time. Upstream walks every object of
            the buffer at every call (lzero/entry/utils.py:167); here the buffer's size is that of its arrays.
        Arguments:
            - train_iter (:obj:`int`): The step to log at.
            - writer (:obj:`ScalarWriter | None`): The TensorBoard writer; None logs nothing.
        """
        if writer is None:
            return
        scalars = {
            'Buffer/num_of_all_collected_episodes': self.num_of_collected_episodes,
            'Buffer/num_of_game_segments': self.get_num_of_game_segments(),
            'Buffer/num_of_transitions': self.get_num_of_transitions(),
            'Buffer/memory_usage/game_segment_buffer': self._nbytes / _MEGABYTE,
            'Buffer/memory_usage/process': psutil.Process(os.getpid()).memory_info().rss / _MEGABYTE,
        }
        for tag, value in scalars.items():
            writer.add_scalar(tag, value, train_iter)

    def remove_oldest_data_to_fit(self) -> None:
        """
        Overview:
            Remove the oldest segments until at most ``replay_buffer_size`` positions are stored. More than a batch is
            always left: where whole segments cannot satisfy both, the capacity is exceeded by less than one segment.
        """
        # Not the parent's: game_buffer.py:604 evicts nothing at all, ever, where that would leave less than a batch,
        # and where it leaves exactly one, the entries find too little data to train on (train_unizero_segment.py:191).
        stored = self.get_num_of_transitions()
        if stored <= self.replay_buffer_size:
            return
        excess = 0
        for segment in self.game_segment_buffer:
            remaining = stored - self._stored_length(segment)
            if stored <= self.replay_buffer_size * self.keep_ratio or remaining <= self._cfg.batch_size:
                break
            stored, excess = remaining, excess + 1
        if excess:
            self._remove(excess)

    def _stored_length(self, segment: Any) -> int:
        """How many positions of ``segment`` the look-up holds (game_buffer.py:553)."""
        return min(len(segment.action_segment), self._cfg.game_segment_length)

    def _push_game_segment(self, data: Any, meta: Mapping[str, Any]) -> None:
        """Store one segment; one that is shorter than what its targets need has no valid position."""
        # game_buffer.py:563 makes valid_len negative for those, and line 573 then appends more priorities than
        # positions, which shifts the priorities of everything after.
        length = self._stored_length(data)
        if not meta['done'] and meta['unroll_plus_td_steps'] > length:
            meta = {**meta, 'unroll_plus_td_steps': length}
        if self._cfg.use_priority or meta['priorities'] is not None:
            super()._push_game_segment(data, meta)
        else:
            # game_buffer.py:568 looks through all priorities and copies them for every segment. Without priorities
            # they are never read: the parent gets one to look at, and what it adds to it goes to a store that grows.
            stored, self.game_pos_priorities = self.game_pos_priorities, np.ones(1)
            super()._push_game_segment(data, meta)
            self.game_pos_priorities = self._appended(stored, self.game_pos_priorities[1:])
        size = segment_nbytes(data)
        self._nbytes_per_segment.append(size)
        self._nbytes += size

    def _appended(self, stored: np.ndarray, new: np.ndarray) -> np.ndarray:
        """``stored`` and then ``new``, copied only when the store behind them is full: a constant cost on average."""
        length = len(stored)
        if getattr(stored, 'base', None) is not self._store or self._begin + length + len(new) > len(self._store):
            self._store, self._begin = np.empty(2 * (length + len(new)) + 1024), 0
            self._store[:length] = stored
        end = self._begin + length + len(new)
        self._store[end - len(new):end] = new
        return self._store[self._begin:end]

    def _sample_orig_data(self, batch_size: int) -> tuple:
        """Draw positions, without repetition."""
        if self.exact_draws or self._cfg.use_priority or not PLAIN_DRAWS:
            return super()._sample_orig_data(batch_size)
        # game_buffer.py:117-129 raises as many equal numbers to a power as positions are stored, sums them, and hands
        # them to numpy as probabilities: 40 ms per update at a million. Here it is a draw per position of the batch.
        indices = distinct(self.get_num_of_transitions(), batch_size)
        if self._cfg.reanalyze_outdated is True:
            indices.sort()
        places = [self.game_segment_game_pos_look_up[index] for index in indices]
        segments = [self.game_segment_buffer[segment - self.base_idx] for segment, _ in places]
        return segments, [start for _, start in places], indices, np.ones(batch_size), [time.time()] * batch_size

    def _remove(self, excess_game_segment_index: int) -> None:
        """Remove that many of the oldest segments, with exactly their positions."""
        # game_buffer.py:614 counts a segment's padding too and so removes positions of segments that stay; these can
        # then neither be sampled nor be counted, and the buffer grows past its capacity. Parent: segments and clocks.
        positions = sum(self._stored_length(s) for s in islice(self.game_segment_buffer, excess_game_segment_index))
        look_up, priorities = self.game_segment_game_pos_look_up, self.game_pos_priorities
        self.game_segment_game_pos_look_up, self.game_pos_priorities = [], priorities[:0]
        super()._remove(excess_game_segment_index)
        del look_up[:positions]
        self.game_segment_game_pos_look_up, self.game_pos_priorities = look_up, priorities[positions:]
        self._begin += positions
        for _ in range(excess_game_segment_index):
            self._nbytes -= self._nbytes_per_segment.popleft()

    def _sample_orig_reanalyze_batch(self, batch_size: int) -> tuple:
        """Draw segments to reanalyze."""
        # game_buffer.py:255 takes base_idx off indices that already count from the oldest stored segment: after an
        # eviction it reanalyzes other segments than it drew, or none that exist.
        base_idx, self.base_idx = self.base_idx, 0
        try:
            return super()._sample_orig_reanalyze_batch(batch_size)
        finally:
            self.base_idx = base_idx

    def __reduce__(self) -> tuple:
        """Pickle by the upstream class, as the mended one has no name that could be imported."""
        state = dict(vars(self))
        state['_store'] = np.empty(0)
        state.pop('policy', None)  # game_buffer_muzero.py:89 leaves the whole policy here and never reads it
        return _restore, (type(self).__bases__[-1],), state


@cache
def mend(buffer_cls: type) -> type:
    """
    Overview:
        Make the mended subclass of one of upstream's game buffers; the same class at every call.
    Arguments:
        - buffer_cls (:obj:`type`): ``UniZeroGameBuffer``, ``MuZeroGameBuffer`` or any other ``GameBuffer``.
    Returns:
        - mended_cls (:obj:`type`): ``MendedUniZeroGameBuffer``, constructed as ``buffer_cls`` is.
    """
    if not issubclass(buffer_cls, GameBuffer):
        raise TypeError(f'mend() takes a subclass of GameBuffer, not {buffer_cls.__name__}')
    if issubclass(buffer_cls, MendedGameBuffer):
        return buffer_cls
    from .unizero import ArrayBatches  # which builds on this module

    as_unizero = buffer_cls._make_batch is UniZeroGameBuffer._make_batch  # type: ignore[attr-defined]
    ours = ArrayBatches if as_unizero else MendedGameBuffer
    return type(f'Mended{buffer_cls.__name__}', (ours, buffer_cls), {'__module__': __name__})


def _restore(buffer_cls: type) -> Any:
    """An empty mended buffer for pickle to fill."""
    return object.__new__(mend(buffer_cls))
