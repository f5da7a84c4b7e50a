"""What a dialogue costs: declared costs times what happened, with an interval over dialogues."""

from typing import Any

import pytest

from evalkit.metrics.context import DialogueSetup, MetricContext
from evalkit.metrics.dialogue import estimators
from evalkit.metrics.evaluate import evaluate
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import TurnRecord
from evalkit.scenario.schema import DialogueCosts
from tests.support.dialogues import setup, turn

COSTS = DialogueCosts(
    turn=0.1, handover=6, needless_handover=2, missed_handover=30, late_turn=1, unresolved=4
).model_dump()


def dialogue(
    name: str, decided_in: int | None, needed_from: int | None, passed: bool = True
) -> list[TurnRecord]:
    made: list[TurnRecord] = []
    for index in range(3):
        expected = needed_from is not None and index >= needed_from
        changes: dict[str, Any] = {"handover": decided_in == index, "passed": passed}
        if decided_in == index:
            changes["generated_tokens"] = 0
        elif decided_in is not None and index > decided_in:
            # As the replay records what a hand-over left unplayed.
            wanted = needed_from is not None and decided_in >= needed_from
            changes = {
                "handover": None,
                "generated_tokens": None,
                "total_ns": None,
                "status": "ok" if wanted else "model_fault",
            }
        made.append(turn(name, turn_index=index, dialogue_turns=3, handover_expected=expected, **changes))
    return made


@pytest.mark.parametrize(
    ("decided_in", "needed_from", "passed", "cost"),
    [
        (None, None, True, 0.3),  # three turns, settled
        (None, None, False, 0.3 + 4),  # unresolved
        (1, 1, True, 0.1 + 6),  # in time
        (2, 1, True, 0.2 + 6 + 1),  # a turn late
        (0, None, True, 6 + 2),  # needless
        (0, 1, True, 6 + 2 + 30),  # too early: the one that is needed never comes
        (None, 1, True, 0.3 + 30),  # missed
    ],
)
def test_what_happened_is_paid_for(
    decided_in: int | None, needed_from: int | None, passed: bool, cost: float
) -> None:
    turns = dialogue("a", decided_in, needed_from, passed)
    found = {
        one.name: one for one in estimators(Evidence(turns=tuple(turns)), context(setup(["a"], costs=COSTS)))
    }
    item = found["dialogue/cost"]
    assert item.estimator is not None and item.estimator.value == pytest.approx(cost)
    assert sum(item.details["mean_by_kind"].values()) == pytest.approx(cost)


def test_the_mean_has_an_interval_over_dialogues() -> None:
    names = [f"d{number:02}" for number in range(40)]
    turns = [
        one for index, name in enumerate(names) for one in dialogue(name, 0 if index % 4 == 0 else None, None)
    ]
    results = evaluate(Evidence(turns=tuple(turns)), context(setup(names, costs=COSTS)))
    cost = next(one for one in results if one.name == "dialogue/cost")
    assert cost.value == pytest.approx(8 / 4 + 0.3 * 3 / 4) and cost.clusters == 40
    assert cost.interval is not None and cost.interval.low is not None and cost.interval.low < cost.value


def test_without_costs_there_is_none() -> None:
    found = estimators(Evidence(turns=(turn("a"),)), context(setup(["a"])))
    item = next(one for one in found if one.name == "dialogue/cost")
    assert item.estimator is None and item.reason is not None and "declares no costs" in item.reason
    with pytest.raises(ValueError, match="every cost is 0"):
        DialogueCosts()


def context(planned: DialogueSetup) -> MetricContext:
    return MetricContext(0.95, 1, {}, dialogues=planned)


def test_a_turn_is_paid_for_where_a_served_model_tells_no_tokens() -> None:
    turns = [turn("a", turn_index=index, dialogue_turns=2, generated_tokens=None) for index in range(2)]
    planned = setup(["a"], costs=COSTS)
    found = {one.name: one for one in estimators(Evidence(turns=tuple(turns)), context(planned))}
    item = found["dialogue/cost"].estimator
    assert item is not None and item.value == pytest.approx(0.2)
