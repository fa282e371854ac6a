"""Where a worker lives. A role's thread holds a handle; only the handle differs."""
from __future__ import annotations

from pathlib import Path

from ..core import ConfigError, Placement, WorkerSpec
from .base import Handle, children_ignore_interrupts
from .process import ProcessHandle
from .thread import ThreadHandle

__all__ = ['Handle', 'ProcessHandle', 'ThreadHandle', 'children_ignore_interrupts', 'make_handle']


def make_handle(placement: Placement, spec: WorkerSpec, prefix: str, log_directory: Path, timeout_s: float) -> Handle:
    """The handle of a worker that is yet to be started."""
    if placement == 'thread':
        return ThreadHandle(spec)
    if placement == 'process':
        return ProcessHandle(spec, prefix, log_directory, timeout_s)
    raise ConfigError(f"async_pipeline.placement='{placement}': choose 'thread' or 'process'")
