"""Production logs become a resampling target and candidate dialogues."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evalkit.cli import cli
from evalkit.errors import InputError
from evalkit.feedback.traffic import Ingested, ingest_traffic
from evalkit.scenario.dialogue_files import read_dialogue_file
from evalkit.scenario.expectations import self_test
from evalkit.scoring.texts import read_texts

MAP = """\
version: 1
fields: {conversation: session, role: who, text: text, time: at, locale: lang}
roles: {user: [customer], assistant: [bot], human: [agent], ignore: [system]}
mask: {names: names.txt, patterns: {customer: 'CU-\\d+'}}
"""
ROWS: list[tuple[str, str, str, str, str]] = [
    ("s1", "2026-11-03T10:00:00Z", "customer", "I am Maria, mail maria@mail.example.org", "en-GB"),
    ("s1", "2026-11-03T10:00:05Z", "bot", "Hello Maria.", "en-GB"),
    ("s2", "2026-11-03T10:00:06Z", "customer", "你好，我的手机是13912345678", "zh-CN"),
    ("s1", "2026-11-03T10:01:00Z", "customer", "Where do you send it?", "en-GB"),
    ("s1", "2026-11-03T10:01:02Z", "bot", "To maria@mail.example.org.", "en-GB"),
    ("s1", "2026-11-03T10:01:03Z", "system", "closed", "en-GB"),
    ("s2", "2026-11-03T10:00:09Z", "bot", "好的。", "zh-CN"),
    ("s2", "2026-11-03T10:00:20Z", "customer", "转人工", "zh-CN"),
    ("s2", "2026-11-03T10:02:20Z", "agent", "您好，我是人工客服。", "zh-CN"),
    ("s2", "2026-11-03T10:03:20Z", "customer", "谢谢", "zh-CN"),
    ("s3", "2026-11-04T10:00:00Z", "customer", "How much is a card, CU-7?", "en"),
    ("s3", "2026-11-04T10:00:01Z", "bot", "It is free.", "en"),
    ("s4", "2026-11-05T10:00:00Z", "customer", "hello?", "en"),
    ("s4", "2026-11-05T10:00:00Z", "customer", "  ", "en"),
]
NAMES = ("session", "at", "who", "text", "lang")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log, its mapping and a list of names."""
    lines = [json.dumps(dict(zip(NAMES, row, strict=True)), ensure_ascii=False) for row in ROWS]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with (tmp_path / "log.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([NAMES, *ROWS])
    (tmp_path / "map.yaml").write_text(MAP)
    (tmp_path / "names.txt").write_text("Maria\n")
    return tmp_path


def ingest(folder: Path, name: str = "log.jsonl", out: str = "out") -> Ingested:
    return ingest_traffic(folder / name, folder / "map.yaml", folder / out)


def test_traffic_becomes_a_target_and_dialogues(folder: Path) -> None:
    found = ingest(folder)
    assert (found.conversations, found.texts, found.handed_over) == (4, 7, 1)
    assert found.counts == {"messages": 14, "of ignored roles": 1, "without words": 1}
    assert found.masked == {"customer": 1, "email": 2, "name": 2, "phone": 1}
    assert (found.first, found.last) == ("2026-11-03T10:00:00+00:00", "2026-11-05T10:00:00+00:00")
    assert (found.dialogues, found.to_complete) == (2, 1)
    assert found.left_out == {"no message of the user with an answer": 1}
    texts = read_texts(folder / "out" / "target.jsonl")
    assert "I am Alex, mail customer1@example.com" in [text.text for text in texts]
    assert len({text.cluster for text in texts}) == 4


def test_what_was_masked_becomes_a_fact_and_a_probe(folder: Path) -> None:
    ingest(folder)
    sources = read_dialogue_file(folder / "out" / "dialogues.yaml")
    by_locale = {source.dialogue.locale: source.dialogue for source in sources}
    english, chinese = by_locale["en"], by_locale["zh"]
    assert english.facts == {"name_1": "Alex", "email_1": "customer1@example.com"}
    assert english.turns[1].expect.recalls == ["email_1"]
    assert chinese.handover_window == (1, 1) and len(chinese.turns) == 2
    assert self_test(sources) == []
    waiting = read_dialogue_file(folder / "out" / "dialogues_to_complete.yaml")
    assert "the null agent passes" in self_test(waiting)[0]


def test_no_personal_data_is_written(folder: Path) -> None:
    ingest(folder)
    written = "".join(file.read_text(encoding="utf-8") for file in (folder / "out").iterdir())
    for secret in ("Maria", "maria@", "13912345678", "CU-7", '"s1"'):
        assert secret not in written


def test_csv_and_whole_conversations_give_the_same(folder: Path) -> None:
    ingest(folder)
    assert ingest(folder, "log.csv", "csv").to_dict() | {"source_sha256": ""} == ingest(
        folder, out="again"
    ).to_dict() | {"source_sha256": ""}
    whole: dict[str, list[dict[str, Any]]] = {}
    for row in ROWS:
        whole.setdefault(row[0], []).append({"who": row[2], "text": row[3], "at": row[1]})
    locales = {row[0]: row[4] for row in ROWS}
    lines = [json.dumps({"session": key, "lang": locales[key], "m": talk}) for key, talk in whole.items()]
    (folder / "whole.jsonl").write_text("\n".join(lines))
    (folder / "map.yaml").write_text(MAP.replace("fields: {", "fields: {messages: m, "))
    ingest(folder, "whole.jsonl", "whole")
    for name in ("target.jsonl", "dialogues.yaml", "dialogues_to_complete.yaml"):
        one = (folder / "out" / name).read_bytes()
        assert one == (folder / "csv" / name).read_bytes() == (folder / "whole" / name).read_bytes()


def test_old_rows_and_many_conversations_are_left_out_by_count(folder: Path) -> None:
    (folder / "map.yaml").write_text(MAP + "since: 2026-11-04\ndialogues: 1\n")
    found = ingest(folder)
    assert (found.conversations, found.counts["before `since`"], found.dialogues + found.to_complete) == (
        2,
        9,
        1,
    )


@pytest.mark.parametrize("name", ["log.jsonl", "log.csv"])
def test_rows_without_a_locale_take_that_of_the_mapping_if_it_gives_one(folder: Path, name: str) -> None:
    rows = [(*row[:4], "" if row[0] == "s2" else row[4]) for row in ROWS]
    lines = [{key: value for key, value in zip(NAMES, row, strict=True) if value} for row in rows]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (folder / "log.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([NAMES, *rows])
    with pytest.raises(InputError, match=r"no field 'lang'|give the mapping a `locale`"):
        ingest(folder, name)
    (folder / "map.yaml").write_text(MAP + "locale: zh\n")
    found = ingest(folder, name)
    assert found.counts["rows without lang"] == 5
    sources = read_dialogue_file(folder / "out" / "dialogues.yaml")
    assert {source.dialogue.locale for source in sources} == {"en", "zh"}


@pytest.mark.parametrize(
    ("change", "row", "message"),
    [
        ({}, {"session": "s", "who": "robot", "text": "x", "at": "2026-01-01", "lang": "en"}, "'robot' isn't among"),
        ({}, {"session": "s", "text": "x"}, "no field 'lang'"),
        ({}, {"session": "s", "who": "bot", "text": "x", "at": "noon", "lang": "en"}, "'noon' isn't a time"),
        ({}, {"session": "s", "who": "bot", "text": ["x"], "at": 1, "lang": "en"}, "a text is needed"),
        ({}, {"session": "s", "who": "bot", "text": "x", "at": 1, "lang": "fr"}, "neither en nor zh"),
        ({"roles: {": "roles: {boss: [x], "}, {}, "map.yaml:3: roles.boss: unknown key"),
        ({"[bot]": "[customer]"}, {}, "stands for two roles"),
        ({"names.txt": "absent.txt"}, {}, "absent.txt: no such file"),
        ({"'CU-\\d+'": "'('"}, {}, "mask.patterns.customer: broken regular expression"),
        ({"'CU-\\d+'": "''"}, {}, "map.yaml:4: mask.patterns.customer: matches an empty text"),
        ({"'CU-\\d+'": "'(a|aa)+$'"}, {}, "map.yaml:4: mask.patterns.customer: the regular expression '(a|aa)+$' took"),
        ({"version: 1": "version: 1\nsince: 2026-11-04", ", time: at": ""}, {}, "map.yaml:1: since needs fields.time: without it no message is older"),
        ({"version: 1": "version: true"}, {}, "map.yaml:1: version: Input should be 1 (got true)"),
        ({"version: 1": "version: 1\ndialogues: true"}, {}, "map.yaml:2: dialogues: Input should be a valid integer (got true)"),
        ({"version: 1": "version: 1\nseed: '5'"}, {}, "map.yaml:2: seed: Input should be a valid integer"),
        ({}, {"session": None, "who": "bot", "text": "x", "at": 1, "lang": "en"}, "session: a text is needed (got null)"),
        ({}, {"session": "s", "who": "bot", "text": {}, "at": 1, "lang": "en"}, "text: a text is needed (got a mapping)"),
        ({}, {"session": "s", "who": "bot", "text": "x", "at": None, "lang": "en"}, "at: null isn't a time"),
        ({}, {"session": "s", "who": "bot", "text": "x", "at": True, "lang": "en"}, "at: true isn't a time"),
        ({"version: 1": "version: 1\nsince: soon"}, {}, "map.yaml:2: since: isn't a time"),
        ({"[system]": "[boss]"}, {"session": "s", "who": "boss", "text": "x", "at": 1, "lang": "en"}, "no message is left (messages: 1, of ignored roles: 1)"),
    ],
)  # fmt: skip
def test_a_bad_log_or_mapping_is_one_line(
    folder: Path, change: dict[str, str], row: dict[str, Any], message: str
) -> None:
    text = MAP
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "map.yaml").write_text(text)
    (folder / "log.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError) as error:
        ingest(folder)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (folder / "out").exists()


def test_a_log_is_a_file_whose_digest_can_be_taken(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(InputError, match="a pipe or a device; a file is needed"):
        ingest(folder, "pipe")


def test_the_command_shows_the_counts(folder: Path) -> None:
    words = [
        "ingest",
        "traffic",
        str(folder / "log.jsonl"),
        "--map",
        str(folder / "map.yaml"),
        "--out",
        str(folder / "o"),
    ]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0 and "masked: customer 1, email 2, name 2, phone 1" in done.output
