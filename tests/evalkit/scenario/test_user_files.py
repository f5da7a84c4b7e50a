"""Users in dialogue files: recorded ones, rules that refer to nothing, variations that they bring."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalkit.errors import InputError
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.dialogue_files import read_dialogue_file
from evalkit.scenario.loader import load_scenario
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


@pytest.mark.parametrize(
    ("value", "said", "stated"),
    [
        ("李娜", "你好，我叫李娜。", True),
        ("李娜", "我是李娜1", True),
        ("250", "我要转250元", True),
        ("250", "It is 1250.", False),
        ("250", "It is 250.5 euros.", False),
        ("250", "Send 250, please.", True),
        ("Ann", "I am Anna.", False),
        ("Ann", "I am Ann.", True),
        ("#7", "Account #7", True),
        ("Zoë", "Zoë here", True),
    ],
)
def test_a_recorded_text_states_a_fact_where_its_value_stands_alone(
    tmp_path: Path, value: str, said: str, stated: bool
) -> None:
    lines = [{"session": "s", "user_text": said}]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    user = {"kind": "recorded", "file": "log.jsonl", "session": "s"}
    talk = read(tmp_path, facts={"fact": value}, turns=[{"user": "x", "gold": "y"}], user=user)
    assert talk.stated_in(0) == ({"fact"} if stated else set())
    assert user_texts(talk, 1, 0, ()) == [said]


def test_a_recorded_user_who_changes_their_mind_is_heard_word_for_word(tmp_path: Path) -> None:
    said = ["Send 250 euros.", "No, not 250, make it 300."]
    (tmp_path / "log.jsonl").write_text(
        "\n".join(json.dumps({"session": "s", "user_text": one}) for one in said)
    )
    turns = [{"user": "x", "gold": "y"}, {"user": "x", "gold": "y", "revises": {"amount": 300}}]
    user = {"kind": "recorded", "file": "log.jsonl", "session": "s"}
    talk = read(tmp_path, facts={"amount": 250}, turns=turns, user=user)
    assert user_texts(talk, 1, 0, ()) == said


def test_a_recorded_session_of_another_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"d.yaml:\d+: user.file: .*session 's1' has 2 turns, the dialogue 3"
    ):
        recorded(tmp_path, SAID[:2])


def test_a_recorded_file_is_a_file_that_can_be_read_again(tmp_path: Path) -> None:
    user = {"kind": "recorded", "file": "pipe", "session": "s1"}
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        InputError, match=r"d.yaml:\d+: user.file: .*pipe: a pipe or a device; a file is needed"
    ):
        read(tmp_path, user=user)
    reader, writer = os.pipe()
    os.write(writer, json.dumps({"session": "s1", "user_text": "hi"}).encode())
    os.close(writer)
    with pytest.raises(InputError, match=rf"user.file: /dev/fd/{reader}: a pipe or a device"):
        read(tmp_path, user={**user, "file": f"/dev/fd/{reader}"})
    os.close(reader)


def test_a_recorded_text_keeps_its_line_separators_and_loses_a_byte_order_mark(tmp_path: Path) -> None:
    said = ("Hi,\u2028Maria here.", *SAID[1:])
    lines = [json.dumps({"session": "s1", "user_text": text}, ensure_ascii=False) for text in said]
    (tmp_path / "log.jsonl").write_text("\r\n".join(lines), encoding="utf-8-sig")
    talk = read(tmp_path, user={"kind": "recorded", "file": "log.jsonl", "session": "s1"})
    assert tuple(user_texts(talk, 1, 0, ())) == said
    (tmp_path / "log.jsonl").write_bytes(b'{"session": "s1", "user_text": "\xff"}')
    with pytest.raises(InputError, match=r"log.jsonl:1: not UTF-8 text"):
        read(tmp_path, user={"kind": "recorded", "file": "log.jsonl", "session": "s1"})


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
        ({"kind": "rules", "gives_up_after": True}, r"user.gives_up_after: .* \(got true\)"),
        ({"kind": "rules", "digresses": {"texts": ["x"], "share": "0.5"}}, "user.digresses.share: "),
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


OWN = """\
from evalkit.metrics.own import OwnMetric

talk = OwnMetric('own/talk', 'u', 'higher', 'turn', lambda r: (1.0,), lambda s: s[:, 0], 'act', 1.0)
text = OwnMetric('own/text', 'u', 'higher', 'text', lambda r: (1.0,), lambda s: s[:, 0], 'act', 1.0)
"""


@pytest.mark.parametrize(("metric", "refused"), [("own/talk", True), ("own/text", False)])
def test_a_metric_of_ones_own_blocks_on_a_played_user_no_more_than_ours(
    tmp_path: Path, metric: str, refused: bool
) -> None:
    user = {"kind": "model", "endpoint": "http://x/v1", "model": "m", "declare": "m"}
    (tmp_path / "d.yaml").write_text(yaml.safe_dump({**RECALL, "user": user}))
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "texts.jsonl").write_text('{"id": "a", "text": "hello"}\n')
    scenario = {
        "version": 1,
        "name": "s",
        "modules": ".",
        "metrics": ["mine:talk", "mine:text"],
        "text": {"data": "texts.jsonl"},
        "dialogues": {"include": ["d.yaml"]},
        "gate": {"rules": [{"metric": metric, "min": 0.5}]},
    }
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(scenario))
    if not refused:
        assert load_scenario(path).policy is not None
        return
    with pytest.raises(InputError, match="a model plays the user, and the blocking rule on own/talk"):
        load_scenario(path)
