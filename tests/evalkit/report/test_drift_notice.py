"""Drift between the scenario and recent traffic stands among the notices of a report."""

from dataclasses import replace
from typing import Any

from evalkit.metrics.result import MetricResult
from evalkit.report.resampling import drift_notice
from evalkit.report.view import build_view
from tests.evalkit.fake_run import metric, source

MOVED: dict[str, Any] = {
    "shift_p_value": 1e-6,
    "target_texts": 400,
    "marginal_before": {"token_length": 0.31, "entity_density": 0.04},
    "uncovered_mass": 0.05,
}


def resampled(**changes: Any) -> MetricResult:
    found = metric("perplexity/token", 4.0, 3.8, 4.2)
    return replace(found, slice="resampled", details={**MOVED, **changes})


def test_traffic_that_moved_away_is_named() -> None:
    notice = drift_notice([resampled()])
    assert notice is not None and notice.startswith("Drift: the 400 texts of recent traffic differ")
    assert "0.31 in token_length, 0.04 in entity_density" in notice and "no text" in notice


def test_no_drift_beyond_chance_is_said_too() -> None:
    notice = drift_notice([resampled(shift_p_value=0.4)])
    assert notice is not None and notice.startswith("No drift beyond chance")


def test_a_scenario_without_traffic_says_nothing() -> None:
    assert drift_notice([]) is None
    assert drift_notice([replace(resampled(), slice=None)]) is None
    assert drift_notice([replace(resampled(), details={})]) is None


def test_the_report_shows_it() -> None:
    run = source()
    results = replace(run.results, metrics=(*run.results.metrics, resampled()))
    assert any(notice.startswith("Drift: ") for notice in build_view(replace(run, results=results)).notices)
