"""JSON over HTTP with bounded patience: a request ends by an answer, by a clear error, or at once when closed."""
from __future__ import annotations

import datetime
import email.utils
import http.client
import json
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ..core import AsyncTrainingError, Closed

logger = logging.getLogger(__name__)

Answer = TypeVar('Answer')
_CHUNK = 1 << 16
_EXCERPT = 300


class Unusable(Exception):
    """A reply that is worth another try."""

    def __init__(self, cause: str, wait_s: float = 0.0) -> None:
        super().__init__(cause)
        self.wait_s = wait_s  # as the server asked


class JsonClient:
    """
    Overview:
        Posts JSON to one address, from any number of threads; each request has its own connection. Time-outs, lost
        connections, broken replies, 429 and 5xx are tried again after a pause that doubles, other refusals are not.
    Arguments:
        - url (:obj:`str`): http or https.
        - key (:obj:`Optional[str]`): sent as bearer token; appears in no log and no error.
        - timeout_s (:obj:`float`): of one try, from connecting to the last byte.
        - retries (:obj:`int`): tries after the first.
        - backoff_s (:obj:`float`): first pause.
        - backoff_cap_s (:obj:`float`): longest pause, also where the server asks for a longer one.
    """

    def __init__(
        self, url: str, key: str | None, timeout_s: float, retries: int, backoff_s: float, backoff_cap_s: float
    ) -> None:
        self.url = url
        self.requests = 0  # sent, with every further try
        self.retries = 0  # of these, the further tries
        self._parts = urlsplit(url)
        self._key = key
        self._timeout_s, self._tries = timeout_s, retries + 1
        self._backoff_s, self._backoff_cap_s = backoff_s, backoff_cap_s
        self._closed = threading.Event()
        self._lock = threading.Lock()  # protects the counters and the sockets in use
        self._sockets: set[socket.socket] = set()
        self._random = random.Random()  # its own: pauses must not move the run's random numbers

    def post(self, body: Mapping[str, Any], read: Callable[[Any], Answer]) -> Answer:
        """``read(reply)``, which may raise ``Unusable`` too."""
        data = json.dumps(body).encode()
        for attempt in range(self._tries):
            try:
                return read(self._try(data, again=attempt > 0))
            except Unusable as error:
                last = error
            except (OSError, http.client.HTTPException) as error:
                last = Unusable(f'{type(error).__name__}: {error}')
            if self._closed.is_set():  # our own close is what broke the connection
                raise Closed(f'the client of {self.url} was closed')
            if attempt + 1 < self._tries:
                self._pause(attempt, last)
        raise AsyncTrainingError(f'{self.url} gave no usable reply in {self._tries} tries; the last: {last}') from last

    def close(self) -> None:
        """End running requests and pauses now; nothing can be posted after."""
        with self._lock:
            self._closed.set()
            for sock in self._sockets:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError as error:  # the server was faster
                    logger.debug('a connection to %s was gone already: %s', self.url, error)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def _pause(self, attempt: int, last: Unusable) -> None:
        # Jitter, so that collectors that failed together do not come back together.
        pause = self._backoff_s * 2 ** attempt * self._random.uniform(0.5, 1.0)
        pause = min(max(pause, last.wait_s), self._backoff_cap_s)
        logger.info('%s: %s; try %d of %d in %.2f s', self.url, last, attempt + 2, self._tries, pause)
        if self._closed.wait(pause):
            raise Closed(f'the client of {self.url} was closed')

    def _try(self, data: bytes, again: bool) -> Any:
        with self._lock:
            self.requests += 1
            self.retries += again
        deadline = time.monotonic() + self._timeout_s
        kind = http.client.HTTPSConnection if self._parts.scheme == 'https' else http.client.HTTPConnection
        connection = kind(self._parts.hostname or '', self._parts.port, timeout=self._timeout_s)
        try:
            connection.connect()
            sock = connection.sock
            with self._lock:
                if self._closed.is_set():
                    raise Closed(f'the client of {self.url} was closed')
                self._sockets.add(sock)
            try:
                return self._exchange(connection, sock, data, deadline)
            finally:
                with self._lock:
                    self._sockets.discard(sock)
        finally:
            connection.close()

    def _exchange(
        self, connection: http.client.HTTPConnection, sock: socket.socket, data: bytes, deadline: float
    ) -> Any:
        headers = {'Content-Type': 'application/json', 'Connection': 'close'}
        if self._key is not None:
            headers['Authorization'] = f'Bearer {self._key}'
        target = self._parts.path + (f'?{self._parts.query}' if self._parts.query else '')
        connection.request('POST', target, data, headers)
        response = connection.getresponse()
        received = bytearray()
        while True:
            # A socket's own time-out starts anew with every byte; ours does not.
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f'no whole reply within {self._timeout_s:g} s')
            sock.settimeout(left)
            chunk = response.read1(_CHUNK)
            if not chunk:
                break
            received += chunk
        response.close()
        if response.status != 200:
            self._refused(response, bytes(received))
        try:
            return json.loads(received)
        except ValueError as error:
            raise Unusable(f'a reply of {len(received)} bytes that is no JSON ({error})') from error

    def _refused(self, response: http.client.HTTPResponse, body: bytes) -> None:
        """Raise what a status other than 200 means."""
        text = body.decode('utf-8', 'replace').strip()
        if self._key:
            text = text.replace(self._key, '***')
        said = f'HTTP {response.status} {response.reason}: {text[:_EXCERPT]}'
        if response.status == 429 or response.status >= 500:
            raise Unusable(said, _seconds(response.getheader('Retry-After')))
        raise AsyncTrainingError(f'{self.url} refuses the request, so it was not tried again: {said}')


def _seconds(header: str | None) -> float:
    """The pause that a Retry-After header asks for: seconds, or a date."""
    if header is None:
        return 0.0
    try:
        return max(0.0, float(header))
    except ValueError:
        pass  # then it is a date
    try:
        when = email.utils.parsedate_to_datetime(header)
    except ValueError:
        logger.debug('Retry-After: %r is neither seconds nor a date', header)
        return 0.0
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.timezone.utc)
    return max(0.0, (when - datetime.datetime.now(datetime.timezone.utc)).total_seconds())
