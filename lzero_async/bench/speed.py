"""How fast: upstream's serial entry and this package's placements, alternating, over the same env steps."""
from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import AsyncConfig, available_cores
from ..core import ConfigError
from ..telemetry.report import write_report
from . import compare, table
from .child import Order
from .machine import machine
from .measure import measure
from .settings import BEST_THREADS, PINNED, PROCESS, ROWS, SERIAL, THREAD, configs

CALIBRATION_COLLECTS = 8  # on the clock of one run per number of threads


@dataclass(frozen=True)
class Plan:
    """What was asked for."""
    env_steps: int  # of every run
    repeats: int  # of every row
    rows: Sequence[str] = ROWS
    config: Path | None = None  # None is the pinned setting
    disturb: bool = False  # a busy process beside every run

    def check(self) -> None:
        """Refuse what cannot work before anything is run."""
        if unknown := [name for name in self.rows if name not in ROWS]:
            raise ConfigError(f"--rows names {', '.join(unknown)}: known are {', '.join(ROWS)}")
        if len(set(self.rows)) != len(self.rows):
            raise ConfigError(f"--rows {','.join(self.rows)}: name every row once")
        for row in self.rows:
            _, (main_config, _) = configs(self.config, row)
            if row in (THREAD, PROCESS) and AsyncConfig.from_policy(main_config.policy).off_policy_degree == 0:
                raise ConfigError(f'policy.off_policy_degree is 0, in series: {row} needs a degree of 1 or more')

    def order(self, row: str, seed: int, threads: int | None = None, max_collects: int | None = None) -> Order:
        config = str(self.config.resolve()) if self.config else None
        return Order(row, self.env_steps, config, seed, threads, max_collects)


def run(plan: Plan, json_path: Path | None = None) -> None:
    """Measure, print the table, write the JSON where it is wanted."""
    plan.check()
    if json_path is not None and not json_path.parent.is_dir():
        raise ConfigError(f'--json {json_path}: there is no directory {json_path.parent}')
    calibration = calibrate(plan) if BEST_THREADS in plan.rows else []
    best = calibration[0]['threads'] if calibration else None
    results: dict[str, list[dict[str, Any]]] = {row: [] for row in plan.rows}
    total = plan.repeats * len(plan.rows)
    for repeat in range(plan.repeats):
        for row in plan.rows:
            order = plan.order(row, seed=repeat, threads=best if row == BEST_THREADS else None)
            results[row].append(measure(order, plan.disturb))
            _say(f'{sum(map(len, results.values()))}/{total} {_line(results[row][-1])}')
    document = summarize(plan, results, calibration)
    sys.stdout.write(table.text(document))
    if json_path is not None:
        write_report(json_path, document)


def candidates(cores: int) -> list[int]:
    """1, 2, 4 ... and all cores."""
    return sorted({cores, *(2 ** power for power in range(cores.bit_length()) if 2 ** power <= cores)})


def calibrate(plan: Plan) -> list[dict[str, Any]]:
    """A short serial run per number of torch threads, the fastest first."""
    runs = []
    for threads in candidates(available_cores()):
        order = plan.order(SERIAL, seed=0, threads=threads, max_collects=CALIBRATION_COLLECTS)
        runs.append(measure(order, plan.disturb))
        _say(f"calibration, {table.counted(threads, 'torch thread')}: {_line(runs[-1])}")
    runs.sort(key=lambda run: run['env_steps_per_s'], reverse=True)
    _say(f'calibration: {table.winner(runs)} won')
    return runs


def summarize(
        plan: Plan, results: dict[str, list[dict[str, Any]]], calibration: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Everything about a comparison, fit for JSON."""
    rows = compare.rows(results)
    off = compare.deviation(rows)
    return {
        'rows': rows,
        'comparable': off <= compare.TOLERANCE,
        'updates_per_env_step_deviation': off,
        'setting': {
            'name': 'pinned CartPole UniZero' if plan.config is None else plan.config.name,
            'env_steps': plan.env_steps, 'repeats': plan.repeats, 'disturb': plan.disturb,
            'best_threads': calibration[0]['threads'] if calibration else None,
            'calibration': [{key: run[key] for key in ('threads', 'env_steps_per_s', 'updates_per_s')}
                            for run in calibration],
            'config': PINNED if plan.config is None else str(plan.config),
        },
        'machine': machine(),
    }


def _line(run: dict[str, Any]) -> str:
    attained = '' if run['attained'] is None else f", attained {run['attained']:.2f}"
    return f"{run['name']}: {run['env_steps_per_s']:.1f} env steps/s, {run['updates_per_s']:.1f} updates/s, " \
           f"{run['updates_per_env_step']:.4f} updates per env step, peak {run['peak_rss_mb']:.0f} MB{attained}"


def _say(line: str) -> None:
    sys.stderr.write(f'{line}\n')
    sys.stderr.flush()
