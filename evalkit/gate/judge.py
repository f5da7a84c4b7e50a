"""The judge: a pure function of results, comparison and policy. No I/O, no clock, no state.

A rule passes when the bound on the bad side clears the threshold, fails when the whole interval lies beyond
it, and is INCONCLUSIVE otherwise. Missing, NaN, errored, truncated and too few are INCONCLUSIVE, each with
its reason; nothing passes that isn't known to be good.
"""

import math

from evalkit.errors import InputError
from evalkit.gate.comparison import Comparison
from evalkit.gate.condition import Condition
from evalkit.gate.families import NOUNS, evidence_kinds
from evalkit.gate.measurement import Measurement, allowance_problem, measure, quality_problem
from evalkit.gate.policy import policy_digest, resolve_policy
from evalkit.gate.sample_size import deciding_n
from evalkit.gate.verdict import Outcome, RuleOutcome, RuleVerdict, Verdict
from evalkit.metrics.registry import spec_for
from evalkit.runs.results_io import Results
from evalkit.scenario.schema import Policy, Rule

_UNMEASURED = "supply what the reason names, then measure and judge again"
_NO_LOOK_LEFT = (
    "more samples decide nothing under this policy; let its owner write one that allows another look, and judge samples "
    "by it that nobody has looked at; another candidate begins at look 1"
)
_LAST_LOOK = (
    "; this was the last look that the policy allows, so let its owner first write one that allows another"
)
_ASSUMPTION = (
    "number of blocking rules times (1 - confidence), at most 1; it holds however the rules depend on each "
    "other and is reached only if every true value lies exactly at its threshold"
)


def judge(
    results: Results,
    comparison: Comparison | None,
    policy: Policy,
    *,
    first_release: bool = False,
    look: int = 1,
) -> Verdict:
    """Decide every rule and the whole.

    Args:
        results: of the candidate, with bounds at the policy's confidence.
        comparison: with the baseline; None where there is none.
        policy: what must hold.
        first_release: change rules are not applied, and the verdict says so.
        look: the how manieth look at this candidate it is; beyond the policy's `max_looks` nothing is decided.

    Returns:
        The verdict; equal arguments give equal bytes.
    """
    rules = tuple(
        judge_rule(index, rule, policy, results, comparison, first_release=first_release, look=look)
        for index, rule in enumerate(policy.rules)
    )
    verdict, reason = _overall(rules)
    applied = sum(rule.severity == "block" and rule.outcome != "NOT_APPLIED" for rule in rules)
    undecided = any(rule.outcome == "INCONCLUSIVE" for rule in rules)
    return Verdict(
        verdict=verdict,
        reason=reason,
        run_id=results.run_id,
        plan_sha256=results.plan_sha256,
        model_digest=results.model_digest,
        baseline_model_digest=None if comparison is None else comparison.baseline_model_digest,
        policy_sha256=policy_digest(policy),
        policy=resolve_policy(policy),
        first_release=first_release,
        look=look,
        rules=rules,
        false_fail_probability=min(1.0, applied * (1 - policy.confidence)),
        false_fail_assumption=_ASSUMPTION,
        warning=_looking_again(look, policy) if undecided else None,
    )


def judge_rule(
    index: int,
    rule: Rule,
    policy: Policy,
    results: Results,
    comparison: Comparison | None,
    *,
    first_release: bool,
    look: int,
) -> RuleVerdict:
    """Decide one rule."""
    condition = Condition.of(rule)
    if condition.kind == "change" and first_release:
        reason = "first release: there is no baseline to compare with, so this rule is not applied"
        return _verdict(index, rule, condition, Measurement(), "NOT_APPLIED", reason)
    found = measure(rule, condition, results, comparison)
    problem = (
        found.problem
        or allowance_problem(rule, condition, policy, results, comparison)
        or quality_problem(found, rule, policy.confidence)
    )
    if problem is not None:
        return _verdict(index, rule, condition, found, "INCONCLUSIVE", problem, action=_UNMEASURED)
    problem = _looks_problem(look, policy)
    if problem is not None:
        return _verdict(index, rule, condition, found, "INCONCLUSIVE", problem, action=_NO_LOOK_LEFT)
    outcome, reason = decide(condition, found)
    too_few = rule.min_n is not None and not (found.n is not None and found.n >= rule.min_n)
    if outcome != "INCONCLUSIVE" and not too_few:
        advice = found.action if outcome == "FAIL" else None
        return _verdict(index, rule, condition, found, outcome, reason, action=advice)
    needs = _needed(condition, found) if outcome == "INCONCLUSIVE" else None
    if too_few and rule.min_n is not None:
        reason = f"n {found.n} is below min_n {rule.min_n}"
        needs = max(needs or 0, rule.min_n)
    advice = _more(rule, found, needs) + (_LAST_LOOK if look == policy.max_looks else "")
    return _verdict(index, rule, condition, found, "INCONCLUSIVE", reason, needs=needs, action=advice)


def decide(condition: Condition, found: Measurement) -> tuple[Outcome, str]:
    """Compare the bounds with the threshold. Every test is false for NaN, and only a true one decides."""
    bad, good = _bad_end(condition, found), _good_end(condition, found)
    bad_name, good_name = ("upper", "lower") if condition.direction == "lower" else ("lower", "upper")
    beyond, within = ("above", "below") if condition.direction == "lower" else ("below", "above")
    value, threshold = found.value, condition.threshold
    if value is None or bad is None or good is None:
        return "INCONCLUSIVE", "one end of the interval could not be computed"
    passes = condition.clears(bad) and condition.clears(value) and math.isfinite(bad)
    fails = condition.violates(good) and condition.violates(value) and math.isfinite(good)
    if passes and not fails:
        return "PASS", _compared(f"{bad_name} bound", bad, within, threshold)
    if fails and not passes:
        return "FAIL", _compared(f"{good_name} bound", good, beyond, threshold)
    undecided = _compared(f"{bad_name} bound", bad, beyond, threshold)
    return "INCONCLUSIVE", f"{undecided}, {good_name} bound {_short(good)} is not: too few samples to decide"


def _looks_problem(look: int, policy: Policy) -> str | None:
    if 1 <= look <= policy.max_looks:
        return None
    return f"this is look {look} at this candidate under this policy, each at other samples; max_looks allows {policy.max_looks}"


def _looking_again(look: int, policy: Policy) -> str:
    left = (
        "add the named number of samples at once"
        if look < policy.max_looks
        else "a further one at this candidate takes a policy that allows it, and samples that nobody has looked at"
    )
    return (
        "Looking again and again isn't free: every further look at new samples raises the chance of a wrong verdict. "
        f"This was look {look} of at most {policy.max_looks}; {left}."
    )


def _rule_name(rule: RuleVerdict) -> str:
    k = f" k={rule.k}" if rule.k is not None else ""
    return f"{rule.metric}{k}" + (f" [{rule.slice}]" if rule.slice is not None else "")


def _overall(rules: tuple[RuleVerdict, ...]) -> tuple[Outcome, str]:
    blocking = [rule for rule in rules if rule.severity == "block" and rule.outcome != "NOT_APPLIED"]
    if not blocking:
        return "INCONCLUSIVE", (
            "no blocking rule was applied, so nothing was decided"
            if any(rule.severity == "block" for rule in rules)
            else "every rule is `severity: warn`, so nothing was decided"
        )
    for outcome, says in (("FAIL", "failed"), ("INCONCLUSIVE", "could not be decided")):
        hit = [rule for rule in blocking if rule.outcome == outcome]
        if hit:
            names = ", ".join(_rule_name(rule) for rule in hit)
            return ("FAIL" if outcome == "FAIL" else "INCONCLUSIVE"), (
                f"{len(hit)} of {len(blocking)} blocking rules {says}: {names}"
            )
    # Only rules that are PASS themselves are left, but the promise is checked where it is made.
    if all(rule.outcome == "PASS" for rule in blocking):
        return "PASS", f"all {len(blocking)} blocking rules passed"
    return "INCONCLUSIVE", "a blocking rule has no outcome"


def _verdict(
    index: int,
    rule: Rule,
    condition: Condition,
    found: Measurement,
    outcome: RuleOutcome,
    reason: str,
    *,
    needs: int | None = None,
    action: str | None = None,
) -> RuleVerdict:
    return RuleVerdict(
        index=index,
        metric=rule.metric,
        k=rule.k,
        slice=rule.slice,
        kind=condition.kind,
        condition=condition.name,
        within_ms=rule.within_ms,
        threshold=condition.threshold,
        direction=condition.direction,
        severity=rule.severity,
        outcome=outcome,
        value=found.value,
        bound=_bad_end(condition, found),
        unit=found.unit or _declared_unit(rule, condition),
        n=found.n,
        clusters=found.clusters,
        coverage=found.coverage,
        interval=found.bounds,
        reason=reason,
        needs_n=needs,
        action=action,
    )


def _declared_unit(rule: Rule, condition: Condition) -> str | None:
    """The unit of a rule whose metric wasn't found."""
    if condition.relative:
        return "relative change"
    try:
        return spec_for(rule.metric).unit
    except InputError:
        return None


def _needed(condition: Condition, found: Measurement) -> int | None:
    if found.value is None or found.bounds is None or found.n is None:
        return None
    return deciding_n(condition, found.value, found.bounds, found.n, found.clusters)


def _more(rule: Rule, found: Measurement, needs: int | None) -> str:
    nouns = " and ".join(NOUNS[kind] for kind in evidence_kinds(rule.metric))
    if needs is None or not found.n:
        return f"add {nouns}; the value lies so near to the threshold that no sample size can be named"
    return f"add {nouns}: {needs / found.n:.2g} times as many as now (n {found.n} → {needs})"


def _bad_end(condition: Condition, found: Measurement) -> float | None:
    if found.bounds is None:
        return None
    return found.bounds.high if condition.direction == "lower" else found.bounds.low


def _good_end(condition: Condition, found: Measurement) -> float | None:
    if found.bounds is None:
        return None
    return found.bounds.low if condition.direction == "lower" else found.bounds.high


def _compared(name: str, bound: float, relation: str, threshold: float) -> str:
    """`name` with both numbers, in as many digits as tell them apart."""
    if bound == threshold:
        return f"{name} {_short(bound)} is exactly at the threshold"
    for digits in range(4, 18):
        left, right = f"{bound:.{digits}g}", f"{threshold:.{digits}g}"
        if left != right:
            break
    return f"{name} {left} is {relation} {right}"


def _short(number: float) -> str:
    return f"{number:.4g}"
