"""The wait for running turns at the server's end."""

import asyncio

import pytest

from sandbox.drain import Drain
from sandbox.errors import EngineUnavailableError


def test_running_work_is_waited_for_and_new_work_refused() -> None:
    async def scenario() -> None:
        drain = Drain()
        with drain.work():
            assert not await drain.finish(0.01)
            with pytest.raises(EngineUnavailableError), drain.work():
                pass
        assert await drain.finish(0.01)

    asyncio.run(scenario())


def test_a_cancel_in_the_step_in_which_the_last_turn_ends_isnt_lost() -> None:
    async def scenario() -> None:
        drain = Drain()
        with drain.work():
            finish = asyncio.create_task(drain.finish(60))
            for _ in range(5):
                await asyncio.sleep(0)
        finish.cancel()
        with pytest.raises(asyncio.CancelledError):
            await finish

    asyncio.run(scenario())


def test_held_calls_are_refused_when_they_are_let_go() -> None:
    async def scenario() -> None:
        drain = Drain()
        await drain.pause()
        drain.hold()
        call = asyncio.create_task(drain.pause())
        await asyncio.sleep(0.01)
        assert not call.done()
        drain.let_go()
        await call
        with pytest.raises(EngineUnavailableError), drain.work():
            pass

    asyncio.run(scenario())
