"""The learner's loop: take a batch, do the updates it pays for, publish, pay, evaluate when due."""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ..coordinator import AsyncTrainingCoordinator
from ..core import Batch, EvalRequest, Limits, Taken, Trainer, Weights
from ..resources import Turns
from ..telemetry.recorder import Recorder
from .evaluator import Evaluator

logger = logging.getLogger(__name__)


class Snapshots(Protocol):
    """The part of a weight store that is used here."""

    @property
    def size(self) -> int:
        ...

    def publish(self, version: int, weights: Weights) -> bool:
        ...


class LearnerLoop:
    """Owns the run's counters. All of it happens in the learner's thread, but that anyone may set ``stopping``."""

    def __init__(
            self,
            trainer: Trainer,
            gate: AsyncTrainingCoordinator[Batch],
            next_batch: Callable[[], Taken[Batch]],
            store: Snapshots,
            evaluator: Evaluator | None,
            recorder: Recorder,
            limits: Limits,
            weight_sync_interval: int = 1,
            async_eval: bool = False,
            eval_at_start: bool = False,
            turns: Turns | None = None,
            after_batch: Callable[[], None] = lambda: None,
    ) -> None:
        self._trainer = trainer
        self._gate = gate
        self._next_batch = next_batch
        self._store = store
        self._evaluator = evaluator
        self._recorder = recorder
        self._limits = limits
        self._sync_interval = weight_sync_interval
        self._async_eval = async_eval
        self._eval_at_start = eval_at_start
        self._turns = turns or Turns()
        self._after_batch = after_batch
        self._version = trainer.train_iter
        self.env_steps = 0
        self.stopping = threading.Event()
        self.reason = ''  # why the loop ended

    def run(self) -> None:
        """Until a limit, a stop value or ``stopping``; ``Closed`` ends it too where the gate was shut first."""
        self._trainer.start()
        if self._eval_at_start and self._evaluator is not None:
            self._evaluate()
        while not self.reason:
            counts = self._learn(self._next_batch())
            self._after_batch()
            self.reason = self._reason_to_stop(counts)
            if not self.reason and self._evaluator is not None and self._trainer.eval_due():
                self._evaluate()
                self.reason = self._reason_to_stop(counts=False)
        logger.info('the run ends: %s', self.reason)
        self._evaluate_offline()

    def _learn(self, taken: Taken[Batch]) -> bool:
        """Everything that one batch asks for; whether the limits count at the boundary that follows."""
        batch, trainer = taken.payload, self._trainer
        started, cpu = time.monotonic(), time.thread_time()
        self.env_steps += batch.env_steps
        trainer.push(batch, self.env_steps)
        exact = trainer.budget(batch)
        updates = self._gate.grant(exact)
        trainer.begin_epoch(updates)
        done = 0
        try:
            while done < updates and not self.stopping.is_set():
                with self._turns.turn('learner'):
                    trainer.update()
                done += 1
        except BaseException as error:
            self._gate.fail_training(taken.number, done, repr(error))
            raise
        counts = trainer.end_epoch()
        if trouble := trainer.trouble():
            self._gate.report_trouble(trouble)
        if trainer.train_iter - self._version >= self._sync_interval:
            self._publish()
        self._gate.pay(
            taken.number, done, rest=updates - done, train_iter=trainer.train_iter, env_steps=self.env_steps,
            version=self._version, warmup=trainer.warming_up()
        )
        self._recorder.batch(
            taken, updates=done, warmup=exact is None, env_steps=self.env_steps, train_iters=trainer.train_iter,
            busy_s=time.monotonic() - started, cpu_s=time.thread_time() - cpu, admitted=self._gate.admitted
        )
        return counts

    def _publish(self) -> None:
        started = time.monotonic()
        self._version = self._trainer.train_iter
        self._store.publish(self._version, self._trainer.weights())
        logger.debug('version %d published', self._version)
        self._recorder.publication(
            self._version, self.env_steps, self._store.size, time.monotonic() - started
        )

    def _evaluate(self) -> None:
        assert self._evaluator is not None
        version = self._trainer.train_iter
        self._store.publish(version, self._trainer.weights())  # the exact weights, also between two publications
        state = self._trainer.checkpoint_state() if self._async_eval else None
        self._gate.run_eval(*self._evaluator.prepare(EvalRequest(version, self.env_steps), state))

    def _evaluate_offline(self) -> None:
        if self._evaluator is None:
            return
        for request, weights, state in self._trainer.offline_evaluations():
            if self.stopping.is_set():
                return
            self._store.publish(request.train_iter, weights)
            evaluate, _ = self._evaluator.prepare(request, state)
            evaluate()

    def _reason_to_stop(self, counts: bool) -> str:
        if self.stopping.is_set():
            return 'told to stop'
        if self._evaluator is not None and self._evaluator.stop.is_set():
            return 'the stop value was reached'
        if counts and self.env_steps >= self._limits.max_env_step:
            return f'max_env_step={self._limits.max_env_step} was reached'
        if counts and self._trainer.train_iter >= self._limits.max_train_iter:
            return f'max_train_iter={self._limits.max_train_iter} was reached'
        return ''
