"""What the model reads: a session so far, laid out within the model's context."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evalkit.chat import ChatRenderer, Message
from sandbox.errors import InvalidRequestError
from sandbox.limits import Limits
from sandbox.sessions import Exchange, Session


@dataclass(frozen=True)
class Prompt:
    """A conversation up to where the reply begins: token ids, or messages for an engine that tokenises by itself.

    Attributes:
        ids: the token ids.
        first_exchange: index of the oldest exchange among them; those before were dropped.
        messages: the messages.
    """

    ids: tuple[int, ...]
    first_exchange: int
    messages: tuple[Message, ...] = ()


class Prompts:
    """Lays out sessions."""

    def __init__(self, renderer: ChatRenderer | None, limits: Limits) -> None:
        """Take what it needs.

        Args:
            renderer: turns messages into token ids; None for an engine that is asked with messages.
            limits: the size of the context.
        """
        self._renderer = renderer
        self._limits = limits

    def next_prompt(self, session: Session, user_text: str, max_new_tokens: int) -> Prompt:
        """The prompt of the next reply; where it's too long for the model, without the oldest turns.

        The system text always stays. When turns are dropped the rest is laid out anew: texts of the user are encoded
        again (that is exact), generated ids are copied.

        Raises:
            InvalidRequestError: the user's text alone is too long.
        """
        exchanges, first = session.exchanges, session.first_exchange
        if self._renderer is None:
            return Prompt((), first, conversation_messages(session.system_text, exchanges[first:], user_text))
        room = self._limits.max_context_tokens - max_new_tokens
        if exchanges:
            last = exchanges[-1].reply_ids
            ids = [*session.prompt_ids, *self._renderer.next_turn(last, user_text)]
        else:
            ids = self._renderer.opening(session.system_text, user_text)
            session.shared_tokens = self._renderer.opening_head(session.system_text)
        while len(ids) > room and first < len(exchanges):
            first += 1
            ids = self._layout(session.system_text, exchanges[first:], user_text)
        if len(ids) > room:
            raise InvalidRequestError(
                f"{len(ids)} tokens with the system text and the template, and {max_new_tokens} for the reply, don't"
                f" fit into {self._limits.max_context_tokens}; shorten it or lower sampling.max_new_tokens",
                "user_text",
            )
        return Prompt(tuple(ids), first)

    def _layout(self, system_text: str, exchanges: Sequence[Exchange], user_text: str) -> list[int]:
        assert self._renderer is not None
        said = [(exchange.user_text, exchange.reply_ids) for exchange in exchanges]
        return self._renderer.layout(system_text, said, user_text)


def opening_counter(renderer: ChatRenderer | None) -> Callable[[str], int] | None:
    """Counts the tokens of the shortest first prompt after a system text; None without a renderer."""
    return None if renderer is None else lambda system_text: len(renderer.opening(system_text, "x"))


def conversation_messages(
    system_text: str, exchanges: Sequence[Exchange], user_text: str
) -> tuple[Message, ...]:
    """The conversation as messages: the system text where there is one, then user and assistant by turns."""
    said = [
        message
        for exchange in exchanges
        for message in (Message("user", exchange.user_text), Message("assistant", exchange.reply_text))
    ]
    system = [Message("system", system_text)] if system_text else []
    return (*system, *said, Message("user", user_text))
