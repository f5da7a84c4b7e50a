"""A small HTTP server that speaks the completions protocol with a real model behind it, and faults on demand."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from evalkit.backends.base import Backend
from evalkit.tokenization import TextTokenizer

KNOWN = {"model", "prompt", "max_tokens", "temperature", "top_p", "echo", "logprobs"}
NAME = "stories"

# Answers a request in place of the server: (status, headers, body), or None to let it answer.
Intercept = Callable[[int, dict[str, Any]], tuple[int, dict[str, str], bytes] | None]


@dataclass
class Behaviour:
    """How a server speaks; the defaults are those of a good one that knows both dialects.

    Attributes:
        dialects: of prompt_logprobs and echo.
        takes_ids: whether prompts may be token ids.
        strict: refuse fields that OpenAI doesn't know.
        bos: a token put in front of text prompts; of id prompts too where bos_twice.
        keeps: reads only the last so many tokens.
        ignores_echo: gives the log-probability of the generated token alone, as llama.cpp's server.
        generated: whether the generated token is listed.
        usage: whether the numbers of tokens are told.
        write: how a token is written, by its id.
        value: what stands for the log-probability at an index of the prompt.
        intercept: see `Intercept`.
        key: the API key that is asked for.
        max_model_len: told by /models.
    """

    dialects: frozenset[str] = frozenset({"prompt_logprobs", "echo"})
    takes_ids: bool = True
    strict: bool = False
    bos: bool = True
    bos_twice: bool = False
    keeps: int | None = None
    ignores_echo: bool = False
    generated: bool = True
    usage: bool = True
    write: Callable[[int], Any] | None = None
    value: Callable[[int, float], Any] = lambda index, logprob: logprob
    intercept: Intercept = lambda number, body: None
    key: str | None = None
    max_model_len: int | None = None


@dataclass
class CompletionsServer:
    """The server's state; `requests` are the bodies that came, `busy` the most that were under way at once."""

    backend: Backend
    tokenizer: TextTokenizer
    behaviour: Behaviour = field(default_factory=Behaviour)
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    busy: int = 0

    def __post_init__(self) -> None:
        self._lock, self._count, self._now = threading.Lock(), threading.Lock(), 0
        self._known: dict[tuple[int, ...], list[float]] = {}

    def answer(self, body: dict[str, Any], headers: Any) -> tuple[int, dict[str, str], bytes]:
        """Answer one POST of /completions."""
        how = self.behaviour
        with self._count:
            self.requests.append(body)
            number = len(self.requests)
            self._now += 1
            self.busy = max(self.busy, self._now)
        try:
            return how.intercept(number, body) or self._complete(body, headers)
        finally:
            with self._count:
                self._now -= 1

    def _complete(self, body: dict[str, Any], headers: Any) -> tuple[int, dict[str, str], bytes]:
        how = self.behaviour
        if how.key is not None and headers.get("Authorization") != f"Bearer {how.key}":
            return _json(401, {"error": {"message": f"Incorrect API key: {headers.get('Authorization')}"}})
        if body["model"] != NAME:
            return _json(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
        unknown = sorted(set(body) - KNOWN)
        if how.strict and unknown:
            return _json(400, {"error": {"message": f"Unrecognized request argument supplied: {unknown[0]}"}})
        prompt = body["prompt"]
        if isinstance(prompt, str):
            ids = self.tokenizer.encode_ids(prompt, special=False)
            front = how.bos
        elif how.takes_ids:
            ids, front = list(prompt), how.bos_twice
        else:
            return _json(422, {"detail": "prompt: Input should be a valid string"})
        ids = [1, *ids] if front else ids
        if len(ids) + 1 > self.backend.max_length + 2:
            return _json(
                400, {"object": "error", "message": f"maximum context length is {self.backend.max_length}"}
            )
        ids = ids if how.keeps is None else ids[-how.keeps :]
        return _json(200, self._reply(ids, body))

    def _reply(self, ids: list[int], body: dict[str, Any]) -> dict[str, Any]:
        how = self.behaviour
        values = [
            None,
            *(how.value(index, value) for index, value in enumerate(self._logprobs(ids), start=1)),
        ]
        choice: dict[str, Any] = {"index": 0, "text": " end", "logprobs": None, "finish_reason": "length"}
        if "prompt_logprobs" in body and "prompt_logprobs" in how.dialects:
            choice["prompt_logprobs"] = [
                None
                if index == 0
                else {
                    # The most probable token stands beside the prompt's.
                    "3": {"logprob": -0.5, "rank": 1, "decoded_token": "x"},
                    str(token): {"logprob": value, "rank": 2, "decoded_token": self._write(token)},
                }
                for index, (token, value) in enumerate(zip(ids, values, strict=True))
            ]
        if body.get("logprobs") is not None and "echo" in how.dialects:
            echo = bool(body.get("echo")) and not how.ignores_echo
            strings = [self._write(token) for token in ids] if echo else []
            listed = values if echo else []
            if how.generated or not echo:
                strings, listed = [*strings, self._write(3)], [*listed, -0.7]
            choice["logprobs"] = {
                "tokens": strings,
                "token_logprobs": listed,
                "top_logprobs": None,
                "text_offset": list(range(len(strings))),
            }
        reply = {"object": "text_completion", "model": NAME, "choices": [choice]}
        if how.usage:
            reply["usage"] = {"prompt_tokens": len(ids), "completion_tokens": 1}
        return reply

    def _write(self, token: int) -> Any:
        if self.behaviour.write is not None:
            return self.behaviour.write(token)
        return self.tokenizer.token_text(token).replace("\u2581", " ")

    def _logprobs(self, ids: Sequence[int]) -> list[float]:
        """ln p of each token after the first, by the real model; equal prompts get equal bits."""
        key = tuple(ids)
        with self._lock:
            if key not in self._known:
                size = len(ids) - 1
                fed, targets = (np.array([part], dtype=np.int32) for part in (ids[:-1], ids[1:]))
                positions = np.arange(size, dtype=np.int32)[np.newaxis]
                stats = self.backend.score(fed, targets, positions, np.ones((1, size), dtype=np.int32))
                self._known[key] = [float(value) for value in stats.logprob[0]]
        return self._known[key]


def _json(status: int, content: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    return status, {}, json.dumps(content).encode()


@contextmanager
def serve(server: CompletionsServer, context: Any = None) -> Iterator[CompletionsServer]:
    """Serve on a free local port; `url` ends with /v1. An SSL context makes it https."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            entry = {"id": NAME, "object": "model"}
            if server.behaviour.max_model_len is not None:
                entry["max_model_len"] = server.behaviour.max_model_len
            self._send(*_json(200, {"data": [entry]}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/completions":
                self._send(*_json(404, {"detail": "Not Found"}))
                return
            self._send(*server.answer(body, self.headers))

        def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
            if status == 0:  # the connection breaks
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Clients that went away are part of the tests."""

    http = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        http.socket = context.wrap_socket(http.socket, server_side=True)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    server.url = f"http{'s' if context else ''}://127.0.0.1:{http.server_address[1]}/v1"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
