"""What a rule is judged on, found in the results or the comparison, or every reason why it can't be."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from evalkit.errors import InputError
from evalkit.gate.comparison import Comparison
from evalkit.gate.condition import Condition
from evalkit.gate.families import ERROR_STATUSES, NOUNS, evidence_kinds
from evalkit.metrics.result import Interval
from evalkit.runs.results_io import Results, StatusCounts, interval_from_dict
from evalkit.scenario.schema import Policy, Rule

# The one method whose interval may be zero wide: the rate is a fact of a fixed list, not an estimate.
FIXED_POPULATION = "fixed-population"

# What a predictor must have learnt from for its predictions to block a release.
RATED = "rated"


@dataclass(frozen=True)
class Measurement:
    """The number under a rule.

    Attributes:
        value: None where there is none; then `problem` says why.
        bounds: the pair of one-sided ends, each at the policy's confidence.
        bounds_reason: why there are none.
        problem: why the rule can't be judged at all, else None.
        action: the registry's, for a bad value.
    """

    value: float | None = None
    bounds: Interval | None = None
    bounds_reason: str | None = None
    n: int | None = None
    clusters: int | None = None
    coverage: float | None = None
    unit: str | None = None
    action: str | None = None
    problem: str | None = None


class _Keyed(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def k(self) -> int | None: ...
    @property
    def slice(self) -> str | None: ...


KeyedT = TypeVar("KeyedT", bound=_Keyed)


def measure(rule: Rule, condition: Condition, results: Results, comparison: Comparison | None) -> Measurement:
    """Find the number that `rule` judges."""
    unrated = _unrated(rule, results)
    if unrated is not None:
        return Measurement(problem=unrated)
    if condition.kind == "change":
        return _change(rule, condition, results, comparison)
    if condition.kind == "within":
        return _within(rule, results)
    metric = _only(rule, results.metrics, "the results")
    if isinstance(metric, str):
        return Measurement(problem=metric)
    return Measurement(
        value=metric.value,
        bounds=metric.bounds,
        bounds_reason=_text(metric.details.get("interval_reason")),
        n=metric.n,
        clusters=metric.clusters,
        coverage=metric.coverage,
        unit=metric.unit,
        action=metric.action,
        problem=None if metric.value is not None else f"no value: {metric.reason}",
    )


def _unrated(rule: Rule, results: Results) -> str | None:
    """Why a predicted number may not block: its predictor didn't learn from people's ratings, or nobody knows."""
    for metric in results.metrics:
        if rule.severity == "block" and metric.name == rule.metric and "predictor_data" in metric.details:
            data = metric.details["predictor_data"]
            if data != RATED:
                learnt = "generated examples" if data == "generated" else "examples of unknown origin"
                return (
                    f"{rule.metric} is predicted by a model that learnt from {learnt}; a blocking rule needs a model card "
                    "of rated samples (`sandbox fit satisfaction RATED.csv --rated`), or make it `severity: warn`"
                )
    return None


def allowance_problem(
    rule: Rule, condition: Condition, policy: Policy, results: Results, comparison: Comparison | None
) -> str | None:
    """Why the evidence under a rule is not good enough to judge by: partial run, errors, truncation."""
    sides: list[tuple[str, bool, StatusCounts]] = [("candidate", results.complete, results.counts)]
    if condition.kind == "change" and comparison is not None:
        sides.append(("baseline", comparison.baseline_complete, comparison.baseline_counts))
    for side, complete, counts in sides:
        if not complete:
            return f"the {side}'s run is partial; finish it with `evalkit resume`"
        for kind in evidence_kinds(rule.metric):
            problem = _rate_problem(side, kind, counts.get(kind, {}), policy)
            if problem is not None:
                return problem
    return None


def quality_problem(measurement: Measurement, rule: Rule, confidence: float) -> str | None:
    """Why the number itself can't be judged. Every comparison is written so that NaN is a problem."""
    value, n, coverage, bounds = measurement.value, measurement.n, measurement.coverage, measurement.bounds
    if value is None or not math.isfinite(value):
        return f"the value isn't a finite number ({value})"
    if n is None or not n >= 1:
        return "nothing was measured (n is 0)"
    if rule.min_coverage > 0 and (coverage is None or not coverage >= rule.min_coverage):
        shown = "unknown" if coverage is None else f"{coverage:.4g}"
        return f"coverage {shown} is below {rule.min_coverage:g}: planned samples gave no result"
    if bounds is None:
        return f"no confidence bounds: {measurement.bounds_reason or 'they could not be computed'}"
    if bounds.sides != 1 or not math.isclose(bounds.confidence, confidence, rel_tol=1e-12):
        return (
            f"the bounds are {bounds.sides}-sided at {bounds.confidence:g}, the policy asks for one-sided "
            f"ones at {confidence:g}; judge the run again"
        )
    if bounds.low is not None and bounds.high is not None:
        if not bounds.low <= bounds.high:
            return f"the bounds are out of order ({bounds.low}, {bounds.high})"
        if bounds.low == bounds.high and bounds.method != FIXED_POPULATION:
            return "the interval is zero wide: the samples don't vary, so their spread says nothing"
    return None


def _change(rule: Rule, condition: Condition, results: Results, comparison: Comparison | None) -> Measurement:
    if comparison is None:
        return Measurement(
            problem="no baseline was measured; give `baseline`, or `first_release: true` if there is none yet"
        )
    if comparison.model_digest != results.model_digest:
        return Measurement(problem="the comparison is of another model than the results")
    if not comparison.model_digest or comparison.model_digest == comparison.baseline_model_digest:
        return Measurement(problem="candidate and baseline are the same model (equal model_digest)")
    metric = _only(rule, comparison.metrics, "the comparison")
    if isinstance(metric, str):
        return Measurement(problem=metric)
    found = Measurement(
        n=metric.n, clusters=metric.clusters, coverage=metric.coverage, unit=metric.unit, action=metric.action
    )
    if metric.signature != metric.baseline_signature:
        names = f"{metric.signature} and {metric.baseline_signature}"
        return _with(found, problem=f"measured in different ways, not comparable: {names}")
    if condition.direction != metric.direction:
        return _with(
            found, problem=f"{condition.name} limits an improvement of {rule.metric}, not a regression"
        )
    difference = metric.relative if condition.relative else metric.absolute
    return _with(
        found,
        value=difference.value,
        bounds=difference.bounds,
        bounds_reason=difference.interval_reason,
        unit="relative change" if condition.relative else metric.unit,
        problem=None if difference.value is not None else f"no change: {difference.reason}",
    )


def _within(rule: Rule, results: Results) -> Measurement:
    metric = _only(rule, results.metrics, "the results")
    if isinstance(metric, str):
        return Measurement(problem=metric)
    entries = metric.details.get("within") or []
    entry = next((item for item in entries if _is_budget(item, rule.within_ms)), None)
    if entry is None:
        return Measurement(
            problem=f"the share within {rule.within_ms:g} ms was not measured; {metric.reason or ''}"
        )
    share, n, clusters = entry.get("share"), entry.get("n"), entry.get("clusters")
    try:
        bounds = interval_from_dict(entry.get("bounds"), f"{rule.metric}: within.bounds")
    except InputError as error:
        return Measurement(problem=str(error))
    return Measurement(
        value=share,
        bounds=bounds,
        bounds_reason=_text(entry.get("interval_reason")),
        n=n if isinstance(n, int) else None,
        clusters=clusters if isinstance(clusters, int) else metric.clusters,
        coverage=metric.coverage,
        unit="share",
        action=metric.action,
        problem=None if isinstance(share, float | int) else f"no share within {rule.within_ms:g} ms",
    )


def _is_budget(entry: Any, ms: float | None) -> bool:
    return isinstance(entry, Mapping) and entry.get("ms") == ms


def _only(rule: Rule, metrics: Sequence[KeyedT], where: str) -> KeyedT | str:
    """The one metric that the rule names, or why there isn't one."""
    found = [item for item in metrics if (item.name, item.k, item.slice) == (rule.metric, rule.k, rule.slice)]
    if len(found) == 1:
        return found[0]
    if found:
        return f"{rule.metric} stands {len(found)} times in {where}; once is right"
    same = [item for item in metrics if item.name == rule.metric]
    if not same:
        return f"{rule.metric} isn't in {where}"
    have = ", ".join(sorted({_variant(item) for item in same}))
    return f"{rule.metric} is in {where} only for {have}"


def _variant(item: _Keyed) -> str:
    parts = [f"slice {item.slice}" if item.slice is not None else "all samples"]
    if item.k is not None:
        parts.insert(0, f"k={item.k}")
    return " ".join(parts)


def _rate_problem(side: str, kind: str, counts: Mapping[str, int], policy: Policy) -> str | None:
    total = sum(counts.values())
    if total == 0:
        return None
    noun = "turns" if kind == "turn" else NOUNS[kind]
    allowances = (
        ("error", counts.get(ERROR_STATUSES[kind], 0), policy.max_error_rate, "max_error_rate"),
        ("truncated", counts.get("truncated", 0), policy.max_truncated_rate, "max_truncated_rate"),
    )
    for what, number, allowed, name in allowances:
        if not number / total <= allowed:
            label = "ended in an error" if what == "error" else "were truncated"
            return f"{number} of {total} {noun} of the {side} {label}; {name} allows a share of {allowed:g}"
    return None


def _with(measurement: Measurement, **changes: Any) -> Measurement:
    return Measurement(**{**measurement.__dict__, **changes})


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
