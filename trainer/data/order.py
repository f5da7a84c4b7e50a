"""The order of an epoch, and which part of it a rank reads."""

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def epoch_order(rows: int, *, seed: int, epoch: int) -> Indices:
    """A permutation of the row numbers that seed and epoch alone decide; shape (rows,)."""
    return np.random.default_rng([seed, epoch]).permutation(rows)


def rank_batches(order: Indices, batch_size: int, *, rank: int, size: int) -> Indices:
    """The rows of each batch of one rank; shape (batches, batch_size), -1 where there is no row.

    A step takes the next `batch_size * size` rows of the order, whatever the number of ranks, and each rank
    `batch_size` of them in turn: no row twice, none left out, the same number of batches on every rank. What the last
    step lacks is -1, never a row again.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} isn't within 0 and {size - 1}")
    steps = -(-len(order) // (batch_size * size))
    filled = np.full(steps * batch_size * size, -1, dtype=np.int64)
    filled[: len(order)] = order
    return filled.reshape(steps, size, batch_size)[:, rank]
