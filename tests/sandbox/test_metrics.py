"""What the metrics make of a turn's pieces."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sandbox import metrics
from sandbox.domain import (
    FinishReason,
    SessionState,
    Timings,
    TurnPiece,
    TurnReply,
    Usage,
)
from sandbox.engine.requests import RestartReason

MS = 1_000_000


class NoGauges:
    """A server with nothing to tell."""

    def active_sessions(self) -> int:
        return 0

    def requests(self) -> tuple[int, int]:
        return 0, 0

    def kv_cache_usage(self) -> float | None:
        return None

    def engine_restarts(self) -> Mapping[RestartReason, int]:
        return {}


def reply(tokens: int) -> TurnReply:
    return TurnReply(
        session_id="s",
        turn_id="t",
        turn_index=0,
        text="x" * tokens,
        token_ids=(7,) * tokens,
        finish_reason=FinishReason.LENGTH,
        intent=None,
        handover=None,
        satisfaction=None,
        usage=Usage(prompt_tokens=4, reused_tokens=0, generated_tokens=tokens),
        timings=Timings(prefill_ns=5 * MS, first_token_ns=10 * MS, decode_ns=8 * MS, total_ns=90 * MS),
        state=SessionState.OPEN,
    )


def counted(pieces: list[tuple[int, TurnPiece]], monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Values by name after a turn whose pieces come at these times (ms after its arrival)."""
    now_ns = 0
    monkeypatch.setattr(metrics.time, "perf_counter_ns", lambda: now_ns)
    counter = metrics.PrometheusMetrics(NoGauges())
    turn = counter.turn()
    for at_ms, piece in pieces:
        now_ns = at_ms * MS
        turn.piece(piece)
    samples = (sample for family in counter._registry.collect() for sample in family.samples)
    return {sample.name.removeprefix("sandbox_"): sample.value for sample in samples}


def test_time_per_token_is_what_the_reader_waits_not_the_turns_share_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a batch `decode_ns` is a part of each step; here 8 ms of the 80 that the tokens after the first took."""
    first, more, last = TurnPiece("x", (7,)), TurnPiece("xx", (7, 7)), TurnPiece("xx", (7, 7), reply(5))
    values = counted([(10, first), (50, more), (90, last)], monkeypatch)
    assert values["time_to_first_token_seconds_sum"] == pytest.approx(0.010)
    assert values["request_time_per_output_token_seconds_count"] == 1
    assert values["request_time_per_output_token_seconds_sum"] == pytest.approx(0.080 / 4)
    assert values["inter_token_latency_seconds_count"] == 4
    assert values["inter_token_latency_seconds_sum"] == pytest.approx(0.080)
    assert values["request_decode_time_seconds_sum"] == pytest.approx(0.008)


def test_a_reply_that_came_at_once_tells_no_time_per_token(monkeypatch: pytest.MonkeyPatch) -> None:
    values = counted([(90, TurnPiece("xxxxx", (7,) * 5, reply(5)))], monkeypatch)
    assert values["time_to_first_token_seconds_sum"] == pytest.approx(0.090)
    assert values["request_time_per_output_token_seconds_count"] == 0
    assert values["generation_tokens_total"] == 5


@pytest.mark.parametrize(("reason", "count"), [(FinishReason.END, 1), (FinishReason.HANDED_OVER, 0)])
def test_a_text_that_came_whole_with_the_end_has_a_first_token(
    reason: FinishReason, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A served model's reply that begins like a stop string is held back until its end; a hand-over has no token."""
    told = replace(reply(1), token_ids=(), finish_reason=reason)
    values = counted([(40, TurnPiece("x", (), told))], monkeypatch)
    assert values["time_to_first_token_seconds_count"] == count
    assert values["time_to_first_token_seconds_sum"] == pytest.approx(0.04 * count)
    assert values["inter_token_latency_seconds_count"] == 0
