"""S8, S13-S17 as the client meets them: one turn at a time, safe repeats, limits shown, sessions carried."""

import grpc
import pytest

from evalkit.replay.client import Sampling, SandboxClient
from evalkit.replay.runner import run_dialogues
from evalkit.replay.trial import ReplaySettings
from evalkit.runs.records import TurnRecord
from evalkit.scenario.dialogue import Dialogue
from evalkit.wire import sandbox_pb2 as pb
from tests.support.dialogues import RECALL, dialogue
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession, RefusalError, serve


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.replay.retries._FIRST_WAIT_S", 0.001)


def replay(sandbox: FakeSandbox, talk: Dialogue) -> list[TurnRecord]:
    records: list[TurnRecord] = []
    with serve(sandbox) as address, SandboxClient(address) as client:
        run_dialogues([talk], ReplaySettings(1), client, records.extend)
    return records


def test_s8_faults_of_the_model_are_failures_not_missing() -> None:
    def handed_over(session: FakeSession, text: str) -> Answer:
        raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, "the session was handed over")

    records = replay(FakeSandbox(handed_over), dialogue(RECALL))
    assert {record.status for record in records} == {"model_fault"}


def test_s13_a_turn_that_another_one_holds_up_is_asked_again() -> None:
    busy = [True]

    def aborted_once(session: FakeSession, text: str) -> Answer:
        if busy.pop() if busy else False:
            raise RefusalError(grpc.StatusCode.ABORTED, "another turn of this session is running")
        return Answer("hello " + " ".join([*session.texts, text]))

    records = replay(FakeSandbox(aborted_once), dialogue(RECALL))
    assert [record.status for record in records] == ["ok"] * 3


def test_s14_a_repeat_after_a_lost_reply_adds_no_user_turn() -> None:
    class LosesTheFirstReply(FakeSandbox):
        lost = False

        def StreamTurn(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
            chunks = list(super().StreamTurn(request, context))
            if not self.lost:
                self.lost = True
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost after the work was done")
            yield from chunks

    sandbox = LosesTheFirstReply(lambda session, text: Answer("hello " + " ".join([*session.texts, text])))
    records = replay(sandbox, dialogue(RECALL))
    (session,) = sandbox.sessions.values()
    assert session.texts == [record.user_text for record in records]
    assert sandbox.generations == 3 and len(sandbox.requests) == 4
    assert len({request.turn_id for request in sandbox.requests}) == 3


def test_s15_sessions_are_closed_whatever_happened() -> None:
    def dies(session: FakeSession, text: str) -> Answer:
        raise RefusalError(grpc.StatusCode.INTERNAL, "boom")

    sandbox = FakeSandbox(dies)
    replay(sandbox, dialogue(RECALL))
    assert sandbox.closed == list(sandbox.sessions)


def test_s16_turns_dropped_from_the_context_are_shown() -> None:
    class Drops(FakeSandbox):
        def _reply(self, session: FakeSession, request: pb.TurnRequest, answer: Answer) -> pb.TurnReply:
            reply = super()._reply(session, request, answer)
            reply.usage.dropped_turns = 2 if len(session.texts) == 3 else 0
            return reply

    records = replay(Drops(lambda session, text: Answer("hello")), dialogue(RECALL))
    assert [record.reason for record in records] == [
        None,
        None,
        "2 earlier turns no longer fit into the context",
    ]


def test_s17_the_session_is_carried_and_the_recall_probe_sees_it() -> None:
    def forgetful(session: FakeSession, text: str) -> Answer:
        return Answer("hello " + text)

    def remembering(session: FakeSession, text: str) -> Answer:
        return Answer("hello " + " ".join([*session.texts, text]))

    def probes(sandbox: FakeSandbox) -> list[bool]:
        return [item.passed for item in replay(sandbox, dialogue(RECALL))[-1].expectations]

    assert probes(FakeSandbox(remembering)) == [True, True]
    assert probes(FakeSandbox(forgetful)) == [False, False]


def test_s17_two_sessions_do_not_meet() -> None:
    sandbox = FakeSandbox(lambda session, text: Answer(" ".join([*session.texts, text])))
    with serve(sandbox) as address, SandboxClient(address) as client:
        for name in ("a", "b"):
            client.open(name, "en")
        said = [
            client.turn(name, f"{name}{number}", f"{name}{number}", Sampling(8), timeout_s=5).text
            for number in range(2)
            for name in ("a", "b")
        ]
    assert said == ["a0", "b0", "a0 a1", "b0 b1"]
