"""Where it was measured."""
from __future__ import annotations

import platform
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import torch

from ..config import available_cores


def machine() -> dict[str, str | int]:
    """Cores, versions, date."""
    return {
        'cores': available_cores(),
        'cpu': cpu_model(),
        'accelerator': torch.cuda.get_device_name() if torch.cuda.is_available() else 'none',
        'system': platform.platform(),
        'python': platform.python_version(),
        'torch': torch.__version__,
        'lightzero': metadata.version('LightZero'),
        'lzero_async': metadata.version('lzero-async'),
        'date': datetime.now(timezone.utc).isoformat(timespec='seconds'),
    }


def cpu_model() -> str:
    """The name that the system has for its processor."""
    path = Path('/proc/cpuinfo')
    lines = path.read_text().splitlines() if path.exists() else []
    named = (line.partition(':')[2].strip() for line in lines if line.startswith('model name'))
    return next(named, platform.processor() or platform.machine())
