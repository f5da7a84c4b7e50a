"""From evidence to results: every metric as an estimator, then its value with its uncertainty."""

import math
from collections import Counter
from dataclasses import replace

from evalkit.errors import InputError
from evalkit.metrics import classification, dialogue, latency, logits, perplexity
from evalkit.metrics.context import MetricContext
from evalkit.metrics.estimators import NamedEstimator, RatioEstimator
from evalkit.metrics.registry import MetricSpec, spec_for
from evalkit.metrics.result import Interval, MetricResult
from evalkit.runs.evidence import Evidence
from evalkit.statistics.intervals import Question, Uncertainty, delta_error, uncertainties

_FAMILIES = (perplexity, logits, classification, dialogue, latency)


def build_estimators(evidence: Evidence, context: MetricContext) -> list[NamedEstimator]:
    """Every metric that the evidence and the context speak of, in a fixed order; keys are unique.

    Raises:
        InputError: an id is recorded twice.
    """
    records = Counter((sample.kind, sample.sample_id) for sample in evidence.samples)
    if len(records) != len(evidence.samples):
        kind, sample_id = records.most_common(1)[0][0]
        raise InputError(f"evidence: {kind} {sample_id!r} is recorded twice; the evidence is damaged")
    return [named for family in _FAMILIES for named in family.estimators(evidence, context)]


def evaluate(evidence: Evidence, context: MetricContext) -> list[MetricResult]:
    """Compute every metric: a value with interval and bounds, or null with the reason.

    Args:
        evidence: of one model.
        context: confidence, seed, signatures, what rules ask for.

    Raises:
        InputError: an id is recorded twice.
    """
    measured = build_estimators(evidence, context)
    specs = [spec_for(named.name) for named in measured]
    asked = [
        (index, Question(named.estimator, named.method or spec.method, spec.support, spec.log_scale))
        for index, (named, spec) in enumerate(zip(measured, specs, strict=True))
        if named.estimator is not None and named.estimator.value is not None
    ]
    answers = uncertainties(
        [question for _, question in asked], confidence=context.confidence, seed=context.seed
    )
    by_index = {index: answer for (index, _), answer in zip(asked, answers, strict=True)}
    return [
        _result(named, spec, by_index.get(index), context)
        for index, (named, spec) in enumerate(zip(measured, specs, strict=True))
    ]


def _result(
    named: NamedEstimator, spec: MetricSpec, answer: Uncertainty | None, context: MetricContext
) -> MetricResult:
    estimator = named.estimator
    value = None if estimator is None else estimator.value
    details = dict(named.details)
    if isinstance(estimator, RatioEstimator) and value is not None:
        details["standard_error"] = delta_error(estimator)
    if answer is not None and answer.reason is not None:
        details["interval_reason"] = answer.reason
    if answer is not None and answer.undefined:
        details["undefined_resamples"] = answer.undefined
    if value is not None and not math.isfinite(value):
        value = None
    reason = None if value is not None else named.reason or "the value isn't a finite number"
    return MetricResult(
        name=named.name,
        k=named.k,
        slice=named.slice,
        value=value,
        reason=reason,
        unit=spec.unit,
        direction=spec.direction,
        n=0 if estimator is None else estimator.n,
        clusters=0 if estimator is None else len(estimator.clusters),
        signature=context.signatures.get(spec.family, ""),
        coverage=named.coverage,
        interval=None if answer is None else _widened(answer.interval, named.widen, spec),
        bounds=None if answer is None else _widened(answer.bounds, named.widen, spec),
        action=spec.action,
        details=details,
    )


def _widened(interval: Interval | None, by: float, spec: MetricSpec) -> Interval | None:
    """The interval with a measurement error added to both sides, inside the metric's support."""
    if interval is None or by == 0:
        return interval
    lowest, highest = spec.support
    return replace(
        interval,
        low=None if interval.low is None else max(lowest, interval.low - by),
        high=None if interval.high is None else min(highest, interval.high + by),
        method=f"{interval.method}+predictor-error",
    )
