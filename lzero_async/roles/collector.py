"""The collector's loop: be admitted, collect with the snapshots that were seen at admission, deliver."""
from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core import AsyncTrainingError, Batch, Cancelled, Closed, CollectRequest, Snapshot, Ticket
from ..gate import Gate
from ..placement import Handle
from ..transport.weights import WeightStore


@dataclass(frozen=True)
class Axis:
    """A model that learns from batches: the gate that bounds its staleness, and the store that keeps its snapshots."""
    name: str
    gate: Gate[Any]
    store: WeightStore
    share: Callable[[Batch], Any]  # what its learner is given of a batch
    opened: threading.Event  # its first snapshot is published


def collector_loop(
        worker: int,
        handle: Handle,
        axes: Sequence[Axis],
        request_for: Callable[[Mapping[str, Ticket]], CollectRequest],
) -> None:
    """
    Runs until a gate closes or the worker fails; a batch that fails is accounted for before the error goes on.
    Everyone asks the gates in the same order, so nobody holds what another waits for.
    """
    handle.wait_ready()
    for axis in axes:
        axis.opened.wait()
    while True:
        tickets: dict[str, Ticket] = {}
        try:
            for axis in axes:
                tickets[axis.name] = axis.gate.admit(worker)
            request = request_for(tickets)
            batch: Batch = handle.run([_snapshot(axis, tickets[axis.name]) for axis in axes], request)
            if (batch.number, batch.version) != (request.number, request.version):
                raise AsyncTrainingError(
                    f'{handle.name} answered with batch {batch.number} of version {batch.version}, '
                    f'asked for {request.number} of {request.version}'
                )
        except Cancelled:
            return
        except Closed:
            raise  # what was admitted is found by the gates' close
        except BaseException as error:
            for axis in axes:
                if axis.name in tickets:
                    axis.gate.fail(tickets[axis.name].number, str(error).partition('\n')[0])
            raise
        for axis in axes:
            axis.gate.deliver(tickets[axis.name].number, axis.share(batch))


def _snapshot(axis: Axis, ticket: Ticket) -> Snapshot:
    version = ticket.boundary.version
    return Snapshot(axis.name, version, axis.store.block(version))
