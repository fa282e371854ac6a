"""
Messages between the driver and a process worker.

Small ones go through the pipe as they are. Where the arrays of a message exceed a megabyte they travel in one block of
shared memory beside it (pickle protocol 5, out of band): one copy in, one copy out. The copy out is deliberate: the
replay buffer would otherwise live in shared memory, which containers limit to 64 MB.
"""
from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from typing import Any

from . import memory

LARGE = 1 << 20  # bytes of arrays from which shared memory pays
ALIGNMENT = 64


@dataclass(frozen=True)
class _Parcel:
    """A pickle and its buffers: here, or in a shared block."""
    pickled: bytes
    inline: Sequence[bytearray] = ()
    block: str | None = None
    sizes: Sequence[int] = ()


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Where each buffer begins in the block, and behind the last of them the block's size."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return offsets


def send(connection: Connection, message: Any, block_name: str) -> None:
    """Send a message; ``block_name`` is the name of the shared block in case it needs one."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    sizes = [view.nbytes for view in views]
    offsets = _offsets(sizes)
    free = memory.free_shared_memory()
    if sum(sizes) < LARGE or free is not None and offsets[-1] > free:
        parcel = _Parcel(pickled, inline=[bytearray(view) for view in views])
    else:
        block = memory.create(block_name, offsets[-1])
        for view, offset in zip(views, offsets, strict=False):
            memory.contents(block)[offset:offset + view.nbytes] = view
        block.close()
        parcel = _Parcel(pickled, block=block_name, sizes=sizes)
    try:
        connection.send_bytes(pickle.dumps(parcel, protocol=5))
    except BaseException:
        if parcel.block is not None:
            memory.remove(parcel.block)  # nobody else will
        raise


def receive(connection: Connection) -> Any:
    """Receive a message; a shared block that came with it is gone afterwards."""
    parcel: _Parcel = pickle.loads(connection.recv_bytes())
    if parcel.block is None:
        return pickle.loads(parcel.pickled, buffers=parcel.inline)
    block = shared_memory.SharedMemory(parcel.block)
    private = memoryview(bytearray(memory.contents(block)))
    block.close()
    block.unlink()
    offsets = _offsets(parcel.sizes)
    return pickle.loads(
        parcel.pickled,
        buffers=[private[offset:offset + size] for offset, size in zip(offsets, parcel.sizes, strict=False)]
    )
