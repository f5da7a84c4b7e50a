"""Faults from outside, each with its stated status; afterwards slots are free and tokens are those of a cold run."""

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from evalkit.wire import sandbox_pb2 as wire
from tests.sandbox.faults.watch import check_unharmed, cold_tokens, gauges
from tests.sandbox.processes import (
    SERVICE,
    SERVING,
    SandboxProcess,
    eventually,
    freeze,
    kill,
    serving,
    status_of,
    turn_request,
)

Code = grpc.StatusCode

STREAMING_CLIENT = """
import sys, grpc
from evalkit.wire import sandbox_pb2 as wire, sandbox_pb2_grpc
stub = sandbox_pb2_grpc.SandboxStub(grpc.insecure_channel(sys.argv[1]))
calls = []
for session in sys.argv[2:]:
    turn = wire.TurnRequest(session_id=session, turn_id="t", user_text="hello", sampling=wire.Sampling(max_new_tokens=128))
    calls.append(stub.StreamTurn(turn))
    next(calls[-1])
print("streaming", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def faulted(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    with serving(tiny_bundle, tmp_path_factory.mktemp("faults"), "--metrics=127.0.0.1:0") as process:
        yield process


@pytest.fixture(scope="module")
def expected(faulted: SandboxProcess) -> list[int]:
    return cold_tokens(faulted)


def cancel_at_random(server: SandboxProcess, count: int) -> None:
    """Cancel turns after a random number of pieces or a random time, streamed and unary, some of them twice."""
    chance = random.Random(6)
    session = server.open()
    for number in range(count):
        request = turn_request(session, "hello", f"turn-{number}", max_new_tokens=16)
        if chance.random() < 0.3:
            unary = server.stub.Turn.future(request, timeout=60)
            time.sleep(chance.random() * 0.03)
            unary.cancel()
        else:
            stream = server.stub.StreamTurn(request, timeout=60)
            with contextlib.suppress(grpc.RpcError):  # ABORTED while the turn before it still ends
                for _ in range(chance.randrange(15)):
                    if next(stream, None) is None:
                        break
            stream.cancel()
            if chance.random() < 0.2:
                stream.cancel()
        if number % 3 == 2:
            session = server.open()


def test_s20_cancels_at_random_tokens_leave_no_trace(faulted: SandboxProcess, expected: list[int]) -> None:
    engine = faulted.engine_pid()
    cancel_at_random(faulted, 60)
    check_unharmed(faulted, expected)
    assert faulted.engine_pid() == engine


@pytest.mark.slow
def test_s20_a_thousand_cancels_at_random_tokens(faulted: SandboxProcess, expected: list[int]) -> None:
    engine = faulted.engine_pid()
    cancel_at_random(faulted, 1000)
    check_unharmed(faulted, expected)
    assert faulted.engine_pid() == engine


def test_s12_clients_killed_in_mid_stream(faulted: SandboxProcess, expected: list[int]) -> None:
    sessions = [faulted.open() for _ in range(6)]
    command = [sys.executable, "-c", STREAMING_CLIENT, faulted.address, *sessions]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "streaming\n"
        client.kill()
    check_unharmed(faulted, expected)
    for session in sessions:
        assert eventually(lambda s=session: status_of(lambda: faulted.turn(s, "hi", "t2")) is Code.OK, 10)  # type: ignore[misc]


def test_s22_a_deadline_of_one_millisecond(faulted: SandboxProcess, expected: list[int]) -> None:
    """The client sees DEADLINE_EXCEEDED. A turn that was stored before the server heard of it stays stored."""
    for number in range(60):
        request = turn_request(faulted.open(), "hello", max_new_tokens=128)
        if number % 2:
            status = status_of(lambda: faulted.stub.Turn(request, timeout=0.001))  # noqa: B023
        else:
            status = status_of(lambda: list(faulted.stub.StreamTurn(request, timeout=0.001)))  # noqa: B023
        assert status is Code.DEADLINE_EXCEEDED
    check_unharmed(faulted, expected)


def test_s25_a_message_of_5_mib(faulted: SandboxProcess, expected: list[int]) -> None:
    session = faulted.open()
    request = turn_request(session, "x" * (5 << 20))
    assert status_of(lambda: faulted.stub.Turn(request, timeout=30)) is Code.RESOURCE_EXHAUSTED
    assert status_of(lambda: list(faulted.stub.StreamTurn(request, timeout=30))) is Code.RESOURCE_EXHAUSTED
    check_unharmed(faulted, expected)


def check_malformed(server: SandboxProcess) -> None:
    for method in ("Turn", "OpenSession"):
        raw = server.channel.unary_unary(f"/{SERVICE}/{method}", request_serializer=bytes)
        for blob in (b"\xff\xff\xff\xff", b"\x0a\xff", b"\x0a\x02\xc3\x28"):
            assert status_of(lambda: raw(blob, timeout=10)) is Code.INVALID_ARGUMENT  # noqa: B023
    raw_stream = server.channel.unary_stream(f"/{SERVICE}/StreamTurn", request_serializer=bytes)
    assert status_of(lambda: list(raw_stream(b"\xff\xff", timeout=10))) is Code.INVALID_ARGUMENT


def test_malformed_protobuf_is_an_invalid_argument_of_that_call_only(
    faulted: SandboxProcess, expected: list[int]
) -> None:
    check_malformed(faulted)
    check_unharmed(faulted, expected)


def test_malformed_protobuf_where_protobuf_runs_in_python(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says UnicodeDecodeError of a text that isn't UTF-8; MindSpore puts this choice into the environment."""
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    with serving(tiny_bundle, tmp_path) as server:
        check_malformed(server)


def test_s14_duplicate_turn_ids_generate_once(faulted: SandboxProcess, expected: list[int]) -> None:
    session = faulted.open()
    before = gauges(faulted)["sandbox_generation_tokens_total"]
    outcomes: list[object] = []

    def ask() -> None:
        try:
            outcomes.append(faulted.turn(session, "hello", "same", max_new_tokens=32))
        except grpc.RpcError as error:
            outcomes.append(error.code())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    replies = [outcome for outcome in outcomes if isinstance(outcome, wire.TurnReply)]
    assert len(replies) >= 1
    assert all(reply == replies[0] for reply in replies)
    assert {outcome for outcome in outcomes if not isinstance(outcome, wire.TurnReply)} <= {Code.ABORTED}
    assert faulted.turn(session, "hello", "same", max_new_tokens=32) == replies[0]
    assert gauges(faulted)["sandbox_generation_tokens_total"] - before == 32
    check_unharmed(faulted, expected)


def test_s13_two_clients_on_one_session(faulted: SandboxProcess, expected: list[int]) -> None:
    """The second is ABORTED; a close meanwhile too; the first is none the worse for it."""
    session = faulted.open()
    with faulted.frozen_engine(), grpc.insecure_channel(faulted.address) as channel:
        running = faulted.begin(session, "hello", "t1", max_new_tokens=128)
        assert eventually(lambda: gauges(faulted)["sandbox_num_requests_running"] == 1, 10)
        other = type(faulted.stub)(channel)
        assert (
            status_of(lambda: other.Turn(turn_request(session, "me too", "t2"), timeout=10)) is Code.ABORTED
        )
        close = wire.CloseSessionRequest(session_id=session)
        assert status_of(lambda: other.CloseSession(close, timeout=10)) is Code.ABORTED
    assert list(running)[-1].reply.usage.generated_tokens == 128
    check_unharmed(faulted, expected)


def test_s24_a_slow_reader_holds_up_nobody(faulted: SandboxProcess, expected: list[int]) -> None:
    """It reads one piece and stops; others are served; its turn ends when it goes."""
    idle_readers = [
        faulted.stream(faulted.open(), "hello", max_new_tokens=128, timeout=120) for _ in range(4)
    ]
    first = [next(call) for call in idle_readers]  # on a busy machine it may hold the whole turn
    assert faulted.turn(faulted.open(), "hi", max_new_tokens=8).usage.generated_tokens == 8
    assert faulted.status() == SERVING
    for call in idle_readers[:2]:
        call.cancel()
    for piece, call in zip(first[2:], idle_readers[2:], strict=True):
        assert [piece, *call][-1].reply.usage.generated_tokens == 128
    check_unharmed(faulted, expected)


def test_a_killed_engine_is_unavailable_for_the_turns_in_flight_and_counted(
    faulted: SandboxProcess, expected: list[int]
) -> None:
    sessions = [faulted.open() for _ in range(6)]
    before = gauges(faulted)['sandbox_engine_restarts_total{reason="died"}']
    freeze(faulted.engine_pid())
    calls = [faulted.stream(session, "hello", max_new_tokens=128) for session in sessions]
    assert eventually(lambda: gauges(faulted)["sandbox_num_requests_running"] == len(calls), 10)
    kill(faulted.engine_pid())
    assert [status_of(lambda: list(call)) for call in calls] == [Code.UNAVAILABLE] * len(calls)  # noqa: B023
    assert eventually(lambda: faulted.status() == SERVING, 60)
    assert gauges(faulted)['sandbox_engine_restarts_total{reason="died"}'] == before + 1
    check_unharmed(faulted, expected)


def test_s26_sigterm_under_load(tiny_bundle: Path, tmp_path: Path) -> None:
    """Turns in flight end with a reply or UNAVAILABLE, new ones are UNAVAILABLE, the exit code is 0."""
    with serving(tiny_bundle, tmp_path, "--grace-s", "20") as server:
        ended: Counter[str] = Counter()
        stop = threading.Event()

        def talk() -> None:
            number = 0
            session = server.open()
            while not stop.is_set():
                number += 1
                try:
                    reply = server.turn(session, f"hello {number}", max_new_tokens=8)
                    ended["ok" if reply.usage.generated_tokens == 8 else "short"] += 1
                except grpc.RpcError as error:
                    ended[error.code().name] += 1
                    stop.set()

        threads = [threading.Thread(target=talk) for _ in range(8)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: ended["ok"] >= 8, 30)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(30)
        assert server.process.wait(30) == 0
        assert set(ended) <= {"ok", "UNAVAILABLE"}
        assert "Traceback" not in server.log.read_text()


def test_s26_callers_that_repeat_what_was_refused_never_meet_a_bare_cancelled(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    with serving(tiny_bundle, tmp_path) as server:
        ended: Counter[str] = Counter()
        stop = threading.Event()

        def talk() -> None:
            session = server.open()
            while not stop.is_set():
                ended[status_of(lambda: server.turn(session, "hello", max_new_tokens=8)).name] += 1

        threads = [threading.Thread(target=talk) for _ in range(16)]
        for thread in threads:
            thread.start()
        try:
            assert eventually(lambda: ended["OK"] >= 16, 30)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(30) == 0
        finally:
            stop.set()  # or else they go on for ever, at every later test's cost
        for thread in threads:
            thread.join(30)
        assert set(ended) == {"OK", "UNAVAILABLE"}
