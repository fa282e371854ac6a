"""The entries: upstream's signatures, so that a training script changes one import."""
from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from easydict import EasyDict

from .config import AsyncConfig
from .core import MAIN_GUARD, ConfigError, Limits, WorkerSpec
from .engine import Engine
from .lightzero.build import (
    compiled,
    environments,
    packed,
    preserved_random_state,
    preserved_root_logger,
    worker_config,
    worker_seed,
)
from .lightzero.parts import Parts, make_parts
from .placement import Handle, make_handle
from .priorzero.teacher import Teacher
from .recipes import MUZERO, PRIORZERO, UNIZERO, Recipe, recipe_for
from .run import Run
from .serial import SerialRun
from .telemetry.recorder import Recorder
from .telemetry.report import summary, write_report
from .transport.memory import new_prefix
from .transport.weights import Layout
from .validate import prepare, validate_run

logger = logging.getLogger(__name__)
UNLIMITED = int(1e10)


def train_unizero_segment_async(
        input_cfg: Sequence[Any],
        seed: int = 0,
        model: torch.nn.Module | None = None,
        model_path: str | None = None,
        max_train_iter: int | None = UNLIMITED,
        max_env_step: int | None = UNLIMITED,
) -> Any:
    """
    Overview:
        Train UniZero or Sampled UniZero with collection, learning and evaluation at the same time.
    Arguments:
        - input_cfg (:obj:`Sequence[dict]`): ``[main_config, create_config]``, as for ``train_unizero_segment``; the
            keys that this package adds are described in ``docs/configuration.md``.
        - seed (:obj:`int`): Random seed; every worker derives its own from it.
        - model (:obj:`Optional[torch.nn.Module]`): A model to train instead of the config's.
        - model_path (:obj:`Optional[str]`): A checkpoint to start from.
        - max_train_iter (:obj:`Optional[int]`): Updates after which the run ends.
        - max_env_step (:obj:`Optional[int]`): Env steps after which the run ends.
    Returns:
        - policy (:obj:`Policy`): The policy with the learner's last weights.
    """
    return _train(UNIZERO, input_cfg, seed, model, model_path, max_train_iter, max_env_step)


def train_muzero_segment_async(
        input_cfg: Sequence[Any],
        seed: int = 0,
        model: torch.nn.Module | None = None,
        model_path: str | None = None,
        max_train_iter: int | None = UNLIMITED,
        max_env_step: int | None = UNLIMITED,
) -> Any:
    """
    Overview:
        Train MuZero, EfficientZero, Gumbel MuZero, Sampled EfficientZero or Stochastic MuZero with collection, learning
        and evaluation at the same time.
    Arguments:
        - input_cfg (:obj:`Sequence[dict]`): ``[main_config, create_config]``, as for ``train_muzero_segment``; the
            keys that this package adds are described in ``docs/configuration.md``.
        - seed (:obj:`int`): Random seed; every worker derives its own from it.
        - model (:obj:`Optional[torch.nn.Module]`): A model to train instead of the config's.
        - model_path (:obj:`Optional[str]`): A checkpoint to start from.
        - max_train_iter (:obj:`Optional[int]`): Updates after which the run ends.
        - max_env_step (:obj:`Optional[int]`): Env steps after which the run ends.
    Returns:
        - policy (:obj:`Policy`): The policy with the learner's last weights.
    """
    return _train(MUZERO, input_cfg, seed, model, model_path, max_train_iter, max_env_step)


def train_priorzero_async(
        input_cfg: Sequence[Any],
        seed: int = 0,
        model: torch.nn.Module | None = None,
        model_path: str | None = None,
        max_train_iter: int | None = UNLIMITED,
        max_env_step: int | None = UNLIMITED,
) -> Any:
    """
    Overview:
        Train UniZero on a text game with a language model's prior at the roots of its searches, while search is
        distilled into that language model; collection, both trainings and evaluation at the same time.
    Arguments:
        - input_cfg (:obj:`Sequence[dict]`): ``[main_config, create_config]``; ``policy.priorzero`` is described in
            ``docs/priorzero.md``.
        - seed (:obj:`int`): Random seed; every worker derives its own from it.
        - model (:obj:`Optional[torch.nn.Module]`): A world model to train instead of the config's.
        - model_path (:obj:`Optional[str]`): A checkpoint of the world model to start from.
        - max_train_iter (:obj:`Optional[int]`): Updates of the world model after which the run ends.
        - max_env_step (:obj:`Optional[int]`): Env steps after which the run ends.
    Returns:
        - policy (:obj:`Policy`): The policy with the world model's last weights.
    """
    return _train(PRIORZERO, input_cfg, seed, model, model_path, max_train_iter, max_env_step)


def _train(
        recipe: Recipe, input_cfg: Sequence[Any], seed: int, model: torch.nn.Module | None, model_path: str | None,
        max_train_iter: int | None, max_env_step: int | None
) -> Any:
    if getattr(multiprocessing.current_process(), '_inheriting', False):
        raise ConfigError(MAIN_GUARD)
    main_config, create_config = prepare(*input_cfg)
    recipe = recipe_for(recipe, main_config)
    config = AsyncConfig.from_policy(main_config.policy)
    validate_run(main_config, create_config, config, recipe.policy_types, recipe.entry, model_path)
    limits = Limits(
        UNLIMITED if max_env_step is None else max_env_step, UNLIMITED if max_train_iter is None else max_train_iter
    )
    if not config.enable_async_training:
        return recipe.serial_entry(
            [main_config, create_config], seed, model, model_path, limits.max_train_iter, limits.max_env_step
        )
    with _caller_undisturbed(config.enable_async_debug_log):
        cfg = compiled(recipe, main_config, create_config, seed, config.devices['learner'])
        logger.info('run directory %s; %s', cfg.exp_name, config.explain())
        if config.off_policy_degree == 0:
            return _run_serial(recipe, cfg, config, model, model_path, limits)
        return _run_async(recipe, cfg, config, model, model_path, limits)


def _run_serial(
        recipe: Recipe, cfg: EasyDict, config: AsyncConfig, model: torch.nn.Module | None, model_path: str | None,
        limits: Limits
) -> Any:
    collector_env = environments(cfg, 'collector', cfg.seed)
    evaluator_env = environments(cfg, 'evaluator', cfg.seed)
    # Torch keeps the threads it has: another number adds up in another order, and this is to equal upstream.
    parts = make_parts(recipe, cfg, config, model, model_path, threads=None)
    collector, evaluator, prior_trainer = importlib.import_module(recipe.workers).serial_workers(
        worker_config(recipe, cfg, None), collector_env, evaluator_env, parts.policy, recipe
    )
    teacher = Teacher.of(recipe.prior(cfg.policy), config, cfg.policy.device, cfg.seed)
    parts.trainer.learner.call_hook('before_run')
    recorder = Recorder(parts.directory, parts.writer)
    run = SerialRun(
        config, parts.trainer, collector, evaluator if config.evaluate else None, recorder, limits, prior_trainer,
        partial(teacher.role, recorder=recorder, prefix=None) if teacher else None
    )
    return _carry_out(run, parts)


def _run_async(
        recipe: Recipe, cfg: EasyDict, config: AsyncConfig, model: torch.nn.Module | None, model_path: str | None,
        limits: Limits
) -> Any:
    parts = make_parts(recipe, cfg, config, model, model_path, config.threads['learner'])
    parts.trainer.learner.call_hook('before_run')
    recorder = Recorder(parts.directory, parts.writer)
    prefix = new_prefix()
    layout, travelling = Layout.of(parts.trainer.weights()), packed(model)

    def handle(role: str, index: int, factory: str, arguments: dict[str, Any]) -> Handle:
        own = worker_seed(cfg.seed, index)
        spec = WorkerSpec(
            name=f'collector-{index}' if role == 'collector' else role,
            factory=f'{recipe.workers}:{factory}',
            arguments=dict(
                cfg=worker_config(recipe, cfg, config.devices[role]), recipe=recipe.name, seed=own,
                # Evaluations are comparable, between runs and with upstream's: their environments keep the run's seed.
                env_seed=own if role == 'collector' else cfg.seed, layout=layout,
                model=travelling, **arguments, **recipe.worker_arguments(cfg.policy)
            ),
            threads=config.threads[role],
        )
        logger.info('%s: seed %d, %d torch threads', spec.name, own, spec.threads)
        recorder.event(
            'worker', env_steps=0, train_iters=parts.trainer.train_iter, worker=spec.name, seed=own,
            threads=spec.threads, device=spec.arguments['cfg'].policy.device
        )
        return make_handle(config.placement, spec, prefix, parts.directory / 'logs', config.worker_timeout_s)

    collectors = [
        handle('collector', index, 'make_collect_worker', {'index': index}) for index in range(config.num_collectors)
    ]
    evaluator = handle('evaluator', config.num_collectors, 'make_eval_worker', {}) if config.evaluate else None
    shared = prefix if config.placement == 'process' else None
    teacher = Teacher.of(recipe.prior(cfg.policy), config, cfg.policy.device, cfg.seed)
    trainer_handle = make_handle(
        config.placement, teacher.spec, prefix, parts.directory / 'logs', config.worker_timeout_s
    ) if teacher else None
    run = Engine(
        config, parts.trainer, collectors, evaluator, recorder, limits, shared, trainer_handle,
        partial(teacher.role, recorder=recorder, prefix=shared) if teacher else None, teacher.turns if teacher else None
    )
    policy = _carry_out(run, parts)
    if run.interrupted_by == signal.SIGTERM:
        raise SystemExit(128 + signal.SIGTERM)
    if run.interrupted_by is not None:
        raise KeyboardInterrupt
    return policy


def _carry_out(run: Run, parts: Parts) -> Any:
    """Run to the end; whatever that end is, there is a report."""
    try:
        run.run()
    finally:
        report = run.report()
        write_report(parts.directory / 'report.json', report)
        logger.info('%s', summary(report))
        run.recorder.close()
        parts.writer.close()
        parts.restore()
    return parts.policy


@contextlib.contextmanager
def _caller_undisturbed(debug: bool) -> Iterator[None]:
    """The caller's random states, root logger and working directory are afterwards what they were before."""
    ours, directory = logging.getLogger(__package__), os.getcwd()
    level = ours.level
    if debug:
        ours.setLevel(logging.DEBUG)
    elif level == logging.NOTSET:
        ours.setLevel(logging.INFO)
    try:
        with preserved_random_state(), preserved_root_logger():
            yield
    finally:
        os.chdir(directory)
        ours.setLevel(level)
        # Upstream's loggers keep their files open.
        for name in [name for name in logging.root.manager.loggerDict if name.endswith('_logger')]:
            for handler in list(logging.getLogger(name).handlers):
                logging.getLogger(name).removeHandler(handler)
                handler.close()
