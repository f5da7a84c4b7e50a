"""A user who changes their mind, against agents that heed it and that don't: from the dialogue file to the metrics."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalkit.metrics.context import MetricContext
from evalkit.metrics.dialogue import estimators
from evalkit.metrics.estimators import NamedEstimator
from evalkit.replay.client import SandboxClient
from evalkit.replay.runner import run_dialogues
from evalkit.replay.trial import ReplaySettings
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import TurnRecord
from evalkit.scenario.dialogue_files import read_dialogue_file
from evalkit.scenario.expectations import self_test
from tests.support.dialogues import setup
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession, serve

TALK: dict[str, Any] = {
    "id": "revised",
    "facts": {"city": "Boston"},
    "ledger": {"city": r"address is in (\w+)"},
    "turns": [
        {
            "user": "I live in {city}.",
            "gold": "Your address is in {city}.",
            "expect": {"contains": ["{city}"]},
        },
        {
            "user": "No, I have moved, it is {city} now.",
            "gold": "Your address is in {city}.",
            "revises": {"city": "Austin"},
            "expect": {"contains": ["{city}"], "forbidden": ["Boston"]},
        },
        {"user": "When do you open?", "gold": "At nine.", "expect": {"contains": ["nine"]}},
        {
            "user": "Where do you send it?",
            "gold": "Your address is in {city}.",
            "expect": {"recalls": ["city"]},
        },
    ],
    "end_state": {"stated": ["city"]},
}


def says(text: str) -> str | None:
    return next((city for city in ("Boston", "Austin", "Denver") if city in text), None)


def attentive(session: FakeSession, text: str) -> str:
    told = [city for city in map(says, [*session.texts, text]) if city]
    return "At nine." if "open" in text else f"Your address is in {told[-1]}."


def stubborn(session: FakeSession, text: str) -> str:
    return "At nine." if "open" in text else f"Your address is in {says([*session.texts, text][0])}."


def heeds_it_once(session: FakeSession, text: str) -> str:
    return attentive(session, text) if len(session.texts) < 3 else stubborn(session, text)


def wrong_at_last(session: FakeSession, text: str) -> str:
    return attentive(session, text) if len(session.texts) < 3 else "Your address is in Denver."


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., dict[str, NamedEstimator]]:
    path = tmp_path / "d.yaml"
    path.write_text(yaml.safe_dump(TALK))
    sources = read_dialogue_file(path)
    assert self_test(sources) == []

    def measure(agent: Callable[[FakeSession, str], str]) -> dict[str, NamedEstimator]:
        records: list[TurnRecord] = []
        sandbox = FakeSandbox(lambda session, text: Answer(agent(session, text)))
        with serve(sandbox) as address, SandboxClient(address) as client:
            run_dialogues([sources[0].dialogue], ReplaySettings(1), client, records.extend)
        planned = setup(["revised"], turns={"revised": 4})
        found = estimators(Evidence(turns=tuple(records)), MetricContext(0.95, 1, {}, dialogues=planned))
        return {item.name: item for item in found}

    return measure


@pytest.mark.parametrize(
    ("agent", "counts", "recalled", "passed"),
    [
        (attentive, (3, 0, 0), 1.0, 1.0),
        (stubborn, (1, 0, 2), 0.0, 0.0),
        (heeds_it_once, (2, 0, 1), 0.0, 0.0),
        (wrong_at_last, (2, 1, 0), 0.0, 0.0),
    ],
)
def test_the_later_value_counts(
    measured: Callable[..., dict[str, NamedEstimator]],
    agent: Callable[[FakeSession, str], str],
    counts: tuple[int, int, int],
    recalled: float,
    passed: float,
) -> None:
    found = measured(agent)
    details = found["dialogue/consistency"].details
    assert tuple(details[name] for name in ("honoured", "contradicted", "forgotten")) == counts
    for name, value in (("expectation/recalls", recalled), ("pass_hat_k", passed)):
        estimator = found[f"dialogue/{name}"].estimator
        assert estimator is not None and estimator.value == value
    # Two turns since the user said it anew, not three since the first time.
    assert {row["turns"] for row in details["by_distance"]} == {0, 2}
