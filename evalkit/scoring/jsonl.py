"""Data files: JSON lines, read strictly, every problem with its line."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evalkit.errors import InputError
from evalkit.files import read_text


class Line(NamedTuple):
    """One object of the file and where it stands, `file:line`."""

    where: str
    content: dict[str, Any]


def read_objects(path: Path, *, required: Sequence[str], optional: Sequence[str]) -> Iterator[Line]:
    """The objects of a JSON-lines file; blank lines are passed over.

    Args:
        path: the file.
        required, optional: the fields that an object must and may have.

    Raises:
        InputError: missing, binary or empty file; broken JSON; a missing, unknown or doubled field.
    """
    text = read_text(path)
    if "\0" in text:
        raise InputError(f"{path}: a binary file; JSON lines are needed")
    number = 0
    empty = True
    # Only "\n" ends a line: JSON texts may hold U+2028 and its like.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            empty = False
            where = f"{path}:{number}"
            content = _parse(line, where)
            _check_fields(content, where, required, optional)
            yield Line(where, content)
    if empty:
        raise InputError(f"{path}:1: the file is empty; one JSON object a line is needed")


def text_field(line: Line, name: str) -> str:
    """A field that must be a non-empty text of valid Unicode (it is written to files again).

    Raises:
        InputError: it isn't.
    """
    value = line.content[name]
    if not isinstance(value, str) or not value:
        raise InputError(f"{line.where}: {name}: a non-empty text is needed (got {value!r:.60})")
    if not is_unicode(value):
        raise InputError(f"{line.where}: {name}: holds a lone surrogate; write valid Unicode")
    return value


def is_unicode(text: str) -> bool:
    """Whether the text can be written as UTF-8 (no lone surrogates)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse(line: str, where: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{where}: {twice}: field given twice; keep one of them")
        return content

    try:
        content = json.loads(line, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: broken JSON: {error.msg} (column {error.colno}); correct the line"
        ) from None
    except ValueError:  # Python's own limit on the digits of a whole number
        raise InputError(f"{where}: broken JSON: a number of too many digits; correct the line") from None
    except RecursionError:
        raise InputError(f"{where}: broken JSON: nested too deeply; correct the line") from None
    if not isinstance(content, dict):
        raise InputError(f"{where}: a JSON object is needed, in braces")
    return content


def _check_fields(
    content: dict[str, Any], where: str, required: Sequence[str], optional: Sequence[str]
) -> None:
    for name in required:
        if name not in content:
            raise InputError(f"{where}: {name}: is required")
    known = {*required, *optional}
    for name in content:
        if name not in known:
            raise InputError(f"{where}: {name}: unknown field; known are {', '.join([*required, *optional])}")
