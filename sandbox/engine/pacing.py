"""Tokens on their way to the server, not more often than a reader can see.

A message costs pipe, server, network and caller nearly the same with one token as with ten. So a turn's first token goes at
once and its last ones with its end; between them, what comes faster than the interval goes together. Nothing waits
for a timer: a token that is held goes with the first one of its turn after the interval, and a turn that is being
answered gets one every round.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sandbox.engine.pipe import Message

# Fifty pieces a second are more than anybody reads, and each costs the server as much as a token of a small model does.
STREAM_INTERVAL_MS = 20.0


class Outbox(Protocol):
    """Where messages go."""

    def write(self, *messages: Message) -> None:
        """Send messages in order."""
        ...


@dataclass
class _Held:
    """What a turn still has to send, and from when on."""

    due_ns: int
    ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


class PacedOutbox:
    """Puts tokens of a turn together on the batcher's way to the pipe: `id` of its messages becomes `ids`."""

    def __init__(
        self, pipe: Outbox, interval_ms: float, clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        """Prepare.

        Args:
            pipe: where messages go.
            interval_ms: least time between two messages with tokens of one turn; 0 sends each token by itself.
            clock_ns: nanoseconds, monotonic.
        """
        self._pipe = pipe
        self._interval_ns = round(interval_ms * 1e6)
        self._clock_ns = clock_ns
        self._held: dict[int, _Held] = {}

    def write(self, *messages: Message) -> None:
        """Send messages in order, tokens that come too soon later."""
        now_ns = self._clock_ns()
        passed = (
            self._token(message, now_ns) if "id" in message else self._other(message) for message in messages
        )
        ready = [message for message in passed if message is not None]
        if ready:
            self._pipe.write(*ready)

    def _token(self, message: Message, now_ns: int) -> Message | None:
        """A message with a token, or of a turn's end, which may have none; None where it is held."""
        held = self._held.setdefault(message["request"], _Held(now_ns))
        if message["id"] is not None:
            held.ids.append(message["id"])
        held.text.append(message["text"])
        if message["event"] == "end":
            del self._held[message["request"]]
        elif now_ns < held.due_ns:
            return None
        sent = {**message, "ids": held.ids, "text": "".join(held.text)}
        del sent["id"]
        held.due_ns, held.ids, held.text = now_ns + self._interval_ns, [], []
        return sent

    def _other(self, message: Message) -> Message:
        """Anything else; a turn that ends without a reply takes along what was held of it."""
        self._held.pop(message.get("request", 0), None)
        return message
