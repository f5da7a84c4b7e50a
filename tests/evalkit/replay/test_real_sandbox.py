"""Replay against the real server: what one side promises is what the other relies on."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from evalkit.bundle import load_bundle
from evalkit.errors import InputError
from evalkit.replay.client import Sampling, SandboxClient, SandboxError
from evalkit.replay.runner import check_server, run_dialogues
from evalkit.replay.server_process import sandbox_process
from evalkit.replay.trial import ReplaySettings
from evalkit.runs.records import TurnRecord
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.flow import load_flow
from tests.sandbox.processes import SandboxProcess
from tests.support.dialogues import RECALL, dialogue

SETTINGS = ReplaySettings(seed=5, trials=2, variation=("typos",), max_new_tokens=8)

HUMAN: dict[str, Any] = {
    "id": "human",
    "turns": [
        {"user": "what is my balance", "gold": "50", "expect": {"intent": "balance"}},
        {
            "user": "I want a human",
            "gold": "A colleague.",
            "expect": {"handover": {"required": True, "by_turn": 3}},
        },
        {"user": "a real person please", "gold": "A colleague."},
    ],
}


def replay(address: str, dialogues: list[Dialogue], settings: ReplaySettings) -> list[TurnRecord]:
    records: list[TurnRecord] = []
    with SandboxClient(address) as client:
        run_dialogues(dialogues, settings, client, records.extend)
    return sorted(records, key=lambda record: (record.dialogue_id, record.trial, record.turn_index))


def test_transcripts_are_the_same_at_concurrency_1_and_4(flow_server: SandboxProcess) -> None:
    dialogues = [dialogue(RECALL, id=f"d{number}") for number in range(4)]

    def transcript(concurrency: int) -> list[tuple[object, ...]]:
        settings = ReplaySettings(5, 2, ("typos",), max_new_tokens=8, concurrency=concurrency)
        records = replay(flow_server.ready["address"], dialogues, settings)
        assert {record.status for record in records} <= {"ok", "model_fault"}
        return [(r.dialogue_id, r.trial, r.turn_index, r.user_text, r.token_ids, r.intent) for r in records]

    assert transcript(1) == transcript(4)


def test_a_required_handover_is_seen_and_ends_the_dialogue(flow_server: SandboxProcess) -> None:
    records = replay(flow_server.ready["address"], [dialogue(HUMAN)], ReplaySettings(5, max_new_tokens=8))
    assert [record.handover for record in records] == [False, True, None]
    assert records[0].intent == "balance" and records[0].satisfaction is not None
    assert records[1].expectations[0].passed and records[1].text == "I am connecting you to a colleague."
    assert records[2].reason == "not played: handed over in turn 2, as expected"


def test_an_unexpected_handover_is_the_models_fault(flow_server: SandboxProcess) -> None:
    turns = [{"user": "I want a human", "gold": "a"}, {"user": "what is my balance", "gold": "b"}]
    records = replay(flow_server.ready["address"], [dialogue({"id": "d", "turns": turns})], ReplaySettings(5))
    assert [record.status for record in records] == ["ok", "model_fault"]


def test_s14_a_repeated_turn_id_returns_the_stored_reply(flow_server: SandboxProcess) -> None:
    with SandboxClient(flow_server.ready["address"]) as client:
        client.open("s14", "en")
        sampling = Sampling(max_new_tokens=8)
        first = client.turn("s14", "t0", "what is my balance", sampling, timeout_s=30)
        again = client.turn("s14", "t0", "what is my balance", sampling, timeout_s=30)
        second = client.turn("s14", "t1", "what is my balance", sampling, timeout_s=30)
        client.close("s14")
    assert (again.token_ids, again.prompt_tokens) == (first.token_ids, first.prompt_tokens)
    # The first turn's prompt and reply stand before the second turn once, not twice.
    assert second.reused_tokens <= first.prompt_tokens + len(first.token_ids)
    assert second.prompt_tokens < 3 * (first.prompt_tokens + len(first.token_ids))


def test_s38_a_turn_after_the_handover_is_refused(flow_server: SandboxProcess) -> None:
    with SandboxClient(flow_server.ready["address"]) as client:
        client.open("s38", "en")
        sampling = Sampling(max_new_tokens=8)
        assert (
            client.turn("s38", "t0", "I want a human", sampling, timeout_s=30).state == "SESSION_HANDED_OVER"
        )
        with pytest.raises(SandboxError) as caught:
            client.turn("s38", "t1", "what is my balance", sampling, timeout_s=30)
    assert caught.value.code == "FAILED_PRECONDITION"


def test_the_server_says_what_it_serves(
    flow_server: SandboxProcess, tiny_bundle: Path, flow_folder: Path
) -> None:
    digests = {
        "model_digest": load_bundle(tiny_bundle).model_digest,
        "flow_digest": load_flow(flow_folder).digest,
    }
    with SandboxClient(flow_server.ready["address"]) as client:
        assert client.is_serving()
        info = client.describe()
    check_server(info, SETTINGS, **digests)
    with pytest.raises(InputError, match="the scenario's is none"):
        check_server(info, SETTINGS, model_digest=digests["model_digest"], flow_digest=None)


def test_a_run_survives_the_death_of_the_engine(tiny_bundle: Path) -> None:
    dialogues = [dialogue(RECALL, id=f"d{number}") for number in range(4)]
    records: list[TurnRecord] = []
    with sandbox_process(tiny_bundle, None) as running, SandboxClient(running.address) as client:
        assert running.model_digest == load_bundle(tiny_bundle).model_digest

        def kill_once(trial: list[TurnRecord]) -> None:
            if not records:
                os.kill(_engine_of(running.pid), signal.SIGKILL)
            records.extend(trial)

        run_dialogues(dialogues, ReplaySettings(5, max_new_tokens=4), client, kill_once)
    assert len(records) == 4 * 3
    assert {record.status for record in records[-3:]} <= {"ok", "model_fault"}


def test_a_bundle_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such bundle folder"), sandbox_process(tmp_path / "none", None):
        pass


def _engine_of(server_pid: int) -> int:
    children = Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split()
    engines = [
        int(pid) for pid in children if b"sandbox.engine.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(engines) == 1
    return engines[0]
