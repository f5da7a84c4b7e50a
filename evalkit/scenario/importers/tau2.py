"""tau2-bench tasks (Sierra Research) → drafts.

A task briefs a model that plays the customer, and scores the tools that the agent calls. A scripted dialogue keeps what
needs neither: the customer's opening (the first line that the briefing quotes, else its wish in the first person), the
identity that the gold actions verify, and each request for a person. Expected are: that the agent asks who is calling
where the gold verifies an identity, that it names the card which the customer then applies for, and that it hands over
where the gold does, and only there. Every other gold action, and every line that waits for a condition, is counted.
The briefing stays in `persona`, for a user that is played by a model.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from evalkit.scenario.importers.drafts import Draft, Facts, Skipped, Unchecked, has_braces, misfit, read_list

_QUOTED = re.compile(r'["“]([^"“”]{15,}?)["”]')
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]")
_WISH = re.compile(
    r"\b(?:you(?:'re| are) (?:looking for|calling|contacting|trying)|you (?:want|need|would like|wish))\b"
    r"|\bwho wants\b",
    re.I,
)
_IDENTITY = {
    "name": "My name is {%s}.",
    "phone_number": "My phone number is {%s}.",
    "email": "My email is {%s}.",
    "date_of_birth": "My date of birth is {%s}.",
    "address": "My address is {%s}.",
}
_ASKS_WHO = r"(?i)\b(?:name|phone|e-?mail|date of birth|birth date|address|verif\w*|identity)\b"
_HANDED_OVER = "I am connecting you to a colleague."
_WHO = "Of course. To verify your identity, please tell me your full name, phone number, email and date of birth."
_REQUEST = "I want to speak with a human agent, please."
_TRANSFER = "transfer_to_human_agents"
_USER_REQUEST = "request_human_agent_transfer"
_APPLY = "apply_for_credit_card"
_VERIFY = "log_verification"


class _Action(TypedDict):
    name: str
    requestor: NotRequired[str | None]
    arguments: dict[str, Any]


class _Criteria(TypedDict):
    actions: NotRequired[list[_Action] | None]
    env_assertions: NotRequired[list[Any] | None]
    nl_assertions: NotRequired[list[Any] | None]
    communicate_info: NotRequired[list[Any] | None]
    reward_basis: NotRequired[list[str] | None]


class _Scenario(TypedDict):
    instructions: str | dict[str, Any]


class _Task(TypedDict):
    id: str
    user_scenario: _Scenario
    evaluation_criteria: _Criteria | None


_SHAPE = TypeAdapter(_Task)


def read_tau2(source: Path) -> Iterator[Draft | Skipped]:
    """Read a `tasks.json`, or that of a domain's folder.

    Raises:
        InputError: no such file, or one that isn't a list of tasks.
    """
    file = source / "tasks.json" if source.is_dir() else source
    for number, task in enumerate(read_list(file, "a list of tasks is needed; is this a tau2-bench domain?")):
        named = isinstance(task, dict) and isinstance(task.get("id"), str)
        where = f"{file.name}: {task['id'] if named else f'task {number + 1}'}"
        problem = misfit(_SHAPE, task)
        if problem is None:
            yield _dialogue(task, where, file.parent.name)
        else:
            yield Skipped(where, f"isn't a tau2 task: {problem}")


def _dialogue(task: _Task, where: str, domain: str) -> Draft | Skipped:
    briefing = _briefing(task["user_scenario"]["instructions"])
    opening, further_lines = _opening(briefing)
    if opening is None:
        return Skipped(where, "the briefing quotes no line and states no wish of the customer")
    if has_braces(opening):
        return Skipped(where, "a text holds {...}, which a dialogue file reads as a fact")
    unchecked = Unchecked({"lines of the customer that wait for a condition": further_lines})
    criteria: _Criteria = task["evaluation_criteria"] or {}
    actions = criteria.get("actions") or []
    transferred = any(action["name"] == _TRANSFER for action in actions)
    requests = sum(action["name"] == _USER_REQUEST for action in actions)
    facts = Facts()
    turns: list[dict[str, Any]] = [{"user": opening, "gold": "How can I help?", "expect": {}}]
    identity = next((action["arguments"] for action in actions if action["name"] == _VERIFY), None)
    if identity is not None:
        turns[0]["gold"] = _WHO
        turns[0]["expect"]["matches"] = [_ASKS_WHO]
        turns.append({"user": _introduction(identity, facts), "gold": "Thank you.", "expect": {}})
    turns += [{"user": _REQUEST, "gold": _HANDED_OVER, "expect": {}} for _ in range(requests)]
    _expect_cards(actions, turns, opening)
    _expect_handover(turns, transferred, first=len(turns) - requests if requests else 0)
    _count_unchecked(actions, criteria, unchecked)
    for turn in turns:
        if not turn["expect"]:
            del turn["expect"]
    content = {
        "id": f"tau2_{domain.removeprefix('tau2_')}_{task['id']}",
        "persona": briefing,
        "facts": facts.values,
        "tags": ["tau2", *(["handover"] if transferred else [])],
        "turns": turns,
        "end_state": {"handed_over": transferred},
    }
    return Draft(where, content, unchecked)


def _briefing(instructions: str | dict[str, Any]) -> str:
    if isinstance(instructions, str):
        return instructions
    parts = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
    return "\n\n".join(str(instructions[part]) for part in parts if instructions.get(part))


def _opening(briefing: str) -> tuple[str | None, int]:
    """What the customer says first, and how many more lines the briefing quotes."""
    quoted = [" ".join(line.split()) for line in _QUOTED.findall(briefing)]
    after = re.search(r"opening", briefing, re.I)
    if after is not None:
        line = _QUOTED.search(briefing, after.end())
        if line is not None:
            return " ".join(line[1].split()), len(quoted) - 1
    if quoted:
        return quoted[0], len(quoted) - 1
    wish = next((found[0] for found in _SENTENCE.finditer(briefing) if _WISH.search(found[0])), None)
    return (None if wish is None else _first_person(wish)), 0


def _first_person(sentence: str) -> str:
    """A briefing's sentence as its reader would say it."""
    sentence = re.sub(r"\s*\([^)]*\)", "", sentence.strip())  # stage directions
    sentence = re.sub(r"^.*?\bwho wants\b", "I want", sentence, flags=re.I)
    for pattern, words in (
        (r"\byou're\b", "I'm"), (r"\byou are\b", "I am"), (r"\byou have\b", "I have"), (r"\byourself\b", "myself"),
        (r"\byours\b", "mine"), (r"\byour\b", "my"), (r"\b(his|her|their)\b", "my"),
        (r"\b(to|for|with|of|by|on|from|tell|give|offer|help) you\b", r"\1 me"), (r"\byou\b", "I"),
    ):  # fmt: skip
        sentence = re.sub(pattern, words, sentence, flags=re.I)
    return sentence[:1].upper() + sentence[1:]


def _introduction(identity: dict[str, Any], facts: Facts) -> str:
    given = [name for name in _IDENTITY if str(identity.get(name) or "").strip()]
    names = {name: facts.name(name, str(identity[name]).strip(), 1) for name in given}
    return " ".join(_IDENTITY[name] % fact for name, fact in names.items()) or "I have told you who I am."


def _expect_cards(actions: list[_Action], turns: list[dict[str, Any]], opening: str) -> None:
    """The card that the customer applies for after the agent's advice; it counts from the last turn."""
    cards = {
        str(action["arguments"].get("card_type") or "")
        for action in actions
        if action["name"] == _APPLY and action.get("requestor") == "user"
    }
    named = sorted(card for card in cards if card and card.casefold() not in opening.casefold())
    if named:
        turns[-1]["expect"]["contains"] = named
        turns[-1]["gold"] = f"{turns[-1]['gold']} I recommend the {' and the '.join(named)}."


def _expect_handover(turns: list[dict[str, Any]], transferred: bool, first: int) -> None:
    for index, turn in enumerate(turns):
        if not transferred or index < first:
            turn["expect"]["handover"] = {"forbidden": True}
    if transferred:
        turns[first]["expect"]["handover"] = {"required": True, "by_turn": len(turns)}
        turns[-1]["gold"] = _HANDED_OVER


def _count_unchecked(actions: list[_Action], criteria: _Criteria, unchecked: Unchecked) -> None:
    for action in actions:
        name, by_user = action["name"], action.get("requestor") == "user"
        if name not in (_TRANSFER, _USER_REQUEST, _VERIFY) and not (name == _APPLY and by_user):
            unchecked["gold actions (tool calls)"] += 1
    unchecked["env assertions"] += len(criteria.get("env_assertions") or [])
    unchecked["nl assertions"] += len(criteria.get("nl_assertions") or [])
    unchecked["facts that the agent must communicate"] += len(criteria.get("communicate_info") or [])
    for basis in criteria.get("reward_basis") or []:
        unchecked[f"scored by {basis}"] += 1
