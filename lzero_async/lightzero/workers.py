"""
A collector and an evaluator that work alone: upstream's own classes, each with its whole policy and its environments.

They see weights only as snapshots, loaded between two jobs. What they would write to TensorBoard is kept on a tape and
travels with the result, so that a run has one stream with one owner.
"""
from __future__ import annotations

import functools
import inspect
import logging
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ding.utils import set_pkg_seed
from easydict import EasyDict

from ..core import Batch, Cancelled, CollectRequest, EvalRequest, EvalResult
from ..recipes import Recipe, recipe_named
from ..transport.weights import Layout, read
from .build import environments, model_tensors, policy_of

logger = logging.getLogger(__name__)


class ScalarTape:
    """Stands in for a TensorBoard writer and remembers what it was told."""

    def __init__(self) -> None:
        self._scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: Any, step: int) -> None:
        self._scalars.append((tag, float(value), int(step)))

    def cut(self) -> list[tuple[str, float, int]]:
        """What was told since the last cut."""
        scalars, self._scalars = self._scalars, []
        return scalars

    def flush(self) -> None:
        """Nothing is buffered elsewhere."""

    def close(self) -> None:
        """Upstream's workers close the writer they were given; a tape has nothing to close."""


class EpisodeTape(list):
    """Upstream's list of finished episodes, which it empties when it logs; this remembers the returns."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: list[float] = []

    def append(self, info: dict[str, Any]) -> None:
        self.returns.append(float(np.asarray(info['reward']).item()))
        super().append(info)


class _Worker:
    """What both have in common: a policy, a guard on its forward, the loading of snapshots."""

    def __init__(
            self, policy: Any, recipe: Recipe, layout: Layout | None = None, own_process: bool = False,
            beat: Callable[[], None] | None = None
    ) -> None:
        self._policy = policy
        self._recipe = recipe
        self._layout = layout  # None where the policy is the learner's own
        self._targets = model_tensors(policy)
        self._beat = beat or (lambda: None)
        self._cancelled = threading.Event()
        self._clock = time.process_time if own_process else time.thread_time
        self._tape = ScalarTape()
        if layout is not None:
            recipe.lighten(policy._collect_model)

    def load(self, axis: str, version: int, weights: memoryview) -> None:
        assert self._layout is not None
        with self._inference():
            read(self._layout, weights, self._targets)
            self._recipe.after_load(self._policy)

    def _inference(self) -> Any:
        """
        A search is never differentiated, so torch need not count versions of tensors; not on a shared policy, and not
        around environments, which may do as they like.
        """
        return torch.inference_mode(self._layout is not None)

    def _guard(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Upstream calls forward once per step: the place to give a sign of life and to heed a cancel."""
        # Collector and evaluator pass a timestep, which stochastic_muzero.py:575, 676 do not know: TypeError upstream.
        known = inspect.signature(forward).parameters

        def guarded(*args: Any, **kwargs: Any) -> Any:
            self._beat()
            if self._cancelled.is_set():
                raise Cancelled
            with self._inference():
                return forward(*args, **{name: value for name, value in kwargs.items() if name in known})

        return guarded

    def cancel(self) -> None:
        self._cancelled.set()


class CollectWorker(_Worker):
    """Upstream's segment collector, one batch per request."""

    def __init__(self, cfg: EasyDict, env: Any, index: int = 0, **common: Any) -> None:
        super().__init__(**common)
        self._index = index
        self._act_at_random = False
        mode = self._policy.collect_mode
        self._collector = self._recipe.make_collector(
            self._policy, env=env, policy=mode._replace(forward=self._guard(self._explore(mode.forward))),
            tb_logger=self._tape, exp_name=cfg.exp_name, policy_config=cfg.policy,
            instance_name='collector' if index == 0 else f'collector_{index}'
        )
        self._collector._instance_name = 'collector'  # the tag's prefix: all collectors write upstream's tags
        self._collector._episode_info = EpisodeTape()

    def run(self, request: CollectRequest) -> Batch:
        started, cpu = time.monotonic(), self._clock()
        collector = self._collector
        collector._total_envstep_count = request.env_steps  # its log counts the run's steps, not this worker's
        self._act_at_random = request.random_actions
        segments, metas = collector.collect(
            train_iter=request.train_iter,
            policy_kwargs={'temperature': request.temperature, 'epsilon': request.epsilon}
        )
        returns, collector._episode_info.returns = collector._episode_info.returns, []
        return Batch(
            number=request.number, worker=self._index, version=request.version, segments=segments, metas=metas,
            env_steps=collector.envstep - request.env_steps, episode_returns=returns,
            temperature=request.temperature, epsilon=request.epsilon, random_actions=request.random_actions,
            duration_s=time.monotonic() - started, ended_at=time.time(), cpu_s=self._clock() - cpu,
            scalars=self._tape.cut(), left_out=self._recipe.left_out(collector)
        )

    def _explore(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """
        Warm-up: search as usual, act at random. Upstream's own random_collect passes a keyword that the segment
        collector lacks, and its random policy does not know every type (lzero/entry/utils.py:134).
        """

        @functools.wraps(forward)
        def explore(data: Any, action_mask: Any, *args: Any, **kwargs: Any) -> Any:
            output = forward(data, action_mask, *args, **kwargs)
            if self._act_at_random:
                masks = dict(zip(output, action_mask, strict=False))
                self._recipe.act_at_random(
                    self._policy, output, lambda env_id: random_action(output[env_id], masks[env_id])
                )
            return output

        return explore

    def close(self) -> None:
        self._collector.close()


def random_action(output: dict[str, Any], mask: Any) -> Any:
    """One of the actions that a search could have chosen, all alike likely."""
    sampled = output.get('root_sampled_actions')
    if sampled is not None:
        chosen = sampled[np.random.randint(len(sampled))]
        like = np.asarray(output['action'])
        action = np.asarray(getattr(chosen, 'value', chosen)).astype(like.dtype).reshape(like.shape)
        return action if isinstance(output['action'], np.ndarray) else action.item()
    return np.random.choice(np.flatnonzero(np.asarray(mask) == 1))


class EvalWorker(_Worker):
    """Upstream's evaluator, one evaluation per request."""

    def __init__(self, cfg: EasyDict, env: Any, **common: Any) -> None:
        super().__init__(**common)
        mode = self._policy.eval_mode
        self._evaluator = self._recipe.make_evaluator(
            self._policy, eval_freq=cfg.policy.eval_freq, n_evaluator_episode=cfg.env.n_evaluator_episode,
            stop_value=cfg.env.stop_value, env=env, policy=mode._replace(forward=self._guard(mode.forward)),
            tb_logger=self._tape, exp_name=cfg.exp_name, policy_config=cfg.policy
        )

    def run(self, request: EvalRequest) -> EvalResult:
        started, cpu = time.monotonic(), self._clock()
        best: list[str] = []  # upstream asks for a checkpoint where the return is a new best; the driver writes it
        stop, info = self._evaluator.eval(best.append, request.train_iter, request.env_steps)
        scalars = self._tape.cut()
        return EvalResult(
            train_iter=request.train_iter, env_steps=request.env_steps, stop=bool(stop), best=bool(best),
            mean_return=next(value for tag, value, _ in scalars if tag.endswith('/reward_mean')), episode_info=info,
            duration_s=time.monotonic() - started, cpu_s=self._clock() - cpu, scalars=scalars
        )

    def close(self) -> None:
        self._evaluator.close()


# ---------------------------------------------------------------------- factories, called where the worker will live


def make_collect_worker(*, index: int, **arguments: Any) -> CollectWorker:
    """A collector with environments, random states and a policy of its own."""
    cfg, env, common = parts_of_worker('collector', **arguments)
    return CollectWorker(cfg, env, index, **common)


def make_eval_worker(**arguments: Any) -> EvalWorker:
    """An evaluator with environments, random states and a policy of its own."""
    cfg, env, common = parts_of_worker('evaluator', **arguments)
    return EvalWorker(cfg, env, **common)


def serial_workers(
        cfg: EasyDict, collector_env: Any, evaluator_env: Any, policy: Any, recipe: Recipe
) -> tuple[CollectWorker, EvalWorker, None]:
    """Workers on the learner's own policy; there is no language model to train."""
    shared = dict(policy=policy, recipe=recipe)
    return CollectWorker(cfg, collector_env, **shared), EvalWorker(cfg, evaluator_env, **shared), None


def parts_of_worker(
        which: str, *, cfg: EasyDict, recipe: str, seed: int, env_seed: int, layout: Layout,
        model: bytes | None, own_process: bool, beat: Callable[[], None]
) -> tuple[EasyDict, Any, dict[str, Any]]:
    """Config, environments and what every worker's class takes."""
    found = recipe_named(recipe)
    env = environments(cfg, which, env_seed)
    if own_process:
        set_pkg_seed(seed, use_cuda=found.seeds_cuda(cfg.policy))
    logger.info('%s: seed %d, environments from %d on', which, seed, env_seed)
    policy = policy_of(cfg, pickle.loads(model) if model else None)
    found.ready(policy)
    return cfg, env, dict(policy=policy, recipe=found, layout=layout, own_process=own_process, beat=beat)
