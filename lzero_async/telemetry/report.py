"""What a run did, in numbers: ``async/report.json`` and a summary for the log."""
from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Written beside and renamed: a reader sees a whole report or none."""
    beside = path.with_suffix('.tmp')
    beside.write_text(json.dumps(report, indent=2) + '\n', encoding='utf-8')
    os.replace(beside, path)


def summary(report: Mapping[str, Any]) -> str:
    """A report in a few lines of plain words."""
    batches = '{batches_admitted} admitted = {batches_trained} trained + {batches_unused} unused + ' \
              '{batches_cancelled} cancelled + {batches_lost} lost'.format(**report)
    roles = ', '.join(f"{name} busy {times['busy_s']:.1f} s, waited {times['wait_s']:.1f} s"
                      for name, times in report['roles'].items() if times['count'])
    left_out = ', '.join(f'{name} {count}' for name, count in report['left_out'].items() if count)
    return '\n'.join([
        f"{report['env_steps']} env steps and {report['train_iters']} updates in {report['wall_s']:.1f} s "
        f"(placement {report['placement']}, degree {report['degree']})",
        f'batches: {batches}',
        f"updates: {report['updates_done']} done of {report['updates_granted']:.2f} granted; "
        f"lag at most {report['max_lag_updates']} updates (bound {report['lag_bound_updates']}), "
        f"age at most {report['max_age']} batches",
        f"roles: {roles}; at least two at once for {report['overlap_s']:.1f} s; attained {report['attained']:.2f}",
        *([f'left out, for want of room: {left_out}'] if left_out else []),
    ])
