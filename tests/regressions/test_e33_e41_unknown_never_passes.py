"""E33-E41: errored, missing, NaN, negative, ambiguous and empty are never a pass, each with its reason."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evalkit.gate.compare import compare
from evalkit.gate.judge import judge
from evalkit.gate.verdict import RuleVerdict
from evalkit.metrics.estimators import RatioEstimator
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.result import MetricResult
from evalkit.runs.evidence import Evidence
from evalkit.runs.results_io import metric_to_dict, status_counts
from evalkit.statistics.paired import paired_change
from tests.evalkit.fake_run import (
    BASELINE,
    EVIDENCE_ONE,
    compared,
    comparison,
    context_for,
    metric,
    policy,
    random_evidence,
    results,
)

MAX: dict[str, Any] = {"metric": "perplexity/token", "max": 60}
FINE = metric("perplexity/token", 50, 45, 55)


def decided(
    metrics: list[MetricResult], rule: dict[str, Any], pair: Any = None, **fields: Any
) -> RuleVerdict:
    base = results(metrics, EVIDENCE_ONE, BASELINE)
    together = None if pair is None else comparison([pair], base)
    return judge(replace(results(metrics, EVIDENCE_ONE), **fields), together, policy([rule])).rules[0]


def errored(evidence: Evidence, number: int) -> Evidence:
    samples = tuple(
        replace(sample, status="error", reason="engine died") if index < number else sample
        for index, sample in enumerate(evidence.samples)
    )
    return Evidence(samples, evidence.turns)


def test_e33_errored_samples_stay_in_the_count_and_open_the_rule() -> None:
    evidence = errored(random_evidence(1, texts=100, dialogues=0), 10)
    measured = results(evaluate(evidence, context_for(evidence)), evidence)
    assert measured.counts["text"] == {"ok": 90, "error": 10, "skipped": 0, "truncated": 0}
    assert measured.conservation.texts == 100
    rule = judge(measured, None, policy([MAX])).rules[0]
    assert rule.outcome == "INCONCLUSIVE"
    assert (
        rule.reason
        == "10 of 100 texts of the candidate ended in an error; max_error_rate allows a share of 0"
    )


def test_e34_a_job_of_errors_is_not_green() -> None:
    evidence = errored(random_evidence(1, texts=40, dialogues=0), 31)
    measured = results(evaluate(evidence, context_for(evidence)), evidence)
    verdict = judge(measured, None, policy([MAX], max_error_rate=0.05))
    assert (verdict.verdict, int(verdict.exit_code)) == ("INCONCLUSIVE", 3)


def test_e35_a_nan_statistic_is_written_as_null_with_its_reason() -> None:
    entry = metric_to_dict(metric("perplexity/token", math.nan))
    assert entry["value"] is None and "nan" in entry["reason"]
    assert decided([metric("perplexity/token", math.nan, 45, 55)], MAX).outcome == "INCONCLUSIVE"
    assert decided([], MAX).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(
    "rule",
    [
        {"metric": "perplexity/token", "change": {"max_relative_increase": 0.1}},
        {"metric": "perplexity/token", "change": {"max_increase": 0.1}},
        {"metric": "perplexity/token", "max": 60},
        {"metric": "perplexity/token", "min": 0.1},
    ],
)
def test_e36_nan_passes_no_comparison(rule: dict[str, Any]) -> None:
    nan = math.nan
    bad = metric("perplexity/token", nan, nan, nan)
    assert decided([bad], rule, compared("perplexity/token", nan, nan, nan)).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize(("candidate", "relative"), [(-1.0, 0.5), (-3.0, -0.5), (-2.0, 0.0)])
def test_e37_a_negative_baseline_does_not_flip_the_change(candidate: float, relative: float) -> None:
    """Baseline -2: -1 is half a baseline higher, -3 half a baseline lower."""
    clusters = tuple(f"c{number}" for number in range(12))
    ones = np.ones(12)
    change = paired_change(
        RatioEstimator(clusters, candidate * ones, ones),
        RatioEstimator(clusters, -2.0 * ones, ones),
        "relative",
        0.95,
        1,
    )
    assert change.value == pytest.approx(relative)


@pytest.mark.parametrize(
    ("value", "low", "high", "outcome"),
    [(0.5, 0.4, 0.6, "PASS"), (-0.5, -0.6, -0.4, "FAIL")],  # margin is higher-is-better
)
def test_e37_better_passes_and_worse_fails(value: float, low: float, high: float, outcome: str) -> None:
    rule = {"metric": "logits/margin", "change": {"max_relative_decrease": 0.1}}
    found = metric("logits/margin", -1.0, -1.1, -0.9)
    assert decided([found], rule, compared("logits/margin", value, low, high)).outcome == outcome


def test_e38_the_reason_names_metric_slice_and_what_there_is() -> None:
    found = [replace(FINE, slice="vip"), replace(FINE, slice="5")]
    rule = decided(found, {**MAX, "slice": "premium"})
    assert rule.reason == "perplexity/token is in the results only for slice 5, slice vip"
    assert (rule.metric, rule.slice, rule.index) == ("perplexity/token", "premium", 0)
    # A tag that looks like a number is matched as the text it is.
    assert decided(found, {**MAX, "slice": "5"}).outcome == "PASS"


def test_e39_a_relative_change_is_a_difference_over_the_baseline() -> None:
    """10.0 → 10.1 is +0.01, not 1.01: a limit of 0.02 allows it, one of 0.005 doesn't."""
    clusters = tuple(f"c{number}" for number in range(40))
    ones = np.ones(40)
    change = paired_change(
        RatioEstimator(clusters, 10.1 * ones, ones),
        RatioEstimator(clusters, 10.0 * ones, ones),
        "relative",
        0.95,
        1,
    )
    assert change.value == pytest.approx(0.01)
    pair = compared("perplexity/token", change.value, 0.009, 0.011)
    for allowed, outcome in ((0.02, "PASS"), (0.005, "FAIL")):
        rule = {"metric": "perplexity/token", "change": {"max_relative_increase": allowed}}
        assert decided([FINE], rule, pair).outcome == outcome


def test_e40_a_model_is_not_its_own_baseline() -> None:
    evidence = random_evidence(1, texts=30, dialogues=0)
    context = context_for(evidence)
    measured = results(evaluate(evidence, context), evidence)
    rule = {"metric": "perplexity/token", "change": {"max_relative_increase": 0.5}}
    verdict = judge(measured, compare(evidence, evidence, context, measured, measured), policy([rule]))
    assert verdict.verdict == "INCONCLUSIVE"
    assert "same model" in verdict.rules[0].reason


def test_e41_nothing_measured_is_not_a_score() -> None:
    evidence = Evidence()
    context = context_for(random_evidence(1, dialogues=2))
    measured = results(evaluate(evidence, context), evidence)
    assert all(item.value is None and item.reason for item in measured.metrics)
    rules: list[dict[str, Any]] = [
        MAX,
        {"metric": "dialogue/consistency", "min": 0.1},
        {"metric": "dialogue/pass_hat_k", "k": 1, "min": 0.1},
        {"metric": "risk/false_reject_rate", "max": 0.9},
    ]
    verdict = judge(measured, None, policy(rules))
    assert [rule.outcome for rule in verdict.rules] == ["INCONCLUSIVE"] * 4
    assert status_counts(evidence)["turn"]["ok"] == 0
