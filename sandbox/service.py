"""The gRPC methods: a thin shell that converts at the edge and calls the core."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from evalkit.wire import sandbox_pb2 as wire
from evalkit.wire import sandbox_pb2_grpc
from sandbox.calls import Context, current_call
from sandbox.conversation import Conversations
from sandbox.converters import piece_to_wire, reply_to_wire, state_to_wire, transcript_to_wire, turn_from_wire
from sandbox.domain import TurnPiece, TurnReply
from sandbox.drain import Drain
from sandbox.errors import ForbiddenError
from sandbox.limits import Limits
from sandbox.metrics import Metrics
from sandbox.sessions import SessionStore
from sandbox.status import errors_as_status

SERVICE_NAME = "evalkit.sandbox.v1.Sandbox"

# An id in the log is cut here: it isn't checked yet when the log line begins.
_LOGGED_ID = 128


@dataclass(frozen=True)
class ServerIdentity:
    """What Describe says about the server.

    Attributes:
        model_digest: of the served bundle.
        declared_model: what the operator says that a remote endpoint serves; "" for a bundle.
        engine: tells the kind of engine; which one runs may be known only once it does.
        flow_digest: "" without a flow.
        version: of this package.
    """

    model_digest: str
    engine: Callable[[], str]
    flow_digest: str
    version: str
    declared_model: str = ""


class SandboxService(sandbox_pb2_grpc.SandboxServicer):
    """evalkit.sandbox.v1.Sandbox."""

    def __init__(
        self,
        identity: ServerIdentity,
        limits: Limits,
        store: SessionStore,
        conversations: Conversations,
        drain: Drain,
        metrics: Metrics,
        log_text: bool = False,
    ) -> None:
        """Put the parts together.

        Args:
            identity: what Describe says.
            limits: bounds.
            store: the sessions.
            conversations: runs turns.
            drain: counts running work and refuses it at the end.
            metrics: counts turns.
            log_text: whether what users and the model say goes to the log.
        """
        self._identity = identity
        self._limits = limits
        self._store = store
        self._conversations = conversations
        self._drain = drain
        self._metrics = metrics
        self._log_text = log_text

    async def Describe(self, request: wire.DescribeRequest, context: Context) -> wire.DescribeReply:  # noqa: N802
        """Digests and limits."""
        return wire.DescribeReply(
            model_digest=self._identity.model_digest,
            declared_model=self._identity.declared_model,
            engine=self._identity.engine(),
            flow_digest=self._identity.flow_digest,
            max_sessions=self._limits.max_sessions,
            max_context_tokens=self._limits.max_context_tokens,
            max_turn_tokens=self._limits.max_turn_tokens,
            version=self._identity.version,
        )

    async def OpenSession(self, request: wire.OpenSessionRequest, context: Context) -> wire.OpenSessionReply:  # noqa: N802
        """Open a session. With tokens its tenant is the caller's, whatever the request leaves empty."""
        async with errors_as_status(context):
            _note(session_id=request.session_id[:_LOGGED_ID])
            await self._drain.pause()
            with self._drain.work():
                owner = _caller()
                if owner and request.tenant not in ("", owner):
                    raise ForbiddenError("tenant: the token belongs to another tenant; leave it empty")
                session = self._store.open(
                    request.session_id, owner or request.tenant, request.system_text, request.locale, owner
                )
            _note(session_id=session.session_id)
            return wire.OpenSessionReply(
                session_id=session.session_id, idle_ttl_ms=round(self._limits.idle_ttl_s * 1000)
            )

    async def Turn(self, request: wire.TurnRequest, context: Context) -> wire.TurnReply:  # noqa: N802
        """One turn, answered when the reply is complete."""
        async with errors_as_status(context), aclosing(self._turn(request, context)) as pieces:
            async for piece in pieces:
                if piece.reply is not None:
                    return reply_to_wire(piece.reply)
        raise AssertionError("a turn ends with a reply or an error")

    async def StreamTurn(  # noqa: N802
        self, request: wire.TurnRequest, context: Context
    ) -> AsyncIterator[wire.TurnChunk]:
        """One turn, answered piece by piece."""
        async with errors_as_status(context), aclosing(self._turn(request, context)) as pieces:
            async for piece in pieces:
                yield piece_to_wire(piece)

    async def GetSession(self, request: wire.GetSessionRequest, context: Context) -> wire.SessionTranscript:  # noqa: N802
        """The transcript of a session; closed ones can be read until they idle out."""
        async with errors_as_status(context):
            _note(session_id=request.session_id[:_LOGGED_ID])
            await self._drain.pause()
            session = self._store.find(request.session_id, _caller())
            return transcript_to_wire(session, self._identity.model_digest)

    async def CloseSession(  # noqa: N802
        self, request: wire.CloseSessionRequest, context: Context
    ) -> wire.CloseSessionReply:
        """Close a session and forget its cache; closing twice is the same as once."""
        async with errors_as_status(context):
            _note(session_id=request.session_id[:_LOGGED_ID])
            await self._drain.pause()
            session = self._store.find(request.session_id, _caller())
            self._store.close(session)
            return wire.CloseSessionReply(state=state_to_wire(session.state), turns=len(session.turns))

    async def _turn(self, request: wire.TurnRequest, context: Context) -> AsyncGenerator[TurnPiece, None]:
        turn = turn_from_wire(request, self._limits)
        meter = self._metrics.turn()
        await self._drain.pause()
        with self._drain.work():
            _note(session_id=turn.session_id[:_LOGGED_ID], turn_id=turn.turn_id[:_LOGGED_ID])
            if self._log_text:
                _note(user_text=turn.user_text)
            async with aclosing(
                self._conversations.turn(turn, _caller(), context.time_remaining())
            ) as pieces:
                async for piece in pieces:
                    meter.piece(piece)
                    if piece.reply is not None:
                        self._note_reply(piece.reply)
                    yield piece

    def _note_reply(self, reply: TurnReply) -> None:
        usage = reply.usage
        _note(
            turn_id=reply.turn_id,  # made here where the caller gave none
            turn_index=reply.turn_index,
            finish_reason=reply.finish_reason.value,
            prompt_tokens=usage.prompt_tokens,
            reused_tokens=usage.reused_tokens,
            generated_tokens=usage.generated_tokens,
        )
        if self._log_text:
            _note(reply_text=reply.text)


def _caller() -> str:
    call = current_call()
    return "" if call is None else call.tenant


def _note(**fields: object) -> None:
    """Add to the call's line of log."""
    call = current_call()
    if call is not None:
        call.fields.update(fields)
