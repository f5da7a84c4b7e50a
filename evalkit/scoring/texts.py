"""Texts to score: `{"id", "text", "cluster"?, "tags"?}`, one JSON object a line."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from evalkit.canonical import sha256_text
from evalkit.errors import InputError
from evalkit.scoring.jsonl import Line, is_unicode, read_objects, text_field


@dataclass(frozen=True)
class TextItem:
    """One text of the user's data.

    Attributes:
        sample_id: unique in the file.
        text: as it stands.
        cluster: texts of one cluster aren't independent; the id where the data names none.
        tags: usable as slices.
    """

    sample_id: str
    text: str
    cluster: str
    tags: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text."""
        return sha256_text(self.text)


def read_texts(path: Path) -> list[TextItem]:
    """Read a file of texts, in its order.

    Raises:
        InputError: names the line: broken JSON, a missing or unknown field, a repeated id; an empty or binary
        file.
    """
    items: list[TextItem] = []
    seen: dict[str, str] = {}
    for line in read_objects(path, required=("id", "text"), optional=("cluster", "tags")):
        sample_id = text_field(line, "id")
        if sample_id in seen:
            raise InputError(f"{line.where}: id: {sample_id!r} is repeated (first at {seen[sample_id]})")
        seen[sample_id] = line.where
        text = line.content["text"]
        if not isinstance(text, str):
            raise InputError(f"{line.where}: text: a text is needed (got {text!r:.60})")
        cluster = text_field(line, "cluster") if line.content.get("cluster") is not None else sample_id
        items.append(TextItem(sample_id, text, cluster, _tags(line)))
    return items


def unscorable(text: str) -> tuple[Literal["error", "skipped"], str] | None:
    """Status and reason of a text that no model can be asked about, else None."""
    if not text:
        return "skipped", "the text is empty"
    if not is_unicode(text):
        return "error", "the text holds a lone surrogate, so it isn't valid Unicode"
    if "\0" in text:
        return "error", "the text holds a NUL character"
    if text.isspace():
        return "skipped", "the text holds only white space"
    return None


def _tags(line: Line) -> tuple[str, ...]:
    tags = line.content.get("tags")
    if tags is None:
        return ()
    if not isinstance(tags, list) or not all(
        isinstance(tag, str) and tag and is_unicode(tag) for tag in tags
    ):
        raise InputError(f"{line.where}: tags: a list of non-empty texts is needed")
    return tuple(dict.fromkeys(tags))
