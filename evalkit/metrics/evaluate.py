"""From evidence to results: every metric as an estimator, then its value with its uncertainty."""

import math
from collections.abc import Sequence
from dataclasses import replace

from evalkit.errors import InputError
from evalkit.metrics import (
    business,
    calibration,
    classification,
    dialogue,
    latency,
    logits,
    own,
    perplexity,
    resampled,
    robustness,
    token_calibration,
)
from evalkit.metrics.context import MetricContext
from evalkit.metrics.declared import Declared, declare
from evalkit.metrics.estimators import MetricKey, NamedEstimator, RatioEstimator
from evalkit.metrics.result import Interval, MetricResult
from evalkit.metrics.spec import BUSINESS_PREFIX, MetricSpec
from evalkit.runs.evidence import Evidence
from evalkit.statistics.intervals import Question, Uncertainty, delta_error, uncertainties

_FAMILIES = (
    perplexity,
    logits,
    token_calibration,
    classification,
    calibration,
    dialogue,
    latency,
    robustness,
)


def build_estimators(
    evidence: Evidence, context: MetricContext, declared: Declared | None = None
) -> list[NamedEstimator]:
    """Every metric that the evidence and the context speak of, in a fixed order; keys are unique.

    Args:
        evidence: of one model.
        context: what is asked.
        declared: the scenario's additions; None: they are loaded.

    Raises:
        InputError: an id is recorded twice, or the user's code doesn't work.
    """
    declared = declared or declare(context)
    twice = evidence.columns.repeated()
    if twice is not None:
        raise InputError(f"evidence: {twice[0]} {twice[1]!r} is recorded twice; the evidence is damaged")
    measured = [named for family in _FAMILIES for named in family.estimators(evidence, context)]
    measured += own.estimators(evidence, context, declared.own)
    if context.resample is not None:
        measured += resampled.estimators(evidence, context, context.resample, declared.own)
    return measured + business.estimators(context, measured, declared.mappings, declared.spec)


def evaluate(evidence: Evidence, context: MetricContext) -> list[MetricResult]:
    """Compute every metric: a value with interval and bounds, or null with the reason.

    Args:
        evidence: of one model.
        context: confidence, seed, signatures, what rules ask for.

    Raises:
        InputError: an id is recorded twice, or the user's code doesn't work.
    """
    declared = declare(context)
    measured = build_estimators(evidence, context, declared)
    results = {
        named.key: result
        for named, result in zip(measured, _results(measured, declared, context), strict=True)
    }
    by_key = {named.key: named for named in measured}
    for setup in context.business:
        key, source = MetricKey(BUSINESS_PREFIX + setup.name), MetricKey(setup.source, setup.k, setup.slice)
        if source not in by_key:
            continue
        fitted, mapping = declared.calibrations.get(setup.name), declared.mappings.get(setup.name)
        if fitted is not None:
            # Half of what may be missed goes to the metric, half to the prediction.
            strict = replace(context, confidence=(1 + context.confidence) / 2)
            (wide,) = _results([by_key[source]], declared, strict)
            results[key] = business.predict(setup, fitted, wide, results[key], context.confidence)
        elif mapping is not None:
            results[key] = business.carry_through(mapping, results[source], results[key])
    return list(results.values())


def _results(
    measured: Sequence[NamedEstimator], declared: Declared, context: MetricContext
) -> list[MetricResult]:
    specs = [declared.spec(named.name) for named in measured]
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
        signature=_signature(named, spec, context),
        coverage=named.coverage,
        interval=None if answer is None else _widened(answer.interval, named, spec),
        bounds=None if answer is None else _widened(answer.bounds, named, spec),
        action=spec.action,
        details=details,
    )


def _signature(named: NamedEstimator, spec: MetricSpec, context: MetricContext) -> str:
    base = context.signatures.get(spec.family, "")
    if context.resample is None or named.slice != resampled.SLICE:
        return base
    return f"{base}|{resampled.signature(context.resample)}"


def _widened(interval: Interval | None, named: NamedEstimator, spec: MetricSpec) -> Interval | None:
    """The interval with measured errors added to its sides, inside the metric's support."""
    if interval is None or named.widen == named.bias == 0:
        return interval
    lowest, highest = spec.support
    parts = [interval.method]
    parts += ["predictor-error"] if named.widen else []
    parts += ["bias"] if named.bias else []
    return replace(
        interval,
        low=None if interval.low is None else max(lowest, interval.low - named.widen - named.bias),
        high=None if interval.high is None else min(highest, interval.high + named.widen),
        method="+".join(parts),
    )
