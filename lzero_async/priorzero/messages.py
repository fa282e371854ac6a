"""What the driver and the language model's trainer say to each other."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .records import Record


@dataclass(frozen=True)
class TrainRequest:
    """What the trainer is asked to do with a batch's records."""
    records: Sequence[Record]
    updates: int


@dataclass(frozen=True)
class StateRequest:
    """Tell the trainable tensors."""


@dataclass(frozen=True)
class AssessRequest:
    """Compare the model as it is with the one that the run began with, on states it was never trained on."""
    records: int  # at most


@dataclass(frozen=True)
class Trained:
    """What came of a request."""
    updates: int  # done
    losses: Sequence[float]  # one per update: cross-entropy of search under the prior
    store: Mapping[str, int]  # the store's books
    duration_s: float
    cpu_s: float
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)  # after the last update; empty without one


@dataclass(frozen=True)
class Assessment:
    """Cross-entropy of search under the prior on held-out states."""
    records: int
    before: float
    after: float
