"""A small in-process sandbox: sessions, idempotent turns and faults on demand, without a model."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from evalkit.wire import sandbox_pb2 as pb
from evalkit.wire.sandbox_pb2_grpc import SandboxServicer, add_SandboxServicer_to_server


class RefusalError(Exception):
    """Raised by an answer function: the turn ends with this gRPC status."""

    def __init__(
        self, code: grpc.StatusCode, details: str = "on purpose", retry_after_s: float | None = None
    ) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.retry_after_s = retry_after_s

    def metadata(self) -> tuple[tuple[str, bytes], ...]:
        """google.rpc.Status details, where there is a time to wait."""
        if self.retry_after_s is None:
            return ()
        status = status_pb2.Status(code=self.code.value[0], message=self.details)
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(self.retry_after_s * 1000))
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason="CAPACITY", domain="tests"))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        return (("grpc-status-details-bin", status.SerializeToString()),)


@dataclass
class FakeSession:
    """What the server remembers of a session."""

    session_id: str
    locale: str
    texts: list[str] = field(default_factory=list)
    replies: dict[str, Any] = field(default_factory=dict)
    state: int = pb.OPEN


@dataclass
class Answer:
    """What comes back for a turn."""

    text: str
    intent: str | None = None
    handover: bool | None = None
    satisfaction: float | None = None
    prefill_ns: int = 1000
    decode_ns: int = 1000
    state: int | None = None


AnswerFunction = Callable[[FakeSession, str], Answer]


class FakeSandbox(SandboxServicer):
    """Answers turns with a function of the session so far and the text."""

    def __init__(self, answer: AnswerFunction, model_digest: str = "m" * 64) -> None:
        self.answer = answer
        self.model_digest = model_digest
        self.sessions: dict[str, FakeSession] = {}
        self.requests: list[Any] = []
        self.generations = 0
        self.closed: list[str] = []
        self.delay_s = 0.0
        self._lock = threading.Lock()

    def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.DescribeReply(
            model_digest=self.model_digest, engine="fake", max_sessions=8, max_turn_tokens=64, version="0"
        )

    def OpenSession(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self._lock:
            if request.session_id in self.sessions:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, "the session exists")
            self.sessions[request.session_id] = FakeSession(request.session_id, request.locale)
        return pb.OpenSessionReply(session_id=request.session_id)

    def StreamTurn(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        with self._lock:
            self.requests.append(request)
            session = self.sessions.get(request.session_id)
        if session is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such session")
        if request.turn_id not in session.replies:
            if session.state != pb.OPEN:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the session was handed over")
            try:
                answer = self.answer(session, request.user_text)
            except RefusalError as refusal:
                context.set_trailing_metadata(refusal.metadata())
                context.abort(refusal.code, refusal.details)
            session.replies[request.turn_id] = self._reply(session, request, answer)
        reply = session.replies[request.turn_id]
        for word in re.findall(r"\s*\S+|\s+$", reply.text):
            time.sleep(self.delay_s)
            yield pb.TurnChunk(text=word, token_ids=[len(word.split()[0])] if word.strip() else [])
        yield pb.TurnChunk(reply=reply)

    def GetSession(self, request: Any, context: Any) -> Any:  # noqa: N802
        session = self.sessions[request.session_id]
        turns = [
            pb.TranscriptTurn(turn_id=key, user_text=text, reply=reply)
            for text, (key, reply) in zip(session.texts, session.replies.items(), strict=True)
        ]
        return pb.SessionTranscript(
            session_id=request.session_id, state=session.state, turns=turns, model_digest=self.model_digest
        )

    def CloseSession(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.closed.append(request.session_id)
        return pb.CloseSessionReply(state=pb.CLOSED)

    def _reply(self, session: FakeSession, request: Any, answer: Answer) -> Any:
        self.generations += 1
        index = len(session.texts)
        session.texts.append(request.user_text)
        session.state = pb.SESSION_HANDED_OVER if answer.handover else (answer.state or pb.OPEN)
        reply = pb.TurnReply(
            session_id=request.session_id,
            turn_id=request.turn_id,
            turn_index=index,
            text=answer.text,
            token_ids=[len(word) for word in answer.text.split()],
            finish_reason=pb.HANDED_OVER if answer.handover else pb.END,
            usage=pb.Usage(prompt_tokens=10 * (index + 1), reused_tokens=10 * index, generated_tokens=3),
            timings=pb.Timings(prefill_ns=answer.prefill_ns, decode_ns=answer.decode_ns),
            state=session.state,
        )
        if answer.intent is not None:
            reply.intent.label = answer.intent
        if answer.handover is not None:
            reply.handover.decided = answer.handover
        if answer.satisfaction is not None:
            reply.satisfaction.score = answer.satisfaction
        return reply


@contextmanager
def serve(sandbox: FakeSandbox) -> Iterator[str]:
    """Serve on a free local port; yields the address."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    add_SandboxServicer_to_server(sandbox, server)
    checks = health.HealthServicer()
    checks.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
