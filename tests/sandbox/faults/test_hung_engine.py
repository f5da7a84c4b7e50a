"""An engine that stands still, seen by callers, health, metrics and the log."""

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tests.sandbox.faults.watch import check_unharmed, cold_tokens, gauges
from tests.sandbox.processes import NOT_SERVING, SERVICE, SERVING, freeze, is_alive, serving
from tests.sandbox.test_status import parts_of

TIMEOUT_S = 3


def test_a_hung_engine_is_not_serving_then_replaced(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tiny_bundle, tmp_path, f"--engine-timeout-s={TIMEOUT_S}", "--metrics=127.0.0.1:0") as server:
        expected, session, old = cold_tokens(server), server.open(), server.engine_pid()
        watch = server.health.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=120)
        assert next(watch).status == SERVING
        freeze(old)
        with pytest.raises(grpc.RpcError) as ended:
            server.turn(session, "hello", "t1")
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"it hung: no answer for {TIMEOUT_S} s" in ended.value.details()
        assert parts_of(ended.value)["ErrorInfo"].reason == "ENGINE_UNAVAILABLE"
        assert [next(watch).status, next(watch).status] == [NOT_SERVING, SERVING]
        assert server.engine_pid() != old
        assert not is_alive(old)
        assert server.turn(session, "hello", "t1").turn_index == 0
        now = gauges(server)
        assert now['sandbox_engine_restarts_total{reason="hung"}'] == 1
        assert now['sandbox_engine_restarts_total{reason="died"}'] == 0
        assert f"engine process {old} is killed (it hung" in server.log.read_text()
        check_unharmed(server, expected)
