"""What every placement offers to a role's thread."""
from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from ..core import Snapshot, WorkerSpec

Beat = Callable[[], None]


class Handle(Protocol):
    """A worker, wherever it lives. ``run`` is called by one thread at a time, ``cancel`` and ``kill`` by any."""

    name: str
    busy: bool  # a thread is in ``wait_ready`` or ``run``, and will tell of a death by itself

    @property
    def sentinel(self) -> int | None:
        """Becomes ready, for ``multiprocessing.connection.wait``, when the worker has died; None where it cannot."""

    def death(self) -> Exception:
        """What a worker died of."""

    def start(self) -> None:
        """Begin to make the worker."""

    def wait_ready(self) -> None:
        """Block until the worker is made; raises where that failed."""

    def run(self, snapshots: Sequence[Snapshot], request: Any) -> Any:
        """Put snapshots in force unless they are already, then do a job; blocks for as long as that takes."""

    def cancel(self) -> None:
        """Make the running job, and every later one, raise ``Cancelled`` soon."""

    def kill(self) -> None:
        """End the worker at once, without asking it."""

    def dismiss(self) -> None:
        """Ask the worker to end; called once no job runs."""

    def close(self, timeout_s: float) -> None:
        """Wait for the worker's end, and after ``timeout_s`` force it, and that of all that it started."""


def make_worker(spec: WorkerSpec, beat: Beat, own_process: bool) -> Any:
    """
    Call the factory that a spec names. ``beat`` is for the worker to call while it is busy; in a process of its own it
    may seed global random states.
    """
    module, function = spec.factory.split(':')
    return getattr(importlib.import_module(module), function)(beat=beat, own_process=own_process, **spec.arguments)


@contextlib.contextmanager
def children_ignore_interrupts() -> Iterator[None]:
    """A Ctrl-C reaches the whole foreground group; what is forked or spawned in here leaves it to the driver."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
