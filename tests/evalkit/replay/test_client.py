"""The gRPC client: domain types at the edge, retries only where safe, times from the planned start."""

import math
import time
from typing import Any, cast

import grpc
import pytest

from evalkit.errors import ExitCode, InputError
from evalkit.replay.client import Sampling, SandboxClient, SandboxError
from evalkit.wire import sandbox_pb2 as pb
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession, RefusalError, serve

SAMPLING = Sampling(max_new_tokens=8)


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.replay.retries._FIRST_WAIT_S", 0.001)


def failing(code: grpc.StatusCode, times: int, retry_after_s: float | None = None) -> FakeSandbox:
    left = [times]

    def answer(session: FakeSession, text: str) -> Answer:
        if left[0] > 0:
            left[0] -= 1
            raise RefusalError(code, retry_after_s=retry_after_s)
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
    sandbox = failing(grpc.StatusCode[code], 2, 0.001 if code == "RESOURCE_EXHAUSTED" else None)
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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"user_text": "x\udcff"}, "user_text: isn't valid Unicode"),
        ({"turn_id": "\ud800"}, "turn_id: isn't valid Unicode"),
        ({"session_id": "\ud800"}, "session_id: isn't valid Unicode"),
        ({"sampling": Sampling(-1)}, "sampling.max_new_tokens: -1 is out of range"),
        ({"sampling": Sampling(2**32)}, "sampling.max_new_tokens: 4294967296 is out of range"),
        ({"sampling": Sampling(8, seed=-1)}, "sampling.seed: -1 is out of range"),
        ({"sampling": Sampling(8, seed=2**64)}, "sampling.seed"),
        ({"sampling": Sampling(8, top_k=-1)}, "sampling.top_k"),
        ({"sampling": Sampling(8, stop=("\udcff",))}, "sampling.stop: isn't valid Unicode"),
        ({"sampling": Sampling(8, stop=cast(Any, "END"))}, "sampling.stop: a tuple of texts is needed"),
        ({"sampling": Sampling(8, stop=cast(Any, None))}, "sampling.stop: a tuple of texts is needed"),
        ({"sampling": Sampling(8, stop=cast(Any, (5,)))}, r"sampling.stop: a text is needed \(got int\)"),
        ({"sampling": Sampling(cast(Any, "8"))}, "sampling.max_new_tokens: a whole number is needed"),
        ({"sampling": Sampling(cast(Any, 8.0))}, "sampling.max_new_tokens: a whole number is needed"),
        ({"sampling": Sampling(8, seed=True)}, r"sampling.seed: a whole number is needed \(got True\)"),
        ({"sampling": Sampling(8, cast(Any, None))}, "sampling.temperature: a number is needed"),
        ({"sampling": Sampling(8, top_p=cast(Any, "1"))}, "sampling.top_p: a number is needed"),
        ({"sampling": None}, r"sampling: a Sampling is needed \(got NoneType\)"),
        ({"user_text": 5}, r"user_text: a text is needed \(got int\)"),
        ({"session_id": None}, "session_id: a text is needed"),
        ({"turn_id": b"t"}, r"turn_id: a text is needed \(got bytes\)"),
        ({"timeout_s": "5"}, "timeout_s: a number is needed"),
        ({"timeout_s": math.inf}, "timeout_s: inf is no finite number"),
        ({"timeout_s": math.nan}, "timeout_s: nan is no finite number"),
    ],
)
def test_what_cannot_be_sent_is_named(fields: dict[str, Any], message: str) -> None:
    turn = {
        "session_id": "s",
        "turn_id": "t",
        "user_text": "hi",
        "sampling": SAMPLING,
        "timeout_s": 1,
    } | fields
    with SandboxClient("127.0.0.1:1") as client:
        for say in (client.turn, client.stream_turn):
            with pytest.raises(InputError, match=message):
                say(**turn)


def test_a_session_whose_texts_cannot_be_sent_is_named() -> None:
    with SandboxClient("127.0.0.1:1") as client:
        with pytest.raises(InputError, match="system_text: isn't valid Unicode"):
            client.open("s", "en", system_text="x\udcff")
        with pytest.raises(InputError, match="locale: a text is needed"):
            client.open("s", cast(Any, None))
        for call in (client.transcript, client.close):
            with pytest.raises(InputError, match="session_id: isn't valid Unicode"):
                call("\ud800")


def test_an_address_or_a_time_of_another_type_is_named() -> None:
    with pytest.raises(InputError, match=r"address: a text is needed \(got int\)"):
        SandboxClient(cast(Any, 7000))
    with (
        SandboxClient("127.0.0.1:1") as client,
        pytest.raises(InputError, match="planned_ns: a whole number"),
    ):
        client.turn("s", "t", "hi", SAMPLING, timeout_s=1, planned_ns=cast(Any, 0.5))


def test_nobody_there() -> None:
    with (
        SandboxClient("127.0.0.1:1") as client,
        pytest.raises(SandboxError, match=r"no answer from 127.0.0.1:1 within"),
    ):
        client.wait_until_ready(0.2)


def test_a_limit_that_will_not_go_away_is_not_retried() -> None:
    """RESOURCE_EXHAUSTED without a time to wait: gRPC itself says it of a message too large."""
    sandbox = failing(grpc.StatusCode.RESOURCE_EXHAUSTED, 1)
    with serve(sandbox) as address, SandboxClient(address) as client:
        client.open("s", "en")
        with pytest.raises(SandboxError, match="RESOURCE_EXHAUSTED"):
            client.turn("s", "t0", "hello", SAMPLING, timeout_s=5)
    assert len(sandbox.requests) == 1


def test_closing_is_repeated() -> None:
    """Of a turn that was cancelled the server may still be busy, and it may be restarting its engine."""

    class Busy(FakeSandbox):
        left = 2

        def CloseSession(self, request: Any, context: Any) -> Any:  # noqa: N802
            self.left -= 1
            if self.left >= 0:
                context.abort(grpc.StatusCode.ABORTED, "another turn is running")
            return super().CloseSession(request, context)

    sandbox = Busy(lambda session, text: Answer("hi"))
    with serve(sandbox) as address, SandboxClient(address) as client:
        client.open("s", "en")
        client.close("s")
    assert sandbox.closed == ["s"]


def test_a_turn_without_an_id_is_never_repeated() -> None:
    sandbox = failing(grpc.StatusCode.UNAVAILABLE, 1)
    with serve(sandbox) as address, SandboxClient(address) as client:
        client.open("s", "en")
        with pytest.raises(SandboxError, match="UNAVAILABLE"):
            client.turn("s", "", "hello", SAMPLING, timeout_s=5)
    assert len(sandbox.requests) == 1


def test_details_of_an_error_are_typed() -> None:
    def full(session: FakeSession, text: str) -> Answer:
        raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_after_s=40)

    with serve(FakeSandbox(full)) as address, SandboxClient(address) as client:
        client.open("s", "en")
        with pytest.raises(SandboxError) as caught:
            client.turn("s", "t0", "hello", SAMPLING, timeout_s=5)
    details = caught.value.details
    assert (details.reason, details.domain, details.retry_after_s) == ("CAPACITY", "tests", 40.0)


def test_reuse_and_tokens_that_the_server_does_not_tell_are_none() -> None:
    class Untold(FakeSandbox):
        def _reply(self, session, request, answer):  # type: ignore[no-untyped-def]
            reply = super()._reply(session, request, answer)
            reply.usage.CopyFrom(pb.Usage(prompt_tokens=7, dropped_turns=1))
            return reply

    with serve(Untold(lambda session, text: Answer("hi"))) as address, SandboxClient(address) as client:
        client.open("s", "en")
        reply = client.turn("s", "t0", "hello", SAMPLING, timeout_s=5)
    assert (reply.prompt_tokens, reply.reused_tokens, reply.generated_tokens) == (7, None, None)
    assert reply.dropped_turns == 1


def test_text_streams_and_the_reply_follows() -> None:
    sandbox = failing(grpc.StatusCode.UNAVAILABLE, 1)
    with serve(sandbox) as address, SandboxClient(address) as client:
        client.open("s", "en")
        with pytest.raises(SandboxError, match="UNAVAILABLE"):
            list(client.stream_turn("s", "t0", "hello", SAMPLING, timeout_s=5))
        stream = client.stream_turn("s", "t0", "hello", SAMPLING, timeout_s=5)
        assert stream.reply is None
        assert list(stream) == ["you", " said", " hello"]
    assert stream.reply is not None and stream.reply.text == "you said hello"


def test_a_stream_can_be_cancelled() -> None:
    def slow(session: FakeSession, text: str) -> Answer:
        time.sleep(0.3)
        return Answer("late")

    with serve(FakeSandbox(slow)) as address, SandboxClient(address) as client:
        client.open("s", "en")
        stream = client.stream_turn("s", "t0", "hello", SAMPLING, timeout_s=5)
        stream.cancel()
        with pytest.raises(SandboxError) as caught:
            list(stream)
    assert caught.value.code == "CANCELLED"
