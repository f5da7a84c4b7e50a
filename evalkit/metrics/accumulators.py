"""Exact sums: float32 statistics as whole multiples of 2**-30, added as integers.

Integer addition is exact in any order, so neither batches nor shards nor a resume can move a bit of a sum. A
float64 holds such a sum exactly below 2**23 (8.4 million nats), and `math.fsum` adds several exactly beyond
that, as does `exact_sum` for arrays.
"""

import math

import numpy as np
import numpy.typing as npt

FRACTION_BITS = 30
UNIT = 2.0**-FRACTION_BITS

_LARGEST_EXACT = 1 << 53
_LARGEST_HALVED = 2.0**62


def to_fixed(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Round finite statistics to whole multiples of `UNIT`, shape kept.

    A float32 of magnitude 2**-7 or more is such a multiple already; smaller ones move by at most 2**-31.
    """
    fixed: npt.NDArray[np.int64] = np.rint(values.astype(np.float64) * 2.0**FRACTION_BITS).astype(np.int64)
    return fixed


def from_fixed(total: int) -> float:
    """The float64 that equals `total` units.

    Raises:
        OverflowError: no float64 equals it.
    """
    total = int(total)
    if abs(total) > _LARGEST_EXACT:
        raise OverflowError(f"a sum of {total * UNIT:.0f} is too large to be exact")
    return total * UNIT


def exact_sum(values: npt.NDArray[np.float64]) -> float:
    """The float64 next to the exact sum, as `math.fsum` gives it, without a step in Python for each fixed-point value.

    Args:
        values: shape (values,); any other than multiples of `UNIT` below 2**32 are left to `math.fsum`.
    """
    if not values.size:
        return 0.0
    scaled = values * 2.0**FRACTION_BITS
    largest = max(-float(scaled.min()), float(scaled.max()))
    # Written so that NaN isn't below it either.
    if not largest < _LARGEST_HALVED:
        return math.fsum(values)
    fixed = scaled.astype(np.int64)
    if not np.array_equal(fixed, scaled):
        return math.fsum(values)
    if largest * fixed.size < _LARGEST_HALVED:
        return int(fixed.sum()) / (1 << FRACTION_BITS)
    # Upper and lower half apart: neither sum can pass the end of int64 before there are 2**31 values.
    total = (int((fixed >> 32).sum()) << 32) + int((fixed & 0xFFFFFFFF).sum())
    return total / (1 << FRACTION_BITS)


def class_sums(
    fixed: npt.NDArray[np.int64], classes: npt.NDArray[np.int64], n_classes: int
) -> npt.NDArray[np.int64]:
    """Sums by class, exact.

    Args:
        fixed: shape (statistics, tokens).
        classes: class of each token, shape (tokens,), in [0, n_classes).
        n_classes: columns of the result.

    Returns:
        Shape (statistics, n_classes).
    """
    member = classes[:, np.newaxis] == np.arange(n_classes)
    # A product of integer matrices: numpy adds int64 exactly.
    sums: npt.NDArray[np.int64] = fixed @ member.astype(np.int64)
    return sums
