"""The remote engine in front of a local server, for tests."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evalkit.chat import Message
from evalkit.scenario.model_schema import EndpointRef
from sandbox.domain import Sampling
from sandbox.engine.remote import RemoteEngine
from sandbox.engine.requests import GenerationEnd, GenerationPiece, GenerationRequest
from tests.support.chat_server import NAME, ChatServer, serve

HELLO = (Message("system", "be kind"), Message("user", "my card is lost"))


@pytest.fixture
def endpoint() -> Iterator[ChatServer]:
    """A fresh endpoint."""
    with serve(ChatServer()) as running:
        yield running


def reference(url: str, **more: Any) -> EndpointRef:
    """How a scenario names it."""
    return EndpointRef.model_validate(
        {"endpoint": url, "model": NAME, "declare": "m-1", "timeout_s": 5, **more}
    )


class Outcome:
    """A finished generation."""

    def __init__(self, pieces: list[GenerationPiece]) -> None:
        self.text = "".join(piece.text for piece in pieces)
        self.ids = tuple(token for piece in pieces for token in piece.token_ids)
        ends = [piece.end for piece in pieces if piece.end is not None]
        assert len(ends) == 1 and pieces[-1].end is ends[0]
        self.end: GenerationEnd = ends[0]


def ask(
    server: ChatServer,
    messages: tuple[Message, ...] = HELLO,
    sampling: Sampling = Sampling(max_new_tokens=64),  # noqa: B008
    after_start: Callable[[], None] = lambda: None,
    **ref: Any,
) -> Outcome:
    """One generation by a new engine; `after_start` runs when the engine knows its endpoint."""

    async def run() -> Outcome:
        engine = RemoteEngine(reference(server.url, **ref), connections=4, on_state=lambda state: None)
        await engine.connect()
        await engine.start()
        after_start()
        try:
            return await one(engine, messages, sampling)
        finally:
            assert engine.load().running == 0
            await engine.close()

    return asyncio.run(run())


async def one(
    engine: RemoteEngine, messages: tuple[Message, ...], sampling: Sampling, key: int = 1
) -> Outcome:
    """One generation by a running engine."""
    request = GenerationRequest(key, (), sampling, messages=messages)
    async with engine.generate(request) as pieces:
        return Outcome([piece async for piece in pieces])
