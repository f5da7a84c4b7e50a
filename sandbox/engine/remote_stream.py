"""The answer of a chat completion as it streams in: server-sent events → pieces of text, token ids, usage.

Servers differ, so nothing is taken for granted: a finish_reason may be "" for null, usage may come with every chunk,
with the last one or never, the final [DONE] may be missing, an error may come in the middle of a stream.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Any

from evalkit.backends.endpoint_http import error_text

DONE = "[DONE]"

# One event; far above what a chunk of a few tokens takes.
_MAX_EVENT_BYTES = 1 << 20


class BrokenStreamError(Exception):
    """The stream isn't what a chat completion looks like; the message is one line."""


class StreamedError(Exception):
    """The server reports an error in the middle of the stream, or in place of it."""


@dataclass(frozen=True)
class RemoteUsage:
    """Tokens as the server counts them; None where it doesn't tell."""

    prompt_tokens: int | None
    generated_tokens: int | None
    reused_tokens: int | None


@dataclass(frozen=True)
class Chunk:
    """One event of the stream.

    Attributes:
        text: more of the reply; may be empty.
        token_ids: their ids, from servers that give them.
        finish_reason: set when the reply is complete, as the server words it.
        usage: so far, or of the whole.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    usage: RemoteUsage | None


async def read_events(content: AsyncIterable[bytes]) -> AsyncGenerator[str, None]:
    """Data of each server-sent event (https://html.spec.whatwg.org/multipage/server-sent-events.html).

    Lines are split at the byte level: a reply may hold characters that Python's `splitlines` takes for line ends
    (U+2028, U+0085).

    Raises:
        BrokenStreamError: not an event stream.
    """
    data: list[str] = []
    size = 0
    async for line in _lines(content):
        if not line:
            if data:
                yield "\n".join(data)
            data, size = [], 0
            continue
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
            size += len(value)
            if size > _MAX_EVENT_BYTES:
                raise _too_long()
        elif name not in ("", "event", "id", "retry"):
            raise BrokenStreamError("a line of the stream is no server-sent event")
    if data:
        yield "\n".join(data)


async def _lines(content: AsyncIterable[bytes]) -> AsyncIterator[str]:
    held = b""
    async for piece in content:
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            yield _text(line)
        if len(held) > _MAX_EVENT_BYTES:
            raise _too_long()
    if held:
        yield _text(held)


def _too_long() -> BrokenStreamError:
    return BrokenStreamError(f"an event of the stream is longer than {_MAX_EVENT_BYTES} bytes")


def _text(line: bytes) -> str:
    try:
        return line.removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise BrokenStreamError("the stream isn't UTF-8") from None


def read_chunk(data: str) -> Chunk:
    """One event's data.

    Raises:
        BrokenStreamError: not a chunk of a chat completion.
        StreamedError: the server reports an error.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise BrokenStreamError("an event of the stream isn't JSON") from None
    if not isinstance(content, dict):
        raise BrokenStreamError("an event of the stream isn't a JSON object")
    if content.get("error") or content.get("object") == "error":
        raise StreamedError(error_text(content))
    usage = read_usage(content.get("usage"))
    choices = content.get("choices")
    if not isinstance(choices, list):
        raise BrokenStreamError("an event of the stream has no list of choices")
    if not choices:
        return Chunk("", (), None, usage)
    choice = choices[0]
    if isinstance(choice, dict) and choice.get("index") not in (0, None):
        raise BrokenStreamError("a chunk is of another choice than the one that was asked for")
    delta = choice.get("delta") if isinstance(choice, dict) else None
    if not isinstance(delta, dict):
        raise BrokenStreamError("a choice of the stream has no delta")
    text = delta.get("content") or ""
    if not isinstance(text, str):
        raise BrokenStreamError("the content of a delta isn't text")
    reason = choice.get("finish_reason") or None
    if not isinstance(reason, str | None):
        raise BrokenStreamError("a finish_reason isn't text")
    return Chunk(text, _token_ids(choice.get("token_ids")), reason, usage)


class WholeCharacters:
    """Text of a reply whose chunks may part a character: JSON escapes one beyond U+FFFF as two halves."""

    def __init__(self) -> None:
        self._half = ""

    def push(self, text: str) -> str:
        """The text that is whole with this chunk's.

        Raises:
            BrokenStreamError: a half is without its other one.
        """
        text = self._half + text
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        try:
            whole = text.removesuffix(self._half).encode("utf-16-le", "surrogatepass")
            return whole.decode("utf-16-le")
        except UnicodeDecodeError:
            raise BrokenStreamError("the content of a delta holds half a character") from None

    def finish(self) -> None:
        """No more text comes.

        Raises:
            BrokenStreamError: it ends with a half.
        """
        if self._half:
            raise BrokenStreamError("the text ends with half a character")


def read_usage(usage: Any) -> RemoteUsage | None:
    """A usage object; None where there is none, or one that was only filled in with zeros."""
    if not isinstance(usage, dict):
        return None
    prompt = _count(usage.get("prompt_tokens"))
    if not prompt:  # no prompt is empty: the server doesn't count
        return None
    details = usage.get("prompt_tokens_details")
    reused = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    if reused is not None and reused > prompt:
        reused = None
    return RemoteUsage(prompt, _count(usage.get("completion_tokens")), reused)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32 else None


def _token_ids(value: Any) -> tuple[int, ...]:
    ids = [_count(item) for item in value] if isinstance(value, list) else []
    known = tuple(item for item in ids if item is not None)
    return known if len(known) == len(ids) else ()
