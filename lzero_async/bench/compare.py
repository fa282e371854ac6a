"""From single runs to rows: medians, spreads, ratios within a repeat. Arithmetic only."""
from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Run = Mapping[str, Any]
TOLERANCE = 0.03  # deviation in updates per env step beyond which speeds are not comparable
MEASURES = (
    'env_steps_per_s', 'updates_per_s', 'updates_per_env_step', 'peak_rss_mb', 'peak_pss_mb', 'attained', 'wall_s'
)


def middle(values: Sequence[float | None]) -> tuple[float | None, list[float] | None]:
    """Median and ``[least, greatest]`` of those that are there."""
    there = [value for value in values if value is not None]
    return (statistics.median(there), [min(there), max(there)]) if there else (None, None)


def ratios(runs: Sequence[Run], reference: Sequence[Run], measure: str) -> list[float]:
    """Run by run, so that what slowed down a whole repeat cancels out."""
    return [run[measure] / other[measure] for run, other in zip(runs, reference, strict=True)]


def row(name: str, runs: Sequence[Run], reference: Sequence[Run] | None) -> dict[str, Any]:
    """One row of the comparison; ``reference`` has the runs of ``serial``, None where it was not run."""
    result: dict[str, Any] = {'name': name, 'threads': runs[0]['threads']}
    for measure in MEASURES:
        result[measure], result[f'{measure}_spread'] = middle([run[measure] for run in runs])
    for key, measure in (('ratio', 'env_steps_per_s'), ('updates_ratio', 'updates_per_s')):
        found = ratios(runs, reference, measure) if reference is not None else []
        result[key], result[f'{key}_spread'] = middle(found)
    return {**result, 'runs': list(runs)}


def rows(results: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """All rows, in the order in which they were run."""
    return [row(name, runs, results.get('serial')) for name, runs in results.items()]


def deviation(compared: Sequence[Mapping[str, Any]]) -> float:
    """The largest deviation in updates per env step from ``serial``, or else from the first row; of all repeats."""
    means = {row['name']: statistics.fmean(run['updates_per_env_step'] for run in row['runs']) for row in compared}
    reference = means.get('serial', means[compared[0]['name']])
    return max(abs(mean / reference - 1) for mean in means.values())
