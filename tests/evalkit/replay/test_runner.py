"""Replay against an in-process sandbox: exactly one record a turn, faults blamed on the right side."""

import threading
from collections import Counter

import grpc
import pytest

from evalkit.errors import IncompleteError, InputError
from evalkit.replay.client import SandboxClient, ServerInfo
from evalkit.replay.runner import TrialId, check_server, run_dialogues
from evalkit.replay.trial import ReplaySettings
from evalkit.runs.records import TurnRecord
from evalkit.scenario.dialogue import Dialogue
from tests.support.dialogues import HANDOVER, RECALL, dialogue
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession, RefusalError, serve


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.replay.retries._FIRST_WAIT_S", 0.001)


def remembering(session: FakeSession, text: str) -> Answer:
    """A model that carries everything: it says all that it was told."""
    return Answer(
        "hello: " + " ".join([*session.texts, text]), intent="any", handover=False, satisfaction=4.0
    )


def replay(
    sandbox: FakeSandbox, dialogues: list[Dialogue], settings: ReplaySettings, **more: object
) -> list[TurnRecord]:
    records: list[TurnRecord] = []
    with serve(sandbox) as address, SandboxClient(address) as client:
        run_dialogues(dialogues, settings, client, records.extend, **more)  # type: ignore[arg-type]
    return sorted(records, key=lambda record: (record.dialogue_id, record.trial, record.turn_index))


def test_every_planned_turn_has_one_record_and_passes_with_a_good_model() -> None:
    dialogues = [dialogue(RECALL, id=f"d{number}") for number in range(5)]
    records = replay(FakeSandbox(remembering), dialogues, ReplaySettings(seed=1, trials=3, concurrency=4))
    places = Counter((record.dialogue_id, record.trial, record.turn_index) for record in records)
    assert len(places) == 5 * 3 * 3 and set(places.values()) == {1}
    assert all(record.status == "ok" for record in records)
    assert all(item.passed for record in records for item in record.expectations)
    assert [record.probe_distance for record in records[:3]] == [[], [], [2, 1]]
    first = records[0]
    assert (
        first.total_ns is not None and first.first_token_ns is not None and first.turn_overhead_ns is not None
    )
    assert 0 < first.first_token_ns <= first.total_ns
    assert first.turn_overhead_ns == first.total_ns - 2000
    assert (records[1].prompt_tokens, records[1].reused_tokens) == (20, 10)


def test_each_trial_has_a_session_of_its_own_that_is_closed() -> None:
    sandbox = FakeSandbox(remembering)
    replay(sandbox, [dialogue(RECALL)], ReplaySettings(seed=1, trials=4))
    assert len(sandbox.sessions) == 4
    assert sorted(sandbox.closed) == sorted(sandbox.sessions)
    assert {len(session.texts) for session in sandbox.sessions.values()} == {3}


def test_transcripts_are_the_same_at_any_concurrency() -> None:
    dialogues = [dialogue(RECALL, id=f"d{number}") for number in range(6)]

    def transcript(concurrency: int) -> list[tuple[object, ...]]:
        settings = ReplaySettings(7, 3, ("paraphrase", "typos"), concurrency=concurrency)
        records = replay(FakeSandbox(remembering), dialogues, settings)
        return [
            (r.dialogue_id, r.trial, r.turn_index, r.turn_id, r.user_text, r.text, r.expectations)
            for r in records
        ]

    assert transcript(1) == transcript(4) == transcript(6)


def test_a_model_that_forgets_fails_the_probe_only() -> None:
    records = replay(
        FakeSandbox(lambda session, text: Answer(f"hello {text}")), [dialogue(RECALL)], ReplaySettings(1)
    )
    assert [all(item.passed for item in record.expectations) for record in records] == [True, True, False]
    assert [record.status for record in records] == ["ok", "ok", "ok"]


def test_an_empty_reply_is_a_fault_of_the_model() -> None:
    records = replay(FakeSandbox(lambda session, text: Answer("  ")), [dialogue(RECALL)], ReplaySettings(1))
    assert [record.status for record in records] == ["model_fault"] * 3
    assert {record.reason for record in records} == {"the reply is empty"}
    assert not records[2].expectations[0].passed


def test_an_unexpected_handover_fails_the_turns_it_makes_impossible() -> None:
    sandbox = FakeSandbox(lambda session, text: Answer("A colleague takes over.", handover=True))
    records = replay(sandbox, [dialogue(RECALL)], ReplaySettings(1))
    assert [record.status for record in records] == ["ok", "model_fault", "model_fault"]
    assert records[1].reason == "not played: handed over in turn 1"
    assert [item.kind for item in records[2].expectations] == ["recalls", "recalls"]
    assert records[0].handover is True and records[0].handover_expected is False


def test_an_expected_handover_ends_the_dialogue_early_and_passes() -> None:
    sandbox = FakeSandbox(lambda session, text: Answer("I block it; a colleague.", handover="human" in text))
    records = replay(sandbox, [dialogue(HANDOVER)], ReplaySettings(1))
    assert [record.status for record in records] == ["ok", "ok", "ok"]
    assert records[1].expectations[0].passed and records[1].expectations[0].kind == "handover"
    assert records[2].expectations == [] and records[2].total_ns is None
    assert records[2].reason == "not played: handed over in turn 2, as expected"


def test_a_handover_that_never_comes_fails_in_the_last_turn_that_may_bring_it() -> None:
    sandbox = FakeSandbox(lambda session, text: Answer("I block it; a colleague.", handover=False))
    records = replay(sandbox, [dialogue(HANDOVER)], ReplaySettings(1))
    kinds = [[(item.kind, item.passed) for item in record.expectations] for record in records]
    assert kinds == [[("contains", True)], [], [("handover", False), ("contains", True)]]


def test_rules_over_the_dialogue_stand_with_the_last_turn() -> None:
    rules = {"never": ["password"], "order": ["250", "Maria"], "end_state": {"handed_over": False}}
    records = replay(FakeSandbox(remembering), [dialogue(RECALL, **rules)], ReplaySettings(1))
    tail = [(item.kind, item.passed) for item in records[-1].expectations[2:]]
    assert tail == [("never", True), ("order", True), ("end_state", True)]


def test_lost_turns_are_missing_and_what_was_answered_stays() -> None:
    def dies_later(session: FakeSession, text: str) -> Answer:
        if len(session.texts) == 1:
            raise RefusalError(grpc.StatusCode.UNAVAILABLE, "engine died")
        return remembering(session, text)

    records = replay(FakeSandbox(dies_later), [dialogue(RECALL)], ReplaySettings(1))
    assert [record.status for record in records] == ["ok", "infrastructure_fault", "infrastructure_fault"]
    assert records[1].reason == "UNAVAILABLE: engine died"
    assert records[2].reason == "not played: UNAVAILABLE: engine died"
    assert records[2].expectations == [] and records[2].probe_distance == []


def test_a_session_that_the_server_closes_is_no_fault_of_the_model() -> None:
    from evalkit.wire import sandbox_pb2 as pb

    sandbox = FakeSandbox(lambda session, text: Answer("hello", state=pb.CLOSED))
    records = replay(sandbox, [dialogue(RECALL)], ReplaySettings(1))
    assert [record.status for record in records] == ["ok", "infrastructure_fault", "infrastructure_fault"]


def test_done_trials_are_not_run_again_and_progress_counts_them() -> None:
    seen: list[tuple[int, int]] = []
    sandbox = FakeSandbox(remembering)
    records = replay(
        sandbox,
        [dialogue(RECALL)],
        ReplaySettings(1, trials=3, concurrency=1),
        done=[TrialId("recall_en_001", 1)],
        progress=lambda finished, planned: seen.append((finished, planned)),
    )
    assert {record.trial for record in records} == {0, 2}
    assert seen == [(2, 3), (3, 3)]


def test_a_dead_sandbox_stops_the_run_instead_of_filling_it_with_holes() -> None:
    def dead(session: FakeSession, text: str) -> Answer:
        raise RefusalError(grpc.StatusCode.UNAVAILABLE, "engine died")

    dialogues = [dialogue(RECALL, id=f"d{number:02}") for number in range(20)]
    records: list[TurnRecord] = []
    with (
        serve(FakeSandbox(dead)) as address,
        SandboxClient(address) as client,
        pytest.raises(
            IncompleteError, match=r"5 dialogues in a row got no answer \(UNAVAILABLE: engine died\)"
        ),
    ):
        run_dialogues(dialogues, ReplaySettings(1, concurrency=1), client, records.extend)
    assert len(records) == 5 * 3


def test_texts_that_the_server_refuses_do_not_stop_the_run() -> None:
    def refuses(session: FakeSession, text: str) -> Answer:
        raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, "user_text: too long")

    dialogues = [dialogue(RECALL, id=f"d{number}") for number in range(7)]
    records = replay(FakeSandbox(refuses), dialogues, ReplaySettings(1))
    assert len(records) == 7 * 3 and {record.status for record in records} == {"infrastructure_fault"}
    assert records[0].reason == "INVALID_ARGUMENT: user_text: too long"


def test_an_interrupt_ends_the_workers_and_keeps_what_is_done() -> None:
    kept: list[TurnRecord] = []

    def interrupt(records: list[TurnRecord]) -> None:
        kept.extend(records)
        raise KeyboardInterrupt

    dialogues = [dialogue(RECALL, id=f"d{number}") for number in range(8)]
    with (
        serve(FakeSandbox(remembering)) as address,
        SandboxClient(address) as client,
        pytest.raises(KeyboardInterrupt),
    ):
        run_dialogues(dialogues, ReplaySettings(1, concurrency=2), client, interrupt)
    assert len(kept) == 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("replay")]


def test_two_dialogues_of_one_id_are_refused() -> None:
    with pytest.raises(InputError, match="same id"):
        replay(FakeSandbox(remembering), [dialogue(RECALL), dialogue(RECALL)], ReplaySettings(1))


INFO = ServerInfo("a" * 64, "", "fake", "f" * 64, 8, 256, 64, "0")


@pytest.mark.parametrize(
    ("model", "flow", "settings", "problem"),
    [
        ("b" * 64, "f" * 64, ReplaySettings(1), "serves model_digest a"),
        ("a" * 64, None, ReplaySettings(1), "the scenario's is none"),
        ("a" * 64, "f" * 64, ReplaySettings(1, max_new_tokens=65), "limit of 64 tokens"),
        ("a" * 64, "f" * 64, ReplaySettings(1, concurrency=9), "the sandbox allows 8"),
    ],
)
def test_a_sandbox_that_serves_something_else_is_refused(
    model: str, flow: str | None, settings: ReplaySettings, problem: str
) -> None:
    check_server(INFO, ReplaySettings(1), model_digest="a" * 64, flow_digest="f" * 64)
    with pytest.raises(InputError, match=problem):
        check_server(INFO, settings, model_digest=model, flow_digest=flow)
