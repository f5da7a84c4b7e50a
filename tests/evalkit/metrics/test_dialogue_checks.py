"""Consistency in one turn and over several, pass rates by kind, repeatability, blame."""

from typing import Any

import pytest

from evalkit.metrics.context import MetricContext
from evalkit.metrics.dialogue import estimators
from evalkit.metrics.estimators import NamedEstimator
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import ExpectationResult, LedgerCheck, TurnRecord
from tests.support.dialogues import lost_turn, setup, turn


def measure(turns: list[TurnRecord], **changes: Any) -> dict[str, NamedEstimator]:
    ids = sorted({record.dialogue_id for record in turns})
    trials = 1 + max(record.trial for record in turns)
    planned = setup(ids, trials, **changes)
    context = MetricContext(0.95, 1, {}, dialogues=planned, k_values=(1,))
    return {item.name: item for item in estimators(Evidence(turns=tuple(turns)), context)}


def value(item: NamedEstimator) -> float | None:
    return None if item.estimator is None else item.estimator.value


def probe(passed: bool) -> ExpectationResult:
    return ExpectationResult("recalls", "x", "x" if passed else None, passed)


def test_the_ledger_is_part_of_consistency() -> None:
    checks = [
        LedgerCheck("a", "contradicted", "x", "y", 2, probe=True),
        LedgerCheck("b", "honoured", "1", "1", 3, probe=False),
        LedgerCheck("c", "forgotten", "2", "1", 1, probe=False),
    ]
    turns = [turn("a", expectations=[probe(False)], probe_distance=[2], ledger=checks)]
    item = measure(turns)["dialogue/consistency"]
    assert value(item) == pytest.approx(1 / 3)
    assert [item.details[name] for name in ("honoured", "contradicted", "forgotten")] == [1, 1, 1]


def test_the_fall_from_one_turn_to_several() -> None:
    turns = [
        turn("a", expectations=[probe(True), probe(False)], probe_distance=[1, 2], single_turn=[True, True]),
        turn("b", expectations=[probe(False)], probe_distance=[1], single_turn=[False]),
        turn("c", expectations=[probe(True)], probe_distance=[1]),
    ]
    found = measure(turns, single_turn_probes=True)
    assert value(found["dialogue/consistency_single_turn"]) == pytest.approx(2 / 3)
    assert value(found["dialogue/consistency_fall"]) == pytest.approx(1 / 3)
    assert "dialogue/consistency_fall" not in measure(turns)


def test_each_kind_of_expectation_has_a_rate() -> None:
    turns = [
        turn("a", expectations=[ExpectationResult("never", "x", None, True)]),
        turn("b", expectations=[ExpectationResult("never", "x", "x", False)]),
    ]
    found = measure(turns)
    assert value(found["dialogue/expectation/never"]) == 0.5
    assert "dialogue/expectation/slots" not in found


def test_copies_must_repeat_where_greedy_decoding_is_promised() -> None:
    turns = [turn("a", 0, user_text="x"), turn("a", 1, user_text="x"), turn("a", 2, user_text="x", text="ho")]
    found = measure(turns, greedy=True)
    assert value(found["dialogue/repeatability"]) == 0.5
    assert found["dialogue/repeatability"].details["different"] == ["a"]
    assert value(measure(turns)["dialogue/repeatability"]) is None


def test_blame_is_split() -> None:
    turns = [
        turn("a", passed=False),
        lost_turn("b", blame="user"),
        lost_turn("c", blame="harness"),
        lost_turn("d", blame="infrastructure"),
    ]
    blame = measure(turns)["dialogue/pass_hat_k"].details["blame"]
    assert blame == {"model": 1, "user": 1, "harness": 1, "infrastructure": 1}
