"""Every bound of the server, and the checks of what a caller sends."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.domain import Sampling
from sandbox.errors import InvalidRequestError

LOCALES = ("en", "zh")
# A token of any tokenizer is shorter on the average.
MAX_BYTES_A_TOKEN = 64
# Of a turn on the wire: a token id, and everything but the ids and the texts.
_ID_BYTES, _FRAME_BYTES = 5, 1024


@dataclass(frozen=True)
class Limits:
    """Bounds of one server.

    Attributes:
        max_sessions: live sessions (open or handed over).
        max_session_turns: finished turns of one session; fewer where their transcript would outgrow max_message_bytes.
        idle_ttl_s: a session untouched for so long is forgotten.
        max_context_tokens: prompt and reply together, the model's max_length; 0 for a served model that doesn't tell.
        max_turn_tokens: tokens generated in one turn.
        max_id_bytes: session_id, turn_id, tenant.
        max_user_bytes, max_system_bytes: UTF-8 size of the texts.
        max_stops, max_stop_bytes: number and UTF-8 size of stop strings.
        max_message_bytes: of one gRPC message, either way.
        max_waiting_turns: turns that wait for a place in the engine's batch.
        opening_tokens: counts the tokens of a shortest first prompt after a system text; None where an engine that
            tokenises by itself is asked.
        system_problem: why the model takes no system text; empty where it takes one.
    """

    max_context_tokens: int
    max_sessions: int = 64
    max_session_turns: int = 200
    idle_ttl_s: float = 1800.0
    max_id_bytes: int = 128
    max_user_bytes: int = 8 << 10
    max_system_bytes: int = 16 << 10
    max_stops: int = 8
    max_stop_bytes: int = 64
    max_message_bytes: int = 4 << 20
    max_waiting_turns: int = 64
    opening_tokens: Callable[[str], int] | None = None
    system_problem: str = ""

    @property
    def max_turn_tokens(self) -> int:
        """At most half of the context, so that a reply always leaves room for a prompt; never above 1024."""
        return max(1, min(1024, self.max_context_tokens // 2)) if self.max_context_tokens else 1024

    @property
    def default_turn_tokens(self) -> int:
        """What a caller gets who sets no max_new_tokens: half of the maximum, at most 256."""
        return max(1, min(256, self.max_turn_tokens // 2))

    @property
    def max_turn_bytes(self) -> int:
        """What the largest turn takes in a transcript."""
        return turn_bytes(self.max_user_bytes, MAX_BYTES_A_TOKEN * self.max_turn_tokens, self.max_turn_tokens)

    def check_id(self, field: str, value: str) -> str:
        """Check an identifier; empty is allowed here."""
        self._check_bytes(field, value, self.max_id_bytes)
        if not value.isprintable():
            raise InvalidRequestError("holds a control character; use printable characters", field)
        return value

    def check_user_text(self, text: str) -> str:
        """Check what the user says: not empty, not only white space, within its size."""
        if not text.strip():
            raise InvalidRequestError("is empty; send what the user says", "user_text")
        return self._check_bytes("user_text", text, self.max_user_bytes)

    def check_system_text(self, text: str) -> str:
        """Check a session's system text; empty means none. One that leaves no room for a turn is refused."""
        self._check_bytes("system_text", text, self.max_system_bytes)
        if text and self.system_problem:
            raise InvalidRequestError(
                f"can't be given to this model ({self.system_problem}); leave it empty", "system_text"
            )
        # A token holds a byte or more, so a text shorter than half of the context fits; counting costs as much as a turn.
        if self.opening_tokens is not None and 2 * len(text.encode()) > self.max_context_tokens:
            tokens = self.opening_tokens(text)
            if tokens >= self.max_context_tokens:
                raise InvalidRequestError(
                    f"{tokens} tokens with the template and the shortest user text leave no room for a reply in"
                    f" {self.max_context_tokens}; shorten it",
                    "system_text",
                )
        return text

    def check_locale(self, locale: str) -> str:
        """Check a locale; empty means English."""
        if locale and locale not in LOCALES:
            self.check_id("locale", locale)  # the message quotes it
            raise InvalidRequestError(f"{locale!r} is unknown; use one of {', '.join(LOCALES)}", "locale")
        return locale or LOCALES[0]

    def check_sampling(self, sampling: Sampling) -> Sampling:
        """Check sampling settings whose defaults are already filled in."""
        if not 1 <= sampling.max_new_tokens <= self.max_turn_tokens:
            raise InvalidRequestError(
                f"{sampling.max_new_tokens} is above the limit; use 1..{self.max_turn_tokens}",
                "sampling.max_new_tokens",
            )
        if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
            raise InvalidRequestError("must be a number of 0 or more", "sampling.temperature")
        if not 0 < sampling.top_p <= 1:
            raise InvalidRequestError("must lie in (0, 1]", "sampling.top_p")
        if len(sampling.stop) > self.max_stops:
            raise InvalidRequestError(
                f"{len(sampling.stop)} strings; at most {self.max_stops} are allowed", "sampling.stop"
            )
        for stop in sampling.stop:
            if not stop:
                raise InvalidRequestError("an empty string would end every reply; remove it", "sampling.stop")
            self._check_bytes("sampling.stop", stop, self.max_stop_bytes)
        return sampling

    def _check_bytes(self, field: str, value: str, limit: int) -> str:
        size = len(value.encode())
        if size > limit:
            raise InvalidRequestError(f"{size} bytes; at most {limit} are allowed", field)
        return value


def turn_bytes(user_bytes: int, reply_bytes: int, tokens: int) -> int:
    """What a turn takes in a transcript on the wire, at most."""
    return user_bytes + reply_bytes + _ID_BYTES * tokens + _FRAME_BYTES
