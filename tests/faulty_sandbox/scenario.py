"""The scenario that every planted fault meets: texts, dialogues, a baseline, and a rule on the metric meant for each fault."""

import csv
import json
from pathlib import Path
from random import Random
from typing import Any

from tests.faulty_sandbox.few_words import (
    AGENTS,
    NAMES,
    OPENING,
    QUESTIONS,
    WHO_AM_I,
    note,
    write_lines,
)
from tests.sandbox.fixtures import INTENTS

HUMAN = INTENTS["contact_human"]
# No intent greets, so the recogniser is in doubt about each opening: a hand-over takes a high threshold.
FLOW = """\
version: 1
name: few_words
intent: {model: intent.skops, out_of_scope_below: 0.05}
handover:
  intents: [contact_human]
  words: {en: [lawyer]}
  after_failed_turns: 3
  threshold: 0.9
  reply: {en: "I am connecting you to a colleague."}
"""
# The metric that is meant for each fault.
METRIC_OF_FAULT = {
    "window": "dialogue/consistency",
    "template": "dialogue/expectation/contains",
    "prefix": "dialogue/expectation/prompt_tokens",
    "handover": "dialogue/handover_precision",
    "stop": "dialogue/expectation/never",
    "temperature": "dialogue/repeatability",
    "crosstalk": "dialogue/expectation/matches",
}
RULES: list[dict[str, Any]] = [
    {"metric": "perplexity/token", "max": 50},
    {"metric": "perplexity/token", "change": {"max_relative_increase": 0.1}},
    {"metric": "dialogue/pass_hat_k", "k": 1, "min": 0.8},
    *({"metric": metric, "min": 0.75} for metric in dict.fromkeys(METRIC_OF_FAULT.values())),
    {"metric": "latency/turn_overhead", "within_ms": 50, "share": 0.9, "severity": "warn"},
]


def write_flow(folder: Path) -> Path:
    """The flow, fitted to a few texts; returns its folder."""
    from sandbox.business.fit import fit_intent

    flow = folder / "flow"
    flow.mkdir()
    (flow / "flow.yaml").write_text(FLOW, encoding="utf-8")
    with (folder / "intents.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "intent", "locale"])
        writer.writerows((text, intent, "en") for intent, texts in INTENTS.items() for text in texts)
    fit_intent(folder / "intents.csv", flow, rated=False)
    return flow


def write_scenario(folder: Path, candidate: Path, baseline: Path, flow: Path) -> Path:
    """Texts, dialogues, baseline and policy; returns the scenario."""
    random = Random(12)
    write_lines(folder / "texts.jsonl", [{"id": f"t{row}", "text": note(random)} for row in range(40)])
    (folder / "talk.yaml").write_text(json.dumps({"dialogues": dialogues()}), encoding="utf-8")
    content = {
        "version": 1,
        "name": "few_words",
        "seed": 5,
        "model": {"bundle": str(candidate)},
        "baseline": {"bundle": str(baseline)},
        "flow": str(flow),
        "text": {"data": "texts.jsonl"},
        "dialogues": {"include": ["talk.yaml"], "trials": 2, "max_new_tokens": 16, "concurrency": 4},
        "gate": {"rules": RULES},
    }
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def dialogues() -> list[dict[str, Any]]:
    """Talks in five turns that end with a question for the name, and calls for a human."""
    found = []
    for number, name in enumerate(NAMES):
        # The reply to it names no other customer.
        nobody_else = rf"^(?!.*\b({'|'.join(other for other in NAMES if other != name)})\b)"
        who = {"recalls": ["name"], "matches": [nobody_else]}
        turns = [_opening(), *(_question(number + place) for place in range(3))]
        found.append(_dialogue("talk", name, [*turns, _turn(WHO_AM_I, "you are {name}", who)]))
    for number, name in enumerate(NAMES[:16]):
        needed = {"handover": {"required": True}}
        human = _turn(HUMAN[number % len(HUMAN)], "I am connecting you to a colleague.", needed)
        found.append(_dialogue("human", name, [_opening(), _question(number), human]))
    return found


def _dialogue(kind: str, name: str, turns: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": f"{kind}_{name}", "facts": {"name": name}, "turns": turns, "never": ["<|end|>"]}


def _opening() -> dict[str, Any]:
    return _turn(OPENING, f"hello, I am {AGENTS[0]}", {"contains": ["hello"]})


def _question(number: int) -> dict[str, Any]:
    user, reply = list(QUESTIONS.items())[number % len(QUESTIONS)]
    return _turn(user, reply, {"contains": [reply]})


def _turn(user: str, gold: str, expect: dict[str, Any]) -> dict[str, Any]:
    return {"user": user, "gold": gold, "expect": {"handover": {"forbidden": True}, **expect}}
