"""The gRPC methods: a thin shell that converts at the edge and calls the core."""

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc.aio

from evalkit.wire import sandbox_pb2 as wire
from evalkit.wire import sandbox_pb2_grpc
from sandbox.conversation import Conversations
from sandbox.converters import piece_to_wire, reply_to_wire, state_to_wire, transcript_to_wire, turn_from_wire
from sandbox.drain import Drain
from sandbox.limits import Limits
from sandbox.sessions import SessionStore
from sandbox.status import errors_as_status

SERVICE_NAME = "evalkit.sandbox.v1.Sandbox"

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class ServerIdentity:
    """What Describe says about the server.

    Attributes:
        model_digest: of the served bundle.
        engine: kind of engine.
        flow_digest: "" without a flow.
        version: of this package.
    """

    model_digest: str
    engine: str
    flow_digest: str
    version: str


class SandboxService(sandbox_pb2_grpc.SandboxServicer):
    """evalkit.sandbox.v1.Sandbox."""

    def __init__(
        self,
        identity: ServerIdentity,
        limits: Limits,
        store: SessionStore,
        conversations: Conversations,
        drain: Drain,
    ) -> None:
        self._identity = identity
        self._limits = limits
        self._store = store
        self._conversations = conversations
        self._drain = drain

    async def Describe(self, request: wire.DescribeRequest, context: Context) -> wire.DescribeReply:  # noqa: N802
        """Digests and limits."""
        return wire.DescribeReply(
            model_digest=self._identity.model_digest,
            engine=self._identity.engine,
            flow_digest=self._identity.flow_digest,
            max_sessions=self._limits.max_sessions,
            max_context_tokens=self._limits.max_context_tokens,
            max_turn_tokens=self._limits.max_turn_tokens,
            version=self._identity.version,
        )

    async def OpenSession(self, request: wire.OpenSessionRequest, context: Context) -> wire.OpenSessionReply:  # noqa: N802
        """Open a session."""
        async with errors_as_status(context):
            with self._drain.work():
                session = self._store.open(
                    request.session_id, request.tenant, request.system_text, request.locale
                )
            return wire.OpenSessionReply(
                session_id=session.session_id, idle_ttl_ms=round(self._limits.idle_ttl_s * 1000)
            )

    async def Turn(self, request: wire.TurnRequest, context: Context) -> wire.TurnReply:  # noqa: N802
        """One turn, answered when the reply is complete."""
        async with errors_as_status(context):
            with self._drain.work():
                async with aclosing(
                    self._conversations.turn(turn_from_wire(request, self._limits))
                ) as pieces:
                    async for piece in pieces:
                        if piece.reply is not None:
                            return reply_to_wire(piece.reply)
        raise AssertionError("a turn ends with a reply or an error")

    async def StreamTurn(self, request: wire.TurnRequest, context: Context) -> None:  # noqa: N802
        """One turn, answered piece by piece.

        Written with `context.write`, not as a generator: a cancel then always arrives inside this method, also while
        it waits for a slow reader, and so ends the generation at once.
        """
        async with errors_as_status(context):
            with self._drain.work():
                async with aclosing(
                    self._conversations.turn(turn_from_wire(request, self._limits))
                ) as pieces:
                    async for piece in pieces:
                        await context.write(piece_to_wire(piece))

    async def GetSession(self, request: wire.GetSessionRequest, context: Context) -> wire.SessionTranscript:  # noqa: N802
        """The transcript of a session; closed ones can be read until they idle out."""
        async with errors_as_status(context):
            return transcript_to_wire(self._store.find(request.session_id), self._identity.model_digest)

    async def CloseSession(  # noqa: N802
        self, request: wire.CloseSessionRequest, context: Context
    ) -> wire.CloseSessionReply:
        """Close a session and forget its cache; closing twice is the same as once."""
        async with errors_as_status(context):
            session = self._store.find(request.session_id)
            self._store.close(session)
            return wire.CloseSessionReply(state=state_to_wire(session.state), turns=len(session.turns))
