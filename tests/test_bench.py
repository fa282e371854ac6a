"""The benchmark: what it counts, what it says, and that nothing of it is left."""
from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from test_cli import alive, command, lzero_async, processes_of, write_config
from test_cli import environment as shell

from lzero_async.bench import compare, disturb, learn, prior, scale, speed, table
from lzero_async.bench.child import Order, recorded_collects
from lzero_async.bench.counting import Collect, Update, credited, fraction_within, steps_within
from lzero_async.bench.measure import environment, result_in
from lzero_async.bench.settings import PINNED, ROWS, configs
from lzero_async.core import ConfigError

PATIENCE_S = 90.0


def a_run(name: str = 'serial', **values: Any) -> dict[str, Any]:
    """The result of one run."""
    return {
        'name': name, 'threads': 2, 'env_steps_per_s': 50.0, 'updates_per_s': 10.0, 'updates_per_env_step': 0.2,
        'peak_rss_mb': 900.0, 'peak_pss_mb': None, 'attained': None, 'wall_s': 30.0, **values
    }


# ---------------------------------------------------------------------- what is counted


@pytest.mark.unittest
@pytest.mark.parametrize(('began_at', 'ended_at', 'fraction'), [
    (0, 100, 1.0),  # all of it on the clock
    (15, 100, 0.5),  # the first half was taken before the first update
    (20, 100, 0.0),  # all of it was
    (0, 12.5, 0.25),  # the clock stopped meanwhile
    (0, 5, 0.0),  # it had stopped before
])
def test_only_the_part_of_a_collect_on_the_clock_counts(began_at: float, ended_at: float, fraction: float) -> None:
    collect = Collect(env_steps=40, began_at=10, ended_at=20, warmup=False)
    assert fraction_within(collect, began_at, ended_at) == pytest.approx(fraction)
    assert steps_within([collect, collect], began_at, ended_at) == pytest.approx(80 * fraction)


@pytest.mark.unittest
def test_a_collect_without_duration_counts_by_its_end() -> None:
    assert fraction_within(Collect(1, 10, 10, False), 0, 20) == 1.0
    assert fraction_within(Collect(1, 10, 10, False), 11, 20) == 0.0


@pytest.mark.unittest
def test_a_serial_run_is_credited_with_the_steps_between_its_first_and_last_update() -> None:
    collects = [Collect(100, 0, 10, True), Collect(100, 10, 20, False), Collect(60, 30, 40, False)]
    updates = [Update(20, 25), Update(25, 30), Update(40, 45)]
    assert credited(collects, updates) == {
        'clock_s': 25, 'env_steps': 60, 'updates': 3, 'env_steps_per_s': 60 / 25, 'updates_per_s': 3 / 25,
        'updates_per_env_step': 3 / 160,
    }


@pytest.mark.unittest
def test_steps_collected_before_the_first_update_help_nobody() -> None:
    overlapping = [Collect(100, 0, 10, False), Collect(100, 10, 20, False), Collect(100, 20, 30, False)]
    found = credited(overlapping, [Update(15, 16), Update(30, 40)])
    assert found['env_steps'] == pytest.approx(150) and found['updates_per_env_step'] == pytest.approx(2 / 300)


@pytest.mark.unittest
def test_collects_are_read_from_the_metrics(tmp_path: Path) -> None:
    lines = [
        {'event': 'worker'},
        {'event': 'batch', 'batch_env_steps': 30, 'collected_at': 12.0, 'collect_s': 2.0, 'warmup': True, 'updates': 0},
    ]
    (tmp_path / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    assert recorded_collects(tmp_path / 'metrics.jsonl') == [Collect(30, 10.0, 12.0, True)]


# ---------------------------------------------------------------------- what is compared


@pytest.mark.unittest
def test_medians_spreads_and_ratios_within_a_repeat() -> None:
    serial = [a_run(env_steps_per_s=speed) for speed in (50.0, 25.0, 100.0)]
    process = [a_run('process', env_steps_per_s=speed, attained=0.5) for speed in (75.0, 50.0, 160.0)]
    first, second = compare.rows({'serial': serial, 'process': process})
    assert (first['name'], first['env_steps_per_s'], first['env_steps_per_s_spread']) == ('serial', 50.0, [25.0, 100.0])
    assert (first['ratio'], first['attained'], first['attained_spread']) == (1.0, None, None)
    assert second['ratio'] == pytest.approx(1.6), 'the median of ratios, not the ratio of medians'
    assert second['ratio_spread'] == pytest.approx([1.5, 2.0]) and second['attained'] == 0.5
    assert second['runs'] == process


@pytest.mark.unittest
def test_without_the_serial_row_there_is_no_ratio() -> None:
    rows = compare.rows({'process': [a_run('process')]})
    assert rows[0]['ratio'] is None and ' - ' in table.table(rows)


@pytest.mark.unittest
@pytest.mark.parametrize(('updates_per_env_step', 'comparable'), [(0.2, True), (0.205, True), (0.193, False)])
def test_speeds_are_comparable_only_where_updates_per_env_step_agree(
        updates_per_env_step: float, comparable: bool
) -> None:
    plan = speed.Plan(env_steps=300, repeats=1, rows=('serial', 'process'), disturb=True)
    process = a_run('process', updates_per_env_step=updates_per_env_step)
    document = speed.summarize(plan, {'serial': [a_run()], 'process': [process]}, [])
    assert document['comparable'] is comparable
    said = table.text(document)
    assert ('not comparable' in said) is not comparable and 'kept one core busy' in said
    assert {'rows', 'machine', 'setting', 'comparable'} <= set(json.loads(json.dumps(document)))
    assert {'cores', 'cpu', 'python', 'torch', 'lightzero', 'date'} <= set(document['machine'])


@pytest.mark.unittest
def test_the_table_has_a_line_per_row_and_a_dash_where_nothing_is_known() -> None:
    lines = table.table(compare.rows({'serial': [a_run()], 'thread': [a_run('thread', attained=0.71)]})).splitlines()
    assert [line.split()[0] for line in lines] == ['row', 'serial', 'thread']
    assert lines[1].endswith('-') and lines[2].endswith('0.71') and '50.0 (50.0..50.0)' in lines[1]


@pytest.mark.unittest
def test_the_calibration_says_what_won_and_by_how_much() -> None:
    assert table.winner([{'threads': 1, 'env_steps_per_s': 90.0}, {'threads': 2, 'env_steps_per_s': 60.0}]) \
        == '1 torch thread (1.50x of 2)'
    assert table.winner([{'threads': 4, 'env_steps_per_s': 90.0}]) == '4 torch threads (the only choice)'


@pytest.mark.unittest
def test_thread_counts_to_try_are_powers_of_two_and_all_cores() -> None:
    assert [speed.candidates(cores) for cores in (1, 2, 4, 6)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 6]]


# ---------------------------------------------------------------------- what is run


@pytest.mark.unittest
def test_the_pinned_setting_does_not_follow_the_drop_in_config() -> None:
    for row in ROWS:
        recipe, (main, _) = configs(None, row)
        policy = main.policy
        assert recipe.name == 'unizero' and policy.eval_freq > 10 ** 6 and policy.off_policy_degree == 3
        assert {key: policy[key] for key in ('batch_size', 'replay_ratio', 'num_simulations', 'learning_rate')} \
            == {'batch_size': 256, 'replay_ratio': 0.25, 'num_simulations': 25, 'learning_rate': 1e-4}
        assert policy.model.world_model_cfg.embed_pdrop == 0.1 and main.env.collector_env_num == 4
        assert policy.game_segment_length >= policy.num_unroll_steps + policy.td_steps
        assert policy.async_pipeline.placement == ('thread' if row == 'thread' else 'process')
    assert PINNED['policy']['game_segment_length'] == main.policy.game_segment_length


@pytest.mark.unittest
def test_a_config_keeps_its_own_settings_without_evaluations(tmp_path: Path) -> None:
    path = write_config(tmp_path, 'muzero', 'train_muzero_segment_async')
    recipe, (main, _) = configs(path, 'thread')
    assert recipe.name == 'muzero' and main.policy.batch_size == 16 and main.policy.eval_freq > 10 ** 6
    assert main.policy.async_pipeline.placement == 'thread'


@pytest.mark.unittest
def test_only_the_row_that_asks_for_threads_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OMP_NUM_THREADS', '7')
    assert 'OMP_NUM_THREADS' not in environment(Order('serial', 300))
    assert environment(Order('serial_best_threads', 300, threads=1))['OMP_NUM_THREADS'] == '1'


@pytest.mark.unittest
def test_the_last_result_line_is_the_result() -> None:
    assert result_in('noise\nRESULT {"a": 1}\nRESULT {"a": 2}\n') == {'a': 2}


@pytest.mark.unittest
@pytest.mark.parametrize(('rows', 'words'), [(('serial', 'ray'), 'ray'), (('serial', 'serial'), 'once')])
def test_rows_that_do_not_exist_are_refused(rows: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        speed.Plan(env_steps=300, repeats=1, rows=rows).check()


# ---------------------------------------------------------------------- the busy process


def ends(pid: int, within_s: float = PATIENCE_S) -> bool:
    """Whether a process that need not be our child ends in time."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], within_s)[0])
    finally:
        os.close(watched)


@pytest.mark.unittest
def test_the_busy_process_is_gone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), disturb.disturbance() as busy:
        assert busy is not None and busy.poll() is None
        raise ZeroDivisionError
    assert busy is not None and busy.returncode == -signal.SIGKILL
    with disturb.disturbance(wanted=False) as nobody:
        assert nobody is None


@pytest.mark.unittest
def test_the_busy_process_ends_with_its_owner() -> None:
    script = (
        f'import sys; sys.path.insert(0, {str(Path(disturb.__file__).parent)!r}); import disturb\n'
        'with disturb.disturbance() as busy:\n    print(busy.pid, flush=True)\n    sys.stdin.read()\n'
    )
    owner = subprocess.Popen(
        [sys.executable, '-c', script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None and owner.stdin is not None
    with owner.stdout, owner.stdin:
        busy = psutil.Process(int(owner.stdout.readline()))
        before = busy.cpu_times().user
        deadline = time.monotonic() + PATIENCE_S
        while busy.cpu_times().user <= before + 0.05:
            assert time.monotonic() < deadline, 'it is not busy'
        owner.kill()
        owner.wait()
        assert ends(busy.pid)


# ---------------------------------------------------------------------- the whole command


@pytest.mark.envtest
def test_bench_measures_a_config_side_by_side(tmp_path: Path) -> None:
    write_config(tmp_path)
    done = subprocess.run(
        command('bench', '--config', 'config.py', '--env-steps', '300', '--repeats', '1', '--rows', 'serial,process',
                '--json', 'out.json'),
        # Torch's threads, which the serial row has by default, wait without spinning: tests may share their cores.
        cwd=tmp_path, env={**shell(), 'OMP_WAIT_POLICY': 'PASSIVE'}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads((tmp_path / 'out.json').read_text())
    serial, process = document['rows']
    assert (serial['name'], process['name']) == ('serial', 'process')
    for row in document['rows']:
        assert row['env_steps_per_s'] > 0 and row['updates_per_s'] > 0 and row['peak_rss_mb'] > 50
        assert len(row['runs']) == 1 and row['env_steps_per_s_spread'] == [row['env_steps_per_s']] * 2
        assert 0 < row['updates_per_env_step'] <= 0.25 and 0 < row['runs'][0]['env_steps'] <= 400
    assert serial['ratio'] == 1.0 and serial['attained'] is None and process['attained'] > 0
    assert {'collect', 'learn'} <= set(process['runs'][0]['cpu_s_per_batch'])
    assert document['setting']['env_steps'] == 300 and isinstance(document['comparable'], bool)
    assert '1/2 serial: ' in done.stderr and '2/2 process: ' in done.stderr
    assert 'updates per env step differ by' in done.stdout and 'disturbed' not in done.stdout
    assert {path.name for path in tmp_path.iterdir()} - {'__pycache__'} == {'config.py', 'out.json'}


@pytest.mark.envtest
@pytest.mark.parametrize(('arguments', 'words'), [
    (['--rows', 'serial,proces'], 'proces'),
    (['--config', 'nowhere.py'], 'nowhere.py'),
    (['--json', 'nowhere/out.json'], 'nowhere'),
    (['--prior', '--rows', 'serial'], '--rows: of no use to the benchmark --prior'),
    (['--config', 'config.py', '--rows', 'serial', '--env-steps', '1', '--repeats', '1'], '1 env steps are too few'),
])
def test_what_cannot_be_measured_is_said(tmp_path: Path, arguments: list[str], words: str) -> None:
    write_config(tmp_path)
    done = lzero_async(tmp_path, 'bench', *arguments)
    assert done.returncode == 1 and 'lzero-async: ' in done.stderr and words in done.stderr
    assert 'Traceback' not in done.stderr and done.stdout == ''


def shared_by(pids: list[int]) -> set[Path]:
    """Shared memory that these processes have open."""
    maps = ''.join(Path(f'/proc/{pid}/maps').read_text() for pid in pids)
    return {Path(path) for path in re.findall(r'/dev/shm/lza\S+', maps)}


@pytest.mark.envtest
@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_an_interrupted_bench_leaves_no_process_behind(tmp_path: Path, number: int, code: int) -> None:
    write_config(tmp_path)
    place, log = tmp_path / 'temporary', tmp_path / 'stderr.txt'
    place.mkdir()
    with open(log, 'w') as stderr:
        bench = subprocess.Popen(
            command('bench', '--config', 'config.py', '--env-steps', '1e6', '--rows', 'process', '--disturb'),
            cwd=tmp_path, env={**shell(), 'TMPDIR': str(place)}, stdout=subprocess.DEVNULL, stderr=stderr
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not any('"batch"' in path.read_text() for path in place.glob('*/run/async/metrics.jsonl')):
            assert bench.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.05)  # another process writes; there is nothing to wait on
        pids = processes_of(bench.pid)
        blocks = shared_by(pids)
        assert len(pids) >= 4 and blocks, 'the bench, the busy process, the measured run and its collector'
    finally:
        bench.send_signal(number)
    assert bench.wait(30) == code
    assert all(ends(pid, 20) for pid in pids) and alive(pids) == []
    assert [block for block in blocks if block.exists()] == []
    assert number == signal.SIGKILL or list(place.glob('lzero-async-bench-*')) == []


# ---------------------------------------------------------------------- learning


def evaluations(*returns: float) -> list[dict[str, float]]:
    return [
        {'env_steps': 100 * number, 'train_iters': number, 'mean_return': value, 'seconds': 10.0 * number, 'at': 0.0}
        for number, value in enumerate(returns, start=1)
    ]


@pytest.mark.unittest
def test_a_result_is_the_mean_of_the_last_three_evaluations() -> None:
    assert learn.result_of(evaluations(1, 2, 3, 4, 5)) == 4
    assert learn.result_of(evaluations(1, 2)) is None


@pytest.mark.unittest
def test_the_verdict_compares_means_by_the_pooled_spread() -> None:
    worse = learn.verdict([100, 110, 120], [80, 90, 100])
    assert not worse['as_good'] and worse['pooled_spread'] == pytest.approx(10)
    assert learn.verdict([100, 110, 120], [90, 100, 110])['as_good']
    assert learn.verdict([100], [99])['as_good'] is False, 'one seed has no spread'


@pytest.mark.unittest
def test_learning_is_summarized_printed_and_drawn(tmp_path: Path) -> None:
    runs = {
        name: [
            {'seed': seed, 'result': 190.0 + seed, 'clock_s': 60.0, 'updates': 900, 'stop_value': 195,
             'evaluations': evaluations(20, 196 if seed else 150, 190, 194)} for seed in range(2)
        ] for name in ('serial', 'asynchronous')
    }
    document = learn.summarize(learn.Plan(4000, 2), runs)
    assert [row['solved_at_env_step'] for row in document['rows']] == [None, 200, None, 200]
    assert document['verdict']['as_good']
    printed = learn.text(document)
    assert '196@200' in printed and 'not below serial' in printed
    learn.plot(document, tmp_path / 'learning.svg')
    assert '<svg' in (tmp_path / 'learning.svg').read_text()


@pytest.mark.unittest
def test_too_few_evaluations_are_refused_at_once_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(order: Order, disturb: bool) -> dict[str, Any]:
        measured.append(order)
        return {'evaluations': evaluations(1, 2), 'wall_s': 1.0}

    monkeypatch.setattr(learn, 'measure', measure)
    with pytest.raises(ConfigError, match='--env-steps'):
        learn.run(learn.Plan(100, 3))
    assert len(measured) == 1


@pytest.mark.envtest
def test_a_real_comparison_of_learning(tmp_path: Path) -> None:
    config = tmp_path / 'config.py'
    config.write_text(
        "from tiny import tiny\nentry = 'train_unizero_segment_async'\n"
        "main_config, create_config = tiny('unizero', eval_freq=8)\n"
    )
    out = tmp_path / 'out.json'
    finished = subprocess.run(
        [sys.executable, '-m', 'lzero_async.cli', 'bench', '--learn', '--config', str(config), '--seeds', '1',
         '--env-steps', '400', '--json', str(out)],
        cwd=tmp_path, env={**os.environ, 'PYTHONPATH': str(Path(__file__).parent)}, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows = json.loads(out.read_text())['rows']
    assert [row['name'] for row in rows] == ['serial', 'asynchronous']
    for row in rows:
        assert len(row['evaluations']) >= 3
        assert all(later['env_steps'] >= sooner['env_steps'] and later['seconds'] > sooner['seconds']
                   for sooner, later in zip(row['evaluations'], row['evaluations'][1:], strict=False))


# ---------------------------------------------------------------------- scale


@pytest.mark.unittest
def test_the_gates_work_per_batch_is_timed_with_any_number_of_collectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, 'ROUNDS', 1)
    monkeypatch.setattr(scale, 'COLLECTORS_AT_THE_GATE', (1, 30))
    rows = scale.gate_rows()
    assert [row['collectors'] for row in rows] == [1, 30] and all(row['gate us per batch'] > 0 for row in rows)
    assert 'gate us per batch' in scale.as_table(rows)


@pytest.mark.unittest
def test_buffers_of_any_size_are_timed_with_consistent_books(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, 'ROUNDS', 1)
    monkeypatch.setattr(scale, 'BUFFER_SIZES', (1000,))
    (row,) = scale.buffer_rows()
    assert set(row) == {
        'transitions', 'upstream push ms', 'upstream sample ms', 'ours push ms', 'ours sample ms'
    }


@pytest.mark.unittest
def test_a_snapshots_way_is_timed_by_model_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, 'ROUNDS', 1)
    monkeypatch.setattr(scale, 'WIDTHS', (16, 32))
    small, large = scale.model_rows()
    assert 0 < small['MB'] < large['MB'] and small['publish ms'] > 0 and small['load ms'] > 0


# ---------------------------------------------------------------------- a language model's prior


def a_prior_run(returns: list[list[float]], **report: Any) -> dict[str, Any]:
    """What a run came to whose batches of ten steps ended these episodes."""
    events = [
        {'event': 'batch', 'env_steps': 10 * number, 'episode_returns': values}
        for number, values in enumerate(returns, 1)
    ]
    events.insert(1, {'event': 'evaluation', 'env_steps': 10, 'mean_return': 2.5})
    return prior.result_of(events, {'env_steps': 10 * len(returns), 'batches_lost': 0, **report})


@pytest.mark.unittest
def test_a_prior_is_worth_the_mean_return_of_the_second_half() -> None:
    found = a_prior_run([[9.0], [9.0], [1.0], [2.0, 6.0]], llm_updates=7, other=1)
    assert (found['mean_return'], found['episodes'], found['evaluations']) == (3.0, 3, [(10, 2.5)])
    assert found['report'] == {'env_steps': 40, 'batches_lost': 0, 'llm_updates': 7}
    with pytest.raises(ConfigError, match='raise --env-steps'):
        a_prior_run([[1.0], [2.0], [], []])


@pytest.mark.unittest
def test_priors_are_compared_by_mean_and_spread_over_seeds() -> None:
    held_out = {'before': 1.0, 'after': 0.75, 'records': 32}
    rows = [
        {'name': name, 'seed': seed, 'wall_s': 9.0, **a_prior_run([[], [value]], **extra)} for name, seed, value, extra
        in [('UniZero alone', 0, 1.0, {}), ('UniZero alone', 1, 3.0, {}),
            ('trained prior', 0, 5.0, {'llm_updates': 7, 'llm_held_out': held_out})]
    ]
    arms = prior.summarize(rows)
    assert [(arm['name'], arm['mean_return'], arm['seeds']) for arm in arms] == [
        ('UniZero alone', 2.0, 2), ('trained prior', 5.0, 1)
    ]
    assert arms[0]['spread'] == pytest.approx(2**0.5) and arms[1]['spread'] is None
    said = prior.text({
        'rows': rows, 'arms': arms, 'setting': {'config': 'mine.py', 'env_steps': 20, 'seeds': 2}
    })
    assert 'mine.py: 20 env steps, 2 seeds' in said and '1.000 -> 0.750 (32)' in said
    assert 'UniZero alone: 2.00 (spread 1.41)' in said and said.endswith('trained prior: 5.00\n')
