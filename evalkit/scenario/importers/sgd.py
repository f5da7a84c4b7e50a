"""Schema-Guided Dialogue (DSTC8, Google Research) → drafts.

A pair of user and system turns becomes a turn, the system's words its gold reply. A slot value that the user says
becomes a fact. Where the system's acts name a slot whose fact the user stated, and its words hold the value, the model
must recall it. What the system takes from a service can't be known by a model without that service: it is counted.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from evalkit.errors import InputError
from evalkit.scenario.expectations import states
from evalkit.scenario.importers.drafts import (
    Draft,
    Facts,
    Skipped,
    Unchecked,
    fact_name,
    has_braces,
    misfit,
    read_list,
    template,
)


class _Slot(TypedDict):
    slot: str
    start: int
    exclusive_end: int


class _Action(TypedDict):
    act: str
    slot: str
    values: list[str]


class _Frame(TypedDict):
    slots: list[_Slot]
    actions: list[_Action]


class _Turn(TypedDict):
    speaker: str
    utterance: str
    frames: list[_Frame]


class _Talk(TypedDict):
    dialogue_id: str
    services: list[str]
    turns: list[_Turn]


_SHAPE = TypeAdapter(_Talk)


def read_sgd(source: Path) -> Iterator[Draft | Skipped]:
    """Read a `dialogues_*.json` file, or all of them under a folder.

    Raises:
        InputError: no such file under the folder, or one that isn't a list of SGD dialogues.
    """
    files = [source] if source.is_file() else sorted(source.rglob("dialogues_*.json"))
    if not files:
        raise InputError(f"{source}: no dialogues_*.json file; give a file or folder of the SGD corpus")
    for file in files:
        for number, talk in enumerate(read_list(file, "a list of dialogues is needed; is this an SGD file?")):
            named = isinstance(talk, dict) and isinstance(talk.get("dialogue_id"), str)
            where = f"{file.name}: {talk['dialogue_id'] if named else f'dialogue {number + 1}'}"
            problem = misfit(_SHAPE, talk)
            if problem is None:
                yield _dialogue(talk, where)
            else:
                yield Skipped(where, f"isn't an SGD dialogue: {problem}")


def _dialogue(talk: _Talk, where: str) -> Draft | Skipped:
    turns = talk["turns"]
    speakers = [turn["speaker"] for turn in turns]
    if speakers != ["USER", "SYSTEM"] * (len(turns) // 2) or not turns:
        return Skipped(where, "user and system don't take turns")
    if has_braces(*(turn["utterance"] for turn in turns)):
        return Skipped(where, "a text holds {...}, which a dialogue file reads as a fact")
    if not all(turn["utterance"].strip() for turn in turns):
        return Skipped(where, "a turn without words")
    facts, unchecked = Facts(), Unchecked()
    converted = []
    for index, (user, system) in enumerate(zip(turns[::2], turns[1::2], strict=True)):
        text = _user_text(user, index, facts)
        turn: dict[str, Any] = {"user": text, "gold": system["utterance"]}
        recalls = _recalls(system, facts, unchecked)
        if recalls:
            turn["expect"] = {"recalls": recalls}
        converted.append(turn)
        unchecked["intents (they are the corpus's, not those of a flow)"] += sum(
            action["act"] == "INFORM_INTENT" for frame in user["frames"] for action in frame["actions"]
        )
    content = {
        "id": f"sgd_{talk['dialogue_id']}",
        "facts": facts.values,
        "tags": ["sgd", *sorted(talk["services"])],
        "turns": converted,
    }
    return Draft(where, content, unchecked)


def _user_text(turn: _Turn, index: int, facts: Facts) -> str:
    """The user's words with the slot values they state as {slot}."""
    text = turn["utterance"]
    spans = []
    for frame in turn["frames"]:
        for slot in frame["slots"]:
            start, end = slot["start"], slot["exclusive_end"]
            value = text[start:end]
            if not value.strip() or value != value.strip():
                continue
            spans.append((start, end, facts.name(fact_name(slot["slot"]), value, index)))
    return template(text, spans)


def _recalls(system: _Turn, facts: Facts, unchecked: Unchecked) -> list[str]:
    said = system["utterance"]
    named = {
        (fact_name(action["slot"]), value)
        for frame in system["frames"]
        for action in frame["actions"]
        if action["slot"]
        for value in action["values"]
        if value
    }
    found = []
    for slot, value in sorted(named):
        matching = [
            name
            for name, stated in facts.values.items()
            if name == slot or name.startswith(f"{slot}_")
            if stated.casefold() == value.casefold() and states(said, stated, whole_words=True)
        ]
        if matching:
            found += [name for name in matching if name not in found]
        elif any(stated.casefold() == value.casefold() for stated in facts.values.values()):
            unchecked["values of the user that the system words differently"] += 1
        else:
            unchecked["values that the system takes from a service"] += 1
    return found
