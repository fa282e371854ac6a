"""PriorZero: UniZero on text games, whose searches ask a language model at their roots."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core import ConfigError
from ..priorzero.config import Asking, PriorZeroConfig
from ..priorzero.make import check_spec
from ..text.collector import Observations, Phase
from .text_unizero import TextUniZeroRecipe


class PriorZeroRecipe(TextUniZeroRecipe):
    """A desk with a language model hangs on every worker's policy; see ``PriorDesk``."""

    name = 'priorzero'
    entry = 'train_priorzero_async'
    workers = 'lzero_async.priorzero.workers'

    @staticmethod
    def serial_entry(input_cfg: list[Any], *args: Any) -> Any:
        raise ConfigError(
            'policy.enable_async_training=False: upstream has no PriorZero to fall back on; for a run in series set '
            'policy.off_policy_degree=0 instead'
        )

    def settle(self, main_config: Any) -> None:
        super().settle(main_config)
        if main_config.policy.model.world_model_cfg.get('obs_type') != 'text':
            raise ConfigError(
                "policy.model.world_model_cfg.obs_type must be 'text': a language model can only be asked about texts"
            )
        prior = self.prior(main_config.policy)  # what cannot work is refused before anything starts
        if prior.mixing.needs_llm:
            check_spec(prior.llm)

    def prior(self, policy_cfg: Any) -> PriorZeroConfig:
        return PriorZeroConfig.from_policy(policy_cfg)

    def worker_arguments(self, policy_cfg: Any) -> dict[str, Any]:
        prior = self.prior(policy_cfg)
        return {'asking': Asking(prior.llm, prior.device(policy_cfg.device), prior.mixing, recording=prior.trains)}

    def before_search(self, policy: Any, ready_obs: Observations, phase: Phase) -> None:
        policy.prior_desk.before_search(ready_obs)

    def after_search(self, policy: Any, ready_obs: Observations, output: dict[int, Any], phase: Phase) -> None:
        policy.prior_desk.after_search(ready_obs, output, record=phase == 'collect')

    def after_step(self, policy: Any, actions: Mapping[int, Any], timesteps: Mapping[int, Any], phase: Phase) -> None:
        if phase == 'collect':
            policy.prior_desk.after_step(timesteps)


PRIORZERO = PriorZeroRecipe()
