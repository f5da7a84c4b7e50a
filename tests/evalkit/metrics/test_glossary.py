"""Domain terms: longest match, boundaries in spaced scripts only."""

import pytest

from evalkit.errors import InputError
from evalkit.metrics.glossary import Glossary, read_glossary


def found(terms, text):
    return [text[start:end] for start, end in Glossary(terms).spans(text)]


@pytest.mark.parametrize(
    ("terms", "text", "expected"),
    [
        (["card", "credit card"], "My Credit Card, a card.", ["Credit Card", "card"]),
        (["card"], "cardinal discard card's card2 card", ["card", "card"]),
        # The longest match doesn't stand free, a shorter one does.
        (["card", "card ho"], "card house", ["card"]),
        (["信用卡", "信用"], "我的信用卡和信用", ["信用卡", "信用"]),
        (["card"], "我的card丢了", ["card"]),
        (["atm卡"], "ATM卡 atm卡片", ["ATM卡", "atm卡"]),
        (["a b", "b c"], "a b c", ["a b"]),
        (["c++"], "c++ c++x", ["c++", "c++"]),
        (["i"], "İ i", ["i"]),
        (["fee"], "no term", []),
    ],
)
def test_spans(terms, text, expected):
    assert found(terms, text) == expected


def test_file(tmp_path):
    path = tmp_path / "terms.txt"
    path.write_text("credit  card\n\n信用卡\ncredit card\n", encoding="utf-8")
    assert read_glossary(path) == ("credit card", "信用卡")


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "1: the glossary is empty"), (b"\n \n", "1: the glossary is empty"), (b"a\0b", " a binary file")],
)
def test_bad_file(tmp_path, data, message):
    path = tmp_path / "terms.txt"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_glossary(path)
    assert str(caught.value).startswith(f"{path}:{message}")
