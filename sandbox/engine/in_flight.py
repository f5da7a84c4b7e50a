"""Turns that the engine process is answering: whose each of its messages is, and the pieces that a reader makes of them."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable

from sandbox.domain import FinishReason
from sandbox.engine.pipe import Message
from sandbox.engine.requests import GenerationEnd, GenerationPiece
from sandbox.errors import CapacityError, EngineUnavailableError

# What the engine says of one turn; None where the engine was lost before the turn's end.
Inbox = asyncio.Queue[Message | None]


class TurnsInFlight:
    """Numbers turns, and hands each one what the engine says of it."""

    def __init__(self) -> None:
        """Begin with none."""
        self._numbers = itertools.count(1)
        self._inboxes: dict[int, Inbox] = {}

    def join(self) -> tuple[int, Inbox]:
        """A new turn's number, and where its messages will be."""
        number, inbox = next(self._numbers), Inbox()
        self._inboxes[number] = inbox
        return number, inbox

    def leave(self, number: int) -> bool:
        """Nobody reads on; whether the turn's end hadn't come."""
        return self._inboxes.pop(number, None) is not None

    def deliver(self, message: Message) -> None:
        """Hand a message on; nobody wants it where the turn was cancelled meanwhile."""
        inbox = self._inboxes.get(message["request"])
        if inbox is None:
            return
        if message["event"] != "token":
            del self._inboxes[message["request"]]
        inbox.put_nowait(message)

    def fail(self) -> None:
        """The engine was lost, and every turn with it."""
        for inbox in self._inboxes.values():
            inbox.put_nowait(None)
        self._inboxes.clear()


async def read_pieces(
    inbox: Inbox, lost: Callable[[], EngineUnavailableError]
) -> AsyncIterator[GenerationPiece]:
    """The reply as it comes.

    Args:
        inbox: the turn's.
        lost: the error of a turn whose engine was lost.

    Raises:
        CapacityError: the engine doesn't take the turn.
        EngineUnavailableError: it was lost, or its model gives no token.
    """
    while True:
        # Whatever came while the reader was busy goes out as one piece: a reader that lags costs less, not more.
        messages = [await inbox.get()]
        while not inbox.empty():
            messages.append(inbox.get_nowait())
        tokens = [message for message in messages if message is not None and message["event"] == "token"]
        piece = GenerationPiece(
            tuple(token for message in tokens for token in message["ids"]),
            "".join(message["text"] for message in tokens),
        )
        if len(tokens) == len(messages):
            yield piece
            continue
        last = messages[-1]  # nothing follows what isn't a token
        if last is None:
            raise lost()
        match last["event"]:
            case "rejected":
                raise CapacityError(last["reason"])
            case "broken":
                raise EngineUnavailableError(last["reason"])
            case _:
                yield _last_piece(piece, last)
                return


def _last_piece(before: GenerationPiece, message: Message) -> GenerationPiece:
    end = GenerationEnd(
        finish_reason=FinishReason(message["reason"]),
        reused_tokens=message["reused"],
        queue_ns=message["queue_ns"],
        prefill_ns=message["prefill_ns"],
        decode_ns=message["decode_ns"],
    )
    return GenerationPiece((*before.token_ids, *message["ids"]), before.text + message["text"], end)
