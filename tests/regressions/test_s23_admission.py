"""S23: a full queue, or a deadline shorter than the wait, is RESOURCE_EXHAUSTED before any work, never a silent wait."""

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from evalkit.wire import sandbox_pb2 as wire
from tests.sandbox.inprocess import PacedEngine, on_a_loop, served
from tests.sandbox.processes import turn_request
from tests.sandbox.test_status import parts_of


async def _turn(stub: Any, timeout: float, tokens: int = 12) -> str:
    """The status of one turn of a new session."""
    session = (await stub.OpenSession(wire.OpenSessionRequest())).session_id
    try:
        await stub.Turn(turn_request(session, "hello", max_new_tokens=tokens), timeout=timeout)
    except grpc.aio.AioRpcError as error:
        parts = parts_of(error)
        return str(parts["ErrorInfo"].reason) if "ErrorInfo" in parts else error.code().name
    return "OK"


def test_s23_a_full_queue_refuses_before_the_engine_sees_the_turn(tiny_bundle: Path) -> None:
    """The turns that are taken stand still until the others have come."""
    engine = PacedEngine(slots=2)

    async def test() -> None:
        async with served(tiny_bundle, engine, max_waiting=3) as stub:
            engine.go_on = asyncio.Event()
            turns = [asyncio.create_task(_turn(stub, 30)) for _ in range(12)]
            while sum(turn.done() for turn in turns) < 12 - (2 + 3):
                await asyncio.sleep(0.01)
            assert {turn.result() for turn in turns if turn.done()} == {"QUEUE_FULL"}
            engine.go_on.set()
            ended = await asyncio.gather(*turns)
            assert sorted(set(ended)) == ["OK", "QUEUE_FULL"]
            assert ended.count("OK") == engine.peak == 2 + 3
            assert engine.active == 0

    on_a_loop(test)


def test_s23_a_deadline_shorter_than_the_wait_is_refused_at_once(tiny_bundle: Path) -> None:
    engine = PacedEngine(step_s=0.02, slots=1)

    async def test() -> None:
        async with served(tiny_bundle, engine, max_waiting=8) as stub:
            assert (
                await _turn(stub, 30, tokens=50) == "OK"
            )  # now the server knows: a turn takes about a second
            engine.go_on = asyncio.Event()
            running = [asyncio.create_task(_turn(stub, 30, tokens=50)) for _ in range(3)]
            while engine.active < 3:
                await asyncio.sleep(0.01)
            started = time.monotonic()
            assert await _turn(stub, 0.6) == "DEADLINE_TOO_SHORT"
            assert time.monotonic() - started < 0.5
            assert engine.peak == 3
            engine.go_on.set()
            assert await _turn(stub, 30) == "OK"
            assert set(await asyncio.gather(*running)) == {"OK"}

    on_a_loop(test)


def test_s23_the_refusal_says_when_to_come_back(tiny_bundle: Path) -> None:
    engine = PacedEngine(slots=1)

    async def test() -> None:
        async with served(tiny_bundle, engine, max_waiting=1) as stub:
            sessions = [(await stub.OpenSession(wire.OpenSessionRequest())).session_id for _ in range(3)]
            engine.go_on = asyncio.Event()
            calls = [stub.Turn(turn_request(session, "hello"), timeout=30) for session in sessions]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asyncio.gather(*calls)
            engine.go_on.set()
            assert parts_of(refused.value)["RetryInfo"].retry_delay.ToMilliseconds() > 0

    on_a_loop(test)
