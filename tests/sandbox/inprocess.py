"""The gRPC service over a scripted engine, on an event loop of the test: for what needs no model and no process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from evalkit.bundle import load_bundle
from evalkit.chat import ChatRenderer
from evalkit.wire import sandbox_pb2_grpc
from sandbox.admission import Admission
from sandbox.conversation import Conversations
from sandbox.domain import FinishReason
from sandbox.drain import Drain
from sandbox.engine.requests import EngineLoad, GenerationEnd, GenerationPiece, GenerationRequest
from sandbox.interceptor import CallInterceptor
from sandbox.limits import Limits
from sandbox.metrics import NoMetrics
from sandbox.port import bind, make_server
from sandbox.prompts import opening_counter
from sandbox.service import SandboxService, ServerIdentity
from sandbox.sessions import SessionStore


@dataclass
class PacedEngine:
    """Says the same token as often as asked, one each `step_s`; has `slots` places; fails on request.

    Attributes:
        text: of each token.
        active: generations that run now.
        peak: most of them at once.
        fault: raised by the next generations.
        go_on: if there is one, generations stand still until it is set.
    """

    step_s: float = 0.0
    slots: int | None = 8
    text: str = "x"
    active: int = 0
    peak: int = 0
    fault: Exception | None = None
    go_on: asyncio.Event | None = None
    released: list[int] = field(default_factory=list)

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[AsyncIterator[GenerationPiece]]:
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            yield self._pieces(request)
        finally:
            self.active -= 1

    async def _pieces(self, request: GenerationRequest) -> AsyncIterator[GenerationPiece]:
        if self.fault is not None:
            raise self.fault
        for _ in range(request.sampling.max_new_tokens - 1):
            await asyncio.sleep(self.step_s)
            if self.go_on is not None:
                await self.go_on.wait()
            yield GenerationPiece((50,), self.text)
        yield GenerationPiece((50,), self.text, GenerationEnd(FinishReason.LENGTH, 0, 0, 1, 1))

    def release(self, cache_key: int) -> None:
        self.released.append(cache_key)

    def load(self) -> EngineLoad:
        return EngineLoad(self.active, 0, self.slots, None, None, {})


@asynccontextmanager
async def served(
    bundle: Path,
    engine: PacedEngine,
    *,
    max_waiting: int = 8,
    interceptors: Sequence[Any] = (),
    reader_patience_s: float = 60.0,
    log_text: bool = False,
) -> AsyncIterator[sandbox_pb2_grpc.SandboxStub]:
    """Serve on a free port; a stub to it."""
    renderer = ChatRenderer(load_bundle(bundle).tokenizer)
    limits = Limits(
        max_context_tokens=256, max_waiting_turns=max_waiting, opening_tokens=opening_counter(renderer)
    )
    store = SessionStore(limits, engine.release)
    conversations = Conversations(
        store,
        engine,
        renderer,
        None,
        limits,
        Admission(engine, max_waiting),
    )
    metrics = NoMetrics()
    identity = ServerIdentity("digest", lambda: "scripted", "", "0")
    service = SandboxService(identity, limits, store, conversations, Drain(), metrics, log_text)
    server = make_server(limits, [CallInterceptor(None, metrics, reader_patience_s), *interceptors])
    sandbox_pb2_grpc.add_SandboxServicer_to_server(service, server)
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield sandbox_pb2_grpc.SandboxStub(channel)
    finally:
        await server.stop(0)


def on_a_loop(test: Callable[[], Any]) -> None:
    """Run a coroutine function to its end, at most 60 s."""
    asyncio.run(asyncio.wait_for(test(), 60))
