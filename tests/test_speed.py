"""How much faster than the serial entry, as ratios in one run. Measures and prints; asserts nothing about time."""
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
    ratios = [
        process['env_steps_per_s'] / serial['env_steps_per_s']
        for serial, process in zip(results['serial'], results['process'], strict=True)
    ]
    with capsys.disabled():
        sys.stdout.write(f'\n{ENV_STEPS} env steps of CartPole UniZero, {REPEATS} repeats, alternating\n')
        for which, runs in results.items():
            speeds = ', '.join(f"{run['env_steps_per_s']:.1f}" for run in runs)
            sys.stdout.write(f'{which}: {speeds} env steps/s\n')
        spread = f'{min(ratios):.2f} to {max(ratios):.2f}'
        sys.stdout.write(f'process over serial: {statistics.median(ratios):.2f} ({spread})\n')
    for serial, process in zip(results['serial'], results['process'], strict=True):
        assert process['updates_per_env_step'] == pytest.approx(serial['updates_per_env_step'], rel=0.2)
