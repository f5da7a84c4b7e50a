"""Drawing validation texts by their weights."""

import numpy as np
import numpy.typing as npt

from evalkit.metrics.estimators import FloatArray


def draw(weights: FloatArray, size: int, seed: int) -> npt.NDArray[np.int64]:
    """How often each text is drawn, in expectation `size` times its share of the weights; shape (texts,).

    Systematic sampling (Madow 1949) in a random order: a text is drawn the whole part of its expectation or once more,
    which varies less than independent draws.

    Args:
        weights: not negative, not all 0.
        size: texts in all.
        seed: of order and start; equal arguments give equal draws.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(weights))
    reached = np.cumsum(weights[order])
    ends = np.floor(reached / reached[-1] * size - generator.uniform()).astype(np.int64) + 1
    # The last end is `size` whatever the rounding of the sums.
    ends[-1] = size
    counts = np.empty(len(weights), dtype=np.int64)
    counts[order] = np.diff(ends, prepend=0)
    return counts
