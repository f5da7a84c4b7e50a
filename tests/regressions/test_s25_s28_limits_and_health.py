"""S25-S28 on the real server: message limits, shutdown with open streams, honest and responsive health."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.sandbox.processes import (
    NOT_SERVING,
    SERVICE,
    SERVING,
    SandboxProcess,
    serving,
    status_of,
    stopped_engine,
    stopping_engine,
)


def test_s25_limits_are_explicit_and_named(server: SandboxProcess) -> None:
    session = server.open()
    try:
        server.turn(session, "x" * 10_000)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "user_text: 10000 bytes; at most 8192 are allowed"
    assert status_of(lambda: server.turn(session, "x" * (5 << 20))) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_s26_open_watches_dont_hold_up_the_shutdown(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tiny_bundle, tmp_path, "--grace-s", "30") as server:
        watches = [server.health.Watch(health_pb2.HealthCheckRequest(service="")) for _ in range(3)]
        for watch in watches:
            next(watch)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert [next(watch).status for watch in watches] == [NOT_SERVING] * 3
        assert server.process.wait(20) == 0
        assert time.monotonic() - started < 10


def test_s27_health_is_not_serving_before_the_model_is_loaded(tiny_bundle: Path, tmp_path: Path) -> None:
    """The engine is held as soon as it exists: it may load in less time than a client needs to connect."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "sandbox", "serve", str(tiny_bundle), "--listen", address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=stopping_engine(tmp_path))
    try:
        engine = stopped_engine(process.pid)
        stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(address))
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        assert stub.Check(request, timeout=60, wait_for_ready=True).status == NOT_SERVING
        os.kill(engine, signal.SIGCONT)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["address"] == address
        assert stub.Check(request, timeout=5).status == SERVING
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_s28_health_answers_while_the_engine_works(server: SandboxProcess) -> None:
    calls = [server.stream(server.open(), f"hello {number}", max_new_tokens=128) for number in range(6)]
    for call in calls:
        next(call)
    slowest = 0.0
    for _ in range(20):
        started = time.monotonic()
        server.status()
        slowest = max(slowest, time.monotonic() - started)
    for call in calls:
        call.cancel()
    assert slowest < 1.0
