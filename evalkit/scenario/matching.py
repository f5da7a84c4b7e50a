"""Whether a value stands in a text: what every check of a reply is built on."""

import re
import unicodedata

_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d)")
_FRACTION = re.compile(r"(?<![\d.])(\d+)\.(\d+)(?![\d]|\.\d)")
_SPACE = re.compile(r"\s+")
# What makes the digits after it a part of another number: digits, or a sign (the hyphens of a date or a word are none).
_BEFORE_DIGITS = re.compile(r"(?:\d|\d[.,]|(?:^|[\s(])[-\u2212][$€£¥]?|[$€£¥][-\u2212])$")


def normalise(text: str) -> str:
    """Canonical form for comparison: NFKC, case folded, single spaces, 1,250.00 as 1250."""
    text = _SPACE.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    return _FRACTION.sub(_plain_number, text)


def states(text: str, value: str, *, whole_words: bool) -> bool:
    """Whether `value` stands in `text`, both normalised.

    Digits are compared as whole numbers: 12 stands neither in 120 nor in 12.5 nor in -12. With `whole_words` the same
    holds for
    Latin words: Ann doesn't stand in Anna.
    """
    text, value = normalise(text), normalise(value)
    if not value:
        return False
    start = text.find(value)
    while start >= 0:
        if stands_apart(text, start, start + len(value), whole_words):
            return True
        start = text.find(value, start + 1)
    return False


def _plain_number(match: re.Match[str]) -> str:
    fraction = match[2].rstrip("0")
    return f"{match[1]}.{fraction}" if fraction else match[1]


def stands_apart(text: str, start: int, end: int, whole_words: bool) -> bool:
    """Whether text[start:end], which isn't empty, isn't part of a longer number (or, with `whole_words`, Latin word)."""
    before, after = text[:start], text[end:]
    if text[start].isdigit() and _BEFORE_DIGITS.search(before):
        return False
    if text[end - 1].isdigit() and re.match(r"\d|[.,]\d", after):
        return False
    if not whole_words:
        return True
    return not (_latin(text[start]) and _latin(before[-1:])) and not (
        _latin(text[end - 1]) and _latin(after[:1])
    )


def _latin(character: str) -> bool:
    return character.isalpha() and ord(character) < 0x250
