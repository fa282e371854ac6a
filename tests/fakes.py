"""A trainer and workers without LightZero: settable durations and failures, so that the engine is tested in seconds."""
from __future__ import annotations

import os
import signal
import threading
import time
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from lzero_async.core import PRIOR, Batch, Boundary, Cancelled, CollectRequest, EvalRequest, EvalResult
from lzero_async.priorzero.messages import Assessment, AssessRequest, StateRequest, Trained


class FakeTrainer:
    """Counts; its one weight is the number of updates done, so that a snapshot tells its own version."""

    def __init__(self, ratio: Fraction = Fraction(1, 2), warmup_batches: int = 0, eval_freq: int = 10**9,
                 update_s: float = 0.0, fail_at: int | None = None) -> None:
        self.ratio = ratio
        self.warmup_batches = warmup_batches
        self.eval_freq = eval_freq
        self.update_s = update_s
        self.fail_at = fail_at
        self.weight = torch.zeros(3)
        self.pushed: list[Batch] = []
        self.finished = 0
        self.best: list[tuple[int, Any]] = []
        self.thread: int | None = None
        self._last_eval = 0
        self._train_iter = 0

    @property
    def train_iter(self) -> int:
        return self._train_iter

    def start(self) -> None:
        self.thread = threading.get_ident()

    def push(self, batch: Batch, env_steps: int) -> None:
        assert threading.get_ident() == self.thread, 'the trainer has one owner'
        self.pushed.append(batch)

    def budget(self, batch: Batch) -> Fraction | None:
        return None if len(self.pushed) <= self.warmup_batches else self.ratio * batch.env_steps

    def begin_epoch(self, updates: int) -> None:
        assert threading.get_ident() == self.thread

    def update(self) -> None:
        assert threading.get_ident() == self.thread
        if self._train_iter == self.fail_at:
            raise ArithmeticError('the update exploded')
        time.sleep(self.update_s)
        self._train_iter += 1
        self.weight.fill_(self._train_iter)

    def end_epoch(self) -> bool:
        return True

    def trouble(self) -> str | None:
        return None

    def warming_up(self) -> bool:
        return len(self.pushed) < self.warmup_batches

    def collect_settings(self, boundary: Boundary) -> tuple[float, float]:
        return 1.0, 1.0 / (1 + boundary.env_steps)

    def eval_due(self) -> bool:
        if self._train_iter - self._last_eval < self.eval_freq:
            return False
        self._last_eval = self._train_iter
        return True

    def weights(self) -> dict[str, torch.Tensor]:
        return {'weight': self.weight}

    def checkpoint_state(self) -> Any:
        return self._train_iter

    def evaluated(self, result: EvalResult, state: Any) -> None:
        if result.best:
            self.best.append((result.train_iter, state))

    def offline_evaluations(self) -> list[Any]:
        return []

    def finish(self) -> None:
        self.finished += 1


def _seen(weights: memoryview) -> int:
    return int(torch.frombuffer(weights, dtype=torch.float32, count=3).unique().item())


class FakeWorker:
    """Takes ``duration_s`` per job and does at job number ``at`` what ``how`` says."""

    def __init__(self, index: int, duration_s: float, how: str | None, at: int, beat: Any, own_process: bool) -> None:
        self.index = index
        self.duration_s = duration_s
        self.how, self.at = how, at
        self.beat = beat
        self.jobs = 0
        self.version = -1
        self.prior_version: int | None = None
        self.cancelled = threading.Event()
        if how == 'init':
            raise OSError('no environment today')
        if how == 'slow start':
            signal.pause()

    def load(self, axis: str, version: int, weights: memoryview) -> None:
        assert _seen(weights) == version, f'snapshot {version} of {axis} holds {_seen(weights)}'
        if axis == PRIOR:
            self.prior_version = version
        else:
            self.version = version

    def run(self, request: Any) -> Any:
        self.jobs += 1
        if self.jobs == self.at:
            self._misbehave()
        if self.cancelled.wait(self.duration_s):
            raise Cancelled
        if isinstance(request, EvalRequest):
            assert request.train_iter == self.version
            return EvalResult(request.train_iter, request.env_steps, stop=self.how == 'stop' and self.jobs >= self.at,
                              best=True, mean_return=float(self.jobs), cpu_s=0.01, prior_version=self.prior_version)
        assert isinstance(request, CollectRequest) and request.version == self.version
        assert self.prior_version is None or request.prior_version == self.prior_version
        records = [] if self.prior_version is None else [(request.number, step) for step in range(10)]
        return Batch(request.number, self.index, self.version, segments=[b'x' * 100], metas=[{}], env_steps=10,
                     episode_returns=[1.0], cpu_s=0.01, records=records)

    def _misbehave(self) -> None:
        if self.how == 'raise':
            raise ValueError('the environment broke')
        if self.how == 'exit':
            os._exit(7)
        if self.how == 'kill':
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == 'hang':
            while True:
                signal.pause()

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        """Nothing to release."""


def make_worker(*, beat: Any, own_process: bool, index: int = 0, duration_s: float = 0.0, how: str | None = None,
                at: int = -1) -> FakeWorker:
    return FakeWorker(index, duration_s, how, at, beat, own_process)


class FakePriorTrainer:
    """Stands in for a language model's trainer: its one weight is the number of updates done."""

    def __init__(self, duration_s: float, how: str | None, at: int) -> None:
        self.duration_s, self.how, self.at = duration_s, how, at
        self.updates = self.received = self.jobs = 0
        self.cancelled = threading.Event()

    def load(self, axis: str, version: int, weights: memoryview) -> None:
        raise AssertionError('nobody sends it snapshots')

    def run(self, request: Any) -> Any:
        if isinstance(request, StateRequest):
            return self._weights()
        if isinstance(request, AssessRequest):
            if self.cancelled.wait(self.duration_s):
                raise Cancelled
            return Assessment(request.records, 1.0, 0.5)
        self.jobs += 1
        if self.jobs == self.at and self.how == 'raise':
            raise ValueError('the language model broke')
        updates = 0 if self.cancelled.wait(self.duration_s) else request.updates
        self.received += len(request.records)
        self.updates += updates
        return Trained(updates, [1.0] * updates, {'received': self.received}, self.duration_s, 0.0,
                       self._weights() if updates else {})

    def _weights(self) -> dict[str, Any]:
        return {'weight': np.full(3, self.updates, dtype=np.float32)}

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        """Nothing to release."""


def make_prior_trainer(*, beat: Any, own_process: bool, duration_s: float = 0.0, how: str | None = None,
                       at: int = -1) -> FakePriorTrainer:
    return FakePriorTrainer(duration_s, how, at)
