"""S43 and the five findings in Kayenta: what a canary judge let through, and what it stopped without cause."""

import math
from dataclasses import replace
from typing import Any

import pytest

from evalkit.gate.compare import compare
from evalkit.gate.judge import judge
from evalkit.gate.verdict import RuleVerdict
from evalkit.metrics.context import MetricContext
from evalkit.metrics.evaluate import evaluate
from evalkit.runs.evidence import Evidence
from tests.evalkit.fake_run import (
    BASELINE,
    CANDIDATE,
    EVIDENCE_ONE,
    context_for,
    dialogue,
    metric,
    policy,
    random_evidence,
    results,
)

MEDIAN: dict[str, Any] = {"metric": "latency/turn_overhead", "change": {"max_relative_increase": 0.02}}
WITHIN: dict[str, Any] = {"metric": "latency/turn_overhead", "within_ms": 15, "share": 0.99}


def timed(times_ms: list[float]) -> Evidence:
    """One dialogue a time; all its turns took that long."""
    turns = [
        replace(turn, turn_overhead_ns=round(time * 1e6))
        for number, time in enumerate(times_ms)
        for turn in dialogue(f"d{number:04d}", 0, recalls=True)
    ]
    return Evidence((), tuple(turns))


def context(evidence: Evidence) -> MetricContext:
    base = context_for(evidence)
    assert base.dialogues is not None
    return replace(
        base, dialogues=replace(base.dialogues, trials=1), within=(("latency/turn_overhead", 15.0),)
    )


def decided(candidate: list[float], baseline: list[float], rule: dict[str, Any]) -> RuleVerdict:
    ours, theirs = timed(candidate), timed(baseline)
    settings = context(ours)
    measured = results(evaluate(ours, settings), ours, CANDIDATE)
    base = results(evaluate(theirs, settings), theirs, BASELINE)
    return judge(measured, compare(ours, theirs, settings, measured, base), policy([rule])).rules[0]


def spread(centre: float, number: int) -> list[float]:
    return [centre + 0.02 * math.sin(1.7 * index) for index in range(number)]


def test_kayenta_1_the_tolerance_is_relative_to_the_baseline() -> None:
    """A slowdown of 0.5 % is within 2 %, however surely it is there."""
    assert decided(spread(10.05, 200), spread(10.0, 200), MEDIAN).outcome == "PASS"


def test_kayenta_2_a_slow_tail_is_seen_though_the_median_stands_still() -> None:
    """5 % of the turns 20 times slower."""
    slow = [time * 20 if index % 20 == 0 else time for index, time in enumerate(spread(10.0, 400))]
    assert decided(slow, spread(10.0, 400), MEDIAN).outcome == "PASS"
    assert decided(slow, spread(10.0, 400), WITHIN).outcome == "FAIL"


@pytest.mark.parametrize("bad", [6, 7, 8])
def test_kayenta_3_most_samples_a_hundred_times_worse_never_pass(bad: int) -> None:
    slow = [time * 100 if index < bad else time for index, time in enumerate(spread(10.0, 10))]
    for rule in (MEDIAN, WITHIN):
        assert decided(slow, spread(10.0, 10), rule).outcome != "PASS"


def test_kayenta_4_three_against_three_decide_nothing() -> None:
    for candidate, baseline in ((20.0, 10.0), (10.0, 20.0)):
        rule = decided(spread(candidate, 3), spread(baseline, 3), MEDIAN)
        assert rule.outcome == "INCONCLUSIVE"
        assert "an interval needs 10" in rule.reason


def test_kayenta_5_a_metric_that_could_not_be_computed_is_not_left_out() -> None:
    fine = metric("risk/high_risk_recall", 0.99, 0.97, 1.0)
    lost = metric("risk/false_reject_rate", None, reason="the computation failed")
    rules = [
        {"metric": "risk/high_risk_recall", "min": 0.9},
        {"metric": "risk/false_reject_rate", "max": 0.1},
    ]
    verdict = judge(results([fine, lost], EVIDENCE_ONE), None, policy(rules))
    assert verdict.verdict == "INCONCLUSIVE"
    assert verdict.rules[1].reason == "no value: the computation failed"


@pytest.mark.parametrize(
    "found",
    [
        [],  # nothing measured
        [metric("perplexity/token", None, reason="every text errored")],
        [metric("perplexity/token", math.nan, math.nan, math.nan)],
        [metric("perplexity/token", 0.0, 0.0, 0.0, n=0)],
        [metric("perplexity/token", 5.0)],  # no interval
    ],
)
def test_s43_empty_nan_or_errored_never_promotes(found: list[Any]) -> None:
    verdict = judge(results(found, Evidence()), None, policy([{"metric": "perplexity/token", "max": 60}]))
    assert verdict.verdict == "INCONCLUSIVE"
    assert int(verdict.exit_code) == 3


def test_s43_a_run_whose_every_sample_errored() -> None:
    base = random_evidence(1, texts=30, dialogues=0)
    lost = Evidence(tuple(replace(sample, status="error", reason="gone") for sample in base.samples))
    verdict = judge(
        results(evaluate(lost, context_for(base)), lost),
        None,
        policy([{"metric": "perplexity/token", "max": 1000}], max_error_rate=0.99),
    )
    assert verdict.verdict == "INCONCLUSIVE"
