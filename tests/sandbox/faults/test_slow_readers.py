"""S24: a reader that never reads doesn't hold its session and its place for ever."""

import asyncio
from pathlib import Path

import grpc
import pytest

from evalkit.wire import sandbox_pb2 as wire
from tests.sandbox.inprocess import PacedEngine, on_a_loop, served
from tests.sandbox.processes import turn_request
from tests.sandbox.test_status import parts_of


def test_s24_a_stream_that_nobody_reads_ends_and_frees_everything(tiny_bundle: Path) -> None:
    # Pieces so large that gRPC's buffers are full after a few of them.
    engine = PacedEngine(text="x" * 200_000)

    async def test() -> None:
        async with served(tiny_bundle, engine, reader_patience_s=0.5) as stub:
            session = (await stub.OpenSession(wire.OpenSessionRequest())).session_id
            stuck = stub.StreamTurn(turn_request(session, "hello", "t1", max_new_tokens=128))
            await stuck.read()
            assert engine.active == 1
            for _ in range(100):
                if not engine.active:
                    break
                await asyncio.sleep(0.1)
            assert engine.active == 0
            engine.text = "x"
            assert (await stub.Turn(turn_request(session, "hello", "t2"), timeout=10)).turn_index == 0
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                while await stuck.read():
                    pass
            assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert parts_of(ended.value)["ErrorInfo"].reason == "READER_TOO_SLOW"

    on_a_loop(test)
