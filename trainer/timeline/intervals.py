"""Sets of time intervals, in integer nanoseconds: union, intersection, difference, and the parts of a step.

A set is an array of shape (n, 2), [start, end), sorted, without overlaps. Durations are only ever added up over
such a set: the sum of overlapping events says nothing about time (on a real 8-device run it over-counts
communication four times).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Set = NDArray[np.int64]

EMPTY: Set = np.empty((0, 2), np.int64)


def union(start: Ints, end: Ints) -> Set:
    """The union of intervals given by their ends; those without length are left out."""
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return EMPTY
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([start[first], reach[last]])


def union_of(*sets: Set) -> Set:
    """The union of sets."""
    joined = np.concatenate(sets) if sets else EMPTY
    return union(joined[:, 0], joined[:, 1])


def total(intervals: Set) -> int:
    """Length of a set, in ns."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def complement(intervals: Set, start: int, end: int) -> Set:
    """What of [start, end) lies outside the set."""
    inside = clip(intervals, start, end)
    edges = np.concatenate([[start], inside.ravel(), [end]])
    gaps: Set = edges.reshape(-1, 2)
    found: Set = gaps[gaps[:, 1] > gaps[:, 0]]
    return found


def clip(intervals: Set, start: int, end: int) -> Set:
    """The part of the set inside [start, end)."""
    low = np.searchsorted(intervals[:, 1], start, side="right")
    high = np.searchsorted(intervals[:, 0], end, side="left")
    part: Set = intervals[low:high].copy()
    if not len(part):
        return EMPTY
    part[0, 0] = max(int(part[0, 0]), start)
    part[-1, 1] = min(int(part[-1, 1]), end)
    found: Set = part[part[:, 1] > part[:, 0]]
    return found


def intersection(left: Set, right: Set) -> Set:
    """What lies in both sets."""
    if not len(left) or not len(right):
        return EMPTY
    low = int(min(left[0, 0], right[0, 0]))
    high = int(max(left[-1, 1], right[-1, 1]))
    outside = union_of(complement(left, low, high), complement(right, low, high))
    return complement(outside, low, high)


def difference(left: Set, right: Set) -> Set:
    """What lies in the left set only."""
    if not len(left):
        return EMPTY
    return intersection(left, complement(right, int(left[0, 0]), int(left[-1, 1])))


def covered_until(intervals: Set, times: Ints) -> Ints:
    """For each time, how many ns of the set lie before it; times may be in any order."""
    if not len(intervals):
        return np.zeros(len(times), np.int64)
    lengths = intervals[:, 1] - intervals[:, 0]
    before: Ints = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    index = np.searchsorted(intervals[:, 0], times, side="right")
    inside = np.zeros(len(times), np.int64)
    some = index > 0
    at = index[some] - 1
    inside[some] = np.minimum(times[some] - intervals[at, 0], lengths[at])
    covered: Ints = before[np.maximum(index - 1, 0)] + inside
    return covered


@dataclass(frozen=True)
class Breakdown:
    """A window of one rank in ns. computing + exposed + free = window, each at least 0, by construction."""

    window_ns: int
    computing_ns: int
    communication_ns: int
    exposed_ns: int
    free_ns: int

    @property
    def overlapped_ns(self) -> int:
        """Communication hidden behind computation."""
        return self.communication_ns - self.exposed_ns


def breakdown(computing: Set, communication: Set, start: int, end: int) -> Breakdown:
    """Split [start, end) into computing, exposed communication (not hidden by computing) and free."""
    edges = np.array([start, end])

    def inside(intervals: Set) -> int:
        until = covered_until(intervals, edges)
        return int(until[1] - until[0])

    computing_ns, communication_ns = inside(computing), inside(communication)
    busy_ns = inside(union_of(clip(computing, start, end), clip(communication, start, end)))
    return Breakdown(
        end - start, computing_ns, communication_ns, busy_ns - computing_ns, end - start - busy_ns
    )
