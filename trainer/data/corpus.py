"""Training and validation data: JSON Lines records, or plain text, read one record at a time."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from evalkit.chat import Message
from evalkit.errors import InputError

_ROLES = ("system", "user", "assistant")
# A longer plain text becomes several documents, so that none has to be in memory as a whole.
TEXT_BLOCK_BYTES = 4 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Record:
    """One training document: a conversation, or a text.

    Attributes:
        record_id: unique over all files of one list.
        messages: the conversation, empty for a text.
        text: the text, None for a conversation.
        where: file:line, for messages.
    """

    record_id: str
    messages: tuple[Message, ...] = ()
    text: str | None = None
    where: str = field(default="", compare=False)

    @property
    def texts(self) -> list[str]:
        """What people wrote in it, without any framing."""
        return [message.content for message in self.messages] if self.text is None else [self.text]


def read_records(paths: Iterable[Path]) -> Iterator[Record]:
    """Read records in the order of the files: `.jsonl` holds one a line, any other file is plain text.

    A line is `{"id", "messages": [{"role", "content"}]}` or `{"id", "text"}`. A plain text is one record with the
    file's name as its id; above 4 MiB it is cut at line ends into records `name`, `name#2`, ...

    Raises:
        InputError: names file and line: broken JSON, a wrong field, a repeated id, an empty file.
    """
    # A digest an id: memory grows with the number of records, not with their texts.
    seen: dict[bytes, tuple[Path, int]] = {}
    for path in paths:
        records = _json_lines(path) if path.suffix == ".jsonl" else _plain_text(path)
        empty = True
        for line, record in records:
            empty = False
            digest = blake2b(record.record_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if digest in seen:
                first = "{}:{}".format(*seen[digest])
                raise InputError(
                    f"{record.where}: id {record.record_id!r} was used before at {first}; ids must be unique"
                )
            seen[digest] = (path, line)
            yield record
        if empty:
            raise InputError(f"{path}: the file is empty; at least one record is needed")


def check_readable(path: Path) -> None:
    """Raise what reading would raise.

    Raises:
        InputError: the file is missing, a folder, or unreadable.
    """
    try:
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, a file is needed") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    # Only "\n" ends a line: str.splitlines would also cut at U+2028 and its like, which JSON strings may hold.
    check_readable(path)
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            yield number, line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line


def _decode(line: bytes, where: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 text (byte {error.start} of the line); convert the file to UTF-8"
        ) from None


def _plain_text(path: Path) -> Iterator[tuple[int, Record]]:
    block: list[str] = []
    size, first, count = 0, 1, 0
    for number, line in _lines(path):
        if b"\0" in line:
            raise InputError(f"{path}:{number}: a binary file, text or .jsonl is needed")
        if size and size + len(line) > TEXT_BLOCK_BYTES:
            count += 1
            yield first, _block(path, block, first, count)
            block, size, first = [], 0, number
        block.append(_decode(line, f"{path}:{number}"))
        size += len(line)
    if any(text.strip() for text in block):
        yield first, _block(path, block, first, count + 1)


def _block(path: Path, lines: list[str], first: int, number: int) -> Record:
    record_id = path.name if number == 1 else f"{path.name}#{number}"
    return Record(record_id, text="".join(lines), where=f"{path}:{first}")


def _json_lines(path: Path) -> Iterator[tuple[int, Record]]:
    for number, line in _lines(path):
        if line.strip():
            where = f"{path}:{number}"
            yield number, _record(_json(line, where), where)


def _json(line: bytes, where: str) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        problem = error.msg
    text = _decode(line, where)
    # orjson refuses lone surrogates, which cleaning has a rule for; the standard library reads them.
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: broken JSON: {problem}; one JSON object a line is needed") from None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _record(value: Any, where: str) -> Record:
    if not isinstance(value, dict):
        raise InputError(f"{where}: a JSON object is needed, with id and messages or text")
    unknown = sorted(set(value) - {"id", "messages", "text"})
    if unknown:
        raise InputError(f"{where}: {unknown[0]}: unknown key; a record has id and messages or text")
    record_id = value.get("id")
    if not isinstance(record_id, str) or not record_id:
        raise InputError(f"{where}: id: a non-empty string is needed")
    if not _is_valid(record_id):
        raise InputError(f"{where}: id: holds a lone surrogate; give a valid text")
    if ("messages" in value) == ("text" in value):
        raise InputError(f"{where}: exactly one of messages and text is needed")
    if "text" in value:
        text = value["text"]
        if not isinstance(text, str) or not text:
            raise InputError(f"{where}: text: a non-empty string is needed")
        return Record(record_id, text=text, where=where)
    messages = value["messages"]
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{where}: messages: a non-empty list is needed")
    return Record(
        record_id,
        tuple(_message(message, f"{where}: messages.{index}") for index, message in enumerate(messages)),
        where=where,
    )


def _is_valid(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict) or set(value) != {"role", "content"}:
        raise InputError(f"{where}: an object with exactly role and content is needed")
    if value["role"] not in _ROLES:
        raise InputError(f"{where}.role: {value['role']!r} isn't one of {', '.join(_ROLES)}")
    if not isinstance(value["content"], str) or not value["content"]:
        raise InputError(f"{where}.content: a non-empty string is needed")
    return Message(role=value["role"], content=value["content"])
