"""The driver's parts of a language model's training: how to make its trainer, and its role in a run."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config import AsyncConfig
from ..core import WorkerSpec
from ..gate import Gate
from ..resources import Turns, shared_devices
from ..roles.evaluator import Runner
from ..roles.prior import PriorRole
from ..telemetry.recorder import Recorder
from .config import PriorZeroConfig

NAME = 'prior-trainer'


@dataclass(frozen=True)
class Teacher:
    """Made where a language model is to be trained; see ``of``."""
    prior: PriorZeroConfig
    config: AsyncConfig
    device: str
    seed: int
    turns: Turns

    @classmethod
    def of(cls, prior: PriorZeroConfig | None, config: AsyncConfig, learner_device: str, seed: int) -> Teacher | None:
        """None where nothing is to be trained."""
        if prior is None or not prior.trains:
            return None
        device = prior.train.device or prior.device(learner_device)
        return cls(prior, config, device, seed, shared_devices({'learner': learner_device, 'prior': device}))

    @property
    def spec(self) -> WorkerSpec:
        train = self.prior.train
        return WorkerSpec(
            NAME, 'lzero_async.priorzero.training:make_prior_trainer',
            dict(llm=self.prior.llm, settings=train, device=self.device, seed=self.seed), threads=train.threads
        )

    def role(self, handle: Runner, world: Gate[Any], *, recorder: Recorder, prefix: str | None) -> PriorRole:
        """The trainer's role beside the world model's gate."""
        config, train = self.config, self.prior.train
        degree = config.off_policy_degree if train.off_policy_degree is None else train.off_policy_degree
        gate: Gate[Any] = Gate(
            degree, num_collectors=config.num_collectors, data_queue_size=config.data_queue_size,
            deterministic=config.deterministic
        )
        return PriorRole(handle, gate, train.budget, world, recorder, self.turns, train.held_out, prefix)
