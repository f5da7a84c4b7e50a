"""The reliability curve in the report: one row a bin, as the results have it."""

from types import SimpleNamespace

from evalkit.metrics.evaluate import evaluate
from evalkit.report.language import ENGLISH
from evalkit.report.reliability import reliability_curves
from evalkit.runs.evidence import Evidence
from evalkit.runs.results_io import build_results
from tests.evalkit.metrics.samples import context, decision_record


def source(records):
    evidence = Evidence(tuple(records))
    results = build_results(
        evidence, evaluate(evidence, context()), run_id="r", plan_sha256="0", model_digest="m"
    )
    return SimpleNamespace(results=results)


def test_one_row_a_bin_with_line_dot_and_interval():
    records = [
        decision_record(f"d{index}", "reject" if index % 10 < index // 10 else "approve", (index - 50) / 10)
        for index in range(100)
    ]
    (curve,) = reliability_curves(source(records))
    assert curve.title == "the decisions' probabilities"
    rows = curve.rows
    assert [row.n for row in rows] == ["10"] * 10
    assert [row.seen for row in rows][:3] == ["0 %", "10 %", "20 %"]
    drawn = rows[3].strip.svg(ENGLISH)
    assert 'class="threshold"' in drawn and "mean probability" in drawn
    assert rows[0].interval.startswith("0 % … ")


def test_without_decisions_there_is_no_curve():
    assert reliability_curves(source([])) == []
    assert reliability_curves(source([decision_record("a", "reject", 1.0, "calibration")])) == []
