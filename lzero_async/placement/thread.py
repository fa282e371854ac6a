"""A worker in this process: its role's thread does the work itself."""
from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import torch

from ..core import Cancelled, Snapshot, WorkerError, WorkerSpec
from .base import make_worker


class ThreadHandle:
    """Nothing can end a thread from outside, so ``kill`` only asks, and a hang is not noticed here."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.name = spec.name
        self.busy = False
        self._spec = spec
        self._worker: Any = None
        self._versions: dict[str, int] = {}  # in force, by axis

    @property
    def sentinel(self) -> int | None:
        return None

    def death(self) -> Exception:
        return WorkerError(self.name, 'a thread does not die by itself')

    def start(self) -> None:
        # In the caller's thread: environment managers fork, and forking beside busy threads is asking for trouble.
        try:
            self._worker = make_worker(self._spec, beat=lambda: None, own_process=False)
        except Exception as error:
            raise WorkerError(self.name, repr(error), traceback.format_exc()) from error

    def wait_ready(self) -> None:
        """It is."""

    def run(self, snapshots: Sequence[Snapshot], request: Any) -> Any:
        torch.set_num_threads(self._spec.threads)  # of the calling thread, that is the role's
        try:
            for snapshot in snapshots:
                if snapshot.version != self._versions.get(snapshot.axis):
                    self._worker.load(snapshot.axis, snapshot.version, snapshot.weights.view)
                    self._versions[snapshot.axis] = snapshot.version
            return self._worker.run(request)
        except Cancelled:
            raise
        except Exception as error:
            raise WorkerError(self.name, repr(error), traceback.format_exc()) from error

    def cancel(self) -> None:
        if self._worker is not None:
            self._worker.cancel()

    def kill(self) -> None:
        self.cancel()

    def dismiss(self) -> None:
        """There is nothing but ``close``."""

    def close(self, timeout_s: float) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
