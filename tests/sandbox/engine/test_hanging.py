"""An engine that hangs is killed and started again; one that is busy isn't."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandbox.domain import Sampling
from sandbox.engine.requests import GenerationRequest
from sandbox.engine.supervisor import EngineState, EngineSupervisor
from sandbox.errors import EngineUnavailableError
from tests.sandbox.engine.stubborn_worker import STOPS_AT_ONCE, StubbornSupervisor

START_S = 120


@asynccontextmanager
async def running(
    kind: type[EngineSupervisor], bundle: Path, timeout_s: float
) -> AsyncIterator[tuple[EngineSupervisor, list[EngineState]]]:
    states: list[EngineState] = []
    engine = kind(bundle, 4 << 20, states.append, timeout_s=timeout_s)
    await asyncio.wait_for(engine.start(), START_S)
    try:
        yield engine, states
    finally:
        await engine.close()


async def answer(engine: EngineSupervisor, tenant: str = "") -> list[int]:
    asked = GenerationRequest(1, (1, 20, 30, 40), Sampling(8), tenant)
    async with engine.generate(asked) as pieces:
        return [token async for piece in pieces for token in piece.token_ids]


HUNG = r"restarting \(it hung: no answer for 2 s\)"


def test_a_stopped_engine_is_replaced_and_its_turns_told(
    tiny_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(EngineSupervisor, tiny_bundle, 2.0) as (engine, states):
            expected, old = await answer(engine), engine.pid
            assert old is not None
            os.kill(old, signal.SIGSTOP)
            turns = [asyncio.create_task(answer(engine)) for _ in range(2)]
            for turn in turns:
                with pytest.raises(EngineUnavailableError, match=HUNG):
                    await turn
            assert engine.state is EngineState.STARTING
            assert await answer(engine) == expected
            assert engine.pid not in (None, old)
            assert engine.load().restarts == {"died": 0, "hung": 1}
            assert states == [EngineState.READY, EngineState.STARTING, EngineState.READY]

    asyncio.run(scenario())
    assert "is killed (it hung: no answer for 2 s)" in caplog.text
    assert "starting it again in 0.2 s" in caplog.text


def test_a_loop_that_stands_still_is_noticed_though_its_pipe_is_read(tiny_bundle: Path) -> None:
    async def scenario() -> None:
        async with running(StubbornSupervisor, tiny_bundle, 2.0) as (engine, _):
            with pytest.raises(EngineUnavailableError, match=HUNG):
                await answer(engine, "pause inf")
            assert len(await answer(engine)) == 8
            assert engine.load().restarts == {"died": 0, "hung": 1}

    asyncio.run(scenario())


def test_a_restart_that_hangs_while_it_loads_is_given_up(
    tiny_bundle: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(StubbornSupervisor, tiny_bundle, 10.0) as (engine, _):
            expected, old = await answer(engine), engine.pid
            assert old is not None
            engine._load_limit_s = 2.0
            monkeypatch.setenv(STOPS_AT_ONCE, "1")
            os.kill(old, signal.SIGKILL)
            while "hung while loading: not ready after 2 s" not in caplog.text:
                await asyncio.sleep(0.05)
            monkeypatch.delenv(STOPS_AT_ONCE)
            while (
                engine.state is not EngineState.READY
            ):  # the next one may have been started before the variable was gone
                await asyncio.sleep(0.05)
            assert await answer(engine) == expected
            assert engine.load().restarts == {"died": 1, "hung": 0}

    asyncio.run(asyncio.wait_for(scenario(), START_S))


def test_a_round_shorter_than_the_limit_is_no_hang(tiny_bundle: Path) -> None:
    async def scenario() -> None:
        async with running(StubbornSupervisor, tiny_bundle, 10.0) as (engine, states):
            expected, pid = await answer(engine), engine.pid
            assert await answer(engine, "pause 2") == expected
            assert engine.pid == pid
            assert engine.load().restarts == {"died": 0, "hung": 0}
            assert states == [EngineState.READY]

    asyncio.run(scenario())
