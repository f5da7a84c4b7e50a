"""Labelled decisions: the threshold, its choice inside the bootstrap, and exact bounds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from evalkit.metrics import classification
from evalkit.metrics.classification import halfway_down, high_risk_probability
from evalkit.metrics.evaluate import evaluate
from evalkit.runs.evidence import Evidence
from tests.evalkit.metrics.samples import RISK, context, decision_record


def results(records, **changes):
    return {item.name: item for item in evaluate(Evidence(samples=tuple(records)), context(**changes))}


def random_decisions(count, seed=0, separation=2.0):
    generator = np.random.default_rng(seed)
    records = []
    for index in range(count):
        high = bool(generator.random() < 0.4)
        score = float(np.round(generator.normal(separation if high else 0.0, 1.0), 1))
        part = "calibration" if index % 3 == 0 else "judged"
        records.append(decision_record(f"d{index}", "reject" if high else "approve", score, part))
    return records


def by_hand(records, recall, every=None):
    """Plain Python: the highest score that reaches the recall, halfway down to the next calibration one, counting."""
    every = every or records
    score = {r.sample_id: 1 / (1 + math.exp(r.label_logprobs[0] - r.label_logprobs[1])) for r in every}
    high = [score[r.sample_id] for r in records if r.part == "calibration" and r.target == "reject"]
    reached = max(t for t in high if sum(s >= t for s in high) >= recall * len(high))
    below = [score[r.sample_id] for r in every if r.part == "calibration" and score[r.sample_id] < reached]
    threshold = (reached + max(below)) / 2 if below else reached
    judged = [record for record in records if record.part == "judged"]
    positive = [score[r.sample_id] for r in judged if r.target == "reject"]
    negative = [score[r.sample_id] for r in judged if r.target == "approve"]
    hits, alarms = (sum(s >= threshold for s in side) for side in (positive, negative))
    return hits / len(positive), alarms / len(negative), hits / (hits + alarms)


@pytest.mark.parametrize("seed", range(5))
def test_values_equal_plain_counting(seed):
    records = random_decisions(120, seed)
    found = results(records)
    names = ("risk/high_risk_recall", "risk/false_reject_rate", "risk/precision")
    assert tuple(found[name].value for name in names) == pytest.approx(by_hand(records, 0.9))
    judged = [record for record in records if record.part == "judged"]
    expected = roc_auc_score(
        [record.target == "reject" for record in judged],
        [record.label_logprobs[1] - record.label_logprobs[0] for record in judged],
    )
    assert found["risk/auc"].value == pytest.approx(expected)


def test_the_threshold_leaves_room_on_both_sides():
    """Well separated: a new case a little below the lowest one of the calibration part is still flagged."""
    calibration = [decision_record(f"h{i}", "reject", 3.0 + i, "calibration") for i in range(3)]
    calibration += [decision_record(f"o{i}", "approve", -3.0 - i, "calibration") for i in range(3)]
    judged = [
        decision_record("near", "reject", 2.5, "judged"),
        decision_record("low", "approve", -2.5, "judged"),
    ]
    found = results(calibration + judged)
    assert found["risk/high_risk_recall"].value == 1.0
    assert found["risk/false_reject_rate"].value == 0.0
    assert found["risk/high_risk_recall"].details["threshold"] == pytest.approx(0.5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.lists(st.floats(0, 1), max_size=8))
def test_halfway_down_decides_the_calibration_part_alike(scores, others):
    among = np.array(scores + others)
    thresholds = halfway_down(np.array(scores), among)
    for score, threshold in zip(scores, thresholds, strict=True):
        assert threshold <= score
        assert np.array_equal(among >= threshold, among >= score)


def test_replicates_equal_repeating_the_records():
    records = random_decisions(60)
    estimators = classification.estimators(Evidence(samples=tuple(records)), context())
    recall = next(item.estimator for item in estimators if item.name == "risk/high_risk_recall")
    auc = next(item.estimator for item in estimators if item.name == "risk/auc")
    weights = np.random.default_rng(1).integers(0, 4, (20, len(recall.clusters))).astype(float)
    by_id = {record.sample_id: record for record in records}
    for row, found in zip(weights, recall.replicates(weights), strict=True):
        repeated = [
            by_id[name] for name, times in zip(recall.clusters, row, strict=True) for _ in range(int(times))
        ]
        assert found == pytest.approx(by_hand(repeated, 0.9, records)[0])
    columns = [recall.clusters.index(name) for name in auc.clusters]
    for row, found in zip(weights[:, columns], auc.replicates(weights[:, columns]), strict=True):
        repeated = [
            by_id[name] for name, times in zip(auc.clusters, row, strict=True) for _ in range(int(times))
        ]
        expected = roc_auc_score(
            [record.target == "reject" for record in repeated],
            [record.label_logprobs[1] for record in repeated],
        )
        assert found == pytest.approx(expected)


def test_the_interval_knows_that_the_threshold_is_estimated():
    records = random_decisions(400)
    found = results(records)["risk/high_risk_recall"]
    n, hits = found.n, round(found.value * found.n)
    naive = binomtest(hits, n).proportion_ci(0.95, method="exact")
    assert found.interval.method == "cluster-bootstrap-and-exact-binomial"
    assert found.interval.low <= naive.low and found.interval.high >= naive.high
    assert found.interval.high - found.interval.low > naive.high - naive.low


def test_all_right_gives_exact_bounds_not_zero_width():
    records = [decision_record(f"p{i}", "reject", 9.0, "judged") for i in range(59)]
    records += [decision_record(f"n{i}", "approve", -9.0, "judged") for i in range(59)]
    records += [decision_record(f"c{i}", "reject", 9.0, "calibration") for i in range(20)]
    found = results(records)
    # 59 of 59 put a 95 % one-sided bound above 0.95.
    assert found["risk/high_risk_recall"].bounds.low == pytest.approx(0.05 ** (1 / 59))
    assert found["risk/false_reject_rate"].bounds.high == pytest.approx(1 - 0.05 ** (1 / 59))
    assert found["risk/high_risk_recall"].bounds.method == "exact-binomial"


def test_ties_at_the_threshold_are_flagged_together():
    records = [decision_record(f"c{i}", "reject", 1.0, "calibration") for i in range(10)]
    records += [decision_record(f"p{i}", "reject", 1.0) for i in range(5)]
    records += [decision_record(f"n{i}", "approve", 1.0) for i in range(5)]
    found = results(records)
    assert found["risk/high_risk_recall"].value == 1.0
    assert found["risk/false_reject_rate"].value == 1.0
    assert found["risk/auc"].value == 0.5


def test_probability_is_the_softmax_over_the_labels():
    records = [decision_record("a", "reject", 1.5), decision_record("b", "reject", -800.0)]
    assert high_risk_probability(records, RISK) == pytest.approx([1 / (1 + math.exp(-1.5)), 0.0])


def test_undefined_values_say_why():
    judged = [decision_record("p", "reject", 1.0), decision_record("n", "approve", 0.0)]
    found = results(judged)
    assert found["risk/high_risk_recall"].value is None
    assert "no threshold can be chosen" in found["risk/high_risk_recall"].reason
    calibration = [decision_record("c", "reject", 1.0, "calibration")]
    found = results(calibration)
    assert (
        found["risk/false_reject_rate"].reason
        == "the judged part holds no scored decision of the other labels"
    )
    assert "lacks one of the two kinds" in found["risk/auc"].reason


def test_what_was_left_out_lowers_the_coverage():
    records = random_decisions(30)
    lost = decision_record("lost", "reject", 0.0, status="truncated", reason="too long", label_logprobs=None)
    assert results([*records, lost])["risk/auc"].coverage == pytest.approx(30 / 31)
