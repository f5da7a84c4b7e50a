"""A predicted number blocks a release only where its predictor learnt from people's ratings."""

import pytest

from evalkit.gate.judge import judge
from evalkit.gate.verdict import Verdict
from evalkit.metrics.context import BusinessSetup, MetricContext
from evalkit.metrics.evaluate import evaluate
from evalkit.runs.evidence import Evidence
from evalkit.runs.results_io import build_results
from evalkit.scenario.schema import Policy, Rule
from tests.support.dialogues import setup, turn

NAMES = [f"d{number:02}" for number in range(60)]


def verdict(data: str | None, rule: Rule, business: bool = False) -> Verdict:
    evidence = Evidence(turns=tuple(turn(name, satisfaction=4.0 + (ord(name[-1]) % 3) / 4) for name in NAMES))
    context = MetricContext(
        0.95,
        1,
        {"dialogue": "dlg", "business/smiles": "biz"},
        dialogues=setup(NAMES, satisfaction_error=0.2, satisfaction_data=data),
        business=(BusinessSetup("smiles", "dialogue/satisfaction", 1),) if business else (),
    )
    metrics = evaluate(evidence, context)
    results = build_results(evidence, metrics, run_id="r", plan_sha256="0" * 64, model_digest="1" * 64)
    return judge(results, None, Policy(rules=[rule]))


@pytest.mark.parametrize("metric", ["dialogue/satisfaction", "business/smiles"])
@pytest.mark.parametrize(
    ("data", "severity", "outcome"),
    [
        ("rated", "block", "PASS"),
        ("generated", "block", "INCONCLUSIVE"),
        (None, "block", "INCONCLUSIVE"),
        ("generated", "warn", "PASS"),
    ],
)
def test_a_blocking_rule_needs_rated_samples(
    metric: str, data: str | None, severity: str, outcome: str
) -> None:
    rule = Rule(metric=metric, min=3.5, severity=severity)
    (judged,) = verdict(data, rule, metric.startswith("business")).rules
    assert judged.outcome == outcome
    if outcome != "PASS":
        assert "sandbox fit satisfaction RATED.csv --rated" in judged.reason
