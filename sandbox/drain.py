"""Ending a server without breaking turns: no new work, and a wait for what is running."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.errors import EngineUnavailableError


class Drain:
    """Counts running work and, once draining, refuses more."""

    def __init__(self) -> None:
        self._running = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Run a piece of work.

        Raises:
            EngineUnavailableError: the server is draining.
        """
        if self._draining:
            raise EngineUnavailableError(
                "the server is shutting down; use another server", reason="SHUTTING_DOWN"
            )
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def finish(self, grace_s: float) -> bool:
        """Refuse new work and wait at most `grace_s` seconds for the running; whether all of it ended."""
        self._draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
