"""Before a run: will the planned samples decide each rule, and how many would?

A share whose independent units can be counted in the scenario is computed exactly. For everything else the spread must
be known, and only a pilot run knows it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from evalkit.gate.comparison import Comparison
from evalkit.gate.condition import Condition
from evalkit.gate.measurement import Measurement, measure
from evalkit.runs.results_io import Results
from evalkit.scenario.schema import Policy, Rule
from evalkit.statistics.power import (
    LARGEST_N,
    POWER,
    binomial_power,
    deciding_trials,
    error_of_bound,
    error_ratio,
    normal_power,
)

_NO_PILOT = "its spread isn't known before a run; name one with --pilot RUN"


@dataclass(frozen=True)
class Units:
    """Independent units under a rule, as the scenario plans them.

    Attributes:
        count: how many; None where the scenario doesn't say, with the reason.
        noun: what they are.
        outcomes: whether each gives one yes-or-no outcome, so that the exact binomial holds.
        fact: whether the value is a fact of a fixed list, which no sample decides.
    """

    count: int | None
    noun: str
    outcomes: bool = False
    fact: bool = False
    reason: str | None = None


class UnitCounter(Protocol):
    """Says which independent units a scenario plans for a rule."""

    def __call__(self, rule: Rule) -> Units: ...


@dataclass(frozen=True)
class RulePower:
    """What a run of the scenario can decide about one rule.

    Attributes:
        index, metric, k, slice, condition, threshold: the rule.
        assumed, assumption: the true value that is supposed, and in words where it comes from.
        units: what is counted.
        n: planned by the scenario; needs_n: the number that decides the rule with 95 % power.
        power: probability that n units decide it (PASS where the assumed value is good, FAIL where it is bad).
        method: exact-binomial, or normal with a pilot's spread.
        reason: why a number is missing, else None.
    """

    index: int
    metric: str
    k: int | None
    slice: str | None
    condition: str
    threshold: float
    assumed: float | None = None
    assumption: str | None = None
    units: str | None = None
    n: int | None = None
    needs_n: int | None = None
    power: float | None = None
    method: str | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Pilot:
    """A finished run, measured under the policy in question."""

    name: str
    results: Results
    comparison: Comparison | None


def power_of_rules(
    policy: Policy, units: UnitCounter, pilot: Pilot | None, *, first_release: bool = False
) -> list[RulePower]:
    """The power of every rule.

    Args:
        policy: the rules and their confidence.
        units: counts what the scenario plans.
        pilot: gives values and spreads; None: shares are assumed half-way between threshold and perfection.
        first_release: change rules aren't applied.
    """
    return [
        _power_of(index, rule, policy.confidence, units(rule), pilot, first_release)
        for index, rule in enumerate(policy.rules)
    ]


def _power_of(
    index: int, rule: Rule, confidence: float, units: Units, pilot: Pilot | None, first_release: bool
) -> RulePower:
    condition = Condition.of(rule)
    known: dict[str, Any] = {
        "index": index,
        "metric": rule.metric,
        "k": rule.k,
        "slice": rule.slice,
        "condition": condition.name,
        "threshold": condition.threshold,
        "units": units.noun,
        "n": units.count,
    }
    if condition.kind == "change" and first_release:
        return RulePower(**known, reason="first release: change rules are not applied")
    if units.fact:
        return RulePower(
            **known, reason="a fixed list measured whole: its rate is a fact, decided by any run"
        )
    found = None if pilot is None else measure(rule, condition, pilot.results, pilot.comparison)
    if units.outcomes and condition.kind != "change":
        return _exact(known, condition, confidence, units, found, pilot)
    if found is None or pilot is None:
        return RulePower(**known, reason=units.reason or _NO_PILOT)
    return _normal(known, condition, confidence, units, found, pilot)


def _exact(
    known: Mapping[str, Any],
    condition: Condition,
    confidence: float,
    units: Units,
    found: Measurement | None,
    pilot: Pilot | None,
) -> RulePower:
    threshold = condition.threshold
    best = 1.0 if condition.direction == "higher" else 0.0
    if found is None or found.value is None or pilot is None:
        assumed = (threshold + best) / 2
        assumption = f"a true share of {assumed:.4g}, half-way between the threshold and {best:g}"
    else:
        assumed = found.value
        assumption = f"a true share of {assumed:.4g}, as {pilot.name} measured it"
    known = {**known, "assumed": assumed, "assumption": assumption, "method": "exact-binomial"}
    if assumed == threshold or not 0 < threshold < 1:
        return RulePower(
            **known, reason="the assumed value doesn't leave the threshold: no sample size decides"
        )
    needs = deciding_trials(threshold, assumed, confidence)
    reason = None if needs is not None else "no sample size below a thousand million decides"
    power = None
    if units.count is None:
        reason = units.reason
    else:
        power = binomial_power(units.count, threshold, assumed, confidence)
    return RulePower(**known, needs_n=needs, power=power, reason=reason)


def _normal(
    known: Mapping[str, Any],
    condition: Condition,
    confidence: float,
    units: Units,
    found: Measurement,
    pilot: Pilot,
) -> RulePower:
    value, bounds, threshold = found.value, found.bounds, condition.threshold
    if value is None or bounds is None:
        problem = found.problem or found.bounds_reason or "no interval"
        return RulePower(**known, reason=f"{pilot.name} doesn't tell the spread: {problem}")
    assumption = f"a true value of {value:.4g} and the spread, as {pilot.name} measured them"
    known = {**known, "assumed": value, "assumption": assumption, "method": "normal"}
    end = bounds.low if value > threshold else bounds.high
    if value == threshold or end is None or end == value or not found.clusters:
        return RulePower(
            **known, reason="the assumed value doesn't leave the threshold, or its spread is unknown"
        )
    error, distance = error_of_bound(value, end, bounds.confidence), abs(value - threshold)
    needed = found.clusters * error_ratio(distance, error, confidence)
    needs = math.ceil(needed) if needed <= LARGEST_N else None
    reason = None if needs is not None else "no sample size below a thousand million decides"
    power = None
    if units.count is None:
        reason = units.reason
    elif units.count == 0:
        power, reason = 0.0, "the scenario plans no such sample"
    else:
        power = normal_power(distance, error * math.sqrt(found.clusters / units.count), confidence)
    return RulePower(**known, needs_n=needs, power=power, reason=reason)


def describe(item: RulePower) -> str:
    """The finding in a few words."""
    if item.power is None:
        return item.reason or "unknown"
    enough = "enough" if item.power >= POWER else "too few"
    return enough if item.reason is None else f"{enough}; {item.reason}"
