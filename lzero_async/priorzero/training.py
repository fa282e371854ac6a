"""The language model's trainer, wherever it lives: its own model, its own optimizer, the store of records."""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core import Cancelled
from .config import PriorTraining
from .make import make_prior
from .messages import Assessment, AssessRequest, StateRequest, Trained, TrainRequest
from .prior import Example, LLMPrior
from .records import ExperienceStore, Record

logger = logging.getLogger(__name__)


class PriorTrainer:
    """A worker: it answers requests, one at a time, and stops between two updates when told to."""

    def __init__(
            self, prior: LLMPrior, settings: PriorTraining, seed: int, own_process: bool,
            beat: Callable[[], None]
    ) -> None:
        self._prior = prior
        self._settings = settings
        self._store = ExperienceStore(settings.store_size, seed)
        self._initial = {name: tensor.clone() for name, tensor in prior.state().items()}
        self._clock = time.process_time if own_process else time.thread_time
        self._beat = beat
        self._cancelled = threading.Event()

    def load(self, axis: str, version: int, weights: memoryview) -> None:
        raise AssertionError('the trainer makes snapshots, it does not take any')

    def run(self, request: TrainRequest | StateRequest | AssessRequest) -> Any:
        if isinstance(request, TrainRequest):
            return self._train(request)
        return self._state() if isinstance(request, StateRequest) else self._assess(request.records)

    def _state(self) -> dict[str, np.ndarray]:
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._prior.state().items()}

    def _train(self, request: TrainRequest) -> Trained:
        started, cpu = time.monotonic(), self._clock()
        self._store.push(request.records)
        losses = []
        for _ in range(request.updates if self._store.trainable else 0):
            if self._cancelled.is_set():
                break  # what was done counts, and the rest is given back
            self._beat()
            batch = self._store.sample(self._settings.batch_size)
            losses.append(self._prior.train_step([example_of(record) for record in batch]).loss)
        return Trained(
            len(losses), losses, self._store.counts(), time.monotonic() - started, self._clock() - cpu,
            self._state() if losses else {}
        )

    def _assess(self, records: int) -> Assessment:
        examples = [example_of(record) for record in self._store.held_out(records)]
        if not examples:
            return Assessment(0, float('nan'), float('nan'))
        now = {name: tensor.clone() for name, tensor in self._prior.state().items()}
        version = self._prior.version
        after = self._mean_loss(examples)
        self._prior.load(self._initial, version)
        try:
            before = self._mean_loss(examples)
        finally:
            self._prior.load(now, version)
        return Assessment(len(examples), before, after)

    def _mean_loss(self, examples: Sequence[Example]) -> float:
        losses = []
        for example in examples:
            self._pause()
            losses.append(self._prior.loss([example]))
        return float(np.mean(losses))

    def _pause(self) -> None:
        self._beat()
        if self._cancelled.is_set():
            raise Cancelled

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        self._prior.close()


def example_of(record: Record) -> Example:
    """What is distilled: the share of visits that search gave to each action."""
    return Example(record.context, record.actions, tuple(record.visits.tolist()))


def make_prior_trainer(
        *, llm: Mapping[str, Any], settings: PriorTraining, device: str, seed: int, own_process: bool,
        beat: Callable[[], None]
) -> PriorTrainer:
    """A trainer with a model of its own; called where it will live."""
    return PriorTrainer(make_prior(llm, device), settings, seed, own_process, beat)
