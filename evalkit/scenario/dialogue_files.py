"""Dialogue files read and checked; every problem is named with its line."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.errors import InputError
from evalkit.scenario.dialogue import Dialogue, DialogueFile, Turn, placeholders
from evalkit.yaml_source import FieldPath, YamlSource


@dataclass(frozen=True)
class DialogueSource:
    """A dialogue and where it stands.

    Attributes:
        dialogue: the dialogue.
        path, line: file and first line.
    """

    dialogue: Dialogue
    path: Path
    line: int


def is_dialogue_file(value: dict[str, Any]) -> bool:
    """Whether a YAML mapping looks like a dialogue file."""
    return ("dialogues" in value and isinstance(value["dialogues"], list)) or "turns" in value


def read_dialogue_file(path: Path) -> tuple[DialogueSource, ...]:
    """Read and check one dialogue file.

    Raises:
        InputError: the first problem, with its line.
    """
    source = YamlSource(path)
    several = "dialogues" in source.value
    dialogues = source.parse(DialogueFile).dialogues if several else [source.parse(Dialogue)]
    found = []
    for index, dialogue in enumerate(dialogues):
        field: FieldPath = ("dialogues", index) if several else ()
        _check(dialogue, field, source)
        found.append(DialogueSource(dialogue, path, source.line((*field, "id"))))
    return tuple(found)


def read_dialogues(paths: Sequence[Path]) -> tuple[DialogueSource, ...]:
    """Read dialogue files; dialogues come sorted by id.

    Raises:
        InputError: the first problem, or an id that is used twice.
    """
    seen: dict[str, DialogueSource] = {}
    for path in paths:
        for item in read_dialogue_file(path):
            first = seen.setdefault(item.dialogue.id, item)
            if first is not item:
                there = f"{first.path}:{first.line}"
                raise InputError(
                    f"{path}:{item.line}: id: {item.dialogue.id!r} is used already at {there}; "
                    "give each dialogue its own id"
                )
    return tuple(seen[key] for key in sorted(seen))


def _check(dialogue: Dialogue, field: FieldPath, source: YamlSource) -> None:
    for part, template in _templates(dialogue):
        unknown = sorted(placeholders(template) - set(dialogue.facts))
        if unknown:
            known = ", ".join(sorted(dialogue.facts)) or "none"
            raise source.error(
                (*field, *part), f"unknown fact {{{unknown[0]}}}; the dialogue's facts: {known}"
            )
    for part, pattern in _patterns(dialogue):
        try:
            dialogue.fill_pattern(pattern)
        except re.error as error:
            raise source.error((*field, *part), f"broken regular expression {pattern!r}: {error}") from None
    for index, turn in enumerate(dialogue.turns):
        _check_turn(dialogue, index, turn, (*field, "turns", index), source)
    for index, name in enumerate(dialogue.end_state.stated):
        if name not in dialogue.facts:
            raise source.error(
                (*field, "end_state", "stated", index), f"unknown fact {name!r}; add it to facts"
            )


def _check_turn(dialogue: Dialogue, index: int, turn: Turn, field: FieldPath, source: YamlSource) -> None:
    for number, text in enumerate(turn.user):
        if placeholders(text) != placeholders(turn.user[0]):
            raise source.error(
                (*field, "user", number), "states other facts than the first paraphrase; state the same"
            )
    for number, name in enumerate(turn.expect.recalls):
        where = (*field, "expect", "recalls", number)
        if name not in dialogue.facts:
            raise source.error(where, f"unknown fact {name!r}; add it to facts")
        if dialogue.stated_before(name, index) is None:
            raise source.error(where, f"no user turn up to here states {{{name}}}; a model can't recall it")
    window = dialogue.handover_window
    if window is None:
        return
    first, last = window
    if last < first or last >= len(dialogue.turns):
        span = f"{first + 1} to {len(dialogue.turns)}"
        raise source.error(
            (*field[:-1], first, "expect", "handover", "by_turn"), f"must be a turn from {span}"
        )
    if index > last:
        raise source.error(
            field, f"comes after the hand-over required by turn {last + 1}; the session is over by then"
        )


def _templates(dialogue: Dialogue) -> Iterator[tuple[FieldPath, str]]:
    for index, turn in enumerate(dialogue.turns):
        here: FieldPath = ("turns", index)
        for number, text in enumerate(turn.user):
            yield (*here, "user", number), text
        yield (*here, "gold"), turn.gold
        for name in ("contains", "matches", "forbidden"):
            for number, text in enumerate(getattr(turn.expect, name)):
                yield (*here, "expect", name, number), text
        for name, value in turn.expect.slots.items():
            yield (*here, "expect", "slots", name), str(value)
    for number, text in enumerate(dialogue.order):
        yield ("order", number), text
    for number, rule in enumerate(dialogue.never):
        yield ("never", number), rule.contains or rule.matches or ""


def _patterns(dialogue: Dialogue) -> Iterator[tuple[FieldPath, str]]:
    for index, turn in enumerate(dialogue.turns):
        for number, pattern in enumerate(turn.expect.matches):
            yield ("turns", index, "expect", "matches", number), pattern
    for number, rule in enumerate(dialogue.never):
        if rule.matches is not None:
            yield ("never", number, "matches"), rule.matches
