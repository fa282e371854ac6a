"""
Snapshots of the model's weights: one flat buffer each, numbered, immutable while anyone reads it.

A snapshot is written by the learner's thread and read by workers. Its buffer is reused once no running collect was
admitted with its version, none that comes can ask for it, and no evaluation holds it; so there are never more buffers
than running collects, versions still to be asked for, two evaluations and one to write into.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from ..core import AsyncTrainingError, Closed
from .memory import Block

ALIGNMENT = 64
COMPILED_PREFIX = '_orig_mod.'


@dataclass(frozen=True)
class Field:
    """Where one tensor stands in the flat buffer."""
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    count: int  # elements


@dataclass(frozen=True)
class Layout:
    """Where every tensor stands in the flat buffer."""
    fields: tuple[Field, ...]
    size: int  # bytes

    @staticmethod
    def of(weights: Mapping[str, torch.Tensor]) -> Layout:
        fields, offset = [], 0
        for name, tensor in weights.items():
            fields.append(Field(name, tensor.dtype, tuple(tensor.shape), offset, tensor.numel()))
            size = tensor.numel() * tensor.element_size()
            offset += -(-size // ALIGNMENT) * ALIGNMENT
        return Layout(tuple(fields), offset)

    def views(self, buffer: memoryview) -> dict[str, torch.Tensor]:
        """CPU tensors that share ``buffer``."""
        return {
            field.name: torch.frombuffer(buffer, dtype=field.dtype, count=field.count, offset=field.offset).view(
                field.shape
            ) if field.count else torch.empty(field.shape, dtype=field.dtype)
            for field in self.fields
        }


def plain_names(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors under the names they have without ``torch.compile``."""
    return {name.replace(COMPILED_PREFIX, ''): tensor for name, tensor in weights.items()}


@torch.no_grad()
def write(layout: Layout, weights: Mapping[str, torch.Tensor], buffer: memoryview) -> None:
    """Copy tensors from any device into a flat CPU buffer."""
    for name, view in layout.views(buffer).items():
        view.copy_(weights[name])


@torch.no_grad()
def read(layout: Layout, buffer: memoryview, targets: Mapping[str, torch.Tensor]) -> None:
    """Copy a flat CPU buffer into tensors on any device."""
    for name, view in layout.views(buffer).items():
        targets[name].copy_(view)


@dataclass
class _Slot:
    block: Block
    version: int = -1
    held: int = 0


class WeightStore:
    """
    Overview:
        The published snapshots. Its lock protects the table of buffers and is held for table work only; nobody blocks.
    Arguments:
        - layout (:obj:`Optional[Layout]`): of the model; None takes that of the first snapshot.
        - in_use (:obj:`Callable[[], Collection[int]]`): versions that a collect reads or may still ask for.
        - prefix (:obj:`Optional[str]`): of shared blocks' names; None keeps snapshots in this process.
    """

    def __init__(self, layout: Layout | None, in_use: Callable[[], Collection[int]], prefix: str | None = None) -> None:
        self.layout = layout
        self._in_use = in_use
        self._prefix = prefix
        self._lock = threading.Lock()
        self._slots: list[_Slot] = []
        self._closed = False
        self.published = 0
        self.bytes_written = 0

    @property
    def size(self) -> int:
        """Bytes of a snapshot."""
        return self.layout.size if self.layout is not None else 0

    def publish(self, version: int, weights: Mapping[str, torch.Tensor]) -> bool:
        """Copy the weights into a snapshot; False where this version has one already. One thread only."""
        in_use = set(self._in_use())
        layout = self.layout = self.layout or Layout.of(weights)
        with self._lock:
            if self._closed:
                raise Closed
            if any(slot.version == version for slot in self._slots):
                return False
            slot = next((slot for slot in self._slots if not slot.held and slot.version not in in_use), None)
            if slot is None:
                name = f'{self._prefix}w{len(self._slots)}' if self._prefix else None
                slot = _Slot(Block(layout.size, name))
                self._slots.append(slot)
            slot.version = -1  # nobody's while it is written
        write(layout, weights, slot.block.view)
        with self._lock:
            slot.version = version
            self.published += 1
            self.bytes_written += layout.size
        return True

    def block(self, version: int) -> Block:
        """The buffer of a version that is in use or held."""
        return self._find(version).block

    def hold(self, version: int | None = None) -> int:
        """Keep a version, or with None the newest, beyond its use by collects, until it is released; which one."""
        with self._lock:
            slot = self._find(max(slot.version for slot in self._slots) if version is None else version)
            slot.held += 1
            return slot.version

    def release(self, version: int) -> None:
        with self._lock:
            self._find(version).held -= 1

    def _find(self, version: int) -> _Slot:
        for slot in self._slots:
            if slot.version == version:
                return slot
        raise AsyncTrainingError(f'version {version} was asked for but is not kept; please report this')

    @property
    def buffers(self) -> int:
        """Buffers allocated so far."""
        return len(self._slots)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for slot in self._slots:
                slot.block.close()
            self._slots.clear()
