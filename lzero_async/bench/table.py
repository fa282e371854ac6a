"""The comparison as text."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .compare import TOLERANCE

HEADS = ('row', 'env steps/s', 'updates/s', 'x serial', 'updates/env step', 'peak RSS MB', 'PSS MB', 'attained')


def with_spread(row: Mapping[str, Any], measure: str, digits: int) -> str:
    """A median and where it lies, as in ``88.1 (85.0..90.2)``."""
    if row[measure] is None:
        return '-'
    least, greatest = row[f'{measure}_spread']
    return f'{row[measure]:.{digits}f} ({least:.{digits}f}..{greatest:.{digits}f})'


def cells(row: Mapping[str, Any]) -> list[str]:
    """One row of the table."""
    plain = {key: '-' if row[key] is None else f'{row[key]:.0f}' for key in ('peak_rss_mb', 'peak_pss_mb')}
    return [
        row['name'], with_spread(row, 'env_steps_per_s', 1), with_spread(row, 'updates_per_s', 1),
        with_spread(row, 'ratio', 2), with_spread(row, 'updates_per_env_step', 4), plain['peak_rss_mb'],
        plain['peak_pss_mb'], '-' if row['attained'] is None else f"{row['attained']:.2f}"
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """All rows under their heads."""
    return columns([HEADS, *map(cells, rows)])


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return '\n'.join('  '.join(
        cell.ljust(width) if index == 0 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(line, widths, strict=True))
    ).rstrip() for line in lines)


def counted(number: int, what: str) -> str:
    """``1 repeat``, ``2 repeats``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def winner(calibration: Sequence[Mapping[str, Any]]) -> str:
    """Which number of threads was the fastest, and by how much; ``calibration`` has the fastest first."""
    best, *others = calibration
    against = [f"{best['env_steps_per_s'] / run['env_steps_per_s']:.2f}x of {run['threads']}" for run in others]
    return f"{counted(best['threads'], 'torch thread')} ({', '.join(against) or 'the only choice'})"


def text(document: Mapping[str, Any]) -> str:
    """All that a person wants to know of a comparison."""
    setting, machine, off = document['setting'], document['machine'], document['updates_per_env_step_deviation']
    lines = [
        f"{setting['name']}: {setting['env_steps']} env steps, {counted(setting['repeats'], 'repeat')}, alternating; "
        'median (least..greatest)',
        f"{counted(machine['cores'], 'core')} of {machine['cpu']}, accelerator {machine['accelerator']}, "
        f"Python {machine['python']}, torch {machine['torch']}, LightZero {machine['lightzero']}",
    ]
    if setting['disturb']:
        lines.append('disturbed: during every run another process kept one core busy')
    if setting['calibration']:
        lines.append(f"serial_best_threads: {winner(setting['calibration'])}, by calibration")
    lines += ['', table(document['rows']), '']
    if document['comparable']:
        lines.append(f'updates per env step differ by {off:.1%}: comparable (up to {TOLERANCE:.0%})')
    else:
        lines.append(f'updates per env step differ by {off:.1%}: not comparable')
    return '\n'.join(lines) + '\n'
