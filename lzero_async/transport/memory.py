"""
Blocks of memory that the driver owns: private ones for threads, shared ones for processes.

Every shared block has a name that begins with the run's own random prefix, so that its owner can remove all of them,
also those that a worker made and died over. ``multiprocessing`` makes them with mode 0600.
"""
from __future__ import annotations

import contextlib
import os
import secrets
from multiprocessing import shared_memory
from pathlib import Path

from ..core import AsyncTrainingError

SHM_DIRECTORY = Path('/dev/shm')


def new_prefix() -> str:
    """A name for this run's blocks that nobody can guess."""
    return f'lza{secrets.token_hex(8)}'


def free_shared_memory() -> int | None:
    """Bytes that can still be shared, or None where the system does not say."""
    try:
        status = os.statvfs(SHM_DIRECTORY)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def create(name: str, size: int) -> shared_memory.SharedMemory:
    """A new shared block; refused where there is no room, as writing to it would otherwise kill the process."""
    free = free_shared_memory()
    if free is not None and size > free:
        raise AsyncTrainingError(
            f'{size} bytes of shared memory are needed and {free} are free in {SHM_DIRECTORY}; enlarge it '
            "(docker run --shm-size) or use placement='thread'"
        )
    return shared_memory.SharedMemory(name, create=True, size=max(1, size))


def contents(block: shared_memory.SharedMemory) -> memoryview:
    """The bytes of an open block."""
    assert block.buf is not None
    return block.buf


def remove(name: str) -> bool:
    """Remove a block by name; False where there is none."""
    try:
        block = shared_memory.SharedMemory(name)
    except FileNotFoundError:
        return False
    block.close()
    block.unlink()
    return True


class Block:
    """Memory of a fixed size, shared between processes where it has a name."""

    def __init__(self, size: int, name: str | None = None) -> None:
        self.name = name
        self._shared = create(name, size) if name else None
        self.view = contents(self._shared)[:size] if self._shared else memoryview(bytearray(size))

    def close(self) -> None:
        """Remove the name; whoever still reads or writes keeps the memory until it has done."""
        if self._shared is not None:
            self._shared.unlink()
        with contextlib.suppress(BufferError):
            self.view.release()
            if self._shared is not None:
                self._shared.close()
        self._shared = None
