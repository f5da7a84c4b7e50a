"""JSON documents that are read whole: multi-device timelines by operator, communication times, small summaries."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.ranks import MOST_RANKS
from trainer.timeline.clock import NS_PER_MS, BadTime, to_ns
from trainer.timeline.events import Columns
from trainer.timeline.model import CollectiveTime, LinkTransfer, Recording, TraceFile

_NUMBER = re.compile(r"\d+")


def read_operator_maps(document: Any, path: Path, name: str, recording: Recording) -> list[TraceFile]:
    """MindInsight's cluster timeline: maps/deviceN/operator → {st, ed, dur} in µs.

    One occurrence of each operator is kept: it doesn't tell what lies between. Its minT isn't used: in a real file it lies 8.7 s before the first operator.
    """
    files = []
    kind = recording.kinds.id_of("")
    for device, operators in document["maps"].items():
        found = _NUMBER.search(str(device))
        if found is None or not isinstance(operators, dict):
            recording.quarantine.add(name, "malformed_event", str(device))
            continue
        if int(found.group()) >= MOST_RANKS:
            recording.quarantine.add(name, "rank_beyond_limit", str(device))
            continue
        file, columns = TraceFile(path, name, int(found.group()), complete=False), Columns()
        for operator, times in operators.items():
            try:
                start, end = to_ns(times["st"]), to_ns(times["ed"])
            except (BadTime, KeyError, TypeError) as error:
                recording.quarantine.add(name, "malformed_event", f"{device}/{operator}: {error}")
                continue
            if end <= start:
                bad = "zero_duration" if end == start else "negative_duration"
                recording.quarantine.add(name, bad, f"{device}/{operator}")
            if end >= start:
                columns.add(start, end - start, recording.names.id_of(operator), kind)
        file.tracks["Ascend Hardware", "Operators"] = columns.freeze()
        file.events = len(columns)
        files.append(file)
    for stage, content in (document.get("stage_data") or {}).items():
        number = _NUMBER.search(str(stage))
        devices = [_NUMBER.search(str(device)) for device in content.get("devices", [])]
        if number is not None and all(devices):
            ranks = tuple(int(device.group()) for device in devices if device)
            if max(ranks, default=0) < MOST_RANKS:
                recording.stages[int(number.group())] = ranks
            else:
                recording.quarantine.add(name, "rank_beyond_limit", f"stage {stage}")
    return files


def read_communication(document: Any, name: str, rank: int | None, recording: Recording) -> None:
    """communication.json of a rank (step → kind → operation) or of a cluster (group → operation → rank)."""
    for group, operation, of_rank, times in _operations(document, rank):
        if of_rank >= MOST_RANKS:
            recording.quarantine.add(name, "rank_beyond_limit", f"{operation}: rank {of_rank}")
            continue
        try:
            _read_operation(group, operation, of_rank, times, name, recording)
        except (BadTime, KeyError, TypeError, ValueError) as error:
            recording.quarantine.add(name, "malformed_row", f"{operation}: {error!r}")


def _operations(document: Any, rank: int | None) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """(group, operation, rank, its fields), wherever the nesting puts them."""
    stack: list[tuple[tuple[str, ...], Any]] = [((), document)]
    while stack:
        keys, value = stack.pop()
        if not isinstance(value, dict) or len(keys) > 6:
            continue
        if "Communication Time Info" in value:
            own = keys[-1].isdecimal() and len(keys) > 1
            operation = keys[-2] if own else keys[-1]
            of_rank = int(keys[-1]) if own else (rank if rank is not None else 0)
            group = operation.partition("@")[2] or keys[0]
            if not operation.startswith("Total"):
                yield group, operation.partition("@")[0], of_rank, value
            continue
        stack.extend(((*keys, str(key)), item) for key, item in reversed(list(value.items())))


def _read_operation(
    group: str, operation: str, rank: int, fields: dict[str, Any], name: str, recording: Recording
) -> None:
    times = fields["Communication Time Info"]
    elapse, transit, wait = (
        to_ns(times[key], NS_PER_MS) for key in ("Elapse Time(ms)", "Transit Time(ms)", "Wait Time(ms)")
    )
    start = to_ns(times.get("Start Timestamp(us)", 0))
    recording.collectives.append(CollectiveTime(rank, group, operation, start, elapse, transit, wait, name))
    for transport, link in (fields.get("Communication Bandwidth Info") or {}).items():
        for size_mb, (count, total_ms) in (link.get("Size Distribution") or {}).items():
            if count and total_ms > 0:
                message = float(size_mb) * 1e6
                recording.transfers.append(
                    LinkTransfer(
                        rank,
                        f"rank {rank}",
                        transport,
                        operation,
                        message * count,
                        total_ms * NS_PER_MS,
                        None,
                        name,
                        message,
                    )
                )
