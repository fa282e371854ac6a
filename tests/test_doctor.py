"""The doctor: what it says about made-up findings, and one real visit."""
from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny

from lzero_async import AsyncConfig
from lzero_async.cli import main
from lzero_async.core import WorkerError
from lzero_async.doctor import gil, machine
from lzero_async.doctor.advice import advise, costs_of
from lzero_async.doctor.machine import Machine
from lzero_async.doctor.render import Findings, as_json, as_text
from lzero_async.doctor.trial import Spent, Trial, run_trial, thread_counts
from lzero_async.recipes import MUZERO
from lzero_async.sizing import BatchCosts
from lzero_async.validate import prepare

HERE = Path(__file__).parent
CONFIG = """
from tiny import tiny
entry = 'train_unizero_segment_async'
main_config, create_config = tiny('unizero', async_pipeline=dict(placement='thread'))
"""
MACHINE = Machine(
    versions={'Python': '3.11.7', 'LightZero': '0.2.0', 'torch': '2.12.1'}, cores=4, cores_in_machine=8, cpu_limit=None,
    memory=16 * 10**9, memory_available=12 * 10**9, shared_free=8 * 10**9, accelerator=None, torch_threads=4,
    environment={'OMP_NUM_THREADS': '1'}, load=0.5
)
TRIAL = Trial(
    rounds=3, wall_s=31.0, env_steps=400, updates=100.0, collect=Spent(4.0, 5.0),
    learn={1: Spent(2.0, 2.5), 2: Spent(3.0, 1.5), 4: Spent(6.0, 1.5)}, evaluation=Spent(1.0, 1.25),
    evaluations_per_batch=0.5, cut_short=False, device='cpu', outside=[], memory=10**9
)


# ------------------------------------------------------------------------------------------------------------- machine


@pytest.mark.unittest
def test_looking_around_finds_this_machine() -> None:
    found = machine.look()
    assert found.versions['torch'] == torch.__version__.partition('+')[0]
    assert 'not installed' not in found.versions.values()
    assert 1 <= found.cores <= found.cores_in_machine
    assert 0 < found.memory_available <= found.memory
    assert found.torch_threads == torch.get_num_threads()


@pytest.mark.unittest
@pytest.mark.parametrize(('change', 'words'), [
    ({}, None),
    ({'versions': {'Python': '3.12.1', 'LightZero': '0.2.0'}}, 'Python 3.12.1 has not been tried'),
    ({'versions': {'Python': '3.10.2', 'LightZero': '0.3.0'}}, 'LightZero 0.3.0 has not been tried'),
    ({'shared_free': 64 * 10**6}, '--shm-size'),
    ({'memory_available': 10**9}, '1.0 GB of memory'),
    ({'cpu_limit': 1.5}, 'a control group allows 1.5'),
    ({'cpu_limit': 4.0, 'shared_free': None}, None),
])
def test_what_commonly_goes_wrong_is_said(change: dict[str, Any], words: str | None) -> None:
    said = machine.troubles(dataclasses.replace(MACHINE, **change))
    assert len(said) == (words is not None)
    assert words is None or words in said[0]


@pytest.mark.unittest
def test_a_busy_machine_is_warned_of() -> None:
    assert machine.crowded(MACHINE, 0.3) == []
    assert '1.2 of 4 cores' in machine.crowded(MACHINE, 1.2)[0]
    assert 0 <= machine.Bystanders().cores() <= 2 * (os.cpu_count() or 1)


@pytest.mark.unittest
def test_limits_of_a_control_group_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, 'CONTROL_GROUP', tmp_path)
    assert machine._cpu_limit() is None and machine._memory_limit() is None
    (tmp_path / 'cpu.max').write_text('150000 100000\n')
    (tmp_path / 'memory.max').write_text('2000000000\n')
    assert machine._cpu_limit() == 1.5 and machine.look().memory == 2 * 10**9
    (tmp_path / 'cpu.max').write_text('max 100000\n')
    (tmp_path / 'memory.max').write_text('max\n')
    assert machine._cpu_limit() is None and machine._memory_limit() is None


@pytest.mark.envtest
def test_the_gil_is_measured_in_seconds_and_nothing_is_changed() -> None:
    threads = torch.get_num_threads()
    cost = gil.measure(simulations=50, rounds=1)
    assert all(0 < span < 60 for span in (cost.alone_s, cost.threads_s, cost.processes_s))
    assert cost.lost_s == cost.threads_s - cost.processes_s
    assert torch.get_num_threads() == threads


def die(meeting: Any, connection: Any) -> None:
    """What a measuring process does in the test below."""
    os._exit(3)


def hang_up(meeting: Any, connection: Any) -> None:
    """The same, where its pipe is seen to end before the process does, and with a job unread."""
    connection.poll(None)
    connection.close()
    signal.pause()


@pytest.mark.envtest
@pytest.mark.parametrize('end', [die, hang_up])
def test_a_measuring_process_that_dies_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch, end: Any) -> None:
    monkeypatch.setattr(gil, '_serve', end)
    with pytest.raises(WorkerError, match='measures the GIL'):
        gil.measure(simulations=50, rounds=1)


# -------------------------------------------------------------------------------------------------------------- advice


@pytest.mark.unittest
def test_a_trial_becomes_costs_in_cpu_seconds() -> None:
    costs = costs_of(TRIAL)
    assert costs[1] == BatchCosts(4.0, 2.0, 0.5, cpu=6.5)
    # Two threads take 1.5 wall seconds where one takes 2.5: so much of its CPU seconds, and both cores are busy.
    assert costs[2] == BatchCosts(4.0, 2.0 * 1.5 / 2.5, 0.5, cpu=7.5)


@pytest.mark.unittest
def test_what_passes_elsewhere_is_taken_by_the_wall_clock() -> None:
    costs = costs_of(dataclasses.replace(TRIAL, outside=['learner', 'collector', 'evaluator']))
    assert costs[1] == BatchCosts(5.0, 2.5, 0.625, cpu=6.5)
    costs = costs_of(dataclasses.replace(TRIAL, outside=['collector'], evaluation=None))
    assert costs[1] == BatchCosts(5.0, 2.0, 0.0, cpu=6.0)


@pytest.mark.unittest
def test_the_candidates_are_powers_of_two() -> None:
    assert [thread_counts(cores) for cores in (1, 2, 3, 4, 6, 8)] == [
        [1], [1, 2], [1, 2], [1, 2, 4], [1, 2, 4], [1, 2, 4, 8]
    ]


@pytest.mark.unittest
def test_advice_follows_the_rule_and_names_what_differs() -> None:
    config = AsyncConfig.from_policy({'async_pipeline': {'placement': 'thread', 'num_collectors': 3}})
    advice = advise(TRIAL, config, 4, MACHINE.memory_available)
    assert advice.choice.num_collectors == 2 and advice.choice.off_policy_degree == 3
    assert [item.collectors for item in advice.outlooks] == [1, 2, 3, 4]
    assert advice.serial_s == pytest.approx(4.0 + 1.2 + 0.5)
    assert advice.speed_up == pytest.approx(advice.serial_s / advice.outlooks[1].best_s)
    assert any('placement is thread as set, not process' in line for line in advice.differences)
    assert any('num_collectors is 3 as set, not 2' in line for line in advice.differences)
    assert any('off_policy_degree is 4 by default, not 3' in line for line in advice.differences)


@pytest.mark.unittest
def test_the_lines_to_paste_are_what_was_picked() -> None:
    advice = advise(TRIAL, AsyncConfig(), 4, MACHINE.memory_available)
    policy = eval(f"dict({' '.join(advice.lines)})")
    config = AsyncConfig.from_policy(policy)
    for name in ('placement', 'num_collectors', 'off_policy_degree', 'threads'):
        assert getattr(config, name) == getattr(advice.choice, name)
    assert advise(TRIAL, config, 4, MACHINE.memory_available).differences == []


@pytest.mark.unittest
def test_advice_says_what_else_there_is_to_know() -> None:
    notes = ' '.join(advise(TRIAL, AsyncConfig(), 1, MACHINE.memory_available).notes)
    assert 'Hardly anything can be gained' in notes
    slow = dataclasses.replace(TRIAL, evaluation=Spent(6.0, 6.0), cut_short=True)
    notes = ' '.join(advise(slow, AsyncConfig(), 4, 10**9).notes)
    assert 'enable_async_eval=True' in notes and 'cut short' in notes and 'GB of memory' in notes
    notes = ' '.join(advise(slow, AsyncConfig(enable_async_eval=True), 4, MACHINE.memory_available).notes)
    assert 'enable_async_eval' not in notes and 'GB of memory' not in notes


# -------------------------------------------------------------------------------------------------------------- render


@pytest.mark.unittest
def test_the_text_has_the_machine_the_gil_and_the_picks() -> None:
    advice = advise(TRIAL, AsyncConfig(), 4, MACHINE.memory_available)
    findings = Findings(MACHINE, gil.GilCost(1.02, 2.31, 1.10), 0.1, ['Beware.'], 'config.py', TRIAL, advice)
    text = as_text(findings)
    for words in ('alone 1.02 s; twice at once in threads 2.31 s, in processes 1.10 s: threads lose 1.21 s of GIL',
                  '4 of 8', 'OMP_NUM_THREADS=1', 'Trial of config.py', '400 env steps, 100 updates', 'C  collect',
                  '2 s with 1, 1.2 s with 2, 1.2 s with 4', 'This is a bound', 'num_collectors = 2: ',
                  'off_policy_degree=3,', 'Warning: Beware.'):
        assert words in text, words
    assert max(map(len, text.splitlines())) < 200
    again = json.loads(json.dumps(as_json(findings)))
    assert again['advice']['choice']['num_collectors'] == 2 and again['trial']['learn']['2']['wall_s'] == 1.5


@pytest.mark.unittest
def test_one_core_says_that_nothing_can_overlap() -> None:
    text = as_text(Findings(dataclasses.replace(MACHINE, cores=1), None, 0.0, []))
    assert 'one core: nothing can overlap' in text and 'Trial' not in text and 'Warning' not in text


# ---------------------------------------------------------------------------------------------------------- real visits


def lzero_async(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-m', 'lzero_async.cli', *arguments], cwd=directory, capture_output=True, text=True,
        env={**os.environ, 'PYTHONPATH': str(HERE)}, timeout=240
    )


@pytest.mark.envtest
def test_a_visit_with_a_config_measures_picks_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / 'config.py').write_text(CONFIG)
    done = lzero_async(tmp_path, 'doctor', 'config.py', '--seconds', '1', '--json', 'out.json')
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / 'out.json').read_text())
    assert set(os.listdir(tmp_path)) - {'__pycache__'} == {'config.py', 'out.json'}
    assert found['config'] == 'config.py' and found['machine']['versions']['LightZero'] == '0.2.0'
    cores = found['machine']['cores']
    assert found['gil'] is None if cores == 1 else found['gil']['alone_s'] > 0
    measured, advice = found['trial'], found['advice']
    assert measured['rounds'] >= 1 and measured['env_steps'] > 0 and measured['updates'] > 0
    assert measured['collect']['cpu_s'] > 0 and measured['evaluation']['cpu_s'] > 0
    assert set(measured['learn']) == {str(count) for count in thread_counts(cores)}
    assert measured['device'] == 'cpu' and measured['outside'] == []
    assert advice['costs']['1']['learn'] > 0 and advice['speed_up'] > 0
    choice = advice['choice']
    assert choice['placement'] == 'process' and 1 <= choice['num_collectors'] <= max(1, cores - 1)
    assert choice['off_policy_degree'] == choice['num_collectors'] + 1
    assert f"off_policy_degree={choice['off_policy_degree']}," in done.stdout
    assert 'policy.async_pipeline.placement is thread as set, not process' in done.stdout


@pytest.mark.envtest
@pytest.mark.parametrize(('arguments', 'words'), [
    (['nowhere.py'], 'nowhere.py'),
    (['config.py', '--set', 'policy.off_policy_degree=-2'], 'off_policy_degree'),
    (['config.py', '--json', 'nowhere/out.json'], 'nowhere'),
])
def test_what_cannot_work_is_refused_before_anything_is_measured(
        tmp_path: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'config.py').write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    assert main(['doctor', *arguments]) == 1
    said = capsys.readouterr().err
    assert said.startswith('lzero-async: ') and words in said and said.count('\n') == 1


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    return tmp_path


@pytest.mark.envtest
def test_a_trial_of_the_other_family_leaves_the_caller_alone(scratch: Path) -> None:
    before = os.getcwd(), torch.get_num_threads(), torch.get_rng_state()
    main_config, create_config = prepare(*tiny('muzero', batch_size=200, random_collect_episode_num=5))
    create_config.env_manager.type = 'subprocess'
    config = AsyncConfig(min_buffer_size=900)
    found = run_trial((main_config, create_config), MUZERO, config, None, seconds=0.01, cores=1)
    assert found.rounds == 1 and list(found.learn) == [1], 'one round is done, however long it takes'
    assert found.cut_short and found.evaluation is not None, 'but an evaluation is not waited for so long'
    assert found.outside == ['collector', 'evaluator'] and found.collect.wall_s > 0
    assert os.listdir(scratch) == [] and main_config.exp_name == 'run'
    assert (os.getcwd(), torch.get_num_threads()) == before[:2] and torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.envtest
def test_an_error_in_a_trial_comes_with_its_traceback_and_leaves_nothing(scratch: Path) -> None:
    main_config, create_config = prepare(*tiny('muzero'))
    main_config.policy.optim_type = 'nonsense'
    with pytest.raises(WorkerError, match='trial failed') as caught:
        run_trial((main_config, create_config), MUZERO, AsyncConfig(), None, seconds=0.1, cores=1)
    assert 'Traceback' in str(caught.value)
    assert os.listdir(scratch) == []
