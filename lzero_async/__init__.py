"""
Asynchronous training for LightZero: collection, learning and evaluation at the same time.

    from lzero_async import train_unizero_segment_async
    train_unizero_segment_async([main_config, create_config], seed=0, max_env_step=int(2e5))
"""
from __future__ import annotations

import lzero.entry

from .config import AsyncConfig
from .coordinator import AsyncTrainingCoordinator
from .core import AsyncTrainingError, Closed, ConfigError, WorkerError
from .entry import train_muzero_segment_async, train_priorzero_async, train_unizero_segment_async

__version__ = '0.1.0'

__all__ = [
    'AsyncConfig',
    'AsyncTrainingCoordinator',
    'AsyncTrainingError',
    'Closed',
    'ConfigError',
    'WorkerError',
    'register',
    'train_muzero_segment_async',
    'train_priorzero_async',
    'train_unizero_segment_async',
]


def register(override: bool = False) -> None:
    """
    Overview:
        Make the entries importable from ``lzero.entry``. Runs on import, so that ``import_names=['lzero_async']`` in a
        config does it in every worker.
    Arguments:
        - override (:obj:`bool`): Replace upstream's entries of the same name, where it has them.
    """
    for entry in (train_unizero_segment_async, train_muzero_segment_async, train_priorzero_async):
        if override or not hasattr(lzero.entry, entry.__name__):
            setattr(lzero.entry, entry.__name__, entry)


register()
