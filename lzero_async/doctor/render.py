"""Findings as text and as JSON."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..config import ROLES
from .advice import SETTINGS, Advice
from .gil import GilCost
from .machine import Machine, gigabytes
from .trial import Trial

WIDTH = 15  # of the first column


@dataclass(frozen=True)
class Findings:
    """All that a doctor found."""
    machine: Machine
    gil: GilCost | None  # None on one core
    others_cores: float  # that other processes kept busy meanwhile
    warnings: Sequence[str]
    config: str | None = None  # the file that was tried
    trial: Trial | None = None
    advice: Advice | None = None


def as_json(findings: Findings) -> dict[str, Any]:
    """The same as the text, for programs."""
    return asdict(findings)


def as_text(findings: Findings) -> str:
    """The whole report."""
    lines = [*_machine(findings.machine), *_gil(findings.gil)]
    if findings.trial is not None and findings.advice is not None:
        lines += ['', *_trial(findings.config or 'the config', findings.trial, findings.advice)]
        lines += ['', *_advice(findings.advice)]
    if findings.warnings:
        lines += ['', *(f'Warning: {warning}' for warning in findings.warnings)]
    return '\n'.join(lines) + '\n'


def _row(name: str, *values: str) -> list[str]:
    return [f'{title:<{WIDTH}}{value}' for title, value in zip([name] + [''] * len(values), values, strict=False)]


def _machine(machine: Machine) -> list[str]:
    shared = 'no /dev/shm' if machine.shared_free is None else f'{gigabytes(machine.shared_free)} free in /dev/shm'
    limit = '' if machine.cpu_limit is None else f', limited to {machine.cpu_limit:g} CPUs by a control group'
    variables = ', '.join(f'{name}={value}' for name, value in machine.environment.items())
    return [
        *_row('versions', ', '.join(f'{name} {version}' for name, version in machine.versions.items())),
        *_row('cores', f'{machine.cores} of {machine.cores_in_machine}{limit}; load average {machine.load:.1f}'),
        *_row('memory', f'{gigabytes(machine.memory_available)} of {gigabytes(machine.memory)} available; {shared}'),
        *_row('accelerator', machine.accelerator or 'none'),
        *_row('torch threads', f'{machine.torch_threads} by default' + (f'; {variables}' if variables else '')),
    ]


def _gil(gil: GilCost | None) -> list[str]:
    if gil is None:
        return _row('GIL', 'one core: nothing can overlap, in threads or in processes')
    if gil.lost_s > 0:
        verdict = f'threads lose {gil.lost_s:.2f} s of GIL'
        remedy = "searching beside learning needs processes: placement='process'"
    else:
        verdict, remedy = 'threads lose nothing', 'threads overlap as well as processes'
    if gil.processes_s > 1.5 * gil.alone_s:
        remedy += '; but two processes hardly overlap either: the cores are taken'
    return _row(
        'GIL',
        f'the same work: alone {gil.alone_s:.2f} s; twice at once in threads {gil.threads_s:.2f} s, in processes '
        f'{gil.processes_s:.2f} s: {verdict}',
        remedy,
    )


def _trial(config: str, trial: Trial, advice: Advice) -> list[str]:
    first = advice.costs[1]
    threads = ', '.join(f'{costs.learn:.3g} s with {count}' for count, costs in sorted(advice.costs.items()))
    evaluation = 'none'
    if trial.evaluation is not None:
        evaluation = f'{first.evaluate:.3g} s: {trial.evaluations_per_batch:.3g} evaluations per batch, of ' \
                     f'{first.evaluate / trial.evaluations_per_batch:.3g} s each'
    clock = 'CPU seconds per batch'
    if trial.outside:
        clock += f"; wall seconds for {', '.join(trial.outside)}, as time passes on a device or in other processes"
    lines = [
        f'Trial of {config}: rounds {trial.rounds}, {trial.wall_s:.0f} s',
        *_row('batch', f'{trial.env_steps:.0f} env steps, {trial.updates:.4g} updates'),
        *_row('clock', clock),
        *_row('C  collect', f'{first.collect:.3g} s with one torch thread'),
        *_row('L  learn', f'{threads} torch threads'),
        *_row('E  evaluate', evaluation),
        *_row('serial', f'{advice.serial_s:.3g} s = C + L + E, with the smallest L'),
        '',
        f'{"collectors":<{WIDTH}}{"best":<10}{"against serial":<17}{"learner threads":<18}bound by',
    ]
    for item in advice.outlooks:
        lines.append(
            f'{item.collectors:<{WIDTH}}{f"{item.best_s:.3g} s":<10}{f"{advice.serial_s / item.best_s:.2f}x":<17}'
            f'{item.learner_threads:<18}{item.bound_by}'
        )
    return lines


def _advice(advice: Advice) -> list[str]:
    choice = advice.choice
    lines = ['Picks']
    for name in SETTINGS:
        value = getattr(choice, name)
        shown = ', '.join(f'{role} {value[role]}' for role in ROLES) if name == 'threads' else value
        lines.append(f'  {name} = {shown}: {choice.reasons[name]}.')
    lines += [
        f'Expect at most {advice.speed_up:.2f} times the speed of serial. This is a bound: no stage ever waits in it.',
        *advice.notes,
    ]
    if advice.differences:
        lines.append('The config has it otherwise:')
        lines += [f'  {difference}' for difference in advice.differences]
    else:
        lines.append('The config has it so already.')
    return [*lines, 'To paste into policy=dict(...):', *(f'    {line}' for line in advice.lines)]
