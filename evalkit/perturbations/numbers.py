"""Numbers in texts: where they stand, what they are, and how else they can be written."""

import re
from dataclasses import dataclass
from random import Random

FORMS = ("grouped", "continental", "plain")

# Free of letters, digits and the marks that make dates, times, versions and ids. Continental numbers aren't read:
# 1.000 could be either.
_BEFORE, _AFTER = r"(?<![A-Za-z0-9_.,:/\-#])", r"(?![A-Za-z0-9_]|[.,:/\-]\d)"
NUMBER = re.compile(rf"{_BEFORE}(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)?{_AFTER}", re.ASCII)
_MARK_BEFORE = re.compile(r"(?:[$€£¥￥]|\b(?:USD|EUR|GBP|CNY|RMB|HKD|JPY))\s?$")
_MARK_AFTER = re.compile(
    r"\s?(?:[元块万亿€£%]|美元|欧元|英镑|港币|人民币|(?:dollars?|euros?|pounds?|yuan|USD|EUR|GBP|CNY|RMB|HKD|JPY)\b)"
)
_DATE_AFTER = re.compile(r"\s?[年月日号]")


@dataclass(frozen=True)
class FoundNumber:
    """A number in a text.

    Attributes:
        start, end: its characters.
        text: as written.
        amount: whether a currency or another unit of quantity stands at it.
    """

    start: int
    end: int
    text: str
    amount: bool


def find_numbers(text: str) -> list[FoundNumber]:
    """The numbers of a text that stand free, from left to right; parts of dates in Chinese aren't."""
    found = []
    for match in NUMBER.finditer(text):
        if _DATE_AFTER.match(text, match.end()):
            continue
        before = _MARK_BEFORE.search(text, max(0, match.start() - 5), match.start())
        amount = before is not None or _MARK_AFTER.match(text, match.end()) is not None
        found.append(FoundNumber(match.start(), match.end(), match[0], amount))
    return found


def reformat_numbers(text: str, random: Random, to: str | None) -> str:
    """`text` with its numbers in another format; their values stay.

    Changed are amounts, and numbers with grouped thousands or decimals: a bare 2024 or 482913 may be a year or an
    id. One format a text.

    Args:
        text: any.
        random: the text's own generator.
        to: grouped (1,000.50), continental (1.000,50), plain (1000.50); None: one that changes the text.
    """
    forms = [to] if to is not None else random.sample(FORMS, len(FORMS))
    for form in forms:
        changed = _rewritten(text, form)
        if changed != text:
            return changed
    return text


def replaced(text: str, pieces: list[tuple[int, int, str]]) -> str:
    """`text` with each [start, end) replaced; the spans are disjoint and in order."""
    parts, reached = [], 0
    for start, end, other in pieces:
        parts += [text[reached:start], other]
        reached = end
    return "".join([*parts, text[reached:]])


def _rewritten(text: str, form: str) -> str:
    return replaced(
        text,
        [
            (number.start, number.end, _in_form(number.text, form))
            for number in find_numbers(text)
            if number.amount or "," in number.text or "." in number.text
        ],
    )


def _in_form(number: str, form: str) -> str:
    whole, point, fraction = number.replace(",", "").partition(".")
    if len(whole) > 1 and whole.startswith("0"):
        return number  # an id or a code, whatever stands beside it
    if form == "plain":
        return whole + point + fraction
    grouped = f"{int(whole):,}" + point + fraction
    return grouped if form == "grouped" else grouped.translate(str.maketrans(",.", ".,"))
