"""An evaluation: take the exact snapshot, run it, make the result known."""
from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..core import MODEL, EvalRequest, EvalResult, Snapshot


class Runner(Protocol):
    """The part of a handle that is used here."""

    def wait_ready(self) -> None:
        ...

    def run(self, snapshots: Sequence[Snapshot], request: Any) -> Any:
        ...


class Kept(Protocol):
    """The part of a weight store that is used here."""

    def hold(self, version: int | None = None) -> int:
        ...

    def release(self, version: int) -> None:
        ...

    def block(self, version: int) -> Any:
        ...


class Evaluator:
    """
    Prepares evaluations in the learner's thread and runs them in whichever thread the coordinator chooses, one at a
    time. ``stop`` is set once a result says so; the learner looks at it between two batches. ``beside`` are the stores
    of other axes, of which the newest version is pinned together with the model's.
    """

    def __init__(
            self,
            handle: Runner,
            store: Kept,
            on_result: Callable[[EvalResult, Any], None],
            on_error: Callable[[BaseException], None] | None = None,
            beside: Mapping[str, Kept] | None = None,
    ) -> None:
        self._handle = handle
        self._store = store
        self._beside = beside or {}
        self._on_result = on_result
        self._on_error = on_error  # at once, as nobody may ask for the result for a long time
        self._ready = False
        self.stop = threading.Event()

    def prepare(self, request: EvalRequest, state: Any) -> tuple[Callable[[], EvalResult], Callable[[], None]]:
        """A job for a version that has just been published, and what to do where it is dropped."""
        stores = {MODEL: self._store, **self._beside}
        pinned = {axis: store.hold(request.train_iter if axis == MODEL else None) for axis, store in stores.items()}

        def release() -> None:
            for axis, version in pinned.items():
                stores[axis].release(version)

        def evaluate() -> EvalResult:
            try:
                if not self._ready:
                    self._handle.wait_ready()
                    self._ready = True
                snapshots = [Snapshot(axis, pinned[axis], store.block(pinned[axis])) for axis, store in stores.items()]
                result: EvalResult = self._handle.run(snapshots, request)
                self._on_result(result, state)
            except BaseException as error:
                if self._on_error is not None:
                    self._on_error(error)
                raise
            finally:
                release()
            if result.stop:
                self.stop.set()
            return result

        return evaluate, release
