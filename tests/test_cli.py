"""The command line, as a person uses it: real processes, real signals."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lzero_async import config_file
from lzero_async.core import ConfigError

HERE = Path(__file__).parent
CONFIG = """
from tiny import tiny
entry = '{entry}'
main_config, create_config = tiny('{policy_type}')
max_env_step = 120
"""


def write_config(directory: Path, policy_type: str = 'unizero', entry: str = 'train_unizero_segment_async') -> Path:
    path = directory / 'config.py'
    path.write_text(CONFIG.format(policy_type=policy_type, entry=entry))
    return path


def command(*arguments: str) -> list[str]:
    return [sys.executable, '-m', 'lzero_async.cli', *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, 'PYTHONPATH': str(HERE), 'PYTHONUNBUFFERED': '1'}


def lzero_async(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=directory, env=environment(), capture_output=True, text=True, timeout=120
    )


def report_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / 'async' / 'report.json').read_text())


@pytest.mark.envtest
@pytest.mark.parametrize(('policy_type', 'entry'), [
    ('unizero', 'train_unizero_segment_async'),
    ('muzero', 'train_muzero_segment_async'),
])
def test_one_command_serves_every_recipe(tmp_path: Path, policy_type: str, entry: str) -> None:
    write_config(tmp_path, policy_type, entry)
    done = lzero_async(
        tmp_path, 'train', 'config.py', '--seed', '3', '--exp-name', 'here', '--max-env-step', '1.5e2',
        '--set', 'policy.async_pipeline.num_collectors=2', 'policy.enable_async_eval=True',
        '--set', 'policy.off_policy_degree=4'
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = report_of(tmp_path / 'here')
    assert report['num_collectors'] == 2 and report['degree'] == 4 and 150 <= report['env_steps']
    assert 'env steps and' in done.stderr and 'Cleared' not in done.stdout
    assert {'env_steps', 'train_iters', 'batches_admitted', 'batches_trained', 'batches_unused', 'batches_cancelled',
            'batches_lost', 'updates_granted', 'updates_done', 'max_age', 'max_lag_updates', 'lag_bound_updates',
            'degree', 'placement', 'wall_s', 'overlap_s', 'roles', 'attained'} <= set(report)
    assert all(isinstance(report[key], (int, float)) for key in ('attained', 'overlap_s', 'wall_s'))
    for role in ('collect', 'train', 'eval'):
        assert {'busy_s', 'wait_s'} <= set(report['roles'][role])


@pytest.mark.envtest
@pytest.mark.parametrize(('arguments', 'words'), [
    (['train', 'nowhere.py'], 'nowhere.py'),
    (['train', 'config.py', '--set', 'policy.async_pipeline.placment=thread'], 'placement'),
    (['train', 'config.py', '--set', 'policy.off_policy_degree=-2'], 'off_policy_degree'),
    (['train', 'config.py', '--set', 'nonsense'], 'KEY=VALUE'),
    (['train', 'config.py', '--set', 'policy.model_path=nowhere.pth.tar'], 'nowhere.pth.tar'),
])
def test_bad_input_is_one_sentence_and_no_traceback(tmp_path: Path, arguments: list[str], words: str) -> None:
    write_config(tmp_path)
    done = lzero_async(tmp_path, *arguments)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith('lzero-async: ')]
    assert len(said) == 1 and words in said[0]
    assert 'Traceback' not in done.stderr
    assert not (tmp_path / 'run').exists(), 'refused before anything starts'


@pytest.mark.envtest
def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / 'taken').mkdir()
    (tmp_path / 'taken' / 'file').touch()
    done = lzero_async(tmp_path, 'train', 'config.py', '--exp-name', 'taken')
    assert done.returncode == 1 and './taken exists already' in done.stderr


def processes_of(session_leader: int) -> list[int]:
    """The process and all of its descendants that are still there."""
    parents: dict[int, int] = {}
    for path in Path('/proc').glob('[0-9]*/stat'):
        try:
            fields = path.read_text().rpartition(')')[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1]) if fields[0] != 'Z' else -1
    found, grown = {session_leader}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return sorted(pid for pid in found if pid in parents)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f'/proc/{pid}').exists() and ' Z ' not in Path(f'/proc/{pid}/stat').read_text()]


def shared_blocks() -> set[str]:
    return {path.name for path in Path('/dev/shm').glob('lza*')}


class Running:
    """A run that is under way, started as a person would."""

    def __init__(self, directory: Path, *settings: str) -> None:
        write_config(directory)
        self.directory = directory / 'here'
        self.shared_before = shared_blocks()
        self.log = directory / 'stderr.txt'
        with open(self.log, 'w') as log:
            self.process = subprocess.Popen(
                command('train', 'config.py', '--exp-name', 'here', '--max-env-step', '1e6', '--set', *settings),
                cwd=directory, env=environment(), stdout=subprocess.DEVNULL, stderr=log
            )
        self.wait_for('"event": "batch"', batches=3)
        self.pids = processes_of(self.process.pid)

    def wait_for(self, text: str, batches: int = 1) -> None:
        metrics = self.directory / 'async' / 'metrics.jsonl'
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            if metrics.exists() and metrics.read_text().count(text) >= batches:
                return
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.05)  # another process writes; there is nothing to wait on
        raise AssertionError('the run never got going')

    def worker(self, name: str) -> int:
        for pid in self.pids:
            if 'spawn_main' in Path(f'/proc/{pid}/cmdline').read_text() and name in os.readlink(f'/proc/{pid}/fd/1'):
                return pid
        raise AssertionError(f'no worker {name}')

    def assert_nothing_is_left(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and (alive(self.pids) or shared_blocks() - self.shared_before):
            time.sleep(0.05)
        assert alive(self.pids) == []
        assert shared_blocks() - self.shared_before == set()
        assert not list(self.directory.rglob('*.tmp'))


@pytest.mark.envtest
@pytest.mark.parametrize('placement', ['process', 'thread'])
@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_within_seconds_and_leaves_nothing(
        tmp_path: Path, placement: str, number: int, code: int
) -> None:
    run = Running(tmp_path, f'policy.async_pipeline.placement={placement}', 'create_config.env_manager.type=subprocess')
    run.process.send_signal(number)
    assert run.process.wait(15) == code, run.log.read_text()[-3000:]
    report = report_of(run.directory)
    parts = ('trained', 'unused', 'cancelled', 'lost')
    assert report['batches_admitted'] == sum(report[f'batches_{part}'] for part in parts)
    assert report['ended'] == f'interrupted by {signal.Signals(number).name}'
    assert f"iteration_{report['train_iters']}.pth.tar" in os.listdir(run.directory / 'ckpt')
    run.assert_nothing_is_left(within_s=5)


@pytest.mark.envtest
@pytest.mark.parametrize('worker', ['collector-0', 'evaluator'])
def test_a_worker_that_is_killed_ends_the_run_with_its_name(tmp_path: Path, worker: str) -> None:
    run = Running(tmp_path, 'policy.eval_freq=5', 'create_config.env_manager.type=subprocess')
    os.kill(run.worker(worker), signal.SIGKILL)
    assert run.process.wait(30) == 1
    assert f'{worker} failed: killed by SIGKILL' in run.log.read_text()
    assert 'iteration_' in ''.join(os.listdir(run.directory / 'ckpt'))
    run.assert_nothing_is_left(within_s=5)


@pytest.mark.envtest
def test_workers_notice_when_the_driver_is_gone(tmp_path: Path) -> None:
    run = Running(tmp_path, 'create_config.env_manager.type=subprocess')
    run.process.kill()
    run.process.wait(5)
    run.assert_nothing_is_left(within_s=5)


@pytest.mark.envtest
def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    (tmp_path / 'script.py').write_text(
        'from tiny import tiny\nfrom lzero_async import train_unizero_segment_async\n'
        'train_unizero_segment_async(tiny(), max_env_step=50)\n'
    )
    done = subprocess.run(
        [sys.executable, 'script.py'], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0 and "if __name__ == '__main__'" in done.stderr
    assert [path.name for path in tmp_path.glob('run*')] == ['run'], 'no worker made a run directory of its own'


@pytest.mark.unittest
@pytest.mark.parametrize(('setting', 'expected'), [
    ('policy.batch_size=32', 32),
    ('policy.learning_rate=1e-4', 1e-4),
    ('policy.async_pipeline.placement=thread', 'thread'),
    ('policy.new.deep.key=[1, 2]', [1, 2]),
    ('main_config.policy.flag=None', None),
    ('policy.text="a=b"', 'a=b'),
])
def test_set_parses_literals_and_makes_sections(setting: str, expected: Any) -> None:
    from easydict import EasyDict
    main, create = EasyDict(policy={}), EasyDict()
    config_file.apply(setting, main, create)
    target: Any = main
    for key in setting.partition('=')[0].removeprefix('main_config.').split('.'):
        target = getattr(target, key)
    assert target == expected


@pytest.mark.unittest
def test_set_refuses_to_descend_into_a_value() -> None:
    from easydict import EasyDict
    with pytest.raises(ConfigError, match='batch_size is a value'):
        config_file.apply('policy.batch_size.x=1', EasyDict(policy={'batch_size': 3}), EasyDict())
