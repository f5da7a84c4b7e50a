"""Regressions planted in the server, each caught by the metric meant for it. Text scores never pass the server."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evalkit.metrics.context import MetricContext
from evalkit.metrics.dialogue import estimators
from evalkit.replay.client import SandboxClient
from evalkit.replay.runner import run_dialogues
from evalkit.replay.trial import ReplaySettings
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import TurnRecord
from evalkit.scenario.dialogue import Dialogue
from tests.faulty_sandbox.faults import FAULTS
from tests.sandbox.fixtures import INTENTS
from tests.sandbox.processes import SandboxProcess, serving_command
from tests.support.chat_server import NAME, Behaviour, ChatServer, Messages
from tests.support.dialogues import setup

pytestmark = pytest.mark.slow

NAMES = ("Maria", "Wang", "Jonas", "Ada")
SETTINGS = ReplaySettings(seed=5, trials=2, max_new_tokens=12)


@contextmanager
def faulty(fault: str, arguments: Sequence[str], folder: Path) -> Iterator[SandboxProcess]:
    command = ("-m", "tests.faulty_sandbox")
    with serving_command([*arguments, "--fault", fault], folder, command=command) as process:
        yield process


def replay(address: str, dialogues: list[Dialogue], settings: ReplaySettings = SETTINGS) -> list[TurnRecord]:
    records: list[TurnRecord] = []
    with SandboxClient(address) as client:
        run_dialogues(dialogues, settings, client, records.extend)
    return sorted(records, key=lambda record: (record.dialogue_id, record.trial, record.turn_index))


def values(dialogues: list[Dialogue], records: list[TurnRecord]) -> dict[str, float | None]:
    planned = setup(
        [one.id for one in dialogues],
        SETTINGS.trials,
        varies=False,
        turns={one.id: len(one.turns) for one in dialogues},
        greedy=True,
    )
    context = MetricContext(0.95, 1, {}, dialogues=planned, k_values=(1,))
    found = estimators(Evidence(turns=tuple(records)), context)
    return {item.name: None if item.estimator is None else item.estimator.value for item in found}


def talks(replies: dict[tuple[str, int], str] | None = None) -> list[Dialogue]:
    """Dialogues in four turns; with `replies` each turn expects what was said then."""
    made = []
    for name in NAMES:
        texts = (
            f"hello, my name is {name}",
            INTENTS["card_lost"][0],
            INTENTS["balance"][0],
            f"bye from {name}",
        )
        turns: list[dict[str, Any]] = []
        for index, text in enumerate(texts):
            reply = (replies or {}).get((name, index), "")
            expect = {"contains": [reply.replace("{", "(")]} if reply.strip() and "{" not in reply else {}
            turns.append({"user": text, "gold": "x", "expect": expect})
        made.append(Dialogue.model_validate({"id": name, "turns": turns, "never": ["<|end|>"]}))
    return made


@pytest.fixture(scope="module")
def healthy(tiny_bundle: Path, flow_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Dialogue]:
    """Dialogues that the server without a fault passes: they expect its replies."""
    arguments = [str(tiny_bundle), "--flow", str(flow_folder)]
    with faulty("none", arguments, tmp_path_factory.mktemp("healthy")) as process:
        records = replay(process.address, talks())
        dialogues = talks({(one.dialogue_id, one.turn_index): one.text for one in records if one.trial == 0})
        found = values(dialogues, replay(process.address, dialogues))
    assert found["dialogue/pass_hat_k"] == found["dialogue/repeatability"] == 1.0
    assert found["dialogue/handover_rate"] == 0.0 and found["dialogue/expectation/never"] == 1.0
    return dialogues


@pytest.mark.parametrize(
    ("fault", "metric", "good"),
    [
        ("template", "dialogue/expectation/contains", 1.0),
        ("prefix", "dialogue/expectation/contains", 1.0),
        ("stop", "dialogue/expectation/never", 1.0),
        ("temperature", "dialogue/repeatability", 1.0),
        ("crosstalk", "dialogue/expectation/contains", 1.0),
        ("handover", "dialogue/handover_rate", 0.0),
    ],
)
def test_a_planted_regression_is_caught_by_its_metric(
    fault: str,
    metric: str,
    good: float,
    healthy: list[Dialogue],
    tiny_bundle: Path,
    flow_folder: Path,
    tmp_path: Path,
) -> None:
    with faulty(fault, [str(tiny_bundle), "--flow", str(flow_folder)], tmp_path) as process:
        records = replay(process.address, healthy)
    found = values(healthy, records)
    assert all(record.status != "infrastructure_fault" for record in records)
    assert found[metric] is not None and abs(found[metric] - good) > 0.2
    others = {"dialogue/repeatability", "dialogue/expectation/never"} - {metric}
    if fault in ("template", "prefix"):
        # Wrong, but every time alike: what is meant for other faults stays quiet.
        assert all(found[name] == 1.0 for name in others)
    if fault == "prefix":
        # The first turn is laid out as ever; only later ones get the token again.
        first = [item.passed for one in records if one.turn_index == 0 for item in one.expectations]
        assert all(first)


def recalling(messages: Messages) -> str:
    """A served model that repeats everything that it was told."""
    return "You said: " + " | ".join(one["content"] for one in messages if one["role"] == "user")


@pytest.mark.parametrize(("fault", "consistency"), [("none", 1.0), ("window", 0.5)])
def test_a_cut_window_loses_facts_by_distance(fault: str, consistency: float, tmp_path: Path) -> None:
    facts = {"name": "Maria", "city": "Boston"}
    turns: list[dict[str, Any]] = [
        {"user": "I am {name}.", "gold": "x"},
        {"user": "A word about the weather.", "gold": "x"},
        {"user": "I live in {city}.", "gold": "x"},
        {"user": "Who am I, and where?", "gold": "x", "expect": {"recalls": ["name", "city"]}},
    ]
    dialogues = [
        Dialogue.model_validate({"id": f"d{number}", "facts": facts, "turns": turns}) for number in range(3)
    ]
    upstream = ChatServer(Behaviour(say=recalling))
    upstream.start()
    try:
        arguments = ["--engine", "openai", "--endpoint", upstream.url, "--model", NAME, "--declare", "m@1"]
        with faulty(fault, arguments, tmp_path) as process:
            settings = ReplaySettings(seed=1, trials=2, max_new_tokens=64, single_turn_probes=True)
            records = replay(process.address, dialogues, settings)
    finally:
        upstream.stop()
    found = values(dialogues, records)
    assert found["dialogue/consistency"] == consistency
    # In one turn nothing is lost: the fall belongs to the window, not to the model.
    alone = [held for record in records for held in record.single_turn or ()]
    assert alone == [True] * 6


def test_every_fault_of_the_command_is_tested_here() -> None:
    assert set(FAULTS) == {
        *("none", "window", "template", "prefix", "handover", "stop", "temperature", "crosstalk")
    }
