"""A person talks to a sandbox: lines in, replies and what the server thinks of them out."""

import contextlib
import difflib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from evalkit.errors import InputError
from evalkit.replay.client import Sampling, SandboxClient, SandboxError, TurnReply, TurnStream
from sandbox.chat_screen import Screen

# Reads a line; raises EOFError at the end of the input.
ReadLine = Callable[[], str]

_COMMANDS = (
    ("/help", "this list"),
    ("/reset", "close this session and begin a new one"),
    ("/system TEXT", "begin a new session with this system text; without TEXT show it"),
    ("/transcript", "what was said, as the server remembers it"),
    ("/quit", "end; so does Ctrl-D"),
    ("//TEXT", "say something that begins with a slash"),
    ("Ctrl-C", "stop the reply that is being generated; the turn leaves no trace"),
)
_NAMES = tuple(
    row[0].split()[0] for row in _COMMANDS if row[0].startswith("/") and not row[0].startswith("//")
)
# The session takes no more turns, or is gone.
_OVER = frozenset({"FAILED_PRECONDITION", "NOT_FOUND"})


@dataclass(frozen=True)
class ChatOptions:
    """How to talk.

    Attributes:
        system_text: stands before the conversation.
        locale: of the session; empty leaves it to the server.
        tenant: whose session it is.
        sampling: of every turn.
        timeout_s: deadline of a turn.
        on_terminal: a person sits there, so that what goes wrong is shown and the talk goes on; else it ends.
    """

    system_text: str
    locale: str
    tenant: str
    sampling: Sampling
    timeout_s: float
    on_terminal: bool


class Chat:
    """One conversation at a time, in sessions of its own."""

    def __init__(self, client: SandboxClient, screen: Screen, options: ChatOptions) -> None:
        self._client = client
        self._screen = screen
        self._options = options
        self._system_text = options.system_text
        self._session = ""
        self._turn = 0
        self.replies: list[tuple[str, TurnReply]] = []

    def run(self, read_line: ReadLine) -> None:
        """Talk until the input ends or somebody says /quit.

        Raises:
            InputError: the server refuses what was asked for (without a terminal: also what was said).
            SandboxError: it doesn't answer (without a terminal: at any turn).
        """
        self._open()
        try:
            for line in self._lines(read_line):
                if line.startswith("/") and not line.startswith("//"):
                    if self._command(line) == "quit":
                        return
                else:
                    self._say(line.removeprefix("/") if line.startswith("//") else line)
        finally:
            self._close()

    def _lines(self, read_line: ReadLine) -> Iterator[str]:
        while True:
            try:
                line = read_line().strip()
                line.encode()
            except EOFError:
                return
            except UnicodeError:
                # Bytes that the terminal's encoding doesn't know: a decoder's error, or lone surrogates in their place.
                if not self._options.on_terminal:
                    raise InputError("the input isn't UTF-8 text; convert it to UTF-8") from None
                self._screen.problem("this line isn't UTF-8 text and wasn't sent")
                continue
            except KeyboardInterrupt:
                # As in a shell: the line is dropped, the program stays.
                if not self._options.on_terminal:
                    raise
                self._screen.new_line()
                self._screen.note("Ctrl-D or /quit ends")
                continue
            if line:
                yield line

    def _command(self, line: str) -> str:
        name, _, rest = line.partition(" ")
        match name:
            case "/quit" | "/exit":
                return "quit"
            case "/help":
                self._screen.commands(_COMMANDS)
            case "/reset":
                self._begin_anew()
            case "/system" if rest.strip():
                self._system_text = rest.strip()
                self._begin_anew()
            case "/system":
                self._screen.note(self._system_text or "no system text")
            case "/transcript":
                with self._problems_shown():
                    self._screen.transcript(self._client.transcript(self._session))
            case _:
                near = difflib.get_close_matches(name, _NAMES, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                self._screen.problem(f"{name}: no such command; {hint}/help lists them")
        return ""

    def _begin_anew(self) -> None:
        self._close()
        with self._problems_shown():
            self._open()
            self._screen.note(
                "a new session" + (f", system text: {self._system_text}" if self._system_text else "")
            )

    def _open(self) -> None:
        self._session, self._turn = f"chat-{secrets.token_hex(8)}", 0
        try:
            self._client.open(
                self._session,
                self._options.locale,
                tenant=self._options.tenant,
                system_text=self._system_text,
            )
        except SandboxError as error:
            raise mendable(error) from None

    def _close(self) -> None:
        # Whatever happened to the session; the server's idle limit frees it at last.
        with contextlib.suppress(SandboxError):
            self._client.close(self._session)

    def _say(self, text: str) -> None:
        self._screen.said(text)
        with self._problems_shown():
            reply = self._answer(text)
            if reply is not None:
                self.replies.append((text, reply))
                self._screen.details(reply)

    @contextlib.contextmanager
    def _problems_shown(self) -> Iterator[None]:
        try:
            yield
        except (SandboxError, InputError) as error:
            if not self._options.on_terminal:
                raise mendable(error) if isinstance(error, SandboxError) else error from None
            over = isinstance(error, SandboxError) and error.code in _OVER
            text = f"{error.message} ({error.code})" if isinstance(error, SandboxError) else str(error)
            self._screen.problem(f"{text}; /reset begins a new session" if over else text)

    def _answer(self, text: str) -> TurnReply | None:
        """The reply, shown as it comes; None if it was stopped."""
        turn_id = f"{self._turn}-{secrets.token_hex(4)}"
        attempt = 0
        while True:
            stream = self._client.stream_turn(
                self._session, turn_id, text, self._options.sampling, timeout_s=self._options.timeout_s
            )
            shows = _Shows(self._screen)
            try:
                shows.follow(stream)
                self._turn += 1
                return stream.reply
            except KeyboardInterrupt:
                stream.cancel()
                if not self._options.on_terminal:
                    raise
                self._screen.note("stopped; the turn left no trace")
                return None
            except SandboxError as error:
                # What was shown can't be taken back; before that, a busy server is asked again.
                wait_s = None if shows.begun else self._client.retries.wait_s(error, attempt)
                if wait_s is None:
                    raise
                self._screen.note(f"{error.message}; trying again in {wait_s:.1f} s")
            attempt += 1
            time.sleep(wait_s)


class _Shows:
    """Shows one stream; `begun` says that some of its text stands on the screen."""

    def __init__(self, screen: Screen) -> None:
        self.begun = False
        self._screen = screen

    def follow(self, stream: TurnStream) -> None:
        pieces = iter(stream)
        with self._screen.waiting():
            first = next(pieces, None)
        if first is None:  # an empty reply is a reply
            self._screen.reply().end()
            return
        self.begun = True
        text = self._screen.reply()
        try:
            text.feed(first)
            for piece in pieces:
                text.feed(piece)
        finally:
            text.end()


def mendable(error: SandboxError) -> Exception:
    """What the user asked for wrongly is an error of the input; the rest is the server's."""
    if error.code == "UNAUTHENTICATED":
        return InputError(
            f"sandbox: {error.message}; give a file with a token that this server knows (--token-file)"
        )
    if error.code in ("INVALID_ARGUMENT", "PERMISSION_DENIED"):
        return InputError(f"sandbox: {error.message}")
    return error


def as_json(chat: Chat, address: str, model: str) -> dict[str, Any]:
    """The conversation for programs."""
    turns = []
    for user_text, reply in chat.replies:
        turns.append(
            {
                "user_text": user_text,
                "text": reply.text,
                "finish_reason": reply.finish_reason,
                "intent": reply.intent,
                "intent_probability": reply.intent_probability,
                "out_of_scope": reply.out_of_scope,
                "handover": reply.handover,
                "handover_reason": reply.handover_reason,
                "satisfaction": reply.satisfaction,
                "probability_dissatisfied": reply.probability_dissatisfied,
                "prompt_tokens": reply.prompt_tokens,
                "reused_tokens": reply.reused_tokens,
                "generated_tokens": reply.generated_tokens,
                "dropped_turns": reply.dropped_turns,
                "first_token_ns": reply.first_token_ns,
                "total_ns": reply.total_ns,
                "state": reply.state,
            }
        )
    return {"address": address, "model": model, "turns": turns}
