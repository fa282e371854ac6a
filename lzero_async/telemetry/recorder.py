"""``async/metrics.jsonl``: one line per event, written as it happens."""
from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Protocol

from ..core import Batch, EvalResult, Taken

logger = logging.getLogger(__name__)


class ScalarWriter(Protocol):
    """The part of a TensorBoard writer that is used here."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        ...


class Recorder:
    """
    Writes events and relays workers' scalars to the run's one TensorBoard stream. Its lock protects the file and the
    sums; it is held for one line at a time.
    """

    def __init__(self, directory: Path, scalars: ScalarWriter | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = open(directory / 'metrics.jsonl', 'a', buffering=1, encoding='utf-8')
        self._scalars = scalars
        self.costs = Costs()
        self._returns: deque[float] = deque(maxlen=20)
        self._progress = Progress()

    def event(self, event: str, **fields: Any) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.write(json.dumps({'event': event, 'time': time.time(), **fields}) + '\n')

    def batch(
            self, taken: Taken[Batch], *, updates: int, warmup: bool, env_steps: int, train_iters: int, busy_s: float,
            cpu_s: float
    ) -> None:
        """A batch was taken, trained and paid off."""
        batch = taken.payload
        self._relay(batch.scalars)
        if not warmup:
            self.costs.trained(batch.cpu_s, cpu_s)
        self.event(
            'batch', env_steps=env_steps, train_iters=train_iters, number=taken.number, worker=batch.worker,
            version=batch.version, age=taken.age, lag=taken.lag, lag_bound=taken.lag_bound,
            batch_env_steps=batch.env_steps, segments=len(batch.segments), episode_returns=list(batch.episode_returns),
            updates=updates, warmup=warmup, collect_s=batch.duration_s, learn_s=busy_s
        )
        self._returns.extend(batch.episode_returns)
        if line := self._progress.line(env_steps, train_iters):
            mean = f'{sum(self._returns) / len(self._returns):.1f}' if self._returns else 'none yet'
            logger.info('%s, lag %d of at most %d, recent episode return %s', line, taken.lag, taken.lag_bound, mean)

    def publication(self, version: int, env_steps: int, size: int, duration_s: float) -> None:
        """A snapshot was published."""
        self.event(
            'publication', env_steps=env_steps, train_iters=version, version=version, bytes=size, duration_s=duration_s
        )

    def evaluation(self, result: EvalResult) -> None:
        """An evaluation came in."""
        self._relay(result.scalars)
        self.costs.evaluated(result.cpu_s)
        self.event(
            'evaluation', env_steps=result.env_steps, train_iters=result.train_iter, mean_return=result.mean_return,
            best=result.best, stop=result.stop, duration_s=result.duration_s
        )

    def _relay(self, scalars: Any) -> None:
        if self._scalars is not None:
            for tag, value, step in scalars:
                self._scalars.add_scalar(tag, value, step)

    def close(self) -> None:
        with self._lock:
            self._file.close()


class Progress:
    """A line now and then: where the run stands and how fast it goes."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s = every_s
        self._last = (time.monotonic(), 0, 0)

    def line(self, env_steps: int, train_iters: int) -> str | None:
        now, (then, steps, iters) = time.monotonic(), self._last
        if now - then < self._every_s:
            return None
        self._last = (now, env_steps, train_iters)
        per_s = (env_steps - steps) / (now - then), (train_iters - iters) / (now - then)
        return f'{env_steps} env steps ({per_s[0]:.0f}/s), {train_iters} updates ({per_s[1]:.0f}/s)'


class Costs:
    """CPU seconds per batch since the first update: C, L and E of the bound in ``docs/staleness.md``."""

    def __init__(self) -> None:
        self.batches = 0
        self.collect_s = 0.0
        self.learn_s = 0.0
        self.eval_s = 0.0
        self._began: float | None = None
        self._ended = 0.0

    def trained(self, collect_s: float, learn_s: float) -> None:
        now = time.monotonic()
        if self._began is None:  # the clock runs from the end of the first trained batch
            self._began = self._ended = now
            return
        self._ended = now
        self.batches += 1
        self.collect_s += collect_s
        self.learn_s += learn_s

    def evaluated(self, eval_s: float) -> None:
        if self._began is not None:
            self.eval_s += eval_s

    def per_batch(self) -> dict[str, float]:
        batches = max(1, self.batches)
        return {'collect': self.collect_s / batches, 'learn': self.learn_s / batches, 'eval': self.eval_s / batches}

    def attained(self, collectors: int, cores: int, async_eval: bool) -> float:
        """The best possible wall time per batch over the measured one; 0 where too little was trained to tell."""
        if not self.batches or self._began is None or self._ended <= self._began:
            return 0.0
        learn = self.learn_s + (0.0 if async_eval else self.eval_s)
        total = self.collect_s + self.learn_s + self.eval_s
        best = max(self.collect_s / collectors, learn, self.eval_s, total / cores)
        return best / (self._ended - self._began)
