"""``async/metrics.jsonl``: one line per event, written as it happens."""
from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any, Protocol

from ..core import Batch, EvalResult, Taken
from ..sizing import BatchCosts, best_s

logger = logging.getLogger(__name__)

LEFT_OUT = {
    'actions_dropped': 'valid actions found no room in env.max_action_num and could not be taken; raise it',
    'prompts_cut': 'prompts were longer than the language model reads and lost their oldest tokens; shorten '
                   'env.history_length',
}


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
        self.left_out = Counter[str]()
        self._returns: deque[float] = deque(maxlen=20)
        self._progress = Progress()

    def event(self, event: str, **fields: Any) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.write(json.dumps({'event': event, 'time': time.time(), **fields}) + '\n')

    def batch(
            self, taken: Taken[Batch], *, updates: int, warmup: bool, env_steps: int, train_iters: int, busy_s: float,
            cpu_s: float, admitted: int
    ) -> None:
        """A batch was taken, trained and paid off."""
        batch = taken.payload
        self._relay(batch.scalars)
        if not warmup:
            self.costs.trained(taken.number, admitted, batch.cpu_s, cpu_s)
        self.event(
            'batch', env_steps=env_steps, train_iters=train_iters, number=taken.number, worker=batch.worker,
            version=batch.version, age=taken.age, lag=taken.lag, lag_bound=taken.lag_bound,
            batch_env_steps=batch.env_steps, segments=len(batch.segments), episode_returns=list(batch.episode_returns),
            updates=updates, warmup=warmup, collect_s=batch.duration_s, collected_at=batch.ended_at, learn_s=busy_s
        )
        self._count_left_out(batch)
        self._returns.extend(batch.episode_returns)
        if line := self._progress.line(env_steps, train_iters):
            mean = f'{sum(self._returns) / len(self._returns):.1f}' if self._returns else 'none yet'
            logger.info('%s, lag %d of at most %d, recent episode return %s', line, taken.lag, taken.lag_bound, mean)

    def _count_left_out(self, batch: Batch) -> None:
        """A worker's own warnings are in its log, where nobody looks while all seems well."""
        for name, count in batch.left_out.items():
            if count and not self.left_out[name]:
                logger.warning(
                    'batch %d: %d %s (said once; the log of collector %d says more, and left_out in the report counts '
                    'them)', batch.number, count, LEFT_OUT[name], batch.worker
                )
            self.left_out[name] += count

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
            best=result.best, stop=result.stop, duration_s=result.duration_s,
            **({} if result.prior_version is None else {'prior_version': result.prior_version})
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
    """
    CPU seconds per batch: C, L and E of the bound in ``docs/staleness.md``. The clock runs from the end of the first
    trained batch; what was collected before does not count, so that a short run does not flatter itself.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._ended = 0.0
        self._admitted_before = 0
        self._learnt = 0
        self._collected = 0
        self._learn_s = 0.0
        self._collect_s = 0.0
        self._eval_s = 0.0
        self._eval_since_s = 0.0  # of evaluations since the last trained batch, where the clock stands

    def trained(self, number: int, admitted: int, collect_s: float, learn_s: float) -> None:
        """A batch was trained; ``admitted`` batches had been admitted by then."""
        self._ended = time.monotonic()
        if self._began is None:
            self._began, self._admitted_before = self._ended, admitted
            return
        self._eval_s += self._eval_since_s
        self._eval_since_s = 0.0
        self._learnt += 1
        self._learn_s += learn_s
        if number >= self._admitted_before:
            self._collected += 1
            self._collect_s += collect_s

    def evaluated(self, eval_s: float) -> None:
        if self._began is not None:
            self._eval_since_s += eval_s

    def per_batch(self) -> dict[str, float]:
        return {
            'collect': self._collect_s / max(1, self._collected),
            'learn': self._learn_s / max(1, self._learnt),
            'eval': self._eval_s / max(1, self._learnt),
        }

    def attained(self, collectors: int, cores: int, async_eval: bool) -> float:
        """The best possible wall time per batch over the measured one; 0 where too little was trained to tell."""
        if self._began is None or not self._collected:
            return 0.0
        best = best_s(BatchCosts(*self.per_batch().values()), collectors, cores, async_eval)
        return best / ((self._ended - self._began) / self._learnt)
