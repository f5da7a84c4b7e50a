"""The gRPC client: domain types at the edge, retries only where safe, times from the planned start."""

import time

import grpc
import pytest

from evalkit.errors import ExitCode
from evalkit.replay.client import Sampling, SandboxClient, SandboxError
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession, RefusalError, serve

SAMPLING = Sampling(max_new_tokens=8)


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.replay.client._RETRY_WAITS_S", (0.01, 0.01, 0.01))


def failing(code: grpc.StatusCode, times: int) -> FakeSandbox:
    left = [times]

    def answer(session: FakeSession, text: str) -> Answer:
        if left[0] > 0:
            left[0] -= 1
            raise RefusalError(code)
        return Answer(f"you said {text}", intent="greeting", handover=False, satisfaction=3.5)

    return FakeSandbox(answer)


def test_a_turn_becomes_a_domain_reply() -> None:
    with serve(failing(grpc.StatusCode.UNAVAILABLE, 0)) as address, SandboxClient(address) as client:
        client.wait_until_ready(5)
        assert client.is_serving()
        info = client.describe()
        assert (info.engine, info.max_sessions) == ("fake", 8)
        client.open("s", "zh")
        reply = client.turn("s", "t0", "hello", SAMPLING, timeout_s=5)
        client.close("s")
    assert reply.text == "you said hello" and reply.token_ids == (3, 4, 5)
    assert (reply.intent, reply.handover, reply.satisfaction) == ("greeting", False, 3.5)
    assert (reply.finish_reason, reply.state, reply.model_ns) == ("END", "OPEN", 2000)


def test_without_a_flow_intent_handover_and_satisfaction_are_unset() -> None:
    with serve(FakeSandbox(lambda session, text: Answer("hi"))) as address, SandboxClient(address) as client:
        client.open("s", "en")
        reply = client.turn("s", "t0", "hello", SAMPLING, timeout_s=5)
    assert (reply.intent, reply.handover, reply.satisfaction) == (None, None, None)


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"])
def test_a_passing_fault_is_retried_with_the_same_turn_id(code: str) -> None:
    sandbox = failing(grpc.StatusCode[code], 2)
    with serve(sandbox) as address, SandboxClient(address) as client:
        client.open("s", "en")
        assert client.turn("s", "t0", "hello", SAMPLING, timeout_s=5).text == "you said hello"
    assert [request.turn_id for request in sandbox.requests] == ["t0"] * 3
    assert sandbox.generations == 1


@pytest.mark.parametrize("code", ["FAILED_PRECONDITION", "INVALID_ARGUMENT", "INTERNAL", "NOT_FOUND"])
def test_a_lasting_fault_is_not_retried(code: str) -> None:
    sandbox = failing(grpc.StatusCode[code], 1)
    with serve(sandbox) as address, SandboxClient(address) as client:
        client.open("s", "en")
        with pytest.raises(SandboxError) as caught:
            client.turn("s", "t0", "hello", SAMPLING, timeout_s=5)
    assert caught.value.code == code and caught.value.exit_code == ExitCode.INCOMPLETE
    assert len(sandbox.requests) == 1


def test_retries_end() -> None:
    sandbox = failing(grpc.StatusCode.UNAVAILABLE, 99)
    with serve(sandbox) as address, SandboxClient(address) as client:
        client.open("s", "en")
        with pytest.raises(SandboxError, match="UNAVAILABLE: on purpose"):
            client.turn("s", "t0", "hello", SAMPLING, timeout_s=5)
    assert len(sandbox.requests) == 4


def test_a_deadline_ends_a_turn() -> None:
    def slow(session: FakeSession, text: str) -> Answer:
        time.sleep(0.5)
        return Answer("late")

    with serve(FakeSandbox(slow)) as address, SandboxClient(address) as client:
        client.open("s", "en")
        with pytest.raises(SandboxError) as caught:
            client.turn("s", "t0", "hello", SAMPLING, timeout_s=0.1)
    assert caught.value.code == "DEADLINE_EXCEEDED"


def test_a_session_id_that_others_hold_is_refused() -> None:
    with serve(failing(grpc.StatusCode.UNAVAILABLE, 0)) as address, SandboxClient(address) as client:
        client.open("s", "en")
        with pytest.raises(SandboxError, match="ALREADY_EXISTS"):
            client.open("s", "en")


def test_nobody_there() -> None:
    with (
        SandboxClient("127.0.0.1:1") as client,
        pytest.raises(SandboxError, match=r"no answer from 127.0.0.1:1 within"),
    ):
        client.wait_until_ready(0.2)
