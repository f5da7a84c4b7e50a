"""What every dialogue metric is built with: the trials of a slice, and shares and means over them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evalkit.metrics.context import DialogueSetup
from evalkit.metrics.estimators import IntervalMethod, NamedEstimator, RatioEstimator, ShareEstimator
from evalkit.metrics.trials import Trial, TrialSet


@dataclass(frozen=True)
class View:
    """The trials of one slice, as every metric below reads them."""

    setup: DialogueSetup
    trials: TrialSet
    slice: str | None

    @property
    def scored(self) -> list[Trial]:
        """Independent trials that gave a result."""
        return [trial for trial in self.trials.independent() if trial.outcome != "missing"]

    @property
    def method(self) -> IntervalMethod | None:
        """A fixed list whose trials don't vary is measured whole: its rates are facts, each its own bound."""
        whole = self.setup.population == "fixed" and len(self.trials.copies) == len(self.trials.dialogue_ids)
        return "fixed-population" if whole else None


Unit = tuple[str, float, float]
"""Cluster (the dialogue), numerator, denominator."""


def shares(units: Iterable[Unit]) -> ShareEstimator:
    """Share over units of (cluster, numerator, denominator)."""
    clusters, numerators, denominators = zip(*units, strict=True)
    return ShareEstimator.from_units(clusters, numerators, denominators)


def share(
    view: View, name: str, units: Sequence[Unit], empty: str, details: Mapping[str, object] | None = None
) -> NamedEstimator:
    """A share as a metric; absent with the reason `empty` where there is no unit."""
    if not units:
        return absent(view, name, empty)
    return named(view, name, shares(units), details or {})


def mean(
    view: View,
    name: str,
    units: Sequence[Unit],
    empty: str,
    details: Mapping[str, object] | None = None,
    widen: float = 0.0,
) -> NamedEstimator:
    """A mean as a metric, likewise; `widen` is added to both sides of its interval."""
    if not units:
        return absent(view, name, empty)
    clusters, numerators, denominators = zip(*units, strict=True)
    return named(
        view, name, RatioEstimator.from_units(clusters, numerators, denominators), details or {}, widen
    )


def named(
    view: View, name: str, estimator: RatioEstimator, details: Mapping[str, object], widen: float = 0.0
) -> NamedEstimator:
    """An estimator under its name, with the coverage of the slice."""
    return NamedEstimator(
        name,
        slice=view.slice,
        estimator=estimator,
        coverage=view.trials.coverage,
        details=dict(details),
        method=view.method,
        widen=widen,
    )


def absent(view: View, name: str, reason: str) -> NamedEstimator:
    """A metric without a value, and why."""
    if not view.scored:
        reason = "no trial gave a result"
    return NamedEstimator(name, slice=view.slice, reason=reason, coverage=view.trials.coverage)
