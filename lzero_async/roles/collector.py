"""The collector's loop: be admitted, collect with the snapshot that was seen at admission, deliver."""
from __future__ import annotations

from collections.abc import Callable

from ..core import AsyncTrainingError, Batch, Cancelled, CollectRequest, Ticket
from ..gate import Gate
from ..placement import Handle
from ..transport.weights import WeightStore


def collector_loop(
        worker: int,
        handle: Handle,
        gate: Gate[Batch],
        store: WeightStore,
        request_for: Callable[[Ticket], CollectRequest],
) -> None:
    """Runs until the gate closes or the worker fails; a batch that fails is accounted for before the error goes on."""
    handle.wait_ready()
    while True:
        ticket = gate.admit(worker)
        try:
            request = request_for(ticket)
            batch: Batch = handle.run(request.version, store.block(request.version), request)
            if (batch.number, batch.version) != (request.number, request.version):
                raise AsyncTrainingError(
                    f'{handle.name} answered with batch {batch.number} of version {batch.version}, '
                    f'asked for {request.number} of {request.version}'
                )
        except Cancelled:
            return
        except BaseException as error:
            gate.fail(ticket.number, str(error).partition('\n')[0])
            raise
        gate.deliver(ticket.number, batch)
