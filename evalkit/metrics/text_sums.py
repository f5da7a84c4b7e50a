"""Sums of the text evidence, ready for ratios over clusters."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from evalkit.metrics.context import MetricContext, ViewSetup
from evalkit.metrics.estimators import (
    FloatArray,
    NamedEstimator,
    RatioEstimator,
    ShareEstimator,
    chosen_clusters,
)
from evalkit.metrics.registry import TOKEN_CLASSES
from evalkit.metrics.text_columns import SumField, TextColumns, TotalField
from evalkit.runs.evidence import Evidence
from evalkit.runs.samples import Samples


@dataclass(frozen=True)
class TextSums:
    """The texts of one slice.

    Attributes:
        slice: tag, or None for all.
        scored: texts with status ok.
        planned: records of any status.
        absent: why a metric has no value, by name.
        own_classes: token classes of the user.
    """

    slice: str | None
    scored: Samples
    planned: int
    absent: dict[str, str]
    own_classes: tuple[str, ...] = ()

    @property
    def coverage(self) -> float | None:
        """Share of the texts that were scored; None where there are none."""
        return len(self.scored) / self.planned if self.planned else None

    @property
    def classes(self) -> list[str]:
        """Token classes that hold a token, or that a metric should have and can't."""
        found = self.columns.classes
        named = {name.removeprefix("perplexity/") for name in self.absent}
        every = (*TOKEN_CLASSES, *self.own_classes)
        return [name for name in every if name != "other" or name in found or name in named]

    @cached_property
    def columns(self) -> TextColumns:
        """The records' sums as arrays."""
        return TextColumns(self.scored)

    def column(self, field: TotalField) -> FloatArray:
        """A total of each record, shape (records,)."""
        return self.columns.total(field)

    def class_column(self, name: str | None, field: SumField) -> FloatArray:
        """A sum of each record over one class (None: over all classes), shape (records,)."""
        return self.columns.of_class(name, field)

    def lacks(self, field: SumField) -> bool:
        """Whether the backend couldn't know this statistic of some text."""
        return self.columns.lacks(field)

    def view_column(self, view: ViewSetup, field: SumField) -> FloatArray:
        """A sum of each record over one view, shape (records,)."""
        if view.tag is not None:
            return np.where(self.scored.tagged(view.tag), self.class_column(None, field), 0.0)
        return self.columns.of_view(view.name, field)

    def ratio(
        self,
        name: str,
        numerators: FloatArray,
        denominators: FloatArray,
        transform: Literal["identity", "exp"] = "identity",
        *,
        scale: float = 1.0,
        share: bool = False,
        details: dict[str, object] | None = None,
    ) -> NamedEstimator:
        """The metric `name` as a ratio of sums over the texts' clusters.

        Args:
            name: of the metric; where `absent` names it the result is null with that reason.
            numerators, denominators: of each record, shape (records,).
            transform, scale: see `RatioEstimator`.
            share: whether numerators count successes among the denominators.
            details: further fields.
        """
        if name in self.absent:
            return self.null(name, self.absent[name])
        kind = ShareEstimator if share else RatioEstimator
        # A text without a unit in the denominator says nothing: its cluster isn't one of this metric's.
        used = np.flatnonzero(denominators)
        clusters, index = chosen_clusters(*self.columns.clusters, used)
        if len(used) < len(denominators):
            numerators, denominators = numerators[used], denominators[used]
        estimator = kind.from_groups(clusters, index, numerators, denominators, transform, scale)
        reason = None
        if estimator.value is None:
            reason = "no text was scored" if not self.scored else "no token of the texts belongs to it"
        return NamedEstimator(
            name,
            slice=self.slice,
            estimator=estimator,
            reason=reason,
            coverage=self.coverage,
            details=dict(details or {}),
        )

    def null(self, name: str, reason: str) -> NamedEstimator:
        """The metric `name` without a value."""
        return NamedEstimator(name, slice=self.slice, reason=reason, coverage=self.coverage)


def text_slices(evidence: Evidence, context: MetricContext) -> list[TextSums]:
    """All texts, then the asked slices that some text belongs to; empty where no text was planned."""
    texts = evidence.columns.of_kind("text")
    if not texts:
        return []
    tags = texts.tags
    names: list[str | None] = [None, *(name for name in context.slices if name in tags)]
    return [_sums(name, evidence, texts, context) for name in names]


def _sums(name: str | None, evidence: Evidence, texts: Samples, context: MetricContext) -> TextSums:
    own = tuple(setup.name for setup in context.classes)
    known: TextSums | None = evidence.memo.get(("texts", name))
    if known is None:
        members = texts if name is None else texts.where(texts.tagged(name))
        scored = members.where(members.equals("status", "ok"))
        known = TextSums(name, scored, len(members), context.absent, own)
        evidence.memo["texts", name] = known
    found = replace(known, absent=context.absent, own_classes=own)
    # What cached_property would do, with columns that may be there already.
    found.__dict__["columns"] = known.columns
    return found
