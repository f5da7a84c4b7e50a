"""The rules of a verdict as a report shows them: failed ones first, each with what to do."""

from collections.abc import Sequence
from dataclasses import dataclass

from evalkit.gate.verdict import RuleVerdict, Verdict
from evalkit.report import numbers
from evalkit.report.changes import key_name
from evalkit.report.charts import Dot, Mark, Scale, Strip

SYMBOLS = {"PASS": "✓", "FAIL": "✗", "INCONCLUSIVE": "?", "NOT_APPLIED": "–"}
WORDS = {"NOT_APPLIED": "NOT APPLIED"}

_RANK = {"FAIL": 0, "INCONCLUSIVE": 1, "NOT_APPLIED": 2, "PASS": 3}
_CHANGE_NAMES = {
    "max_relative_increase": "relative increase at most",
    "max_relative_decrease": "relative decrease at most",
    "max_increase": "increase at most",
    "max_decrease": "decrease at most",
}


@dataclass(frozen=True)
class RuleView:
    """One row of the rules table; everything is text but the strip."""

    number: int
    name: str
    demand: str
    outcome: str
    word: str
    symbol: str
    severity: str
    value: str
    bound: str
    interval: str
    n: str
    coverage: str
    reason: str
    needs: str
    action: str
    strip: Strip | None


def ordered(rules: Sequence[RuleVerdict]) -> list[RuleVerdict]:
    """Failed first, then undecided, not applied, passed; blocking before warning; then as in the policy."""
    return sorted(rules, key=lambda rule: (_RANK[rule.outcome], rule.severity != "block", rule.index))


def rule_views(verdict: Verdict) -> list[RuleView]:
    """The rows of the rules table."""
    return [_view(rule) for rule in ordered(verdict.rules)]


def rule_demand(rule: RuleVerdict) -> str:
    """What the rule demands, e.g. `at most 60`, `relative increase at most 2 %`."""
    if rule.kind == "within":
        return f"at least {numbers.number(rule.threshold, 'share')} within {rule.within_ms:g} ms"
    if rule.kind == "change":
        relative = "relative" in rule.condition
        allowed = -rule.threshold if rule.direction == "higher" else rule.threshold
        shown = numbers.change(allowed, relative=relative, unit=rule.unit).removeprefix("+")
        return f"{_CHANGE_NAMES[rule.condition]} {shown}"
    limit = "at most" if rule.direction == "lower" else "at least"
    return f"{limit} {numbers.number(rule.threshold, rule.unit)}"


def _view(rule: RuleVerdict) -> RuleView:
    return RuleView(
        number=rule.index + 1,
        name=key_name(rule.metric, rule.k, rule.slice),
        demand=rule_demand(rule),
        outcome=rule.outcome,
        word=WORDS.get(rule.outcome, rule.outcome),
        symbol=SYMBOLS[rule.outcome],
        severity=rule.severity,
        value=_number(rule, rule.value),
        bound=_number(rule, rule.bound),
        interval=_interval(rule),
        n=numbers.count(rule.n),
        coverage=numbers.number(rule.coverage, "share"),
        reason=rule.reason,
        needs=numbers.count(rule.needs_n) if rule.needs_n is not None else "",
        action=rule.action or "",
        strip=_strip(rule),
    )


def _number(rule: RuleVerdict, value: float | None) -> str:
    if rule.kind == "change":
        return numbers.change(value, relative="relative" in rule.condition, unit=rule.unit)
    return numbers.number(value, rule.unit)


def _interval(rule: RuleVerdict) -> str:
    if rule.interval is None:
        return numbers.MISSING
    return f"{_number(rule, rule.interval.low)} … {_number(rule, rule.interval.high)}"


def _strip(rule: RuleVerdict) -> Strip | None:
    if rule.value is None:
        return None
    low = None if rule.interval is None else rule.interval.low
    high = None if rule.interval is None else rule.interval.high
    scale = Scale.over([rule.value, low, high, rule.threshold], linear=True)
    dot = Dot(rule.value, low, high, tone=f"outcome-{rule.outcome.lower()}")
    marks = [Mark(rule.threshold, "threshold", f"threshold {_number(rule, rule.threshold)}")]
    described = f"{key_name(rule.metric, rule.k, rule.slice)}: value {_number(rule, rule.value)}, bounds {_interval(rule)}, {marks[0].label}"
    return Strip(scale, [dot], marks, described)
