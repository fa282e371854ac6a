"""What Python's lock costs here, in seconds: the same work alone, and twice at once in threads and in processes."""
from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from ..core import WorkerError
from ..placement import children_ignore_interrupts

SIMULATIONS = 6000  # about a second
ROUNDS = 3
PATIENCE_S = 300.0  # for a process to import torch and LightZero


@dataclass(frozen=True)
class GilCost:
    """Wall seconds, medians."""
    alone_s: float  # the work by itself
    threads_s: float  # twice at once in two threads
    processes_s: float  # twice at once in two processes

    @property
    def lost_s(self) -> float:
        """What threads lose against processes."""
        return self.threads_s - self.processes_s


def measure(simulations: int = SIMULATIONS, rounds: int = ROUNDS) -> GilCost:
    """Rounds alternate, so that a busy spell does not hit one kind only. The start of processes is not on the clock."""
    alone, both = threading.Barrier(1), threading.Barrier(2)
    spans: dict[str, list[float]] = {'alone': [], 'threads': [], 'processes': []}
    with _one_torch_thread(), _TwoProcesses() as processes, ThreadPoolExecutor(2) as threads:
        processes.search(1)
        _timed(alone, simulations // 10)
        for _ in range(rounds):
            spans['alone'].append(_span([_timed(alone, simulations)]))
            spans['threads'].append(_span(threads.map(_timed, [both] * 2, [simulations] * 2)))
            spans['processes'].append(processes.search(simulations))
    return GilCost(*(statistics.median(spans[kind]) for kind in ('alone', 'threads', 'processes')))


def search(simulations: int) -> None:
    """Like a search: a tiny model called time and again, and a walk through a tree of Python objects."""
    layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    state = torch.zeros(4, 8)
    with torch.no_grad():
        for _ in range(simulations):
            tree = [{'visits': 1, 'value': value} for value in range(8)]
            for _ in range(8):
                state = torch.tanh(layers(state))
            for _ in range(20):
                best = max(tree, key=lambda node: node['value'] / node['visits'])
                best['visits'] += 1


def _timed(meeting: Any, simulations: int) -> tuple[float, float]:
    """Begin together; when the work began and ended."""
    meeting.wait(PATIENCE_S)
    began = time.monotonic()
    search(simulations)
    return began, time.monotonic()


def _span(times: Iterable[tuple[float, float]]) -> float:
    """From the first beginning to the last end."""
    begins, ends = zip(*times, strict=True)
    return max(ends) - min(begins)


@contextlib.contextmanager
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _TwoProcesses:
    """Both start at once and meet before every job. They end with the block, however that ends."""

    def __init__(self) -> None:
        context = multiprocessing.get_context('spawn')
        self._meeting = context.Barrier(2)  # kept, as it must outlive the start of both
        pipes = [context.Pipe() for _ in range(2)]
        self._ours, self._theirs = [ours for ours, _ in pipes], [theirs for _, theirs in pipes]
        self._processes = [
            context.Process(target=_serve, args=(self._meeting, end), daemon=True) for end in self._theirs
        ]

    def __enter__(self) -> _TwoProcesses:
        with children_ignore_interrupts():  # by the children, for good; Ctrl-C is for their parent, which ends them
            for process in self._processes:
                process.start()
        for end in self._theirs:
            end.close()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for end in self._ours:
            end.close()

    def search(self, simulations: int) -> float:
        try:
            for end in self._ours:
                end.send(simulations)
            return _span([self._receive(end) for end in self._ours])
        except (EOFError, OSError) as error:  # whichever of its end and its pipe's end is seen first
            raise WorkerError('a process that measures the GIL', 'it ended before its work was done') from error

    def _receive(self, end: Connection) -> tuple[float, float]:
        deaths = [process.sentinel for process in self._processes]  # of the other too, which this one may wait for
        if end not in wait([end, *deaths]):
            raise EOFError
        return end.recv()


def _serve(meeting: Any, connection: Connection) -> None:
    """In a process."""
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError):
        while True:
            connection.send(_timed(meeting, connection.recv()))
