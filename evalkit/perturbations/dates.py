"""Dates in texts, and how else they can be written."""

import re
from datetime import date
from random import Random

from evalkit.perturbations.language import is_chinese
from evalkit.perturbations.numbers import replaced

FORMS = ("iso", "day_first", "month_first", "words")

_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_MONTH = "(?P<month>" + "|".join([*_MONTHS, *(name[:3] + r"\.?" for name in _MONTHS)]) + ")"
_YEAR, _DAY = r"(?P<year>\d{4})", r"(?P<day>\d{1,2})"
# Only forms that can be read in one way: 03/12/2024 is two days.
_PATTERNS = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        rf"(?<![\d/\-]){_YEAR}(?P<mark>[-/])(?P<month>\d{{1,2}})(?P=mark){_DAY}(?![\d/\-])",
        rf"(?<!\d){_YEAR}年(?P<month>\d{{1,2}})月{_DAY}[日号]",
        rf"(?<![\w/\-]){_DAY}(?:st|nd|rd|th)?\s(?:of\s)?{_MONTH},?\s{_YEAR}(?!\w)",
        rf"(?<![\w]){_MONTH}\s{_DAY}(?:st|nd|rd|th)?,?\s{_YEAR}(?!\w)",
    )
)


def reformat_dates(text: str, random: Random, to: str | None) -> str:
    """`text` with its dates in another format; the days stay. What can be read in two ways is left alone.

    Args:
        text: any.
        random: the text's own generator.
        to: iso, day_first, month_first or words; None: one that changes the text.
    """
    forms = [to] if to is not None else random.sample(FORMS, len(FORMS))
    found = find_dates(text)
    chinese = is_chinese(text)
    for form in forms:
        changed = replaced(text, [(start, end, _in_form(day, form, chinese)) for start, end, day in found])
        if changed != text:
            return changed
    return text


def find_dates(text: str) -> list[tuple[int, int, date]]:
    """The dates of a text that can be read in one way, with their characters, from left to right."""
    found: list[tuple[int, int, date]] = []
    for match in sorted(
        (match for pattern in _PATTERNS for match in pattern.finditer(text)), key=lambda match: match.start()
    ):
        day = _date(match)
        if day is not None and (not found or match.start() >= found[-1][1]):
            found.append((match.start(), match.end(), day))
    return found


def _date(match: re.Match[str]) -> date | None:
    month = match["month"]
    number = int(month) if month.isdigit() else 1 + [name[:3] for name in _MONTHS].index(month[:3])
    try:
        return date(int(match["year"]), number, int(match["day"]))
    except ValueError:
        return None


def _in_form(day: date, form: str, chinese: bool) -> str:
    if form == "iso":
        return f"{day.year:04}-{day.month:02}-{day.day:02}"
    if form == "day_first":
        return f"{day.day:02}/{day.month:02}/{day.year:04}"
    if form == "month_first":
        return f"{day.month:02}/{day.day:02}/{day.year:04}"
    if chinese:
        return f"{day.year}年{day.month}月{day.day}日"
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"
