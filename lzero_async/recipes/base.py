"""The questions that a recipe answers."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal

from lzero.worker import MuZeroEvaluator, MuZeroSegmentCollector

from ..priorzero.config import PriorZeroConfig

Verdict = Literal['train', 'not yet', 'insufficient']


class Recipe(ABC):
    """How one of upstream's segment entries treats its algorithms."""

    name: str  # travels to workers
    entry: str  # this package's entry
    serial_entry: Callable[..., Any]  # upstream's
    buffers: Mapping[str, type]  # policy type -> upstream's replay buffer
    offline_evaluation: bool  # whether upstream's entry honours eval_offline
    logs_buffer_times: bool  # whether upstream's entry logs the buffer's run times
    workers = 'lzero_async.lightzero.workers'  # the module that makes collectors and evaluators

    @property
    def policy_types(self) -> tuple[str, ...]:
        return tuple(self.buffers)

    @abstractmethod
    def device(self, main_config: Any) -> str:
        """The learner's device, from a config that is not compiled yet."""

    @abstractmethod
    def seeds_cuda(self, policy_cfg: Any) -> bool:
        """Whether upstream seeds CUDA too."""

    @abstractmethod
    def verdict(self, policy_cfg: Any, buffer: Any, env_steps: int) -> Verdict:
        """Whether the batch just pushed may be trained; 'not yet' counts as an epoch, 'insufficient' does not."""

    @abstractmethod
    def reanalyzes_at(self, epoch: int, frequency: float) -> bool:
        """Whether an epoch begins with a reanalysis, for frequencies below 1."""

    @abstractmethod
    def complete(self, train_data: list[Any], train_iter: int) -> list[Any]:
        """A sampled batch as the policy's learn mode wants it."""

    def prior(self, policy_cfg: Any) -> PriorZeroConfig | None:
        """What is asked of a language model, where there is one."""
        return None

    def worker_arguments(self, policy_cfg: Any) -> dict[str, Any]:
        """What the makers of workers get beside what all get."""
        return {}

    def settle(self, main_config: Any) -> None:  # noqa: B027 (nothing by default)
        """Complete a config before it is compiled."""

    def ready(self, policy: Any) -> None:  # noqa: B027 (nothing by default)
        """Called once for each policy, the learner's and every worker's, right after it was made."""

    def make_collector(self, whole_policy: Any, /, **arguments: Any) -> Any:
        """The collector of a worker that has this policy; the arguments are upstream's."""
        return MuZeroSegmentCollector(**arguments)

    def left_out(self, collector: Any) -> dict[str, int]:
        """What has found no room since the last call, counted by name."""
        return {}

    def make_evaluator(self, whole_policy: Any, /, **arguments: Any) -> Any:
        """The evaluator of a worker that has this policy; the arguments are upstream's."""
        return MuZeroEvaluator(**arguments)

    def before_update(self, policy: Any, train_iter: int, env_steps: int) -> None:  # noqa: B027 (nothing by default)
        """Called before each update."""

    def after_epoch(self, policy: Any) -> None:  # noqa: B027 (nothing by default)
        """Called after the updates of a batch."""

    def after_load(self, policy: Any) -> None:  # noqa: B027 (nothing by default)
        """Called after new weights were put into a worker's policy."""

    def lighten(self, model: Any) -> Callable[[], None]:
        """Make a model that only infers, a worker's or the target, leave out what nobody reads; what undoes it."""
        return lambda: None

    def place(self, policy_cfg: Any, device: str) -> None:
        """Make a worker's private policy config live on a device."""
        policy_cfg.device = device
        policy_cfg.cuda = device.startswith('cuda')

    def act_at_random(self, policy: Any, output: dict[int, Any], choose: Callable[[int], Any]) -> None:
        """Replace the actions of a collect forward by those that ``choose`` returns per environment."""
        for env_id in output:
            output[env_id]['action'] = choose(env_id)
