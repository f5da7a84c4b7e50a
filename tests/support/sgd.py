"""Schema-Guided Dialogue files → texts.jsonl, dialogue files and a scenario: a run on real text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from evalkit.scenario.expectations import states

SCENARIO = """\
version: 1
name: sgd_banks
seed: 11
text:
  data: texts.jsonl
  classes: {counts: candidate, domain: {glossary: terms.txt}}
dialogues:
  include: [dialogues.yaml]
  trials: 1
  max_new_tokens: 12
"""


class _PlainDumper(yaml.SafeDumper):
    """Writes equal objects out instead of pointing at them."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never an alias."""
        return True


def convert(source: Path, out: Path, limit: int) -> Path:
    """Convert the first banking dialogues.

    A user turn becomes a turn, the system's answer its gold. A slot value that the user says becomes a fact;
    where the system confirms it later in the same words, that is a recall probe.

    Args:
        source: folder with train/ and dev/ of the corpus.
        out: folder to create.
        limit: number of dialogues.

    Returns:
        The scenario file.
    """
    out.mkdir(parents=True)
    talks = [talk for _, talk in zip(range(limit), _banking(source), strict=False)]
    texts = [
        {"id": f"{talk['dialogue_id']}-{index}", "text": turn["utterance"], "cluster": talk["dialogue_id"]}
        for talk in talks
        for index, turn in enumerate(talk["turns"])
    ]
    _write(out / "texts.jsonl", "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts))
    dialogues = {"dialogues": [_dialogue(talk) for talk in talks]}
    text = yaml.dump(dialogues, Dumper=_PlainDumper, allow_unicode=True, sort_keys=False)
    _write(out / "dialogues.yaml", text)
    _write(out / "terms.txt", "checking account\nsavings account\nbalance\ntransfer\n")
    _write(out / "scenario.yaml", SCENARIO)
    return out / "scenario.yaml"


def write_training_data(source: Path, out: Path, limit: int) -> None:
    """Conversations of other dialogues than the first `limit`, as training records: train.jsonl, validation.jsonl."""
    out.mkdir(parents=True)
    others = [talk for _, talk in zip(range(limit + 60), _banking(source), strict=False)][limit:]
    records = [
        {
            "id": talk["dialogue_id"],
            "messages": [
                {"role": "user" if turn["speaker"] == "USER" else "assistant", "content": turn["utterance"]}
                for turn in talk["turns"][:4]
            ],
        }
        for talk in others
    ]
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    _write(out / "train.jsonl", "".join(lines[:50]))
    _write(out / "validation.jsonl", "".join(lines[50:]))


def _banking(source: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(source.glob("*/dialogues_*.json")):
        for talk in json.loads(file.read_text(encoding="utf-8")):
            if any(service.startswith("Banks") for service in talk["services"]):
                yield talk


def _dialogue(talk: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, str] = {}
    turns = []
    for user, system in zip(talk["turns"][::2], talk["turns"][1::2], strict=False):
        template = _template(user, facts)
        confirmed = {
            action["slot"]
            for frame in system["frames"]
            for action in frame["actions"]
            if action["act"] in ("CONFIRM", "NOTIFY_SUCCESS")
        }
        said = system["utterance"]
        probes = [
            name
            for name, value in facts.items()
            if name in confirmed and states(said, value, whole_words=True)
        ]
        turn: dict[str, Any] = {"user": template, "gold": said}
        if probes:
            turn["expect"] = {"recalls": probes}
        turns.append(turn)
    return {"id": f"sgd_{talk['dialogue_id']}", "facts": facts, "tags": ["sgd"], "turns": turns}


def _template(turn: dict[str, Any], facts: dict[str, str]) -> str:
    """The user's text with the slot values it states as {slot}; each slot's first value becomes the fact."""
    text: str = turn["utterance"]
    spans = [span for frame in turn["frames"] for span in frame["slots"]]
    for span in sorted(spans, key=lambda item: item["start"], reverse=True):
        value = text[span["start"] : span["exclusive_end"]]
        if facts.setdefault(span["slot"], value) == value:
            text = f"{text[: span['start']]}{{{span['slot']}}}{text[span['exclusive_end'] :]}"
    return text


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
