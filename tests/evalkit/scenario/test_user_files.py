"""Users in dialogue files: recorded ones, rules that refer to nothing, variations that they bring."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalkit.errors import InputError
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.dialogue_files import read_dialogue_file
from evalkit.scenario.variation import played, user_texts, varies
from tests.support.dialogues import RECALL, dialogue

SAID = ("Hi, Maria here.", "Move 250 euros, please.", "Who am I?")


def read(folder: Path, **changes: Any) -> Dialogue:
    path = folder / "d.yaml"
    path.write_text(yaml.safe_dump({**RECALL, **changes}))
    return read_dialogue_file(path)[0].dialogue


def recorded(folder: Path, said: tuple[str, ...] = SAID) -> Dialogue:
    lines = [{"session": "s1", "user_text": text} for text in said] + [{"session": "s2", "user_text": "x"}]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return read(folder, user={"kind": "recorded", "file": "log.jsonl", "session": "s1"})


def test_a_recorded_user_says_what_was_recorded_in_every_trial(tmp_path: Path) -> None:
    talk = recorded(tmp_path)
    for trial in range(3):
        assert tuple(user_texts(talk, 1, trial, ("paraphrase", "typos", "code_switching"))) == SAID
    assert not varies(talk, ("typos",), 0.0)
    # Facts in it count as stated, so that recall probes know their distance.
    assert talk.stated_before("name", 2) == 0 and talk.stated_before("amount", 2) == 1


def test_a_recorded_session_of_another_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"d.yaml:\d+: user.file: .*session 's1' has 2 turns, the dialogue 3"
    ):
        recorded(tmp_path, SAID[:2])


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"kind": "rules", "corrects": ["name"], "correction": "No."}, "user.corrects.0: 'name' must stand"),
        (
            {"kind": "rules", "corrects": ["name"], "correction": "No, the {fct} is {value}."},
            r"correction: unknown \{fct\}; only \{fact\} and \{value\} are filled in",
        ),
        (
            {"kind": "rules", "changes_mind": [{"turn": 2, "fact": "amount", "to": [1], "say": "New."}]},
            r"user.changes_mind.0.say: must state the new value, \{amount\}",
        ),
        ({"kind": "rules", "answers": [{"asks": "(", "say": "x"}]}, "user.answers.0.asks: broken regular"),
        ({"kind": "rules", "answers": [{"asks": "a", "say": "{x}"}]}, "answers.0.say: unknown fact {x}"),
        ({"kind": "ghost"}, "kind: rules, recorded or model is needed"),
        ({"kind": "model", "endpoint": "ftp://x", "model": "m", "declare": "d"}, "http://HOST/v1"),
    ],
)
def test_broken_users_are_named(tmp_path: Path, user: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, user=user)


def test_a_mind_changes_to_a_value_drawn_for_the_trial() -> None:
    change = {"turn": 3, "fact": "amount", "to": [300, 400], "say": "No, make it {amount}."}
    talk = dialogue(RECALL, user={"kind": "rules", "changes_mind": [change]})
    values = [played(talk, 1, trial).fact("amount") for trial in range(20)]
    assert values[0] == "300" and set(values) == {"300", "400"}
    assert values == [played(talk, 1, trial).fact("amount") for trial in range(20)]
    assert user_texts(played(talk, 1, 0), 1, 0, ())[2].startswith("No, make it 300. Who am I")
    assert varies(talk, (), 0.0)


def test_code_switching_is_seeded_and_leaves_facts_alone() -> None:
    talk = dialogue(RECALL, turns=[{"user": "Hello {name}, please check my card today", "gold": "x"}])
    texts = [user_texts(talk, 1, trial, ("code_switching",))[0] for trial in range(6)]
    assert texts[0] == "Hello Maria, please check my card today"
    assert all(text != texts[0] and "Maria" in text for text in texts[1:])
    assert texts == [user_texts(talk, 1, trial, ("code_switching",))[0] for trial in range(6)]
    chinese = dialogue(RECALL, locale="zh", turns=[{"user": "请查我的账户余额", "gold": "x"}])
    assert user_texts(chinese, 1, 1, ("code_switching",))[0] != "请查我的账户余额"
