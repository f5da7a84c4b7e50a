"""The fact ledger: honoured, contradicted, forgotten; facts of either side; changes of mind."""

from typing import Any

from evalkit.scenario.ledger import check_ledger
from tests.support.dialogues import RECALL, dialogue

TALK: dict[str, Any] = {
    **RECALL,
    "ledger": {"amount": r"send (\d+) euros", "case": r"case (\d+)"},
    "turns": [
        {"user": "I am {name}. Send {amount} euros.", "gold": "I send {amount} euros."},
        {"user": "And my name?", "gold": "{name}", "expect": {"recalls": ["name"]}},
        {"user": "No, {amount} euros.", "gold": "I send {amount} euros.", "revises": {"amount": 300}},
        {"user": "So?", "gold": "I send {amount} euros to you, {name}."},
    ],
}


def outcomes(*replies: str) -> list[list[tuple[str, str, int]]]:
    found = check_ledger(dialogue(TALK), replies)
    return [[(check.name, check.outcome, check.distance) for check in checks] for checks in found]


def test_statements_and_probes_are_checked_with_their_distance() -> None:
    assert outcomes("I send 250 euros.", "Maria.", "I send 300 euros.", "I send 300 euros.") == [
        [("amount", "honoured", 0)],
        [("name", "honoured", 1)],
        [("amount", "honoured", 0)],
        [("amount", "honoured", 1)],
    ]


def test_another_value_contradicts_a_missing_or_revised_one_is_forgotten() -> None:
    assert outcomes("I send 99 euros.", "I don't know.", "I send 250 euros.", "I send 250.0 euros.") == [
        [("amount", "contradicted", 0)],
        [("name", "forgotten", 1)],
        [("amount", "forgotten", 0)],
        [],
    ]


def test_what_the_model_states_first_binds_it() -> None:
    assert outcomes("That is case 7.", "Maria, case 7", "case 8", "") == [
        [],
        [("name", "honoured", 1), ("case", "honoured", 1)],
        [("case", "contradicted", 2)],
        [],
    ]


def test_an_expression_is_filled_with_the_facts_of_each_turn() -> None:
    talk = dialogue(
        TALK,
        facts={"name": "Maria", "amount": 250},
        ledger={"amount": r"(\d+) euros to {name}"},
        turns=[
            {"user": "I am {name}. Send {amount} euros.", "gold": "250 euros to Maria."},
            {"user": "I am Ann now, {name}.", "gold": "250 euros to Ann.", "revises": {"name": "Ann"}},
        ],
    )
    found = check_ledger(talk, ["99 euros to Maria.", "99 euros to Ann."])
    assert [[check.outcome for check in checks] for checks in found] == [["contradicted"], ["contradicted"]]


def test_facts_have_the_value_in_force() -> None:
    talk = dialogue(TALK)
    assert [talk.fact("amount", index) for index in range(4)] == ["250", "250", "300", "300"]
    assert talk.fact("amount") == "300"
    assert talk.fill("{amount}", 1) == "250"
