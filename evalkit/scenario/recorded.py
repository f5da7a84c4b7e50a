"""Dialogues whose user is a recorded one: the texts of a session, word for word, in place of the turns' texts."""

import re
from pathlib import Path

import orjson

from evalkit.errors import InputError
from evalkit.files import read_text, refuse_streams
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.importers.drafts import template
from evalkit.scenario.matching import stands_apart
from evalkit.scenario.user_schema import RecordedUser


def with_recorded_texts(dialogue: Dialogue, user: RecordedUser, folder: Path) -> Dialogue:
    """The dialogue with what the recorded user said in each turn; facts in it become `{fact}`, so that probes count.

    Args:
        dialogue: as written.
        user: which session of which file.
        folder: of the dialogue file.

    Raises:
        InputError: the file can't be read, or the session has another number of turns.
    """
    said = _session(folder / user.file, user.session)
    if len(said) != len(dialogue.turns):
        raise InputError(
            f"{folder / user.file}: session {user.session!r} has {len(said)} turns, the dialogue "
            f"{len(dialogue.turns)}; give as many"
        )
    turns = []
    for index, (turn, text) in enumerate(zip(dialogue.turns, said, strict=True)):
        values = {dialogue.fact(name, index): name for name in dialogue.facts}
        turns.append(turn.model_copy(update={"user": [_as_template(text, values)]}))
    return dialogue.model_copy(update={"turns": turns})


def _as_template(text: str, values: dict[str, str]) -> str:
    spans: list[tuple[int, int, str]] = []
    # Longest first, and whole words as a reply's are looked for: 12 isn't found in 120.
    for value in sorted(filter(str.strip, values), key=len, reverse=True):
        for match in re.finditer(re.escape(value), text):
            start, end = match.span()
            free = all(end <= since or until <= start for since, until, _ in spans)
            if free and stands_apart(text, start, end, whole_words=True):
                spans.append((start, end, values[value]))
    return template(text, spans)


def _session(path: Path, session: str) -> list[str]:
    refuse_streams(path)  # its digest is taken in a reading of its own
    said = []
    # `splitlines` would also break at characters that may stand in a JSON text (U+2028).
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: broken JSON: {error.msg}") from None
        texts = (row.get("session"), row.get("user_text")) if isinstance(row, dict) else (None, None)
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise InputError(f"{path}:{number}: session and user_text are needed, both texts")
        if texts[0] == session:
            said.append(str(texts[1]))
    return said
