"""The shipped dialogues declare what a reply states of a fact: their gold replies honour it, a wrong value is found."""

from collections import Counter
from pathlib import Path

import pytest

from evalkit.scenario.dialogue import Dialogue, placeholders
from evalkit.scenario.dialogue_files import read_dialogues
from evalkit.scenario.ledger import check_ledger

FILES = sorted((Path(__file__).resolve().parents[2] / "scenarios" / "banking" / "dialogues").glob("*.yaml"))
WRONG = "777"


@pytest.fixture(scope="module")
def dialogues() -> list[Dialogue]:
    return [source.dialogue for source in read_dialogues(FILES)]


def test_each_fact_has_an_expression(dialogues: list[Dialogue]) -> None:
    for dialogue in dialogues:
        assert dialogue.ledger.keys() == dialogue.facts.keys(), dialogue.id


def test_every_mention_in_a_gold_reply_is_found_and_honoured(dialogues: list[Dialogue]) -> None:
    distances: Counter[int] = Counter()
    for dialogue in dialogues:
        checks = check_ledger(dialogue, [dialogue.fill(turn.gold) for turn in dialogue.turns])
        for turn, found in zip(dialogue.turns, checks, strict=True):
            # Neither a mention that no expression sees, nor other words taken for one.
            assert {check.name for check in found} == placeholders(turn.gold), (dialogue.id, turn.gold)
            assert all(check.outcome == "honoured" and check.got == check.want for check in found)
            distances.update(check.distance for check in found)
    # At once, where a reply repeats what was just said, and turns later, where it has to remember.
    assert distances[0] > 100 and sum(distances[turns] for turns in (3, 4)) > 100


def test_another_value_is_contradicted_and_none_is_forgotten(dialogues: list[Dialogue]) -> None:
    for dialogue in (one for one in dialogues if "multi_turn" in one.tags):
        facts = dict.fromkeys(dialogue.facts, WRONG)
        swapped = dialogue.model_copy(update={"facts": facts})
        replies = [dialogue.fill(turn.gold) for turn in dialogue.turns[:-1]]
        (*_, wrong) = check_ledger(dialogue, [*replies, swapped.fill(dialogue.turns[-1].gold)])
        (*_, silent) = check_ledger(dialogue, [*replies, "-"])
        assert [(check.outcome, check.got) for check in wrong] == [("contradicted", WRONG)] * len(wrong)
        assert {check.outcome for check in silent} == {"forgotten"}
        assert len(wrong) >= len(silent) == len(dialogue.turns[-1].expect.recalls)
