"""Turns inside a business flow, on the real server."""

import grpc
import pytest

from evalkit.wire import sandbox_pb2 as wire
from tests.sandbox.processes import SandboxProcess, status_of


def test_every_turn_carries_intent_handover_and_satisfaction(flow_server: SandboxProcess) -> None:
    reply = flow_server.turn(flow_server.open(), "I lost my card")
    assert reply.intent.label == "card_lost"
    assert 0.35 < reply.intent.probability <= 1
    assert not reply.intent.out_of_scope
    assert (reply.handover.decided, reply.handover.reason) == (False, "")
    assert 1 <= reply.satisfaction.score <= 5
    assert 0 <= reply.satisfaction.probability_dissatisfied <= 1
    timings = reply.timings
    assert min(timings.intent_ns, timings.handover_ns, timings.satisfaction_ns) > 0
    assert timings.intent_ns + timings.handover_ns + timings.satisfaction_ns < timings.total_ns


@pytest.mark.parametrize(
    ("locale", "text", "answer", "reason"),
    [
        (
            "en",
            "let me talk to a real person please",
            "I am connecting you to a colleague.",
            "intent:contact_human",
        ),
        (
            "",
            "my lawyer will call you about my balance",
            "I am connecting you to a colleague.",
            "word:lawyer",
        ),
        ("zh", "我要投诉", "正在为您转接人工客服。", "word:投诉"),
    ],
)
def test_a_handover_tells_the_user_and_ends_the_session(
    flow_server: SandboxProcess, locale: str, text: str, answer: str, reason: str
) -> None:
    session = flow_server.open(locale=locale)
    flow_server.turn(session, "what is my balance", "t0")
    [chunk] = flow_server.stream(session, text, "t1")
    reply = chunk.reply
    assert chunk.text == reply.text == answer
    assert (reply.handover.decided, reply.handover.reason) == (True, reason)
    assert reply.handover.score >= 0.5
    assert reply.finish_reason == wire.HANDED_OVER
    assert reply.state == wire.SESSION_HANDED_OVER
    assert (list(reply.token_ids), reply.usage.generated_tokens) == ([], 0)
    assert status_of(lambda: flow_server.turn(session, "hello?", "t2")) is grpc.StatusCode.FAILED_PRECONDITION
    assert flow_server.turn(session, text, "t1") == reply
    transcript = flow_server.stub.GetSession(wire.GetSessionRequest(session_id=session))
    assert transcript.state == wire.SESSION_HANDED_OVER
    assert [turn.turn_id for turn in transcript.turns] == ["t0", "t1"]
    assert flow_server.stub.CloseSession(wire.CloseSessionRequest(session_id=session)).state == wire.CLOSED


def test_failed_turns_in_a_row_bring_a_handover(flow_server: SandboxProcess) -> None:
    session = flow_server.open()
    first = flow_server.turn(session, "what is my balance")
    second = flow_server.turn(session, "no, that is wrong, what is my balance")
    third = flow_server.turn(session, "still wrong, what is my balance")
    assert [reply.handover.decided for reply in (first, second, third)] == [False, False, True]
    assert third.handover.reason == "failed_turns:2"


def test_a_good_turn_between_resets_the_count(flow_server: SandboxProcess) -> None:
    session = flow_server.open()
    texts = ("what is my balance", "no, what is my balance", "I lost my card", "no, I lost my card")
    assert not any(flow_server.turn(session, text).handover.decided for text in texts)
