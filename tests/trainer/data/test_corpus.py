"""Corpus files: read one record at a time, every fault named by file and line."""

import json

import pytest

from evalkit.chat import Message
from evalkit.errors import InputError
from trainer.data import corpus
from trainer.data.corpus import read_records


def test_records_are_read_in_order(tmp_path):
    rows = [
        {"id": "a", "text": "one\u2028two"},
        {"id": "b", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]},
    ]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "a.jsonl").write_text(f"\ufeff{lines[0]}\r\n\n{lines[1]}", encoding="utf-8")
    (tmp_path / "b.txt").write_text("plain text\n", encoding="utf-8")
    records = list(read_records([tmp_path / "a.jsonl", tmp_path / "b.txt"]))
    assert [record.record_id for record in records] == ["a", "b", "b.txt"]
    assert [record.where for record in records] == [
        f"{tmp_path / 'a.jsonl'}:1",
        f"{tmp_path / 'a.jsonl'}:3",
        f"{tmp_path / 'b.txt'}:1",
    ]
    assert records[0].text == "one\u2028two" and records[1].messages[1] == Message("assistant", "ho")
    assert records[2].texts == ["plain text\n"]


def test_a_lone_surrogate_is_read_and_a_pair_becomes_a_character(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "a", "text": "x\\ud800y"}\n{"id": "b", "text": "\\ud83d\\ude42"}\n')
    assert [record.text for record in read_records([path])] == ["x\ud800y", "🙂"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "broken JSON"),
        ('{"id": "x", "text": NaN}', "broken JSON"),
        ("[" * 100_000, "broken JSON"),
        ("[1]", "a JSON object is needed"),
        ('{"id": "x"}', "exactly one of messages and text"),
        ('{"id": "x", "text": "a", "messages": []}', "exactly one of messages and text"),
        ('{"id": "x", "text": ""}', "text: a non-empty string"),
        ('{"id": 5, "text": "a"}', "id: a non-empty string"),
        ('{"id": "\\ud800", "text": "a"}', "id: holds a lone surrogate"),
        ('{"text": "a"}', "id: a non-empty string"),
        ('{"id": "x", "text": "a", "txt": "b"}', "txt: unknown key"),
        ('{"id": "x", "messages": []}', "messages: a non-empty list"),
        ('{"id": "x", "messages": [{"role": "bot", "content": "a"}]}', "messages.0.role: 'bot' isn't one of"),
        (
            '{"id": "x", "messages": [{"role": "user"}]}',
            "messages.0: an object with exactly role and content",
        ),
        (
            '{"id": "x", "messages": [{"role": "user", "content": ""}]}',
            "messages.0.content: a non-empty string",
        ),
        ('{"id": "first", "text": "again"}', "id 'first' was used before at .*a.jsonl:1; ids must be unique"),
    ],
)
def test_a_bad_record_is_named_by_file_and_line(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "first", "text": "fine"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"a\.jsonl:2: {message}") as caught:
        list(read_records([path]))
    assert "\n" not in str(caught.value)


def test_empty_binary_and_missing_files_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "binary.txt").write_bytes(b"text\na\0b")
    (tmp_path / "latin.jsonl").write_bytes(b'\n{"id": "\xe9"}')
    (tmp_path / "latin.txt").write_bytes(b"a\nb\n\xe9")
    for name, message in {
        "empty.jsonl": "the file is empty",
        "empty.txt": "the file is empty",
        "binary.txt": "binary.txt:2: a binary file",
        "latin.jsonl": "latin.jsonl:2: not UTF-8",
        "latin.txt": "latin.txt:3: not UTF-8",
        "none.jsonl": "no such file",
        ".": "is a folder",
    }.items():
        with pytest.raises(InputError, match=message):
            list(read_records([tmp_path / name]))


def test_a_long_plain_text_is_cut_at_line_ends_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "TEXT_BLOCK_BYTES", 64)
    lines = [f"第{number}行 of the text\n" for number in range(40)]
    (tmp_path / "long.txt").write_text("".join(lines), encoding="utf-8")
    records = list(read_records([tmp_path / "long.txt"]))
    assert "".join(record.text or "" for record in records) == "".join(lines)
    assert all(len((record.text or "").encode()) <= 64 for record in records) and len(records) > 10
    assert [record.record_id for record in records[:3]] == ["long.txt", "long.txt#2", "long.txt#3"]
    first_lines = [int(record.where.rsplit(":", 1)[1]) for record in records]
    assert all(
        (record.text or "").startswith(f"第{line - 1}行")
        for record, line in zip(records, first_lines, strict=True)
    )
