"""An OpenAI-compatible completions server on loopback, with a real if tiny model, that misbehaves on command."""
from __future__ import annotations

import json
import queue
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from conftest import PATIENCE
from transformers import AutoModelForCausalLM, AutoTokenizer


class CompletionsServer:
    """
    Answers as vLLM does: a start token counts in the offsets, the first token has no log-probability. ``script`` holds
    what becomes of the next requests: a status (int), a status with headers, or a word that ``Handler`` knows.
    """

    def __init__(self, path: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        self.script: deque[Any] = deque()
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.arrived: queue.SimpleQueue[None] = queue.SimpleQueue()  # one per request that is held
        self.go = threading.Semaphore(0)  # one per request that may go on
        self.in_flight = self.peak = 0
        self.lock = threading.Lock()
        owner = self

        class Handler(_Handler):
            server_of = owner

        self._http = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self._http.daemon_threads = False  # so that closing waits for them
        self.url = f'http://127.0.0.1:{self._http.server_port}/v1'
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={'poll_interval': 0.01})
        self._thread.start()

    def close(self) -> None:
        self.go.release(1000)
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def choice(self, index: int, prompt: str, body: dict[str, Any], echo: bool) -> dict[str, Any]:
        """One completion."""
        ids = self.tokenizer(prompt)['input_ids']
        with torch.no_grad(), self.lock:
            logits = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        values: list[float | None] = [None, *(float(logits[i, token]) for i, token in enumerate(ids[1:]))]
        written, text = body['max_tokens'], prompt if echo else ''
        if written:
            best = int(logits[-1].argmax())
            ids, values = [*ids, best], [*values, float(logits[-1, best])]
            text += self.tokenizer.decode([best])
        if not echo:
            ids, values = ids[len(ids) - written:], values[len(values) - written:]
        tokens = [self.tokenizer.decode([token]) for token in ids]
        offsets = [sum(map(len, tokens[:place])) for place in range(len(tokens))]
        found = {'tokens': tokens, 'token_logprobs': values, 'text_offset': offsets, 'top_logprobs': None}
        return {'index': index, 'text': text, 'finish_reason': 'length', 'logprobs': found}


class _Handler(BaseHTTPRequestHandler):
    server_of: CompletionsServer

    def do_POST(self) -> None:
        server = self.server_of
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        with server.lock:
            server.in_flight += 1
            server.peak = max(server.peak, server.in_flight)
            server.bodies.append({'path': self.path, **body})
            server.keys.append(self.headers['Authorization'])
            todo = server.script.popleft() if server.script else 'answer'
        try:
            self._hold(todo)
            with server.lock:  # before the reply, after which the client may be back at once
                server.in_flight -= 1
            self._act(todo, body)
        except ConnectionError:  # the client gave up
            assert todo in ('hold', 'drip'), 'only these outlive the client'

    def _hold(self, todo: Any) -> None:
        server = self.server_of
        if todo == 'hold':
            server.arrived.put(None)
            assert server.go.acquire(timeout=PATIENCE)
        if todo == 'drip':  # a reply that never ends, though there is always a byte more
            self._head(200, 1_000_000)
            while not server.go.acquire(timeout=0.05):
                self.wfile.write(b' ')

    def _act(self, todo: Any, body: dict[str, Any]) -> None:
        status, headers = todo if isinstance(todo, tuple) else (todo, {})
        if isinstance(status, int):
            said = json.dumps({'error': f'as told, {self.headers["Authorization"]}'}).encode()
            self._head(status, len(said), **headers)
            self.wfile.write(said)
            return
        echo = body.get('echo', False) and todo != 'no echo'
        choices = [self.server_of.choice(i, prompt, body, echo) for i, prompt in enumerate(body['prompt'])]
        if todo == 'shuffled':
            choices.reverse()
        if todo == 'one less':
            choices.pop()
        if todo == 'no logprobs':
            choices = [{**choice, 'logprobs': None} for choice in choices]
        data = json.dumps({'object': 'text_completion', 'choices': choices}).encode()
        length = len(data)
        if todo in ('half', 'hang up'):
            data = data[:length // 2]
        if todo != 'drip':
            self._head(200, length if todo == 'hang up' else len(data))
        self.wfile.write(data)

    def _head(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        self.send_header('Content-Length', str(length))
        for name, value in headers.items():
            self.send_header(name.replace('_', '-'), value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""
