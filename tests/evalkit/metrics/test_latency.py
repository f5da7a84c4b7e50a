"""Latency metrics: medians and tails by hand, failed turns infinite, dialogues as clusters."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.metrics.context import DialogueSetup, MetricContext
from evalkit.metrics.estimators import NamedEstimator
from evalkit.metrics.latency import QuantileEstimator, estimators
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import TurnRecord
from tests.support.dialogues import lost_turn, setup, turn


def measure(turns: list[TurnRecord], planned: DialogueSetup, **context: Any) -> dict[str, NamedEstimator]:
    values: dict[str, Any] = {"confidence": 0.95, "seed": 1, "signatures": {}, "dialogues": planned}
    found = estimators(Evidence(turns=tuple(turns)), MetricContext(**{**values, **context}))
    return {item.name: item for item in found if item.slice is None}


def timed(name: str, milliseconds: float, **changes: Any) -> TurnRecord:
    return turn(name, first_token_ns=int(milliseconds * 1e6), **changes)


def test_median_and_tails_in_milliseconds() -> None:
    names = [f"d{number:03}" for number in range(100)]
    turns = [timed(name, number + 1) for number, name in enumerate(names)]
    item = measure(turns, setup(names))["latency/first_token"]
    assert item.estimator is not None and (item.estimator.value, item.estimator.n) == (50.5, 100)
    assert (item.details["p95"], item.details["p99"], item.details["failed_turns"]) == (95.5, 99.5, 0)


def test_per_token_is_over_the_tokens_after_the_first() -> None:
    turns = [
        turn("a", first_token_ns=2_000_000, total_ns=8_000_000, generated_tokens=4),
        turn("b", generated_tokens=1),
    ]
    item = measure(turns, setup(["a", "b"]))["latency/per_token"]
    assert item.estimator is not None and (item.estimator.value, item.estimator.n) == (2.0, 1)


def test_tokens_that_a_served_model_does_not_tell_are_unknown_not_fast() -> None:
    planned = setup(["a", "b"])
    times = {"first_token_ns": 2_000_000, "total_ns": 10_000_000}
    known, untold = turn("a", generated_tokens=5, **times), turn("b", generated_tokens=None, **times)
    item = measure([known, untold], planned)["latency/per_token"]
    assert item.estimator is not None and item.estimator.value == pytest.approx(2.0)
    assert item.coverage == pytest.approx(0.5) and item.details["turns_unknown"] == 1
    never = measure([untold, turn("a", generated_tokens=None, **times)], planned)["latency/per_token"]
    assert never.reason == "the engine doesn't tell how many tokens it generated" and never.coverage == 0.0


def test_failed_turns_are_infinite_and_turns_never_said_have_no_time() -> None:
    turns = [
        timed("a", 1, dialogue_turns=3),
        lost_turn("a", turn_index=1, dialogue_turns=3),
        lost_turn("a", turn_index=2, dialogue_turns=3),
        timed("b", 3, status="model_fault"),
        timed("c", 5, dialogue_turns=2, handover=True, handover_expected=True),
        lost_turn("c", turn_index=1, dialogue_turns=2, status="ok", reason="not played"),
    ]
    planned = setup(["a", "b", "c"], turns={"a": 3, "b": 1, "c": 2})
    item = measure(turns, planned, within=(("latency/first_token", 4.0),))["latency/first_token"]
    assert item.estimator is not None and item.estimator.n == 4
    assert item.details["failed_turns"] == 2
    assert item.details["within"][0]["share"] == 0.25
    assert item.estimator.value is None and item.reason is not None and "infinite" in item.reason
    assert item.coverage == 1.0


def test_the_tail_is_null_where_it_is_infinite() -> None:
    names = [f"d{number:03}" for number in range(20)]
    turns = [timed(name, 1) for name in names[:18]] + [lost_turn(name) for name in names[18:]]
    item = measure(turns, setup(names))["latency/first_token"]
    assert item.estimator is not None and item.estimator.value == 1.0
    assert (item.details["p95"], item.details["p99"]) == (None, None)


def test_share_within_budget_has_an_exact_bound_over_dialogues() -> None:
    names = [f"d{number:03}" for number in range(59)]
    turns = [timed(name, 1, turn_index=index, dialogue_turns=5) for name in names for index in range(5)]
    planned = setup(names, turns=dict.fromkeys(names, 5), first_token_ms=15.0)
    asked = (("latency/first_token", 0.5), ("latency/turn_overhead", 15.0))
    entries = measure(turns, planned, within=asked)["latency/first_token"].details["within"]
    assert [(entry["ms"], entry["share"], entry["n"], entry["clusters"]) for entry in entries] == [
        (0.5, 0.0, 295, 59),
        (15.0, 1.0, 295, 59),
    ]
    # Five turns of a dialogue are one outcome: 59 dialogues, not 295 turns, stand behind the bound.
    assert entries[1]["bounds"]["low"] == pytest.approx(0.05 ** (1 / 59))
    assert entries[1]["bounds"]["sides"] == 1


def test_records_that_are_not_there_cost_coverage() -> None:
    item = measure([timed("a", 1)], setup(["a", "b"]))["latency/first_token"]
    assert item.coverage == 0.5
    nothing = measure([], setup(["a"]))["latency/first_token"]
    assert (nothing.estimator, nothing.reason, nothing.coverage) == (None, "no turn was timed", 0.0)


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=30))
def test_the_median_is_numpys(times: list[float]) -> None:
    names = [str(number) for number in range(len(times))]
    assert QuantileEstimator.build(names, times, 0.5).value == pytest.approx(float(np.median(times)))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0.1, 100.0)), min_size=1, max_size=30), st.integers(0, 99)
)
def test_weights_repeat_clusters(units: list[tuple[int, float]], seed: int) -> None:
    names, times = [str(cluster) for cluster, _ in units], [time for _, time in units]
    estimator = QuantileEstimator.build(names, times, 0.5)
    weights = np.random.default_rng(seed).integers(0, 4, size=(3, len(estimator.clusters))).astype(float)
    for row, found in zip(weights, estimator.replicates(weights), strict=True):
        drawn = dict(zip(estimator.clusters, row, strict=True))
        repeated = [time for name, time in zip(names, times, strict=True) for _ in range(int(drawn[name]))]
        assert math.isnan(found) if not repeated else found == pytest.approx(float(np.median(repeated)))
