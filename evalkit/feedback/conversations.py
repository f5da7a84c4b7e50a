"""Production conversations as a mapping file describes them: rows grouped by conversation, in order of time."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from evalkit.errors import InputError
from evalkit.feedback.mapping import (
    Row,
    TrafficMap,
    field_of,
    optional_field,
    read_rows,
    text_of,
    time_from,
)

Role = Literal["user", "assistant", "human"]


@dataclass(frozen=True)
class Message:
    """One message of a conversation; `time` is None where the log has none."""

    role: Role
    text: str
    time: datetime | None
    where: str


@dataclass
class Conversation:
    """One conversation, its messages in order.

    Attributes:
        key: the log's id of it, which may be personal itself.
        locale: of its first message.
    """

    key: str
    locale: Literal["en", "zh"]
    messages: list[Message] = field(default_factory=list)


@dataclass
class Log:
    """A whole log.

    Attributes:
        conversations: by id, in the order of the file.
        counts: messages read and left out, by reason, and rows that the mapping's `locale` stood in for.
    """

    conversations: dict[str, Conversation] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


def read_log(path: Path, spec: TrafficMap) -> Log:
    """Read a log.

    Raises:
        InputError: file and line of the first problem: a missing field, an unknown role, a broken time.
    """
    log = Log()
    roles: dict[str, Role] = {}
    for role in ("user", "assistant", "human"):
        roles |= dict.fromkeys(getattr(spec.roles, role), role)
    since = None if spec.since is None else time_from(spec.since, "since")
    for row in read_rows(path):
        key = text_of(row, spec.fields.conversation)
        locale = _locale(row, spec, log.counts)
        for message_row in _message_rows(row, spec):
            log.counts["messages"] += 1
            message = _message(message_row, spec, roles, log.counts)
            if message is None:
                continue
            if since is not None and message.time is not None and message.time < since:
                log.counts["before `since`"] += 1
                continue
            found = log.conversations.setdefault(key, Conversation(key, locale))
            found.messages.append(message)
    if not log.conversations:
        raise InputError(
            f"{path}: no message is left ({_counted(log.counts)}); check roles and since in the mapping"
        )
    for conversation in log.conversations.values():
        # Stable: messages of one time stay as the log has them.
        if all(message.time is not None for message in conversation.messages):
            conversation.messages.sort(key=lambda message: message.time or datetime.min.replace(tzinfo=UTC))
    return log


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{what}: {count}" for what, count in counts.items()) or "the log holds none"


def _message_rows(row: Row, spec: TrafficMap) -> Iterator[Row]:
    if spec.fields.messages is None:
        yield row
        return
    messages = field_of(row, spec.fields.messages)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InputError(f"{row[0]}: {spec.fields.messages}: a list of messages is needed")
    for number, message in enumerate(messages):
        yield f"{row[0]}: {spec.fields.messages}.{number}", message


def _message(row: Row, spec: TrafficMap, roles: dict[str, Role], counts: Counter[str]) -> Message | None:
    name = text_of(row, spec.fields.role)
    if name in spec.roles.ignore:
        counts["of ignored roles"] += 1
        return None
    if name not in roles:
        raise InputError(
            f"{row[0]}: {spec.fields.role}: {name!r} isn't among the mapping's roles; add it (or to ignore)"
        )
    text = " ".join(text_of(row, spec.fields.text).split())
    if not text:
        counts["without words"] += 1
        return None
    time = None
    if spec.fields.time is not None:
        time = time_from(field_of(row, spec.fields.time), f"{row[0]}: {spec.fields.time}")
    return Message(roles[name], text, time, row[0])


def _locale(row: Row, spec: TrafficMap, counts: Counter[str]) -> Literal["en", "zh"]:
    name = spec.fields.locale
    if name is None:
        return spec.locale
    # Only a default that somebody wrote down stands for a row that doesn't tell.
    given = "locale" in spec.model_fields_set
    if given and optional_field(row, name) in (None, ""):
        counts[f"rows without {name}"] += 1
        return spec.locale
    value = text_of(row, name).strip().lower()
    if value.startswith("zh"):
        return "zh"
    if value.startswith("en"):
        return "en"
    advice = "filter the log" if value else "give the mapping a `locale` for such rows"
    raise InputError(f"{row[0]}: {name}: {value!r} is neither en nor zh; {advice}")
