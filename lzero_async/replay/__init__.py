"""Upstream's replay buffers, with their defects mended by subclass."""

from lzero_async.replay.mended import MendedGameBuffer, mend, segment_nbytes

__all__ = ['MendedGameBuffer', 'mend', 'segment_nbytes']
