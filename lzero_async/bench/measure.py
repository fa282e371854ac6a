"""One measurement: a child process in a fresh directory, watched from outside."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ..core import AsyncTrainingError, WorkerError
from .child import RESULT, Order
from .disturb import disturbance
from .family import Family

STDERR_TAIL = 3000  # characters of a failed child's stderr that go into the error
THREAD_VARIABLES = ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS')


def measure(order: Order, disturb: bool) -> dict[str, Any]:
    """Run an order to its end; the child's result with the memory that its processes held."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix='lzero-async-bench-', ignore_cleanup_errors=True) as directory:
        place = Path(directory)
        out, err = place / 'stdout.txt', place / 'stderr.txt'
        with open(out, 'wb') as stdout, open(err, 'wb') as stderr, disturbance(disturb) as busy:
            # A session of its own: the terminal's Ctrl-C is for the bench, which ends the child.
            child = subprocess.Popen(
                [sys.executable, '-m', 'lzero_async.bench.child', order.json()], cwd=place, env=environment(order),
                stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, start_new_session=True
            )
            family = Family(child)
            try:
                code = family.wait()
            finally:
                family.end()
                if child.stdin is not None:
                    child.stdin.close()
            if busy is not None and busy.poll() is not None:
                raise AsyncTrainingError(f'the busy process ended too early, with code {busy.returncode}')
        if code != 0:
            tail = err.read_text(errors='replace')[-STDERR_TAIL:]
            raise WorkerError(f'{order.row} run', f'exited with code {code}', tail)
        result = result_in(out.read_text(errors='replace'))
    return {
        **result, 'wall_s': time.monotonic() - started, 'peak_rss_mb': family.peak_rss_mb,
        'peak_pss_mb': family.peak_pss_mb
    }


def environment(order: Order) -> dict[str, str]:
    """Torch's own default threads, whatever the shell says, or those that were ordered."""
    own = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    return own if order.threads is None else {**own, 'OMP_NUM_THREADS': str(order.threads)}


def result_in(output: str) -> dict[str, Any]:
    """The last RESULT line, as upstream prints a lot before it."""
    line = next(line for line in reversed(output.splitlines()) if line.startswith(RESULT))
    return json.loads(line.removeprefix(RESULT))
