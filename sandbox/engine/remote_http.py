"""Requests to a chat-completions endpoint, and what its refusals mean to whoever sent a turn."""

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from evalkit.backends.endpoint_http import BUSY, REFUSALS, EndpointHttp, error_text, retry_after_s
from evalkit.scenario.model_schema import EndpointRef
from sandbox.errors import CapacityError, EngineUnavailableError

if TYPE_CHECKING:
    import httpx

Json = dict[str, Any]

# A busy endpoint that doesn't say when to come back.
_UNTOLD_WAIT_S = 1.0

# What the servers of the field say when prompt and reply don't fit: OpenAI, vLLM, SGLang, TGI, llama.cpp, Mistral.
_OVERFLOW = re.compile(
    r"context.{0,12}(length|size|window)|context_length_exceeded|exceed_context_size|too many tokens|"
    r"longer than the model|inputs.{0,3} tokens \+ .{0,3}max_new_tokens|max_model_len|maximum.{0,20}length",
    re.IGNORECASE,
)


class ContextOverflowError(Exception):
    """Prompt and reply don't fit into the endpoint's context."""


class EndpointDownError(Exception):
    """Nobody answers at the endpoint's address."""


class RequestRefusedError(Exception):
    """The endpoint refuses a request for what is in it."""


class EndpointRefusalError(Exception):
    """The endpoint refuses every request of ours: a wrong key, address or model."""


class ChatEndpoint:
    """One served model, asked by chat completions."""

    def __init__(self, ref: EndpointRef, *, connections: int) -> None:
        """Prepare; nothing is sent.

        Raises:
            InputError: httpx isn't installed, or the variable of the API key isn't set.
        """
        # A line a request would say nothing that the server's own log doesn't.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._endpoint = EndpointHttp(ref, connections=connections)
        self._model = ref.model
        self._timeout_s = ref.timeout_s
        self.url = ref.url

    @asynccontextmanager
    async def stream(self, body: Json) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request and read the answer as it comes; leaving the block closes the connection.

        Args:
            body: the request without `model` and `stream`.

        Raises (on entering and while reading):
            CapacityError: 429, with the time that the endpoint asks to wait.
            ContextOverflowError, RequestRefusedError: it doesn't take this request.
            EndpointRefusalError: it takes none of ours.
            EndpointDownError: nobody answers.
            EngineUnavailableError: anything else that keeps it from answering.
        """
        import httpx

        try:
            async with self._endpoint.http.stream(
                "POST",
                f"{self.url}/chat/completions",
                json={"model": self._model, "stream": True, **body},
                headers={"Accept": "text/event-stream"},
            ) as response:
                await self._check(response)
                yield response.aiter_bytes()
        except httpx.ConnectTimeout:
            raise EndpointDownError(
                f"the endpoint took no connection within {self._timeout_s:g} s; the turn left no trace, send it again later"
            ) from None
        except httpx.TimeoutException:
            raise EngineUnavailableError(
                f"the endpoint gave nothing for {self._timeout_s:g} s; the turn left no trace, send it again",
                reason="ENDPOINT_SILENT",
            ) from None
        except httpx.ConnectError:
            raise EndpointDownError(
                "nobody answers at the endpoint; the turn left no trace, send it again later"
            ) from None
        except httpx.HTTPError as error:
            raise self.broken(type(error).__name__) from None

    def broken(self, reason: str) -> EngineUnavailableError:
        """The error of a stream that ended before its time."""
        return EngineUnavailableError(
            f"the endpoint's answer broke off ({self._endpoint.line(reason)}); the turn left no trace, send it again",
            reason="ENDPOINT_BROKE_OFF",
        )

    async def is_up(self) -> bool:
        """Whether somebody answers who isn't busy with starting or failing."""
        import httpx

        try:
            return (await self._endpoint.http.get(f"{self.url}/models")).status_code < 500
        except httpx.HTTPError:
            return False

    async def context_tokens(self) -> int | None:
        """`max_model_len` of the model, from servers that tell it."""
        try:
            response = await self._endpoint.http.get(f"{self.url}/models")
            listed = response.json()["data"]
            lengths = [entry.get("max_model_len") for entry in listed if entry.get("id") == self._model]
        except Exception:  # whatever is wrong will show in the completions too, with its reason
            return None
        length = lengths[0] if lengths else None
        return length if isinstance(length, int) and length > 1 else None

    async def close(self) -> None:
        """Give the connections back."""
        await self._endpoint.http.aclose()

    async def _check(self, response: "httpx.Response") -> None:
        status = response.status_code
        kind = response.headers.get("content-type", "")
        if status == 200 and kind.startswith("text/event-stream"):
            return
        await response.aread()
        message = self._endpoint.error_message(response)
        wait_s = retry_after_s(response.headers.get("retry-after"))
        if status == 200:
            raise self.broken(f"it sends {kind or 'no content type'} instead of an event stream: {message}")
        if status == 429:
            raise CapacityError(
                f"the endpoint takes no more requests for now (HTTP 429: {message}); try again later",
                reason="ENDPOINT_BUSY",
                retry_after_s=_UNTOLD_WAIT_S if wait_s is None else wait_s,
            )
        if status in BUSY:
            raise EngineUnavailableError(
                f"the endpoint is unwell (HTTP {status}: {message}); the turn left no trace, send it again later",
                reason="ENDPOINT_UNWELL",
                retry_after_s=wait_s,
            )
        if status in REFUSALS:
            raise EndpointRefusalError(
                f"the endpoint refuses: {REFUSALS[status]} (model {self._model!r}, HTTP {status}: {message})"
            )
        if status in (400, 413, 422):
            if _OVERFLOW.search(_whole_message(response)):
                raise ContextOverflowError(f"the endpoint's context is too small (HTTP {status}: {message})")
            raise RequestRefusedError(f"the endpoint refuses the request (HTTP {status}: {message})")
        raise EngineUnavailableError(f"the endpoint answers HTTP {status}: {message}")


def _whole_message(response: "httpx.Response") -> str:
    """Message, code and type of an error answer."""
    try:
        content = response.json()
    except (ValueError, RecursionError):
        return response.text
    error = content.get("error", content) if isinstance(content, dict) else content
    kinds = [str(error.get(key) or "") for key in ("code", "type")] if isinstance(error, dict) else []
    return " ".join([error_text(content) if isinstance(content, dict) else str(content), *kinds])
