"""Degree 0 against upstream's serial entry, and two deterministic asynchronous runs against each other, bit for bit."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.envtest
HERE = Path(__file__).parent


def run(stub: Path, directory: Path, which: str, policy_type: str, **settings: Any) -> dict[str, Any]:
    directory.mkdir()
    environment = {
        **os.environ, 'LD_PRELOAD': str(stub), 'PYTHONHASHSEED': '0', 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(HERE)
    }
    finished = subprocess.run(
        [sys.executable, HERE / 'pinned_run.py', which, policy_type, json.dumps(settings)],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=240
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    line = next(line for line in finished.stdout.splitlines() if line.startswith('RESULT '))
    return json.loads(line.removeprefix('RESULT '))


@pytest.mark.parametrize('policy_type', ['unizero', 'muzero'])
def test_degree_0_equals_upstream_bit_for_bit(pinned: Path, tmp_path: Path, policy_type: str) -> None:
    settings = dict(max_env_step=450, off_policy_degree=0)
    ours = run(pinned, tmp_path / 'ours', 'ours', policy_type, **settings)
    upstream = run(pinned, tmp_path / 'upstream', 'upstream', policy_type, **settings)
    assert ours == upstream
    assert ours['updates'] > 40 and ours['evaluations'] >= 2, 'several collects and evaluations, or it proves little'
    report = json.loads((tmp_path / 'ours' / 'run' / 'async' / 'report.json').read_text())
    assert report['batches_trained'] > 3 and report['train_iters'] == ours['updates']


def test_another_seed_would_show(pinned: Path, tmp_path: Path) -> None:
    """The comparison can fail: one setting that touches chance changes the digest."""
    first = run(pinned, tmp_path / 'a', 'ours', 'unizero', max_env_step=150, off_policy_degree=0)
    second = run(pinned, tmp_path / 'b', 'ours', 'unizero', max_env_step=150, off_policy_degree=0, batch_size=17)
    assert first['weights'] != second['weights']


def test_two_deterministic_asynchronous_runs_end_with_the_same_weights(pinned: Path, tmp_path: Path) -> None:
    settings = dict(
        max_env_step=500, off_policy_degree=3,
        async_pipeline={'placement': 'process', 'num_collectors': 2, 'deterministic': True}
    )
    results = [run(pinned, tmp_path / name, 'ours', 'unizero', **settings) for name in ('a', 'b')]
    assert results[0] == results[1]
    assert results[0]['updates'] > 40
    report = json.loads((tmp_path / 'a' / 'run' / 'async' / 'report.json').read_text())
    assert report['max_age'] == 2, 'the runs were asynchronous'
