"""
How much faster than the serial entry, as ratios in one run. Measures and prints; asserts nothing about time.

Updates are proportional to the transitions of whole segments; env steps also count those of segments that a collect
left unfinished. So the ratio of the two varies from run to run, in series as well, and both are shown.
"""
from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENV_STEPS = int(os.environ.get('SPEED_ENV_STEPS', '3000'))
REPEATS = int(os.environ.get('SPEED_REPEATS', '3'))


def measure(directory: Path, which: str) -> dict[str, float]:
    directory.mkdir()
    finished = subprocess.run(
        [sys.executable, HERE / 'speed_run.py', which, str(ENV_STEPS)], cwd=directory, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    line = next(line for line in finished.stdout.splitlines() if line.startswith('RESULT '))
    return json.loads(line.removeprefix('RESULT '))


@pytest.mark.benchmark
@pytest.mark.timeout(3600)
def test_env_steps_per_second_against_serial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results: dict[str, list[dict[str, float]]] = {'serial': [], 'process': []}
    for repeat in range(REPEATS):
        for which in results:
            results[which].append(measure(tmp_path / f'{which}{repeat}', which))
    with capsys.disabled():
        sys.stdout.write(f'\n{ENV_STEPS} env steps of CartPole UniZero, {REPEATS} repeats, alternating\n')
        for unit in ('env_steps_per_s', 'updates_per_s'):
            speeds = {which: [run[unit] for run in runs] for which, runs in results.items()}
            for which, values in speeds.items():
                sys.stdout.write(f"{unit} {which}: {', '.join(f'{value:.1f}' for value in values)}\n")
            ratios = [b / a for a, b in zip(speeds['serial'], speeds['process'], strict=True)]
            spread = f'{min(ratios):.2f} to {max(ratios):.2f}'
            sys.stdout.write(f'{unit} process over serial: {statistics.median(ratios):.2f} ({spread})\n')
