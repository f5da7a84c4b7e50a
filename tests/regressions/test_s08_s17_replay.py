"""S8, S16, S17, S37: whose fault a lost trial is, lost context, lost sessions, and concurrency that changes answers."""

from typing import Any

import grpc
import pytest

from evalkit.metrics.context import MetricContext
from evalkit.metrics.dialogue import estimators
from evalkit.replay.client import SandboxClient
from evalkit.replay.runner import run_dialogues
from evalkit.replay.trial import ReplaySettings
from evalkit.runs.evidence import Evidence
from evalkit.runs.records import TurnRecord
from evalkit.scenario.dialogue import Dialogue
from tests.sandbox.processes import SandboxProcess
from tests.support.dialogues import RECALL, dialogue, setup
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession, RefusalError, serve


def replay(address: str, dialogues: list[Dialogue], settings: ReplaySettings) -> list[TurnRecord]:
    records: list[TurnRecord] = []
    with SandboxClient(address) as client:
        run_dialogues(dialogues, settings, client, records.extend)
    return sorted(records, key=lambda record: (record.dialogue_id, record.trial, record.turn_index))


def values(records: list[TurnRecord], trials: int) -> dict[str, Any]:
    planned = setup(sorted({record.dialogue_id for record in records}), trials, greedy=True)
    found = estimators(
        Evidence(turns=tuple(records)), MetricContext(0.95, 1, {}, dialogues=planned, k_values=(1, 2))
    )
    return {
        f"{item.name}/{item.k}": (item.estimator and item.estimator.value, item.details) for item in found
    }


def test_s8_what_the_model_does_wrong_is_a_failure_never_an_exclusion() -> None:
    def answer(session: FakeSession, text: str) -> Answer:
        if session.texts:
            raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, "the session was handed over")
        return Answer("hello", handover=False)

    with serve(FakeSandbox(answer)) as address:
        records = replay(address, [dialogue(RECALL)], ReplaySettings(seed=1))
    assert [record.status for record in records] == ["ok", "model_fault", "model_fault"]
    assert [record.blame for record in records] == [None, "model", "model"]


def test_s17_a_session_that_is_not_carried_fails_the_recall_probes() -> None:
    with serve(FakeSandbox(lambda session, text: Answer(f"hello: {text}"))) as address:
        records = replay(address, [dialogue(RECALL)], ReplaySettings(seed=1))
    value, details = values(records, 1)["dialogue/consistency/None"]
    assert value == 0.0 and details["forgotten"] == 2


def _untimed(records: list[TurnRecord]) -> list[tuple[Any, ...]]:
    return [
        (
            one.dialogue_id,
            one.trial,
            one.turn_index,
            one.user_text,
            one.text,
            tuple(one.token_ids),
            one.status,
        )
        for one in records
    ]


@pytest.mark.parametrize("concurrency", [4, 16])
def test_s37_concurrency_changes_no_transcript_and_no_figure(
    server: SandboxProcess, concurrency: int
) -> None:
    dialogues = [
        dialogue(RECALL, id=f"d{number}", facts={"name": f"N{number}", "amount": number})
        for number in range(5)
    ]

    def settings(side_by_side: int) -> ReplaySettings:
        return ReplaySettings(1, 3, ("paraphrase", "typos"), max_new_tokens=8, concurrency=side_by_side)

    alone = replay(server.address, dialogues, settings(1))
    crowded = replay(server.address, dialogues, settings(concurrency))
    assert _untimed(alone) == _untimed(crowded)
    one, other = values(alone, 3), values(crowded, 3)
    # What is reused depends on what the cache still holds; everything else is the same to the bit.
    one.pop("cache/reuse_ratio/None"), other.pop("cache/reuse_ratio/None")
    assert one == other
