"""E27-E32: errors of zero, too few samples, correlated samples and unseeded intervals never make a verdict."""

from dataclasses import replace
from typing import Any

import pytest

from evalkit.gate.compare import compare
from evalkit.gate.judge import judge
from evalkit.gate.verdict import Verdict
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.result import Interval
from evalkit.runs.evidence import Evidence
from tests.evalkit.fake_run import (
    BASELINE,
    CANDIDATE,
    EVIDENCE_ONE,
    context_for,
    metric,
    policy,
    random_evidence,
    results,
)

MAX: dict[str, Any] = {"metric": "perplexity/token", "max": 60}
CHANGE: dict[str, Any] = {"metric": "perplexity/token", "change": {"max_relative_increase": 0.02}}


def judged(evidence: Evidence, rules: list[dict[str, Any]]) -> Verdict:
    return judge(results(evaluate(evidence, context_for(evidence)), evidence), None, policy(rules))


@pytest.mark.parametrize("end", [0.5, 0.9, 1.0])
def test_e27_an_error_of_zero_is_no_certainty(end: float) -> None:
    found = metric("risk/high_risk_recall", end, bounds=Interval(end, end, 0.95, 1, "cluster-bootstrap"))
    rule = {"metric": "risk/high_risk_recall", "min": 0.1}
    assert judge(results([found], EVIDENCE_ONE), None, policy([rule])).verdict == "INCONCLUSIVE"


def test_e28_the_bounds_are_those_of_the_reported_value() -> None:
    for item in evaluate(random_evidence(6, dialogues=31), context_for(random_evidence(6, dialogues=31))):
        if item.bounds is not None and item.bounds.low is not None and item.bounds.high is not None:
            assert item.value is not None and item.bounds.low <= item.value <= item.bounds.high, item.name


@pytest.mark.parametrize("texts", [1, 2, 9])
def test_e29_too_few_samples_are_inconclusive_however_good(texts: int) -> None:
    verdict = judged(random_evidence(1, texts=texts, dialogues=0), [MAX])
    assert verdict.verdict == "INCONCLUSIVE"
    assert "an interval needs 10" in verdict.rules[0].reason


def test_e29_equal_models_never_fail_and_never_flip() -> None:
    """A/A: the same outputs under two names, 20 sets of samples: no change rule fails."""
    for seed in range(20):
        evidence = random_evidence(seed, texts=30, dialogues=0)
        context = context_for(evidence)
        ours, theirs = (
            results(evaluate(evidence, context), evidence, name) for name in (CANDIDATE, BASELINE)
        )
        verdicts = {
            judge(ours, compare(evidence, evidence, context, ours, theirs), policy([CHANGE])).to_bytes()
            for _ in range(2)
        }
        assert len(verdicts) == 1
        assert b'"outcome":"FAIL"' not in verdicts.pop()


def test_e30_copies_of_a_document_are_no_new_evidence() -> None:
    """Ten copies of each text in its cluster: the bounds stay where they are."""
    once = random_evidence(3, texts=30, dialogues=0)
    copies = Evidence(
        tuple(
            replace(sample, sample_id=f"{sample.sample_id}-{copy}")
            for sample in once.samples
            for copy in range(10)
        )
    )
    few, many = judged(once, [MAX]).rules[0], judged(copies, [MAX]).rules[0]
    assert many.n == 10 * (few.n or 0)
    assert many.clusters == few.clusters == 30
    assert many.bound == pytest.approx(few.bound)


def test_e31_large_numbers_keep_their_spread() -> None:
    """Losses near 1e8 that differ by units: naive sums of squares would lose the whole spread."""
    base = random_evidence(3, texts=30, dialogues=0)
    samples = tuple(
        replace(
            sample,
            scored=10**8,
            nll=float(10**8 + number),
            classes={"head": replace(sample.classes["head"], tokens=10**8, nll=10**8 + number)},
        )
        for number, sample in enumerate(base.samples)
        if sample.kind == "text"
    )
    found = next(
        item for item in evaluate(Evidence(samples), context_for(base)) if item.name == "perplexity/token"
    )
    assert found.interval is not None and found.interval.low is not None and found.interval.high is not None
    assert 0 < found.interval.high - found.interval.low < 1e-6


def test_e32_the_same_evidence_gives_the_same_bytes() -> None:
    evidence = random_evidence(2, texts=40, dialogues=12)
    rules = [MAX, {"metric": "dialogue/consistency", "min": 0.9}]
    assert judged(evidence, rules).to_bytes() == judged(evidence, rules).to_bytes()
