"""Calibration of decisions and their cost, against scikit-learn, plain float64 and simulation."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, confusion_matrix

from evalkit.metrics import calibration
from evalkit.metrics.calibration import equal_mass_bins
from evalkit.metrics.classification import high_risk_probability
from evalkit.metrics.evaluate import build_estimators, evaluate
from evalkit.runs.evidence import Evidence
from evalkit.statistics.paired import paired_change
from tests.evalkit.metrics.samples import RISK, context, decision_record

COSTS = {"false_approve": 5.0, "false_reject": 1.0}


def decisions(count, seed=0, sharpness=1.0, clusters=None):
    """Decisions whose true log-odds are normal; `sharpness` 1 says them as they are, 3 overstates."""
    generator = np.random.default_rng(seed)
    records = []
    for index in range(count):
        odds = float(generator.normal(0, 1.5))
        high = bool(generator.random() < 1 / (1 + np.exp(-odds)))
        part = "calibration" if index % 4 == 0 else "judged"
        cluster = f"d{index}" if clusters is None else f"c{index % clusters}"
        records.append(
            decision_record(
                f"d{index}", "reject" if high else "approve", sharpness * odds, part, cluster=cluster
            )
        )
    return records


def results(records, **changes):
    return {item.name: item for item in evaluate(Evidence(samples=tuple(records)), context(**changes))}


def judged(records):
    chosen = [record for record in records if record.part == "judged"]
    return high_risk_probability(chosen, RISK), np.array([record.target == "reject" for record in chosen])


@pytest.mark.parametrize("seed", range(4))
def test_values_equal_scikit_learn(seed):
    records = decisions(400, seed, sharpness=2.0)
    found = results(records)
    scores, outcomes = judged(records)
    assert found["calibration/brier"].value == pytest.approx(brier_score_loss(outcomes, scores), rel=1e-12)
    rates, means = calibration_curve(outcomes, scores, n_bins=10, strategy="quantile")
    curve = found["calibration/ece"].details["bins"]
    # 300 decisions in 10 bins of 30: the mean error needs no weights.
    assert [item["n"] for item in curve] == [30] * 10
    assert [item["confidence"] for item in curve] == pytest.approx(list(means), rel=1e-12)
    assert [item["accuracy"] for item in curve] == pytest.approx(list(rates), rel=1e-12)
    assert found["calibration/ece"].value == pytest.approx(np.abs(rates - means).mean(), rel=1e-12)
    for item in curve:
        assert item["low"] <= item["accuracy"] <= item["high"]


def test_a_calibrated_model_isnt_called_miscalibrated():
    """Plain ECE of a calibrated model is about 0.07 with 225 decisions; the bound must still reach 0."""
    lows, values, expected = [], [], []
    for seed in range(40):
        found = results(decisions(300, seed))["calibration/ece"]
        lows.append(found.bounds.low)
        values.append(found.value)
        expected.append(found.details["expected_if_calibrated"])
    assert np.mean(values) == pytest.approx(np.mean(expected), rel=0.1)
    assert np.mean(values) > 0.05
    assert max(lows) == 0.0


def test_bounds_cover_the_error_of_a_model_that_overstates():
    truth = results(decisions(60_000, 99, sharpness=3.0))["calibration/ece"].value
    assert truth > 0.1
    bounds = [results(decisions(400, seed, sharpness=3.0))["calibration/ece"].bounds for seed in range(40)]
    assert np.mean([item.low <= truth for item in bounds]) >= 0.95
    assert np.mean([item.high >= truth for item in bounds]) >= 0.95
    assert np.mean([item.low for item in bounds]) > 0.02
    assert bounds[0].method == "cluster-bootstrap+bias"


def test_replicates_equal_repeating_the_clusters():
    records = decisions(160, clusters=20)
    estimator = next(
        item.estimator
        for item in calibration.estimators(Evidence(tuple(records)), context())
        if item.name == "calibration/ece"
    )
    scores, outcomes = judged(records)
    clusters = [record.cluster for record in records if record.part == "judged"]
    bins = equal_mass_bins(scores, 10)
    weights = np.random.default_rng(3).integers(0, 3, (10, len(estimator.clusters))).astype(float)
    for row, value in zip(weights, estimator.replicates(weights), strict=True):
        times = np.array([row[estimator.clusters.index(name)] for name in clusters])
        gaps = [abs((times * (scores - outcomes))[bins == number].sum()) for number in range(10)]
        assert value == pytest.approx(sum(gaps) / times.sum(), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.1, 0.2, 0.5, 0.7, 0.9]), min_size=1, max_size=60), st.integers(2, 12))
def test_equal_scores_share_a_bin_and_bins_rise(scores, bins):
    values = np.array(scores)
    found = equal_mass_bins(values, bins)
    assert found.min() >= 0 and found.max() < bins
    for one in set(scores):
        assert len(set(found[values == one])) == 1
    order = np.argsort(values, kind="stable")
    assert (np.diff(found[order]) >= 0).all()


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
def test_order_of_the_records_changes_nothing(random):
    records = decisions(80, clusters=25)
    shuffled = list(records)
    random.shuffle(shuffled)

    def of(chosen):
        ordered = sorted(chosen, key=lambda record: record.sample_id)
        return {item.name: item for item in calibration.estimators(Evidence(tuple(ordered)), context())}

    for name, item in of(records).items():
        assert of(shuffled)[name].estimator.value == item.estimator.value


def test_without_a_judged_decision_there_is_a_reason():
    found = results([decision_record("a", "reject", 1.0, "calibration")])
    assert found["calibration/ece"].value is None
    assert found["calibration/brier"].reason == "the judged part holds no scored decision"


def test_cost_is_the_priced_confusion_matrix():
    records = decisions(300, 5)
    found = results(records, risk=replace(RISK, costs=COSTS))["risk/cost"]
    scores, outcomes = judged(records)
    flagged = scores >= found.details["threshold"]
    _, false_reject, false_approve, _ = confusion_matrix(outcomes, flagged).ravel()
    assert found.value == pytest.approx((5 * false_approve + false_reject) / len(scores), rel=1e-12)
    assert found.n == len(scores)
    assert found.interval.low < found.value < found.interval.high
    assert found.details["costs"] == COSTS


def test_no_wrong_decision_gives_an_exact_bound_on_the_cost():
    records = [decision_record(f"p{i}", "reject", 9.0) for i in range(30)]
    records += [decision_record(f"n{i}", "approve", -9.0) for i in range(29)]
    records += [decision_record(f"c{i}", "reject", 9.0, "calibration") for i in range(20)]
    found = results(records, risk=replace(RISK, costs=COSTS))["risk/cost"]
    assert found.value == 0.0
    # Every decision's cluster is one trial: 0 of 59, at most 5 each.
    assert found.bounds.high == pytest.approx(5 * (1 - 0.05 ** (1 / 59)))


def test_cost_of_equal_models_has_a_bound_in_units_of_cost():
    records = [decision_record(f"p{i}", "reject", 9.0) for i in range(59)]
    records += [decision_record(f"c{i}", "reject", 9.0, "calibration") for i in range(20)]
    named = build_estimators(Evidence(tuple(records)), context(risk=replace(RISK, costs=COSTS)))
    cost = next(item.estimator for item in named if item.name == "risk/cost")
    share = next(item.estimator for item in named if item.name == "risk/high_risk_recall")
    change = paired_change(cost, cost, "absolute", 0.95, 7)
    assert change.bounds.high == pytest.approx(
        5 * paired_change(share, share, "absolute", 0.95, 7).bounds.high
    )


def test_without_declared_costs_there_is_no_cost():
    found = results(decisions(60))["risk/cost"]
    assert found.value is None
    assert "risk.costs" in found.reason
