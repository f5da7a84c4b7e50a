"""S11-S16 on the real server: slots, dead clients, concurrent turns, retries, eviction, dropped context."""

import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest

from evalkit.wire import sandbox_pb2 as wire
from tests.sandbox.processes import SandboxProcess, eventually, serving, status_of
from tests.sandbox.test_status import parts_of

CLIENT = """
import sys, grpc
from evalkit.wire import sandbox_pb2 as wire, sandbox_pb2_grpc
stub = sandbox_pb2_grpc.SandboxStub(grpc.insecure_channel(sys.argv[1]))
turn = wire.TurnRequest(session_id=sys.argv[2], user_text="hello", sampling=wire.Sampling(max_new_tokens=128))
next(stub.StreamTurn(turn))
print("streaming", flush=True)
sys.stdin.read()
"""


def test_s11_a_cancelled_turn_gives_its_slot_back_once(server: SandboxProcess) -> None:
    """Cancelled, then two sessions at once: they never share what the cancelled one held."""
    alone = [list(server.turn(server.open(), text).token_ids) for text in ("hello one", "hello two")]
    call = server.stream(server.open(), "hello", max_new_tokens=128)
    next(call)
    call.cancel()
    call.cancel()
    streams = [server.stream(server.open(), text) for text in ("hello one", "hello two")]
    assert [list(list(stream)[-1].reply.token_ids) for stream in streams] == alone


def test_s12_a_dead_client_doesnt_keep_its_session_busy(server: SandboxProcess) -> None:
    session = server.open()
    command = [sys.executable, "-c", CLIENT, server.ready["address"], session]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "streaming\n"
        client.kill()
    assert eventually(lambda: status_of(lambda: server.turn(session, "hello")) is grpc.StatusCode.OK, 10)


def test_s13_of_turns_sent_together_one_runs_and_no_history_is_lost(server: SandboxProcess) -> None:
    session = server.open()
    statuses: list[grpc.StatusCode] = []

    def ask(number: int) -> None:
        statuses.append(
            status_of(lambda: server.turn(session, f"hello {number}", f"t{number}", max_new_tokens=64))
        )

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {grpc.StatusCode.OK, grpc.StatusCode.ABORTED}
    transcript = server.stub.GetSession(wire.GetSessionRequest(session_id=session))
    assert len(transcript.turns) == statuses.count(grpc.StatusCode.OK) >= 1
    assert [turn.reply.turn_index for turn in transcript.turns] == list(range(len(transcript.turns)))


def test_s14_a_retry_after_a_timeout_adds_the_turn_once(server: SandboxProcess) -> None:
    session = server.open()
    with server.frozen_engine():
        late = server.stream(session, "hello", "t1", timeout=0.3, max_new_tokens=128)
        assert status_of(lambda: list(late)) is grpc.StatusCode.DEADLINE_EXCEEDED

    def again() -> grpc.StatusCode:
        return status_of(lambda: server.turn(session, "hello", "t1", max_new_tokens=128))

    assert eventually(lambda: again() is grpc.StatusCode.OK, 5)
    assert again() is grpc.StatusCode.OK
    transcript = server.stub.GetSession(wire.GetSessionRequest(session_id=session))
    assert [turn.turn_id for turn in transcript.turns] == ["t1"]


def test_s14_a_turn_id_of_another_request_is_refused(server: SandboxProcess) -> None:
    """Nobody takes an old reply for the answer to a new question, or for one drawn with other settings."""
    session = server.open()
    server.turn(session, "hello", "t1", temperature=0.3, seed=1)
    for text, sampling, differs in (
        ("goodbye", {"seed": 1}, "user_text"),
        ("hello", {"seed": 2}, "sampling.seed"),
        ("hello", {"seed": 1, "max_new_tokens": 13}, "sampling.max_new_tokens"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            server.turn(session, text, "t1", temperature=0.3, **sampling)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().startswith("turn_id: 't1' was answered in this session for another ")
        assert f"another {differs};" in refused.value.details()
        [violation] = parts_of(refused.value)["BadRequest"].field_violations
        assert violation.field == "turn_id"
    assert len(server.stub.GetSession(wire.GetSessionRequest(session_id=session)).turns) == 1


def test_s15_sessions_are_bounded(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tiny_bundle, tmp_path, "--max-sessions", "3") as server:
        sessions = [server.open() for _ in range(10)]
        found = [status_of(lambda s=session: server.turn(s, "hello")) for session in sessions]  # type: ignore[misc]
        assert found == [grpc.StatusCode.NOT_FOUND] * 7 + [grpc.StatusCode.OK] * 3


def test_s16_dropped_turns_are_told_and_the_system_text_isnt_dropped(server: SandboxProcess) -> None:
    session = server.open(system_text="be kind")
    replies = [server.turn(session, f"hello {turn}", max_new_tokens=48) for turn in range(6)]
    assert replies[-1].usage.dropped_turns > 0
    # A prompt without the system text and with one turn would be shorter than the first of all.
    assert all(reply.usage.prompt_tokens >= replies[0].usage.prompt_tokens for reply in replies)
