"""S38-S40 on the real server: a hand-over happens once, is told, and ends the model's part."""

import grpc

from evalkit.wire import sandbox_pb2 as wire
from tests.sandbox.processes import SandboxProcess, status_of

ASK = "let me talk to a real person please"


def test_s38_the_model_answers_nothing_after_a_handover(flow_server: SandboxProcess) -> None:
    session = flow_server.open()
    flow_server.turn(session, ASK, "t1")
    for text in ("hello?", ASK):
        assert status_of(lambda t=text: flow_server.turn(session, t)) is grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[misc]
        assert (
            status_of(lambda t=text: list(flow_server.stream(session, t)))
            is grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[misc]
        )


def test_s39_the_user_is_told(flow_server: SandboxProcess) -> None:
    assert flow_server.turn(flow_server.open(locale="en"), ASK).text == "I am connecting you to a colleague."
    assert flow_server.turn(flow_server.open(locale="zh"), ASK).text == "正在为您转接人工客服。"


def test_s40_a_session_is_handed_over_once(flow_server: SandboxProcess) -> None:
    session = flow_server.open()
    first = flow_server.turn(session, ASK, "t1")
    assert flow_server.turn(session, ASK, "t1") == first
    status_of(lambda: flow_server.turn(session, ASK, "t2"))
    transcript = flow_server.stub.GetSession(wire.GetSessionRequest(session_id=session))
    assert [turn.reply.finish_reason for turn in transcript.turns] == [wire.HANDED_OVER]
