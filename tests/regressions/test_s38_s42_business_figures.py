"""S38-S42 in the figures of the business: what a hand-over leaves undone, what the user is told, what a failed turn costs."""

from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.metrics.context import MetricContext
from evalkit.metrics.dialogue import estimators
from evalkit.metrics.estimators import NamedEstimator
from evalkit.metrics.latency import estimators as latencies
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import TurnRecord
from evalkit.scenario.flow import load_flow
from evalkit.scenario.schema import DialogueCosts
from tests.support.dialogues import setup, turn

COSTS = DialogueCosts(turn=1, handover=10).model_dump()


def measured(turns: list[TurnRecord], count: int) -> dict[str, NamedEstimator]:
    planned = setup(["a"], turns={"a": count}, costs=COSTS)
    context = MetricContext(0.95, 1, {}, dialogues=planned)
    return {one.name: one for one in estimators(Evidence(turns=tuple(turns)), context)}


def value(found: dict[str, NamedEstimator], name: str) -> float | None:
    estimator = found[name].estimator
    return None if estimator is None else estimator.value


def test_s38_turns_after_a_handover_are_neither_paid_for_nor_rated() -> None:
    turns = [
        turn("a", turn_index=0, dialogue_turns=3, satisfaction=2.0, handover=True, handover_expected=True, generated_tokens=0),
        *(
            turn("a", turn_index=index, dialogue_turns=3, handover=None, handover_expected=True, generated_tokens=None, total_ns=None)
            for index in (1, 2)
        ),
    ]  # fmt: skip
    found = measured(turns, 3)
    assert value(found, "dialogue/cost") == 10.0
    assert (
        value(found, "dialogue/satisfaction") == 2.0 and found["dialogue/satisfaction"].estimator is not None
    )
    assert found["dialogue/satisfaction"].estimator.n == 1


def test_s39_a_flow_that_says_nothing_at_a_handover_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("version: 1\nname: x\nhandover: {words: {en: [lawyer]}}\n")
    with pytest.raises(InputError, match=r"flow\.yaml:3: handover\.reply: is required"):
        load_flow(tmp_path)


def test_s40_a_dialogue_that_escalates_twice_was_handed_over_once() -> None:
    turns = [
        turn("a", turn_index=index, dialogue_turns=2, handover=True, generated_tokens=0) for index in (0, 1)
    ]
    found = measured(turns, 2)
    assert value(found, "dialogue/handover_rate") == 1.0 and value(found, "dialogue/cost") == 10.0


def test_s41_a_failed_turn_lies_outside_every_budget() -> None:
    failed = turn("a", status="model_fault", first_token_ns=None, turn_overhead_ns=None, total_ns=None)
    context = MetricContext(0.95, 1, {}, dialogues=setup(["a"]), within=(("latency/turn_overhead", 15.0),))
    found = {one.name: one for one in latencies(Evidence(turns=(failed,)), context)}
    assert found["latency/turn_overhead"].details["within"][0]["share"] == 0.0
