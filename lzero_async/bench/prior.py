"""What a language model's prior is worth: UniZero alone, with a frozen prior and with one that is trained."""
from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo_configs import jericho_priorzero_async_config as drop_in

from ..core import AsyncTrainingError, ConfigError
from ..telemetry.report import write_report
from .machine import machine
from .table import columns

ARMS: Mapping[str, tuple[str, ...]] = {
    'UniZero alone': ("policy.priorzero.mixing.mode='world_model'",),
    'frozen prior': ('policy.priorzero.train.enabled=False',),
    'trained prior': (),
}
LAST = 0.5  # the part of the env steps, at the end of a run, whose episodes count


@dataclass(frozen=True)
class Plan:
    """What was asked for."""
    env_steps: int  # of every run
    seeds: int  # runs of every arm
    config: Path | None = None  # None is the PriorZero drop-in config


def run(plan: Plan, json_path: Path | None = None) -> None:
    """Train every arm with every seed, alternating; print all numbers, write JSON where it is wanted."""
    if json_path is not None and not json_path.parent.is_dir():
        raise ConfigError(f'--json {json_path}: there is no directory {json_path.parent}')
    rows: list[dict[str, Any]] = []
    for seed in range(plan.seeds):
        for arm, settings in ARMS.items():
            rows.append({'name': arm, 'seed': seed, **_trained(plan, seed, settings)})
            last = rows[-1]
            sys.stderr.write(f"seed {seed} {arm}: mean return {last['mean_return']:.2f}, {last['wall_s']:.0f} s\n")
            sys.stderr.flush()
    document = {
        'rows': rows, 'arms': summarize(rows), 'machine': machine(), 'setting': {
            'config': (plan.config or Path(drop_in.__file__)).name, 'env_steps': plan.env_steps, 'seeds': plan.seeds
        }
    }
    sys.stdout.write(text(document))
    if json_path is not None:
        write_report(json_path, document)


def _trained(plan: Plan, seed: int, settings: Sequence[str]) -> dict[str, Any]:
    """One run, in a process and a directory of its own."""
    config = (plan.config or Path(drop_in.__file__)).resolve()
    with tempfile.TemporaryDirectory(prefix='lzero-async-bench-') as directory:
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, '-m', 'lzero_async.cli', 'train', str(config), '--seed', str(seed), '--max-env-step',
             str(plan.env_steps), '--exp-name', 'run', '--set', 'env.stop_value=1e9', *settings],
            cwd=directory, capture_output=True, text=True
        )
        if done.returncode:
            raise AsyncTrainingError(f'a run with seed {seed} and {settings} failed:\n{done.stderr[-3000:]}')
        wall_s = time.monotonic() - started
        logs = Path(directory, 'run', 'async')
        events = [json.loads(line) for line in (logs / 'metrics.jsonl').read_text().splitlines()]
        report = json.loads((logs / 'report.json').read_text())
    return {'wall_s': wall_s, **result_of(events, report)}


def result_of(events: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> dict[str, Any]:
    """What a run came to."""
    batches = [event for event in events if event['event'] == 'batch']
    since = (1 - LAST) * report['env_steps']
    late = [value for batch in batches if batch['env_steps'] > since for value in batch['episode_returns']]
    if not late:
        raise ConfigError('no episode ended in the second half of a run; raise --env-steps')
    numbers = ('env_steps', 'train_iters', 'batches_lost', 'max_lag_updates', 'lag_bound_updates', 'overlap_s',
               'llm_updates', 'llm_records', 'llm_max_lag', 'llm_lag_bound', 'llm_held_out')
    return {
        'mean_return': statistics.fmean(late), 'episodes': len(late),
        'evaluations': [(e['env_steps'], e['mean_return']) for e in events if e['event'] == 'evaluation'],
        'report': {name: report[name] for name in numbers if name in report}
    }


def summarize(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread over the seeds of every arm."""
    arms = []
    for arm in dict.fromkeys(row['name'] for row in rows):
        values = [row['mean_return'] for row in rows if row['name'] == arm]
        spread = statistics.stdev(values) if len(values) > 1 else None
        arms.append({'name': arm, 'mean_return': statistics.fmean(values), 'spread': spread, 'seeds': len(values)})
    return arms


def text(document: Mapping[str, Any]) -> str:
    """All numbers."""
    setting = document['setting']
    cells = [('run', 'seed', 'mean return', 'wall s', 'LLM updates', 'held-out cross-entropy', 'evaluations')]
    for row in document['rows']:
        report = row['report']
        held_out = report.get('llm_held_out')
        cells.append((
            row['name'], str(row['seed']), f"{row['mean_return']:.2f}", f"{row['wall_s']:.0f}",
            str(report.get('llm_updates', '-')),
            f"{held_out['before']:.3f} -> {held_out['after']:.3f} ({held_out['records']})" if held_out else '-',
            ' '.join(f'{value:g}@{steps}' for steps, value in row['evaluations'])
        ))
    means = []
    for arm in document['arms']:
        spread = '' if arm['spread'] is None else f" (spread {arm['spread']:.2f})"
        means.append(f"{arm['name']}: {arm['mean_return']:.2f}{spread}")
    return (
        f"{setting['config']}: {setting['env_steps']} env steps, {setting['seeds']} seeds, alternating; mean return of "
        f'the episodes of the second half\n\n{columns(cells)}\n\n' + '\n'.join(means) + '\n'
    )
