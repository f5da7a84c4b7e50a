"""The engine that is somebody else's server: chat completions of an OpenAI-compatible endpoint, streamed.

It is asked with messages and tokenises by itself, so its token counts, reuse and ids are known only as far as it tells.
What it doesn't tell is None, never 0. Nothing is tried again here: a turn that failed left no trace in the session, so
whoever sent it can send it again, with the status and the waiting time at hand.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from evalkit.chat import Message
from evalkit.scenario.model_schema import EndpointRef
from sandbox.domain import FinishReason, Sampling
from sandbox.engine.remote_dialect import Dialect, find_dialect
from sandbox.engine.remote_http import (
    ChatEndpoint,
    ContextOverflowError,
    EndpointDownError,
    EndpointRefusalError,
    RequestRefusedError,
)
from sandbox.engine.remote_stream import (
    DONE,
    BrokenStreamError,
    Chunk,
    RemoteUsage,
    StreamedError,
    WholeCharacters,
    read_chunk,
    read_events,
)
from sandbox.engine.requests import EngineLoad, GenerationEnd, GenerationPiece, GenerationRequest
from sandbox.engine.supervisor import EngineState
from sandbox.engine.text_stream import StopMatcher
from sandbox.errors import EngineUnavailableError, InvalidRequestError
from sandbox.limits import MAX_BYTES_A_TOKEN

log = logging.getLogger(__name__)

# How a server words the end of a reply. "content_filter": something other than the model cut it.
_REASONS = {
    "stop": FinishReason.END,
    "eos": FinishReason.END,
    "tool_calls": FinishReason.END,
    "function_call": FinishReason.END,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CANCELLED,
}
_CHECK_INTERVAL_S = 2.0


@dataclass
class _Reply:
    """What has come of a reply so far; `text_without_ids` says that the ids can't count its tokens."""

    events: int = 0
    ids: int = 0
    text_without_ids: bool = False
    text_bytes: int = 0
    reason: FinishReason | None = None
    usage: RemoteUsage | None = None
    first_ns: int | None = None


class RemoteEngine:
    """Generates replies by asking an endpoint.

    Attributes:
        state: STARTING while nobody answers at the endpoint.
        max_context_tokens: what prompt and reply may hold together; 0 if the endpoint doesn't tell.
    """

    def __init__(
        self, ref: EndpointRef, *, connections: int, on_state: Callable[[EngineState], None]
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            ref: where the model is served.
            connections: turns at once at most.
            on_state: called after each change of state, on the event loop.

        Raises:
            InputError: httpx isn't installed, or the variable of the API key isn't set.
        """
        self.state = EngineState.STARTING
        self.max_context_tokens = 0
        self._endpoint = ChatEndpoint(ref, connections=connections)
        self._connections = connections
        self._on_state = on_state
        self._dialect = Dialect()
        self._running = 0
        self._down = asyncio.Event()
        self._prompt_tokens: dict[int, tuple[int, int]] = {}

    async def connect(self) -> None:
        """Ask for one token: whether the endpoint answers, and which fields it takes.

        Raises:
            InputError: it doesn't answer, or not with a streamed chat completion.
        """
        self._dialect = await find_dialect(self._endpoint)
        self.max_context_tokens = await self._endpoint.context_tokens() or 0

    async def start(self) -> None:
        """Begin to take turns."""
        self._set_state(EngineState.READY)

    async def run(self) -> None:
        """Watch over the endpoint; never returns."""
        while True:
            await self._down.wait()
            self._set_state(EngineState.STARTING)
            log.error("nobody answers at the endpoint; asking again every %g s", _CHECK_INTERVAL_S)
            while not await self._endpoint.is_up():
                await asyncio.sleep(_CHECK_INTERVAL_S)
            self._down.clear()
            self._set_state(EngineState.READY)

    async def close(self) -> None:
        """Give the connections back; turns still in flight fail."""
        self._set_state(EngineState.CLOSED)
        await self._endpoint.close()

    @contextlib.asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[AsyncIterator[GenerationPiece]]:
        """See `sandbox.engine.requests.Engine`.

        Raises (while iterating):
            CapacityError: 429 of the endpoint.
            InvalidRequestError: it refuses what is asked, or the user's text alone is too long for it.
            EngineUnavailableError: it doesn't answer, or its answer broke off.
        """
        if self.state is EngineState.CLOSED:
            raise EngineUnavailableError(
                "the server is shutting down; use another server", reason="SHUTTING_DOWN"
            )
        self._running += 1
        try:
            async with aclosing(self._generate(request)) as pieces:
                yield pieces
        finally:
            self._running -= 1

    def release(self, cache_key: int) -> None:
        """See `sandbox.engine.requests.Engine`; what the endpoint caches is its own affair."""
        self._prompt_tokens.pop(cache_key, None)

    def load(self) -> EngineLoad:
        """See `sandbox.engine.requests.Engine`."""
        return EngineLoad(
            running=self._running,
            waiting=0,
            batch_slots=self._connections,
            kv_used_bytes=None,
            kv_budget_bytes=None,
            restarts={},
        )

    async def _generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationPiece, None]:
        messages, dropped = list(request.messages), 0
        while True:
            try:
                async with aclosing(self._ask(request, messages, dropped)) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except ContextOverflowError as error:
                shorter = without_oldest_exchange(messages)
                if shorter is None:
                    raise InvalidRequestError(
                        f"with the system text too long for the endpoint, which says: {error}", "user_text"
                    ) from None
                messages, dropped = shorter, dropped + 1
            except RequestRefusedError as error:
                raise InvalidRequestError(str(error)) from None
            except EndpointRefusalError as error:
                log.error("the endpoint refuses the requests of this server")
                raise EngineUnavailableError(str(error), reason="ENDPOINT_REFUSES") from None
            except EndpointDownError as error:
                self._down.set()
                raise EngineUnavailableError(str(error), reason="ENDPOINT_DOWN") from None

    async def _ask(
        self, request: GenerationRequest, messages: Sequence[Message], dropped: int
    ) -> AsyncGenerator[GenerationPiece, None]:
        sampling, matcher, reply = request.sampling, StopMatcher(request.sampling.stop), _Reply()
        characters = WholeCharacters()
        started_ns = time.perf_counter_ns()
        body = self._dialect.body(messages, sampling)
        try:
            async with self._endpoint.stream(body) as content, aclosing(read_events(content)) as events:
                async for event in events:
                    if event.strip() == DONE:
                        break
                    reply.events += 1
                    chunk = read_chunk(event)
                    self._take(reply, chunk, sampling)
                    text, stopped = matcher.feed(characters.push(chunk.text))
                    if stopped:
                        reply.reason = FinishReason.STOP_STRING
                    if text or chunk.token_ids:
                        yield GenerationPiece(chunk.token_ids, text)
                    # The stop strings are ours to find: leaving the stream ends the work of the server.
                    if stopped:
                        break
                if reply.reason is not FinishReason.STOP_STRING:
                    characters.finish()
        except (BrokenStreamError, StreamedError) as error:
            raise self._endpoint.broken(str(error)) from None
        if reply.reason is None:
            raise self._endpoint.broken(
                "the stream ended without a finish_reason"
                if reply.events
                else "the stream held nothing; is the conversation too long for it?"
            )
        rest = "" if reply.reason is FinishReason.STOP_STRING else matcher.flush()
        self._check_not_cut(request.cache_key, messages, reply.usage)
        yield GenerationPiece((), rest, _end(reply, dropped, started_ns))

    def _take(self, reply: _Reply, chunk: Chunk, sampling: Sampling) -> None:
        if reply.first_ns is None and (chunk.text or chunk.token_ids):
            reply.first_ns = time.perf_counter_ns()
        reply.ids += len(chunk.token_ids)
        reply.text_without_ids |= bool(chunk.text) and not chunk.token_ids
        reply.text_bytes += len(chunk.text.encode(errors="replace"))
        reply.usage = chunk.usage or reply.usage
        if chunk.finish_reason is not None:
            reply.reason = _REASONS.get(chunk.finish_reason)
            if reply.reason is None:
                raise BrokenStreamError(f"finish_reason {chunk.finish_reason}")
        if reply.text_bytes > MAX_BYTES_A_TOKEN * sampling.max_new_tokens:
            raise BrokenStreamError("it sends far more text than max_tokens allows")

    def _check_not_cut(self, cache_key: int, messages: Sequence[Message], usage: RemoteUsage | None) -> None:
        """Refuse the reply of a server that leaves out a part of the conversation and says nothing.

        With more messages a prompt can only grow. A server that cuts it would be judged on a conversation that it
        never saw, and no number would show it.
        """
        if usage is None or usage.prompt_tokens is None:
            return
        fewer, before = self._prompt_tokens.get(cache_key, (0, 0))
        if len(messages) > fewer and usage.prompt_tokens <= before:
            raise InvalidRequestError(
                f"the endpoint cut the conversation without saying so: {len(messages)} messages are {usage.prompt_tokens}"
                f" tokens, {fewer} of them were {before}; serve the model with a longer context"
            )
        self._prompt_tokens[cache_key] = (len(messages), usage.prompt_tokens)

    def _set_state(self, state: EngineState) -> None:
        if self.state is not EngineState.CLOSED:
            self.state = state
            self._on_state(state)


def without_oldest_exchange(messages: Sequence[Message]) -> list[Message] | None:
    """The conversation without its oldest user message and the reply to it; the system text and the last message stay.

    None where nothing is left to drop.
    """
    head = 1 if messages and messages[0].role == "system" else 0
    if len(messages) - head < 3:
        return None
    return [*messages[:head], *messages[head + 2 :]]


def _generated_tokens(reply: _Reply, usage: RemoteUsage) -> int | None:
    if reply.ids and not reply.text_without_ids:
        return reply.ids
    # Text without a token: the last count is older than the text.
    return None if reply.text_bytes and not usage.generated_tokens else usage.generated_tokens


def _end(reply: _Reply, dropped: int, started_ns: int) -> GenerationEnd:
    ended_ns = time.perf_counter_ns()
    first_ns = reply.first_ns or ended_ns
    usage = reply.usage or RemoteUsage(None, None, None)
    assert reply.reason is not None
    return GenerationEnd(
        finish_reason=reply.reason,
        reused_tokens=usage.reused_tokens,
        queue_ns=0,
        prefill_ns=first_ns - started_ns,
        decode_ns=ended_ns - first_ns,
        prompt_tokens=usage.prompt_tokens,
        generated_tokens=_generated_tokens(reply, usage),
        dropped_turns=dropped,
    )
