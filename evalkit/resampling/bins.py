"""Bins of features: edges pinned from the validation set, so that any other traffic is counted in the same ones.

A bin holds (lower edge, upper edge]; values outside of what the validation set holds have a bin of their own at either end,
which no validation sample covers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from evalkit.metrics.estimators import FloatArray

CodeArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Bins:
    """The bins of several features.

    Attributes:
        names: of the features.
        edges: of each feature, rising: the validation set's lowest value, the upper edges of all bins but the last, and
            its highest value.
    """

    names: tuple[str, ...]
    edges: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, names: tuple[str, ...], values: FloatArray, count: int) -> "Bins":
        """Bins of about equally many validation samples; equal values share a bin, so there may be fewer.

        Args:
            names: of the features.
            values: of the validation set, shape (texts, features), at least one text.
            count: bins a feature.
        """
        edges = []
        for column in values.T:
            cuts = np.quantile(column, np.arange(1, count) / count, method="inverted_cdf")
            inner = np.unique(cuts[cuts < column.max()])
            edges.append((float(column.min()), *map(float, inner), float(column.max())))
        return cls(names, tuple(edges))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bins of each feature, the two outer ones included."""
        return tuple(len(edges) + 1 for edges in self.edges)

    def codes(self, values: FloatArray) -> CodeArray:
        """The bin of each value, shape (texts, features): 0 is below the validation set, the last one above it."""
        codes = np.empty(values.shape, dtype=np.int64)
        for index, edges in enumerate(self.edges):
            column = values[:, index]
            found = 1 + np.searchsorted(np.array(edges[1:-1]), column, side="left")
            found[column < edges[0]] = 0
            found[column > edges[-1]] = len(edges)
            codes[:, index] = found
        return codes

    def marginals(self, codes: CodeArray, weights: FloatArray | None = None) -> list[FloatArray]:
        """Of each feature the share of every bin, shape (its bins,)."""
        return [shares(codes[:, index], size, weights) for index, size in enumerate(self.sizes)]

    def cells(self, codes: CodeArray) -> CodeArray:
        """The joint bin of each text, shape (texts,)."""
        cells: CodeArray = np.ravel_multi_index(tuple(codes.T), self.sizes).astype(np.int64)
        return cells


@dataclass(frozen=True, eq=False)
class CellCounts:
    """How many texts of some traffic lie in each joint bin: whole numbers, so that counts of several sources add up exactly.

    Attributes:
        cells: bins of each joint bin that holds a text, sorted, shape (joint bins, features).
        counts: texts in each, shape (joint bins,).
    """

    cells: CodeArray
    counts: CodeArray

    @classmethod
    def of(cls, codes: CodeArray) -> "CellCounts":
        """Count the bins of texts, shape (texts, features)."""
        cells, counts = np.unique(codes, axis=0, return_counts=True)
        return cls(cells.astype(np.int64), counts.astype(np.int64))

    @classmethod
    def merged(cls, parts: Sequence["CellCounts"]) -> "CellCounts":
        """The counts of all parts together; at least one part."""
        return cls.of(np.concatenate([part.codes() for part in parts]))

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]], features: int) -> "CellCounts":
        """What `rows` gave."""
        table = np.array(rows, dtype=np.int64).reshape(-1, features + 1)
        return cls(table[:, :-1], table[:, -1])

    def rows(self) -> list[list[int]]:
        """Bins and count of each joint bin, as JSON values."""
        rows: list[list[int]] = np.column_stack([self.cells, self.counts]).tolist()
        return rows

    def codes(self) -> CodeArray:
        """The bins of each text, sorted, shape (texts, features)."""
        return np.repeat(self.cells, self.counts, axis=0)


def shares(codes: CodeArray, size: int, weights: FloatArray | None = None) -> FloatArray:
    """Share of each of `size` bins, shape (size,)."""
    counts: FloatArray = np.bincount(codes, weights, size).astype(np.float64)
    found: FloatArray = counts / counts.sum()
    return found


def total_variation(first: FloatArray, second: FloatArray) -> float:
    """Half of the summed absolute differences of two distributions: 0 where they are equal, 1 where they are apart."""
    return float(np.abs(first - second).sum() / 2)


def shift_p_value(
    first: CodeArray, second: CodeArray, sizes: tuple[int, ...], *, pairs: bool = False
) -> float:
    """Probability of a difference as large as this between two sets of texts of the same kind, smallest over the features.

    Pearson's chi-square test of homogeneity by feature, times the number of tests (Bonferroni), at most 1. The two outer
    bins count as part of their neighbours: one set alone has made the edges.

    Args:
        first, second: bins of the texts, shape (texts, features).
        sizes: bins of each feature.
        pairs: also test the joint bins of every two features.
    """
    from scipy.stats import chi2_contingency

    def tested(codes: CodeArray) -> list[CodeArray]:
        inner = [np.clip(column, 1, size - 2) for column, size in zip(codes.T, sizes, strict=True)]
        found = list(inner)
        for (left, _), (right, size) in combinations(zip(inner, sizes, strict=True), 2) if pairs else ():
            found.append(left * size + right)
        return found

    columns = list(zip(tested(first), tested(second), strict=True))
    smallest = 1.0
    for ours, theirs in columns:
        size = 1 + int(max(ours.max(), theirs.max()))
        table = np.stack([np.bincount(ours, minlength=size), np.bincount(theirs, minlength=size)])
        table = table[:, table.sum(axis=0) > 0]
        if table.shape[1] > 1:
            smallest = min(smallest, float(chi2_contingency(table, correction=False).pvalue) * len(columns))
    return smallest


def joint_shares(first: CodeArray, second: CodeArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Shares of the joint bins that either of two sets holds.

    Args:
        first, second: joint bin of each text.
        weights: of the texts of `first`.

    Returns:
        Shares of both sets on the same bins, shape (bins,) each.
    """
    present, index = np.unique(np.concatenate([first, second]), return_inverse=True)
    ours, theirs = index[: len(first)], index[len(first) :]
    return shares(ours, len(present), weights), shares(theirs, len(present))
