"""Training examples from CSV files, read strictly: every problem names its file and line."""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from evalkit.errors import InputError
from evalkit.files import read_text
from sandbox.business.features import RatedTurn, normalise
from sandbox.business.satisfaction import RATINGS

ItemT = TypeVar("ItemT")
Example = tuple[ItemT, str]

# Each fold of the cross-validation needs one example of each label.
MIN_EXAMPLES = 5


def read_intent_examples(path: Path) -> list[Example[str]]:
    """(text, intent) of a CSV file with the columns text, intent and optionally locale.

    Raises:
        InputError: the first problem.
    """
    rows = _rows(path, required=("text", "intent"), optional=("locale",))
    examples = [(_filled(where, row, "text"), _filled(where, row, "intent").strip()) for where, row in rows]
    return _enough(path, examples, "intent", normalise)


def read_satisfaction_examples(path: Path) -> list[Example[RatedTurn]]:
    """(turn, rating) of a CSV file with the columns user_text, reply, turn_index, failed_turns, satisfaction.

    Raises:
        InputError: the first problem.
    """
    columns = ("user_text", "reply", "turn_index", "failed_turns", "satisfaction")
    examples = []
    for where, row in _rows(path, required=columns, optional=()):
        rating = _whole_number(where, row, "satisfaction")
        if rating not in RATINGS:
            raise InputError(f"{where}: satisfaction: {rating} isn't a rating; use 1 to 5")
        turn = RatedTurn(
            user_text=_filled(where, row, "user_text"),
            reply=row["reply"],
            turn_index=_whole_number(where, row, "turn_index"),
            failed_turns=_whole_number(where, row, "failed_turns"),
        )
        examples.append((turn, str(rating)))
    return _enough(path, examples, "satisfaction", lambda turn: turn)


def _rows(
    path: Path, required: Sequence[str], optional: Sequence[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    text = read_text(path)
    if "\0" in text:
        raise InputError(f"{path}: a binary file, CSV text is needed")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines = _numbered(path, reader)
    _, header = next(lines, (1, []))
    known = {*required, *optional}
    for name in header:
        if name not in known:
            raise InputError(
                f"{path}:1: unknown column {name!r}; the columns are {', '.join([*required, *optional])}"
            )
        if header.count(name) > 1:
            raise InputError(f"{path}:1: column {name!r} appears twice; keep one")
    for name in required:
        if name not in header:
            raise InputError(
                f"{path}:1: column {name!r} is missing; the columns are {', '.join([*required, *optional])}"
            )
    for line, values in lines:
        if not values:
            continue  # a blank line
        if len(values) != len(header):
            raise InputError(
                f"{path}:{line}: {len(values)} fields, the header has {len(header)}; quote texts with commas"
            )
        yield f"{path}:{line}", dict(zip(header, values, strict=True))


def _numbered(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    while True:
        line = reader.line_num + 1
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{path}:{line}: broken CSV: {error}; check the quotes") from None
        yield line, values


def _filled(where: str, row: dict[str, str], name: str) -> str:
    if not row[name].strip():
        raise InputError(f"{where}: {name}: is empty; fill it in or remove the line")
    return row[name]


def _whole_number(where: str, row: dict[str, str], name: str) -> int:
    value = row[name].strip()
    if not (value.isascii() and value.isdigit()):
        raise InputError(f"{where}: {name}: {row[name]!r} isn't a whole number of 0 or more")
    return int(value)


def _enough(
    path: Path, examples: list[Example[ItemT]], what: str, key: Callable[[ItemT], object]
) -> list[Example[ItemT]]:
    # Counted as they are trained on (`key`): texts that differ by a number alone are copies of each other.
    if not examples:
        raise InputError(
            f"{path}: has no examples; at least {MIN_EXAMPLES} for each of two labels are needed"
        )
    counts = Counter(label for _, label in distinct(examples, key))
    if len(counts) < 2:
        raise InputError(
            f"{path}: {what}: all examples have the same label {next(iter(counts))!r}; at least two are needed"
        )
    label, count = min(counts.items(), key=lambda entry: (entry[1], entry[0]))
    if count < MIN_EXAMPLES:
        raise InputError(
            f"{path}: {what}: {label!r} has {count} different examples; at least {MIN_EXAMPLES} are needed"
            f"{' (numbers and capitals make no difference)' if what == 'intent' else ''}"
        )
    return examples


def distinct(examples: Sequence[Example[ItemT]], key: Callable[[ItemT], object]) -> list[Example[ItemT]]:
    """The first example of each (key, label), in order: a copy must not stand on both sides of a split."""
    return list({(key(item), label): (item, label) for item, label in reversed(examples)}.values())[::-1]
