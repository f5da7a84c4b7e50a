"""The engine's loop, with a model whose next token is the sum of what it sees: every lost or doubled token shows."""

from typing import Any

import numpy as np
import pytest

from sandbox.engine.kv_cache import KvCache, KvShape
from sandbox.engine.worker import EngineLoop

SHAPE = KvShape(layers=1, kv_heads=1, head_size=1)
END = 2
VOCABULARY = 97


class SummingModel:
    """Keys hold the tokens themselves; the next token is their sum, times 7, modulo the vocabulary."""

    shape = SHAPE

    def step(
        self, ids: list[int], past_length: int, past: list[np.ndarray]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        total = int(past[0][0, 0, :past_length, 0].sum()) + sum(ids)
        logits = np.zeros(VOCABULARY, np.float32)
        logits[(total * 7 + 3) % VOCABULARY] = 1.0
        new = np.array(ids, np.float32)[None, None, :, None]
        return logits, [new, new]


class Letters:
    """One letter a token."""

    end_token = END

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(65 + token % 26) for token in ids)


class Outbox:
    """Collects what the engine sends."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def write(self, message: dict[str, Any]) -> None:
        self.messages.append(message)


class Bench:
    """An engine loop driven by hand."""

    def __init__(self, budget: int = 1 << 20) -> None:
        self.outbox = Outbox()
        self.cache = KvCache(SHAPE, budget)
        self.loop = EngineLoop(SummingModel(), Letters(), self.cache, self.outbox)  # type: ignore[arg-type]

    def start(
        self, request: int, key: int, prompt: list[int], max_new_tokens: int = 6, stop: tuple[str, ...] = ()
    ) -> None:
        settings = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0}
        sampling = {"max_new_tokens": max_new_tokens, "stop": list(stop), **settings}
        self.loop.handle(
            {"op": "generate", "request": request, "key": key, "prompt": prompt, "sampling": sampling}
        )

    def step_all(self) -> None:
        for turn in list(self.loop._turns.values()):
            self.loop.step(turn)

    def finish(self) -> None:
        while self.loop._turns:
            self.step_all()

    def ids(self, request: int) -> list[int]:
        return [m["id"] for m in self.outbox.messages if m["request"] == request and m.get("id") is not None]

    def end(self, request: int) -> dict[str, Any]:
        [end] = [m for m in self.outbox.messages if m["request"] == request and m["event"] == "end"]
        return end


def expected(prompt: list[int], count: int) -> list[int]:
    seen, new = list(prompt), []
    for _ in range(count):
        new.append((sum(seen) * 7 + 3) % VOCABULARY)
        seen.append(new[-1])
        if new[-1] == END:
            break
    return new


def test_generation_feeds_every_token_once() -> None:
    bench = Bench()
    bench.start(1, 1, [10, 20, 30])
    bench.finish()
    assert bench.ids(1) == expected([10, 20, 30], 6)
    assert bench.end(1)["reason"] == "length"


def test_s33_the_last_token_of_a_reply_is_fed_with_the_next_turn() -> None:
    bench = Bench()
    bench.start(1, 1, [10, 20])
    bench.finish()
    reply = bench.ids(1)
    entry = bench.cache._entries[1]
    assert entry.ids == [10, 20, *reply[:-1]]
    longer = [10, 20, *reply, 40]
    bench.start(2, 1, longer)
    bench.finish()
    assert bench.end(2)["reused"] == len(longer) - 2
    assert bench.ids(2) == expected(longer, 6)


def test_s29_s30_a_hit_equals_a_miss_and_sessions_never_mix() -> None:
    warm, prompts = Bench(), {1: [11, 12, 13], 2: [11, 12, 99]}
    for request, key in enumerate((1, 2, 1, 2), start=1):
        warm.start(request, key, prompts[key])
        warm.finish()
        assert warm.ids(request) == expected(prompts[key], 6)


def test_interleaved_turns_equal_turns_alone() -> None:
    bench = Bench()
    for request in range(1, 6):
        bench.start(request, request, [request, 50])
        bench.step_all()
    bench.finish()
    for request in range(1, 6):
        assert bench.ids(request) == expected([request, 50], 6)


def test_s20_cancelling_unknown_finished_or_twice_is_nothing() -> None:
    bench = Bench()
    bench.loop.handle({"op": "cancel", "request": 99})
    bench.start(1, 1, [10])
    bench.finish()
    bench.start(2, 1, [10, 20])
    bench.step_all()
    for request in (1, 2, 2):
        bench.loop.handle({"op": "cancel", "request": request})
    assert bench.end(1)["reason"] != "cancelled"
    assert bench.end(2)["reason"] == "cancelled"
    assert not bench.loop._turns


def test_s11_s21_a_cancelled_turn_frees_its_entry_once_and_harms_nobody() -> None:
    bench = Bench(budget=2 * SHAPE.bytes_for(1))
    bench.start(1, 1, [10, 20])
    bench.start(2, 2, [30])
    bench.step_all()
    bench.loop.handle({"op": "cancel", "request": 1})
    bench.start(3, 3, [40])  # takes the place of the first
    bench.finish()
    assert bench.ids(2) == expected([30], 6)
    assert bench.ids(3) == expected([40], 6)
    bench.start(4, 1, [10, 20])
    bench.finish()
    assert bench.ids(4) == expected([10, 20], 6)


def test_a_full_cache_rejects_the_turn_alone() -> None:
    bench = Bench(budget=SHAPE.bytes_for(1))
    bench.start(1, 1, [10])
    bench.start(2, 2, [20])
    assert bench.outbox.messages == [{"event": "rejected", "request": 2}]
    bench.finish()
    assert bench.ids(1) == expected([10], 6)


def test_a_released_session_is_forgotten_even_in_flight() -> None:
    bench = Bench()
    bench.start(1, 1, [10])
    bench.loop.handle({"op": "release", "key": 1})
    bench.finish()
    assert bench.ids(1) == expected([10], 6)
    assert bench.cache.used_bytes == 0


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


def test_engine_time_is_divided_between_waiting_and_work() -> None:
    bench = Bench()
    bench.start(1, 1, [10])
    bench.finish()
    end = bench.end(1)
    assert end["prefill_ns"] > 0
    assert end["decode_ns"] > 0
    assert end["queue_ns"] >= 0
