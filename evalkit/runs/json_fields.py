"""JSON files read strictly, field by field, and written so that equal values give equal bytes."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalkit.errors import InputError
from evalkit.files import read_text


def encode(value: Any) -> bytes:
    """Indented JSON with a final newline: how results.json and comparison.json are written."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: missing, not JSON, not an object, or with NaN or infinities.
    """

    def refuse(constant: str) -> Any:
        raise InputError(f"{path}: holds {constant}, which isn't JSON; the file is damaged")

    text = read_text(path)
    try:
        content = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: broken JSON: {error.msg}; the file is damaged") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply; the file is damaged") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: a JSON object is needed at the top level; the file is damaged")
    return content


def finite_or_none(value: Any) -> Any:
    """`value` with every number in it that isn't finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite_or_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(item) for item in value]
    return value


class Reader:
    """Typed access to the fields of a JSON object; every problem is an InputError that names the field."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: a JSON object is needed; the file is damaged")
        self._value = value
        self._where = where

    def field(self, name: str) -> Any:
        """A field of any type."""
        if name not in self._value:
            raise InputError(f"{self._where}: {name}: is missing; the file is damaged or of another version")
        return self._value[name]

    def text(self, name: str) -> str:
        """A string."""
        return str(self._typed(name, str, "a text"))

    def text_or_none(self, name: str) -> str | None:
        """A string or null."""
        return None if self.field(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        """A whole number."""
        return int(self._typed(name, int, "a whole number"))

    def integer_or_none(self, name: str) -> int | None:
        """A whole number or null."""
        return None if self.field(name) is None else self.integer(name)

    def number(self, name: str) -> float | None:
        """A finite number or null."""
        value = self.field(name)
        if value is None:
            return None
        number = float(self._typed(name, int | float, "a number or null"))
        if not math.isfinite(number):
            raise self._error(name, "a finite number or null")
        return number

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.field(name)
        if not isinstance(value, bool):
            raise self._error(name, "true or false")
        return value

    def one_of(self, name: str, allowed: Sequence[Any]) -> Any:
        """One of `allowed`."""
        value = self.field(name)
        if isinstance(value, bool) or value not in allowed:
            raise self._error(name, f"one of {', '.join(map(repr, allowed))}")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object."""
        value: Mapping[str, Any] = self._typed(name, Mapping, "an object")
        return value

    def sequence(self, name: str) -> list[Any]:
        """An array."""
        value: list[Any] = self._typed(name, list, "an array")
        return value

    def _typed(self, name: str, kind: Any, wanted: str) -> Any:
        value = self.field(name)
        # bool is an int in Python, but `true` isn't a number in JSON.
        if isinstance(value, bool) or not isinstance(value, kind):
            raise self._error(name, wanted)
        return value

    def _error(self, name: str, wanted: str) -> InputError:
        return InputError(f"{self._where}: {name}: {wanted} is needed; the file is damaged")
