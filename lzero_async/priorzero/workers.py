"""Collectors and evaluators that ask a language model before they search."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..core import PRIOR, Batch, CollectRequest, EvalRequest, EvalResult
from ..lightzero.workers import CollectWorker, EvalWorker, parts_of_worker
from ..transport.weights import Layout
from .config import Asking, PriorZeroConfig
from .make import make_prior
from .prior import LLMPrior
from .records import RecordTape
from .root import RootPrior, context_of
from .training import PriorTrainer

NOT_ASKED = np.empty(0, np.float32)  # the log-probabilities of a search that asked no language model


class PriorDesk:
    """A worker's language model and what it has seen; hangs on the worker's policy, where the recipe finds it."""

    def __init__(self, policy: Any, prior: LLMPrior, asking: Asking, worker: int = 0) -> None:
        self.prior = prior
        self.root = RootPrior(policy, prior, asking.mixing)
        self.tape = RecordTape(worker) if asking.recording else None
        self.model_version = 0
        self._layout = Layout.of(prior.state())
        policy.prior_desk = self

    def load(self, version: int, weights: memoryview) -> None:
        self.prior.load(self._layout.views(weights), version)

    def before_search(self, ready_obs: Mapping[int, Mapping[str, Any]]) -> None:
        self.root.before_search(ready_obs)

    def after_search(self, ready_obs: Mapping[int, Mapping[str, Any]], output: Mapping[int, Any], record: bool) -> None:
        scores = self.root.after_search()
        if not record or self.tape is None:
            return
        for env_id, obs in ready_obs.items():
            valid = np.flatnonzero(np.asarray(obs['action_mask']))
            visits = np.asarray(output[env_id]['visit_count_distributions'], dtype=np.float64)[valid]
            self.tape.searched(
                env_id, context=context_of(obs), actions=tuple(obs['valid_actions']), visits=visits / visits.sum(),
                action=int(np.searchsorted(valid, int(output[env_id]['action']))),
                log_probs=scores.get(env_id, NOT_ASKED), model_version=self.model_version,
                prior_version=self.root.version
            )

    def after_step(self, timesteps: Mapping[int, Any]) -> None:
        if self.tape is not None:
            for env_id, timestep in timesteps.items():
                self.tape.stepped(env_id, float(np.asarray(timestep.reward).item()), bool(timestep.done))


class _Asks:
    """What both kinds of worker do with their desk; stands before the worker's own class."""

    def __init__(self, *args: Any, desk: PriorDesk, **kwargs: Any) -> None:
        self._desk = desk
        super().__init__(*args, **kwargs)

    def load(self, axis: str, version: int, weights: memoryview) -> None:
        if axis == PRIOR:
            self._desk.load(version, weights)
        else:
            super().load(axis, version, weights)  # type: ignore[misc]

    def close(self) -> None:
        super().close()  # type: ignore[misc]
        self._desk.prior.close()


class PriorCollectWorker(_Asks, CollectWorker):
    """One batch per request, with the records of its steps."""

    def run(self, request: CollectRequest) -> Batch:
        desk = self._desk
        desk.model_version, cut_before = request.version, desk.prior.truncated
        batch = super().run(request)
        return replace(
            batch, records=desk.tape.cut() if desk.tape else (),
            left_out={**batch.left_out, 'prompts_cut': desk.prior.truncated - cut_before}
        )


class PriorEvalWorker(_Asks, EvalWorker):
    """One evaluation per request, on a pinned pair of versions."""

    def run(self, request: EvalRequest) -> EvalResult:
        return replace(super().run(request), prior_version=self._desk.prior.version)


# ---------------------------------------------------------------------- factories, called where the worker will live


def make_collect_worker(*, index: int, asking: Asking, **arguments: Any) -> PriorCollectWorker:
    """A collector with environments, a policy and a language model of its own."""
    cfg, env, common = parts_of_worker('collector', **arguments)
    return PriorCollectWorker(cfg, env, index, desk=_desk(common['policy'], asking, index), **common)


def make_eval_worker(*, asking: Asking, **arguments: Any) -> PriorEvalWorker:
    """An evaluator with environments, a policy and a language model of its own."""
    cfg, env, common = parts_of_worker('evaluator', **arguments)
    return PriorEvalWorker(cfg, env, desk=_desk(common['policy'], replace(asking, recording=False)), **common)


def _desk(policy: Any, asking: Asking, worker: int = 0) -> PriorDesk:
    llm = asking.llm if asking.mixing.needs_llm else {'backend': 'uniform'}  # nobody would ask it
    with torch.random.fork_rng(devices=[]):  # making a model draws numbers; searches are to draw the same as without
        prior = make_prior(llm, asking.device)
    return PriorDesk(policy, prior, asking, worker)


def serial_workers(
        cfg: Any, collector_env: Any, evaluator_env: Any, policy: Any, recipe: Any
) -> tuple[PriorCollectWorker, PriorEvalWorker, PriorTrainer | None]:
    """Workers on the learner's own policy, and a trainer on the very language model that they ask."""
    prior_cfg: PriorZeroConfig = recipe.prior(cfg.policy)
    desk = _desk(policy, recipe.worker_arguments(cfg.policy)['asking'])
    shared = dict(policy=policy, recipe=recipe, desk=desk)
    trainer = PriorTrainer(
        desk.prior, prior_cfg.train, cfg.seed, own_process=False, beat=lambda: None
    ) if prior_cfg.trains else None
    return PriorCollectWorker(cfg, collector_env, **shared), PriorEvalWorker(cfg, evaluator_env, **shared), trainer
