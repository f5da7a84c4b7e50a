"""What a reader of a foreign format hands over: drafts of dialogues, and what it couldn't convert."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from evalkit.errors import InputError
from evalkit.files import read_text
from evalkit.scenario.user_schema import PLACEHOLDER


class Unchecked(Counter[str]):
    """Expectations of a source that no dialogue file states, counted by kind."""


@dataclass(frozen=True)
class Draft:
    """One converted dialogue.

    Attributes:
        source: where it stands in the source, for messages.
        content: of the dialogue, as in a dialogue file.
        unchecked: what the source expects and a reply's text can't show, counted by kind.
    """

    source: str
    content: dict[str, Any]
    unchecked: Unchecked


@dataclass(frozen=True)
class Skipped:
    """One dialogue of the source that wasn't converted, and why."""

    source: str
    reason: str


Reader = Callable[[Path], Iterator[Draft | Skipped]]


def read_list(file: Path, needed: str) -> list[Any]:
    """A JSON file whose top level is a list; `needed` says of what, and asks what the file may be instead.

    Raises:
        InputError: it can't be read, isn't JSON, or holds no list.
    """
    try:
        content = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise InputError(f"{file}:{error.lineno}: broken JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{file}: broken JSON: nested too deeply") from None
    if not isinstance(content, list):
        raise InputError(f"{file}: {needed}")
    return content


def misfit(shape: TypeAdapter[Any], value: Any) -> str | None:
    """The first field of `value` that isn't as a format has it, and why; None where all are."""
    try:
        shape.validate_python(value, strict=True)
    except ValidationError as error:
        return first_problem(error)
    return None


def first_problem(error: ValidationError) -> str:
    """Field and reason of the first of several problems."""
    problem = error.errors(include_url=False)[0]
    field = ".".join(map(str, problem["loc"]))
    reason = "is required" if problem["type"] == "missing" else problem["msg"].removeprefix("Value error, ")
    return f"{field}: {reason}" if field else reason


@dataclass
class Facts:
    """Facts of one dialogue, collected while its turns are read.

    Attributes:
        values: by name, in the order in which the user stated them.
        stated_in: index of the last turn that states it.
    """

    values: dict[str, str] = field(default_factory=dict)
    stated_in: dict[str, int] = field(default_factory=dict)

    def name(self, wanted: str, value: str, turn_index: int) -> str:
        """The fact's name for a value that the user states: `wanted`, or `wanted_2` where that has another value."""
        name, number = wanted, 1
        while self.values.get(name, value) != value:
            number += 1
            name = f"{wanted}_{number}"
        self.values[name] = value
        self.stated_in[name] = turn_index
        return name


def template(text: str, spans: list[tuple[int, int, str]]) -> str:
    """`text` with `{fact}` in place of each span (start, end, fact); overlapping spans after the first are left out."""
    parts, position = [], 0
    for start, end, name in sorted(spans):
        if start < position:
            continue
        parts += [text[position:start], f"{{{name}}}"]
        position = end
    return "".join([*parts, text[position:]])


def has_braces(*texts: str) -> bool:
    """Whether a text of the source holds something that a dialogue file would read as a fact."""
    return any(PLACEHOLDER.search(text) for text in texts)


def fact_name(text: str) -> str:
    """`text` as the name of a fact: letters, digits and underscores."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_").lower()
    return name if name[:1].isalpha() else f"value_{name}".rstrip("_")
