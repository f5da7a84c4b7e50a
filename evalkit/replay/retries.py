"""When a failed call is made again, and after how long: only what is safe to repeat, each time later, never in step."""

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from evalkit.replay.faults import SandboxError, called

ResultT = TypeVar("ResultT")

_ATTEMPTS = 4
_FIRST_WAIT_S = 0.2
_GROWTH = 4.0
# A server that asks for more than this is asked by a person, or by `evalkit resume`.
_LONGEST_WAIT_S = 30.0
# Each wait is shortened at random by up to a half, so that clients that failed together don't come back together.
_SHORTEST_SHARE = 0.5


class Retries:
    """Makes calls again that failed before anything was done, or whose repeat changes nothing.

    UNAVAILABLE: the server or its engine is away for a moment. RESOURCE_EXHAUSTED: only with a time to wait
    (google.rpc.RetryInfo): without one it is a limit that won't go away (a message too large). ABORTED: another turn of
    the session is running, often an earlier attempt whose end the server hasn't seen yet. DEADLINE_EXCEEDED isn't
    among them: the caller's time is up.
    """

    def __init__(self, seed: int | None = None) -> None:
        """Prepare.

        Args:
            seed: of the jitter; None takes one from the system.
        """
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def run(self, attempt: Callable[[int], ResultT]) -> ResultT:
        """Call `attempt` with 0, 1, ... until one succeeds.

        Raises:
            SandboxError: of the last attempt, or of the first that mustn't be repeated.
        """
        number = 0
        while True:
            try:
                return called(lambda number=number: attempt(number))  # type: ignore[misc]
            except SandboxError as error:
                wait_s = self.wait_s(error, number)
                if wait_s is None:
                    raise
            time.sleep(wait_s)
            number += 1

    def wait_s(self, error: SandboxError, number: int) -> float | None:
        """How long to wait after attempt `number` failed; None if it mustn't or needn't be repeated."""
        asked_s = error.details.retry_after_s
        repeatable = error.code in ("UNAVAILABLE", "ABORTED") or (
            error.code == "RESOURCE_EXHAUSTED" and asked_s is not None
        )
        if not repeatable or number >= _ATTEMPTS - 1:
            return None
        with self._lock:
            share = self._random.uniform(_SHORTEST_SHARE, 1.0)
        wait_s = max(_FIRST_WAIT_S * _GROWTH**number * share, asked_s or 0.0)
        return wait_s if wait_s <= _LONGEST_WAIT_S else None
