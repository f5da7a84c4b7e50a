"""S18-S24 on the real server: cancels and deadlines stop the work, harm nobody, and every call ends."""

import time

import grpc

from evalkit.wire import sandbox_pb2 as wire
from tests.sandbox.processes import SandboxProcess, eventually, status_of, turn_request


def idle_again(server: SandboxProcess) -> bool:
    """A turn that waits for nobody: it spends less time waiting in the engine than working."""
    timings = server.turn(server.open(), "hi", max_new_tokens=8).timings
    return bool(timings.queue_ns < timings.prefill_ns + timings.decode_ns)


def test_s18_disconnected_streams_dont_keep_the_engine_busy(server: SandboxProcess) -> None:
    calls = [server.stream(server.open(), f"hello {number}", max_new_tokens=128) for number in range(8)]
    for call in calls:
        next(call)
    for call in calls:
        call.cancel()
    assert eventually(lambda: idle_again(server), 5)


def test_s19_unary_turns_are_cancelled_too(server: SandboxProcess) -> None:
    sessions = [server.open() for _ in range(8)]
    with server.frozen_engine():  # or else a turn may end before its cancel
        calls = [
            server.stub.Turn.future(turn_request(session, "hello", max_new_tokens=128))
            for session in sessions
        ]
        assert eventually(lambda: all(map(server.is_busy, sessions)))
        for call in calls:
            call.cancel()
        assert eventually(lambda: not any(map(server.is_busy, sessions)), 5)
    assert eventually(lambda: idle_again(server), 5)
    for session in sessions:
        assert len(server.stub.GetSession(wire.GetSessionRequest(session_id=session)).turns) == 0


def test_s20_cancelling_at_any_moment_never_ends_the_engine(server: SandboxProcess) -> None:
    engine = server.engine_pid()
    for count in range(25):
        call = server.stream(server.open(), "hello", max_new_tokens=12)
        for _ in range(count % 14):
            next(call, None)
        call.cancel()
        call.cancel()
    assert server.turn(server.open(), "hello").usage.generated_tokens == 12
    assert server.engine_pid() == engine


def test_s21_after_cancels_a_session_equals_a_cold_run(server: SandboxProcess) -> None:
    cold = list(server.turn(server.open(), "hello, my name is Maria").token_ids)
    for seed in range(5):
        call = server.stream(
            server.open(), "hello, my name is Maria", max_new_tokens=64, temperature=1.0, seed=seed
        )
        next(call)
        call.cancel()
        assert list(server.turn(server.open(), "hello, my name is Maria").token_ids) == cold


def test_s22_timed_out_turns_dont_use_up_the_server(server: SandboxProcess) -> None:
    for _ in range(80):  # more than there may be sessions
        late = server.stream(server.open(), "hello", timeout=0.002, max_new_tokens=128)
        assert status_of(lambda: list(late)) is grpc.StatusCode.DEADLINE_EXCEEDED  # noqa: B023
    assert server.turn(server.open(), "hello").usage.generated_tokens == 12


def test_s24_every_call_ends(server: SandboxProcess) -> None:
    """A reader that stops reading, then cancels: the handler's wait for it ends as well."""
    session = server.open()
    call = server.stream(session, "hello", max_new_tokens=128)
    time.sleep(0.3)
    call.cancel()
    assert status_of(lambda: list(call)) is grpc.StatusCode.CANCELLED
    assert eventually(lambda: status_of(lambda: server.turn(session, "hello")) is grpc.StatusCode.OK, 5)
