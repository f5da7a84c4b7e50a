"""The sandbox as replay sees it: a typed gRPC client. Wire types end here; the core never sees protobuf."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import grpc

from evalkit.errors import IncompleteError
from evalkit.wire import sandbox_pb2 as pb
from evalkit.wire.sandbox_pb2_grpc import SandboxStub

ResultT = TypeVar("ResultT")

MAX_MESSAGE_BYTES = 16 << 20
_RETRY_WAITS_S = (0.2, 0.8, 3.2)
_CONTROL_TIMEOUT_S = 10.0
# Nothing was generated, or the same turn_id returns what was: safe to ask again.
_RETRIED_CODES = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"})
# Both ends state their limit: the default of 4 MiB fails with a confusing number. A proxy from the
# environment must not get between two processes of one machine.
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
)


class SandboxError(IncompleteError):
    """A call to the sandbox failed.

    Attributes:
        code: name of the gRPC status code.
        message: what the server says.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"sandbox: {code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True)
class ServerInfo:
    """What the server says about itself; see DescribeReply in sandbox.proto."""

    model_digest: str
    declared_model: str
    engine: str
    flow_digest: str
    max_sessions: int
    max_context_tokens: int
    max_turn_tokens: int
    version: str


@dataclass(frozen=True)
class Sampling:
    """How a reply is generated; temperature 0 is greedy."""

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class TurnReply:
    """One reply.

    Attributes:
        intent, handover, satisfaction: None where no flow is loaded.
        state: OPEN, SESSION_HANDED_OVER or CLOSED.
        model_ns: prefill and decode on the server.
        first_token_ns: from the planned start to the first text, at the client.
        total_ns: from the planned start to the end of the stream, at the client.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    intent: str | None
    handover: bool | None
    satisfaction: float | None
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    dropped_turns: int
    state: str
    model_ns: int
    first_token_ns: int
    total_ns: int


class SandboxClient:
    """A channel to one sandbox; may be shared by threads. Use it as a context manager."""

    def __init__(self, address: str) -> None:
        """Connect lazily.

        Args:
            address: HOST:PORT.
        """
        self.address = address
        self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub = SandboxStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> "SandboxClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_channel()

    def close_channel(self) -> None:
        """Give the connection back."""
        self._channel.close()

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait for a connection.

        Raises:
            SandboxError: none within `timeout_s`.
        """
        try:
            grpc.channel_ready_future(self._channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            raise SandboxError(
                "UNAVAILABLE", f"no answer from {self.address} within {timeout_s:g} s"
            ) from None

    def is_serving(self) -> bool:
        """Whether the health service says SERVING.

        Raises:
            SandboxError: the server can't be reached.
        """
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        stub = health_pb2_grpc.HealthStub(self._channel)
        reply = _called(lambda: stub.Check(health_pb2.HealthCheckRequest(), timeout=_CONTROL_TIMEOUT_S))
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def describe(self) -> ServerInfo:
        """What is served, and its limits.

        Raises:
            SandboxError: the call failed, after retries.
        """
        reply = _retried(lambda _: self._stub.Describe(pb.DescribeRequest(), timeout=_CONTROL_TIMEOUT_S))
        return ServerInfo(
            model_digest=reply.model_digest,
            declared_model=reply.declared_model,
            engine=reply.engine,
            flow_digest=reply.flow_digest,
            max_sessions=reply.max_sessions,
            max_context_tokens=reply.max_context_tokens,
            max_turn_tokens=reply.max_turn_tokens,
            version=reply.version,
        )

    def open(self, session_id: str, locale: str) -> None:
        """Open a session under an id of ours.

        Raises:
            SandboxError: the call failed, after retries.
        """
        request = pb.OpenSessionRequest(session_id=session_id, locale=locale)

        def attempt(number: int) -> None:
            try:
                self._stub.OpenSession(request, timeout=_CONTROL_TIMEOUT_S)
            except grpc.RpcError as error:
                # The id is ours alone: if a repeat finds it taken, the first attempt got through.
                if number == 0 or _code(error) != "ALREADY_EXISTS":
                    raise

        _retried(attempt)

    def turn(
        self,
        session_id: str,
        turn_id: str,
        user_text: str,
        sampling: Sampling,
        *,
        timeout_s: float,
        planned_ns: int | None = None,
    ) -> TurnReply:
        """Say something and read the streamed reply to its end; repeats are idempotent.

        Args:
            session_id: an open session.
            turn_id: idempotency key, the same for every attempt.
            user_text: what the user says.
            sampling: how to generate.
            timeout_s: deadline of each attempt.
            planned_ns: `time.perf_counter_ns()` at which the turn was due; every time is measured from there,
                waiting and repeats included. Default: now.

        Raises:
            SandboxError: the call failed, after retries.
        """
        start = time.perf_counter_ns() if planned_ns is None else planned_ns
        request = pb.TurnRequest(
            session_id=session_id,
            turn_id=turn_id,
            user_text=user_text,
            sampling=pb.Sampling(
                max_new_tokens=sampling.max_new_tokens,
                temperature=sampling.temperature,
                top_p=1.0,
                seed=sampling.seed,
            ),
        )
        return _retried(lambda _: _read_stream(self._stub.StreamTurn(request, timeout=timeout_s), start))

    def close(self, session_id: str) -> None:
        """Close a session.

        Raises:
            SandboxError: the call failed.
        """
        request = pb.CloseSessionRequest(session_id=session_id)
        _called(lambda: self._stub.CloseSession(request, timeout=_CONTROL_TIMEOUT_S))


def _read_stream(chunks: Iterator[Any], start_ns: int) -> TurnReply:
    first_ns: int | None = None
    reply: Any = None
    for chunk in chunks:
        if first_ns is None and (chunk.text or chunk.token_ids or chunk.HasField("reply")):
            first_ns = time.perf_counter_ns() - start_ns
        if chunk.HasField("reply"):
            reply = chunk.reply
    total_ns = time.perf_counter_ns() - start_ns
    if reply is None or first_ns is None:
        raise SandboxError("INTERNAL", "the stream ended without a reply")
    return TurnReply(
        text=reply.text,
        token_ids=tuple(reply.token_ids),
        finish_reason=pb.FinishReason.Name(reply.finish_reason),
        intent=reply.intent.label if reply.HasField("intent") else None,
        handover=reply.handover.decided if reply.HasField("handover") else None,
        satisfaction=reply.satisfaction.score if reply.HasField("satisfaction") else None,
        prompt_tokens=reply.usage.prompt_tokens,
        reused_tokens=reply.usage.reused_tokens,
        generated_tokens=reply.usage.generated_tokens,
        dropped_turns=reply.usage.dropped_turns,
        state=pb.SessionState.Name(reply.state),
        model_ns=reply.timings.prefill_ns + reply.timings.decode_ns,
        first_token_ns=first_ns,
        total_ns=total_ns,
    )


def _retried(call: Callable[[int], ResultT]) -> ResultT:
    for number, wait_s in enumerate((*_RETRY_WAITS_S, None)):
        try:
            return _called(lambda number=number: call(number))  # type: ignore[misc]
        except SandboxError as error:
            if wait_s is None or error.code not in _RETRIED_CODES:
                raise
            time.sleep(wait_s)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _called(call: Callable[[], ResultT]) -> ResultT:
    try:
        return call()
    except grpc.RpcError as error:
        raise SandboxError(_code(error), _details(error)) from None


def _code(error: grpc.RpcError) -> str:
    # Every RpcError of a call is also a grpc.Call; the stubs' base class doesn't say so.
    return str(error.code().name) if isinstance(error, grpc.Call) else "UNKNOWN"


def _details(error: grpc.RpcError) -> str:
    return str(error.details() or "no details") if isinstance(error, grpc.Call) else str(error)
