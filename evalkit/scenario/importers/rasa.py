"""Rasa test stories and end-to-end test cases → drafts.

`stories` (Rasa's test stories) and `test_cases` (its end-to-end tests) are read from one file, or from every YAML file
under a folder; the `responses` of the domain among them give the words of an utterance. A `user` step begins a turn.
An annotated entity `[Anna](recipient)` becomes a fact, an intent is expected of the flow, and a bot's step gives the
gold reply and is expected: one of the response's texts, a slot in it standing for the fact or for any words. An action
whose name speaks of a hand-over requires one. What can't be seen in a reply (slots, forms, custom actions) is counted.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalkit.errors import InputError, as_written
from evalkit.scenario.importers.drafts import Draft, Facts, Skipped, Unchecked, fact_name, template
from evalkit.yaml_source import YamlSource

_ENTITY = re.compile(r"\[(?P<value>[^\]]+)\](?:\((?P<name>[^)]+)\)|(?P<json>\{[^}]*\}))")
_SLOT = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HANDOVER = re.compile(r"hand_?(?:off|over)|human|live_agent|escalat", re.I)
_PASSIVE = (
    "action_listen",
    "action_restart",
    "action_session_start",
    "action_default_fallback",
    "action_unlikely_intent",
)
_HANDED_OVER = "I am connecting you to a colleague."
_CHINESE = re.compile(r"[\u3400-\u9fff]")


def read_rasa(source: Path) -> Iterator[Draft | Skipped]:
    """Read a test file, or every `.yml` and `.yaml` under a folder (tests, and the domain with its responses).

    Raises:
        InputError: broken YAML, or no test story in it.
    """
    files = [source] if source.is_file() else sorted([*source.rglob("*.yml"), *source.rglob("*.yaml")])
    sources = [YamlSource(file) for file in files]
    if not any(key in item.value for item in sources for key in ("stories", "test_cases")):
        raise InputError(
            f"{source}: no stories and no test_cases; give a Rasa test file or a folder with some"
        )
    responses = _responses(sources)
    for item in sources:
        for key, title in (("stories", "story"), ("test_cases", "test_case")):
            stories = item.value.get(key) or []
            if not isinstance(stories, list):
                raise item.error((key,), "a list is needed; is this a Rasa test file?")
            for number, story in enumerate(stories):
                name = str(story.get(title) or "") if isinstance(story, dict) else ""
                where = f"{item.path.name}:{item.line((key, number))}: {name or f'{title} {number + 1}'}"
                try:
                    yield _Story(where, responses).read(name, story)
                except NotConvertibleError as problem:
                    yield Skipped(where, str(problem))


class NotConvertibleError(Exception):
    """Why a story has no counterpart."""


def _responses(sources: list[YamlSource]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in sources:
        responses = item.value.get("responses") or {}
        if not isinstance(responses, dict):
            raise item.error(("responses",), "a mapping of utterances to texts is needed")
        for name, variants in responses.items():
            if not isinstance(variants, list | None):
                raise item.error(("responses", str(name)), "a list of texts is needed")
            texts = found.setdefault(str(name), [])
            for number, one in enumerate(variants or []):
                text = one.get("text") if isinstance(one, dict) else None
                if text is not None and not _is_text(text):
                    field = ("responses", str(name), number, "text")
                    raise item.error(field, f"a text is needed (got {as_written(text)}); put it in quotes")
                texts += [str(text)] if text else []
    return found


@dataclass
class _Turn:
    user: str
    gold: list[str] = field(default_factory=list)
    expect: dict[str, Any] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        turn: dict[str, Any] = {"user": self.user, "gold": " ".join(self.gold) or "I see, I will do that."}
        return turn | ({"expect": self.expect} if self.expect else {})


class _Story:
    """One story on its way to a dialogue."""

    def __init__(self, where: str, responses: Mapping[str, list[str]]) -> None:
        self.where = where
        self._responses = responses
        self._seen = Unchecked()
        self._facts = Facts()
        self._turns: list[_Turn] = []
        self._handed_over = False

    def read(self, name: str, story: Any) -> Draft:
        if not isinstance(story, dict) or not isinstance(story.get("steps"), list) or not name.strip():
            raise NotConvertibleError("a name and a list of steps are needed")
        for step in story["steps"]:
            self._step(step)
        if not self._turns:
            raise NotConvertibleError("the user says nothing in it")
        for turn in self._turns[:-1] if self._handed_over else self._turns:
            turn.expect.setdefault("handover", {"forbidden": True})
        turns = [turn.content() for turn in self._turns]
        texts = " ".join(turn.user for turn in self._turns)
        content = {
            "id": "rasa_" + (re.sub(r"[\s/\\]+", "_", name.strip())),
            "locale": "zh" if _CHINESE.search(texts) else "en",
            "facts": self._facts.values,
            "tags": ["rasa"],
            "turns": turns,
        }
        return Draft(self.where, content, self._seen)

    def _step(self, step: Any) -> None:
        if not isinstance(step, dict) or not step:
            raise NotConvertibleError(f"a step is {as_written(step)}, a mapping is needed")
        for key in ("checkpoint", "or"):
            if key in step:
                raise NotConvertibleError(f"a step with `{key}` stands for several stories; write them out")
        if self._handed_over and ("user" in step or "intent" in step):
            raise NotConvertibleError("goes on after its hand-over; a session ends there")
        if "user" in step:
            self._user(
                _words(step, "user"), _words(step, "intent") if step.get("intent") is not None else None
            )
        elif "intent" in step:
            raise NotConvertibleError("a user step has an intent but no words; test stories need `user: |`")
        elif "action" in step or "utter" in step:
            self._action(_words(step, "action" if "action" in step else "utter"))
        elif "bot" in step:
            self._said([_words(step, "bot")], "bot step before the user's first words")
        else:
            kind = next(iter(step))
            self._seen[f"steps of kind {kind}"] += 1
            return
        for kind in ("assertions", "metadata", "entities"):
            if kind in step:
                self._seen[f"{kind} of a step"] += 1

    def _user(self, text: str, intent: str | None) -> None:
        index, plain, spans = len(self._turns), "", []
        position = 0
        for match in _ENTITY.finditer(text):
            plain += text[position : match.start()]
            start = len(plain)
            plain += match["value"]
            name = self._facts.name(_entity_name(match), match["value"], index)
            spans.append((start, len(plain), name))
            position = match.end()
        plain += text[position:]
        if _SLOT.search(plain):
            raise NotConvertibleError("a user's words hold {...}, which a dialogue file reads as a fact")
        lead = len(plain) - len(plain.lstrip())
        spans = [(start - lead, end - lead, name) for start, end, name in spans]
        turn = _Turn(template(plain.strip(), spans))
        if not turn.user:
            raise NotConvertibleError("a user step without words")
        if intent is not None:
            turn.expect["intent"] = intent
        self._turns.append(turn)

    def _action(self, name: str) -> None:
        if name in _PASSIVE:
            return
        if _HANDOVER.search(name):
            if not self._turns:
                raise NotConvertibleError("hands over before the user's first words")
            self._turns[-1].expect["handover"] = {"required": True}
            self._turns[-1].gold = [_HANDED_OVER]
            self._handed_over = True
        elif self._responses.get(name):
            self._said(self._responses[name], f"action {name} before the user's first words")
        elif name.startswith("utter_"):
            self._seen[f"{name}: no such text in the domain"] += 1
        else:
            self._seen["custom actions and forms"] += 1

    def _said(self, variants: list[str], early: str) -> None:
        """The bot says one of several texts."""
        if not self._turns:
            self._seen[early] += 1
            return
        if self._handed_over:
            self._seen["words of the bot after its hand-over"] += 1
            return
        turn = self._turns[-1]
        known = self._facts.values
        turn.gold.append(_SLOT.sub(lambda m: m[0] if m[1] in known else m[1], variants[0]))
        if len(variants) == 1 and all(name in known for name in _SLOT.findall(variants[0])):
            turn.expect.setdefault("contains", []).append(variants[0])
            return
        pattern = "|".join(_pattern(variant, known) for variant in variants)
        turn.expect.setdefault("matches", []).append(f"(?is)(?:{pattern})")


def _words(step: dict[str, Any], key: str) -> str:
    """What a step says."""
    value = step[key]
    if not _is_text(value):
        raise NotConvertibleError(
            f"`{key}` of a step is {as_written(value)}, a text is needed; put it in quotes"
        )
    return str(value)


def _is_text(value: Any) -> bool:
    """Whether a value is a text. A whole number needn't be quoted; of others YAML keeps another form than was written."""
    return isinstance(value, str | int) and not isinstance(value, bool)


def _pattern(text: str, known: Mapping[str, str]) -> str:
    """A response's text as a regular expression: slots stand for the fact, or for any words where none is known."""
    parts = re.split(r"(\{[A-Za-z_][A-Za-z0-9_]*\})", text)
    return "".join(
        part
        if part[1:-1] in known and part.startswith("{")
        else ".+"
        if _SLOT.fullmatch(part)
        else re.escape(part)
        for part in parts
    )


def _entity_name(match: re.Match[str]) -> str:
    if match["name"]:
        return fact_name(match["name"].partition(":")[0])
    try:
        described = json.loads(match["json"])
        return fact_name(str(described["entity"]))
    except (json.JSONDecodeError, KeyError, TypeError):
        raise NotConvertibleError(f"can't read the entity {match[0]!r}") from None
