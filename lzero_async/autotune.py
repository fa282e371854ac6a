"""
The degree that suits what was measured (``off_policy_degree=-1``).

One decision per window of paid batches.  A higher degree helps only if both sides wait: the learner for data *and* the
collectors for the gate; then one batch more in flight lets both go on.  If collectors never wait for the gate the
degree does not bind, and a lower one is free of cost and fresher.  Trouble (a NaN, a falling evaluation) halves it.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

WAITS = 0.05  # share of the time above which a side counts as waiting
NEVER = 0.001  # share of the time below which it counts as never waiting
OVERLAPS = 0.05  # share of the shorter side's busy time below which nothing overlaps


@dataclass(frozen=True)
class Window:
    """What happened since the last decision."""
    wall_s: float
    learner_wait_s: float  # for data
    collector_wait_s: float  # for the gate, all collectors together
    learner_busy_s: float
    collector_busy_s: float  # all collectors together
    overlap_s: float


class Autotuner:
    """Starts at ``num_collectors + 1``, moves by one, never beyond ``cap``."""

    def __init__(self, num_collectors: int = 1, cap: int | None = None) -> None:
        self.num_collectors = num_collectors
        self.cap = cap if cap is not None else max(8, 2 * num_collectors)
        self.degree = min(num_collectors + 1, self.cap)
        self.window_batches = max(8, 4 * num_collectors)
        self._settled = False  # nothing can overlap: 1 is the answer
        self._idle_windows = 0
        self._returns: list[float] = []

    def observe(self, window: Window) -> str | None:
        """The reason for a change of degree, or None where it stays."""
        if self._settled or window.wall_s <= 0:
            return None
        shorter = min(window.learner_busy_s, window.collector_busy_s)
        if self.degree > 1 and shorter > WAITS * window.wall_s and window.overlap_s < OVERLAPS * shorter:
            self._settled = True
            self.degree = 1
            return 'nothing overlaps here: collecting and learning take turns, so a higher degree buys nothing'
        learner = window.learner_wait_s / window.wall_s
        collectors = window.collector_wait_s / window.wall_s / self.num_collectors
        if learner > WAITS and collectors > WAITS:
            self._idle_windows = 0
            if self.degree < self.cap:
                self.degree += 1
                waits = f'the learner waited for data {learner:.0%}, collectors for the gate {collectors:.0%}'
                return f'{waits} of the time'
            return None
        self._idle_windows = self._idle_windows + 1 if collectors < NEVER else 0
        if self._idle_windows >= 2 and self.degree > 1:
            self._idle_windows = 0
            self.degree -= 1
            return 'collectors never waited for the gate: a lower degree costs nothing and is fresher'
        return None

    def trouble(self, what: str) -> str | None:
        """Halve the degree; the reason, or None where it was 1 already."""
        if self.degree <= 1:
            return None
        self.degree = max(1, self.degree // 2)
        return what

    def evaluated(self, mean_return: float) -> str | None:
        """Note an evaluation; halve the degree where it is NaN, or lost half of the range and a fifth of the best."""
        if not isfinite(mean_return):
            return self.trouble(f'the evaluation came out as {mean_return}')
        self._returns.append(mean_return)
        if len(self._returns) < 3 or not _has_fallen(self._returns):
            return None
        reason = self.trouble(f'the evaluation fell to {mean_return:.4g} from a best of {max(self._returns):.4g}')
        self._returns = [mean_return]
        return reason


def _has_fallen(returns: Sequence[float]) -> bool:
    best, worst = max(returns[:-1]), min(returns[:-1])
    return returns[-1] < best - max(0.5 * (best - worst), 0.2 * abs(best))
