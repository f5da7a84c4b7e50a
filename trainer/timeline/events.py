"""Events in columns: 28 bytes an event, so that a gigabyte of JSON fits into a tenth of it."""

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
# Beyond so many different names, digits are folded: some traces number each event.
_MAX_NAMES = 100_000
_DIGITS = re.compile(r"\d+")


class Interner:
    """Texts as small integers."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: from so many texts on, digits are folded to `#`."""
        self.texts: list[str] = []
        self._ids: dict[str, int] = {}
        self._limit = limit

    def id_of(self, text: object) -> int:
        """The number of a text; new texts get the next one."""
        found = self._ids.get(text)  # type: ignore[call-overload]
        if found is not None:
            return int(found)
        shown = text if isinstance(text, str) else str(text)
        if self._limit is not None and len(self.texts) >= self._limit:
            shown = _DIGITS.sub("#", shown)
        if shown in self._ids:
            return self._ids[shown]
        self._ids[shown] = len(self.texts)
        self.texts.append(shown)
        return self._ids[shown]


def name_interner() -> Interner:
    """The table of event names of a recording."""
    return Interner(_MAX_NAMES)


@dataclass
class Columns:
    """Growing columns of one track: start and duration in ns, ids of name and kind."""

    start: "array[int]" = field(default_factory=lambda: array("q"))
    duration: "array[int]" = field(default_factory=lambda: array("q"))
    name: "array[int]" = field(default_factory=lambda: array("i"))
    kind: "array[int]" = field(default_factory=lambda: array("i"))

    def add(self, start: int, duration: int, name: int, kind: int) -> None:
        """One event."""
        self.start.append(start)
        self.duration.append(duration)
        self.name.append(name)
        self.kind.append(kind)

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start)

    def freeze(self) -> "Slices":
        """The columns as arrays, without a copy."""
        return Slices(
            np.frombuffer(self.start, np.int64),
            np.frombuffer(self.duration, np.int64),
            np.frombuffer(self.name, np.int32),
            np.frombuffer(self.kind, np.int32),
        )


@dataclass(frozen=True)
class Slices:
    """Events as arrays of equal length: start and duration in ns, ids of name and kind."""

    start: Ints
    duration: Ints
    name: NDArray[np.int32]
    kind: NDArray[np.int32]

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start)

    @property
    def end(self) -> Ints:
        """Ends in ns."""
        return self.start + self.duration

    def where(self, mask: NDArray[np.bool_] | Ints) -> "Slices":
        """The events that a mask or an index selects."""
        return Slices(self.start[mask], self.duration[mask], self.name[mask], self.kind[mask])

    def moved(self, offset_ns: int) -> "Slices":
        """The same events on a clock that is `offset_ns` behind."""
        return Slices(self.start - offset_ns, self.duration, self.name, self.kind)


def empty_slices() -> Slices:
    """No events."""
    return Columns().freeze()


def concatenate(parts: Iterable[Slices]) -> Slices:
    """All events of several parts, in their order."""
    found = [part for part in parts if len(part)]
    if not found:
        return empty_slices()
    if len(found) == 1:
        return found[0]
    return Slices(
        np.concatenate([part.start for part in found]),
        np.concatenate([part.duration for part in found]),
        np.concatenate([part.name for part in found]),
        np.concatenate([part.kind for part in found]),
    )


def without_duplicates(slices: Slices) -> tuple[Slices, int]:
    """(events sorted by start and longest first, number of exact copies dropped)."""
    if not len(slices):
        return slices, 0
    order = np.lexsort((slices.kind, slices.name, -slices.duration, slices.start))
    ordered = slices.where(order)
    same = (
        (np.diff(ordered.start) == 0)
        & (np.diff(ordered.duration) == 0)
        & (np.diff(ordered.name) == 0)
        & (np.diff(ordered.kind) == 0)
    )
    if not same.any():
        return ordered, 0
    return ordered.where(np.concatenate([[True], ~same])), int(same.sum())


def sorted_slices(slices: Slices) -> Slices:
    """Events sorted by start, the longest first among equals."""
    order = np.lexsort((-slices.duration, slices.start))
    return slices.where(order)
