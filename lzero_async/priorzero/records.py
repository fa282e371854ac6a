"""What a language model learns from: one record per searched step, on its way from a collector to a bounded store."""
from __future__ import annotations

import random
import zlib
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .prior import Context

HELD_OUT_OF = 8  # one in so many states is never trained on
OPEN_EPISODES = 1024  # whose returns the store waits for, at most; the oldest is given up


@dataclass(frozen=True)
class Record:
    """One step: what the language model was told, what it said, what search made of it and what came of it."""
    context: Context
    actions: tuple[str, ...]  # the valid ones
    visits: np.ndarray  # the share of visits of each, summing to 1
    action: int  # the executed one, as an index into ``actions``
    log_probs: np.ndarray  # the language model's, of each
    model_version: int  # of the world model
    prior_version: int  # of the language model
    episode: tuple[int, int, int]  # collector, environment, how many-th there
    step: int  # in that episode
    reward: float = 0.0  # of the executed action
    done: bool = False  # the episode ended with it
    episode_return: float | None = None  # from this step on; None until the episode has ended


class RecordTape:
    """A collector's records between two deliveries. One thread uses it; one collect's steps bound it."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._records: list[Record] = []
        self._open: dict[int, Record] = {}  # by environment: searched, not stepped yet
        self._episodes: Counter[int] = Counter()
        self._steps: Counter[int] = Counter()

    def searched(self, env_id: int, **fields: Any) -> None:
        """A search has chosen an action."""
        self._open[env_id] = Record(
            episode=(self._worker, env_id, self._episodes[env_id]), step=self._steps[env_id], **fields
        )

    def stepped(self, env_id: int, reward: float, done: bool) -> None:
        """The environment has answered."""
        self._records.append(replace(self._open.pop(env_id), reward=reward, done=done))
        self._steps[env_id] += 1
        if done:
            self._episodes[env_id] += 1
            self._steps[env_id] = 0

    def cut(self) -> list[Record]:
        """What was recorded since the last cut."""
        records, self._records = self._records, []
        return records


class ExperienceStore:
    """
    The language model's replay: the newest records, a share of the states held out for good, and books that close:
    ``received == held + evicted``, held-out ones included. One thread uses it.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        self._size = size
        self._random = random.Random(seed)
        self._train: OrderedDict[int, Record] = OrderedDict()
        self._held_out: OrderedDict[int, Record] = OrderedDict()
        # By episode, the key and reward of each step so far.
        self._open: OrderedDict[tuple[int, int, int], list[tuple[int, float]]] = OrderedDict()
        self.received = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._train) + len(self._held_out)

    def push(self, records: Sequence[Record]) -> None:
        for record in records:
            key = self.received
            self.received += 1
            part = self._held_out if _is_held_out(record) else self._train
            part[key] = record
            if len(part) > (self._size if part is self._train else max(1, self._size // HELD_OUT_OF)):
                part.popitem(last=False)
                self.evicted += 1
            self._note(record, key)

    def _note(self, record: Record, key: int) -> None:
        """Returns are known when an episode ends: they are filled in then, in what is still held."""
        self._open.setdefault(record.episode, []).append((key, record.reward))
        if record.done:
            total = 0.0
            for each, reward in reversed(self._open.pop(record.episode)):
                total += reward
                for part in (self._train, self._held_out):
                    if each in part:
                        part[each] = replace(part[each], episode_return=total)
        elif len(self._open) > OPEN_EPISODES:
            self._open.popitem(last=False)

    @property
    def trainable(self) -> int:
        """Records that may be sampled."""
        return len(self._train)

    def sample(self, count: int) -> list[Record]:
        """Some to train on, all alike likely."""
        return self._random.choices(list(self._train.values()), k=count)

    def held_out(self, count: int) -> list[Record]:
        """The newest of those that are never trained on."""
        return list(self._held_out.values())[-count:] if count else []

    def counts(self) -> Mapping[str, int]:
        return {
            'received': self.received, 'held': len(self), 'held_out': len(self._held_out), 'evicted': self.evicted
        }


def _is_held_out(record: Record) -> bool:
    """By what the model is asked, so that no state is ever on both sides; the same in every run."""
    asked = repr((record.context, record.actions)).encode()
    return zlib.crc32(asked) % HELD_OUT_OF == 0
