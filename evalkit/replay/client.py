"""The sandbox as replay and `sandbox chat` see it: a typed gRPC client with a deadline on every call."""

import math
import time
from collections.abc import Iterator
from numbers import Integral, Real
from types import TracebackType
from typing import Any

import grpc

from evalkit.errors import InputError
from evalkit.replay.access import Access
from evalkit.replay.channel import MAX_MESSAGE_BYTES, open_channel, unreachable
from evalkit.replay.faults import FaultDetails, FieldViolation, SandboxError, called, fault_of
from evalkit.replay.replies import (
    Sampling,
    ServerInfo,
    ServerTimings,
    Transcript,
    TranscriptTurn,
    TurnReply,
    check_number,
    check_text,
    info_from_wire,
    reply_from_wire,
    sampling_to_wire,
    transcript_from_wire,
)
from evalkit.replay.retries import Retries
from evalkit.wire import sandbox_pb2 as pb
from evalkit.wire.sandbox_pb2_grpc import SandboxStub

__all__ = [
    "MAX_MESSAGE_BYTES",
    "Access",
    "FaultDetails",
    "FieldViolation",
    "Sampling",
    "SandboxClient",
    "SandboxError",
    "ServerInfo",
    "ServerTimings",
    "Transcript",
    "TranscriptTurn",
    "TurnReply",
    "TurnStream",
]

_CONTROL_TIMEOUT_S = 10.0
# To learn why there is no connection.
_PROBE_TIMEOUT_S = 1.0


class TurnStream:
    """A reply while it is generated: iterate over its text; afterwards `reply` is the whole.

    Attributes:
        reply: None until the stream ended well.
    """

    def __init__(self, calls: Any, start_ns: int) -> None:
        self.reply: TurnReply | None = None
        self._chunks = calls
        self._start_ns = start_ns
        self._first_ns: int | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for chunk in self._chunks:
                if self._first_ns is None and (chunk.text or chunk.token_ids or chunk.HasField("reply")):
                    self._first_ns = time.perf_counter_ns() - self._start_ns
                if chunk.text:
                    yield chunk.text
                if chunk.HasField("reply"):
                    self.reply = reply_from_wire(
                        chunk.reply, self._first_ns or 0, time.perf_counter_ns() - self._start_ns
                    )
        except grpc.RpcError as error:
            raise fault_of(error) from None
        if self.reply is None:
            raise SandboxError("INTERNAL", "the stream ended without a reply")

    def cancel(self) -> None:
        """Stop the reply; the session is then as before the turn. May be called at any time, from any thread."""
        self._chunks.cancel()


class SandboxClient:
    """A channel to one sandbox; may be shared by threads. Use it as a context manager.

    Only calls that may be repeated without harm are, see `evalkit.replay.retries`: reading ones, opening a session
    under the caller's id, closing, and turns with a `turn_id`.

    Attributes:
        address: as given.
        retries: when to call again after a SandboxError, for callers of `stream_turn`.
    """

    def __init__(self, address: str, access: Access = Access(), *, retry_seed: int | None = None) -> None:  # noqa: B008
        """Connect lazily.

        Args:
            address: HOST:PORT.
            access: TLS and token.
            retry_seed: of the random part of waiting times; None takes one from the system.

        Raises:
            InputError: the address is no text, or a file of `access` can't be used.
        """
        check_text(address=address)
        self.address = address
        self._access = access
        self._channel, self._metadata = open_channel(address, access)
        self._stub = SandboxStub(self._channel)  # type: ignore[no-untyped-call]
        self.retries = Retries(retry_seed)

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
            InputError: the two ends don't agree about TLS: `access` has to change.
            SandboxError: none within `timeout_s`; the message says what gRPC knows of the reason.
        """
        try:
            grpc.channel_ready_future(self._channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            reason = self._last_failure()
            if reason is not None:
                raise unreachable(self.address, self._access, timeout_s, reason) from None

    def _last_failure(self) -> str | None:
        """What kept the channel from connecting; None if it's connected after all."""
        # Such a call doesn't wait for a connection, it fails with the last attempt's error. It needs no token.
        try:
            self._check_health(_PROBE_TIMEOUT_S)
        except SandboxError as error:
            return error.message if error.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED") else None
        return None

    def is_serving(self) -> bool:
        """Whether the health service says SERVING.

        Raises:
            SandboxError: the server can't be reached.
        """
        return self._check_health(_CONTROL_TIMEOUT_S)

    def _check_health(self, timeout_s: float) -> bool:
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        stub = health_pb2_grpc.HealthStub(self._channel)
        reply = called(lambda: stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s))
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def describe(self) -> ServerInfo:
        """What is served, and its limits.

        Raises:
            SandboxError: the call failed, after retries.
        """
        return info_from_wire(self._control(self._stub.Describe, pb.DescribeRequest()))

    def open(self, session_id: str, locale: str, *, tenant: str = "", system_text: str = "") -> None:
        """Open a session under an id of ours.

        Args:
            session_id: not empty, so that a repeat can't open a second session.
            locale: en or zh; empty leaves it to the server.
            tenant: whose session it is; a server with tokens knows it.
            system_text: instruction that stands before the conversation.

        Raises:
            InputError: a text can't be sent.
            SandboxError: the call failed, after retries.
        """
        check_text(session_id=session_id, locale=locale, tenant=tenant, system_text=system_text)
        request = pb.OpenSessionRequest(
            session_id=session_id, locale=locale, tenant=tenant, system_text=system_text
        )

        def attempt(number: int) -> None:
            try:
                self._stub.OpenSession(request, timeout=_CONTROL_TIMEOUT_S, metadata=self._metadata)
            except grpc.RpcError as error:
                # The id is ours alone: if a repeat finds it taken, the first attempt got through.
                if number == 0 or fault_of(error).code != "ALREADY_EXISTS":
                    raise

        self.retries.run(attempt)

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
        """Say something and read the streamed reply to its end.

        Args:
            session_id: an open session.
            turn_id: idempotency key, the same for every attempt; without one there is only one attempt.
            user_text: what the user says.
            sampling: how to generate.
            timeout_s: deadline of each attempt, finite.
            planned_ns: `time.perf_counter_ns()` at which the turn was due; every time is measured from there,
                waiting and repeats included. Default: now.

        Raises:
            InputError: a text or a number can't be sent.
            SandboxError: the call failed, after retries.
        """
        start_ns = time.perf_counter_ns() if planned_ns is None else planned_ns
        check_number(Integral, planned_ns=start_ns)

        def attempt(_: int) -> TurnReply:
            stream = self._stream(session_id, turn_id, user_text, sampling, timeout_s, start_ns)
            for _text in stream:
                pass
            assert stream.reply is not None
            return stream.reply

        return self.retries.run(attempt) if turn_id else attempt(0)

    def stream_turn(
        self, session_id: str, turn_id: str, user_text: str, sampling: Sampling, *, timeout_s: float
    ) -> TurnStream:
        """The same for somebody who reads along; one attempt, since text that was shown can't be taken back.

        With a `turn_id` the caller may simply call again after a SandboxError.

        Raises:
            InputError: a text or a number can't be sent.
        """
        return self._stream(session_id, turn_id, user_text, sampling, timeout_s, time.perf_counter_ns())

    def transcript(self, session_id: str) -> Transcript:
        """Every finished turn of a session.

        Raises:
            SandboxError: the call failed, after retries.
        """
        check_text(session_id=session_id)
        request = pb.GetSessionRequest(session_id=session_id)
        return transcript_from_wire(self._control(self._stub.GetSession, request))

    def close(self, session_id: str) -> None:
        """Close a session.

        Raises:
            SandboxError: the call failed, after retries.
        """
        check_text(session_id=session_id)
        self._control(self._stub.CloseSession, pb.CloseSessionRequest(session_id=session_id))

    def _control(self, method: Any, request: Any) -> Any:
        return self.retries.run(
            lambda _: method(request, timeout=_CONTROL_TIMEOUT_S, metadata=self._metadata)
        )

    def _stream(
        self,
        session_id: str,
        turn_id: str,
        user_text: str,
        sampling: Sampling,
        timeout_s: float,
        start_ns: int,
    ) -> TurnStream:
        check_text(session_id=session_id, turn_id=turn_id, user_text=user_text)
        check_number(Real, timeout_s=timeout_s)
        if not math.isfinite(timeout_s):  # gRPC would take it for a deadline that has passed
            raise InputError(f"timeout_s: {timeout_s} is no finite number; give seconds")
        request = pb.TurnRequest(
            session_id=session_id,
            turn_id=turn_id,
            user_text=user_text,
            sampling=sampling_to_wire(sampling),
        )
        calls = self._stub.StreamTurn(request, timeout=timeout_s, metadata=self._metadata)
        return TurnStream(calls, start_ns)
