"""
A worker in a child process: spawned, in a session of its own, with its output in a log file.

Two pipes lead to it. *Jobs* belongs to the role's thread here and to the main thread there: one request, then beats and
one reply. *Control* carries the word to cancel, and its end tells the child that the driver is gone: a thread of the
child waits on it and on nothing else. The session is what lets the driver end everything that the child started.
"""
from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, shared_memory
from pathlib import Path
from typing import Any

import torch

from ..core import MAIN_GUARD, Cancelled, Snapshot, WorkerError, WorkerSpec
from ..transport import memory, segments
from .base import make_worker

START_S = 300.0  # to start at least: imports, models and environments give no sign of life
BEAT_S = 1.0  # at most one sign of life per so many seconds
LOG_TAIL = 2000  # characters of a dead worker's output that go into the error


@dataclass(frozen=True)
class _Job:
    snapshots: tuple[Snapshot, ...]  # with the names of shared blocks for weights
    request: Any
    reply_block: str  # name for a shared block, in case the reply needs one


@dataclass(frozen=True)
class _Reply:
    result: Any = None
    cancelled: bool = False
    error: str | None = None
    detail: str = ''


_READY, _BEAT, _CLOSE = 'ready', 'beat', 'close'


class ProcessHandle:
    """The driver's end. ``reply_block`` names are the driver's choice, so that it can remove what a dead child left."""

    def __init__(self, spec: WorkerSpec, prefix: str, log_directory: Path, timeout_s: float) -> None:
        self.name = spec.name
        self.log_path = log_directory / f'{spec.name}.log'
        self._spec = spec
        self._reply_block = f'{prefix}r{spec.name}'
        self._timeout_s = timeout_s
        self._ready = False
        self.busy = False
        context = multiprocessing.get_context('spawn')
        self._jobs, child_jobs = context.Pipe()
        child_control, self._control = context.Pipe(duplex=False)
        self._control_lock = threading.Lock()  # protects the writing end of control; never held while waiting
        self._reap_lock = threading.Lock()  # protects the exit status, which the system tells only once; never waits
        self._child_ends = (child_jobs, child_control)
        # Not a daemon: environment managers need children of their own. close() joins it.
        self._process = context.Process(
            target=_main, args=(spec, child_jobs, child_control, str(self.log_path)), name=spec.name, daemon=False
        )

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def start(self) -> None:
        self._process.start()
        for end in self._child_ends:
            end.close()

    @property
    def sentinel(self) -> int | None:
        return self._process.sentinel

    def wait_ready(self) -> None:
        with self._attended():
            message = self._receive(max(START_S, self._timeout_s))
        if isinstance(message, _Reply):
            raise self._error(message)
        self._ready = True

    def run(self, snapshots: Sequence[Snapshot], request: Any) -> Any:
        named = tuple(Snapshot(each.axis, each.version, each.weights.name) for each in snapshots)
        job = _Job(named, request, self._reply_block)
        with self._attended():
            try:
                segments.send(self._jobs, job, self._reply_block)
            except OSError as error:
                raise self.death() from error
            reply = self._receive(self._timeout_s)
        if reply.cancelled:
            raise Cancelled
        if reply.error is not None:
            raise self._error(reply)
        return reply.result

    @contextlib.contextmanager
    def _attended(self) -> Iterator[None]:
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def _receive(self, timeout_s: float) -> Any:
        while True:
            ready = connection.wait([self._jobs, self._process.sentinel], timeout_s)
            if not ready:
                raise WorkerError(self.name, f'no sign of life for {timeout_s:g} s (worker_timeout_s)')
            if self._jobs not in ready:
                raise self.death()
            try:
                message = segments.receive(self._jobs)
            except (EOFError, OSError) as error:
                raise self.death() from error
            if message != _BEAT:
                return message

    def death(self) -> WorkerError:
        """What the child said last, or else its exit code and the end of its output."""
        with contextlib.suppress(EOFError, OSError):
            while self._jobs.poll():
                message = segments.receive(self._jobs)
                if isinstance(message, _Reply) and message.error is not None:
                    return self._error(message)
        self._reap(self._timeout_s)
        cause = _describe(self._process.exitcode)
        if not self.log_path.exists():
            return WorkerError(self.name, f'{cause} before it began; {MAIN_GUARD}')
        return WorkerError(self.name, cause, self.log_path.read_text(errors='replace')[-LOG_TAIL:])

    def _error(self, reply: _Reply) -> WorkerError:
        return WorkerError(self.name, reply.error or 'unknown', reply.detail)

    def _reap(self, timeout_s: float | None) -> None:
        """Wait for the end of the process and note its exit code."""
        if connection.wait([self._process.sentinel], timeout_s):
            with self._reap_lock:
                self._process.join()

    def cancel(self) -> None:
        if not self._ready:  # it is busy with imports, and nothing would be lost
            return self.kill()
        with self._control_lock, contextlib.suppress(OSError):
            self._control.send_bytes(b'cancel')

    def kill(self) -> None:
        if self._process.pid is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the child leads its session
        self._process.kill()

    def dismiss(self) -> None:
        if not self._ready:
            return self.kill()
        with contextlib.suppress(OSError):
            segments.send(self._jobs, _CLOSE, self._reply_block)

    def close(self, timeout_s: float) -> None:
        if self._process.pid is None:
            for end in (*self._child_ends, self._jobs, self._control):
                end.close()
            return
        self._reap(timeout_s)
        self.kill()  # also what the child left behind
        self._reap(None)
        with self._control_lock:
            self._control.close()
        self._jobs.close()
        memory.remove(self._reply_block)


def _describe(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f'killed by {signal.Signals(-exit_code).name}'
    return f'exited with code {exit_code}'


# ---------------------------------------------------------------------- in the child

_say_and_die: Callable[[str, str], None] | None = None  # set where this process is a worker


def last_words(cause: str, detail: str = '') -> bool:
    """
    From another thread, where the main one will never return: tell the driver what the worker died of, and end it with
    all that it started. False where this process is no worker.
    """
    if _say_and_die is None:
        return False
    _say_and_die(cause, detail)
    return True


def _main(spec: WorkerSpec, jobs: connection.Connection, control: connection.Connection, log_path: str) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides; environments' processes inherit this
    _redirect_output(log_path)
    worker: Any = None
    cancelled = threading.Event()

    def say_and_die(cause: str, detail: str) -> None:
        segments.send(jobs, _Reply(error=cause, detail=detail), '')
        os.killpg(0, signal.SIGKILL)

    global _say_and_die
    _say_and_die = say_and_die

    def obey() -> None:
        while True:
            try:
                control.recv_bytes()
            except (EOFError, OSError):
                os.killpg(0, signal.SIGKILL)  # the driver is gone, and with it the reason to be here
            cancelled.set()
            if worker is not None:
                worker.cancel()

    threading.Thread(target=obey, name='obey', daemon=True).start()
    try:
        torch.set_num_threads(spec.threads)
        worker = make_worker(spec, _Beats(jobs), own_process=True)
        if cancelled.is_set():
            worker.cancel()
    except BaseException as error:  # told to the driver, which raises it
        segments.send(jobs, _Reply(error=repr(error), detail=traceback.format_exc()), '')
        return
    segments.send(jobs, _READY, '')
    try:
        _serve(worker, jobs)
    finally:
        worker.close()


def _serve(worker: Any, jobs: connection.Connection) -> None:
    versions: dict[str, int] = {}  # in force, by axis
    blocks: dict[str, shared_memory.SharedMemory] = {}
    while isinstance(job := segments.receive(jobs), _Job):
        try:
            for snapshot in job.snapshots:
                if snapshot.version != versions.get(snapshot.axis):
                    name = snapshot.weights
                    if name not in blocks:
                        blocks[name] = shared_memory.SharedMemory(name)
                    worker.load(snapshot.axis, snapshot.version, memory.contents(blocks[name]))
                    versions[snapshot.axis] = snapshot.version
            reply = _Reply(worker.run(job.request))
        except Cancelled:
            reply = _Reply(cancelled=True)
        except BaseException as error:  # told to the driver, which raises it
            reply = _Reply(error=repr(error), detail=traceback.format_exc())
        segments.send(jobs, reply, job.reply_block)
    for block in blocks.values():
        block.close()


class _Beats:
    """A sign of life to the driver, at most one per ``BEAT_S``. Called by the thread that owns the pipe."""

    def __init__(self, jobs: connection.Connection) -> None:
        self._jobs = jobs
        self._last = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._last >= BEAT_S:
            self._last = now
            segments.send(self._jobs, _BEAT, '')


def _redirect_output(log_path: str) -> None:
    """All that upstream prints, and what a crash leaves, goes to the worker's own file."""
    Path(log_path).parent.mkdir(parents=True, exist_ok=True)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.enable()
