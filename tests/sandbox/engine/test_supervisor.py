"""The supervisor and a real engine process."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from evalkit.errors import InputError
from sandbox.domain import FinishReason, Sampling
from sandbox.engine.requests import GenerationPiece, GenerationRequest
from sandbox.engine.supervisor import EngineState, EngineSupervisor
from sandbox.errors import CapacityError, EngineUnavailableError
from tests.sandbox.engine.stubborn_worker import StubbornSupervisor

PROMPT = (1, 20, 30, 40)
START_S = 120


@asynccontextmanager
async def running(
    bundle: Path, kind: type[EngineSupervisor] = EngineSupervisor, **options: Any
) -> AsyncIterator[EngineSupervisor]:
    engine = kind(bundle, 4 << 20, lambda _state: None, **options)
    await asyncio.wait_for(engine.start(), START_S)
    try:
        yield engine
    finally:
        await engine.close()


def request(key: int, new_tokens: int = 8, tenant: str = "t") -> GenerationRequest:
    return GenerationRequest(key, PROMPT, Sampling(new_tokens), tenant, shared_tokens=2)


async def answer(engine: EngineSupervisor, asked: GenerationRequest) -> list[GenerationPiece]:
    async with engine.generate(asked) as pieces:
        return [piece async for piece in pieces]


def ids(pieces: list[GenerationPiece]) -> list[int]:
    return [token for piece in pieces for token in piece.token_ids]


async def quiet(engine: EngineSupervisor) -> None:
    """Wait until the engine says that nobody runs or waits and all cache memory is free."""
    for _ in range(600):
        load = engine.load()
        if (load.running, load.waiting, load.kv_used_bytes) == (0, 0, 0):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(engine.load())


def test_load_reports_timings_and_cancels(tiny_bundle: Path, tmp_path: Path) -> None:
    """The engine stands still after two rounds until the next turn was sent, or else turns may end before others come."""
    second_asked, last_asked = tmp_path / "second", tmp_path / "last"

    async def scenario() -> None:
        async with running(tiny_bundle, StubbornSupervisor, max_rows=2, max_waiting=1) as engine:
            assert engine.engine == "onnx"
            load = engine.load()
            assert (load.batch_slots, load.kv_budget_bytes, load.restarts["died"]) == (2, 4 << 20, 0)
            alone = await answer(engine, request(1))
            end = alone[-1].end
            assert end is not None
            assert end.finish_reason is FinishReason.LENGTH
            assert min(end.prefill_ns, end.decode_ns) > 0
            assert end.queue_ns >= 0

            async with (
                engine.generate(request(2, 200, f"pause until {second_asked}")) as first,
                engine.generate(request(3, 200)) as second,
            ):
                await anext(first)
                waiting = asyncio.create_task(answer(engine, request(4, tenant=f"pause until {last_asked}")))
                await asyncio.sleep(0)
                second_asked.touch()
                await anext(second)
                while engine.load().waiting != 1:
                    await asyncio.sleep(0.01)
                assert engine.load().running == 2
                assert (engine.load().kv_used_bytes or 0) > 0
                refused = asyncio.create_task(answer(engine, request(5)))
                await asyncio.sleep(0)
                last_asked.touch()
                with pytest.raises(CapacityError, match="1 turns wait"):
                    await refused
            # Leaving both early freed their places: the one that waited is answered, as if alone.
            assert ids(await waiting) == ids(alone)
            for key in range(1, 6):
                engine.release(key)
            await quiet(engine)

    asyncio.run(scenario())


def test_a_killed_engine_fails_its_turns_with_the_reason_and_comes_back(tiny_bundle: Path) -> None:
    async def scenario() -> None:
        async with running(tiny_bundle, StubbornSupervisor) as engine:
            alone = ids(await answer(engine, request(1)))
            # Its engine says the first token and then stands still: quick ones would have said all.
            async with engine.generate(request(2, 200, "pause inf")) as pieces:
                await anext(pieces)
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
                with pytest.raises(EngineUnavailableError, match=r"restarting \(signal 9\)"):
                    async for _ in pieces:
                        pass
            assert engine.load().kv_used_bytes == 0
            assert ids(await answer(engine, request(3))) == alone
            assert engine.load().restarts == {"died": 1, "hung": 0}

    asyncio.run(scenario())


def test_a_budget_below_one_session_is_refused_at_the_start(tiny_bundle: Path) -> None:
    async def scenario() -> None:
        engine = EngineSupervisor(tiny_bundle, 1 << 10, lambda _state: None)
        try:
            with pytest.raises(InputError, match="less than one session of 256 tokens"):
                await asyncio.wait_for(engine.start(), START_S)
            assert engine.state is EngineState.STARTING
        finally:
            await engine.close()

    asyncio.run(scenario())


def test_a_cancel_in_the_step_that_ends_the_wait_for_the_engine_isnt_lost(tiny_bundle: Path) -> None:
    """Python 3.11's wait_for swallows such a cancel: the turn would run to its end and be stored."""

    async def scenario() -> None:
        engine = EngineSupervisor(tiny_bundle, 4 << 20, lambda _state: None)
        turn = asyncio.create_task(answer(engine, request(1)))
        for _ in range(5):
            await asyncio.sleep(0)
        await engine.close()  # sets the event that the turn waits for
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn

    asyncio.run(scenario())
