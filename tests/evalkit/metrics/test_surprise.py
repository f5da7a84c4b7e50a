"""Texts far from the others, by median and MAD, and first tokens that nothing predicts."""

import numpy as np
import pytest
from scipy.stats import median_abs_deviation

from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.surprise import robust_scores, surprise_details
from evalkit.runs.evidence import Evidence
from tests.evalkit.metrics.samples import context, text_record


def texts(values, **changes):
    return [text_record(f"t{index:02}", nll=10 * value, **changes) for index, value in enumerate(values)]


def test_scores_equal_scipy():
    values = np.random.default_rng(0).normal(2, 0.5, 101)
    expected = (values - np.median(values)) * 0.6745 / median_abs_deviation(values)
    assert robust_scores(values) == pytest.approx(expected, rel=1e-12)
    assert robust_scores(np.ones(5)) is None


def test_outliers_are_listed_farthest_first_on_both_sides():
    values = [*np.linspace(1.9, 2.1, 30), 6.0, 0.1, 9.0]
    found = surprise_details(texts(values))["surprise_outliers"]
    assert found["count"] == 3
    assert [item["sample_id"] for item in found["texts"]] == ["t32", "t30", "t31"]
    assert found["texts"][0]["mean"] == 9.0 and found["texts"][2]["score"] < -3.5


def test_an_outlier_cannot_hide_itself():
    """Mean and standard deviation would put one text of 40 nats among 12 at 3.2 sigmas; the median isn't moved."""
    found = surprise_details(texts([*np.linspace(1.9, 2.1, 11), 40.0]))["surprise_outliers"]
    assert [item["sample_id"] for item in found["texts"]] == ["t11"]


def test_too_few_or_equal_texts_say_so():
    assert "only 3 scored texts" in surprise_details(texts([1, 2, 3]))["surprise_outliers"]["reason"]
    assert "no spread" in surprise_details(texts([2.0] * 20))["surprise_outliers"]["reason"]


def test_order_changes_nothing_and_the_details_stand_beside_perplexity():
    records = texts(np.random.default_rng(1).gamma(2, 1, 30))
    found = [
        {item.name: item for item in evaluate(Evidence(tuple(order)), context())}
        for order in (records, records[::-1])
    ]
    assert found[0]["perplexity/token"].details == found[1]["perplexity/token"].details
    assert "surprise_outliers" in found[0]["perplexity/token"].details
