"""
The messages and protocols that everything else speaks.

The whole system is the loop below; the rest is where its parts live, who may go on, and what happens when one fails.

    # a collector's thread                             # the learner's thread
    while ticket := gate.admit(worker):                while batch := gate.take():
        batch = worker.collect(request(ticket))            trainer.push(batch)
        gate.deliver(ticket.number, batch)                 for _ in range(gate.grant(batch, budget)):
                                                               trainer.update()
                                                           store.publish(trainer.weights())
                                                           gate.pay(batch.number)

Words (batch, budget, outstanding, version, age, lag, degree) are defined in ``docs/glossary.md``.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Generic, Literal, Protocol, TypeVar

MAIN_GUARD = "the script that starts training must do so under if __name__ == '__main__':, as workers import it again"
Placement = Literal['thread', 'process', 'ray']
Role = Literal['collector', 'learner', 'evaluator']
Payload = TypeVar('Payload')
Weights = Mapping[str, Any]  # parameter name -> tensor, names free of torch.compile's prefix
MODEL = 'model'  # the axis of versions that every run has
PRIOR = 'prior'  # and the one of a language model beside it


class AsyncTrainingError(Exception):
    """Every error that this package raises on its own account."""


class ConfigError(AsyncTrainingError):
    """A configuration that cannot work; the message names the key, the value seen and the remedy."""


class WorkerError(AsyncTrainingError):
    """A role failed; the message carries its traceback as it was where the role lived."""

    def __init__(self, worker: str, cause: str, detail: str = '') -> None:
        where = f'\n\n--- in {worker} ---\n{detail.rstrip()}' if detail else ''
        super().__init__(f'{worker} failed: {cause}{where}')
        self.worker = worker
        self.cause = cause
        self.detail = detail


class Closed(AsyncTrainingError):
    """The gate has closed: nobody may go on. Ends loops; never reaches the user."""


class Cancelled(AsyncTrainingError):
    """A running collect or evaluation was told to stop. Ends a job; never reaches the user."""


@dataclass(frozen=True)
class Boundary:
    """The state between two batches: what a collect that starts here sees."""
    paid: int  # batches paid off so far
    train_iter: int  # updates done so far
    env_steps: int  # env steps of the batches taken so far
    version: int  # newest published snapshot
    warmup: bool = False  # collects that start here act at random


@dataclass(frozen=True)
class Ticket:
    """The right to collect one batch."""
    number: int  # 0, 1, 2 ... in the order of admission
    worker: int  # index of the collector that was admitted
    boundary: Boundary  # what it sees
    degree: int  # the degree in force when it was admitted


@dataclass(frozen=True)
class Taken(Generic[Payload]):
    """A finished batch that the learner was given."""
    number: int  # the ticket's
    payload: Payload  # what was delivered
    age: int  # batches paid off since its admission
    lag: int  # updates done since the version that it saw
    lag_bound: int  # the most that lag could have been


@dataclass(frozen=True)
class Snapshot:
    """One version of one model, for a worker to put in force before a job."""
    axis: str  # which model
    version: int
    weights: Any  # the block that holds it


@dataclass(frozen=True)
class CollectRequest:
    """What a collect worker is asked to do."""
    number: int  # the ticket's
    version: int  # weights that must be in force
    train_iter: int  # for upstream's logs
    env_steps: int  # for upstream's logs
    temperature: float  # of the visit counts
    epsilon: float  # of epsilon-greedy exploration
    random_actions: bool = False  # warm-up: search as usual, act at random
    prior_version: int = 0  # of the language model, where there is one


@dataclass(frozen=True)
class Batch:
    """What one collect returned."""
    number: int  # the ticket's
    worker: int  # index of the collector
    version: int  # weights that made it
    segments: Sequence[Any]  # game segments
    metas: Sequence[Mapping[str, Any]]  # one per segment: priorities, done, unroll_plus_td_steps
    env_steps: int  # steps taken, also those whose segment is not complete yet
    episode_returns: Sequence[float] = ()  # of the episodes that ended in it
    temperature: float = 1.0  # as requested
    epsilon: float = 0.0  # as requested
    random_actions: bool = False  # as requested
    duration_s: float = 0.0  # wall time of the collect
    ended_at: float = 0.0  # when the collect ended, in Unix seconds
    cpu_s: float = 0.0  # CPU time of the collect, 0 where it cannot be told apart
    scalars: Sequence[tuple[str, float, int]] = ()  # (tag, value, step) for TensorBoard
    records: Sequence[Any] = ()  # what a language model learns from, where there is one
    left_out: Mapping[str, int] = field(default_factory=dict)  # what found no room, counted by name; see recorder.py


@dataclass(frozen=True)
class EvalRequest:
    """What the evaluator is asked to do."""
    train_iter: int  # the version under evaluation
    env_steps: int  # env steps at that version


@dataclass(frozen=True)
class EvalResult:
    """What one evaluation returned."""
    train_iter: int  # the version that was evaluated
    env_steps: int  # env steps at that version
    stop: bool  # the stop value was reached
    best: bool  # better than every evaluation before
    mean_return: float  # over the episodes
    episode_info: Mapping[str, Any] | None = None  # as upstream's evaluator returns it
    duration_s: float = 0.0  # wall time of the evaluation
    cpu_s: float = 0.0  # CPU time of the evaluation, 0 where it cannot be told apart
    scalars: Sequence[tuple[str, float, int]] = ()  # (tag, value, step) for TensorBoard
    prior_version: int | None = None  # of the language model that was asked, where there is one


@dataclass(frozen=True)
class Limits:
    """When a run ends by itself; checked between two batches."""
    max_env_step: int = int(1e10)
    max_train_iter: int = int(1e10)


class Trainer(Protocol):
    """The single owner of learner, target model and replay buffer. Called from the learner's thread only."""

    @property
    def train_iter(self) -> int:
        """Updates done so far."""

    def start(self) -> None:
        """Called once, in the learner's thread, before anything else."""

    def push(self, batch: Batch, env_steps: int) -> None:
        """Put a batch into the replay buffer; ``env_steps`` is the run's total with it."""

    def budget(self, batch: Batch) -> Fraction | None:
        """The updates that this batch, already pushed, pays for; None while warming up."""

    def begin_epoch(self, updates: int) -> None:
        """Called once before the ``updates`` of a batch."""

    def update(self) -> None:
        """One update."""

    def end_epoch(self) -> bool:
        """Called once after them; whether the run's limits count here, as upstream does not check them everywhere."""

    def trouble(self) -> str | None:
        """What went wrong with the learning since the last call, if anything."""

    def warming_up(self) -> bool:
        """Whether collects that start now should act at random."""

    def collect_settings(self, boundary: Boundary) -> tuple[float, float]:
        """Temperature and epsilon of a collect that starts at ``boundary``. Called from collectors' threads: pure."""

    def eval_due(self) -> bool:
        """Whether the schedule wants an evaluation now; a True counts as done."""

    def weights(self) -> Weights:
        """The model's own tensors, not copies; valid until the next update."""

    def checkpoint_state(self) -> Any:
        """A private copy of all that a checkpoint file holds."""

    def evaluated(self, result: EvalResult, state: Any) -> None:
        """An evaluation came in; ``state`` was captured with the snapshot, or is None where learning waited for it."""

    def offline_evaluations(self) -> Iterable[tuple[EvalRequest, Weights, Any]]:
        """Evaluations put off to the end: request, weights and checkpoint state of each."""

    def finish(self) -> None:
        """Called once after the last batch, unless the trainer itself failed."""


class CollectWorker(Protocol):
    """One collector with its environments and its whole policy. Lives wherever its placement says."""

    def load(self, axis: str, version: int, weights: memoryview) -> None:
        """Put a snapshot in force; ``weights`` is read before this returns and not kept."""

    def run(self, request: CollectRequest) -> Batch:
        """Collect one batch."""

    def cancel(self) -> None:
        """From another thread: make a running job raise ``Cancelled`` soon."""

    def close(self) -> None:
        """Release environments."""


class EvalWorker(Protocol):
    """One evaluator with its environments and its whole policy."""

    def load(self, axis: str, version: int, weights: memoryview) -> None:
        """Put a snapshot in force; ``weights`` is read before this returns and not kept."""

    def run(self, request: EvalRequest) -> EvalResult:
        """Evaluate the loaded snapshot."""

    def cancel(self) -> None:
        """From another thread: make a running job raise ``Cancelled`` soon."""

    def close(self) -> None:
        """Release environments."""


@dataclass(frozen=True)
class WorkerSpec:
    """How to make a worker, in a form that travels to another process."""
    name: str  # collector-0, collector-1, ..., evaluator
    factory: str  # 'package.module:function', called with the arguments below
    arguments: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1  # torch threads, set before the first op
