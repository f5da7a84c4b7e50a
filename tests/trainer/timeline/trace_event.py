"""A strict check of the Trace Event Format, as far as trace.json uses it: what a viewer would drop or misplace."""

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

_METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
_KEYS = {
    "M": {"ph", "name", "pid", "args"},
    "X": {"ph", "name", "pid", "tid", "ts", "dur"},
    "C": {"ph", "name", "pid", "ts", "args"},
}


def check_trace_events(path: Path) -> dict[str, int]:
    """Assert that every event is one that viewers take as it is; returns the numbers of events by phase."""
    document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] == "ns" and isinstance(document["otherData"], dict)
    counts: dict[str, int] = defaultdict(int)
    names: dict[tuple[str, int, int | None], str] = {}
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    counters: dict[tuple[int, str], list[float]] = defaultdict(list)
    for event in document["traceEvents"]:
        phase = event["ph"]
        counts[phase] += 1
        assert event.keys() >= _KEYS[phase] and event.keys() <= _KEYS[phase] | {"args", "tid"}, event
        assert isinstance(event["name"], str) and event["name"], event
        assert all(type(event[key]) is int and event[key] >= 0 for key in ("pid", "tid") if key in event), (
            event
        )
        if phase == "M":
            key, kind = _METADATA[event["name"]]
            assert set(event["args"]) == {key} and type(event["args"][key]) is kind, event
            assert ("tid" in event) == event["name"].startswith("thread"), event
            told = (event["name"], event["pid"], event.get("tid"))
            assert told not in names, f"named twice: {told}"
            names[told] = str(event["args"][key])
        elif phase == "X":
            start, duration = _ns(event["ts"]), _ns(event["dur"])
            assert start >= 0 and duration >= 0, event
            tracks[event["pid"], event["tid"]].append((start, start + duration))
        else:
            assert event["args"] and all(_number(value) for value in event["args"].values()), event
            assert _ns(event["ts"]) >= 0
            counters[event["pid"], event["name"]].append(event["ts"])
    _all_named(names, set(tracks), {pid for pid, _ in counters})
    for track, slices in tracks.items():
        _nest(track, slices)
    for times in counters.values():
        assert times == sorted(times)
    return dict(counts)


def _all_named(
    names: dict[tuple[str, int, int | None], Any], tracks: set[tuple[int, int]], counting: set[int]
) -> None:
    assert all(("thread_name", pid, tid) in names for pid, tid in tracks)
    assert all(("process_name", pid, None) in names for pid in {pid for pid, _ in tracks} | counting)


def _nest(track: tuple[int, int], slices: list[tuple[int, int]]) -> None:
    around: list[int] = []
    for start, end in sorted(slices, key=lambda pair: (pair[0], -pair[1])):
        while around and around[-1] <= start:
            around.pop()
        assert not around or end <= around[-1], (
            f"track {track}: {start}..{end} crosses what ends at {around[-1]}"
        )
        around.append(end)


def _ns(value: float) -> int:
    """Microseconds as whole nanoseconds: nothing may be lost on the way."""
    assert _number(value)
    whole = round(value * 1000)
    assert abs(value * 1000 - whole) < 0.01, value
    return whole


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _refuse(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")
