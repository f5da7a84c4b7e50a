"""Dialogue files read and checked; every problem is named with its line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.errors import InputError
from evalkit.scenario.dialogue import Dialogue, DialogueFile, Turn, placeholders
from evalkit.scenario.patterns import BrokenPatternError, SlowPatternError
from evalkit.scenario.recorded import with_recorded_texts
from evalkit.scenario.user_schema import RecordedUser, RuleUser
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
        if isinstance(dialogue.user, RecordedUser):
            try:
                dialogue = with_recorded_texts(dialogue, dialogue.user, path.parent)
            except InputError as error:
                raise source.error((*field, "user", "file"), str(error)) from None
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


def recorded_files(sources: Sequence[DialogueSource]) -> tuple[Path, ...]:
    """Files that the dialogues' recorded users come from."""
    users = [(item.path.parent, item.dialogue.user) for item in sources]
    return tuple(
        sorted({(folder / user.file).resolve() for folder, user in users if isinstance(user, RecordedUser)})
    )


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
            compiled = dialogue.fill_pattern(pattern)
            compiled.check_speed(dialogue.fill(turn.gold) for turn in dialogue.turns)
        except BrokenPatternError as error:
            raise source.error((*field, *part), f"broken regular expression {pattern!r}: {error}") from None
        except SlowPatternError as error:
            raise source.error((*field, *part), str(error)) from None
        if part[0] == "ledger" and compiled.groups != 1:
            raise source.error(
                (*field, *part), f"{compiled.groups} groups; exactly one is needed, around the value"
            )
    for index, turn in enumerate(dialogue.turns):
        _check_turn(dialogue, index, turn, (*field, "turns", index), source)
    if isinstance(dialogue.user, RuleUser):
        _check_rules(dialogue, dialogue.user, (*field, "user"), source)
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
        if text in turn.user[:number]:
            # It would pass for a source of variation.
            raise source.error((*field, "user", number), "stands there already; write another paraphrase")
    for name in turn.revises:
        if name not in dialogue.facts:
            raise source.error((*field, "revises", name), f"unknown fact {name!r}; add it to facts")
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


def _check_rules(dialogue: Dialogue, user: RuleUser, field: FieldPath, source: YamlSource) -> None:
    for index, name in enumerate(user.corrects):
        if name not in dialogue.facts or name not in dialogue.ledger:
            raise source.error(
                (*field, "corrects", index), f"{name!r} must stand in facts and, to be heard, in ledger"
            )
    for index, change in enumerate(user.changes_mind):
        here = (*field, "changes_mind", index)
        if change.fact not in dialogue.facts:
            raise source.error((*here, "fact"), f"unknown fact {change.fact!r}; add it to facts")
        if change.turn > len(dialogue.turns):
            raise source.error((*here, "turn"), f"the dialogue has {len(dialogue.turns)} turns")
        if change.fact not in placeholders(change.say):
            raise source.error((*here, "say"), f"must state the new value, {{{change.fact}}}")


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
    if isinstance(dialogue.user, RuleUser):
        yield from _rule_templates(dialogue.user)
    for number, text in enumerate(dialogue.order):
        yield ("order", number), text
    for number, rule in enumerate(dialogue.never):
        yield ("never", number), rule.contains or rule.matches or ""


def _rule_templates(user: RuleUser) -> Iterator[tuple[FieldPath, str]]:
    for number, answer in enumerate(user.answers):
        yield ("user", "answers", number, "say"), answer.say
    for number, change in enumerate(user.changes_mind):
        yield ("user", "changes_mind", number, "say"), change.say
    for number, text in enumerate(user.digresses.texts if user.digresses is not None else ()):
        yield ("user", "digresses", "texts", number), text


def _patterns(dialogue: Dialogue) -> Iterator[tuple[FieldPath, str]]:
    for index, turn in enumerate(dialogue.turns):
        for number, pattern in enumerate(turn.expect.matches):
            yield ("turns", index, "expect", "matches", number), pattern
    for number, rule in enumerate(dialogue.never):
        if rule.matches is not None:
            yield ("never", number, "matches"), rule.matches
    for name, pattern in dialogue.ledger.items():
        yield ("ledger", name), pattern
    if isinstance(dialogue.user, RuleUser):
        for number, answer in enumerate(dialogue.user.answers):
            yield ("user", "answers", number, "asks"), answer.asks
