"""The sums of many texts as arrays: read from the records once, then used by every metric of the texts."""

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from typing import Literal

import numpy as np

from evalkit.metrics.estimators import FloatArray, IndexArray, group_clusters
from evalkit.runs.records import ClassSums, SampleRecord

SumField = Literal["tokens", "nll", "entropy", "margin", "rank", "top1", "top5"]
TotalField = Literal["nll", "scored", "bytes_scored", "words"]


class TextColumns:
    """Columns over the texts of one slice that were scored; each is made when first asked for and must not be changed.

    Attributes:
        records: the texts.
    """

    def __init__(self, records: Sequence[SampleRecord]) -> None:
        self.records = records
        self._totals: dict[str, FloatArray] = {}
        self._sums: dict[tuple[str | None, str], FloatArray] = {}
        self._lacking: dict[str, bool] = {}

    def total(self, field: TotalField) -> FloatArray:
        """A total of each text, shape (texts,)."""
        if field not in self._totals:
            self._totals[field] = np.array(list(map(attrgetter(field), self.records)), dtype=np.float64)
        return self._totals[field]

    def of_class(self, name: str | None, field: SumField) -> FloatArray:
        """A sum of each text over one class (None: over all classes), shape (texts,).

        Raises:
            TypeError: a text doesn't know the statistic; ask `lacks` first.
        """
        key = (name, field)
        if key not in self._sums:
            column = np.zeros(len(self.records))
            if name is None:
                # Fixed-point sums: plain addition is exact, in any order.
                for one in self._parts:
                    column += self.of_class(one, field)
            elif name in self._parts:
                if self.lacks(field):
                    raise TypeError(f"some text has no {field}")
                rows, parts = self._parts[name]
                column[rows] = np.array(list(map(attrgetter(field), parts)), dtype=np.float64)
            self._sums[key] = column
        return self._sums[key]

    def lacks(self, field: SumField) -> bool:
        """Whether some text has no such statistic."""
        if field not in self._lacking:
            value = attrgetter(field)
            self._lacking[field] = any(None in map(value, parts) for _, parts in self._parts.values())
        return self._lacking[field]

    @property
    def classes(self) -> frozenset[str]:
        """Classes that hold a token of any text."""
        return frozenset(self._parts)

    @cached_property
    def clusters(self) -> tuple[tuple[str, ...], IndexArray]:
        """Sorted ids of the texts' clusters, and the place of each text's among them."""
        return group_clusters([record.cluster for record in self.records])

    @cached_property
    def _parts(self) -> dict[str, tuple[IndexArray, list[ClassSums]]]:
        """For each class the places of the texts that have it, and their sums."""
        found: dict[str, tuple[list[int], list[ClassSums]]] = {}
        for place, record in enumerate(self.records):
            for name, sums in record.classes.items():
                rows, parts = found.setdefault(name, ([], []))
                rows.append(place)
                parts.append(sums)
        return {name: (np.array(rows, dtype=np.intp), parts) for name, (rows, parts) in found.items()}
