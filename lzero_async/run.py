"""What every run has, serial or not: a gate that keeps the books, a learner's loop, a report."""
from __future__ import annotations

import logging
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from .config import AsyncConfig, available_cores
from .coordinator import AsyncTrainingCoordinator
from .core import MODEL, PRIOR, Batch, Boundary, CollectRequest, EvalResult, Limits, Taken, Ticket, Trainer
from .resources import Turns
from .roles.evaluator import Evaluator
from .roles.learner import LearnerLoop, Snapshots
from .roles.prior import PriorRole
from .telemetry.recorder import Recorder

logger = logging.getLogger(__name__)


class Run(ABC):
    """
    Overview:
        The part that serial and asynchronous runs share.
    Arguments:
        - config (:obj:`AsyncConfig`): the settings.
        - trainer (:obj:`Trainer`): owner of learner and replay buffer.
        - recorder (:obj:`Recorder`): where events go.
        - num_collectors (:obj:`int`): collectors that there are.
        - turns (:obj:`Optional[Turns]`): devices that roles share.
    """

    def __init__(
            self, config: AsyncConfig, trainer: Trainer, recorder: Recorder, num_collectors: int,
            turns: Turns | None = None
    ) -> None:
        self.config = config
        self.trainer = trainer
        self.recorder = recorder
        self.num_collectors = num_collectors
        self.turns = turns or Turns()
        self.prior: PriorRole | None = None  # the language model's trainer, where there is one
        self.wall_s = 0.0
        self.interrupted_by: int | None = None  # the signal that ended the run
        self.learner: LearnerLoop | None = None
        self.gate: AsyncTrainingCoordinator[Batch] = AsyncTrainingCoordinator(
            config.off_policy_degree,
            config.enable_async_eval,
            num_collectors=num_collectors,
            data_queue_size=config.data_queue_size,
            weight_sync_interval=config.weight_sync_interval,
            deterministic=config.deterministic,
            truncate_budget=config.off_policy_degree == 0,
            start=Boundary(0, trainer.train_iter, 0, trainer.train_iter, trainer.warming_up()),
        )

    def make_learner(
            self, next_batch: Callable[[], Taken[Batch]], store: Snapshots, evaluator: Evaluator | None, limits: Limits
    ) -> LearnerLoop:
        """The learner's loop on this run's parts."""
        self.learner = LearnerLoop(
            self.trainer, self.gate, next_batch, store, evaluator, self.recorder, limits,
            self.config.weight_sync_interval, self.config.enable_async_eval, self.config.eval_at_start, self.turns,
            self.after_batch
        )
        return self.learner

    def request_for(self, tickets: Mapping[str, Ticket]) -> CollectRequest:
        """What a collect is asked to do: fixed by the boundaries that it saw."""
        ticket = tickets[MODEL]
        boundary = ticket.boundary
        temperature, epsilon = self.trainer.collect_settings(boundary)
        return CollectRequest(
            ticket.number, boundary.version, boundary.train_iter, boundary.env_steps, temperature, epsilon,
            random_actions=boundary.warmup, prior_version=tickets[PRIOR].boundary.version if PRIOR in tickets else 0
        )

    def on_evaluation(self, result: EvalResult, state: Any) -> None:
        """Make a result known."""
        self.trainer.evaluated(result, state)
        self.recorder.evaluation(result)
        self.gate.report_evaluation(result.mean_return)
        logger.info(
            'evaluation at update %d, env step %d: mean return %.4g%s', result.train_iter, result.env_steps,
            result.mean_return, ' (best)' if result.best else ''
        )

    def after_batch(self) -> None:  # noqa: B027 (nothing by default)
        """Called in the learner's thread once a batch is paid off, before an evaluation."""

    @abstractmethod
    def run(self) -> None:
        """Run to the end."""

    def _ended(self) -> str:
        assert self.learner is not None
        if self.interrupted_by is not None:
            return f'interrupted by {signal.Signals(self.interrupted_by).name}'
        return self.learner.reason or 'failed'

    def report(self) -> dict[str, Any]:
        """What happened, in numbers."""
        assert self.learner is not None
        return {
            'env_steps': self.learner.env_steps,
            'train_iters': self.trainer.train_iter,
            'placement': self.config.placement if self.config.off_policy_degree else 'serial',
            'num_collectors': self.num_collectors,
            'wall_s': self.wall_s,
            'ended': self._ended(),
            'attained': self.recorder.costs.attained(
                self.num_collectors, available_cores(), self.config.enable_async_eval
            ),
            'cpu_s_per_batch': self.recorder.costs.per_batch(),
            'left_out': dict(self.recorder.left_out),
            **self.gate.get_statistics(),
            **(self.prior.report() if self.prior else {}),
        }
