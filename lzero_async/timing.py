"""Who was busy, who waited for what, and for how long two roles were busy at once. The gate's lock protects it."""
from __future__ import annotations

from collections import Counter

from .ledger import Sample

ROLES = ('collect', 'train', 'eval', 'prior')


class RoleTimes:
    """Busy and waiting time of one role."""

    def __init__(self) -> None:
        self.busy = Sample()  # seconds of each job
        self.gate = Sample()  # seconds of each wait for permission
        self.data = Sample()  # seconds of each wait for data to come or to go

    def summary(self) -> dict[str, object]:
        return {
            'count': self.busy.count,
            'busy_s': self.busy.total,
            'wait_s': self.gate.total + self.data.total,
            'wait_gate_s': self.gate.total,
            'wait_data_s': self.data.total,
            'busy': self.busy.summary(),
            'wait_gate': self.gate.summary(),
            'wait_data': self.data.summary(),
        }


class Timing:
    """The times of all roles, and the time in which at least two different ones were busy."""

    def __init__(self) -> None:
        self._busy = Counter[str]()
        self._since = 0.0
        self.restart()

    def restart(self) -> None:
        """Count anew; who is busy stays so."""
        self.roles = {role: RoleTimes() for role in ROLES}
        self.overlap_s = 0.0

    def enter(self, role: str, now: float) -> None:
        self._advance(now)
        self._busy[role] += 1

    def leave(self, role: str, now: float, started: float) -> None:
        self._advance(now)
        self._busy[role] -= 1
        self.roles[role].busy.add(now - started)

    def _advance(self, now: float) -> None:
        if sum(1 for count in self._busy.values() if count) >= 2:
            self.overlap_s += now - self._since
        self._since = now

    def summary(self) -> dict[str, dict[str, object]]:
        return {role: times.summary() for role, times in self.roles.items()}
