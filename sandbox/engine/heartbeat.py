"""Tells an engine that hangs from one that works.

The engine's loop answers a ping at the end of its round (`Batcher.handle`), so an answer proves the whole way: the
pipe there, the thread that reads it, the loop, the model's last step, and the pipe back. Any other message proves less.
"""

import asyncio
from collections.abc import Callable

# A ping may stay unanswered for so many waits in a row.
_WAITS = 20


class Heartbeat:
    """Pings one engine process."""

    def __init__(self, ping: Callable[[], None], limit_s: float) -> None:
        """Begin with nothing asked.

        Args:
            ping: sends a ping.
            limit_s: a ping that stays unanswered for so long means that the engine hangs.
        """
        self._ping = ping
        self._wait_s = limit_s / _WAITS
        self._answered = True

    def answered(self) -> None:
        """The engine answered."""
        self._answered = True

    async def until_silent(self) -> None:
        """Return when the engine hangs.

        Waits of our own event loop are counted, not what a clock says: a server that was stopped itself, or that its
        machine left without a processor, sees one wait in all that time, and reads the answers that came meanwhile.
        No second ping is sent before the first is answered, so a pipe that nobody reads doesn't fill up.
        """
        waits = 0
        while waits < _WAITS:
            if self._answered:
                self._answered, waits = False, 0
                self._ping()
            await asyncio.sleep(self._wait_s)
            waits += 1
