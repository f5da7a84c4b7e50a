"""What a word is."""

import pytest

from evalkit.metrics.words import count_words, has_cjk, lexicon_entries


@pytest.mark.parametrize(
    ("text", "words"),
    [("", 0), ("a\n", 1), ("  a b ", 2), ("don't stop", 2), ("你好世界", 0), ("card 中", 0), ("é ü", 2)],
)
def test_count(text, words):
    assert count_words(text) == words


@pytest.mark.parametrize(("text", "found"), [("abc", False), ("né", False), ("かな", True), ("、", False)])
def test_cjk(text, found):
    assert has_cjk(text) is found


def test_lexicon_entries_lose_case_and_outer_punctuation_but_keep_their_span():
    text = 'Say "Card-Holder", 12 €!  ...'
    assert [(entry, text[start:end]) for entry, start, end in lexicon_entries(text)] == [
        ("say", "Say"),
        ("card-holder", '"Card-Holder",'),
        ("12", "12"),
    ]


def test_cjk_characters_are_entries_of_their_own():
    text = "还款iPhone，好"
    assert [(entry, text[start:end]) for entry, start, end in lexicon_entries(text)] == [
        ("还", "还"),
        ("款", "款"),
        ("iphone", "iPhone，"),
        ("好", "好"),
    ]
