"""The server and its engine as processes: faults, drains, and how they end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from evalkit.wire import sandbox_pb2 as wire
from tests.sandbox.processes import (
    NOT_SERVING,
    SERVING,
    SandboxProcess,
    eventually,
    freeze,
    is_alive,
    kill,
    serving,
    status_of,
    stopped_engine,
    stopping_engine,
)


def test_the_server_never_loads_a_runtime_of_models(server: SandboxProcess) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "mindspore" not in maps
    assert "onnxruntime" not in maps
    assert "onnxruntime" in Path(f"/proc/{server.engine_pid()}/maps").read_text()


def test_a_killed_engine_fails_the_turn_only(server: SandboxProcess) -> None:
    expected = list(server.turn(server.open(), "hello").token_ids)
    session = server.open()
    server.turn(session, "hello", "t1")
    old = server.engine_pid()
    freeze(old)
    running = server.begin(session, "go on", "t2", max_new_tokens=128)
    assert status_of(lambda: server.turn(session, "hi")) is grpc.StatusCode.ABORTED
    kill(old)
    with pytest.raises(grpc.RpcError) as failed:
        list(running)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert server.status() in (SERVING, NOT_SERVING)
    assert eventually(lambda: server.status() == SERVING and server.engine_pid() != old)
    assert list(server.turn(server.open(), "hello").token_ids) == expected
    assert server.turn(session, "go on", "t2").turn_index == 1


def test_turns_that_find_the_engine_away_wait_for_it(server: SandboxProcess) -> None:
    session = server.open()
    kill(server.engine_pid())
    assert eventually(lambda: server.status() == NOT_SERVING, 5)
    assert server.stub.GetSession(wire.GetSessionRequest(session_id=session)).state == wire.OPEN
    assert server.turn(session, "hello").turn_index == 0
    assert server.status() == SERVING


def test_a_turn_that_waits_for_the_engine_keeps_its_deadline(server: SandboxProcess) -> None:
    session = server.open()
    kill(server.engine_pid())
    assert eventually(lambda: server.status() == NOT_SERVING, 5)
    late = server.stream(session, "hello", timeout=0.2)
    assert status_of(lambda: list(late)) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert eventually(lambda: server.status() == SERVING)


def test_a_ready_line_that_nobody_can_read_ends_the_server_with_exit_code_2(tiny_bundle: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "sandbox", "serve", str(tiny_bundle)]
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    finally:
        os.close(writer)
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard output: ")
    assert done.stderr.count("\n") == 1


def test_an_engine_killed_while_it_loads_is_no_fault_of_ours(tiny_bundle: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sandbox", "serve", str(tiny_bundle)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=stopping_engine(tmp_path),
    ) as server:
        kill(stopped_engine(server.pid))
        printed, told = server.communicate(timeout=60)
    assert (server.returncode, printed) == (4, "")
    assert told.count("\n") == 1
    assert "--kv-mib" in told


def test_sigterm_lets_the_running_turn_finish(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tiny_bundle, tmp_path, "--grace-s", "30") as server:
        engine = server.engine_pid()
        session, fresh = server.open(), server.open()
        watch = server.health.Watch(health_pb2.HealthCheckRequest(service=""))
        assert next(watch).status == SERVING
        with server.frozen_engine():
            running = server.begin(session, "hello", max_new_tokens=128)
            assert status_of(lambda: server.turn(session, "hi")) is grpc.StatusCode.ABORTED
            server.process.send_signal(signal.SIGTERM)
            assert next(watch).status == NOT_SERVING
            assert status_of(lambda: server.turn(fresh, "too late")) is grpc.StatusCode.UNAVAILABLE
        assert list(running)[-1].reply.usage.generated_tokens == 128
        assert server.process.wait(20) == 0
        assert eventually(lambda: not is_alive(engine))


def test_sigterm_without_grace_cuts_the_turn_and_exits_0(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tiny_bundle, tmp_path, "--grace-s", "0") as server:
        session = server.open()
        freeze(server.engine_pid())
        running = server.begin(session, "hello", max_new_tokens=128)
        assert status_of(lambda: server.turn(session, "hi")) is grpc.StatusCode.ABORTED
        assert server.stop() == 0
        assert status_of(lambda: list(running)) is grpc.StatusCode.UNAVAILABLE


def test_the_engine_dies_with_a_killed_server(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tiny_bundle, tmp_path) as server:
        engine = server.engine_pid()
        kill(server.process.pid)
        server.process.wait()
        assert eventually(lambda: not is_alive(engine), 5)


def test_ctrl_c_ends_the_server_like_sigterm(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tiny_bundle, tmp_path) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0
        assert "Traceback" not in server.log.read_text()


def test_a_full_server_makes_room_among_idle_sessions_only(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tiny_bundle, tmp_path, "--max-sessions", "2") as server:
        busy, idle = server.open(), server.open()
        with server.frozen_engine():
            running = server.begin(busy, "hello", max_new_tokens=128)
            assert status_of(lambda: server.turn(busy, "hi")) is grpc.StatusCode.ABORTED
            third = server.open()
            assert status_of(lambda: server.turn(idle, "hello")) is grpc.StatusCode.NOT_FOUND
            also_running = server.begin(third, "hello", max_new_tokens=128)
            assert status_of(lambda: server.turn(third, "hi")) is grpc.StatusCode.ABORTED
            assert status_of(server.open) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert list(running)[-1].HasField("reply")
        assert list(also_running)[-1].HasField("reply")
        server.open()


def test_a_port_is_served_by_one_server(server: SandboxProcess, tiny_bundle: Path) -> None:
    failed = serve_and_fail(str(tiny_bundle), "--listen", server.ready["address"])
    assert failed.startswith("error: --listen:")


@pytest.mark.parametrize(
    "arguments",
    [
        ["MISSING"],
        ["BUNDLE", "--flow", "MISSING"],
        ["BUNDLE", "--listen", "nonsense"],
        ["BUNDLE", "--listen", "127.0.0.1:99999"],
        ["BUNDLE", "--max-sessions", "0"],
        ["BUNDLE", "--kv-mib", "-1"],
        ["BUNDLE", "--unknown"],
        [],
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(tiny_bundle: Path, tmp_path: Path, arguments: list[str]) -> None:
    places = {"BUNDLE": str(tiny_bundle), "MISSING": str(tmp_path / "missing")}
    serve_and_fail(*(places.get(argument, argument) for argument in arguments))


def test_a_corrupt_bundle_is_refused_before_mindspore_sees_it(tiny_bundle: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, copy)
    graph = copy / "graphs" / "step.mindir"
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    graph.write_bytes(data)
    assert "step.mindir: SHA-256 differs" in serve_and_fail(str(copy))


def test_parallel_clients_share_the_engine(server: SandboxProcess) -> None:
    """Turns are stepped round and round: a short one isn't kept waiting by a long one, says the server's log."""
    with server.frozen_engine():  # or else the long one may end before the short one comes
        long = server.begin(server.open(), "hello", "long", max_new_tokens=128)
        short = server.begin(server.open(), "hi", "short", max_new_tokens=4)
    assert list(short)[-1].reply.usage.generated_tokens == 4
    assert list(long)[-1].reply.usage.generated_tokens == 128

    def ended() -> list[str]:
        return re.findall(r"code=OK .*turn_id=(short|long)\b", server.log.read_text())

    assert eventually(lambda: len(ended()) == 2)
    assert ended() == ["short", "long"]


def serve_and_fail(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sandbox", "serve", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]
