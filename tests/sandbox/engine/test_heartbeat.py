"""When an engine counts as hanging: waits of our own loop decide, not a clock."""

import asyncio
import time

import pytest

from sandbox.engine import heartbeat
from sandbox.engine.heartbeat import Heartbeat

_WAIT_S = 0.01
LIMIT_S = _WAIT_S * heartbeat._WAITS


async def hangs_within(beat: Heartbeat, seconds: float) -> bool:
    try:
        await asyncio.wait_for(beat.until_silent(), seconds)
    except TimeoutError:
        return False
    return True


def test_an_engine_that_answers_never_hangs() -> None:
    async def scenario() -> None:
        pings: list[None] = []
        enough = asyncio.Event()

        def ping() -> None:
            pings.append(None)
            asyncio.get_running_loop().call_soon(beat.answered)
            if len(pings) == 3 * heartbeat._WAITS:
                enough.set()

        beat = Heartbeat(ping, LIMIT_S)
        watch = asyncio.create_task(beat.until_silent())
        await asyncio.wait_for(enough.wait(), 30)
        assert not watch.done()
        watch.cancel()

    asyncio.run(scenario())


def test_silence_is_hanging_and_one_ping_is_sent() -> None:
    async def scenario() -> None:
        pings: list[None] = []
        beat = Heartbeat(lambda: pings.append(None), LIMIT_S)
        started = time.monotonic()
        assert await hangs_within(beat, 30)
        assert time.monotonic() - started >= LIMIT_S * 0.9
        assert len(pings) == 1

    asyncio.run(scenario())


def test_a_late_answer_starts_the_count_anew() -> None:
    async def scenario() -> None:
        waits: list[int] = []
        sleep = asyncio.sleep

        async def counted(_seconds: float) -> None:
            waits.append(1)
            if len(waits) == heartbeat._WAITS - 1:
                beat.answered()
            await sleep(0)

        beat = Heartbeat(lambda: None, LIMIT_S)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "sleep", counted)
            await beat.until_silent()
        # The answer is read as the last wait but one ends; from then on it takes all of them again.
        assert len(waits) == heartbeat._WAITS - 1 + heartbeat._WAITS

    asyncio.run(scenario())


def test_a_server_that_stood_still_doesnt_take_its_own_pause_for_the_engines() -> None:
    """The engine answered meanwhile, but nobody read it."""

    async def scenario() -> None:
        asked = asyncio.Event()
        beat = Heartbeat(asked.set, LIMIT_S)
        watch = asyncio.create_task(beat.until_silent())
        await asked.wait()
        time.sleep(2 * LIMIT_S)  # the loop itself stands still
        await asyncio.sleep(_WAIT_S)
        assert not watch.done()
        beat.answered()
        await asyncio.sleep(3 * _WAIT_S)
        assert not watch.done()
        watch.cancel()

    asyncio.run(scenario())
