"""Training and validation data: JSON Lines records, or plain text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from evalkit.chat import Message
from evalkit.errors import InputError
from evalkit.files import read_text

_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Record:
    """One training document: a conversation, or a text.

    Attributes:
        record_id: unique over all files of one list.
        messages: the conversation, empty for a text.
        text: the text, None for a conversation.
    """

    record_id: str
    messages: tuple[Message, ...] = ()
    text: str | None = None

    @property
    def texts(self) -> list[str]:
        """What people wrote in it, without any framing."""
        return [message.content for message in self.messages] if self.text is None else [self.text]


def read_records(paths: list[Path]) -> list[Record]:
    """Read records in the order of the files: `.jsonl` holds one a line, any other file is one text.

    A line is `{"id", "messages": [{"role", "content"}]}` or `{"id", "text"}`.

    Raises:
        InputError: names file and line: broken JSON, a wrong field, a repeated id, an empty file.
    """
    records: list[Record] = []
    seen: dict[str, str] = {}
    for path in paths:
        found = list(_json_lines(path)) if path.suffix == ".jsonl" else list(_plain_text(path))
        if not found:
            raise InputError(f"{path}: the file is empty; at least one record is needed")
        for where, record in found:
            if record.record_id in seen:
                first = seen[record.record_id]
                raise InputError(
                    f"{where}: id {record.record_id!r} was used before at {first}; ids must be unique"
                )
            seen[record.record_id] = where
            records.append(record)
    return records


def _plain_text(path: Path) -> Iterator[tuple[str, Record]]:
    text = read_text(path)
    if "\0" in text:
        raise InputError(f"{path}: a binary file, text or .jsonl is needed")
    if text.strip():
        yield f"{path}:1", Record(record_id=path.name, text=text)


def _json_lines(path: Path) -> Iterator[tuple[str, Record]]:
    # Only "\n" ends a line: str.splitlines would also cut at U+2028 and its like, which JSON strings may hold.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{where}: broken JSON: {error.msg}; one JSON object a line is needed") from None
        yield where, _record(value, where)


def _record(value: Any, where: str) -> Record:
    if not isinstance(value, dict):
        raise InputError(f"{where}: a JSON object is needed, with id and messages or text")
    unknown = sorted(set(value) - {"id", "messages", "text"})
    if unknown:
        raise InputError(f"{where}: {unknown[0]}: unknown key; a record has id and messages or text")
    record_id = value.get("id")
    if not isinstance(record_id, str) or not record_id:
        raise InputError(f"{where}: id: a non-empty string is needed")
    if ("messages" in value) == ("text" in value):
        raise InputError(f"{where}: exactly one of messages and text is needed")
    if "text" in value:
        text = value["text"]
        if not isinstance(text, str) or not text:
            raise InputError(f"{where}: text: a non-empty string is needed")
        return Record(record_id=record_id, text=text)
    messages = value["messages"]
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{where}: messages: a non-empty list is needed")
    return Record(
        record_id=record_id,
        messages=tuple(
            _message(message, f"{where}: messages.{index}") for index, message in enumerate(messages)
        ),
    )


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict) or set(value) != {"role", "content"}:
        raise InputError(f"{where}: an object with exactly role and content is needed")
    if value["role"] not in _ROLES:
        raise InputError(f"{where}.role: {value['role']!r} isn't one of {', '.join(_ROLES)}")
    if not isinstance(value["content"], str) or not value["content"]:
        raise InputError(f"{where}.content: a non-empty string is needed")
    return Message(role=value["role"], content=value["content"])
