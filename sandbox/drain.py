"""Ending a server without breaking turns: no new work, and a wait for what is running."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.errors import EngineUnavailableError


class Drain:
    """Counts running work and, once draining, refuses more: at once, but in the server's last moment only when its
    connections have been told to go away.

    gRPC cuts the calls that lie unread when it stops with a bare CANCELLED. A caller that repeats what was refused would
    always have one there; one that still waits for its refusal sends nothing.
    """

    def __init__(self) -> None:
        self._running = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._told = asyncio.Event()  # the connections know
        self._told.set()

    def hold(self) -> None:
        """Refuse new work from now on, but only when `let_go` is called."""
        self._draining = True
        self._told.clear()

    def let_go(self) -> None:
        """Refuse what is held."""
        self._told.set()

    async def pause(self) -> None:
        """Wait while calls are held; to be awaited before anything is done for a call."""
        if not self._told.is_set():
            await self._told.wait()

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
