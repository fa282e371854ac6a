"""The completions prior against a server that misbehaves: the right scores, or a clear error, and never a hang."""
from __future__ import annotations

import email.utils
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE, Crew

pytest.importorskip('transformers')
import tiny_lm  # noqa: E402
from completions_server import CompletionsServer  # noqa: E402

from lzero_async.core import AsyncTrainingError, Closed, ConfigError  # noqa: E402
from lzero_async.priorzero import (  # noqa: E402
    CachedPrior,
    Context,
    Example,
    HFOptions,
    HFPrior,
    OpenAIPrior,
    cross_entropy,
    make_prior,
)

pytestmark = pytest.mark.unittest

CONTEXTS = [Context('You are in the kitchen.'), Context('It is dark.', (('Un café ✨.', 'go down', 1.0),))]
ACTIONS = [['go north', 'look', 'take the lamp'], ['wait', 'go up']]
Make = Callable[..., OpenAIPrior]


@pytest.fixture(scope='module', params=['with a start token', 'without'])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_lm.save(tmp_path_factory.mktemp('model'), bos=request.param != 'without')


@pytest.fixture(scope='module')
def plain_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_lm.save(tmp_path_factory.mktemp('model'))


@pytest.fixture
def server(plain_path: str) -> Iterator[CompletionsServer]:
    server = CompletionsServer(plain_path)
    yield server
    server.close()


@pytest.fixture
def make(server: CompletionsServer) -> Iterator[Make]:
    """Priors of the server with hardly any patience; closed at the end, with all of their threads."""
    made: list[OpenAIPrior] = []

    def make(**options: Any) -> OpenAIPrior:
        spec = {
            'backend': 'openai', 'base_url': server.url, 'model': 'tiny', 'eos_token': tiny_lm.EOS, 'cache_size': 0,
            'timeout_s': PATIENCE, 'backoff_s': 1e-3, 'retries': 3, **options
        }
        prior = make_prior(spec)
        assert isinstance(prior, OpenAIPrior)
        made.append(prior)
        return prior

    yield make
    for prior in made:
        prior.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith('openai-prior')]


@pytest.fixture(scope='module')
def expected(plain_path: str) -> list[np.ndarray]:
    return HFPrior(HFOptions(path=plain_path)).score(CONTEXTS, ACTIONS)[0]


def assert_close(scores: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert [row.dtype for row in scores] == [np.float32] * len(expected)
    for row, wanted in zip(scores, expected, strict=True):
        np.testing.assert_allclose(row, wanted, rtol=0, atol=1e-4)


class Pauses(threading.Event):
    """Tells of every pause; takes no time where told so."""

    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.begun: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._skip = skip

    def wait(self, timeout: float | None = None) -> bool:
        self.begun.put(timeout or 0.0)
        return super().wait(0 if self._skip else timeout)


def watch_pauses(prior: OpenAIPrior, skip: bool = True) -> queue.SimpleQueue[float]:
    prior._client._closed = pauses = Pauses(skip)
    return pauses.begun


class TestScores:

    @pytest.mark.parametrize('max_tokens', [0, 1])
    def test_they_equal_those_of_the_model_itself(self, path: str, max_tokens: int) -> None:
        server = CompletionsServer(path)
        prior = make_prior({
            'backend': 'openai', 'base_url': server.url + '/', 'model': 'tiny', 'eos_token': tiny_lm.EOS,
            'max_tokens': max_tokens, 'cache_size': 8
        })
        try:
            assert isinstance(prior, CachedPrior)
            scores, version = prior.score(CONTEXTS, ACTIONS)
        finally:
            prior.close()
            server.close()
        assert version == 0
        assert_close(scores, HFPrior(HFOptions(path=path)).score(CONTEXTS, ACTIONS)[0])
        assert server.bodies[0]['path'] == '/v1/completions'

    @pytest.mark.parametrize(('batch_size', 'requests'), [(1, 5), (2, 3), (5, 1), (100, 1)])
    def test_batches_do_not_change_them(
        self, make: Make, server: CompletionsServer, expected: list[np.ndarray], batch_size: int, requests: int
    ) -> None:
        prior = make(batch_size=batch_size)
        assert_close(prior.score(CONTEXTS, ACTIONS)[0], expected)
        assert prior.requests == len(server.bodies) == requests
        assert prior.retries == 0

    def test_choices_in_another_order_are_put_right(
        self, make: Make, server: CompletionsServer, expected: list[np.ndarray]
    ) -> None:
        server.script.append('shuffled')
        prior = make()
        assert_close(prior.score(CONTEXTS, ACTIONS)[0], expected)
        assert prior.retries == 0

    def test_no_context_is_no_request(self, make: Make, server: CompletionsServer) -> None:
        assert make().score([], []) == ([], 0)
        assert not server.bodies

    def test_the_loss_is_theirs_and_training_is_refused(self, make: Make, expected: list[np.ndarray]) -> None:
        prior = make()
        batch = [Example(CONTEXTS[0], tuple(ACTIONS[0]), (0.6, 0.3, 0.1))]
        assert prior.loss(batch) == pytest.approx(cross_entropy(expected[:1], batch), abs=1e-4)
        with pytest.raises(AsyncTrainingError, match='cannot be trained'):
            prior.train_step(batch)
        assert prior.state() == {}
        prior.load({}, 0)
        with pytest.raises(AsyncTrainingError, match='version 1 cannot be loaded'):
            prior.load({}, 1)

    @pytest.mark.parametrize('word', ['no echo', 'no logprobs'])
    @pytest.mark.parametrize('max_tokens', [0, 1])
    def test_a_server_that_does_not_echo_is_told_from_a_good_one(
        self, make: Make, server: CompletionsServer, word: str, max_tokens: int
    ) -> None:
        server.script.append(word)
        prior = make(max_tokens=max_tokens)
        with pytest.raises(AsyncTrainingError, match="must support 'echo': true"):
            prior.score(CONTEXTS, ACTIONS)
        assert prior.requests == 1


class TestRetries:

    @pytest.mark.parametrize('word', [500, 503, 429, 'half', 'hang up', 'one less'])
    def test_a_passing_trouble_is_tried_again_and_counted(
        self, make: Make, server: CompletionsServer, expected: list[np.ndarray], word: Any
    ) -> None:
        server.script.extend([word, word])
        prior = make()
        assert_close(prior.score(CONTEXTS, ACTIONS)[0], expected)
        assert (prior.requests, prior.retries) == (3, 2)

    @pytest.mark.parametrize('word', ['hold', 'drip'])
    def test_a_reply_that_does_not_come_or_end_is_given_up_and_tried_again(
        self, make: Make, server: CompletionsServer, expected: list[np.ndarray], word: str
    ) -> None:
        server.script.append(word)
        prior = make(timeout_s=0.5)
        assert_close(prior.score(CONTEXTS, ACTIONS)[0], expected)
        assert (prior.requests, prior.retries) == (2, 1)

    @pytest.mark.parametrize(('word', 'cause'), [
        (502, 'HTTP 502 Bad Gateway'), ('half', 'no JSON'), ('one less', 'indices')
    ])
    def test_a_lasting_trouble_names_address_tries_and_cause(
        self, make: Make, server: CompletionsServer, word: Any, cause: str
    ) -> None:
        server.script.extend([word] * 4)
        prior = make()
        said = f'{server.url}/completions gave no usable reply in 4 tries; the last: .*{cause}'
        with pytest.raises(AsyncTrainingError, match=said):
            prior.score(CONTEXTS, ACTIONS)
        assert (prior.requests, prior.retries) == (4, 3)

    def test_nobody_there_is_a_clear_error(self, make: Make) -> None:
        prior = make(base_url='http://127.0.0.1:9/v1', retries=1)
        with pytest.raises(AsyncTrainingError, match='127.0.0.1:9.*2 tries.*ConnectionRefusedError'):
            prior.score(CONTEXTS, ACTIONS)

    def test_a_refusal_is_not_tried_again(self, make: Make, server: CompletionsServer) -> None:
        server.script.append(404)
        prior = make()
        with pytest.raises(AsyncTrainingError, match='refuses .*HTTP 404 Not Found: .*as told'):
            prior.score(CONTEXTS, ACTIONS)
        assert (prior.requests, prior.retries) == (1, 0)

    def test_pauses_double_with_jitter_up_to_the_cap(self, make: Make, server: CompletionsServer) -> None:
        server.script.extend([500] * 6)
        prior = make(backoff_s=1.0, backoff_cap_s=5.0, retries=6)
        pauses = watch_pauses(prior)
        prior.score(CONTEXTS, ACTIONS)
        for most in (1, 2, 4, 8, 16, 32):
            assert min(most / 2, 5.0) <= pauses.get_nowait() <= min(most, 5.0)

    @pytest.mark.parametrize(('asked', 'least', 'most'), [
        ('7', 7, 7), ('1000', 30, 30), ('soon', 0, 0.001), ('-3', 0, 0.001),
        ('in 15 s', 5, 15),
    ])
    def test_the_pause_that_a_server_asks_for_is_kept_up_to_the_cap(
        self, make: Make, server: CompletionsServer, asked: str, least: float, most: float
    ) -> None:
        if asked == 'in 15 s':
            asked = email.utils.formatdate(time.time() + 15, usegmt=True)
        server.script.append((429, {'Retry_After': asked}))
        prior = make(backoff_cap_s=30.0)
        pauses = watch_pauses(prior)
        prior.score(CONTEXTS, ACTIONS)
        assert least <= pauses.get_nowait() <= most


class TestKey:

    def test_it_is_sent_and_never_shown(
        self, make: Make, server: CompletionsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv('TINY_KEY', 'very-secret')
        server.script.extend([500, 401])  # whose bodies repeat it
        prior = make(api_key_env='TINY_KEY')
        with caplog.at_level(logging.DEBUG), pytest.raises(AsyncTrainingError, match=r'401.*\*\*\*') as caught:
            prior.score(CONTEXTS, ACTIONS)
        assert server.keys == ['Bearer very-secret'] * 2
        assert 'HTTP 500' in caplog.text
        for shown in (caplog.text, str(caught.value), repr(prior.options)):
            assert 'very-secret' not in shown

    def test_a_variable_that_is_not_set_is_named(self, make: Make) -> None:
        with pytest.raises(ConfigError, match="llm.api_key_env is 'NO_SUCH_KEY'"):
            make(api_key_env='NO_SUCH_KEY')


class TestThreads:

    def test_no_more_requests_at_a_time_than_allowed(
        self, make: Make, server: CompletionsServer, crew: Crew, expected: list[np.ndarray]
    ) -> None:
        server.script.extend(['hold'] * 5)
        prior = make(batch_size=1, max_concurrency=2)
        scores = crew.start(prior.score, CONTEXTS, ACTIONS)
        for _ in range(2):
            server.arrived.get(timeout=PATIENCE)
        with pytest.raises(queue.Empty):  # a third would be here long before
            server.arrived.get(timeout=0.3)
        server.go.release(5)
        assert_close(scores.result(PATIENCE)[0], expected)
        assert server.peak == 2

    def test_close_during_a_pause_returns_at_once(self, make: Make, server: CompletionsServer, crew: Crew) -> None:
        server.script.append(500)
        prior = make(backoff_s=1000.0, backoff_cap_s=1000.0)
        pauses = watch_pauses(prior, skip=False)
        scores = crew.start(prior.score, CONTEXTS, ACTIONS)
        assert pauses.get(timeout=PATIENCE) >= 500
        crew.start(prior.close).result(PATIENCE)
        with pytest.raises(Closed):
            scores.result(PATIENCE)
        assert prior.requests == 1

    def test_close_during_a_request_returns_at_once(self, make: Make, server: CompletionsServer, crew: Crew) -> None:
        server.script.extend(['hold'] * 5)
        prior = make(timeout_s=1000.0, batch_size=1, max_concurrency=2)
        scores = crew.start(prior.score, CONTEXTS, ACTIONS)
        for _ in range(2):
            server.arrived.get(timeout=PATIENCE)
        crew.start(prior.close).result(PATIENCE)
        with pytest.raises(Closed):
            scores.result(PATIENCE)
        assert prior.requests == 2

    def test_a_closed_prior_says_so(self, make: Make, server: CompletionsServer) -> None:
        prior = make()
        prior.close()
        prior.close()
        with pytest.raises(Closed):
            prior.score(CONTEXTS, ACTIONS)
        assert not server.bodies
