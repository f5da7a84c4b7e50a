"""Validation texts drawn by their weights, as a sampler of a MindSpore dataset. Needs MindSpore.

MindSpore copies a sampler when an iterator is made: one that is changed inside one `Model.train`, or between the epochs of
one iterator, is ignored. So a sampler can't be changed here at all: make a dataset with a new one where the weights are new.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from mindspore.dataset import Sampler

from evalkit.checks import instance, whole
from evalkit.errors import InputError
from evalkit.resampling.draw import draw


class ReweightedSampler(Sampler):  # type: ignore[misc]
    """Rows of a dataset, drawn in proportion to weights; equal arguments give equal rows on every rank."""

    def __init__(self, ids: Sequence[str], weights: Mapping[str, float], size: int, seed: int) -> None:
        """Draw.

        Args:
            ids: of the dataset's rows, in its order.
            weights: by id, as `ResampleSetup.weights` holds them; a row without one is never drawn.
            size: rows to draw; a row may come more than once.
            seed: of draw and order.

        Raises:
            InputError: nothing to draw from, or a weight is negative or not finite; weights that are no mapping.
        """
        size, seed = whole("size", size, least=1), whole("seed", seed, least=0)
        instance("weights", weights, Mapping, "a mapping from a row's id to its weight")
        values = np.array([weights.get(name, 0.0) for name in ids], dtype=np.float64)
        if not np.isfinite(values).all() or (values < 0).any():
            raise InputError("weights: finite numbers from 0 on are needed")
        if not values.any():
            raise InputError("weights: no row of the dataset has one above 0")
        super().__init__(num_samples=size)
        rows = np.repeat(np.arange(len(ids)), draw(values, size, seed))
        self._rows: list[int] = np.random.default_rng([seed, 1]).permutation(rows).tolist()

    def __iter__(self) -> Iterator[int]:
        """Row numbers, in order."""
        return iter(self._rows)
