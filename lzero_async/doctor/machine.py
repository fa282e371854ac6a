"""What there is: versions, cores, memory, devices; and what of it commonly goes wrong."""
from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from .. import __version__
from ..sizing import available_cores
from ..transport.memory import free_shared_memory

GIGABYTE = 10**9
PACKAGES = ('LightZero', 'DI-engine', 'torch', 'numpy', 'gymnasium')
VARIABLES = (
    'OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'NUMEXPR_NUM_THREADS', 'OMP_WAIT_POLICY',
    'CUDA_VISIBLE_DEVICES'
)
TRIED_PYTHON = ('3.10', '3.11')
TRIED_LIGHTZERO = '0.2.0'
ENOUGH_SHARED = GIGABYTE
ENOUGH_MEMORY = 2 * GIGABYTE  # a worker has half a gigabyte of imports before its model and its environments
BUSY = 0.1  # share of the cores that others may take before figures are off
CONTROL_GROUP = Path('/sys/fs/cgroup')


@dataclass(frozen=True)
class Machine:
    """What there is."""
    versions: Mapping[str, str]  # Python, this package and those that it stands on
    cores: int  # that this process may use
    cores_in_machine: int
    cpu_limit: float | None  # CPUs that a control group allows, None where it does not limit
    memory: int  # bytes
    memory_available: int
    shared_free: int | None  # bytes free in /dev/shm, None where there is none
    accelerator: str | None  # its name
    torch_threads: int  # that torch takes by itself
    environment: Mapping[str, str]  # variables that change how many threads there are
    load: float  # processes that wanted a core in the last minute


def look() -> Machine:
    """Look around; changes nothing."""
    memory = psutil.virtual_memory()
    limit = _memory_limit() or memory.total
    return Machine(
        versions={
            'Python': platform.python_version(),
            'lzero_async': __version__,
            **{name: _version(name) for name in PACKAGES},
        },
        cores=available_cores(),
        cores_in_machine=os.cpu_count() or 1,
        cpu_limit=_cpu_limit(),
        memory=min(memory.total, limit),
        memory_available=min(memory.available, limit),
        shared_free=free_shared_memory(),
        accelerator=torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        torch_threads=torch.get_num_threads(),
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
        load=os.getloadavg()[0],
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return 'not installed'


def _control_group(name: str) -> list[str]:
    """The words of a file of this process's control group, none where it has no such limit."""
    try:
        words = (CONTROL_GROUP / name).read_text(encoding='utf-8').split()
    except OSError:
        return []
    return [] if 'max' in words[:1] else words


def _cpu_limit() -> float | None:
    words = _control_group('cpu.max')
    return int(words[0]) / int(words[1]) if len(words) == 2 else None


def _memory_limit() -> int | None:
    words = _control_group('memory.max')
    return int(words[0]) if words else None


def troubles(machine: Machine) -> list[str]:
    """What is likely to go wrong here, one sentence each."""
    found = []
    python, lightzero = machine.versions['Python'], machine.versions['LightZero']
    if '.'.join(python.split('.')[:2]) not in TRIED_PYTHON:
        found.append(f"Python {python} has not been tried; {' and '.join(TRIED_PYTHON)} have.")
    if lightzero != TRIED_LIGHTZERO:
        found.append(f'LightZero {lightzero} has not been tried; {TRIED_LIGHTZERO} has.')
    if machine.cpu_limit is not None and machine.cpu_limit < machine.cores:
        found.append(
            f'{machine.cores} cores can be seen but a control group allows {machine.cpu_limit:g}: the defaults and the '
            'picks count too many; set threads and num_collectors by hand, or start under taskset.'
        )
    if machine.shared_free is not None and machine.shared_free < ENOUGH_SHARED:
        found.append(
            f'/dev/shm has {gigabytes(machine.shared_free)} free: snapshots of large models may not fit; enlarge it '
            '(docker run --shm-size=1g).'
        )
    if machine.memory_available < ENOUGH_MEMORY:
        found.append(
            f'{gigabytes(machine.memory_available)} of memory are available: every worker has a policy and '
            'environments of its own.'
        )
    return found


def gigabytes(size: float) -> str:
    """Bytes in words."""
    return f'{size / GIGABYTE:.1f} GB'


class Bystanders:
    """What other processes did on our cores since this was made. What we started counts as ours once it has ended."""

    def __init__(self) -> None:
        self._began, (self._busy, self._own) = time.monotonic(), self._read()

    @staticmethod
    def _read() -> tuple[float, float]:
        """CPU seconds that all processes, and that ours have used."""
        cores = psutil.cpu_times(percpu=True)
        if hasattr(os, 'sched_getaffinity'):
            allowed = os.sched_getaffinity(0)
            cores = [times for number, times in enumerate(cores) if number in allowed]
        idle = ('idle', 'iowait', 'guest', 'guest_nice')  # guests are counted in user already
        busy = sum(value for times in cores for name, value in times._asdict().items() if name not in idle)
        return busy, sum(psutil.Process().cpu_times()[:4])

    def cores(self) -> float:
        """How many cores they kept busy, on average."""
        busy, own = self._read()
        others = (busy - self._busy) - (own - self._own)
        return max(0.0, others / max(1e-9, time.monotonic() - self._began))


def crowded(machine: Machine, busy_cores: float) -> list[str]:
    """A warning where others were at work during a measurement."""
    if busy_cores <= BUSY * machine.cores:
        return []
    return [
        f'other processes kept {busy_cores:.1f} of {machine.cores} cores busy meanwhile (load average '
        f'{machine.load:.1f} before): the figures are off; measure again when the machine is quiet.'
    ]
