"""A worker in this process: its role's thread does the work itself."""
from __future__ import annotations

import traceback
from typing import Any

import torch

from ..core import Cancelled, WorkerError, WorkerSpec
from ..transport.memory import Block
from .base import make_worker


class ThreadHandle:
    """Nothing can end a thread from outside, so ``kill`` only asks, and a hang is not noticed here."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.name = spec.name
        self.busy = False
        self._spec = spec
        self._worker: Any = None
        self._version: int | None = None

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

    def run(self, version: int, weights: Block, request: Any) -> Any:
        torch.set_num_threads(self._spec.threads)  # of the calling thread, that is the role's
        try:
            if version != self._version:
                self._worker.load(version, weights.view)
                self._version = version
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
