"""The faults: small subclasses of the product's parts, put in their place before the server is made.

Model, tokenizer and flow files stay as they are, so that every digest that the server tells is the healthy one's.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

import sandbox.served
import sandbox.server
from evalkit.chat import ChatRenderer, Message
from sandbox.business.flow import BatchedFlow, BusinessFlow
from sandbox.conversation import Conversations, Prompt, conversation_messages
from sandbox.domain import TurnInput, TurnPiece
from sandbox.engine.supervisor import EngineSupervisor
from sandbox.sessions import Session

_SWAPPED = {"user": "assistant", "assistant": "user"}
_LOW_THRESHOLD = 0.02
_TEMPERATURE = 0.8
_LEAK = " <|end|>"


class CutWindow(Conversations):
    """Lays out the last exchange and the new text only, and reports no dropped turn."""

    def _prompt(self, session: Session, user_text: str, max_new_tokens: int) -> Prompt:
        if not session.exchanges:
            return super()._prompt(session, user_text, max_new_tokens)
        if self._renderer is None:
            last = conversation_messages(session.system_text, session.exchanges[-1:], user_text)
            return Prompt((), 0, last)
        return Prompt(tuple(self._layout(session.system_text, session.exchanges[-1:], user_text)), 0)


class SwappedSpeakers(ChatRenderer):
    """Writes what the user says as the assistant's, and the other way round."""

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        swapped = [Message(_SWAPPED.get(one.role, one.role), one.content) for one in messages]
        return super()._render(swapped, add_generation_prompt=add_generation_prompt)


class DoubledPrefix(ChatRenderer):
    """Writes the prefix token again before every turn."""

    def next_turn(self, reply_ids: Sequence[int], user_text: str) -> list[int]:
        prefix = self._tokenizer.prefix_token
        return [*([] if prefix is None else [prefix]), *super().next_turn(reply_ids, user_text)]


class EagerHandover(BatchedFlow):
    """Hands over from a far lower threshold than the flow declares."""

    def __init__(self, flow: BusinessFlow) -> None:
        if flow.handover is not None:
            flow = replace(flow, handover=replace(flow.handover, threshold=_LOW_THRESHOLD))
        super().__init__(flow)


class LeakingStop(Conversations):
    """Shows the text of the end-of-turn token at the end of each reply."""

    async def turn(
        self, turn: TurnInput, owner: str = "", remaining_s: float | None = None
    ) -> AsyncGenerator[TurnPiece, None]:
        async for piece in super().turn(turn, owner, remaining_s):
            if piece.reply is None or piece.reply.text.endswith(_LEAK):
                yield piece
                continue
            yield replace(
                piece, text=piece.text + _LEAK, reply=replace(piece.reply, text=piece.reply.text + _LEAK)
            )


class Sampled(Conversations):
    """Samples at temperature 0.8 whatever was asked for."""

    async def turn(
        self, turn: TurnInput, owner: str = "", remaining_s: float | None = None
    ) -> AsyncGenerator[TurnPiece, None]:
        hot = replace(turn, sampling=replace(turn.sampling, temperature=_TEMPERATURE))
        async for piece in super().turn(hot, owner, remaining_s):
            yield piece


class SharingSupervisor(EngineSupervisor):
    """Starts an engine whose cache gives any session the keys and values of another (see `worker`)."""

    worker_module = "tests.faulty_sandbox.worker"


def _conversations(kind: type[Conversations]) -> Callable[[], None]:
    return lambda: setattr(sandbox.server, "Conversations", kind)


def _renderer(kind: type[ChatRenderer]) -> Callable[[], None]:
    return lambda: setattr(sandbox.served, "ChatRenderer", kind)


FAULTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "window": _conversations(CutWindow),
    "template": _renderer(SwappedSpeakers),
    "prefix": _renderer(DoubledPrefix),
    "handover": lambda: setattr(sandbox.server, "BatchedFlow", EagerHandover),
    "stop": _conversations(LeakingStop),
    "temperature": _conversations(Sampled),
    "crosstalk": lambda: setattr(sandbox.served, "EngineSupervisor", SharingSupervisor),
}


def plant(name: str) -> None:
    """Put the fault `name` into this process; the server must not be made yet."""
    FAULTS[name]()
