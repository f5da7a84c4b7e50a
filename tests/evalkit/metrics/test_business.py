"""Business figures: carried through, joined with the prediction error, unknown outside the history."""

import math
from dataclasses import replace

import numpy as np
import pytest

from evalkit.errors import InputError
from evalkit.gate.compare import compare
from evalkit.metrics.business import business_signature, calibration, carry_through
from evalkit.metrics.context import BusinessSetup, History, OwnSetup
from evalkit.metrics.evaluate import build_estimators, evaluate
from evalkit.metrics.history import Calibration
from evalkit.metrics.mapping import OwnFigure, OwnMapping
from evalkit.metrics.registry import spec_for
from evalkit.metrics.result import Interval, MetricResult
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import ClassSums
from evalkit.runs.results_io import build_results
from tests.evalkit.metrics.samples import context, decision_record, text_record

LINE = History(
    tuple((0.1 * index, 1.0 + 2 * index + 0.1 * (-1) ** index) for index in range(1, 25)), "h.csv", "ab"
)


def texts(count=60, scale=1.0, seed=0):
    generator = np.random.default_rng(seed)
    surprise = [float(scale * generator.uniform(15, 27)) for _ in range(count)]
    return Evidence(
        tuple(
            text_record(f"t{index:03}", nll=nll, classes={"head": ClassSums(10, nll=nll, bytes=40)})
            for index, nll in enumerate(surprise)
        )
    )


def results(evidence, *figures, **changes):
    asked = context(business=figures, **changes)
    return {item.name: item for item in evaluate(evidence, asked) if item.slice is None}


def test_a_direct_figure_is_the_metric():
    found = results(texts(), BusinessSetup("bits", "bits_per_byte", 1))
    source, figure = found["bits_per_byte"], found["business/bits"]
    for field in ("value", "interval", "bounds", "unit", "direction", "n", "clusters", "coverage"):
        assert getattr(figure, field) == getattr(source, field)
    assert figure.details["from"] == "bits_per_byte" and figure.details["mapping"] == "direct"
    assert figure.action.startswith("it comes from bits_per_byte: ")


def test_the_false_reject_rate_at_the_operating_point():
    records = [decision_record(f"c{i}", "reject", 1.0 + i / 10, "calibration") for i in range(20)]
    records += [decision_record(f"p{i}", "reject", 1.0 + i / 10) for i in range(20)]
    records += [decision_record(f"n{i}", "approve", i / 10) for i in range(20)]
    setup = BusinessSetup("turned_away", "risk/false_reject_rate", 3, unit="share of customers")
    found = results(Evidence(tuple(records)), setup)
    assert found["business/turned_away"].value == found["risk/false_reject_rate"].value > 0
    assert found["business/turned_away"].bounds == found["risk/false_reject_rate"].bounds
    assert found["business/turned_away"].unit == "share of customers"
    assert found["business/turned_away"].details["mapping_version"] == 3


def test_a_calibrated_figure_joins_both_errors():
    setup = BusinessSetup("load", "bits_per_byte", 1, fit="linear", history=LINE)
    found = results(texts(), setup)
    source, figure = found["bits_per_byte"], found["business/load"]
    fitted = Calibration(LINE, "linear", rising=True)
    assert figure.value == fitted.predict(source.value)
    # The metric's own interval, at half the miss probability, and the prediction's at the other half.
    (wide,) = [
        item
        for item in evaluate(texts(), context(confidence=0.975))
        if item.name == "bits_per_byte" and item.slice is None
    ]
    ends = (wide.interval.low, wide.interval.high)
    below = [fitted.predict(end) - fitted.half_width(end, 0.975, 2) for end in ends]
    above = [fitted.predict(end) + fitted.half_width(end, 0.975, 2) for end in ends]
    assert (figure.interval.low, figure.interval.high) == (min(below), max(above))
    assert (figure.interval.confidence, figure.interval.sides) == (0.95, 2)
    assert figure.bounds.low == pytest.approx(
        fitted.predict(wide.bounds.low) - fitted.half_width(wide.bounds.low, 0.975, 1)
    )
    assert figure.details["calibration"] == {"data": "h.csv", "sha256": "ab", "releases": 24}
    assert figure.unit == "figure" and figure.direction == "lower"


def test_a_falling_figure_has_its_ends_in_order():
    rows = tuple((offline, -online) for offline, online in LINE.rows)
    setup = BusinessSetup(
        "quality", "bits_per_byte", 1, direction="higher", fit="isotonic", history=replace(LINE, rows=rows)
    )
    figure = results(texts(), setup)["business/quality"]
    assert figure.interval.low < figure.value < figure.interval.high
    assert figure.direction == "higher"


def test_outside_the_history_nothing_is_said():
    far = replace(LINE, rows=tuple((offline + 5, online) for offline, online in LINE.rows))
    figure = results(texts(), BusinessSetup("load", "bits_per_byte", 1, fit="linear", history=far))[
        "business/load"
    ]
    assert figure.value is None and figure.interval is None and figure.bounds is None
    assert figure.reason.startswith("outside the calibration history: bits_per_byte is 0.7")


def test_an_end_outside_the_history_is_unknown():
    value = results(texts())["bits_per_byte"].value
    rows = tuple((value - 0.001 + offline, online) for offline, online in LINE.rows if offline > 0)
    near = replace(
        LINE, rows=tuple((offline - rows[0][0] + value - 0.001, online) for offline, online in rows)
    )
    figure = results(texts(), BusinessSetup("load", "bits_per_byte", 1, fit="linear", history=near))[
        "business/load"
    ]
    assert figure.value is not None
    assert figure.interval.low is None and figure.interval.high is not None
    assert figure.bounds.low is None and figure.bounds.high is not None
    assert "reaches outside the calibration history" in figure.details["interval_reason"]


def test_without_an_interval_of_the_metric_the_figure_has_none():
    figure = results(texts(5), BusinessSetup("load", "bits_per_byte", 1, fit="linear", history=LINE))[
        "business/load"
    ]
    assert figure.value is not None and figure.interval is None
    assert "only 5 independent clusters" in figure.details["interval_reason"]


def test_without_the_metric_there_is_a_reason():
    found = results(
        texts(),
        BusinessSetup("a", "risk/cost", 1),
        BusinessSetup("b", "perplexity/oov", 1),
        absent={"perplexity/oov": "no counts"},
    )
    assert found["business/a"].reason == "risk/cost has no value: it isn't among the metrics of the run"
    assert found["business/b"].reason == "perplexity/oov has no value: no counts"


def test_a_history_that_contradicts_the_directions_is_refused():
    setup = BusinessSetup("quality", "bits_per_byte", 1, direction="higher", fit="linear", history=LINE)
    with pytest.raises(
        InputError, match=r"h\.csv: online doesn't fall with offline \(rank correlation 1\.00"
    ):
        calibration(setup, spec_for("bits_per_byte"))


def test_signatures_change_with_the_mapping():
    setup = BusinessSetup("load", "bits_per_byte", 1, fit="linear", history=LINE)
    others = [
        replace(setup, version=2),
        replace(setup, fit="isotonic"),
        replace(setup, history=replace(LINE, rows=LINE.rows[1:])),
        BusinessSetup("load", "bits_per_byte", 1, own=OwnSetup("m:f", "0" * 64)),
    ]
    signatures = {business_signature(item, "ppl|y") for item in (setup, *others)}
    assert len(signatures) == 5
    assert business_signature(setup, "ppl|y") == business_signature(replace(setup), "ppl|y")
    assert business_signature(setup, "ppl|y").startswith("ppl|y|biz:")


def test_a_direct_figure_is_compared_in_pairs_and_a_calibrated_one_isnt():
    figures = (
        BusinessSetup("bits", "bits_per_byte", 1),
        BusinessSetup("load", "bits_per_byte", 1, fit="linear", history=LINE),
    )
    asked = context(business=figures)
    sides = [texts(), texts(scale=1.1)]
    content = [
        build_results(side, evaluate(side, asked), run_id="r", plan_sha256="0", model_digest=name)
        for side, name in zip(sides, "ab", strict=True)
    ]
    compared = compare(*sides, asked, *content)
    direct, source = compared.find("business/bits"), compared.find("bits_per_byte")
    assert direct.absolute == source.absolute and direct.relative == source.relative
    assert "compare bits_per_byte" in compared.find("business/load").absolute.reason


DOUBLE = OwnMapping("1", "EUR", "lower", True, lambda value: 2 * value, "spend less")


def metric(value, low, high):
    interval = Interval(low, high, 0.95, 2, "cluster-bootstrap")
    return MetricResult("x", value, None, "u", "lower", 9, 9, "s", interval=interval, bounds=interval)


def figure(value):
    return replace(metric(value, None, None), interval=None, bounds=None)


def test_own_mappings_carry_ends_through_in_order():
    rising = carry_through(DOUBLE, metric(1.0, 0.5, 2.0), figure(2.0))
    assert (rising.interval.low, rising.interval.high) == (1.0, 4.0)
    falling = replace(DOUBLE, rising=False, compute=lambda value: -value)
    fallen = carry_through(falling, metric(1.0, 0.5, None), figure(-1.0))
    assert (fallen.bounds.low, fallen.bounds.high) == (None, -0.5)


def test_a_mapping_that_turns_between_the_ends_is_refused():
    turning = replace(DOUBLE, compute=lambda value: (value - 1) ** 2)
    found = carry_through(turning, metric(1.0, 0.0, 2.0), figure(0.0))
    assert found.value is None and "isn't rising between 0 and 2" in found.reason


def test_a_mapped_estimator_maps_every_resample():
    source = next(
        item.estimator for item in build_estimators(texts(), context()) if item.name == "bits_per_byte"
    )
    mapped = OwnFigure(source, DOUBLE)
    weights = np.ones((3, len(source.clusters)))
    assert mapped.value == 2 * source.value and mapped.n == source.n
    assert mapped.replicates(weights) == pytest.approx(2 * source.replicates(weights))
    broken = OwnFigure(source, replace(DOUBLE, compute=lambda value: math.log(-value)))
    with pytest.raises(InputError, match=r"the mapping failed at .* ValueError"):
        _ = broken.value
