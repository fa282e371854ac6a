"""A process and all that it started: how much memory they hold, and how they are ended."""
from __future__ import annotations

import contextlib
import re
import subprocess
import time
from pathlib import Path

import psutil

RSS_S = 0.5  # between two looks at the resident memory
PSS_S = 5.0  # between two looks at the proportional memory, for which the kernel walks every page table
GRACE_S = 20.0  # to end by itself and to clear up
MB = 2 ** 20
_PSS = re.compile(r'^Pss:\s+(\d+) kB', re.MULTILINE)


class Family:
    """
    Overview:
        Follows a process tree until its root has ended. Resident memory (RSS) counts a page once per process that
        shares it; proportional memory (PSS) once in all, where the system tells it.
    Arguments:
        - root (:obj:`subprocess.Popen`): the process that was started.
    """

    def __init__(self, root: subprocess.Popen[bytes]) -> None:
        self._root = root
        self._known: set[psutil.Process] = set()
        self._next_pss = 0.0
        self.peak_rss_mb = 0.0
        self.peak_pss_mb: float | None = None

    def wait(self) -> int:
        """Until the root has ended; its exit code."""
        while True:
            try:
                return self._root.wait(RSS_S)
            except subprocess.TimeoutExpired:
                self._look()

    def _look(self) -> None:
        members = self._members()
        self.peak_rss_mb = max(self.peak_rss_mb, sum(map(_rss, members)) / MB)
        if time.monotonic() >= self._next_pss:
            self._next_pss = time.monotonic() + PSS_S
            if pss := sum(map(_pss, members)):
                self.peak_pss_mb = max(self.peak_pss_mb or 0.0, pss / MB)

    def _members(self) -> set[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._root.pid)
            members = {root, *root.children(recursive=True)}
            self._known |= members
            return members
        return set()

    def end(self) -> None:
        """End whoever is left. First politely, so that shared memory is removed; a second Ctrl-C cuts that short."""
        self._members()
        try:
            if self._root.poll() is None:
                self._root.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._root.wait(GRACE_S)
            deadline = time.monotonic() + GRACE_S / 4
            while self._others() and time.monotonic() < deadline:
                time.sleep(0.02)  # they are not our children: there is nothing to wait on
        finally:
            if self._root.poll() is None:
                self._root.kill()
            self._root.wait()
            for process in self._others():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def _others(self) -> list[psutil.Process]:
        return [process for process in self._known if process.pid != self._root.pid and _runs(process)]


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _rss(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return process.memory_info().rss
    return 0


def _pss(process: psutil.Process) -> int:
    """0 where it cannot be told."""
    with contextlib.suppress(OSError):
        found = _PSS.search(Path(f'/proc/{process.pid}/smaps_rollup').read_text())
        return int(found[1]) * 1024 if found else 0
    return 0
