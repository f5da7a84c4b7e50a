"""Mapping files of `evalkit ingest`: where a log holds what we need, by field name; and the rows of that log."""

import csv
import io
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, field_validator, model_validator

from evalkit.errors import InputError, as_written
from evalkit.files import read_text
from evalkit.scenario.additions_schema import Strict, Version1

FieldName = Annotated[str, Field(min_length=1)]
"""A column of a CSV file, or a key of a JSON line; `a.b` is the key b inside a."""


class TrafficFields(Strict):
    """Where a row holds what. With `messages` a row is a whole conversation, and role, text and time are keys of each message."""

    conversation: FieldName
    role: FieldName
    text: FieldName
    messages: FieldName | None = None
    time: FieldName | None = None
    locale: FieldName | None = None


class Roles(Strict):
    """What the log calls who speaks. `human`: a colleague who has taken over; `ignore`: left out, counted."""

    user: list[str] = Field(min_length=1)
    assistant: list[str] = Field(min_length=1)
    human: list[str] = Field(default=[])
    ignore: list[str] = Field(default=[])

    @model_validator(mode="after")
    def _once(self) -> "Roles":
        names = [*self.user, *self.assistant, *self.human, *self.ignore]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} stands for two roles; keep one")
        return self


class Masking(Strict):
    """Personal data beyond the rules: a file with a name a line, and own patterns by kind."""

    names: str | None = None
    patterns: dict[Annotated[str, Field(pattern=r"^[a-z][a-z_]*$")], str] = Field(default={})


class TrafficMap(Strict):
    """The mapping file of `evalkit ingest traffic`.

    Attributes:
        target: whose texts the resampling target holds.
        locale: of rows that have none; where `fields.locale` stands too, it has to be given for that.
        since: rows before this time (ISO 8601) are left out, counted.
        dialogues: candidate dialogues at most.
    """

    version: Version1
    fields: TrafficFields
    roles: Roles
    locale: Literal["en", "zh"] = "en"
    target: Literal["user", "assistant"] = "user"
    since: str | None = None
    mask: Masking = Masking()
    dialogues: int = Field(default=50, ge=0)
    seed: int = Field(default=2024, ge=0)

    @field_validator("since")
    @classmethod
    def _a_time(cls, since: str | None) -> str | None:
        try:
            if since is not None:
                datetime.fromisoformat(since.strip())
        except ValueError:
            raise ValueError("isn't a time; ISO 8601 (2026-11-30T12:00:00Z) is needed") from None
        return since

    @model_validator(mode="after")
    def _times_for_since(self) -> "TrafficMap":
        if self.since is not None and self.fields.time is None:
            raise ValueError("since needs fields.time: without it no message is older than another")
        return self


class OutcomeFields(Strict):
    """Where a row holds what: the release, the online figure, and optionally how many cases it is a mean of, and when."""

    release: FieldName
    online: FieldName
    cases: FieldName | None = None
    date: FieldName | None = None
    offline: FieldName | None = None


class Offline(Strict):
    """The offline score of each release: a metric of its run. `runs`: patterns of run folders, beside the mapping file."""

    metric: str
    k: int | None = None
    slice: str | None = None
    runs: list[str] = Field(min_length=1)


class OutcomesMap(Strict):
    """The mapping file of `evalkit ingest outcomes`.

    Attributes:
        releases: the log's name of a release → its model digest; without it the log names digests.
    """

    version: Version1
    fields: OutcomeFields
    offline: Offline | None = None
    releases: dict[str, str] = Field(default={})

    @model_validator(mode="after")
    def _one_source(self) -> "OutcomesMap":
        if (self.offline is None) == (self.fields.offline is None):
            raise ValueError("give exactly one of `offline` (runs) and `fields.offline` (a column)")
        return self


_MONTH = re.compile(r"\d{4}-\d{2}")

Row = tuple[str, dict[str, Any]]
"""Where it stands (file:line), and its fields."""


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a CSV file (`.csv`) or of JSON lines, every value as the file has it.

    Raises:
        InputError: file and line of the first problem.
    """
    text = read_text(path)
    if "\0" in text:
        raise InputError(f"{path}: a binary file; JSON lines or CSV text is needed")
    yield from _csv_rows(path, text) if path.suffix.lower() == ".csv" else _json_rows(path, text)


def field_of(row: Row, name: str) -> Any:
    """The field `name` of a row.

    Raises:
        InputError: there is none.
    """
    where, value = row[0], row[1]
    found: Any = value.get(name, value)
    if name not in value:
        for part in name.split("."):
            if not isinstance(found, dict) or part not in found:
                known = ", ".join(sorted(str(key) for key in value)) or "none"
                raise InputError(f"{where}: no field {name!r}; it has: {known:.200}; correct the mapping")
            found = found[part]
    return found


def optional_field(row: Row, name: str) -> Any:
    """The field `name` of a row, or None where it has none; white space alone is an empty text."""
    try:
        value = field_of(row, name)
    except InputError:
        return None
    return value.strip() if isinstance(value, str) else value


def text_of(row: Row, name: str, wanted: str = "a text") -> str:
    """The field `name` as text; `wanted` says in messages what it should hold.

    Raises:
        InputError: there is none, or it's neither a text nor a number.
    """
    value = field_of(row, name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{row[0]}: {name}: {wanted} is needed (got {as_written(value)})")
    return str(value)


def time_from(value: Any, where: str) -> datetime:
    """A time of ISO 8601 (a day, week or month is its beginning), or seconds since 1970; without a zone it is UTC.

    Raises:
        InputError: it is none; begins with `where`.
    """
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        text = str(value).strip()
        found = datetime.fromisoformat(f"{text}-01" if _MONTH.fullmatch(text) else text)
    except (ValueError, OverflowError, OSError):
        raise InputError(
            f"{where}: {as_written(value)} isn't a time; ISO 8601 (2026-11-30T12:00:00Z) is needed"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _json_rows(path: Path, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(
                f"{path}:{number}: broken JSON: {error.msg}; one object a line is needed"
            ) from None
        if not isinstance(value, dict):
            raise InputError(f"{path}:{number}: a JSON object is needed")
        yield f"{path}:{number}", value


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for values in reader:
            if not values:
                line = reader.line_num + 1
                continue
            if header is None:
                header = values
                for name in header:
                    if header.count(name) > 1:
                        raise InputError(f"{path}:{line}: column {name!r} appears twice; keep one")
            elif len(values) != len(header):
                raise InputError(f"{path}:{line}: {len(values)} fields, the header has {len(header)}")
            else:
                yield f"{path}:{line}", dict(zip(header, values, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{line}: broken CSV: {error}; check the quotes") from None
    if header is None:
        raise InputError(f"{path}:1: the file is empty; a header is needed")
