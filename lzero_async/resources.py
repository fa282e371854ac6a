"""Devices that roles share: whoever needs one waits for its turn, so that two roles alternate instead of colliding."""
from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence


class Turns:
    """
    Named resources and the roles that need them. Its lock protects the lines of waiting threads; a thread blocks in
    ``turn`` until it is first in the line of every resource of its role. Lines are served in order of arrival, so a
    role that comes back at once does not starve another; and as a thread joins all its lines in one step, no two wait
    for each other.
    """

    def __init__(self, needs: Mapping[str, Sequence[str]] | None = None) -> None:
        self._needs = {role: tuple(dict.fromkeys(names)) for role, names in (needs or {}).items()}
        self._moved = threading.Condition()
        self._lines: dict[str, deque[object]] = {name: deque() for names in self._needs.values() for name in names}

    @contextlib.contextmanager
    def turn(self, role: str) -> Iterator[None]:
        """Hold all that a role needs."""
        lines = [self._lines[name] for name in self._needs.get(role, ())]
        if not lines:
            yield
            return
        me = object()
        with self._moved:
            for line in lines:
                line.append(me)
        try:
            with self._moved:
                self._moved.wait_for(lambda: all(line[0] is me for line in lines))
            yield
        finally:
            with self._moved:
                for line in lines:
                    line.remove(me)
                self._moved.notify_all()


def shared_devices(devices: Mapping[str, str]) -> Turns:
    """Turns on every accelerator that two or more of these roles use; processors are shared by the system."""
    users: dict[str, list[str]] = {}
    for role, device in devices.items():
        users.setdefault(device, []).append(role)
    shared = {device for device, roles in users.items() if len(roles) > 1 and device != 'cpu'}
    return Turns({role: (device,) for role, device in devices.items() if device in shared})
