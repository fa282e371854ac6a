"""A prior from any server that speaks OpenAI's completions protocol, vLLM among them; it is scored, not trained."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch

from ..core import AsyncTrainingError, Closed, ConfigError
from .client import JsonClient, Unusable
from .prior import Example, TrainStats, check_actions, check_examples, check_names, cross_entropy
from .prompt import Context, continuation, write_prompt
from .spec import SECTION, check_number, check_text


def _required(meaning: str) -> Any:
    return field(metadata={'meaning': meaning})


@dataclass(frozen=True)
class OpenAIOptions:
    """Settings of backend ``openai``."""
    base_url: str = _required("up to and with the version, such as 'http://localhost:8000/v1'")
    model: str = _required('as the server names it')
    eos_token: str = _required("the model's end token as text, such as '<|im_end|>'; '' scores actions without one")
    api_key_env: str | None = None  # name of the environment variable that holds the key
    max_tokens: int = 0  # 1 for servers that insist on writing something
    batch_size: int = 16  # prompts per request
    max_concurrency: int = 4  # requests at a time
    timeout_s: float = 60.0  # of one try
    retries: int = 5  # tries after the first
    backoff_s: float = 0.5  # first pause; it doubles
    backoff_cap_s: float = 30.0  # longest pause
    temperature: float = 1.0  # scores are divided by it in the loss

    def __post_init__(self) -> None:
        check_text('base_url', self.base_url, "it must be an address such as 'http://localhost:8000/v1'.")
        check_text('model', self.model, 'it must be the name that the server knows the model by.')
        _check_url(self.base_url)
        if not isinstance(self.eos_token, str):
            raise ConfigError(
                f"{SECTION}.eos_token is {self.eos_token!r}: it must be text such as '<|im_end|>', or ''."
            )
        if self.api_key_env is not None:
            check_text('api_key_env', self.api_key_env, 'it must be the name of an environment variable, or None.')
        check_number('max_tokens', self.max_tokens, int, least=0, most=1)
        for key in ('batch_size', 'max_concurrency'):
            check_number(key, getattr(self, key), int, least=1)
        check_number('retries', self.retries, int, least=0)
        for key in ('timeout_s', 'backoff_s', 'backoff_cap_s', 'temperature'):
            check_number(key, getattr(self, key), float, above=0)


class OpenAIPrior:
    """
    Overview:
        Scores actions by the log-probabilities that a server gives for an echoed prompt.
    Arguments:
        - options (:obj:`OpenAIOptions`): which server and model, and how patient to be.
    """

    truncated = 0  # only the server knows how much it reads; it refuses what is longer, which ends the run

    def __init__(self, options: OpenAIOptions) -> None:
        self.options = options
        self._client = JsonClient(
            options.base_url.rstrip('/') + '/completions', _key(options), options.timeout_s, options.retries,
            options.backoff_s, options.backoff_cap_s
        )
        self._pool = ThreadPoolExecutor(options.max_concurrency, thread_name_prefix='openai-prior')

    @property
    def version(self) -> int:
        """The server's model is one for the whole run."""
        return 0

    @property
    def requests(self) -> int:
        """Requests sent so far, with every further try."""
        return self._client.requests

    @property
    def retries(self) -> int:
        """Further tries among them."""
        return self._client.retries

    def score(
        self, contexts: Sequence[Context], actions: Sequence[Sequence[str]]
    ) -> tuple[list[np.ndarray], int]:
        check_actions(contexts, actions)
        if self._client.closed:
            raise Closed('the prior was closed')
        asked = [
            (write_prompt(context), continuation(action) + self.options.eos_token)
            for context, choices in zip(contexts, actions, strict=True) for action in choices
        ]
        size = self.options.batch_size
        jobs = [self._pool.submit(self._ask, asked[first:first + size]) for first in range(0, len(asked), size)]
        try:
            flat = np.array([score for job in jobs for score in job.result()], dtype=np.float32)
        except CancelledError as error:
            raise Closed('the prior was closed') from error
        finally:
            for job in jobs:  # after a failure nobody wants the rest
                job.cancel()
        ends = np.cumsum([len(choices) for choices in actions])
        return [part.copy() for part in np.split(flat, ends[:-1])] if len(ends) else [], self.version

    def train_step(self, batch: Sequence[Example]) -> TrainStats:
        raise AsyncTrainingError(
            f"a prior with backend 'openai' cannot be trained: {self.options.base_url} only scores; use backend 'hf', "
            'or do not train the prior'
        )

    def loss(self, batch: Sequence[Example]) -> float:
        check_examples(batch)
        scores, _ = self.score([example.context for example in batch], [example.actions for example in batch])
        return cross_entropy(scores, batch, self.options.temperature)

    def state(self) -> dict[str, torch.Tensor]:
        return {}

    def load(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        check_names({}, state)
        if version != self.version:
            raise AsyncTrainingError(f'version {version} cannot be loaded: the model lives in {self.options.base_url}')

    def close(self) -> None:
        """End running requests and pauses at once; a running ``score`` raises ``Closed``."""
        self._client.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _ask(self, asked: Sequence[tuple[str, str]]) -> list[float]:
        """The scores of one request."""
        body = {
            'model': self.options.model, 'prompt': [prompt + tail for prompt, tail in asked],
            'max_tokens': self.options.max_tokens, 'echo': True, 'logprobs': 1, 'temperature': 0,
        }

        def read(reply: Any) -> list[float]:
            choices = _in_order(reply, len(asked))
            return [self._mean(choice, *pair) for choice, pair in zip(choices, asked, strict=True)]

        return self._client.post(body, read)

    def _mean(self, choice: Mapping[str, Any], prompt: str, tail: str) -> float:
        """Mean log-probability of the tokens of ``tail`` in an echo of ``prompt + tail``."""
        found = choice.get('logprobs') or {}
        tokens, values, offsets = (found.get(key) or [] for key in ('tokens', 'token_logprobs', 'text_offset'))
        echoed = str(choice.get('text', '')).startswith(prompt)
        if not echoed or not tokens or not len(tokens) == len(values) == len(offsets):
            raise AsyncTrainingError(
                f'{self._client.url} did not echo the prompt with its log-probabilities: the server must support '
                "'echo': true together with 'logprobs' (tokens, token_logprobs, text_offset) on /completions, as vLLM "
                'does'
            )
        count = len(tokens)
        if self.options.max_tokens and offsets[-1] - offsets[0] >= len(prompt + tail):
            count -= 1  # the token that the server insisted on writing
        # Counted from the end: a start token that the server puts first shifts all offsets.
        start = offsets[count - 1] + len(tokens[count - 1]) - len(tail)
        scored = [value for value, offset in zip(values[:count], offsets, strict=False) if offset >= start]
        if not scored or any(value is None for value in scored):
            raise AsyncTrainingError(
                f'{self._client.url} gave no log-probability for a token of {tail!r}: {len(scored)} of its {count} '
                'tokens stand after the prompt'
            )
        return sum(scored) / len(scored)


def _in_order(reply: Any, wanted: int) -> list[Mapping[str, Any]]:
    """The choices of a reply in the order of the prompts."""
    choices = reply.get('choices') if isinstance(reply, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise Unusable(f"a reply without 'choices': {str(reply)[:200]}")
    places = [choice.get('index', place) for place, choice in enumerate(choices)]
    if sorted(places) != list(range(wanted)):
        raise Unusable(f'{wanted} prompts were sent, but the choices have the indices {places}')
    return [choice for _, choice in sorted(zip(places, choices, strict=True), key=lambda pair: pair[0])]


def _key(options: OpenAIOptions) -> str | None:
    name = options.api_key_env
    if name is None:
        return None
    if not os.environ.get(name):
        raise ConfigError(f'{SECTION}.api_key_env is {name!r}, but there is no such environment variable; export it.')
    return os.environ[name].strip()


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ('http', 'https') and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{SECTION}.base_url is {url!r}: it must be an address such as 'http://localhost:8000/v1'.")
    if parts.username is not None or parts.password is not None:  # not shown: it may be a secret
        raise ConfigError(f'{SECTION}.base_url holds a user name or password; name a variable in api_key_env instead.')
