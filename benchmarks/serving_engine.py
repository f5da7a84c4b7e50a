"""Our side of `benchmarks/serving.py --part engine`: the engine's loop in a process of its own."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from evalkit.bundle import load_bundle
from sandbox.engine.batcher import Batcher, BatchLimits
from sandbox.engine.kv_cache import KvRows, divide_budget, room_for
from sandbox.engine.prefix_cache import PrefixCache
from sandbox.engine.step_model import kv_shape, open_step_model

_ROWS = 32
# Turn 5 of a conversation whose four turns are 100 tokens each.
_TURNS, _USER_TOKENS, _REPLY_TOKENS = 5, 40, 60


class _Words:
    """No token ends a reply, and every token is a word: texts cost what they cost in service."""

    end_token = None

    def __init__(self, tokenizer: Any) -> None:
        self.decode = tokenizer.decode


class _Clock:
    """Notes when each token of each turn came."""

    def __init__(self) -> None:
        self.times: dict[int, list[float]] = {}
        self.cpu: dict[int, list[float]] = {}
        self.ids: dict[int, list[int]] = {}
        self.ends: dict[int, dict[str, Any]] = {}

    def write(self, *messages: dict[str, Any]) -> None:
        now, cpu = time.perf_counter(), time.process_time()
        for message in messages:
            if message["event"] in ("rejected", "broken"):
                raise RuntimeError(message["reason"])
            if message["event"] in ("token", "end"):
                self.times.setdefault(message["request"], []).append(now)
                self.cpu.setdefault(message["request"], []).append(cpu)
                self.ids.setdefault(message["request"], []).append(message["id"])
            if message["event"] == "end":
                self.ends[message["request"]] = message


class _Engine:
    def __init__(self, folder: Path, name: Any, kv_mib: int) -> None:
        bundle = load_bundle(folder)
        shape = kv_shape(bundle)
        plan = divide_budget(shape, kv_mib << 20, bundle.max_length, _ROWS)
        model = open_step_model(bundle, name, _ROWS)
        rows = KvRows(shape, plan.row_tokens)
        rows.lay_out(room_for(1, bundle.max_length), [])
        model.warm_up(rows)
        self.clock = _Clock()
        self.batcher = Batcher(
            model,
            _Words(bundle.tokenizer),  # type: ignore[arg-type]
            PrefixCache(shape, plan.blocks),
            rows,
            self.clock,
            BatchLimits(_ROWS, 1000, bundle.max_length),
        )
        self.vocab_size = bundle.model.vocab_size
        self._number = 0

    def start(self, key: int, prompt: list[int], new: int) -> int:
        self._number += 1
        sampling = {
            "max_new_tokens": new,
            "stop": [],
            "temperature": 0.0,
            "top_k": 0,
            "top_p": 1.0,
            "seed": 0,
        }
        message = {"op": "generate", "request": self._number, "key": key, "tenant": "", "shared": 0}
        self.batcher.handle({**message, "prompt": prompt, "sampling": sampling})
        return self._number

    def answer(self) -> None:
        while self.batcher._turns:
            self.batcher.round()

    def settle(self) -> None:
        while self.batcher.busy:
            self.batcher.round()

    def forget(self) -> None:
        for key in range(1000):
            self.batcher.handle({"op": "release", "key": key})
        self.batcher.round()


def speed(engine: _Engine, prompts: list[list[int]], new: int) -> dict[str, Any]:
    """Answer all prompts together."""
    begin, cpu_begin = time.perf_counter(), time.process_time()
    requests = [engine.start(key, prompt, new) for key, prompt in enumerate(prompts)]
    engine.answer()
    seconds, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
    times, cpu = engine.clock.times[requests[0]], engine.clock.cpu[requests[0]]
    result = {
        "seconds": seconds,
        "tokens_per_s": len(prompts) * new / seconds,
        "tokens_per_cpu_s": len(prompts) * new / cpu_s,
        "ms_per_token": 1e3 * (times[-1] - times[0]) / (new - 1),
        "cpu_ms_per_token": 1e3 * (cpu[-1] - cpu[0]) / (new - 1),
        "first_token_ms": 1e3 * (times[0] - begin),
        "ids": [engine.clock.ids[request] for request in requests[:1]],
    }
    engine.forget()
    return result


def fifth_turn(engine: _Engine, settled: bool, random: np.random.Generator) -> dict[str, Any]:
    """Time to the first token of turn 5, with what the four turns before left, and in a new session."""
    ids: list[int] = []
    for turn in range(_TURNS):
        ids += random.integers(6, engine.vocab_size, _USER_TOKENS).tolist()
        if turn < _TURNS - 1:
            request = engine.start(1, ids, _REPLY_TOKENS)
            (engine.settle if settled else engine.answer)()
            ids = [*ids, *engine.clock.ids[request]]
    warm, warm_ms, warm_cpu_ms = _first_token(engine, 1, ids)
    engine.forget()
    cold, cold_ms, cold_cpu_ms = _first_token(engine, 2, ids)
    engine.forget()
    return {
        "history": len(ids) - _USER_TOKENS,
        "reused": engine.clock.ends[warm]["reused"],
        "warm_ms": warm_ms,
        "cold_ms": cold_ms,
        "warm_cpu_ms": warm_cpu_ms,
        "cold_cpu_ms": cold_cpu_ms,
        "equal_ids": engine.clock.ids[cold] == engine.clock.ids[warm],
    }


def _first_token(engine: _Engine, key: int, ids: list[int]) -> tuple[int, float, float]:
    begin, cpu_begin = time.perf_counter(), time.process_time()
    request = engine.start(key, ids, _REPLY_TOKENS)
    engine.answer()
    return (
        request,
        1e3 * (engine.clock.times[request][0] - begin),
        1e3 * (engine.clock.cpu[request][0] - cpu_begin),
    )


def main() -> None:
    """Read one JSON object of settings from stdin, print one of measurements; see `benchmarks/serving.py`."""
    settings = json.load(sys.stdin)
    os.sched_setaffinity(0, settings["cores"])
    engine = _Engine(Path(settings["bundle"]), settings["engine"], settings["kv_mib"])
    random = np.random.default_rng(settings["seed"])
    new = settings["new_tokens"]
    result: dict[str, Any] = {}
    prompts = settings["prompts"]
    speed(engine, prompts[:1], 4)
    result["one"] = [speed(engine, prompts[:1], new) for _ in range(settings["repeats"])]
    if settings["batch"]:
        speed(engine, prompts, 2)
        result["batch"] = [speed(engine, prompts, new) for _ in range(settings["repeats"])]
    if settings["history"]:
        result["settled"] = [fifth_turn(engine, True, random) for _ in range(settings["repeats"])]
        result["at_once"] = [fifth_turn(engine, False, random) for _ in range(settings["repeats"])]
        for length in (100, 400, 1600):
            prompt = random.integers(6, engine.vocab_size, length).tolist()
            runs = [speed(engine, [prompt], 24) for _ in range(settings["repeats"])]
            result.setdefault("growth", {})[length] = runs
    result["kv_used_bytes"] = engine.batcher.used_bytes
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
