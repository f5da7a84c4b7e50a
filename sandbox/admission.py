"""Which turns are taken: the queue is bounded, and nobody waits for a turn that can't begin before its deadline.

A turn that isn't taken costs nothing: it is refused before the flow or the engine sees it, and told when to come back.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandbox.engine.requests import Engine
from sandbox.errors import CapacityError, DeadlinePassedError

# Weight of the newest turn in the mean time that a turn occupies its place in the batch.
_NEWEST_WEIGHT = 0.1
_UNKNOWN_RETRY_S = 1.0
_MAX_RETRY_S = 60.0


class Place:
    """A turn that was taken.

    Attributes:
        busy_s: how long it held a place in the engine's batch; None until it is answered.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first_token_s: float | None = None
        self.busy_s: float | None = None

    def first_token(self) -> None:
        """The turn's reply has begun."""
        self._first_token_s = self._clock()

    def ended(self, prefill_ns: int) -> None:
        """The turn was answered: it held its place from the prefill to the last token.

        The engine's own times don't tell how long: it counts a shared step by each turn's share.
        """
        now_s = self._clock()
        begun_s = now_s if self._first_token_s is None else self._first_token_s
        self.busy_s = now_s - begun_s + prefill_ns / 1e9


class Admission:
    """Counts the turns in flight and knows how long they take."""

    def __init__(self, engine: Engine, max_waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing in flight and no idea how long a turn takes.

        Args:
            engine: says how many turns it runs at once.
            max_waiting: turns that may wait for a place. For an engine that doesn't say how many it runs at once, it
                bounds all turns in flight.
            clock: seconds, monotonic.
        """
        self._engine = engine
        self._max_waiting = max_waiting
        self._clock = clock
        self._in_flight = 0
        self._mean_busy_s: float | None = None

    @property
    def in_flight(self) -> int:
        """Turns taken and not ended."""
        return self._in_flight

    @contextmanager
    def admit(self, remaining_s: float | None) -> Iterator[Place]:
        """Hold a place for one turn.

        Args:
            remaining_s: until the caller's deadline; None without one.

        Raises:
            CapacityError: too many turns wait, or the deadline passes while this one would still wait.
            DeadlinePassedError: it has passed already.
        """
        self._check(remaining_s)
        self._in_flight += 1
        place = Place(self._clock)
        try:
            yield place
        finally:
            self._in_flight -= 1
            if place.busy_s is not None:
                self._learn(place.busy_s)

    def expected_wait_s(self) -> float | None:
        """How long a turn that comes now waits for its place; None where nobody knows.

        With all S places taken and w turns waiting, w + 1 turns have to end first; each place frees itself once in the
        mean time that a turn holds it.
        """
        slots = self._engine.load().batch_slots
        if slots is None:
            return None
        ahead = self._waiting(slots)
        if ahead == 0 and self._in_flight < slots:
            return 0.0
        return None if self._mean_busy_s is None else (ahead + 1) * self._mean_busy_s / slots

    def waiting(self) -> int:
        """Turns that wait for a place, as far as anybody knows."""
        load = self._engine.load()
        return load.waiting if load.batch_slots is None else self._waiting(load.batch_slots)

    def _waiting(self, slots: int) -> int:
        # The engine's own count is a moment old, but knows of turns that wait for cache memory.
        return max(self._in_flight - slots, min(self._engine.load().waiting, self._in_flight), 0)

    def _check(self, remaining_s: float | None) -> None:
        if remaining_s is not None and remaining_s <= 0:
            raise DeadlinePassedError("the deadline had passed when the turn arrived; nothing was done")
        slots = self._engine.load().batch_slots
        queued = self._in_flight if slots is None else self._waiting(slots)
        wait_s = self.expected_wait_s()
        full = queued >= self._max_waiting and (slots is None or self._in_flight >= slots)
        if full:
            raise CapacityError(
                f"{queued} turns are waiting, as many as may; try again later",
                reason="QUEUE_FULL",
                retry_after_s=_retry_s(wait_s),
            )
        if remaining_s is not None and wait_s is not None and wait_s > remaining_s:
            raise CapacityError(
                f"a turn waits about {wait_s:.1f} s now and the deadline leaves {remaining_s:.1f} s; try again later or"
                " give it more time",
                reason="DEADLINE_TOO_SHORT",
                retry_after_s=_retry_s(wait_s - remaining_s),
            )

    def _learn(self, busy_s: float) -> None:
        mean_s = self._mean_busy_s
        self._mean_busy_s = busy_s if mean_s is None else mean_s + _NEWEST_WEIGHT * (busy_s - mean_s)


def _retry_s(wait_s: float | None) -> float:
    return _UNKNOWN_RETRY_S if wait_s is None else min(max(wait_s, 0.05), _MAX_RETRY_S)
