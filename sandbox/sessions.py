"""Sessions: who owns one, what it remembers, how many there may be.

All of this runs on the server's one event loop, so taking a session's lock is setting a flag: nothing can come
between the check and the set, and the lock is taken before anything of the session is read.
"""

import itertools
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from sandbox.domain import Sampling, SessionState, TranscriptTurn, TurnInput, TurnReply
from sandbox.errors import (
    CapacityError,
    InvalidRequestError,
    SessionBusyError,
    SessionEndedError,
    SessionExistsError,
    UnknownSessionError,
)
from sandbox.limits import Limits, turn_bytes

_serial = itertools.count(1)

# Who may see a session, and its id. Ids of different owners never meet.
_Key = tuple[str, str]


@dataclass(frozen=True)
class Exchange:
    """One user turn and its reply, as the prompt of later turns holds them: by token ids, or by text where the engine
    is asked with messages."""

    user_text: str
    reply_ids: tuple[int, ...]
    reply_text: str = ""


@dataclass
class Session:
    """One conversation.

    Attributes:
        session_id, tenant, system_text, locale: as opened.
        owner: the tenant whose token opened it; "" on a server without tokens.
        shared_tokens: how many leading prompt ids hold nothing that the user said.
        cache_key: names the session in the engine's cache; never used twice, even when a session_id is.
        exchanges: every finished turn that the model answered.
        prompt_ids: token ids of the conversation so far, the last reply included. They are the session's truth:
            generated ids are appended, never encoded again.
        first_exchange: index of the oldest exchange that prompt_ids still holds.
        failed_turns: turns in a row that failed the user (business/handover.py says what that is).
        last_intent: label of the turn before, None in the beginning or without a flow.
        last_reply_empty: the reply before held no text.
        turns: the transcript.
        transcript_bytes: what it takes on the wire, at most.
    """

    session_id: str
    tenant: str
    system_text: str
    locale: str
    touched_s: float
    owner: str = ""
    shared_tokens: int = 0
    cache_key: int = field(default_factory=lambda: next(_serial))
    state: SessionState = SessionState.OPEN
    exchanges: list[Exchange] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    first_exchange: int = 0
    failed_turns: int = 0
    last_intent: str | None = None
    last_reply_empty: bool = False
    turns: list[TranscriptTurn] = field(default_factory=list)
    transcript_bytes: int = 0
    busy: bool = False
    _answered: dict[str, tuple[TurnInput, TurnReply]] = field(default_factory=dict)

    @property
    def key(self) -> _Key:
        """Where the store keeps it."""
        return self.owner, self.session_id

    def stored_reply(self, turn: TurnInput) -> TurnReply | None:
        """The reply of the finished turn that is asked for again; None for a turn without an id, or a new one.

        Raises:
            InvalidRequestError: the id was answered, but the user said something else, or another sampling was asked
                for (defaults filled in: a value left out equals the default written out).
        """
        answered = self._answered.get(turn.turn_id) if turn.turn_id else None
        if answered is None:
            return None
        asked, reply = answered
        differs = _differences(asked, turn)
        if differs:
            raise InvalidRequestError(
                f"{turn.turn_id!r} was answered in this session for another {', '.join(differs)}; send the same to get that"
                " reply again, or another turn_id for a new turn",
                "turn_id",
            )
        return reply

    def store(self, turn: TurnInput, reply: TurnReply) -> None:
        """Add a finished turn to the transcript."""
        self.turns.append(TranscriptTurn(reply.turn_id, turn.user_text, reply))
        self._answered[reply.turn_id] = turn, reply
        self.transcript_bytes += turn_bytes(
            len(turn.user_text.encode()), len(reply.text.encode()), len(reply.token_ids)
        )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Own the session for one turn.

        Raises:
            SessionBusyError: another turn owns it.
        """
        if self.busy:
            raise SessionBusyError(
                f"session {self.session_id!r}: another turn is running; wait for it or cancel it"
            )
        self.busy = True
        try:
            yield
        finally:
            self.busy = False


def _differences(first: TurnInput, second: TurnInput) -> list[str]:
    """Fields in which two turns of one id differ, as the .proto names them."""
    names = ["user_text"] if first.user_text != second.user_text else []
    return names + [
        f"sampling.{part.name}"
        for part in fields(Sampling)
        if getattr(first.sampling, part.name) != getattr(second.sampling, part.name)
    ]


class SessionStore:
    """At most `max_sessions` live sessions, and as many closed ones whose transcript can still be read.

    When it is full, a session of the owner who holds most makes room, the newcomer counted among its owner's; of equals
    it is the newcomer's owner's own. Of that owner's, handed-over ones go first, then the longest untouched, never one
    with a turn in flight. So nobody loses a session to an owner who holds as many.
    """

    def __init__(
        self, limits: Limits, release: Callable[[int], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make an empty store.

        Args:
            limits: bounds.
            release: called with the cache_key of each session that will take no more turns.
            clock: seconds, monotonic.
        """
        self._limits = limits
        self._release = release
        self._clock = clock
        self._live: OrderedDict[_Key, Session] = OrderedDict()  # least recently touched first
        self._closed: OrderedDict[_Key, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    def open(self, session_id: str, tenant: str, system_text: str, locale: str, owner: str = "") -> Session:
        """Open a session that only `owner` sees; an empty id gets a random one.

        Raises:
            InvalidRequestError, SessionExistsError: the id or a text can't be used.
            CapacityError: full, and each session that could make room has a turn in flight.
        """
        self._limits.check_id("session_id", session_id)
        self._limits.check_id("tenant", tenant)
        self._limits.check_system_text(system_text)
        locale = self._limits.check_locale(locale)
        self.sweep()
        session_id = session_id or secrets.token_hex(16)
        if (owner, session_id) in self._live or (owner, session_id) in self._closed:
            raise SessionExistsError(
                f"session_id: {session_id!r} exists already; choose another or leave it empty"
            )
        self._make_room(owner)
        session = Session(session_id, tenant, system_text, locale, self._clock(), owner)
        self._live[session.key] = session
        return session

    def find(self, session_id: str, owner: str = "") -> Session:
        """The owner's session, closed ones included, marked as just used.

        Raises:
            InvalidRequestError: empty or malformed id.
            UnknownSessionError: no such session; another owner's looks the same.
        """
        if not session_id:
            raise InvalidRequestError("is empty; send the id that OpenSession returned", "session_id")
        self._limits.check_id("session_id", session_id)
        self.sweep()
        for sessions in (self._live, self._closed):
            session = sessions.get((owner, session_id))
            if session is not None:
                self.touch(session)
                return session
        raise UnknownSessionError(session_id)

    def touch(self, session: Session) -> None:
        """Start the session's idle time anew; a no-op for one that was forgotten meanwhile."""
        session.touched_s = self._clock()
        for sessions in (self._live, self._closed):
            if sessions.get(session.key) is session:
                sessions.move_to_end(session.key)

    def require_open(self, session: Session) -> None:
        """Check that the session takes another turn.

        Raises:
            SessionEndedError: handed over, closed, or at its maximum of turns or of text.
        """
        if session.state is SessionState.HANDED_OVER:
            raise SessionEndedError(
                f"session {session.session_id!r} was handed over to a person; open a new session"
            )
        if session.state is SessionState.CLOSED:
            raise SessionEndedError(f"session {session.session_id!r} is closed; open a new session")
        if len(session.turns) >= self._limits.max_session_turns:
            raise SessionEndedError(
                f"session {session.session_id!r} has reached {self._limits.max_session_turns} turns; open a new session"
            )
        if session.transcript_bytes + self._limits.max_turn_bytes > self._limits.max_message_bytes:
            raise SessionEndedError(
                f"session {session.session_id!r} holds {session.transcript_bytes >> 10} KiB of text and tokens, and GetSession"
                " couldn't send another turn; open a new session"
            )

    def close(self, session: Session) -> None:
        """Close a session; closing it twice is the same as once.

        Raises:
            SessionBusyError: a turn is running.
        """
        if session.state is SessionState.CLOSED:
            return
        with session.lock():
            session.state = SessionState.CLOSED
            self._forget(session)
            self._closed[session.key] = session
            while len(self._closed) > self._limits.max_sessions:
                self._closed.popitem(last=False)

    def sweep(self) -> None:
        """Forget every session untouched for longer than the time-to-live, never one with a turn in flight."""
        oldest_allowed = self._clock() - self._limits.idle_ttl_s
        for sessions in (self._live, self._closed):
            stale = itertools.takewhile(lambda session: session.touched_s < oldest_allowed, sessions.values())
            for session in [session for session in stale if not session.busy]:
                if sessions is self._live:
                    self._forget(session)
                else:
                    del sessions[session.key]

    def _make_room(self, newcomer: str) -> None:
        if len(self._live) < self._limits.max_sessions:
            return
        held = Counter([newcomer, *(session.owner for session in self._live.values())])
        may_go = [
            session
            for session in self._live.values()
            if not session.busy and (session.owner == newcomer or held[session.owner] >= held[newcomer])
        ]
        if not may_go:
            raise CapacityError(
                f"all {self._limits.max_sessions} places are taken, and each session that could make room has a turn in"
                " flight; try again later",
                reason="SESSIONS_FULL",
            )
        # The first of equals is the longest untouched: may_go is in that order.
        self._forget(
            min(
                may_go,
                key=lambda session: (
                    -held[session.owner],
                    session.owner != newcomer,
                    session.state is not SessionState.HANDED_OVER,
                ),
            )
        )

    def _forget(self, session: Session) -> None:
        del self._live[session.key]
        self._release(session.cache_key)
