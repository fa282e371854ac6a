"""A prior that remembers: text games come back to the same state again and again."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from .prior import Example, LLMPrior, TrainStats
from .prompt import Context

_Key = tuple[Context, tuple[str, ...]]


class CachedPrior:
    """
    Overview:
        Any prior behind a bounded store of its latest answers. The store holds answers of one version only: they go
        when another is put in force.
    Arguments:
        - prior (:obj:`LLMPrior`): who is asked for what is missing, once per call; closed with this one.
        - size (:obj:`int`): states that are remembered; those used least recently go first.
    """

    def __init__(self, prior: LLMPrior, size: int) -> None:
        if size < 1:
            raise ValueError(f'a cache of {size} states')
        self.prior = prior
        self.hits = 0  # states answered without asking, the repeats within a call among them
        self.misses = 0  # states that were asked for
        self._size = size
        self._made_by = prior.version
        self._kept: OrderedDict[_Key, np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def version(self) -> int:
        return self.prior.version

    @property
    def truncated(self) -> int:
        return self.prior.truncated

    def score(
        self, contexts: Sequence[Context], actions: Sequence[Sequence[str]]
    ) -> tuple[list[np.ndarray], int]:
        if len(contexts) != len(actions):
            raise ValueError(f'{len(contexts)} contexts but {len(actions)} lists of actions')
        self._drop_old()
        keys = [(context, tuple(choices)) for context, choices in zip(contexts, actions, strict=True)]
        # Kept apart from the store, which may be smaller than one call.
        answers = {key: self._kept[key] for key in keys if key in self._kept}
        missing = list(dict.fromkeys(key for key in keys if key not in answers))
        if missing:
            scores, _ = self.prior.score([context for context, _ in missing], [choices for _, choices in missing])
            answers.update(zip(missing, scores, strict=True))
        self.misses += len(missing)
        self.hits += len(keys) - len(missing)
        for key in keys:
            self._kept[key] = answers[key]
            self._kept.move_to_end(key)
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return [answers[key].copy() for key in keys], self._made_by

    def train_step(self, batch: Sequence[Example]) -> TrainStats:
        return self.prior.train_step(batch)

    def loss(self, batch: Sequence[Example]) -> float:
        return self.prior.loss(batch)

    def state(self) -> dict[str, torch.Tensor]:
        return self.prior.state()

    def load(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """Put a snapshot in force; what was remembered goes even where the number stays, as its tensors may not."""
        self.prior.load(state, version)
        self._kept.clear()
        self._made_by = version

    def close(self) -> None:
        self._kept.clear()
        self.prior.close()

    def _drop_old(self) -> None:
        if self.prior.version != self._made_by:
            self._kept.clear()
            self._made_by = self.prior.version
