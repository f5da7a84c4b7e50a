"""Cleaning: what is wrong with a record's text, what is done about it, and how often."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ftfy import TextFixerConfig, fix_encoding

from evalkit.chat import Message
from evalkit.errors import InputError
from trainer.configuration.data import CleaningConfig
from trainer.data.corpus import Record
from trainer.data.duplicates import NearDuplicates, content_digest

# Only repairs that lose nothing: sequences with bytes missing stay as they are.
_MOJIBAKE = TextFixerConfig(explain=False, replace_lossy_sequences=False)
_INVALID = re.compile("[\ud800-\udfff\ufffd]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# These separate lines; without them words would run together.
_LINE_BREAKS = {"\x0b", "\x0c", "\x85"}
_SURROGATE = re.compile("[\ud800-\udfff]")


def fix_mojibake(text: str) -> str:
    """Text with UTF-8 that was read in a one-byte encoding read as UTF-8 again; other text unchanged."""
    if text.isascii():
        return text
    # A line at a time: a faulty line is recognised by what all of its characters have in common.
    return "\n".join(fix_encoding(line, _MOJIBAKE) for line in text.split("\n"))


def fix_invalid_unicode(text: str) -> str:
    """Text without lone surrogates and U+FFFD."""
    return _INVALID.sub("", text)


def fix_control_characters(text: str) -> str:
    """Text without control characters but tab, line feed and carriage return."""
    return _CONTROL.sub(lambda match: "\n" if match[0] in _LINE_BREAKS else "", text)


# In this order: mojibake is full of control characters, which its repair needs.
_TEXT_RULES = (
    ("mojibake", fix_mojibake),
    ("invalid_unicode", fix_invalid_unicode),
    ("control_characters", fix_control_characters),
)


class Cleaner:
    """Applies the rules to a stream of records and counts."""

    def __init__(self, rules: CleaningConfig, *, duplicates: bool) -> None:
        """Set up the rules.

        Args:
            rules: what to do.
            duplicates: also apply the rules about duplicates; a validation set is measured as it stands.
        """
        actions: dict[str, str] = rules.model_dump(exclude={"near_duplicate_threshold"})
        if not duplicates:
            actions |= {"exact_duplicates": "skip", "near_duplicates": "skip"}
        self._actions = actions | {"empty": "drop"}
        self._near = NearDuplicates(rules.near_duplicate_threshold)
        self._met: Counter[str] = Counter()
        self._read = self._kept = 0
        self.digests: set[bytes] = set()
        """Content digests of the records that the rules about duplicates saw."""

    def clean(self, records: Iterable[Record]) -> Iterator[Record]:
        """Records as they are to be learnt, in their order.

        Raises:
            InputError: a record holds a lone surrogate and the rules leave it there.
        """
        for record in records:
            self._read += 1
            cleaned = self._texts(record)
            if cleaned is None or self._is_duplicate(cleaned):
                continue
            self._kept += 1
            yield cleaned

    def facts(self) -> dict[str, Any]:
        """What was met so far, as JSON: records read and kept, and by rule what was done about how many.

        A record that one rule dropped isn't shown to the rules after it. `empty` are records of which the repairs left
        no text, or one of whose messages is without text.
        """
        rules = {
            rule: {"action": action, "records": self._met[rule]}
            for rule, action in self._actions.items()
            if action != "skip"
        }
        return {"records_read": self._read, "records_kept": self._kept, "rules": rules}

    def _texts(self, record: Record) -> Record | None:
        for rule, fix in _TEXT_RULES:
            action = self._actions[rule]
            if action == "skip":
                continue
            texts = record.texts
            fixed = [fix(text) for text in texts]
            if fixed == texts:
                continue
            self._met[rule] += 1
            if action == "drop":
                return None
            if action == "fix":
                record = _with_texts(record, fixed)
        if not all(text.strip() for text in record.texts):
            self._met["empty"] += 1
            return None
        if any(_SURROGATE.search(text) for text in record.texts):
            raise InputError(
                f"{record.where}: holds a lone surrogate, which no tokenizer takes; "
                "set data.clean.invalid_unicode to fix or drop"
            )
        return record

    def _is_duplicate(self, record: Record) -> bool:
        digest = content_digest(record)
        exact, near = self._actions["exact_duplicates"], self._actions["near_duplicates"]
        seen = digest in self.digests
        self.digests.add(digest)
        if seen and exact != "skip":
            self._met["exact_duplicates"] += 1
            if exact == "drop":
                return True
        if near != "skip" and not seen and self._near.met("\n".join(record.texts)):
            self._met["near_duplicates"] += 1
            return near == "drop"
        return False


def _with_texts(record: Record, texts: list[str]) -> Record:
    if record.text is not None:
        return replace(record, text=texts[0])
    messages = (Message(message.role, text) for message, text in zip(record.messages, texts, strict=True))
    return replace(record, messages=tuple(messages))


def describe(what: str, facts: dict[str, Any]) -> str:
    """One line about `Cleaner.facts`, for the person at the terminal."""
    done = {"fix": "mended", "drop": "dropped", "count": "left in"}
    found = [
        f"{rule.replace('_', ' ')}: {entry['records']} {done[entry['action']]}"
        for rule, entry in facts["rules"].items()
        if entry["records"]
    ]
    rest = "; ".join(found) or "nothing to clean"
    return f"{what}: {facts['records_kept']} of {facts['records_read']} records kept ({rest})"
