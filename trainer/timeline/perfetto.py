"""trace.json: the corrected timeline for Perfetto (ui.perfetto.dev) and chrome://tracing.

Slices of one track must nest or follow each other, or viewers hide some: those that cross get a lane of their own.
A counter keeps its value until the next one, so that unknown cells, which write none, have slices that say so. Times are numbers of µs from the start of the window, so that a double holds them to the nanosecond.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from trainer.timeline import intervals
from trainer.timeline.assemble import Rank
from trainer.timeline.cube import Cube
from trainer.timeline.events import Ints, Slices
from trainer.timeline.model import MemoryPoint
from trainer.timeline.roles import Role
from trainer.timeline.skew import Skew

# More slices than this make a viewer slow; beyond it neighbours are drawn as one, and the file says so.
_MOST_SLICES = 400_000
_MOST_LANES = 16
_FIRST_UNKNOWN_ROW = 1_000_000  # below all other rows of a rank
_SHOWN = (Role.COMPUTE, Role.COMMUNICATION, Role.COPY, Role.STEP, Role.HOST, Role.DATA)


def write_trace(
    path: Path, ranks: list[Rank], skew: Skew, cube: Cube, names: list[str], memory: list[MemoryPoint]
) -> dict[str, Any]:
    """Write the file; returns what it says about itself (slices, lanes, what was merged)."""
    origin = min((rank.start_ns - skew.correction_ns(rank.rank) for rank in ranks), default=0)
    whole = sum(len(part) for rank in ranks for part in rank.tracks.values())
    merged = whole > _MOST_SLICES
    about: dict[str, Any] = {
        "origin_ns": origin,
        "clock": f"rank {skew.reference}",
        "events": whole,
        "merged": f"neighbouring slices are drawn as one: {whole} are more than a viewer bears"
        if merged
        else None,
    }
    count = lanes = cut = 0
    with path.open("wb") as stream:
        stream.write(b'{"displayTimeUnit":"ns","otherData":')
        stream.write(orjson.dumps(about))
        stream.write(b',"traceEvents":[\n')
        first = True
        for rank in ranks:
            shift = origin + skew.correction_ns(rank.rank)
            for event, of_lane in _rank_events(rank, shift, names, whole if merged else 0):
                stream.write((b"" if first else b",\n") + orjson.dumps(event))
                first = False
                count += event["ph"] == "X"
                lanes += of_lane
                cut += "cut_us" in event.get("args", {})
        known = {rank.rank for rank in ranks}
        for event in chain(_counters(cube, memory, origin, skew), _unknown(cube, origin, known)):
            stream.write((b"" if first else b",\n") + orjson.dumps(event))
            first = False
        stream.write(b"\n]}\n")
    return about | {"slices": count, "lanes": lanes, "cut": cut}


def _rank_events(
    rank: Rank, shift: int, names: list[str], merge_over: int
) -> Iterator[tuple[dict[str, Any], int]]:
    pid = rank.rank
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"rank {rank.rank}"}}, 0
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}, 0
    tid = 0
    exposed = intervals.difference(rank.communication, rank.computing)
    for label, found in (("computing (union)", rank.computing), ("exposed communication", exposed)):
        tid += 1
        yield from ((event, 0) for event in _row(pid, tid, label))
        step = 1 if not merge_over else max(1, len(found) // (_MOST_SLICES // 8))
        for at in range(0, len(found), step):
            start, end = found[at, 0], found[min(at + step, len(found)) - 1, 1]
            yield _slice(pid, tid, label, int(start) - shift, int(end - start)), 0
    for key, part in rank.tracks.items():
        chosen = part.where(np.isin(rank.roles[key], _SHOWN))
        if not len(chosen):
            continue
        budget = max(256, _MOST_SLICES * len(chosen) // merge_over) if merge_over else 0
        for lane, index in enumerate(lanes_of(chosen.start, chosen.end)):
            tid += 1
            label = f"{key[0]} / {key[1]}" + (f" (lane {lane + 1})" if lane else "")
            yield from ((event, 0) for event in _row(pid, tid, label))
            crossing = lane == _MOST_LANES - 1
            # Not bound to a name: a track's copy must be gone before the next one is made.
            events = _slices(chosen.where(index), crossing, pid, tid, shift, names, budget)
            yield from ((event, int(lane > 0)) for event in events)


def _row(pid: int, tid: int, label: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": label}}
    yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _slice(pid: int, tid: int, name: str, start: int, duration: int) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start / 1e3, "dur": duration / 1e3}


def _slices(
    part: Slices, crossing: bool, pid: int, tid: int, shift: int, names: list[str], budget: int
) -> Iterator[dict[str, Any]]:
    if budget and len(part) > budget:
        step = -(-len(part) // budget)
        reach = np.maximum.accumulate(part.end)
        for at in range(0, len(part), step):
            last = min(at + step, len(part)) - 1
            start = int(part.start[at])
            end = (
                int(reach[last])
                if last + 1 == len(part)
                else min(int(reach[last]), int(part.start[last + 1]))
            )
            yield _slice(pid, tid, f"{last - at + 1} slices", start - shift, max(0, end - start))
        return
    kept = nested_ends(part.start, part.end) - part.start if crossing else part.duration
    for start, duration, whole, name in zip(part.start, kept, part.duration, part.name, strict=True):
        event = _slice(pid, tid, names[name], int(start) - shift, int(duration))
        if duration != whole:
            event["args"] = {"cut_us": int(whole - duration) / 1e3}
        yield event


def lanes_of(start: Ints, end: Ints) -> list[Ints]:
    """Indexes of events (sorted by start, longest first) by lane: inside a lane they nest or follow."""
    if not len(start):
        return []
    reach = np.maximum.accumulate(end)[:-1]
    if not (start[1:] < reach).any():  # one after the other, as on most tracks
        return [np.arange(len(start))]
    lanes: list[list[int]] = [[]]
    open_ends: list[list[int]] = [[]]
    for at in range(len(start)):
        for lane, ends in enumerate(open_ends):
            while ends and ends[-1] <= start[at]:
                ends.pop()
            if not ends or end[at] <= ends[-1] or lane == _MOST_LANES - 1:
                ends.append(int(end[at]))
                lanes[lane].append(at)
                break
        else:
            lanes.append([at])
            open_ends.append([int(end[at])])
    return [np.array(lane, np.int64) for lane in lanes]


def nested_ends(start: Ints, end: Ints) -> Ints:
    """Ends of events (sorted by start) with whatever crosses the event around it cut off: for the last lane only."""
    ends = end.copy()
    around: list[int] = []
    for at in range(len(start)):
        while around and around[-1] <= start[at]:
            around.pop()
        if around:
            ends[at] = min(ends[at], around[-1])
        around.append(int(ends[at]))
    return ends


def _unknown(cube: Cube, origin: int, named: set[int]) -> Iterator[dict[str, Any]]:
    """A row of slices a rank and metric over the cells that nothing is known of; missing ranks have these alone."""
    for at, rank in enumerate(cube.ranks):
        if rank not in named:
            label = f"rank {rank}: {cube.why_unknown.get(rank, 'nothing known')}"
            yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": label}}
            yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        for number, (metric, rows) in enumerate(cube.values.items()):
            unknown = np.flatnonzero(np.diff(np.isnan(rows[at]).astype(np.int8), prepend=0, append=0))
            if len(unknown):
                yield from _row(rank, _FIRST_UNKNOWN_ROW + number, f"{metric}: unknown")
            for low, high in unknown.reshape(-1, 2):
                begin, end = int(cube.edges_ns[low]), int(cube.edges_ns[high])
                yield _slice(rank, _FIRST_UNKNOWN_ROW + number, "unknown", begin - origin, end - begin)


def _counters(cube: Cube, memory: list[MemoryPoint], origin: int, skew: Skew) -> Iterator[dict[str, Any]]:
    """The cube's rows and the memory records as counter tracks; an unknown cell writes nothing."""
    step = max(1, len(cube.ranks) * cube.bins * len(cube.values) // _MOST_SLICES)
    for metric, rows in cube.values.items():
        for rank, row in zip(cube.ranks, rows, strict=True):
            for at in range(0, cube.bins, step):
                if not np.isnan(row[at]):
                    ts = int(cube.edges_ns[at] - origin) / 1e3
                    yield {
                        "ph": "C",
                        "name": metric,
                        "pid": rank,
                        "ts": ts,
                        "args": {"share": round(float(row[at]), 4)},
                    }
    for point in memory[:: max(1, len(memory) // 10_000)]:
        rank = point.rank or 0
        ts = (point.time_ns - origin - skew.correction_ns(rank)) / 1e3
        if ts < 0:
            continue  # of before the window
        args = {"allocated": point.allocated_bytes / (1 << 20), "reserved": point.reserved_bytes / (1 << 20)}
        yield {"ph": "C", "name": f"memory MiB ({point.component})", "pid": rank, "ts": ts, "args": args}
