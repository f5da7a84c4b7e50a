"""Before a run: will the planned samples decide each rule, and how many would?

A share whose independent units can be counted in the scenario is computed exactly. For everything else the spread must
be known, and only a pilot run knows it.

A plan must serve either truth: the named size decides the rule where the true value is the assumed one, and where it
lies as far on the other side of the threshold. For most statistics that is one size; a share near 0 or 1 needs more on
the side of one half.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from evalkit.gate.comparison import Comparison
from evalkit.gate.condition import Condition
from evalkit.gate.measurement import Measurement, measure
from evalkit.runs.results_io import Results
from evalkit.scenario.schema import Policy, Rule
from evalkit.statistics.intervals import MIN_CLUSTERS, too_few
from evalkit.statistics.power import (
    LARGEST_N,
    POWER,
    assured_power,
    assured_ratio,
    binomial_power,
    deciding_trials,
    error_of_bound,
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
        n: planned by the scenario; needs_n: the number that decides the rule with 95 % power, on either side.
        power: the smaller of two probabilities: that n units give PASS, and FAIL, where the true value lies as far from the
            threshold as the assumed one, on the good and on the bad side.
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
    """A finished run, measured under the policy in question.

    Attributes:
        unlike: by metric, why its numbers don't hold for what is planned.
    """

    name: str
    results: Results
    comparison: Comparison | None
    unlike: Mapping[str, str] = field(default_factory=dict)


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
    if pilot is not None and rule.metric in pilot.unlike:
        return RulePower(**known, reason=f"{pilot.name} tells nothing of it: {pilot.unlike[rule.metric]}")
    found = None if pilot is None else measure(rule, condition, pilot.results, pilot.comparison)
    if units.outcomes and condition.kind != "change":
        return _with_least(_exact(known, condition, confidence, units, found, pilot), rule, found)
    if found is None or pilot is None:
        return RulePower(**known, reason=units.reason or _NO_PILOT)
    return _with_least(_normal(known, condition, confidence, units, found, pilot), rule, found)


def _with_least(item: RulePower, rule: Rule, found: Measurement | None) -> RulePower:
    """The power under `min_n` too, which counts outcomes, tokens or bytes; a pilot says how many a unit gives."""
    if rule.min_n is None:
        return item
    if found is None or not found.n or not found.clusters:
        # A unit gives one outcome or more.
        if item.power is None or item.reason is not None or (item.n is not None and item.n >= rule.min_n):
            return item
        return replace(item, reason=f"whether min_n {rule.min_n} is reached a run named with --pilot tells")
    least = math.ceil(rule.min_n * found.clusters / found.n)
    item = replace(item, needs_n=None if item.needs_n is None else max(item.needs_n, least))
    if item.power is None or item.n is None or item.n >= least:
        return item
    return replace(item, power=0.0, reason=f"min_n {rule.min_n} takes about {least} {item.units}")


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
    shares = (assumed, min(1.0, max(0.0, 2 * threshold - assumed)))
    sizes = [deciding_trials(threshold, share, confidence) for share in shares]
    enough = [size for size in sizes if size is not None]
    needs = max(enough) if len(enough) == len(sizes) else None
    reason = None if needs is not None else "no sample size below a thousand million decides"
    power = None
    if units.count is None:
        reason = units.reason
    else:
        power = min(binomial_power(units.count, threshold, share, confidence) for share in shares)
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
    end = bounds.low if value > threshold else bounds.high
    spread = None if end is None or not found.clusters else error_of_bound(value, end, bounds.confidence)
    assumed, doubt = value, spread
    assumption = f"a true value of {value:.4g} and the spread, each as far as {pilot.name} tells it"
    if condition.kind == "change" and condition.clears(0.0) and threshold != 0:
        # What a margin is for: to let a candidate pass that is no worse. The pilot's own change is one draw around that.
        assumed, doubt = 0.0, 0.0
        assumption = f"no true change, and the spread as {pilot.name} measured it"
    known = {**known, "assumed": assumed, "assumption": assumption, "method": "normal"}
    if assumed == threshold or not spread or doubt is None or not found.clusters:
        return RulePower(
            **known, reason="the assumed value doesn't leave the threshold, or its spread is unknown"
        )
    distance = abs(assumed - threshold)
    # Exact bounds of a share without a single exception need no spread between clusters.
    perfect = bounds.method.startswith("exact-binomial") and value in (0.0, 1.0)
    least = 1 if perfect else MIN_CLUSTERS
    # Of one cluster, where the true value is the assumed one and where it is as far beyond the threshold.
    near = spread * math.sqrt(found.clusters)
    errors = (near, math.hypot(near, math.sqrt(_discordance(known, condition, units, pilot, distance))))
    ratios = [assured_ratio(distance, error, doubt, confidence) for error in errors]
    enough = [ratio for ratio in ratios if ratio is not None and ratio <= LARGEST_N]
    needs = max(least, math.ceil(max(enough))) if len(enough) == len(ratios) else None
    reason = None if needs is not None else "no sample size below a thousand million decides"
    if None in ratios:
        reason = f"{pilot.name} is too small to tell on which side of the threshold the value lies; measure a larger one"
    power = None
    if units.count is None:
        reason = units.reason
    elif units.count == 0:
        power, reason = 0.0, "the scenario plans no such sample"
    elif units.count < least:
        power, reason = 0.0, too_few(units.count)
    else:
        power = min(
            assured_power(distance, error / math.sqrt(units.count), doubt, confidence) for error in errors
        )
    return RulePower(**known, needs_n=needs, power=power, reason=reason)


def _discordance(
    known: Mapping[str, Any], condition: Condition, units: Units, pilot: Pilot, distance: float
) -> float:
    """What a true change of twice the margin adds to the variance of one cluster, where outcomes are yes or no.

    Both models' outcomes then differ in that share of the clusters more, at least: the variance of a difference of outcomes
    is discordance - change^2. For any other statistic the spread is taken to stay as it is.
    """
    if condition.kind != "change" or not units.outcomes or pilot.comparison is None:
        return 0.0
    metric = pilot.comparison.find(known["metric"], known["k"], known["slice"])
    scale = 1.0 if not condition.relative else abs((metric.baseline if metric else None) or 1.0)
    change = min(1.0, 2 * distance * scale)
    return max(0.0, change - change * change) / scale**2


def describe(item: RulePower) -> str:
    """The finding in a few words."""
    if item.power is None:
        return item.reason or "unknown"
    enough = "enough" if item.power >= POWER else "too few"
    return enough if item.reason is None else f"{enough}; {item.reason}"
