"""Data files: every problem is one line that names file and line."""

import json

import pytest

from evalkit.errors import InputError
from evalkit.scoring.decisions import DecisionItem, read_decisions
from evalkit.scoring.texts import TextItem, read_texts


def write(tmp_path, *lines):
    path = tmp_path / "data.jsonl"
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def test_texts(tmp_path):
    path = write(
        tmp_path,
        {"id": "a", "text": "one", "cluster": "k", "tags": ["x", "x", "y"]},
        "",
        {"id": "b", "text": ""},
        '{"id": "c", "text": "\\ud800 \\u0000 \u2028"}',
    )
    assert read_texts(path) == [
        TextItem("a", "one", "k", ("x", "y")),
        TextItem("b", "", "b"),
        TextItem("c", "\ud800 \0 \u2028", "c"),
    ]


def test_decisions(tmp_path):
    path = write(tmp_path, {"id": "a", "prompt": "p", "target": "yes", "cluster": "k"})
    assert read_decisions(path, ["yes", "no"]) == [DecisionItem("a", "p", "yes", "k")]


GOOD = {"id": "a", "text": "one"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "1: the file is empty"),
        (["", "  "], "1: the file is empty"),
        ([GOOD, '{"id": "b", "text": '], "2: broken JSON"),
        (["[" * 100_000], "1: broken JSON: nested too deeply"),
        (['{"id": "a", "text": ' + "9" * 10_000 + "}"], "1: broken JSON: a number of too many digits"),
        ([GOOD, "[1]"], "2: a JSON object is needed"),
        ([GOOD, {"id": "b"}], "2: text: is required"),
        ([{"text": "b"}], "1: id: is required"),
        ([{"id": "a", "text": "b", "txet": 1}], "1: txet: unknown field; known are id, text, cluster, tags"),
        (['{"id": "a", "text": "b", "text": "c"}'], "1: text: field given twice"),
        ([GOOD, {"id": "b", "text": "x"}, GOOD], "3: id: 'a' is repeated (first at"),
        ([{"id": 7, "text": "b"}], "1: id: a non-empty text is needed (got 7)"),
        ([{"id": "", "text": "b"}], "1: id: a non-empty text is needed"),
        (['{"id": "\\ud800", "text": "b"}'], "1: id: holds a lone surrogate"),
        ([{"id": "a", "text": None}], "1: text: a text is needed (got None)"),
        ([{"id": "a", "text": "b", "cluster": 3}], "1: cluster: a non-empty text is needed"),
        ([{"id": "a", "text": "b", "tags": "x"}], "1: tags: a list of non-empty texts is needed"),
    ],
)
def test_bad_texts(tmp_path, lines, message):
    path = write(tmp_path, *lines)
    with pytest.raises(InputError) as caught:
        read_texts(path)
    assert str(caught.value).startswith(f"{path}:{message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00\x01", b"PK\x03\x04\0\0", b"\x89PNG\r\n"])
def test_binary_file(tmp_path, data):
    path = tmp_path / "data.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"binary file|not UTF-8 text"):
        read_texts(path)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_texts(tmp_path / "absent.jsonl")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"id": "a", "prompt": "p", "target": "maybe"}, "target: 'maybe' is none of the labels yes, no"),
        ({"id": "a", "prompt": 3, "target": "yes"}, "prompt: a text is needed"),
        ({"id": "a", "target": "yes"}, "prompt: is required"),
    ],
)
def test_bad_decisions(tmp_path, line, message):
    path = write(tmp_path, line)
    with pytest.raises(InputError) as caught:
        read_decisions(path, ["yes", "no"])
    assert str(caught.value).startswith(f"{path}:1: {message}")
