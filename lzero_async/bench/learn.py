"""Does it learn as well: upstream's serial entry and this package on the same config, several seeds, alternating."""
from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo_configs import cartpole_unizero_segment_async_config as drop_in

from ..core import ConfigError
from ..telemetry.report import write_report
from .child import Order
from .machine import machine
from .measure import measure
from .settings import PROCESS, SERIAL
from .table import columns

LAST = 3  # evaluations at the end of a run that its result is the mean of
ROWS = {SERIAL: 'serial', PROCESS: 'asynchronous'}


@dataclass(frozen=True)
class Plan:
    """What was asked for."""
    env_steps: int  # of every run
    seeds: int  # runs of either kind
    config: Path | None = None  # None is the CartPole drop-in config


def run(plan: Plan, json_path: Path | None = None, plot_path: Path | None = None) -> None:
    """Train, print all numbers, write JSON and picture where they are wanted."""
    for option, path in (('--json', json_path), ('--plot', plot_path)):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f'{option} {path}: there is no directory {path.parent}')
    config = str(plan.config.resolve()) if plan.config else drop_in.__file__
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in ROWS.values()}
    for seed in range(plan.seeds):
        for row, name in ROWS.items():
            result = measure(Order(row, plan.env_steps, config, seed, learn=True), disturb=False)
            result['result'] = result_of(result['evaluations'])
            if result['result'] is None:
                raise ConfigError(
                    f"{name}, seed {seed}: {len(result['evaluations'])} evaluations within {plan.env_steps} env steps, "
                    f'{LAST} are needed (--env-steps)'
                )
            results[name].append(result)
            sys.stderr.write(f"seed {seed} {name}: {len(result['evaluations'])} evaluations, mean of the last {LAST} "
                             f"{result['result']:.1f}, {result['wall_s']:.0f} s\n")
            sys.stderr.flush()
    document = summarize(plan, results)
    sys.stdout.write(text(document))
    if json_path is not None:
        write_report(json_path, document)
    if plot_path is not None:
        plot(document, plot_path)


def result_of(evaluations: Sequence[Mapping[str, float]]) -> float | None:
    """The mean of the last evaluations; None where there were too few."""
    if len(evaluations) < LAST:
        return None
    return statistics.fmean(evaluation['mean_return'] for evaluation in evaluations[-LAST:])


def verdict(serial: Sequence[float], asynchronous: Sequence[float]) -> dict[str, Any]:
    """Whether the asynchronous mean is not below the serial one by more than the pooled spread of the seeds."""
    means = statistics.fmean(serial), statistics.fmean(asynchronous)
    spread = 0.0
    if len(serial) > 1 and len(asynchronous) > 1:
        spread = ((statistics.variance(serial) + statistics.variance(asynchronous)) / 2)**0.5
    return {
        'serial_mean': means[0], 'asynchronous_mean': means[1], 'pooled_spread': spread,
        'as_good': means[1] >= means[0] - spread
    }


def first_at(evaluations: Sequence[Mapping[str, float]], level: float) -> Mapping[str, float] | None:
    """The first evaluation that reached a level."""
    return next((evaluation for evaluation in evaluations if evaluation['mean_return'] >= level), None)


def summarize(plan: Plan, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Everything about a comparison, fit for JSON."""
    ended = {name: [run['result'] for run in runs] for name, runs in results.items()}
    level = next(run['stop_value'] for runs in results.values() for run in runs)
    rows = []
    for name, runs in results.items():
        for run in runs:
            solved = first_at(run['evaluations'], level)
            rows.append({
                'name': name, **{key: run[key] for key in ('seed', 'result', 'clock_s', 'updates', 'evaluations')},
                'solved_at_env_step': solved and solved['env_steps'], 'solved_after_s': solved and solved['seconds'],
            })
    return {
        'rows': rows, 'verdict': verdict(ended['serial'], ended['asynchronous']), 'machine': machine(),
        'setting': {
            'config': plan.config.name if plan.config else Path(drop_in.__file__).name, 'env_steps': plan.env_steps,
            'seeds': plan.seeds, 'stop_value': level,
        },
    }


def text(document: Mapping[str, Any]) -> str:
    """All numbers, and what they say."""
    setting, found = document['setting'], document['verdict']
    lines = [
        f"{setting['config']}: {setting['env_steps']} env steps, {setting['seeds']} seeds, alternating; evaluations as "
        'return@env steps', ''
    ]
    cells = [('run', 'seed', f'mean of last {LAST}', f"{setting['stop_value']:g} reached", 'after s', 'evaluations')]
    for row in document['rows']:
        reached = row['solved_at_env_step']
        cells.append((
            row['name'], str(row['seed']), f"{row['result']:.1f}", 'no' if reached is None else f'@{reached}',
            '-' if reached is None else f"{row['solved_after_s']:.0f}",
            ' '.join(f"{e['mean_return']:.0f}@{e['env_steps']}" for e in row['evaluations'])
        ))
    lines += [columns(cells), '']
    comparison = 'not below' if found['as_good'] else 'below'
    lines.append(
        f"asynchronous {found['asynchronous_mean']:.1f}, serial {found['serial_mean']:.1f}, pooled spread of the seeds "
        f"{found['pooled_spread']:.1f}: {comparison} serial by that measure"
    )
    return '\n'.join(lines) + '\n'


def plot(document: Mapping[str, Any], path: Path) -> None:
    """Return over env steps and over wall time, a line per run."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot

    colours = {'serial': '#888888', 'asynchronous': '#1f77b4'}
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for axis, key, label in zip(axes, ('env_steps', 'seconds'), ('env steps', 'wall seconds'), strict=True):
        for row in document['rows']:
            points = [(e[key], e['mean_return']) for e in row['evaluations']]
            axis.plot(*zip(*points, strict=True), color=colours[row['name']], alpha=0.8, marker='.',
                      label=row['name'] if row['seed'] == 0 else None)
        axis.set_xlabel(label)
        if document['setting']['stop_value'] < 2 * axis.get_ylim()[1]:
            axis.axhline(document['setting']['stop_value'], color='#cccccc', linewidth=1, zorder=0)
    axes[0].set_ylabel('evaluation return')
    axes[0].legend(loc='lower right', frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
