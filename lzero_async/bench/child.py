"""
One measured run in a process of its own: ``python -m lzero_async.bench.child ORDER``, an order in JSON.

Writes one line ``RESULT`` with JSON to stdout. Serial rows are upstream's own entry; the only thing added to it is a
look at the time around its collects and updates.
"""
from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from ding.worker import BaseLearner
from lzero.worker import MuZeroEvaluator, MuZeroSegmentCollector

from .. import entry
from .. import run as engine_run
from ..validate import prepare
from .counting import Collect, Update, credited
from .settings import PROCESS, THREAD, configs

RESULT = 'RESULT '


@dataclass(frozen=True)
class Order:
    """What a child is to run."""
    row: str  # one of settings.ROWS
    env_steps: int  # the run's limit
    config: str | None = None  # a config file; None is the pinned setting
    seed: int = 0
    threads: int | None = None  # torch threads of the process; None leaves torch's default
    max_collects: int | None = None  # ends a serial run after so many on the clock
    learn: bool = False  # evaluate as the config says, and tell the returns; no stop value ends the run

    def json(self) -> str:
        return json.dumps(asdict(self))


class Enough(Exception):
    """So much was measured as was ordered. Ends a serial run from inside."""


class Stopwatch:
    """Notes when updates were done and, where collects are in this process and in series, when those were."""

    def __init__(self, max_collects: int | None) -> None:
        self._max_collects = max_collects
        self.began_at = time.time()
        self.updates: list[Update] = []
        self.evaluations: list[dict[str, float]] = []
        self._collects: list[tuple[int, float, float]] = []  # env steps, begin, end
        self._warmup = 0  # collects that were over before the first trained one began
        BaseLearner.train = self._timed_update(BaseLearner.train)

    def watch_collects(self) -> None:
        MuZeroSegmentCollector.collect = self._timed_collect(MuZeroSegmentCollector.collect)

    def watch_evaluations(self) -> None:
        MuZeroEvaluator.eval = self._noted_evaluation(MuZeroEvaluator.eval)

    def collects(self) -> list[Collect]:
        return [Collect(*noted, warmup=index < self._warmup) for index, noted in enumerate(self._collects)]

    def _timed_update(self, train: Callable[..., Any]) -> Callable[..., Any]:

        @functools.wraps(train)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.updates:
                self._warmup = max(0, len(self._collects) - 1)
            began_at = time.time()
            result = train(*args, **kwargs)
            self.updates.append(Update(began_at, time.time()))
            return result

        return timed

    def _timed_collect(self, collect: Callable[..., Any]) -> Callable[..., Any]:

        @functools.wraps(collect)
        def timed(collector: Any, *args: Any, **kwargs: Any) -> Any:
            if self.updates and len(self._collects) - self._warmup - 1 == self._max_collects:
                raise Enough
            before, began_at = collector.envstep, time.time()
            result = collect(collector, *args, **kwargs)
            self._collects.append((collector.envstep - before, began_at, time.time()))
            return result

        return timed

    def _noted_evaluation(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:

        @functools.wraps(evaluate)
        def noted(
                evaluator: Any, save_ckpt_fn: Any = None, train_iter: int = -1, envstep: int = -1, *args: Any,
                **kwargs: Any
        ) -> Any:
            stop, info = evaluate(evaluator, save_ckpt_fn, train_iter, envstep, *args, **kwargs)
            returns = [float(value) for value in info['eval_episode_return']]
            self.evaluations.append({
                'env_steps': envstep, 'train_iters': train_iter, 'mean_return': sum(returns) / len(returns),
                'at': time.time()
            })
            return stop, info

        return noted


def run(order: Order) -> dict[str, Any]:
    """Carry out an order in the current directory; what it is credited with."""
    recipe, (main_config, create_config) = configs(
        Path(order.config) if order.config else None, order.row, evaluate=order.learn
    )
    stop_value = main_config.env.get('stop_value', 10**10)  # DI-engine's own default
    if order.learn:
        main_config.env.stop_value = math.inf
    limit = {'seed': order.seed, 'max_env_step': order.env_steps}
    watch, report = Stopwatch(order.max_collects), {}
    if order.row in (THREAD, PROCESS):
        as_upstream_counts()
        getattr(entry, recipe.entry)([main_config, create_config], **limit)
        directory = Path(main_config.exp_name, 'async')
        report = json.loads((directory / 'report.json').read_text(encoding='utf-8'))
        collects = recorded_collects(directory / 'metrics.jsonl')
        watch.evaluations = recorded_evaluations(directory / 'metrics.jsonl')
    else:
        watch.watch_collects()
        watch.watch_evaluations()
        with contextlib.suppress(Enough):
            recipe.serial_entry(list(prepare(main_config, create_config)), **limit)
        collects = watch.collects()
    speeds = credited(collects, watch.updates) if watch.updates else {}
    if not speeds.get('env_steps'):
        raise SystemExit(f'{order.env_steps} env steps are too few: none came after the first update (--env-steps)')
    learnt = {
        'stop_value': stop_value, 'evaluations': [
            {**evaluation, 'seconds': evaluation['at'] - watch.began_at} for evaluation in watch.evaluations
        ],
    } if order.learn else {}
    return {
        'name': order.row, 'seed': order.seed, **speeds, **learnt,
        'threads': None if report else torch.get_num_threads(),
        'attained': report.get('attained'), 'cpu_s_per_batch': report.get('cpu_s_per_batch'),
    }


def as_upstream_counts() -> None:
    """
    Upstream drops the fraction of an update that a batch does not pay for (lzero/entry/utils.py:90), this package
    carries it over: several percent more updates per env step. Here both do the same work.
    """
    made = engine_run.AsyncTrainingCoordinator

    def truncating(*args: Any, **kwargs: Any) -> Any:
        return made(*args, **{**kwargs, 'truncate_budget': True})

    engine_run.AsyncTrainingCoordinator = truncating  # type: ignore[misc, assignment]


def recorded_collects(metrics: Path) -> list[Collect]:
    """The collects of an asynchronous run, wherever they took place."""
    events = [json.loads(line) for line in metrics.read_text(encoding='utf-8').splitlines()]
    return [
        Collect(
            event['batch_env_steps'], event['collected_at'] - event['collect_s'], event['collected_at'],
            event['warmup']
        ) for event in events if event['event'] == 'batch'
    ]


def recorded_evaluations(metrics: Path) -> list[dict[str, float]]:
    """The evaluations of an asynchronous run."""
    events = [json.loads(line) for line in metrics.read_text(encoding='utf-8').splitlines()]
    return [
        {**{key: event[key] for key in ('env_steps', 'train_iters', 'mean_return')}, 'at': event['time']}
        for event in events if event['event'] == 'evaluation'
    ]


def end_with_owner() -> None:
    """The bench holds the other end of stdin. When it closes, nobody wants the result any more."""

    def wait() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name='owner', daemon=True).start()


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    end_with_owner()
    result = run(order)
    sys.stdout.write(f'\n{RESULT}{json.dumps(result)}\n')


if __name__ == '__main__':
    main()
