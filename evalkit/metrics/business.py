"""Business figures: a declared, versioned mapping from a metric, with the interval carried through.

A direct figure is the metric under the business's name. A user's own mapping is a monotone function of it. A calibrated
one is what past releases with this offline score showed online: its interval joins the metric's own uncertainty and
the prediction error, each at half the miss probability (Bonferroni), and nothing is said outside the history.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from evalkit.canonical import sha256_json
from evalkit.errors import InputError
from evalkit.metrics.context import BusinessSetup, MetricContext
from evalkit.metrics.estimators import MetricKey, NamedEstimator
from evalkit.metrics.history import Calibration, rank_correlation
from evalkit.metrics.mapping import OwnFigure, OwnMapping, mapped
from evalkit.metrics.result import Interval, MetricResult
from evalkit.metrics.spec import BUSINESS_PREFIX, MetricSpec

_ANY = (-np.inf, np.inf)
_GRID = 33
PREDICTOR_DETAILS = ("predictor_error", "predictor_data")


def business_spec(setup: BusinessSetup, source: MetricSpec, mapping: OwnMapping | None) -> MetricSpec:
    """The figure's entry beside those of the registry; what it doesn't declare is the metric's."""
    kept = setup.history is None and mapping is None
    unit = setup.unit or (source.unit if kept else mapping.unit if mapping else "figure")
    direction = setup.direction or (mapping.direction if mapping else source.direction)
    return replace(
        source,
        name=BUSINESS_PREFIX + setup.name,
        unit=unit,
        direction=direction,
        family=BUSINESS_PREFIX + setup.name,
        support=source.support if kept else _ANY,
        action=mapping.action if mapping else f"it comes from {setup.source}: {source.action}",
    )


def business_signature(setup: BusinessSetup, source: str) -> str:
    """Signature of a figure: the metric's, and the mapping with its data and code."""
    return f"{source}|biz:{sha256_json(asdict(setup))[:8]}"


def calibration(setup: BusinessSetup, source: MetricSpec) -> Calibration:
    """The fit of a calibrated figure; `setup.history` and `setup.fit` must be there.

    Raises:
        InputError: the history contradicts the declared directions.
    """
    assert setup.history is not None and setup.fit is not None
    rising = (setup.direction or source.direction) == source.direction
    correlation = rank_correlation(setup.history)
    if not (correlation > 0 if rising else correlation < 0):
        wanted = "rise" if rising else "fall"
        raise InputError(
            f"{setup.history.data}: online doesn't {wanted} with offline (rank correlation {correlation:.2f}), though "
            f"{setup.source} is better when {source.direction} and the figure when "
            f"{setup.direction or source.direction}; declare the figure's direction, or take another metric"
        )
    return Calibration(setup.history, setup.fit, rising)


def estimators(
    context: MetricContext,
    measured: Sequence[NamedEstimator],
    mappings: Mapping[str, OwnMapping],
    spec_of: Callable[[str], MetricSpec],
) -> list[NamedEstimator]:
    """Every business figure of the scenario, from the metrics that were measured.

    A calibrated one has no estimator: its error is common to candidate and baseline, so there is nothing to pair.

    Args:
        context: the evaluation.
        measured: metrics of the same evidence.
        mappings: the user's own, by figure.
        spec_of: the declaration of a metric by its name.
    """
    by_key = {named.key: named for named in measured}
    return [_figure(setup, _source(setup, by_key), mappings, spec_of) for setup in context.business]


def predict(
    setup: BusinessSetup, fitted: Calibration, source: MetricResult, result: MetricResult, confidence: float
) -> MetricResult:
    """A calibrated figure.

    Args:
        setup, fitted: the figure.
        source: its metric, with interval and bounds at the confidence (1 + confidence) / 2.
        result: what is known of the figure already.
        confidence: wanted.
    """
    low, high = fitted.range
    if source.value is None:
        return result
    details = {**result.details, "source_value": source.value}
    if not fitted.covers(source.value):
        reason = f"outside the calibration history: {setup.source} is {source.value:.6g}, seen were {low:.6g} to {high:.6g}"
        return replace(result, reason=reason, details=details)
    interval = _predicted(fitted, source.value, source.interval, confidence)
    bounds = _predicted(fitted, source.value, source.bounds, confidence)
    if interval is None:
        details["interval_reason"] = source.details.get("interval_reason") or f"{setup.source} has none"
    elif interval.low is None or interval.high is None:
        details["interval_reason"] = (
            f"the interval of {setup.source} reaches outside the calibration history ({low:.6g} to {high:.6g}): "
            "that end is unknown"
        )
    return replace(
        result,
        value=fitted.predict(source.value),
        reason=None,
        n=source.n,
        clusters=source.clusters,
        coverage=source.coverage,
        interval=interval,
        bounds=bounds,
        details=details,
    )


def carry_through(mapping: OwnMapping, source: MetricResult, result: MetricResult) -> MetricResult:
    """A user's mapping of a metric: value and ends of interval and bounds, each mapped."""
    if source.value is None or result.value is None:
        return result
    ends = [source.value]
    for interval in (source.interval, source.bounds):
        ends += [end for end in (interval.low, interval.high) if end is not None] if interval else []
    grid = [mapped(mapping, float(value)) for value in np.linspace(min(ends), max(ends), _GRID)]
    steps = np.diff(grid) if mapping.rising else -np.diff(grid)
    if not (steps >= 0).all():
        way = "rising" if mapping.rising else "falling"
        reason = f"the mapping isn't {way} between {min(ends):.6g} and {max(ends):.6g}, as it declares"
        return replace(result, value=None, reason=reason, interval=None, bounds=None)
    details = dict(result.details)
    if source.details.get("interval_reason"):
        details["interval_reason"] = source.details["interval_reason"]
    return replace(
        result,
        interval=_mapped_interval(mapping, source.interval),
        bounds=_mapped_interval(mapping, source.bounds),
        details=details,
    )


def _figure(
    setup: BusinessSetup,
    source: NamedEstimator | None,
    mappings: Mapping[str, OwnMapping],
    spec_of: Callable[[str], MetricSpec],
) -> NamedEstimator:
    name, mapping = BUSINESS_PREFIX + setup.name, mappings.get(setup.name)
    details = _described(setup)
    if source is not None:
        # What a predicted metric stands on, its figures stand on too.
        details |= {key: source.details[key] for key in PREDICTOR_DETAILS if key in source.details}
    if source is None or source.estimator is None or source.estimator.value is None:
        why = "it isn't among the metrics of the run" if source is None else source.reason
        return NamedEstimator(name, reason=f"{_key(setup)} has no value: {why}", details=details)
    if setup.history is not None:
        reason = f"a prediction isn't compared in pairs; compare {_key(setup)}"
        return NamedEstimator(name, reason=reason, coverage=source.coverage, details=details)
    if mapping is not None:
        estimator = OwnFigure(source.estimator, mapping)
        undefined = None if estimator.value is not None else "the mapping gives no finite number"
        return NamedEstimator(
            name, estimator=estimator, reason=undefined, coverage=source.coverage, details=details
        )
    return replace(
        source,
        name=name,
        k=None,
        slice=None,
        method=source.method or spec_of(setup.source).method,
        details=details,
    )


def _source(setup: BusinessSetup, by_key: dict[MetricKey, NamedEstimator]) -> NamedEstimator | None:
    return by_key.get(MetricKey(setup.source, setup.k, setup.slice))


def _key(setup: BusinessSetup) -> str:
    k = f" k={setup.k}" if setup.k is not None else ""
    return f"{setup.source}{k}" + (f" of {setup.slice}" if setup.slice is not None else "")


def _described(setup: BusinessSetup) -> dict[str, Any]:
    described: dict[str, Any] = {"from": _key(setup), "mapping_version": setup.version, "mapping": "direct"}
    if setup.history is not None:
        described["mapping"] = setup.fit
        described["calibration"] = {
            "data": setup.history.data,
            "sha256": setup.history.sha256,
            "releases": len(setup.history.rows),
        }
    elif setup.own is not None:
        described["mapping"] = setup.own.reference
        described["mapping_sha256"] = setup.own.sha256
    return described


def _predicted(
    fitted: Calibration, value: float, source: Interval | None, confidence: float
) -> Interval | None:
    if source is None:
        return None
    inside = [end for end in (source.low, value, source.high) if end is not None and fitted.covers(end)]
    shared = (1 + confidence) / 2
    widths = [fitted.half_width(end, shared, source.sides) for end in inside]
    figures = [fitted.predict(end) for end in inside]
    lows = [figure - width for figure, width in zip(figures, widths, strict=True)]
    highs = [figure + width for figure, width in zip(figures, widths, strict=True)]
    # The end of the metric's interval that a figure's end comes from must lie inside the history.
    below, above = (source.low, source.high) if fitted.rising else (source.high, source.low)
    return replace(
        source,
        low=min(lows) if below is not None and fitted.covers(below) else None,
        high=max(highs) if above is not None and fitted.covers(above) else None,
        confidence=confidence,
        method=f"{source.method}+{fitted.fit}-prediction",
    )


def _mapped_interval(mapping: OwnMapping, source: Interval | None) -> Interval | None:
    if source is None:
        return None
    low, high = (source.low, source.high) if mapping.rising else (source.high, source.low)

    def end(value: float | None) -> float | None:
        figure = None if value is None else mapped(mapping, value)
        return figure if figure is not None and np.isfinite(figure) else None

    return replace(source, low=end(low), high=end(high))
