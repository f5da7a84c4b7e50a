"""A local server that speaks chat completions with streaming, as well or as badly as a test wants.

Its tokens are words with the blank before them; a word's id comes from its bytes. What it says is a function of the messages.
"""

import json
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "served-model"
# What OpenAI's API takes of what we send; a strict server refuses the rest.
KNOWN = {"model", "messages", "stream", "temperature", "top_p", "seed", "stream_options"}
LENGTH_FIELDS = {"max_tokens", "max_completion_tokens"}

Messages = list[dict[str, str]]
# Answers a request in place of the server: (status, headers, body), or None to let it answer.
Intercept = Callable[[int, dict[str, Any]], tuple[int, dict[str, str], bytes] | None]


def echo(messages: Messages) -> str:
    """Says how many messages there were and repeats the last one."""
    return f"{len(messages)} messages, last: {messages[-1]['content']}"


@dataclass
class Behaviour:
    """How a server speaks; the defaults are those of vLLM with everything switched on.

    Attributes:
        say: the reply to messages.
        strict: refuse fields that OpenAI doesn't know.
        length_fields: what the longest reply may be called.
        usage: "each" (with every chunk), "last", "none", or "zeros" (with every chunk, never filled in).
        cached: prompt tokens reported as reused, from the messages; None reports nothing.
        token_ids: give them where asked.
        reason: why a complete reply ended.
        done: end with [DONE].
        context: tokens that prompt and reply may hold; more is refused.
        keeps: reads only the last so many words of the prompt, and says nothing of it.
        delay_s: before each token.
        breaks_after: close the connection in the middle of the stream, after so many tokens.
        tail: raw events in place of the end of the stream, after so many tokens.
        intercept: see `Intercept`.
        key: the API key that is asked for.
        max_model_len: told by /models.
    """

    say: Callable[[Messages], str] = echo
    strict: bool = False
    length_fields: frozenset[str] = frozenset({"max_tokens"})
    usage: str = "each"
    cached: Callable[[Messages], int] | None = None
    token_ids: bool = True
    reason: str | None = "stop"
    done: bool = True
    context: int | None = None
    keeps: int | None = None
    delay_s: float = 0.0
    breaks_after: int | None = None
    tail: tuple[int, bytes] | None = None
    intercept: Intercept = lambda number, body: None
    key: str | None = None
    max_model_len: int | None = None


@dataclass
class ChatServer:
    """The server's state.

    Attributes:
        requests: bodies that came.
        tokens_sent: over all streams.
        left: streams of the present behaviour whose client went away before their end.
    """

    behaviour: Behaviour = field(default_factory=Behaviour)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    tokens_sent: int = 0
    left: int = 0

    def start(self) -> None:
        """Begin to serve, on the port of the time before if there was one."""
        port = int(self.url.rpartition(":")[2].split("/")[0]) if self.url else 0
        self._http = _http_server(self, port)
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def stop(self) -> None:
        """Stop listening; streams that run are broken off."""
        self._http.shutdown()
        self._http.server_close()

    @property
    def turns(self) -> list[dict[str, Any]]:
        """Requests without the ones that only try what the server takes."""
        return [body for body in self.requests if body["messages"] != [{"role": "user", "content": "Hello"}]]


def tokens_of(text: str) -> list[str]:
    """The words, each with the blanks before it."""
    return re.findall(r"\s*\S+|\s+$", text)


def token_id(token: str) -> int:
    """Of a word."""
    return zlib.crc32(token.encode()) % 50_000


def prompt_tokens(messages: Messages) -> int:
    """Two tokens of template a message, and its words."""
    return sum(2 + len(tokens_of(message["content"])) for message in messages)


def event(content: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def stream_of(server: ChatServer, body: dict[str, Any]) -> Iterator[bytes]:
    """The events of one reply."""
    how, messages = server.behaviour, body["messages"]
    asked = body.get("stream_options") or {}
    limit = next(body[name] for name in ("max_completion_tokens", "max_tokens") if name in body)
    prompt = prompt_tokens(messages) if how.keeps is None else min(how.keeps, prompt_tokens(messages))
    said = tokens_of(how.say(messages))
    reason = how.reason if len(said) <= limit else "length"

    def usage(count: int) -> dict[str, Any] | None:
        if how.usage == "zeros":
            return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        told: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": count,
            "total_tokens": prompt + count,
        }
        if how.cached is not None:
            told["prompt_tokens_details"] = {"cached_tokens": how.cached(messages)}
        return told

    def chunk(delta: dict[str, Any], token: str | None, ended: str | None, count: int) -> bytes:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": ended}
        if token is not None and how.token_ids and body.get("return_token_ids"):
            choice["token_ids"] = [token_id(token)]
        content: dict[str, Any] = {"object": "chat.completion.chunk", "model": NAME, "choices": [choice]}
        if how.usage == "zeros" or (how.usage == "each" and asked.get("continuous_usage_stats")):
            content["usage"] = usage(count)
        return event(content)

    yield b": a comment\r\n\r\n"
    yield chunk({"role": "assistant", "content": ""}, None, None, 0)
    count = 0
    for token in said[:limit]:
        if how.tail is not None and count == how.tail[0]:
            yield how.tail[1]
            return
        if how.breaks_after is not None and count == how.breaks_after:
            raise BrokenPipeError
        time.sleep(how.delay_s)
        count += 1
        server.tokens_sent += 1
        yield chunk({"content": token}, token, None, count)
    yield chunk({}, None, reason, count)
    if how.usage in ("last", "each") and asked.get("include_usage"):
        yield event({"object": "chat.completion.chunk", "model": NAME, "choices": [], "usage": usage(count)})
    if how.done:
        yield b"data: [DONE]\n\n"


def refusal(
    server: ChatServer, body: dict[str, Any], headers: Any
) -> tuple[int, dict[str, str], bytes] | None:
    """What keeps a request from being answered."""
    how = server.behaviour
    if how.key is not None and headers.get("Authorization") != f"Bearer {how.key}":
        return error(401, f"Incorrect API key: {headers.get('Authorization')}")
    if body["model"] != NAME:
        return error(404, f"The model `{body['model']}` does not exist.")
    unknown = sorted(set(body) - KNOWN - how.length_fields)
    foreign = sorted(LENGTH_FIELDS & set(unknown))
    if how.strict and unknown:
        return error(400, f"Unrecognized request argument supplied: {unknown[0]}")
    if how.strict and set(body.get("stream_options") or {}) - {"include_usage"}:
        return error(400, "Unknown parameter: 'stream_options.continuous_usage_stats'.")
    if foreign:
        return error(400, f"Unsupported parameter: '{foreign[0]}' is not supported with this model.")
    needed = prompt_tokens(body["messages"]) + sum(body.get(name, 0) for name in LENGTH_FIELDS)
    if how.context is not None and needed > how.context:
        return error(
            400,
            f"This model's maximum context length is {how.context} tokens. However, you requested {needed}.",
        )
    return None


def error(status: int, message: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """An error answer."""
    return status, headers, json.dumps({"error": {"message": message, "code": None}}).encode()


@contextmanager
def serve(server: ChatServer) -> Iterator[ChatServer]:
    """Serve on a free local port; `url` ends with /v1."""
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _http_server(server: ChatServer, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            entry: dict[str, Any] = {"id": NAME, "object": "model"}
            if server.behaviour.max_model_len is not None:
                entry["max_model_len"] = server.behaviour.max_model_len
            self._send(200, {}, json.dumps({"data": [entry]}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append(body)
            server.headers.append(dict(self.headers))
            if self.path != "/v1/chat/completions":
                self._send(*error(404, "Not Found"))
                return
            answer = server.behaviour.intercept(len(server.requests), body) or refusal(
                server, body, self.headers
            )
            if answer is not None:
                self._send(*answer)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            how = server.behaviour
            try:
                for piece in stream_of(server, body):
                    self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
            except BrokenPipeError as broken:
                server.left += broken.errno is not None and how is server.behaviour
                self.close_connection = True
            except ConnectionError:
                server.left += how is server.behaviour
                self.close_connection = True

        def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
            if status == 0:  # the connection breaks
                self.close_connection = True
                return
            self.send_response(status)
            defaults = {"Content-Type": "application/json", "Content-Length": str(len(content))}
            for name, value in {
                **defaults,
                **{key.replace("_", "-"): value for key, value in headers.items()},
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Clients that went away are part of the tests."""

    return Server(("127.0.0.1", port), Handler)
