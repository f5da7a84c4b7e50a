"""S41, S42: latency that looks good because the bad part was left out."""

import time

import grpc
import pytest

from evalkit.metrics.context import MetricContext
from evalkit.metrics.latency import estimators
from evalkit.replay.client import Sampling, SandboxClient
from evalkit.runs.evidence import Evidence
from tests.support.dialogues import lost_turn, setup, turn
from tests.support.fake_sandbox import Answer, FakeSandbox, FakeSession, RefusalError, serve


def test_s41_failed_turns_are_infinite_in_the_percentiles() -> None:
    names = [f"d{number:02}" for number in range(20)]
    turns = [turn(name) for name in names[:17]] + [lost_turn(name) for name in names[17:]]
    context = MetricContext(0.95, 1, {}, dialogues=setup(names), within=(("latency/first_token", 1000.0),))
    item = estimators(Evidence(turns=tuple(turns)), context)[0]
    assert item.name == "latency/first_token"
    assert item.details["p95"] is None and item.details["failed_turns"] == 3
    assert item.details["within"][0]["share"] == 17 / 20


def test_s42_waiting_before_dispatch_counts() -> None:
    with serve(FakeSandbox(lambda session, text: Answer("hi"))) as address, SandboxClient(address) as client:
        client.open("s", "en")
        planned_ns = time.perf_counter_ns() - 50_000_000
        reply = client.turn("s", "t", "hello", Sampling(8), timeout_s=5, planned_ns=planned_ns)
    assert reply.first_token_ns > 50_000_000 and reply.total_ns >= reply.first_token_ns


def test_s42_repeats_and_their_waits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.replay.retries._FIRST_WAIT_S", 0.001)
    busy = [True]

    def busy_once(session: FakeSession, text: str) -> Answer:
        if busy:
            busy.clear()
            raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_after_s=0.06)
        return Answer("hi")

    with serve(FakeSandbox(busy_once)) as address, SandboxClient(address) as client:
        client.open("s", "en")
        reply = client.turn("s", "t", "hello", Sampling(8), timeout_s=5)
    assert reply.first_token_ns > 60_000_000
