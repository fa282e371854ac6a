"""
What a batch costs with a real config: collect, learn, evaluate in turn, as a serial run does, each on the clock.

The work is done in a child process and in a directory that is gone afterwards: the caller's random states, torch
threads and files stay as they are, and whatever ends the caller ends the trial.
"""
from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from easydict import EasyDict

from ..config import ROLES, AsyncConfig
from ..core import AsyncTrainingError, Batch, Boundary, Cancelled, CollectRequest, EvalRequest, WorkerSpec
from ..lightzero.build import compiled, environments, model_tensors, policy_of, worker_config
from ..lightzero.parts import make_parts
from ..lightzero.workers import CollectWorker, EvalWorker
from ..placement import ProcessHandle
from ..recipes import Recipe, recipe_named
from ..transport.memory import new_prefix
from ..transport.weights import Layout

SILENCE_S = 600.0  # without an update or a step of the environments
CLOSING_S = 10.0
Result = TypeVar('Result')


@dataclass(frozen=True)
class Spent:
    """What a piece of work took."""
    cpu_s: float  # all threads, and the processes that it started
    wall_s: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.cpu_s + other.cpu_s, self.wall_s + other.wall_s)

    def __mul__(self, factor: float) -> Spent:
        return Spent(self.cpu_s * factor, self.wall_s * factor)


@dataclass(frozen=True)
class Trial:
    """What was measured; medians over the rounds."""
    rounds: int
    wall_s: float  # of the whole trial, start of the process not counted
    env_steps: float  # of a batch
    updates: float  # that a batch pays for
    collect: Spent  # a batch, with one torch thread
    learn: Mapping[int, Spent]  # a batch, by torch threads
    evaluation: Spent | None  # one evaluation with one torch thread, None where the run would have none
    evaluations_per_batch: float
    cut_short: bool  # the evaluation would have taken longer
    device: str  # the learner's
    outside: Sequence[str]  # roles whose time passes elsewhere too: on a device, or in processes of environments
    memory: int  # bytes that the process held at the end


def thread_counts(cores: int) -> list[int]:
    """The learner's torch threads to try: powers of two up to the cores."""
    return [2**power for power in range(cores.bit_length())]


def run_trial(
        configs: tuple[EasyDict, EasyDict], recipe: Recipe, config: AsyncConfig, model_path: str | None,
        seconds: float, cores: int
) -> Trial:
    """
    Overview:
        A trial in a child process. At least one round is done, however long it takes.
    Arguments:
        - configs (:obj:`tuple[EasyDict, EasyDict]`): ``main_config`` and ``create_config``, prepared and validated.
        - recipe (:obj:`Recipe`): What differs between algorithms.
        - config (:obj:`AsyncConfig`): The settings of the run.
        - model_path (:obj:`Optional[str]`): A checkpoint to start from.
        - seconds (:obj:`float`): After how long no further round begins.
        - cores (:obj:`int`): Up to how many torch threads the learner is tried with.
    Returns:
        - trial (:obj:`Trial`): What was measured.
    """
    prefix = new_prefix()
    with tempfile.TemporaryDirectory(prefix='lzero-async-doctor-') as directory:
        spec = WorkerSpec('trial', f'{__name__}:make_trial', dict(
            directory=directory, configs=configs, recipe=recipe.name, config=config,
            model_path=model_path and os.path.abspath(model_path), seconds=seconds, threads=thread_counts(cores)
        ))
        handle = ProcessHandle(spec, prefix, Path(directory), SILENCE_S)
        try:
            handle.start()
            handle.wait_ready()
            trial = handle.run([], None)
            handle.dismiss()
            return trial
        except BaseException:
            handle.kill()
            raise
        finally:
            handle.close(CLOSING_S)


# ---------------------------------------------------------------------- in the child


def make_trial(
        *, directory: str, configs: tuple[EasyDict, EasyDict], recipe: str, config: AsyncConfig,
        model_path: str | None, seconds: float, threads: Sequence[int], beat: Callable[[], None], own_process: bool
) -> TrialWorker:
    """Called where the trial takes place."""
    assert own_process
    os.chdir(directory)
    main, create = configs
    main.exp_name = 'trial'
    # What happens once at the beginning of a run says nothing about a batch; wandb has nothing to see here.
    main.policy.update(use_wandb=False, train_start_after_envsteps=0, random_collect_episode_num=0)
    return TrialWorker(
        recipe_named(recipe), main, create, dataclasses.replace(config, min_buffer_size=0), model_path, seconds,
        threads, beat
    )


class TrialWorker:
    """The parts of an asynchronous run, each role with its own policy as in a worker, taking turns in one process."""

    def __init__(
            self, recipe: Recipe, main: EasyDict, create: EasyDict, config: AsyncConfig, model_path: str | None,
            seconds: float, threads: Sequence[int], beat: Callable[[], None]
    ) -> None:
        self._recipe, self._config = recipe, config
        self._seconds, self._threads, self._beat = seconds, list(threads), beat
        self._cfg = compiled(recipe, main, create, 0, config.devices['learner'])
        envs = {role: environments(self._cfg, role, self._cfg.seed) for role in ('collector', 'evaluator')}
        self._trainer = make_parts(recipe, self._cfg, config, None, model_path, threads=None).trainer
        self._trainer.learner.call_hook('before_run')
        self._private: list[Any] = []  # the workers' policies
        self._collector = CollectWorker(*self._role('collector', envs), beat=beat, **self._policy('collector'))
        self._evaluator = EvalWorker(*self._role('evaluator', envs), beat=self._hurry, **self._policy('evaluator'))
        self._env_steps = 0
        self._update_s = 0.0  # wall time of an update, the latest
        self._deadline = math.inf  # of the evaluation at hand
        self._cut_short = False

    def _role(self, role: str, envs: Mapping[str, Any]) -> tuple[EasyDict, Any]:
        return worker_config(self._recipe, self._cfg, self._config.devices[role]), envs[role]

    def _policy(self, role: str) -> dict[str, Any]:
        policy = policy_of(worker_config(self._recipe, self._cfg, self._config.devices[role]), None)
        self._recipe.ready(policy)
        self._private.append(policy)
        self._refresh(policy)
        return dict(policy=policy, recipe=self._recipe, layout=Layout.of(self._trainer.weights()))

    def load(self, axis: str, version: int, weights: memoryview) -> None:
        """There are none."""

    def cancel(self) -> None:
        """The driver kills the process instead."""

    def close(self) -> None:
        self._collector.close()
        self._evaluator.close()

    def run(self, request: None) -> Trial:
        """As many rounds as there is time for."""
        began = time.monotonic()
        self._warm_up()
        rounds = [self._round(0)]
        while time.monotonic() - began < self._seconds:
            rounds.append(self._round(len(rounds)))
        updates = statistics.median(round_.updates for round_ in rounds)
        evaluations = [round_.evaluation for round_ in rounds if round_.evaluation is not None]
        return Trial(
            rounds=len(rounds),
            wall_s=time.monotonic() - began,
            env_steps=statistics.median(round_.env_steps for round_ in rounds),
            updates=updates,
            collect=_median([round_.collect for round_ in rounds]),
            learn={threads: _median([round_.learn[threads] for round_ in rounds]) for threads in self._threads},
            evaluation=_median(evaluations) if evaluations else None,
            # Looked at between two batches, so there is not more than one.
            evaluations_per_batch=min(1.0, updates / max(1, self._cfg.policy.eval_freq)) if evaluations else 0.0,
            cut_short=self._cut_short,
            device=self._cfg.policy.device,
            outside=[role for role in ROLES if self._works_outside(role)],
            memory=psutil.Process().memory_info().rss,
        )

    def _warm_up(self) -> None:
        """A first collect takes about twice the steps, a first update makes the optimizer's state: neither counts."""
        batch = self._collect()
        self._env_steps += batch.env_steps
        self._trainer.push(batch, self._env_steps)
        # Too little for an update: the same again costs no search and is as good for measuring.
        for _ in range(self._cfg.policy.batch_size):
            if self._trainer.budget(batch) is not None:
                break
            self._trainer.buffer.push_game_segments((batch.segments, batch.metas))
        for threads in self._threads:
            torch.set_num_threads(threads)
            self._learn(1, 1)
            self._update_s = self._learn(1, 1).wall_s

    def _round(self, number: int) -> _Round:
        torch.set_num_threads(1)
        batch, collect = _measured(self._collect)
        self._env_steps += batch.env_steps
        exact, pushing = _measured(lambda: self._push(batch))
        updates = max(1, round(exact))
        share = self._share(updates, collect.wall_s / len(self._threads))
        spent: dict[int, Spent] = {}
        turn = number % len(self._threads)  # so that not always the same comes first
        for threads in self._threads[turn:] + self._threads[:turn]:
            torch.set_num_threads(threads)
            spent[threads] = self._learn(updates, share)
        torch.set_num_threads(1)
        _, closing = _measured(self._trainer.end_epoch)
        self._update_s = statistics.mean(some.wall_s for some in spent.values()) / share
        for policy in self._private:
            self._refresh(policy)
        _, evaluation = _measured(self._evaluate)
        learn = {threads: pushing + some * (float(exact) / share) + closing for threads, some in spent.items()}
        return _Round(batch.env_steps, float(exact), collect, learn, evaluation if self._evaluates else None)

    @property
    def _evaluates(self) -> bool:
        return self._config.evaluate and not (self._recipe.offline_evaluation and self._cfg.policy.eval_offline)

    def _works_outside(self, role: str) -> bool:
        device = self._config.devices[role] or self._cfg.policy.device
        return device != 'cpu' or role != 'learner' and self._cfg.env.manager.type != 'base'

    def _collect(self) -> Batch:
        train_iter = self._trainer.train_iter
        temperature, epsilon = self._trainer.collect_settings(Boundary(0, train_iter, self._env_steps, train_iter))
        return self._collector.run(CollectRequest(0, train_iter, train_iter, self._env_steps, temperature, epsilon))

    def _push(self, batch: Batch) -> Fraction:
        """Into the replay buffer; the updates that it pays for."""
        self._trainer.push(batch, self._env_steps)
        exact = self._trainer.budget(batch)
        if exact is None:
            raise AsyncTrainingError(f'{self._trainer.buffer} never holds enough for an update')
        return exact

    def _share(self, updates: int, seconds: float) -> int:
        """How many of a batch's updates to do: about so many seconds of them, and reanalyses in proportion."""
        share = math.ceil(seconds / max(1e-6, self._update_s))
        frequency = self._cfg.policy.buffer_reanalyze_freq
        interval = max(1, int(updates // frequency)) if frequency >= 1 else 1
        return min(updates, interval * math.ceil(share / interval))

    def _learn(self, updates: int, share: int) -> Spent:
        """Some of a batch's updates."""
        self._trainer.begin_epoch(updates)

        def learn() -> None:
            for _ in range(share):
                self._trainer.update()
                self._beat()

        return _measured(learn)[1]

    def _evaluate(self) -> None:
        """One evaluation; given up where it takes longer than the whole trial should."""
        if not self._evaluates:
            return
        self._deadline = time.monotonic() + self._seconds
        try:
            self._evaluator.run(EvalRequest(self._trainer.train_iter, self._env_steps))
        except Cancelled:
            self._cut_short = True

    def _hurry(self) -> None:
        self._beat()
        if time.monotonic() > self._deadline:
            self._evaluator.cancel()

    @torch.no_grad()
    def _refresh(self, policy: Any) -> None:
        weights = self._trainer.weights()
        for name, tensor in model_tensors(policy).items():
            tensor.copy_(weights[name])
        self._recipe.after_load(policy)


@dataclass(frozen=True)
class _Round:
    env_steps: int
    updates: float
    collect: Spent
    learn: Mapping[int, Spent]
    evaluation: Spent | None


def _median(spent: Sequence[Spent]) -> Spent:
    return Spent(statistics.median(s.cpu_s for s in spent), statistics.median(s.wall_s for s in spent))


def _measured(work: Callable[[], Result]) -> tuple[Result, Spent]:
    """Do it; what it gave and what it took."""
    cpu, wall = _cpu_s(), time.monotonic()
    result = work()
    wall = time.monotonic() - wall
    return result, Spent(_cpu_s() - cpu, wall)


def _cpu_s() -> float:
    """CPU seconds of this process and of those that it started."""
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(child.cpu_times()[:2])
    return total
