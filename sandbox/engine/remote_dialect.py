"""Which fields an endpoint takes: found out once, by asking for one token."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from evalkit.chat import Message
from evalkit.errors import InputError
from sandbox.domain import Sampling
from sandbox.engine.remote_http import (
    ChatEndpoint,
    ContextOverflowError,
    EndpointDownError,
    EndpointRefusalError,
    Json,
    RequestRefusedError,
)
from sandbox.engine.remote_stream import DONE, BrokenStreamError, StreamedError, read_chunk, read_events
from sandbox.errors import CapacityError, EngineUnavailableError

_ATTEMPTS = 4
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0


@dataclass(frozen=True)
class Dialect:
    """How to write a request.

    Attributes:
        length_field: what the longest reply is called.
        extras: fields beyond those of the first chat completions: usage, token ids.
    """

    length_field: str = "max_tokens"
    extras: tuple[tuple[str, object], ...] = ()

    def body(self, messages: Sequence[Message], sampling: Sampling) -> Json:
        """A request without model and stream.

        Stop strings aren't sent: the reply's text is matched here, so that the reason of its end is certain (a server
        says "stop" for both) and one over token boundaries is never missed. `top_k` isn't OpenAI's: where it is asked
        for it is sent, and a server that doesn't know it refuses the turn.
        """
        body: Json = {
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            self.length_field: sampling.max_new_tokens,
            # A float32 on our wire: 0.7, not 0.699999988.
            "temperature": round(sampling.temperature, 6),
            "top_p": round(sampling.top_p, 6),
            # Seeds of the field are signed.
            "seed": sampling.seed & (2**63 - 1),
            **dict(self.extras),
        }
        return {**body, "top_k": sampling.top_k} if sampling.top_k else body


_USAGE = ("stream_options", {"include_usage": True})
# From the one that tells most to the plainest: vLLM's, OpenAI's, that of its newer models, and of old servers.
_DIALECTS = (
    Dialect(
        extras=(
            ("stream_options", {"include_usage": True, "continuous_usage_stats": True}),
            ("return_token_ids", True),
        )
    ),
    Dialect(extras=(_USAGE,)),
    Dialect("max_completion_tokens", (_USAGE,)),
    Dialect(),
)


async def find_dialect(endpoint: ChatEndpoint) -> Dialect:
    """The first dialect that the endpoint takes.

    Raises:
        InputError: it takes none, or doesn't answer.
    """
    refusal = ""
    for dialect in _DIALECTS:
        try:
            await _until_not_busy(endpoint, dialect)
            return dialect
        except (RequestRefusedError, ContextOverflowError) as error:
            refusal = str(error)
        except (BrokenStreamError, StreamedError) as error:
            raise InputError(f"{endpoint.url}: no streamed chat completion: {error}") from None
        except (EndpointRefusalError, EndpointDownError, CapacityError, EngineUnavailableError) as error:
            # There is no turn yet that could be sent again.
            told = str(error).partition("; the turn left no trace")[0]
            raise InputError(
                f"{endpoint.url}: {told}; start the server, or correct --endpoint, --model or the API key"
            ) from None
    raise InputError(f"{endpoint.url}: {refusal}; --engine openai needs chat completions with streaming")


async def _until_not_busy(endpoint: ChatEndpoint, dialect: Dialect) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            return await _try(endpoint, dialect)
        except CapacityError as error:
            wait_s = max(_FIRST_WAIT_S * 2**attempt, error.retry_after_s or 0.0)
            if attempt == _ATTEMPTS - 1 or wait_s > _LONGEST_WAIT_S:
                raise
        await asyncio.sleep(wait_s)
    raise AssertionError("unreachable")


async def _try(endpoint: ChatEndpoint, dialect: Dialect) -> None:
    body = dialect.body([Message("user", "Hello")], Sampling(max_new_tokens=1))
    async with endpoint.stream(body) as content, aclosing(read_events(content)) as events:
        async for event in events:
            if event.strip() == DONE:
                return
            read_chunk(event)
