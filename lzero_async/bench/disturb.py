"""
Another program that wants a core: a busy loop in a process of its own.

The process runs this very file and imports nothing else of the package, so that it is busy at once.
"""
from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator


def burn(owner: int) -> None:
    """Keep one core busy for as long as the process ``owner`` is the parent of this one."""
    while os.getppid() == owner:
        for _ in range(100_000):  # a few milliseconds
            pass


@contextlib.contextmanager
def disturbance(wanted: bool = True) -> Iterator[subprocess.Popen[bytes] | None]:
    """One core is busy inside of this; nothing is left of it afterwards, nor when this process is killed."""
    if not wanted:
        yield None
        return
    # A session of its own: the terminal's Ctrl-C is for the bench, which ends it.
    process = subprocess.Popen(
        [sys.executable, '-I', '-S', __file__, str(os.getpid())], stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == '__main__':
    burn(int(sys.argv[1]))
