"""
Degree 0: one thread, one policy object, upstream's own order of calls.

The learner's loop is the same as everywhere; here its next batch is collected on the spot, and a snapshot is nothing
but the one policy as it stands. Equal to upstream's serial entry bit for bit, but for defects that are mended: eviction
and reanalysis of the replay buffer, a warm-up that works, divisions by zero where there are fewer updates than
reanalyses, and an ``eval_offline`` that finds its checkpoints and leaves the learner's weights alone.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .config import AsyncConfig
from .core import MODEL, PRIOR, Batch, CollectWorker, EvalWorker, Limits, Snapshot, Taken, Trainer
from .gate import Gate
from .roles.evaluator import Evaluator, Runner
from .roles.prior import PriorRole
from .run import Run
from .telemetry.recorder import Recorder


class _NoStore:
    """There is one policy, so a version is what that policy holds; an older one is put into it until ``restore``."""

    size = 0

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._own: dict[str, torch.Tensor] | None = None

    def publish(self, version: int, weights: Mapping[str, torch.Tensor]) -> bool:
        self.restore()
        if version != self._trainer.train_iter:
            live = self._trainer.weights()
            self._own = {name: tensor.clone() for name, tensor in live.items()}
            self._put(weights)
        return False

    def restore(self) -> None:
        if self._own is not None:
            self._put(self._own)
            self._own = None

    @torch.no_grad()
    def _put(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in self._trainer.weights().items():
            tensor.copy_(weights[name])

    def hold(self, version: int | None = None) -> int:
        """Nothing moves while an evaluation runs."""
        return self._trainer.train_iter if version is None else version

    def release(self, version: int) -> None:
        """Nothing was held."""

    def block(self, version: int) -> None:
        """There are no bytes to load."""


class _InPlace:
    """A handle on a worker that shares the learner's policy and thread."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def wait_ready(self) -> None:
        """It is."""

    def run(self, snapshots: Sequence[Snapshot], request: Any) -> Any:
        return self._worker.run(request)


class SerialRun(Run):
    """
    Overview:
        A run of degree 0, in the caller's thread. The gate never has to wait here; it keeps the books.
    Arguments:
        - config (:obj:`AsyncConfig`): the settings.
        - trainer (:obj:`Trainer`): owner of learner and replay buffer.
        - collector (:obj:`CollectWorker`): on the trainer's own policy.
        - evaluator (:obj:`Optional[EvalWorker]`): likewise.
        - recorder (:obj:`Recorder`): where events go.
        - limits (:obj:`Limits`): when the run ends by itself.
        - prior_trainer (:obj:`Optional[Any]`): trains the language model that the collector asks, the very same one.
        - make_prior (:obj:`Optional[Callable]`): makes its role from a handle on it and this run's gate.
    """

    def __init__(
            self, config: AsyncConfig, trainer: Trainer, collector: CollectWorker, evaluator: EvalWorker | None,
            recorder: Recorder, limits: Limits, prior_trainer: Any = None,
            make_prior: Callable[[Runner, Gate[Any]], PriorRole] | None = None
    ) -> None:
        super().__init__(config, trainer, recorder, num_collectors=1)
        self._collector = collector
        self._eval_worker = evaluator
        self._store = _NoStore(trainer)
        evaluations = None
        if evaluator is not None:
            evaluations = Evaluator(_InPlace(evaluator), self._store, self.on_evaluation)
        if make_prior is not None:
            self.prior = make_prior(_InPlace(prior_trainer), self.gate)
        self._loop = self.make_learner(self._collect, self._store, evaluations, limits)

    def _collect(self) -> Taken[Batch]:
        gates: dict[str, Gate[Any]] = {MODEL: self.gate, **({PRIOR: self.prior.gate} if self.prior else {})}
        tickets = {axis: gate.admit() for axis, gate in gates.items()}
        try:
            batch = self._collector.run(self.request_for(tickets))
        except BaseException as error:
            for axis, gate in gates.items():
                gate.fail(tickets[axis].number, repr(error))
            raise
        self.gate.deliver(tickets[MODEL].number, batch)
        if self.prior is not None:
            self.prior.gate.deliver(tickets[PRIOR].number, batch.records)
        return self.gate.take()

    def after_batch(self) -> None:
        if self.prior is not None:
            self.prior.learn(self.prior.gate.take())

    def run(self) -> None:
        """Run to the end; raises what went wrong, a KeyboardInterrupt too."""
        started = time.monotonic()
        try:
            if self.prior is not None:
                self.prior.open()
            self._loop.run()
            self._store.restore()
            if self.prior is not None:
                self.prior.conclude()
            self.trainer.finish()
        finally:
            self.wall_s = time.monotonic() - started
            self.gate.close()
            if self.prior is not None:
                self.prior.gate.close()
                self.prior.store.close()
            self._collector.close()
            if self._eval_worker is not None:
                self._eval_worker.close()
