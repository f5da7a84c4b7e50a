"""The judge, table by table."""

import math
from dataclasses import replace
from typing import Any

import pytest

from evalkit.canonical import canonical_json
from evalkit.errors import ExitCode
from evalkit.gate.comparison import ComparedMetric, Comparison, Difference
from evalkit.gate.judge import judge
from evalkit.gate.verdict import RuleVerdict, Verdict
from evalkit.metrics.result import Interval, MetricResult
from tests.evalkit.fake_run import (
    BASELINE,
    CANDIDATE,
    EVIDENCE_ONE,
    compared,
    comparison,
    interval,
    metric,
    policy,
    results,
)

NAN, INF = math.nan, math.inf
LOWER, HIGHER = "perplexity/domain", "risk/high_risk_recall"


def run(
    metrics: list[MetricResult],
    rules: list[dict[str, Any]],
    pairs: list[ComparedMetric] | None = None,
    *,
    first_release: bool = False,
    look: int = 1,
    results_fields: dict[str, Any] | None = None,
    comparison_fields: dict[str, Any] | None = None,
    **policy_fields: Any,
) -> Verdict:
    found = replace(results(metrics, EVIDENCE_ONE), **(results_fields or {}))
    baseline = results(metrics, EVIDENCE_ONE, BASELINE)
    together: Comparison | None = None
    if pairs is not None:
        together = comparison(pairs, baseline, **(comparison_fields or {}))
    return judge(found, together, policy(rules, **policy_fields), first_release=first_release, look=look)


def one(*args: Any, **fields: Any) -> RuleVerdict:
    return run(*args, **fields).rules[0]


@pytest.mark.parametrize(
    ("value", "low", "high", "maximum", "outcome"),
    [
        (50, 45, 59, 60, "PASS"),
        (50, 45, 60, 60, "PASS"),  # exactly at the threshold is allowed
        (50, 45, 60.001, 60, "INCONCLUSIVE"),
        (60, 55, 65, 60, "INCONCLUSIVE"),
        (62, 60, 65, 60, "INCONCLUSIVE"),
        (62, 60.001, 65, 60, "FAIL"),
        (70, 65, 75, 60, "FAIL"),
        (50, None, 59, 60, "INCONCLUSIVE"),
        (50, 45, None, 60, "INCONCLUSIVE"),
        (70, 65, None, 60, "INCONCLUSIVE"),
        (50, -INF, 59, 60, "PASS"),
        (50, 45, INF, 60, "INCONCLUSIVE"),
        (70, 65, INF, 60, "FAIL"),
        (-INF, -INF, -INF, 60, "INCONCLUSIVE"),
        (50, NAN, 59, 60, "INCONCLUSIVE"),
        (50, 45, NAN, 60, "INCONCLUSIVE"),
        (50, NAN, NAN, 60, "INCONCLUSIVE"),
        (NAN, 45, 59, 60, "INCONCLUSIVE"),
        (INF, 45, 59, 60, "INCONCLUSIVE"),
        (None, 45, 59, 60, "INCONCLUSIVE"),
        (50, 59, 45, 60, "INCONCLUSIVE"),  # ends out of order
        (50, 50, 50, 60, "INCONCLUSIVE"),  # zero wide
        (70, 45, 59, 60, "INCONCLUSIVE"),  # the value is outside its own bounds, beyond the threshold
        (50, 65, 75, 60, "INCONCLUSIVE"),
        (-5, -6, -4, -3, "PASS"),
        (-5, -6, -4, -5, "INCONCLUSIVE"),
        (0, -1, 1, 0, "INCONCLUSIVE"),
        (0.0, -1e-9, 0.0, 0, "PASS"),
    ],
)
def test_max(
    value: float | None, low: float | None, high: float | None, maximum: float, outcome: str
) -> None:
    rule = one([metric(LOWER, value, low, high)], [{"metric": LOWER, "max": maximum}])
    assert rule.outcome == outcome
    assert (rule.kind, rule.condition, rule.direction, rule.threshold) == (
        "absolute",
        "max",
        "lower",
        maximum,
    )


@pytest.mark.parametrize(
    ("value", "low", "high", "minimum", "outcome"),
    [
        (0.95, 0.91, 0.98, 0.9, "PASS"),
        (0.95, 0.9, 0.98, 0.9, "PASS"),
        (0.95, 0.8999, 0.98, 0.9, "INCONCLUSIVE"),
        (0.85, 0.8, 0.9, 0.9, "INCONCLUSIVE"),
        (0.85, 0.8, 0.8999, 0.9, "FAIL"),
        (0.5, 0.4, 0.6, 0.9, "FAIL"),
        (1.0, 0.95, 1.0, 0.9, "PASS"),  # a perfect model with enough samples
        (1.0, 0.74, 1.0, 0.8, "INCONCLUSIVE"),  # ten of ten
        (0.0, 0.0, 0.05, 0.9, "FAIL"),
        (0.95, NAN, 0.98, 0.9, "INCONCLUSIVE"),
        (0.95, 0.91, NAN, 0.9, "INCONCLUSIVE"),
        (NAN, 0.91, 0.98, 0.9, "INCONCLUSIVE"),
        (0.95, None, None, 0.9, "INCONCLUSIVE"),
        (0.95, 0.91, None, 0.9, "INCONCLUSIVE"),
        (1.0, 1.0, 1.0, 0.9, "INCONCLUSIVE"),  # zero wide
        (0.85, 0.91, 0.98, 0.9, "INCONCLUSIVE"),
        (INF, 0.91, INF, 0.9, "INCONCLUSIVE"),
    ],
)
def test_min(
    value: float | None, low: float | None, high: float | None, minimum: float, outcome: str
) -> None:
    rule = one([metric(HIGHER, value, low, high)], [{"metric": HIGHER, "min": minimum}])
    assert rule.outcome == outcome
    assert (rule.kind, rule.condition, rule.direction, rule.threshold) == (
        "absolute",
        "min",
        "higher",
        minimum,
    )


@pytest.mark.parametrize(
    ("name", "change", "value", "low", "high", "threshold", "outcome"),
    [
        (LOWER, {"max_relative_increase": 0.02}, -0.031, -0.05, -0.012, 0.02, "PASS"),
        (LOWER, {"max_relative_increase": 0.02}, 0.01, 0.0, 0.02, 0.02, "PASS"),
        (LOWER, {"max_relative_increase": 0.02}, 0.01, 0.0, 0.021, 0.02, "INCONCLUSIVE"),
        (LOWER, {"max_relative_increase": 0.02}, 0.05, 0.021, 0.08, 0.02, "FAIL"),
        (
            LOWER,
            {"max_relative_increase": -0.05},
            -0.06,
            -0.07,
            -0.051,
            -0.05,
            "PASS",
        ),  # an improvement is demanded
        (LOWER, {"max_relative_increase": -0.05}, 0.0, -0.01, 0.01, -0.05, "FAIL"),
        (LOWER, {"max_increase": 0.5}, 0.1, -0.1, 0.4, 0.5, "PASS"),
        (LOWER, {"max_increase": 0.5}, 0.9, 0.6, 1.2, 0.5, "FAIL"),
        (HIGHER, {"max_decrease": 0.02}, -0.01, -0.019, 0.0, -0.02, "PASS"),
        (HIGHER, {"max_decrease": 0.02}, -0.01, -0.021, 0.0, -0.02, "INCONCLUSIVE"),
        (HIGHER, {"max_decrease": 0.02}, -0.05, -0.08, -0.021, -0.02, "FAIL"),
        (HIGHER, {"max_relative_decrease": 0.02}, 0.1, 0.05, 0.15, -0.02, "PASS"),
        (HIGHER, {"max_relative_decrease": 0.02}, -0.1, -0.15, -0.05, -0.02, "FAIL"),
        (LOWER, {"max_relative_increase": 0.02}, NAN, -0.05, -0.012, 0.02, "INCONCLUSIVE"),
        (LOWER, {"max_relative_increase": 0.02}, -0.03, NAN, NAN, 0.02, "INCONCLUSIVE"),
        (LOWER, {"max_relative_increase": 0.02}, -0.03, None, None, 0.02, "INCONCLUSIVE"),
        (LOWER, {"max_relative_increase": 0.02}, None, None, None, 0.02, "INCONCLUSIVE"),
    ],
)
def test_change(
    name: str,
    change: dict[str, float],
    value: float | None,
    low: float | None,
    high: float | None,
    threshold: float,
    outcome: str,
) -> None:
    pair = compared(name, value, low, high)
    rule = one([metric(name, 1.0, 0.9, 1.1)], [{"metric": name, "change": change}], [pair])
    assert rule.outcome == outcome
    assert (rule.kind, rule.condition, rule.threshold) == ("change", next(iter(change)), threshold)


def test_a_change_rule_reads_its_own_scale() -> None:
    relative = Difference(0.5, None, interval(0.4, 0.6), interval(0.4, 0.6, 1))
    absolute = Difference(-0.5, None, interval(-0.6, -0.4), interval(-0.6, -0.4, 1))
    pair = replace(compared(LOWER, 0.0, None, None), relative=relative, absolute=absolute)
    rules = [{"metric": LOWER, "change": {name: 0.0}} for name in ("max_relative_increase", "max_increase")]
    verdict = run([metric(LOWER, 1.0, 0.9, 1.1)], rules, [pair])
    assert [rule.outcome for rule in verdict.rules] == ["FAIL", "PASS"]
    assert [rule.unit for rule in verdict.rules] == ["relative change", "ratio"]


CHANGE = {"metric": LOWER, "change": {"max_relative_increase": 0.02}}
GOOD = compared(LOWER, -0.031, -0.05, -0.012)


@pytest.mark.parametrize(
    ("pairs", "fields", "says"),
    [
        (None, {}, "no baseline was measured"),
        ([], {}, "isn't in the comparison"),
        ([GOOD, GOOD], {}, "stands 2 times in the comparison"),
        ([GOOD], {"baseline_model_digest": CANDIDATE}, "same model"),
        ([GOOD], {"model_digest": "f" * 64}, "of another model"),
        ([GOOD], {"baseline_complete": False}, "the baseline's run is partial"),
        ([replace(GOOD, baseline_signature="ppl|w:512/512/first")], {}, "not comparable"),
        ([replace(GOOD, coverage=0.99)], {}, "coverage 0.99 is below 1"),
        ([replace(GOOD, coverage=None)], {}, "coverage unknown"),
        ([replace(GOOD, coverage=NAN)], {}, "coverage nan"),
        ([replace(GOOD, n=0)], {}, "n is 0"),
        ([replace(GOOD, slice="vip")], {}, "only for slice vip"),
        ([replace(GOOD, direction="higher")], {}, "limits an improvement"),
        ([replace(GOOD, relative=Difference(None, "the baseline is 0"))], {}, "the baseline is 0"),
        ([replace(GOOD, relative=replace(GOOD.relative, bounds=None, interval_reason="few"))], {}, "few"),
    ],
)
def test_a_change_that_cannot_be_judged(pairs: Any, fields: dict[str, Any], says: str) -> None:
    rule = one([metric(LOWER, 1.0, 0.9, 1.1)], [CHANGE], pairs, comparison_fields=fields)
    assert rule.outcome == "INCONCLUSIVE"
    assert says in rule.reason
    assert rule.action is not None
    assert rule.needs_n is None


MAX = {"metric": LOWER, "max": 60}
FINE = metric(LOWER, 50, 45, 55)


@pytest.mark.parametrize(
    ("metrics", "rule", "says"),
    [
        ([], MAX, "perplexity/domain isn't in the results"),
        ([FINE, FINE], MAX, "stands 2 times in the results"),
        ([FINE], {**MAX, "slice": "vip"}, "is in the results only for all samples"),
        ([replace(FINE, slice="vip")], MAX, "is in the results only for slice vip"),
        ([metric(LOWER, None, reason="no glossary")], MAX, "no value: no glossary"),
        ([replace(FINE, n=0)], MAX, "n is 0"),
        ([replace(FINE, n=-5)], MAX, "n is 0"),
        ([replace(FINE, coverage=0.9)], MAX, "coverage 0.9 is below 1"),
        ([replace(FINE, coverage=None)], MAX, "coverage unknown is below 1"),
        ([replace(FINE, coverage=NAN)], MAX, "coverage nan is below 1"),
        ([replace(FINE, coverage=0.9)], {**MAX, "min_coverage": 0.95}, "coverage 0.9 is below 0.95"),
        ([replace(FINE, bounds=None)], MAX, "no confidence bounds: they could not be computed"),
        (
            [replace(FINE, bounds=None, details={"interval_reason": "only 4 clusters"})],
            MAX,
            "only 4 clusters",
        ),
        ([replace(FINE, bounds=interval(45, 55, 2))], MAX, "the bounds are 2-sided at 0.95"),
        (
            [replace(FINE, bounds=Interval(45, 55, 0.9, 1, "x"))],
            MAX,
            "at 0.9, the policy asks for one-sided ones at 0.95",
        ),
        ([replace(FINE, bounds=Interval(45, 55, NAN, 1, "x"))], MAX, "at nan"),
    ],
)
def test_an_absolute_rule_that_cannot_be_judged(
    metrics: list[MetricResult], rule: dict[str, Any], says: str
) -> None:
    found = one(metrics, [rule])
    assert found.outcome == "INCONCLUSIVE"
    assert says in found.reason
    assert found.action is not None


@pytest.mark.parametrize("coverage", [0.95, 0.96, 1.0])
def test_enough_coverage(coverage: float) -> None:
    rule = {**MAX, "min_coverage": 0.95}
    assert one([replace(FINE, coverage=coverage)], [rule]).outcome == "PASS"


def test_no_coverage_demanded() -> None:
    assert one([replace(FINE, coverage=None)], [{**MAX, "min_coverage": 0}]).outcome == "PASS"


def test_a_fixed_population_needs_no_width() -> None:
    exact = Interval(1.0, 1.0, 0.95, 1, "fixed-population")
    rule = {"metric": HIGHER, "min": 1.0}
    assert one([metric(HIGHER, 1.0, bounds=exact)], [rule]).outcome == "PASS"
    half = Interval(0.5, 0.5, 0.95, 1, "fixed-population")
    assert one([metric(HIGHER, 0.5, bounds=half)], [rule]).outcome == "FAIL"


@pytest.mark.parametrize(
    ("n", "min_n", "outcome", "needs"),
    [(1000, 1000, "PASS", None), (999, 1000, "INCONCLUSIVE", 1000), (1, None, "PASS", None)],
)
def test_min_n(n: int, min_n: int | None, outcome: str, needs: int | None) -> None:
    rule = {**MAX} if min_n is None else {**MAX, "min_n": min_n}
    found = one([replace(FINE, n=n)], [rule])
    assert (found.outcome, found.needs_n) == (outcome, needs)


def test_min_n_also_keeps_a_fail_open() -> None:
    found = one([metric(LOWER, 70, 65, 75, n=10)], [{**MAX, "min_n": 100}])
    assert found.outcome == "INCONCLUSIVE"
    assert found.reason == "n 10 is below min_n 100"


def counts(kind: str, **statuses: int) -> dict[str, dict[str, int]]:
    base = {
        "text": {"ok": 100, "error": 0, "skipped": 0, "truncated": 0},
        "risk": {"ok": 100, "error": 0, "skipped": 0, "truncated": 0},
        "turn": {"ok": 100, "model_fault": 0, "infrastructure_fault": 0},
    }
    return {**base, kind: {**base[kind], **statuses}}


@pytest.mark.parametrize(
    ("name", "kind", "statuses", "allowed", "outcome"),
    [
        (LOWER, "text", {"error": 1}, {}, "INCONCLUSIVE"),
        (LOWER, "text", {"error": 1}, {"max_error_rate": 0.01}, "PASS"),  # 1 of 101
        (LOWER, "text", {"error": 2}, {"max_error_rate": 0.01}, "INCONCLUSIVE"),
        (LOWER, "text", {"truncated": 1}, {}, "INCONCLUSIVE"),
        (LOWER, "text", {"truncated": 1}, {"max_truncated_rate": 0.01}, "PASS"),
        (LOWER, "text", {"truncated": 1}, {"max_error_rate": 0.5}, "INCONCLUSIVE"),
        (LOWER, "text", {"skipped": 5}, {}, "PASS"),  # the coverage says so, not the error rate
        (LOWER, "risk", {"error": 50}, {}, "PASS"),  # other evidence
        (LOWER, "turn", {"infrastructure_fault": 50}, {}, "PASS"),
        (HIGHER, "risk", {"error": 1}, {}, "INCONCLUSIVE"),
        (HIGHER, "text", {"error": 50}, {}, "PASS"),
        ("dialogue/consistency", "turn", {"infrastructure_fault": 1}, {}, "INCONCLUSIVE"),
        ("dialogue/consistency", "turn", {"infrastructure_fault": 1}, {"max_error_rate": 0.01}, "PASS"),
        ("dialogue/consistency", "turn", {"model_fault": 50}, {}, "PASS"),  # a failure, in the metric already
        ("cache/reuse_ratio", "turn", {"infrastructure_fault": 1}, {}, "INCONCLUSIVE"),
    ],
)
def test_errors_and_truncation(
    name: str, kind: str, statuses: dict[str, int], allowed: dict[str, float], outcome: str
) -> None:
    low, high = (45, 55) if name == LOWER else (0.95, 0.99)
    rule = MAX if name == LOWER else {"metric": name, "min": 0.9}
    fields = {"counts": counts(kind, **statuses)}
    found = one([metric(name, (low + high) / 2, low, high)], [rule], results_fields=fields, **allowed)
    assert found.outcome == outcome


def test_errors_of_the_baseline_open_a_change_rule_only() -> None:
    fields = {"baseline_counts": counts("text", error=1)}
    verdict = run([FINE], [CHANGE, MAX], [GOOD], comparison_fields=fields)
    assert [rule.outcome for rule in verdict.rules] == ["INCONCLUSIVE", "PASS"]
    assert "of the baseline ended in an error" in verdict.rules[0].reason


def test_a_partial_run_decides_nothing() -> None:
    rules = [MAX, {"metric": HIGHER, "min": 0.9}]
    verdict = run([FINE, metric(HIGHER, 0.1, 0.05, 0.2)], rules, results_fields={"complete": False})
    assert [rule.outcome for rule in verdict.rules] == ["INCONCLUSIVE", "INCONCLUSIVE"]
    assert "evalkit resume" in verdict.rules[0].reason


def within(share: Any, low: float | None, high: float | None, **fields: Any) -> MetricResult:
    bounds = {
        "low": low,
        "high": high,
        "confidence": 0.95,
        "sides": 1,
        "method": "exact-binomial",
        "resamples": None,
        "seed": None,
    }
    entry = {"ms": 15.0, "share": share, "n": 200, "clusters": 60, "bounds": bounds, **fields}
    return metric("latency/turn_overhead", 3.0, 2.5, 3.5, details={"within": [{"ms": 5.0}, entry]})


@pytest.mark.parametrize(
    ("found", "outcome", "says"),
    [
        (within(1.0, 0.991, 1.0), "PASS", "lower bound 0.991 is above 0.99"),
        (within(1.0, 0.985, 1.0), "INCONCLUSIVE", "too few samples"),
        (within(0.9, 0.85, 0.95), "FAIL", "upper bound 0.95 is below 0.99"),
        (within(None, 0.991, 1.0), "INCONCLUSIVE", "no share within 15 ms"),
        (within(NAN, 0.991, 1.0), "INCONCLUSIVE", "isn't a finite number"),
        (
            within(1.0, 0.991, 1.0, bounds=None, interval_reason="few clusters"),
            "INCONCLUSIVE",
            "few clusters",
        ),
        (within(1.0, 0.991, 1.0, bounds={"low": 1}), "INCONCLUSIVE", "is missing"),
        (within(1.0, 0.991, 1.0, bounds="wide"), "INCONCLUSIVE", "JSON object"),
        (within(1.0, 0.991, 1.0, n=None), "INCONCLUSIVE", "n is 0"),
        (within(1.0, 0.991, 1.0, ms=10.0), "INCONCLUSIVE", "the share within 15 ms was not measured"),
        (metric("latency/turn_overhead", 3.0, 2.5, 3.5), "INCONCLUSIVE", "was not measured"),
    ],
)
def test_within(found: MetricResult, outcome: str, says: str) -> None:
    rule = one([found], [{"metric": "latency/turn_overhead", "within_ms": 15, "share": 0.99}])
    assert rule.outcome == outcome
    assert says in rule.reason
    assert (rule.kind, rule.within_ms, rule.direction) == ("within", 15, "higher")


def test_within_is_judged_even_where_the_median_is_infinite() -> None:
    found = replace(within(0.4, 0.3, 0.5), value=None, reason="the median is infinite")
    rule = one([found], [{"metric": "latency/turn_overhead", "within_ms": 15, "share": 0.99}])
    assert rule.outcome == "FAIL"


def test_pass_hat_k_is_found_by_its_k_and_slice() -> None:
    metrics = [
        metric("dialogue/pass_hat_k", 0.99, 0.95, 1.0, k=1),
        metric("dialogue/pass_hat_k", 0.9, 0.85, 0.95, k=3),
        metric("dialogue/pass_hat_k", 0.5, 0.4, 0.6, k=3, slice="multi_turn"),
    ]
    rules: list[dict[str, Any]] = [
        {"metric": "dialogue/pass_hat_k", "k": 1, "min": 0.94},
        {"metric": "dialogue/pass_hat_k", "k": 3, "min": 0.8},
        {"metric": "dialogue/pass_hat_k", "k": 3, "slice": "multi_turn", "min": 0.8},
        {"metric": "dialogue/pass_hat_k", "k": 2, "min": 0.8},
    ]
    verdict = run(metrics, rules)
    assert [rule.outcome for rule in verdict.rules] == ["PASS", "PASS", "FAIL", "INCONCLUSIVE"]
    assert verdict.rules[3].reason == (
        "dialogue/pass_hat_k is in the results only for k=1 all samples, k=3 all samples, k=3 slice multi_turn"
    )


P, F, O = (45, 55), (65, 75), (55, 65)  # noqa: E741


@pytest.mark.parametrize(
    ("ends", "severities", "overall", "code"),
    [
        ([P], ["block"], "PASS", ExitCode.OK),
        ([P, P], ["block", "block"], "PASS", ExitCode.OK),
        ([P, F], ["block", "block"], "FAIL", ExitCode.FAIL),
        ([F, O], ["block", "block"], "FAIL", ExitCode.FAIL),
        ([O, F], ["block", "block"], "FAIL", ExitCode.FAIL),
        ([P, O], ["block", "block"], "INCONCLUSIVE", ExitCode.INCONCLUSIVE),
        ([P, F], ["block", "warn"], "PASS", ExitCode.OK),
        ([P, O], ["block", "warn"], "PASS", ExitCode.OK),
        ([O, F], ["block", "warn"], "INCONCLUSIVE", ExitCode.INCONCLUSIVE),
        ([F, P], ["block", "warn"], "FAIL", ExitCode.FAIL),
        ([P], ["warn"], "INCONCLUSIVE", ExitCode.INCONCLUSIVE),  # nothing that blocks was applied
        ([F], ["warn"], "INCONCLUSIVE", ExitCode.INCONCLUSIVE),
    ],
)
def test_overall(ends: Any, severities: list[str], overall: str, code: ExitCode) -> None:
    metrics = [metric(LOWER, sum(pair) / 2, *pair, slice=f"s{index}") for index, pair in enumerate(ends)]
    rules = [{**MAX, "slice": f"s{index}", "severity": severity} for index, severity in enumerate(severities)]
    verdict = run(metrics, rules)
    assert (verdict.verdict, verdict.exit_code) == (overall, code)


def test_a_first_release_lists_change_rules_as_not_applied() -> None:
    verdict = run([FINE], [CHANGE, MAX], None, first_release=True)
    assert [rule.outcome for rule in verdict.rules] == ["NOT_APPLIED", "PASS"]
    assert (verdict.verdict, verdict.first_release) == ("PASS", True)
    assert "first release" in verdict.rules[0].reason
    assert verdict.false_fail_probability == pytest.approx(0.05)


def test_a_first_release_with_change_rules_alone_is_not_a_pass() -> None:
    verdict = run([FINE], [CHANGE], None, first_release=True)
    assert (verdict.verdict, verdict.reason) == (
        "INCONCLUSIVE",
        "no blocking rule was applied, so nothing was decided",
    )


def test_a_first_release_drops_change_rules_even_with_a_baseline() -> None:
    bad = compared(LOWER, 0.5, 0.4, 0.6)
    assert run([FINE], [CHANGE, MAX], [bad], first_release=True).rules[0].outcome == "NOT_APPLIED"


def test_what_a_failed_rule_carries() -> None:
    rule = one([metric(LOWER, 70, 65, 75, n=80, clusters=70)], [MAX])
    assert rule.bound == 75
    assert (rule.value, rule.n, rule.clusters, rule.coverage, rule.unit) == (70, 80, 70, 1.0, "ratio")
    assert rule.interval == interval(65, 75, 1)
    assert rule.reason == "lower bound 65 is above 60"
    assert rule.action is not None and "raise their share" in rule.action


def test_a_passed_rule_has_nothing_to_do() -> None:
    rule = one([FINE], [MAX])
    assert (rule.reason, rule.action, rule.needs_n, rule.bound) == (
        "upper bound 55 is below 60",
        None,
        None,
        55,
    )


def test_bounds_near_the_threshold_are_told_apart() -> None:
    rule = one([metric(LOWER, 50, 45, 60.0000001)], [MAX])
    assert (
        "upper bound 60.0000001 is above 60.0000000" in rule.reason or "60.0000001 is above 60" in rule.reason
    )


def test_an_undecided_rule_names_the_sample_size_and_warns() -> None:
    bounds = Interval(0.61, 0.995, 0.95, 1, "exact-binomial")
    found = metric("dialogue/pass_hat_k", 0.9, k=3, n=10, clusters=10, bounds=bounds)
    verdict = run([found], [{"metric": "dialogue/pass_hat_k", "k": 3, "min": 0.8}])
    rule = verdict.rules[0]
    assert rule.outcome == "INCONCLUSIVE"
    assert rule.needs_n == 135  # the figure of the contract's example
    assert rule.action is not None and rule.action.startswith("add dialogues: 14 times as many")
    assert verdict.warning == (
        "Looking again and again isn't free: every further look at new samples raises the chance of a wrong verdict. "
        "This was look 1 of at most 2; add the named number of samples at once."
    )


def test_no_warning_where_all_is_decided() -> None:
    assert run([FINE], [MAX]).warning is None


@pytest.mark.parametrize(("rules", "bound"), [(1, 0.05), (6, 0.3), (30, 1.0)])
def test_probability_of_a_false_fail(rules: int, bound: float) -> None:
    verdict = run([FINE], [MAX] * rules)
    assert verdict.false_fail_probability == pytest.approx(bound)
    assert "number of blocking rules" in verdict.false_fail_assumption


def test_warning_rules_are_not_counted_in_it() -> None:
    verdict = run([FINE], [MAX, {**MAX, "severity": "warn"}])
    assert verdict.false_fail_probability == pytest.approx(0.05)


def test_the_policys_confidence_is_the_bounds_confidence() -> None:
    sure = replace(FINE, bounds=Interval(40, 58, 0.99, 1, "cluster-bootstrap"))
    assert one([sure], [MAX], confidence=0.99).outcome == "PASS"
    assert one([sure], [MAX]).outcome == "INCONCLUSIVE"


def test_equal_arguments_give_equal_bytes() -> None:
    arguments: Any = ([FINE], [MAX, CHANGE], [GOOD])
    assert run(*arguments).to_bytes() == run(*arguments).to_bytes()
    assert run(*arguments).to_bytes() == canonical_json(run(*arguments).to_dict())


def test_identity_stands_in_the_verdict() -> None:
    verdict = run([FINE], [MAX, CHANGE], [GOOD])
    assert (verdict.model_digest, verdict.baseline_model_digest) == (CANDIDATE, BASELINE)
    assert verdict.plan_sha256 == results([FINE], EVIDENCE_ONE).plan_sha256
    assert verdict.policy["rules"][0] == {
        "metric": LOWER,
        "max": 60.0,
        "min_coverage": 1.0,
        "severity": "block",
    }


def test_results_with_infinite_parts_still_make_json() -> None:
    verdict = run([metric(LOWER, 70, 65, INF)], [MAX])
    assert verdict.rules[0].outcome == "FAIL"
    assert verdict.to_dict()["rules"][0]["interval"]["high"] is None


@pytest.mark.parametrize(
    ("look", "allowed", "outcome"),
    [(1, 1, "PASS"), (2, 2, "PASS"), (2, 1, "INCONCLUSIVE"), (3, 2, "INCONCLUSIVE"), (0, 2, "INCONCLUSIVE")],
)
def test_no_more_looks_than_the_policy_allows(look: int, allowed: int, outcome: str) -> None:
    verdict = run([FINE], [MAX, {**MAX, "min_n": 1}], look=look, max_looks=allowed)
    assert [rule.index for rule in verdict.rules] == [0, 1]
    assert (verdict.verdict, verdict.look, verdict.policy["max_looks"]) == (outcome, look, allowed)
    if outcome == "INCONCLUSIVE":
        assert verdict.rules[0].reason == (
            f"this is look {look} at this candidate under this policy, each at other samples; max_looks allows {allowed}"
        )
        assert verdict.rules[0].action == (
            "more samples decide nothing under this policy; let its owner write one that allows another look, and judge "
            "samples by it that nobody has looked at; another candidate begins at look 1"
        )


@pytest.mark.parametrize(("look", "last"), [(1, False), (2, True), (3, True)])
def test_more_samples_are_advised_where_another_look_is_left(look: int, last: bool) -> None:
    verdict = run([metric(LOWER, 50, 45, 61)], [MAX], look=look)
    action, warning = verdict.rules[0].action, verdict.warning
    assert verdict.verdict == "INCONCLUSIVE" and action is not None and warning is not None
    assert (f"This was look {look} of at most 2; " in warning, "at once" in warning) == (True, not last)
    assert ("takes a policy that allows it, and samples that nobody has looked at." in warning) == last
    assert ("let its owner" in action) == last
    if look == 2:
        assert verdict.rules[0].needs_n is not None and action.startswith("add texts: ")
        assert action.endswith(
            "); this was the last look that the policy allows, so let its owner first write one that allows another"
        )


def test_a_look_too_many_fails_nothing_either() -> None:
    assert run([metric(LOWER, 70, 65, 75)], [MAX], look=3).verdict == "INCONCLUSIVE"


def test_two_looks_are_allowed_where_the_policy_does_not_say() -> None:
    assert policy([MAX]).max_looks == 2
