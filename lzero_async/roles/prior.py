"""The language model's trainer as the driver sees it: a second learner, on a gate of its own."""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch

from ..core import PRIOR, Batch, Closed, Taken
from ..gate import Gate
from ..priorzero.messages import Assessment, AssessRequest, StateRequest, Trained, TrainRequest
from ..resources import Turns
from ..telemetry.recorder import Recorder
from ..transport.weights import WeightStore
from .collector import Axis
from .evaluator import Runner

logger = logging.getLogger(__name__)


class PriorRole:
    """
    Overview:
        Takes the records of every batch, has them trained, publishes the language model, pays. All of it happens in one
        thread, but that anyone may ``stop``.
    Arguments:
        - handle (:obj:`Runner`): the trainer, not yet started.
        - gate (:obj:`Gate`): of the language model's axis.
        - budget (:obj:`Callable[[int], Fraction]`): updates that so many records pay for.
        - world (:obj:`Gate`): of the world model's axis; it is told when the trainer is at work.
        - recorder (:obj:`Recorder`): where events go.
        - turns (:obj:`Turns`): devices shared with the learner.
        - held_out (:obj:`int`): states at most that are looked at when the run ends.
        - prefix (:obj:`Optional[str]`): of shared memory's names; None where no worker is in another process.
    """

    def __init__(
            self, handle: Runner, gate: Gate[Any], budget: Callable[[int], Fraction], world: Gate[Any],
            recorder: Recorder, turns: Turns, held_out: int = 0, prefix: str | None = None
    ) -> None:
        self.handle = handle
        self.gate = gate
        self.store = WeightStore(None, gate.versions_in_use, f'{prefix}p' if prefix else None)
        self.opened = threading.Event()  # set once the first snapshot is published, or the run has stopped
        self.updates = 0
        self.records = 0
        self.assessment: Assessment | None = None
        self._budget = budget
        self._world = world
        self._recorder = recorder
        self._turns = turns
        self._held_out = held_out
        self._hurried = threading.Event()
        self._last: Trained | None = None

    @property
    def axis(self) -> Axis:
        return Axis(PRIOR, self.gate, self.store, share=_records_of, opened=self.opened)

    def run(self) -> None:
        """Until the gate closes; then a look at held-out states, unless there is no time for it."""
        self.open()
        try:
            while True:
                self.learn(self.gate.take())
        except Closed:
            self.conclude()

    def open(self) -> None:
        """Publish the model as it was made."""
        self.handle.wait_ready()
        self._publish(self.handle.run([], StateRequest()))
        self.opened.set()

    def learn(self, taken: Taken[Any]) -> None:
        """Everything that one batch's records ask for."""
        updates = self.gate.grant(self._budget(len(taken.payload)))
        try:
            with self._turns.turn('prior'), self._world.busy('prior'):
                trained: Trained = self.handle.run([], TrainRequest(taken.payload, updates))
        except BaseException as error:
            self.gate.fail_training(taken.number, 0, str(error).partition('\n')[0])
            raise
        self.updates += trained.updates
        self.records += len(taken.payload)
        self._last = trained
        if trained.updates:
            self._publish(trained.weights)
        self.gate.pay(
            taken.number, trained.updates, rest=updates - trained.updates, train_iter=self.updates,
            version=self.updates
        )
        self._recorder.event(
            'prior', number=taken.number, version=self.updates, updates=trained.updates, losses=list(trained.losses),
            age=taken.age, lag=taken.lag, lag_bound=taken.lag_bound, records=len(taken.payload), store=trained.store,
            duration_s=trained.duration_s, cpu_s=trained.cpu_s
        )

    def _publish(self, weights: Any) -> None:
        self.store.publish(self.updates, {name: torch.from_numpy(array) for name, array in weights.items()})

    def conclude(self) -> None:
        """How well the model now foretells search, and how well it did at first."""
        if self._held_out and self.updates and not self._hurried.is_set():
            self.assessment = self.handle.run([], AssessRequest(self._held_out))
            logger.info(
                'cross-entropy of search under the prior on %d held-out records: %.4g, at first %.4g',
                self.assessment.records, self.assessment.after, self.assessment.before
            )

    def stop(self, hurried: bool) -> None:
        """Make ``run`` end."""
        if hurried:
            self._hurried.set()
        self.gate.stop()
        self.opened.set()

    def report(self) -> dict[str, Any]:
        """What happened on this axis, in numbers."""
        numbers = self.gate.get_statistics()
        assessed = self.assessment
        return {
            'llm_updates': self.updates,
            'llm_records': self.records,
            'llm_store': dict(self._last.store) if self._last else {},
            'llm_max_lag': numbers['max_lag_updates'],
            'llm_lag_bound': numbers['lag_bound_updates'],
            'llm_held_out': vars(assessed) if assessed else None,
            'llm': numbers,
        }


def _records_of(batch: Batch) -> Any:
    return batch.records
