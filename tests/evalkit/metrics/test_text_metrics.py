"""Perplexities and logits metrics from sums, and how they are reported."""

import math
from dataclasses import replace

import pytest

from evalkit.errors import InputError
from evalkit.metrics.evaluate import build_estimators, evaluate
from evalkit.metrics.result import MetricResult
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import ClassSums
from tests.evalkit.metrics.samples import context, text_record


def results(records, **changes) -> dict[tuple, MetricResult]:
    found = evaluate(Evidence(samples=tuple(records)), context(**changes))
    return {(item.name, item.slice): item for item in found}


def test_worked_example():
    found = results([text_record("a"), text_record("b", nll=39.0, classes={"head": ClassSums(10, nll=39.0)})])
    expected = {
        "perplexity/token": math.exp(60 / 20),
        "perplexity/word": math.exp(60 / 16),
        "perplexity/byte": math.exp(60 / 80),
        "bits_per_byte": 60 / 80 / math.log(2),
        "perplexity/head": math.exp(46 / 17),
        "perplexity/oov": math.exp(8.0),
        "perplexity/long_tail": math.exp(3.0),
        "perplexity/without_oov": math.exp(52 / 19),
        "rate/oov": 1 / 20,
        "logits/entropy/head": 3.5 / 17,
        "logits/rank/oov": 90.0,
        "logits/margin/long_tail": -0.5,
        "logits/top_k_accuracy": 7 / 20,
    }
    assert {name: found[name, None].value for name in expected} == pytest.approx(expected, rel=1e-15)
    assert found["logits/top_k_accuracy", None].details["top_5"] == 8 / 20
    assert found["perplexity/oov", None].n == 1
    assert found["perplexity/oov", None].details["token_share"] == 1 / 20
    assert found["perplexity/middle", None].value is None
    assert found["perplexity/middle", None].reason == "no token of the texts belongs to it"


def test_class_sums_equal_the_total_exactly():
    named = {
        item.name: item
        for item in build_estimators(Evidence((text_record("a"), text_record("b"))), context())
    }
    parts = [named[f"perplexity/{name}"].estimator for name in ("head", "oov", "long_tail")]
    assert math.fsum(x for part in parts for x in part.numerators) == 42.0
    assert sum(part.n for part in parts) == named["perplexity/token"].estimator.n


def test_only_scored_texts_count_and_the_others_lower_the_coverage():
    records = [text_record("a"), text_record("b", status="error", reason="x", nll=0.0, classes={}, scored=0)]
    found = results(records)
    assert found["perplexity/token", None].coverage == 0.5
    assert found["perplexity/token", None].n == 10


def test_clusters_are_the_independent_units():
    found = results([text_record(f"t{index}", cluster=f"c{index % 12}") for index in range(60)])
    assert found["perplexity/token", None].clusters == 12


def test_slices_that_rules_ask_for():
    records = [text_record("a", tags=["en"]), text_record("b", tags=["zh"], words=0, nll=30.0)]
    found = results(records, slices=("en", "absent"))
    assert found["perplexity/token", "en"].value == math.exp(2.1)
    assert found["perplexity/word", "en"].value == math.exp(21 / 8)
    assert found["perplexity/word", None].value is None
    assert "no words without a declared segmenter" in found["perplexity/word", None].reason
    assert not [key for key in found if key[1] == "absent"]


def test_absent_classes_are_null_with_their_reason():
    absent = {"perplexity/oov": "no counts", "perplexity/without_oov": "no counts", "rate/oov": "no counts"}
    found = results([text_record("a")], absent=absent)
    for name in absent:
        assert (found[name, None].value, found[name, None].reason) == (None, "no counts")
        assert found[name, None].interval is None


def test_nothing_scored():
    found = results([text_record("a", status="skipped", reason="empty", scored=0, classes={})])
    assert all(item.value is None and item.reason for item in found.values())
    assert results([]) == {}


def test_signature_direction_and_action_come_from_the_registry():
    found = results([text_record("a")])
    assert found["perplexity/token", None].signature == "ppl|x"
    assert found["perplexity/byte", None].signature == "ppl|y"
    assert found["logits/margin", None].direction == "higher"
    assert all(item.action for item in found.values())


def test_order_of_the_records_changes_nothing():
    records = [text_record(f"t{index}", nll=20.0 + index / 7, classes={}) for index in range(40)]
    assert results(records) == results(records[::-1])


def test_a_repeated_record_is_refused():
    with pytest.raises(InputError, match="text 'a' is recorded twice"):
        results([text_record("a"), replace(text_record("a"), nll=1.0)])
