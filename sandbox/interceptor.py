"""What surrounds every call: its id, who calls, and one line of log and one count when it ends.

The interceptor is the outermost one. It reads requests and writes the messages of streams itself: a message that can't
be read has a status of ours, and a cancel always arrives inside its own coroutine, also while it waits for a slow
reader, and closes the handler's generator at once.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from sandbox.calls import REQUEST_ID_KEY, Call, Context, begin_call, end_call
from sandbox.errors import DeadlinePassedError, InvalidRequestError
from sandbox.status import errors_as_status

log = logging.getLogger(__name__)

# gRPC holds some 64 KiB for a reader that doesn't read; then a write waits. A call whose write waits for so long ends.
READER_PATIENCE_S = 60.0

# A call that its caller ends so shortly before its deadline, or sooner by 1 % of it, has met its deadline.
_DEADLINE_SLACK_S = 0.005

HEALTH_PREFIX = "/grpc.health.v1.Health/"

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

Behaviour = Callable[[Any, Context], Any]


class CallObserver(Protocol):
    """Is told of each call's end."""

    def call_ended(self, call: Call, code: grpc.StatusCode, seconds: float) -> None:
        """A call ended with this status."""
        ...


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Gives each call its id, checks who calls, and reports its end."""

    def __init__(
        self,
        authenticate: Callable[[Context], Awaitable[str]] | None,
        observer: CallObserver,
        reader_patience_s: float = READER_PATIENCE_S,
    ) -> None:
        """Put the parts together.

        Args:
            authenticate: returns the caller's tenant or ends the call; None lets everybody in. Health is always
                answered: probes carry no token.
            observer: counts calls.
            reader_patience_s: how long a stream waits for its reader.
        """
        self._authenticate = authenticate
        self._observer = observer
        self._reader_patience_s = reader_patience_s

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the method's handler; unknown methods stay None, which gRPC answers with UNIMPLEMENTED."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        request_id = _request_id(handler_call_details.invocation_metadata)
        if handler.response_streaming:
            return _like(handler, self._streamed(handler, method, request_id))
        return _like(handler, self._unary(handler, method, request_id))

    def _unary(self, handler: Any, method: str, request_id: str) -> Behaviour:
        behaviour: Behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary

        async def run(request: Any, context: Context) -> Any:
            with self._call(method, request_id, context) as call:
                request = await self._received(call, context, handler, request)
                return await behaviour(request, context)

        return run

    def _streamed(self, handler: Any, method: str, request_id: str) -> Behaviour:
        behaviour: Behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream

        async def run(request: Any, context: Context) -> None:
            with self._call(method, request_id, context) as call:
                request = await self._received(call, context, handler, request)
                responses = behaviour(request, context)
                if not isinstance(responses, AsyncGenerator):
                    await responses
                    return
                async with errors_as_status(context):
                    await self._write_all(responses, context)

        return run

    async def _write_all(self, responses: AsyncGenerator[Any, None], context: Context) -> None:
        """Write the messages of a stream; where nobody reads them, end the handler's work and wait without it.

        The write itself can't be taken back: as long as it is under way gRPC sends no status.
        """
        loop = asyncio.get_running_loop()
        given_up: list[asyncio.Task[None]] = []

        def give_up() -> None:
            given_up.append(loop.create_task(_close(responses)))

        async with aclosing(responses):
            async for response in responses:
                timer = loop.call_later(self._reader_patience_s, give_up)
                try:
                    await context.write(response)
                finally:
                    timer.cancel()
                    if given_up:
                        await given_up[0]
                if given_up:
                    raise DeadlinePassedError(
                        f"nobody read the stream for {self._reader_patience_s:g} s; read it, or send the turn again later",
                        reason="READER_TOO_SLOW",
                    )

    async def _received(self, call: Call, context: Context, handler: Any, request: Any) -> Any:
        """The request as a message, once it's known who sent it."""
        if self._authenticate is not None and not call.method.startswith(HEALTH_PREFIX):
            call.tenant = await self._authenticate(context)
        if handler.request_streaming:
            return request
        async with errors_as_status(context):
            try:
                return handler.request_deserializer(request)
            except (
                DecodeError,
                UnicodeDecodeError,
            ):  # the second is what protobuf in pure Python says of bad text
                raise InvalidRequestError(
                    "the message can't be read; it isn't what the .proto says"
                ) from None

    @contextmanager
    def _call(self, method: str, request_id: str, context: Context) -> Iterator[Call]:
        call = Call(method, request_id)
        token = begin_call(call)
        context.set_trailing_metadata(((REQUEST_ID_KEY, request_id),))
        code = grpc.StatusCode.OK
        try:
            yield call
        except BaseException:
            code = _ended_with(context, (time.perf_counter_ns() - call.started_ns) / 1e9)
            raise
        finally:
            seconds = (time.perf_counter_ns() - call.started_ns) / 1e9
            self._observer.call_ended(call, code, seconds)
            _log_end(call, code, seconds)
            end_call(token)


async def _close(responses: AsyncGenerator[Any, None]) -> None:
    await responses.aclose()


def _ended_with(context: Context, after_s: float) -> grpc.StatusCode:
    """The status of a call that an exception ended after so long: an abort set one, a cancel didn't.

    A caller whose deadline passes cancels too, and often a moment before the deadline passes here: gRPC rounds what it
    sends of one up, by 1 % at most, and the message has been on its way.
    """
    code: object = context.code()
    for status in grpc.StatusCode:
        if code in (status, status.value[0]) and status is not grpc.StatusCode.OK:
            return status
    remaining_s = context.time_remaining()
    late = remaining_s is not None and remaining_s <= _DEADLINE_SLACK_S + 0.01 * (after_s + remaining_s)
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED


def _log_end(call: Call, code: grpc.StatusCode, seconds: float) -> None:
    level = logging.DEBUG if call.method.startswith(HEALTH_PREFIX) else logging.INFO
    if not log.isEnabledFor(level):
        return
    fields: dict[str, object] = {"method": call.method, "code": code.name, "ms": round(seconds * 1000, 3)}
    if call.tenant:
        fields["tenant"] = call.tenant
    if call.reason:
        fields["reason"] = call.reason
    log.log(level, "call ended", extra={"fields": {**fields, **call.fields}})


def _request_id(metadata: Any) -> str:
    for key, value in metadata or ():
        if key == REQUEST_ID_KEY and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return secrets.token_hex(16)


def _like(handler: Any, behaviour: Behaviour) -> Any:
    """A handler of the same kind; single requests reach the behaviour as bytes."""
    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = makers[handler.request_streaming, handler.response_streaming]
    return make(
        behaviour,
        request_deserializer=handler.request_deserializer if handler.request_streaming else None,
        response_serializer=handler.response_serializer,
    )
