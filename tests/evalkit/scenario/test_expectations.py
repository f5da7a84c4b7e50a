"""Checks of replies, and the self-test of dialogues."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.scenario.dialogue_files import DialogueSource
from evalkit.scenario.expectations import (
    NO_REPLY,
    Reply,
    check_dialogue,
    check_turn,
    normalise,
    probe_distances,
    self_test,
    states,
)
from tests.support.dialogues import HANDOVER, RECALL, dialogue


@pytest.mark.parametrize(
    ("text", "value", "stands"),
    [
        ("You sent 12 euros.", "12", True),
        ("You sent 120 euros.", "12", False),
        ("You sent 312 euros.", "12", False),
        ("You sent 12.5 euros.", "12", False),
        ("You sent 12.50 euros.", "12.5", True),
        ("You sent 12.00 euros.", "12", True),
        ("You sent 12.", "12", True),
        ("Items 3,12", "12", False),
        ("You have -12 euros.", "12", False),
        ("You have \u2212€12.", "12", False),
        ("You have €-12 (-12).", "12", False),
        ("You have -12 euros.", "-12", True),
        ("On 2026-12-01", "12", True),
        ("Form A-12", "12", True),
        ("It is 5 - 12.", "12", True),
        ("You sent 1,250 euros.", "1250", True),
        ("You sent 1250 euros.", "1,250.00", True),
        ("You sent 12,500 euros.", "12500", True),
        ("1250000", "1,250", False),
        ("Account 0042", "0042", True),
        ("Account 42", "0042", False),
        ("Account 0042", "42", False),
        ("Hello MARIA!", "Maria", True),
        ("Hello Mariana!", "Maria", False),
        ("Anna", "Ann", False),
        ("Maria's card", "Maria", True),
        ("Hello  Maria\nLopez", "maria lopez", True),
        ("您好,王小明先生", "王小明", True),
        ("金额是250元", "250", True),
        ("金额是２５０元", "250", True),
        ("金额是1250元", "250", False),
        ("", "x", False),
        ("x", " ", False),
        ("version 1.2.3", "1.2.3", True),
        ("aXa ab", "ab", True),
    ],
)
def test_a_value_stands_in_a_text_as_a_whole(text: str, value: str, stands: bool) -> None:
    assert states(text, value, whole_words=True) is stands


def test_contains_looks_for_parts_of_words_but_not_of_numbers() -> None:
    assert states("transferred", "transfer", whole_words=False)
    assert not states("1200", "120", whole_words=False)


@given(st.text(max_size=40))
def test_normalising_twice_changes_nothing_more(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(st.integers(0, 10**7), st.integers(0, 10**7))
def test_a_number_is_found_exactly_where_it_stands(said: int, wanted: int) -> None:
    assert states(f"it is {said:,} euros", str(wanted), whole_words=True) is (said == wanted)


EVERYTHING: dict[str, Any] = {
    "id": "d",
    "facts": {"name": "Maria"},
    "turns": [
        {
            "user": "I am {name}.",
            "gold": "Hi {name}.",
            "expect": {
                "intent": "greeting",
                "handover": {"forbidden": True},
                "contains": ["hi"],
                "matches": [r"{name}\.$"],
                "forbidden": ["sorry"],
                "slots": {"name": "{name}"},
                "recalls": ["name"],
                "max_ms": 100,
            },
        }
    ],
}


@pytest.mark.parametrize(
    ("reply", "failed"),
    [
        (Reply("Hi Maria.", "greeting", False, 50), []),
        (Reply("Hi Maria.", "fees", False, 50), ["intent"]),
        (Reply("Hi Maria.", "greeting", True, 50), ["handover"]),
        (Reply("Dear Maria.", "greeting", False, 50), ["contains"]),
        (Reply("Hi Maria!", "greeting", False, 50), ["matches"]),
        (Reply("Sorry, hi Maria.", "greeting", False, 50), ["forbidden"]),
        (Reply("Hi Mara.", "greeting", False, 50), ["matches", "slots", "recalls"]),
        (Reply("Hi Maria.", "greeting", False, 100.1), ["max_ms"]),
        (NO_REPLY, ["intent", "contains", "matches", "slots", "recalls", "max_ms"]),
    ],
)
def test_every_kind_of_expectation_of_a_turn(reply: Reply, failed: list[str]) -> None:
    results = check_turn(dialogue(EVERYTHING), 0, reply)
    assert [result.kind for result in results if not result.passed] == failed
    assert len(results) == 8


@pytest.mark.parametrize(
    ("rules", "texts", "passed"),
    [
        ({"never": ["secret"]}, ["a", "b"], [True]),
        ({"never": ["secret"]}, ["a", "my SECRET"], [False]),
        ({"never": [{"matches": r"\d{{4}}"}]}, ["1234"], [True]),
        ({"never": [{"matches": r"\d{4}"}]}, ["1234"], [False]),
        ({"order": ["a", "b"]}, ["a", "b"], [True]),
        ({"order": ["a", "b"]}, ["b", "a"], [False]),
        ({"order": ["a", "b"]}, ["a b"], [False]),
        ({"order": ["a", "b"]}, ["x a", "c", "b"], [True]),
        ({"end_state": {"handed_over": True}}, ["a"], [False]),
        ({"end_state": {"handed_over": False}}, ["a"], [True]),
        ({"end_state": {"stated": ["name"]}}, ["a", "Maria"], [True]),
        ({"end_state": {"stated": ["name"]}}, ["a"], [False]),
        ({}, ["a"], []),
    ],
)
def test_rules_over_the_whole_dialogue(rules: dict[str, Any], texts: list[str], passed: list[bool]) -> None:
    results = check_dialogue(dialogue(RECALL, **rules), [Reply(text) for text in texts])
    assert [result.passed for result in results] == passed


def test_a_required_handover_is_decided_where_it_comes_or_at_the_latest_turn() -> None:
    talk = dialogue(HANDOVER)
    waiting, done = Reply("a colleague", handover=False), Reply("a colleague", handover=True)
    assert [result.kind for result in check_turn(talk, 1, waiting)] == []
    assert [(result.kind, result.passed) for result in check_turn(talk, 1, done)] == [("handover", True)]
    assert [result.passed for result in check_turn(talk, 2, waiting)] == [False, True]
    assert [result.passed for result in check_turn(talk, 2, done)] == [True, True]


def test_probe_distance_counts_from_the_last_time_the_user_said_it() -> None:
    turns = [{"user": text, "gold": "x"} for text in ("{name}", "hm", "{name} again", "so")]
    turns.append({"user": "who?", "gold": "{name}", "expect": {"recalls": ["name"]}})  # type: ignore[dict-item]
    assert probe_distances(dialogue(RECALL, turns=turns), 4) == [2]


def test_the_self_test_is_content_with_sound_dialogues() -> None:
    assert self_test([DialogueSource(dialogue(item), Path("d.yaml"), 1) for item in (RECALL, HANDOVER)]) == []


@pytest.mark.parametrize(
    ("turn", "problems"),
    [
        ({"user": "a", "gold": "b", "expect": {"contains": ["c"]}}, ["the gold agent fails contains 'c'"]),
        ({"user": "a", "gold": "b"}, ["the null agent passes", "the echo agent passes"]),
        ({"user": "say a", "gold": "a", "expect": {"contains": ["a"]}}, ["the echo agent passes"]),
        ({"user": ["x", "say a"], "gold": "a", "expect": {"contains": ["a"]}}, ["the echo agent passes"]),
        ({"user": "a", "gold": "b", "expect": {"forbidden": ["a"]}}, ["the null agent passes"]),
    ],
)
def test_the_self_test_names_dialogues_that_prove_nothing(turn: dict[str, Any], problems: list[str]) -> None:
    found = self_test([DialogueSource(dialogue({"id": "d", "turns": [turn]}), Path("d.yaml"), 3)])
    assert [problem.partition("d.yaml:3: d: ")[2].partition(";")[0] for problem in found] == problems


def test_the_gold_agent_is_tried_at_both_ends_of_the_handover_window() -> None:
    turns = [dict(turn) for turn in HANDOVER["turns"]]
    turns[2] = {**turns[2], "gold": "Wait."}
    found = self_test([DialogueSource(dialogue(HANDOVER, turns=turns), Path("d.yaml"), 1)])
    assert len(found) == 1 and "contains 'colleague'" in found[0]
