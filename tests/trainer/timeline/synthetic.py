"""Traces written by the tests: small runs in the shape of CANN's export, with known truths."""

import json
import random
from pathlib import Path
from typing import Any

HARDWARE, HCCL = 3, 11
START_US = 1_700_000_000_000_000


def metadata(pid: int, name: str, tid: int | None = None) -> dict[str, Any]:
    if tid is None:
        return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def text_us(start_us: float) -> str:
    """A time as CANN writes it: µs with nanoseconds, as text. By whole numbers: a double of that size is too coarse."""
    ns = round(start_us * 1000)
    return f"{START_US + ns // 1000}.{ns % 1000:03d}"


HEAD = [
    metadata(HARDWARE, "Ascend Hardware"),
    metadata(HARDWARE, "Stream 2", 2),
    metadata(HARDWARE, "Step Trace(Model ID:1)", 1),
    metadata(HCCL, "Communication"),
    metadata(HCCL, "Group 0 Communication", 0),
]


def kernel(name: str, start_us: float, duration_us: float, task: str = "AI_CORE") -> dict[str, Any]:
    """A device task; times are texts with nanoseconds, as CANN writes them."""
    return {
        "ph": "X",
        "name": name,
        "pid": HARDWARE,
        "tid": 2,
        "ts": text_us(start_us),
        "dur": duration_us,
        "args": {"Task Type": task},
    }


def communication(name: str, start_us: float, duration_us: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": HCCL,
        "tid": 0,
        "ts": text_us(start_us),
        "dur": duration_us,
        "args": {},
    }


def step(number: int, start_us: float, duration_us: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": f"Iteration {number}",
        "cat": "Iteration Time",
        "pid": HARDWARE,
        "tid": 1,
        "ts": text_us(start_us),
        "dur": duration_us,
    }


def write_trace(path: Path, events: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(HEAD + events), encoding="utf-8")
    return path


def write_run(
    folder: Path,
    ranks: int,
    *,
    steps: int = 6,
    slow_rank: int | None = None,
    clock_us: dict[int, float] | None = None,
    kernels: int = 24,
    missing: frozenset[int] = frozenset(),
    seed: int = 7,
) -> Path:
    """A data-parallel run: forward and backward kernels, two all-reduces a step, the first hidden by the backward pass.

    All ranks leave a collective together, up to 3 µs apart. A slow rank computes half as long again, so that it
    communicates least. `clock_us` sets clocks forward.
    """
    clocks = clock_us or {}
    noise = random.Random(seed)
    work = {
        rank: [40 * (1 + 0.1 * noise.random()) * (1.5 if rank == slow_rank else 1) for _ in range(kernels)]
        for rank in range(ranks)
    }
    events: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(ranks)}
    begin = 0.0
    for number in range(1, steps + 1):
        ends = {}
        for rank in range(ranks):
            at, shift = begin + 5 * noise.random(), clocks.get(rank, 0.0)
            for index, duration in enumerate(work[rank]):
                name = f"Default/network/layer{index}/MatMul-op{index}"
                events[rank].append(kernel(name, at + shift, duration))
                at += duration + 2
            ends[rank] = at
        leave_first, leave = max(ends.values()) - 200, max(ends.values()) + 400
        for rank in range(ranks):
            shift, late = clocks.get(rank, 0.0), 3 * noise.random()
            first = ends[rank] - 400
            events[rank].append(
                communication("hcom_allReduce__1_0", first + shift, leave_first + late - first)
            )
            events[rank].append(
                communication("hcom_allReduce__1_1", ends[rank] + shift, leave + late - ends[rank])
            )
            events[rank].append(kernel("Default/optimizer/Adam-op99", leave + late + 5 + shift, 60))
        for rank in range(ranks):
            events[rank].append(step(number, begin + clocks.get(rank, 0.0), leave + 80 - begin))
        begin = leave + 100
    for rank, found in events.items():
        if rank not in missing:
            write_trace(folder / f"rank_{rank}" / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", found)
    return folder
