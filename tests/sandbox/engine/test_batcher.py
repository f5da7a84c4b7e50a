"""The engine's loop."""

import queue
import random
import time
from typing import Any

import numpy as np
import pytest

from sandbox.engine.kv_cache import BLOCK
from tests.sandbox.engine.bench import END, Bench, Letters, SummingModel, expected, prompt_of


@pytest.mark.parametrize("alignment", [1, 4])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 33])
def test_every_token_is_fed_once_in_whatever_chunks(length: int, alignment: int) -> None:
    bench = Bench(model=SummingModel(alignment))
    bench.start(1, 1, prompt_of(length))
    bench.finish()
    assert bench.ids(1) == expected(prompt_of(length))
    assert bench.end(1)["reason"] == "length"


def test_s33_the_last_token_of_a_reply_is_fed_with_the_next_turn() -> None:
    bench = Bench()
    bench.start(1, 1, prompt_of(30), max_new_tokens=20)
    bench.finish()
    longer = [*prompt_of(30), *bench.ids(1), 40]
    bench.start(2, 1, longer)
    bench.finish()
    assert bench.end(2)["reused"] == 48  # 30 + 20 tokens in whole blocks
    assert bench.ids(2) == expected(longer)


def test_what_single_steps_computed_is_never_kept() -> None:
    """Keys and values of a reply are those of a prefill when another turn sees them, settled or not."""
    for settle in (True, False):
        bench = Bench()
        bench.start(1, 1, prompt_of(30), max_new_tokens=20)
        (bench.finish if settle else bench.answer)()
        bench.start(2, 1, [*prompt_of(30), *bench.ids(1), 40], max_new_tokens=1)
        bench.answer()
        kept = bench.cache._memory[1][: bench.cache.used_bytes // (8 * BLOCK)]
        assert (kept == 1).all()
        assert bench.end(2)["reused"] == (48 if settle else 24)


def test_s29_s30_a_hit_equals_a_miss_and_sessions_never_mix() -> None:
    warm, prompts = Bench(), {1: [11, *prompt_of(40)], 2: [12, *prompt_of(40)]}
    for request, key in enumerate((1, 2, 1, 2), start=1):
        warm.start(request, key, prompts[key])
        warm.finish()
        assert warm.ids(request) == expected(prompts[key])
    assert warm.end(3)["reused"] == warm.end(4)["reused"] == 40


def test_turns_join_and_leave_between_steps() -> None:
    bench = Bench()
    for request in range(1, 6):
        bench.start(request, request, prompt_of(20 + request, request), max_new_tokens=4 + 3 * request)
        bench.round(2)
    assert bench.outbox.load["running"] > 1
    bench.finish()
    for request in range(1, 6):
        assert bench.ids(request) == expected(prompt_of(20 + request, request), 4 + 3 * request)


def test_s37_random_traffic_gives_every_turn_what_it_gets_alone() -> None:
    """Short and long turns, cancels, releases, few rows and blocks: nothing of it shows in anybody's tokens."""
    dice = random.Random(7)
    for model in (SummingModel(), SummingModel(4)):
        bench = Bench(row_tokens=1024, blocks=20, max_rows=5, max_waiting=999, model=model)
        asked: dict[int, tuple[list[int], int]] = {}
        cancelled = set()
        for request in range(1, 150):
            prompt, count = (
                prompt_of(dice.choice([1, 2, 17, 40, 200]), dice.randrange(3, 9)),
                dice.randrange(1, 40),
            )
            asked[request] = prompt, count
            bench.start(request, request, prompt, count, shared=dice.choice([0, 16, 33]))
            bench.round(dice.randrange(9))
            if dice.random() < 0.2:
                cancelled.add(victim := dice.randrange(1, request + 1))
                bench.cancel(victim)
            if dice.random() < 0.3:
                bench.release(dice.randrange(1, request + 1))
        bench.finish()
        for request, (prompt, count) in asked.items():
            wanted = expected(prompt, count)
            if bench.end(request)["reason"] == "cancelled":
                assert request in cancelled
                wanted = wanted[: len(bench.ids(request))]
            assert bench.ids(request) == wanted
        for request in asked:
            bench.release(request)
        assert bench.batcher.used_bytes == 0


def test_a_long_prompt_delays_others_by_a_chunk_at_a_time() -> None:
    bench = Bench()
    bench.start(1, 1, prompt_of(10), max_new_tokens=30)
    bench.round(4)
    bench.start(2, 2, prompt_of(200), max_new_tokens=2)
    before = len(bench.ids(1))
    bench.round(10)
    assert len(bench.ids(1)) == before + 10
    assert bench.model.calls[-2:] == [("prefill", 4), ("decode", 1)]


def test_a_short_prompt_overtakes_a_long_one_that_still_moves() -> None:
    bench = Bench()
    bench.start(1, 1, prompt_of(200), max_new_tokens=1)
    bench.start(2, 2, prompt_of(8), max_new_tokens=1)
    bench.round(5)
    assert len(bench.ids(2)) == 1
    bench.finish()
    assert bench.ids(1) == expected(prompt_of(200), 1)


def test_s20_cancelling_unknown_finished_or_twice_is_nothing() -> None:
    bench = Bench()
    bench.cancel(99)
    bench.start(1, 1, [10])
    bench.answer()
    bench.start(2, 1, [10, 20])
    bench.round()
    for request in (1, 2, 2):
        bench.cancel(request)
    assert bench.end(1)["reason"] != "cancelled"
    bench.finish()
    assert bench.end(2)["reason"] == "cancelled"


@pytest.mark.parametrize("rounds", range(6))
def test_s11_s21_a_cancelled_turn_frees_its_row_once_and_harms_nobody(rounds: int) -> None:
    bench = Bench(row_tokens=256, max_rows=2)
    bench.start(1, 1, prompt_of(9))
    bench.start(2, 2, prompt_of(7, 6))
    bench.round(rounds)
    bench.cancel(1)
    bench.start(3, 3, prompt_of(8, 7))  # takes the place of the first
    bench.finish()
    assert bench.ids(2) == expected(prompt_of(7, 6))
    assert bench.ids(3) == expected(prompt_of(8, 7))
    bench.start(4, 1, prompt_of(9))
    bench.finish()
    assert bench.ids(4) == expected(prompt_of(9))
    for key in (1, 2, 3):
        bench.release(key)
    bench.round()
    assert bench.outbox.load == {"event": "load", "running": 0, "waiting": 0, "kv_used": 0}


def test_who_finds_no_row_waits_and_who_finds_the_queue_full_is_rejected() -> None:
    bench = Bench(max_rows=1, max_waiting=2)
    bench.start(1, 1, prompt_of(9))
    bench.round()
    for request in (2, 3, 4):
        bench.start(request, request, [request])
    bench.round()
    assert [m["request"] for m in bench.outbox.messages if m["event"] == "rejected"] == [4]
    assert (bench.outbox.load["running"], bench.outbox.load["waiting"]) == (1, 2)
    bench.cancel(2)
    bench.finish()
    assert bench.end(2)["reason"] == "cancelled"
    assert bench.ids(3) == expected([3])


def test_of_a_burst_those_who_find_a_row_dont_count_as_waiting() -> None:
    bench = Bench(max_rows=4, max_waiting=1)
    for request in range(1, 7):
        bench.start(request, request, prompt_of(5, request))
    bench.finish()
    assert [m["request"] for m in bench.outbox.messages if m["event"] == "rejected"] == [6]
    assert bench.ids(5) == expected(prompt_of(5, 5))


def test_a_turn_that_never_fits_is_rejected_with_its_numbers() -> None:
    bench = Bench()
    bench.start(1, 1, prompt_of(510), max_new_tokens=6)
    bench.start(2, 2, [])
    bench.round()
    reasons = [m["reason"] for m in bench.outbox.messages]
    assert reasons[0] == "510 tokens and 6 for the reply aren't between 1 and 512"
    assert len(reasons) == 2


def test_rows_make_room_for_a_long_turn_and_keep_what_they_hold() -> None:
    bench = Bench(row_tokens=1024)
    bench.start(1, 1, prompt_of(9), max_new_tokens=40)
    bench.round(8)
    assert bench.batcher._table.rows.room == 128
    bench.start(2, 2, prompt_of(300), max_new_tokens=5)
    bench.start(3, 3, prompt_of(30), max_new_tokens=5)  # a third row of 512 isn't there: it waits
    bench.round()
    assert bench.batcher._table.rows.room == 512
    assert bench.outbox.load["waiting"] == 1
    bench.finish()
    for request, (length, count) in enumerate(((9, 40), (300, 5), (30, 5)), start=1):
        assert bench.ids(request) == expected(prompt_of(length), count)


def test_settling_makes_way_at_once() -> None:
    bench = Bench(row_tokens=256, max_rows=1)
    bench.start(1, 1, prompt_of(40), max_new_tokens=30)
    bench.answer()
    assert bench.outbox.load["running"] == 0
    bench.start(2, 2, prompt_of(8, 9))
    bench.round(2)
    assert bench.ids(2) == expected(prompt_of(8, 9))[: len(bench.ids(2))] != []


def test_a_released_session_is_forgotten_even_in_flight() -> None:
    bench = Bench()
    bench.start(1, 1, prompt_of(40))
    bench.round(3)
    bench.release(1)
    bench.finish()
    assert bench.ids(1) == expected(prompt_of(40))
    assert bench.batcher.used_bytes == 0


@pytest.mark.parametrize("length", range(1, 4))
def test_s36_a_stop_string_over_several_tokens_ends_the_turn(length: int) -> None:
    ids = expected([10, 20], 8)
    stop = Letters().decode(ids)[3 : 3 + length]
    first = Letters().decode(ids).index(stop)
    bench = Bench()
    bench.start(1, 1, [10, 20], max_new_tokens=8, stop=(stop,))
    bench.finish()
    assert bench.end(1)["reason"] == "stop_string"
    assert "".join(m["text"] for m in bench.outbox.messages) == Letters().decode(ids)[:first]
    assert bench.ids(1) == ids[: first + length]


def test_the_end_token_ends_the_turn_without_text() -> None:
    # 7 * 83 + 3 = 584 = 6 * 97 + 2
    bench = Bench()
    bench.start(1, 1, [83])
    bench.finish()
    assert bench.ids(1) == [END]
    assert (bench.end(1)["reason"], bench.end(1)["text"]) == ("end", "")


def test_drawn_tokens_dont_depend_on_what_runs_beside() -> None:
    alone, beside = Bench(), Bench()
    alone.start(1, 1, prompt_of(9), 20, temperature=50.0, seed=5)
    alone.finish()
    for request in range(2, 6):
        beside.start(request, request, prompt_of(3 * request, request), 30, temperature=50.0, seed=request)
    beside.round(6)
    beside.start(1, 1, prompt_of(9), 20, temperature=50.0, seed=5)
    beside.finish()
    assert alone.ids(1) == beside.ids(1)


def test_logits_that_arent_numbers_end_the_turn_with_a_reason() -> None:
    class Broken(SummingModel):
        def _logits(self, seen: np.ndarray) -> np.ndarray:
            return np.full(97, np.nan, np.float32)

    bench = Bench(model=Broken())
    bench.start(1, 1, [10])
    bench.finish()
    assert [m["event"] for m in bench.outbox.messages] == ["broken"]
    assert bench.batcher.used_bytes == 0


def test_engine_time_is_divided_between_waiting_and_work() -> None:
    bench = Bench()
    bench.start(1, 1, [10])
    bench.finish()
    end = bench.end(1)
    assert end["prefill_ns"] > 0
    assert end["decode_ns"] > 0
    assert end["queue_ns"] >= 0


def test_the_time_a_turn_lies_in_the_inbox_is_time_in_the_engine() -> None:
    """It waits there for the round under way; the reader's stamp says since when."""
    bench = Bench()
    arrived_ns = time.perf_counter_ns() - 3_000_000_000
    bench.start(1, 1, prompt_of(8), arrived_ns=arrived_ns)
    bench.finish()
    end = bench.end(1)
    inside_ns = end["queue_ns"] + end["prefill_ns"] + end["decode_ns"]
    assert 3_000_000_000 <= inside_ns <= time.perf_counter_ns() - arrived_ns


def test_settling_waits_a_moment_and_a_turn_that_comes_meanwhile_is_not_kept_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandbox.engine.batcher._SETTLE_AFTER_S", 60.0)
    bench, inbox = Bench(), queue.SimpleQueue[dict[str, Any]]()
    assert bench.batcher._patience_s() is None  # nothing to compute: for ever
    bench.start(1, 1, prompt_of(30), max_new_tokens=20)
    assert bench.batcher._patience_s() == 0
    bench.answer()
    assert bench.batcher.busy and 0 < bench.batcher._patience_s() <= 60
    asked = bench.message(2, 2, prompt_of(8))
    inbox.put(asked)
    calls = len(bench.model.calls)

    class StopLoopError(Exception):
        """Ends the loop."""

    def write(*messages: dict[str, Any]) -> None:
        if any(message["event"] == "end" for message in messages):
            raise StopLoopError

    bench.outbox.write = write  # type: ignore[method-assign]
    with pytest.raises(StopLoopError):
        bench.batcher.run(inbox)
    # The first turn's reply would have been settled in a chunk of its own before.
    assert bench.model.calls[calls] == ("prefill", 4)
