"""Exact sums."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.metrics.accumulators import UNIT, class_sums, exact_sum, from_fixed, to_fixed

FLOATS = st.lists(st.floats(-200, 200, width=32), max_size=60)


@given(FLOATS, st.randoms())
def test_sums_do_not_depend_on_order_or_grouping(values, random):
    shuffled = values.copy()
    random.shuffle(shuffled)
    cut = len(values) // 3
    fixed = to_fixed(np.array(shuffled, dtype=np.float32))
    parts = from_fixed(int(fixed[:cut].sum())) + from_fixed(int(fixed[cut:].sum()))
    assert parts == from_fixed(int(to_fixed(np.array(values, dtype=np.float32)).sum()))


@given(FLOATS)
def test_sums_are_as_near_as_the_quantum_allows(values):
    fixed = to_fixed(np.array(values, dtype=np.float32))
    assert abs(from_fixed(int(fixed.sum())) - math.fsum(values)) <= len(values) * UNIT / 2


@given(st.lists(st.integers(0, 3), max_size=50), st.data())
def test_class_sums_add_up_to_the_total(classes, data):
    values = data.draw(st.lists(st.floats(-99, 99, width=32), min_size=len(classes), max_size=len(classes)))
    fixed = to_fixed(np.array(values, dtype=np.float32))[np.newaxis]
    sums = class_sums(fixed, np.array(classes, dtype=np.int64), 4)
    assert sums.shape == (1, 4)
    assert sums.sum() == fixed.sum()


def test_a_sum_beyond_exactness_is_refused():
    with pytest.raises(OverflowError, match="too large to be exact"):
        from_fixed((1 << 53) + 1)


def test_sums_of_arrays_are_those_of_fsum() -> None:
    draw = np.random.default_rng(3)
    arrays = [
        np.rint(draw.normal(0, 1e3, 10_000) * 2**30) / 2**30,
        # Beyond 2**53 units in all, even beyond int64.
        np.rint(draw.gamma(1, 4e8, 100_000) * 2**20) / 2**20,
        draw.normal(size=1000),
        np.array([2.0**33, 1.5]),
        np.full(5, -(2.0**31)),  # each fits, all of them just don't
        np.array([2.0**32, -(2.0**32), UNIT]),
        np.array([np.inf, 1.0]),
        np.array([1.0, -np.inf]),
        np.array([-0.0]),
        np.array([np.nan, 1.0]),
        np.empty(0),
    ]
    for values in arrays:
        assert repr(exact_sum(values)) == repr(math.fsum(values))
