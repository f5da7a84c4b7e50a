"""Dialogues and turn records for tests, written short."""

from typing import Any

from evalkit.metrics.context import DialogueSetup
from evalkit.runs.records import ExpectationResult, TurnRecord
from evalkit.scenario.dialogue import Dialogue

RECALL: dict[str, Any] = {
    "id": "recall_en_001",
    "locale": "en",
    "facts": {"name": "Maria", "amount": 250},
    "tags": ["multi_turn"],
    "turns": [
        {"user": "Hello, I am {name}.", "gold": "Hello {name}.", "expect": {"contains": ["hello"]}},
        {
            "user": ["Please send {amount} euros.", "Transfer {amount} euros."],
            "gold": "I send {amount} euros.",
        },
        {
            "user": "Who am I and what do I send?",
            "gold": "You are {name}, you send {amount} euros.",
            "expect": {"recalls": ["name", "amount"]},
        },
    ],
}

HANDOVER: dict[str, Any] = {
    "id": "handover_en_001",
    "tags": ["handover"],
    "turns": [
        {"user": "My card is lost.", "gold": "I block it.", "expect": {"contains": ["block"]}},
        {
            "user": "I want a human.",
            "gold": "A colleague takes over.",
            "expect": {"handover": {"required": True, "by_turn": 3}},
        },
        {
            "user": "A human, please!",
            "gold": "A colleague takes over.",
            "expect": {"contains": ["colleague"]},
        },
    ],
}


def dialogue(content: dict[str, Any], **changes: Any) -> Dialogue:
    """A dialogue from its file content."""
    return Dialogue.model_validate({**content, **changes})


def turn(dialogue_id: str = "d", trial: int = 0, turn_index: int = 0, **changes: Any) -> TurnRecord:
    """A turn that passed, with `changes`; `passed=False` makes an expectation fail."""
    passed = changes.pop("passed", True)
    values: dict[str, Any] = {
        "dialogue_id": dialogue_id,
        "trial": trial,
        "turn_index": turn_index,
        "turn_id": f"{dialogue_id}-{trial}-{turn_index}",
        "dialogue_turns": 1,
        "status": "ok",
        "reason": None,
        "user_text": f"hello {trial}",
        "text": "hi",
        "token_ids": [1],
        "finish_reason": "END",
        "expectations": [ExpectationResult("contains", "hi", "hi" if passed else None, passed)],
        "probe_distance": [],
        "locale": "en",
        "tags": [],
        "intent": None,
        "intent_expected": None,
        "handover": False,
        "handover_expected": False,
        "satisfaction": None,
        "prompt_tokens": 10,
        "reused_tokens": 0,
        "generated_tokens": 3,
        "first_token_ns": 2_000_000,
        "turn_overhead_ns": 1_000_000,
        "total_ns": 6_000_000,
    }
    return TurnRecord(**{**values, **changes})


def lost_turn(dialogue_id: str, trial: int = 0, turn_index: int = 0, **changes: Any) -> TurnRecord:
    """A turn that the infrastructure lost."""
    unknown = ["handover", "prompt_tokens", "reused_tokens", "generated_tokens", "finish_reason"]
    unknown += ["first_token_ns", "turn_overhead_ns", "total_ns"]
    absent: dict[str, Any] = dict.fromkeys(unknown)
    values = {
        "status": "infrastructure_fault",
        "reason": "UNAVAILABLE",
        "text": "",
        "expectations": [],
        **absent,
    }
    return turn(dialogue_id, trial, turn_index, **{**values, **changes})


def setup(dialogue_ids: list[str], trials: int = 1, **changes: Any) -> DialogueSetup:
    """What was planned; every dialogue has one turn unless `turns` says otherwise."""
    values: dict[str, Any] = {
        "dialogue_ids": tuple(dialogue_ids),
        "trials": trials,
        "varies": trials > 1,
        "population": "sample",
        "turns": dict.fromkeys(dialogue_ids, 1),
    }
    return DialogueSetup(**{**values, **changes})
