"""The service's statuses and replies, on the real server process."""

import threading
from contextlib import ExitStack
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from evalkit.bundle import load_bundle
from evalkit.wire import sandbox_pb2 as wire
from sandbox.engine.kv_cache import BLOCK
from tests.sandbox.processes import SERVICE, SERVING, SandboxProcess, eventually, status_of, turn_request


def test_ready_line_and_describe_name_the_model(server: SandboxProcess, tiny_bundle) -> None:  # type: ignore[no-untyped-def]
    bundle = load_bundle(tiny_bundle)
    assert set(server.ready) == {"address", "model_digest", "metrics"}
    assert server.ready["address"].startswith("127.0.0.1:")
    assert server.ready["metrics"] is None
    described = server.stub.Describe(wire.DescribeRequest())
    assert described.model_digest == server.ready["model_digest"] == bundle.model_digest
    assert described.engine == "onnx"
    assert described.flow_digest == ""
    assert (described.max_sessions, described.max_context_tokens, described.max_turn_tokens) == (64, 256, 128)


def test_describe_gives_the_digest_of_the_flow(flow_server: SandboxProcess, flow_folder) -> None:  # type: ignore[no-untyped-def]
    from evalkit.scenario.flow import load_flow

    assert flow_server.stub.Describe(wire.DescribeRequest()).flow_digest == load_flow(flow_folder).digest


def test_health_knows_the_server_and_the_service(server: SandboxProcess) -> None:
    assert server.status("") == server.status(SERVICE) == SERVING
    unknown = health_pb2.HealthCheckRequest(service="other")
    assert status_of(lambda: server.health.Check(unknown, timeout=5)) is grpc.StatusCode.NOT_FOUND


def test_unary_and_streamed_turns_give_the_same_reply(server: SandboxProcess) -> None:
    unary = server.turn(server.open(), "hello, my name is Maria", "t1")
    chunks = list(server.stream(server.open(), "hello, my name is Maria", "t1"))
    reply = chunks[-1].reply
    assert [chunk.HasField("reply") for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert "".join(chunk.text for chunk in chunks) == reply.text == unary.text
    assert (
        [token for chunk in chunks for token in chunk.token_ids]
        == list(reply.token_ids)
        == list(unary.token_ids)
    )
    assert reply.finish_reason == wire.LENGTH
    assert reply.usage.generated_tokens == 12
    assert reply.state == wire.OPEN
    assert not any(reply.HasField(part) for part in ("intent", "handover", "satisfaction"))


def test_a_system_text_that_leaves_no_room_is_refused_where_it_is_sent(server: SandboxProcess) -> None:
    for text in ("card " * 1000, "卡" * 300):
        with pytest.raises(grpc.RpcError) as refused:
            server.open(system_text=text)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "system_text: " in refused.value.details() and "leave no room" in refused.value.details()
    server.turn(server.open(system_text="card " * 20), "hi", max_new_tokens=1)


def test_timings_add_up(server: SandboxProcess) -> None:
    timings = server.turn(server.open(), "hello").timings
    engine_ns = timings.queue_ns + timings.prefill_ns + timings.decode_ns
    assert 0 < timings.prefill_ns < timings.first_token_ns < timings.total_ns
    assert 0 < timings.decode_ns < engine_ns <= timings.total_ns


def test_the_context_is_carried_and_its_prefix_reused(server: SandboxProcess) -> None:
    # Like no other system text of these tests: whoever else has it open would have computed its first blocks.
    session = server.open(system_text="holds 50 euro, my account and my card, " * 2)
    first = server.turn(session, "hello")
    second = server.turn(session, "my card is lost")
    assert (first.turn_index, second.turn_index) == (0, 1)
    assert first.usage.reused_tokens == 0
    # Whole blocks are kept: at least those of the first prompt, never the reply's last token, which was never fed.
    computed = first.usage.prompt_tokens + first.usage.generated_tokens - 1
    assert first.usage.prompt_tokens // BLOCK * BLOCK <= second.usage.reused_tokens <= computed
    assert second.usage.reused_tokens % BLOCK == 0 < second.usage.reused_tokens


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"session": ""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"session": "nobody"}, grpc.StatusCode.NOT_FOUND),
        ({"text": ""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"text": " \n\t"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"text": "x" * 9000}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"text": "卡" * 3000}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"text": "too long for the context " * 60}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"turn_id": "x" * 129}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"turn_id": "a\nb"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"max_new_tokens": 129}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"temperature": -0.1}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"temperature": float("nan")}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"temperature": float("inf")}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"top_p": 1.5}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"top_p": -0.5}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"stop": [""]}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"stop": ["x"] * 9}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"stop": ["x" * 65]}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_bad_turns_have_their_status_and_leave_no_trace(
    server: SandboxProcess, fields: dict[str, object], status: grpc.StatusCode
) -> None:
    session = server.open()
    asked: dict[str, Any] = {"session": session, "text": "hello", **fields}
    assert status_of(lambda: server.turn(**asked)) is status
    assert status_of(lambda: list(server.stream(**asked))) is status
    assert len(server.stub.GetSession(wire.GetSessionRequest(session_id=session)).turns) == 0
    assert server.turn(session, "hello").turn_index == 0


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"session_id": "x" * 129}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"session_id": "a\x00b"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"tenant": "x" * 129}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"system_text": "x" * 17000}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"locale": "fr"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"locale": "zh"}, grpc.StatusCode.OK),
    ],
)
def test_bad_sessions_arent_opened(
    server: SandboxProcess, fields: dict[str, str], status: grpc.StatusCode
) -> None:
    assert status_of(lambda: server.open(**fields)) is status


def test_a_session_id_is_taken_once(server: SandboxProcess) -> None:
    assert server.open(session_id="mine") == "mine"
    assert status_of(lambda: server.open(session_id="mine")) is grpc.StatusCode.ALREADY_EXISTS
    server.stub.CloseSession(wire.CloseSessionRequest(session_id="mine"))
    assert status_of(lambda: server.open(session_id="mine")) is grpc.StatusCode.ALREADY_EXISTS


def test_closing_is_idempotent_and_final_but_the_transcript_stays(server: SandboxProcess) -> None:
    session = server.open()
    reply = server.turn(session, "hello", "t1")
    for _ in range(2):
        closed = server.stub.CloseSession(wire.CloseSessionRequest(session_id=session))
        assert (closed.state, closed.turns) == (wire.CLOSED, 1)
    assert status_of(lambda: server.turn(session, "hello", "t2")) is grpc.StatusCode.FAILED_PRECONDITION
    transcript = server.stub.GetSession(wire.GetSessionRequest(session_id=session))
    assert transcript.state == wire.CLOSED
    assert transcript.model_digest == server.ready["model_digest"]
    assert [(turn.turn_id, turn.user_text, turn.reply) for turn in transcript.turns] == [
        ("t1", "hello", reply)
    ]


def test_a_repeated_turn_id_returns_the_stored_reply(server: SandboxProcess) -> None:
    session = server.open()
    # On the wire a value left out and its default written out are different messages, but the same request.
    first = server.turn(session, "hello", "t1", temperature=0.3, seed=1)
    [chunk] = server.stream(session, "hello", "t1", temperature=0.3, seed=1, top_p=1.0)
    assert chunk.reply == first
    assert (chunk.text, list(chunk.token_ids)) == (first.text, list(first.token_ids))
    server.stub.CloseSession(wire.CloseSessionRequest(session_id=session))
    assert server.turn(session, "hello", "t1", temperature=0.3, seed=1) == first


def test_turns_without_an_id_are_never_taken_for_one_another(server: SandboxProcess) -> None:
    session = server.open()
    replies = [server.turn(session, "hello") for _ in range(2)]
    assert [reply.turn_index for reply in replies] == [0, 1]
    assert replies[0].turn_id != replies[1].turn_id


def test_a_second_turn_at_the_same_time_is_aborted(server: SandboxProcess) -> None:
    session = server.open()
    with server.frozen_engine():
        running = server.begin(session, "hello", "t1", max_new_tokens=128)
        assert status_of(lambda: server.turn(session, "me too", "t2")) is grpc.StatusCode.ABORTED
        assert status_of(lambda: server.turn(session, "hello", "t1")) is grpc.StatusCode.ABORTED
        close = wire.CloseSessionRequest(session_id=session)
        assert status_of(lambda: server.stub.CloseSession(close)) is grpc.StatusCode.ABORTED
    assert list(running)[-1].reply.usage.generated_tokens == 128
    assert server.turn(session, "me too", "t2").turn_index == 1


def test_parallel_sessions_dont_mix(server: SandboxProcess) -> None:
    texts = [f"hello {number}" for number in range(6)]
    alone = [list(server.turn(server.open(), text).token_ids) for text in texts]
    together: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        together[number] = list(server.turn(server.open(), texts[number]).token_ids)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[number] for number in range(len(texts))] == alone


@pytest.mark.parametrize("streamed", [False, True])
def test_a_cancelled_turn_frees_the_session_and_leaves_no_trace(
    server: SandboxProcess, streamed: bool
) -> None:
    """The engine stands still meanwhile, or else the turn might end before the cancel."""
    with ExitStack() as frozen:
        if streamed:
            session, call = frozen.enter_context(server.frozen_in_mid_reply("hello", "t1"))
        else:
            session = server.open()
            frozen.enter_context(server.frozen_engine())
            call = server.stub.Turn.future(turn_request(session, "hello", "t1", max_new_tokens=128))
            assert eventually(lambda: server.is_busy(session))
        call.cancel()
        assert eventually(lambda: not server.is_busy(session), 5)
    retry = server.turn(session, "hello", "t1")
    assert retry.turn_index == 0
    assert list(retry.token_ids) == list(server.turn(server.open(), "hello").token_ids)


def test_s20_turns_cancelled_on_arrival_are_never_stored(server: SandboxProcess) -> None:
    sessions = [server.open() for _ in range(30)]
    with server.frozen_engine():  # or else a turn may end before its cancel
        for session in sessions:
            server.stub.Turn.future(turn_request(session, "x", "t", max_new_tokens=128)).cancel()
        server.status()
    for session in sessions:
        close = wire.CloseSessionRequest(session_id=session)
        # Until the cancel has reached the engine the session is busy.
        assert eventually(partial(_closes, server, close))
        assert not server.stub.GetSession(wire.GetSessionRequest(session_id=session)).turns


def _closes(server: SandboxProcess, close: wire.CloseSessionRequest) -> bool:
    return status_of(lambda: server.stub.CloseSession(close)) is grpc.StatusCode.OK


def test_a_deadline_ends_the_turn_and_frees_the_session(server: SandboxProcess) -> None:
    session = server.open()
    # Of another session: its first turn may still hold this one, and the refusal come before the deadline.
    request = turn_request(server.open(), "hello", "t1", max_new_tokens=128)
    with server.frozen_engine():  # or else the turn may end before its deadline
        late = server.stream(session, "hello", "t1", timeout=0.05, max_new_tokens=128)
        assert status_of(lambda: list(late)) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert (
            status_of(lambda: server.stub.Turn(request, timeout=0.001)) is grpc.StatusCode.DEADLINE_EXCEEDED
        )
    assert eventually(lambda: status_of(lambda: server.turn(session, "hello", "t2")) is grpc.StatusCode.OK, 5)


def test_a_message_over_the_limit_is_refused(server: SandboxProcess) -> None:
    session = server.open()
    status = status_of(lambda: server.turn(session, "x" * (5 << 20)))
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.turn(session, "hello").turn_index == 0


def test_garbage_on_the_wire_is_an_error_of_that_call_only(server: SandboxProcess) -> None:
    raw = server.channel.unary_unary(
        f"/{SERVICE}/Turn", request_serializer=bytes, response_deserializer=wire.TurnReply.FromString
    )
    assert status_of(lambda: raw(b"\xff\xff\xff\xff", timeout=10)) is not grpc.StatusCode.OK
    assert server.turn(server.open(), "hello").turn_index == 0


def test_a_long_conversation_reports_the_turns_it_drops(server: SandboxProcess) -> None:
    session = server.open(system_text="be kind")
    dropped = [server.turn(session, f"hello number {turn}", max_new_tokens=32).usage for turn in range(9)]
    assert dropped[0].dropped_turns == 0
    assert dropped[-1].dropped_turns > 0
    assert [usage.dropped_turns for usage in dropped] == sorted(usage.dropped_turns for usage in dropped)
    assert all(usage.prompt_tokens + 32 <= 256 for usage in dropped)


def test_neither_user_text_nor_system_text_reaches_the_log(server: SandboxProcess) -> None:
    secret = "my pin is 7319 swordfish"
    session = server.open(system_text=secret, session_id="logged-session")
    server.turn(session, secret)
    status_of(lambda: server.turn(session, secret + "x" * 9000))
    assert "swordfish" not in server.log.read_text()
