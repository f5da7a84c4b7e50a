"""Interval sets against sets of single nanoseconds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.timeline import intervals

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def as_set(found):
    return {time for start, end in found for time in range(start, end)}


def make(items):
    starts = np.array([start for start, _ in items], np.int64)
    ends = np.array([start + length for start, length in items], np.int64)
    return intervals.union(starts, ends), {t for start, length in items for t in range(start, start + length)}


@given(pairs, pairs, st.integers(0, 70), st.integers(0, 30))
def test_algebra(left, right, start, length):
    a, in_a = make(left)
    b, in_b = make(right)
    window = set(range(start, start + length))
    assert as_set(a) == in_a and intervals.total(a) == len(in_a)
    assert (a[1:, 0] > a[:-1, 1]).all()
    assert as_set(intervals.union_of(a, b)) == in_a | in_b
    assert as_set(intervals.intersection(a, b)) == in_a & in_b
    assert as_set(intervals.difference(a, b)) == in_a - in_b
    assert as_set(intervals.clip(a, start, start + length)) == in_a & window
    assert as_set(intervals.complement(a, start, start + length)) == window - in_a
    times = np.arange(0, 75)
    assert intervals.covered_until(a, times).tolist() == [
        len([t for t in in_a if t < time]) for time in times
    ]


@given(pairs, pairs, st.integers(0, 70), st.integers(0, 30))
def test_a_breakdown_adds_up_and_is_never_negative(computing, communication, start, length):
    a, in_a = make(computing)
    b, in_b = make(communication)
    window = set(range(start, start + length))
    found = intervals.breakdown(a, b, start, start + length)
    assert found.computing_ns == len(in_a & window)
    assert found.communication_ns == len(in_b & window)
    assert found.exposed_ns == len((in_b - in_a) & window)
    assert found.free_ns == len(window - in_a - in_b)
    assert found.computing_ns + found.exposed_ns + found.free_ns == found.window_ns == length
    assert found.overlapped_ns == len(in_a & in_b & window)


def test_times_of_real_size_stay_exact():
    start = np.array([1_704_161_511_420_306_491, 1_704_161_511_420_306_492])
    found = intervals.union(start, start + 1)
    assert intervals.total(found) == 2
    assert found.tolist() == [[1_704_161_511_420_306_491, 1_704_161_511_420_306_493]]


def test_nothing():
    assert intervals.total(intervals.EMPTY) == 0
    assert intervals.breakdown(intervals.EMPTY, intervals.EMPTY, 5, 9).free_ns == 4
    with pytest.raises(IndexError):
        intervals.EMPTY[0]
