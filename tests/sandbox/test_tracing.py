"""OpenTelemetry by the standard interceptor: one span a call, with its status; streams and cancels unharmed."""

import asyncio
from pathlib import Path

import grpc
import pytest

from evalkit.errors import InputError
from evalkit.wire import sandbox_pb2 as wire
from sandbox.tracing import make_interceptor, tracing
from tests.sandbox.inprocess import PacedEngine, on_a_loop, served
from tests.sandbox.processes import turn_request

pytest.importorskip("opentelemetry.instrumentation.grpc", reason="the extra evalkit[tracing] isn't installed")


def test_each_call_is_a_span_with_its_status(tiny_bundle: Path) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engine = PacedEngine(step_s=0.01)

    async def test() -> None:
        async with served(tiny_bundle, engine, interceptors=[make_interceptor(provider)]) as stub:
            session = (await stub.OpenSession(wire.OpenSessionRequest())).session_id
            chunks = [chunk async for chunk in stub.StreamTurn(turn_request(session, "hello", "t1"))]
            assert chunks[-1].reply.usage.generated_tokens == 12
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Turn(turn_request("nobody", "hello"))
            cancelled = stub.StreamTurn(turn_request(session, "hello", "t2", max_new_tokens=128))
            await cancelled.read()
            cancelled.cancel()
            for _ in range(100):
                if not engine.active:
                    break
                await asyncio.sleep(0.01)
            assert engine.active == 0
            assert (await stub.Turn(turn_request(session, "hello", "t3"))).turn_index == 1

    on_a_loop(test)
    spans = exporter.get_finished_spans()
    names = [span.name.rpartition("/")[2] for span in spans]
    assert sorted(names) == ["OpenSession", "StreamTurn", "StreamTurn", "Turn", "Turn"]
    codes = {(span.name.rpartition("/")[2], span.attributes["rpc.grpc.status_code"]) for span in spans}
    assert ("Turn", grpc.StatusCode.NOT_FOUND.value[0]) in codes
    assert ("OpenSession", 0) in codes
    shown = "".join(span.to_json() for span in spans)
    assert "hello" not in shown


def test_tracing_is_off_unless_asked_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracing(None, {}) is None
    setup = tracing(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"})
    assert setup is not None
    setup.close()
    with monkeypatch.context() as broken, pytest.raises(InputError, match=r"OTEL_.*'soon'"):
        broken.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
        tracing("http://127.0.0.1:4317")
    with monkeypatch.context() as broken, pytest.raises(InputError, match=r"OTEL_.*brotli"):
        broken.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli")
        tracing("http://127.0.0.1:4317")
    monkeypatch.setitem(
        __import__("sys").modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None
    )
    with pytest.raises(InputError, match=r"install evalkit\[tracing\]"):
        tracing("http://127.0.0.1:4317", {})
    assert tracing(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}) is None
