"""The sums of many texts as arrays: made once, then used by every metric of the texts."""

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import numpy as np

from evalkit.metrics.estimators import FloatArray, IndexArray, group_clusters
from evalkit.runs.samples import Samples, SumColumns

SumField = Literal["tokens", "nll", "entropy", "margin", "rank", "top1", "top5"]
TotalField = Literal["nll", "scored", "bytes_scored", "words"]


class TextColumns:
    """Columns over the texts of one slice that were scored; each is made when first asked for and must not be changed.

    Attributes:
        texts: of the slice.
    """

    def __init__(self, texts: Samples) -> None:
        self.texts = texts
        self._totals: dict[str, FloatArray] = {}
        self._sums: dict[tuple[str | None, str], FloatArray] = {}

    def total(self, field: TotalField) -> FloatArray:
        """A total of each text, shape (texts,)."""
        if field not in self._totals:
            values = self.texts.nll if field == "nll" else self.texts.counts(field)
            self._totals[field] = values.astype(np.float64)
        return self._totals[field]

    def of_class(self, name: str | None, field: SumField) -> FloatArray:
        """A sum of each text over one class (None: over all classes), shape (texts,).

        Raises:
            TypeError: a text doesn't know the statistic; ask `lacks` first.
        """
        key = (name, field)
        if key not in self._sums:
            self._sums[key] = self._all_classes(field) if name is None else self._one_class(name, field)
        return self._sums[key]

    def _all_classes(self, field: SumField) -> FloatArray:
        column = np.zeros(len(self.texts))
        # Fixed-point sums: plain addition is exact, in any order.
        for one in self._parts:
            column += self.of_class(one, field)
        return column

    def _one_class(self, name: str, field: SumField) -> FloatArray:
        part = self._parts.get(name)
        if part is None:
            return np.zeros(len(self.texts))
        if self.lacks(field):
            raise TypeError(f"some text has no {field}")
        if len(part.rows) == len(self.texts):
            return part.sums[field]  # every text has the class: nothing is copied
        column = np.zeros(len(self.texts))
        column[part.rows] = part.sums[field]
        return column

    def of_view(self, name: str, field: SumField) -> FloatArray:
        """A sum of each text over one view, shape (texts,)."""
        column = np.zeros(len(self.texts))
        part = self.texts.sums("views").get(name)
        if part is not None:
            column[part.rows] = part.sums[field]
        return column

    def lacks(self, field: SumField) -> bool:
        """Whether some text has no such statistic."""
        return any(field in part.lacking for part in self._parts.values())

    @property
    def classes(self) -> frozenset[str]:
        """Classes that hold a token of any text."""
        return frozenset(self._parts)

    @cached_property
    def clusters(self) -> tuple[tuple[str, ...], IndexArray]:
        """Sorted ids of the texts' clusters, and the place of each text's among them."""
        return group_clusters(self.texts.strings("cluster"))

    @cached_property
    def _parts(self) -> Mapping[str, SumColumns]:
        """For each class the places of the texts that have it, and their sums."""
        return self.texts.sums("classes")
