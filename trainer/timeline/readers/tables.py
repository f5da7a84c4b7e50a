"""Comma-separated tables, a row at a time: step_trace_time, kernel_details, memory records."""

import csv
import io
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from trainer.ranks import MOST_RANKS
from trainer.timeline.clock import NS_PER_US, BadTime, to_ns
from trainer.timeline.events import Columns
from trainer.timeline.gzip_stream import damage_of, open_bytes
from trainer.timeline.model import KernelTable, MemoryPoint, Recording, StepSummary, TraceFile

Row = Mapping[str, str]
_BYTES = {"B": 1, "Byte": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_NOTHING = frozenset({"", "N/A", "NA", "null", "None"})


def header_of(path: Path) -> list[str]:
    """The names of the columns."""
    with open_bytes(path) as stream:
        line = stream.readline(1 << 20).decode("utf-8-sig", "replace")
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error:  # text of another kind: a lone carriage return, a NUL byte, a field of a megabyte
        return []


def rows_of(path: Path, name: str, recording: Recording) -> Iterator[tuple[int, Row]]:
    """(line, row) of a table; rows of another length than the header are counted and left out."""
    with open_bytes(path) as raw, io.TextIOWrapper(raw, "utf-8-sig", "replace", newline="") as stream:
        # A field of a table of kernels may be long, never a megabyte.
        reader = csv.reader(stream)
        try:
            header = [cell.strip() for cell in next(reader, [])]
            for cells in reader:
                if len(cells) == len(header):
                    yield reader.line_num, dict(zip(header, (cell.strip() for cell in cells), strict=True))
                elif cells:
                    recording.quarantine.add(
                        name, "malformed_row", f"line {reader.line_num}: {len(cells)} cells"
                    )
        except csv.Error as error:
            recording.quarantine.add(name, "broken_tail", f"line {reader.line_num}: {error}")
        if damage_of(raw):
            recording.quarantine.add(name, "broken_tail", f"line {reader.line_num}: {damage_of(raw)}")


def number(text: str | None) -> float | None:
    """A cell's number, or None where it holds none."""
    if text is None or text in _NOTHING:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_step_times(path: Path, name: str, rank: int | None, recording: Recording) -> None:
    """step_trace_time.csv and cluster_step_trace_time.csv: µs, a row a step and rank (or stage)."""
    for line, row in rows_of(path, name, recording):
        try:
            index = row.get("Index", row.get("Device_id", ""))
            if "Index" in row:
                ranks = tuple(int(part) for part in index.strip("()[] ").split(",") if part.strip())
            else:
                ranks = (rank if rank is not None else int(index or 0),)
            if ranks and not 0 <= min(ranks) <= max(ranks) < MOST_RANKS:
                recording.quarantine.add(name, "rank_beyond_limit", f"line {line}: {index[:40]}")
                continue
            summary = StepSummary(
                ranks=ranks,
                step=row["Step"],
                is_stage=row.get("Type", "rank") == "stage",
                computing_ns=to_ns(row["Computing"]),
                exposed_ns=to_ns(row["Communication(Not Overlapped)"]),
                communication_ns=to_ns(row["Communication"]),
                free_ns=to_ns(row["Free"]),
                stage_ns=_optional_ns(row.get("Stage")),
                bubble_ns=_optional_ns(row.get("Bubble")),
                source=f"{name}:{line}",
            )
            if min(summary.computing_ns, summary.exposed_ns, summary.communication_ns, summary.free_ns) < 0:
                raise ValueError("a negative time")
            recording.steps.append(summary)
        except (BadTime, KeyError, ValueError) as error:
            recording.quarantine.add(name, "malformed_row", f"line {line}: {error}")


def _optional_ns(text: str | None) -> int | None:
    return None if text is None or text in _NOTHING else to_ns(text)


def read_kernels(path: Path, name: str, rank: int | None, recording: Recording) -> TraceFile:
    """kernel_details.csv of any generation: kernels with what counters the table has."""
    file = TraceFile(path, name, rank)
    tracks: dict[tuple[str, str], Columns] = {}
    columns = _KernelColumns(recording)
    steps: dict[int, list[int]] = {}
    for line, row in rows_of(path, name, recording):
        try:
            # Start times may be texts with a tab behind them.
            start, duration = to_ns(row["Start Time(us)"]), to_ns(row["Duration(us)"])
        except BadTime as error:
            recording.quarantine.add(name, "malformed_row", f"line {line}: {error}")
            continue
        if duration < 0:
            recording.quarantine.add(name, "negative_duration", f"line {line}")
            continue
        core = row.get("Accelerator Core", "")
        stream = row.get("Stream ID", "N/A")
        track = (
            ("Communication", "kernel table")
            if core == "HCCL"
            else ("Ascend Hardware", f"Stream {stream} (kernel table)")
        )
        kind = recording.kinds.id_of("kernel" if core in _NOTHING else core)
        tracks.setdefault(track, Columns()).add(
            start, duration, recording.names.id_of(row.get("Name", "")), kind
        )
        if core != "HCCL":
            columns.add(name, line, row, start, duration)
        step = number(row.get("Step Id") or row.get("Step ID"))
        if step is not None:
            steps.setdefault(int(step), []).extend((start, start + duration))
    file.tracks = {key: found.freeze() for key, found in tracks.items()}
    file.events = sum(len(found) for found in file.tracks.values())
    file.kernels = columns.table()
    if steps:
        marks, kind = Columns(), recording.kinds.id_of("iteration time")
        for step, times in sorted(steps.items()):
            mark = recording.names.id_of(f"Step {step}")
            marks.add(min(times), max(times) - min(times), mark, kind)
        file.tracks["Step Trace", "kernel table"] = marks.freeze()
    return file


class _KernelColumns:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._ints = tuple(array("q") for _ in range(5))
        self._ratios = (array("d"), array("d"))
        self._flags = (array("b"), array("b"))

    def add(self, name: str, line: int, row: Row, start: int, duration: int) -> None:
        recording = self._recording
        core = row.get("Accelerator Core", "")
        vector = "VEC" in core or core == "AIV" or core == "MIX_AIV"
        mac = number(row.get("aic_mac_ratio"))
        bandwidth = _first_of(row, ("aiv_mte2_ratio", "aiv_mte3_ratio") if vector else ("aic_mte2_ratio",))
        for ratio in (mac, bandwidth):
            if ratio is not None and ratio > 1:
                recording.quarantine.add(name, "ratio_above_one", f"line {line}: {ratio}")
        values = (
            start,
            duration,
            recording.kinds.id_of(row.get("Type", "")),
            recording.shapes.id_of(row.get("Input Shapes", "")),
            int(number(row.get("Stream ID")) or 0),
        )
        for column, value in zip(self._ints, values, strict=True):
            column.append(value)
        for ratios, ratio in zip(self._ratios, (mac, bandwidth), strict=True):
            ratios.append(math.nan if ratio is None or ratio > 1 else ratio)
        self._flags[0].append(row.get("OP State", "") == "dynamic")
        self._flags[1].append(core.startswith(("AI_CORE", "AIC", "MIX_AIC")))

    def table(self) -> KernelTable:
        start, duration, op_type, shapes, stream = (np.frombuffer(ints, np.int64) for ints in self._ints)
        mac, bandwidth = (np.frombuffer(ratios, np.float64) for ratios in self._ratios)
        dynamic, cube = (np.frombuffer(flags, np.int8).astype(bool) for flags in self._flags)
        return KernelTable(
            start,
            duration,
            op_type.astype(np.int32),
            shapes.astype(np.int32),
            dynamic,
            cube,
            mac,
            bandwidth,
            stream.astype(np.int32),
        )


def _first_of(row: Row, columns: Sequence[str]) -> float | None:
    """The largest of the columns that the table has."""
    found = [value for column in columns if (value := number(row.get(column))) is not None]
    return max(found) if found else None


def read_memory(path: Path, name: str, rank: int | None, recording: Recording) -> None:
    """memory_record.csv, or MindSpore's record on a CPU: the units stand in the header."""
    names = header_of(path)
    time, ns_per_unit = next(
        (column, 1 if column.endswith("(ns)") else NS_PER_US) for column in names if "Timestamp" in column
    )
    allocated = next(column for column in names if column.startswith("Total Allocated"))
    reserved = next(column for column in names if column.startswith("Total Reserved"))
    for line, row in rows_of(path, name, recording):
        try:
            used, held = (float(row[column]) * unit_bytes(column) for column in (allocated, reserved))
            if not (0 <= used < math.inf and 0 <= held < math.inf):
                raise ValueError(f"{row[allocated]} allocated, {row[reserved]} reserved")
            at = to_ns(row[time], ns_per_unit)
            point = MemoryPoint(rank, at, used, held, row.get("Component", "framework"))
        except (BadTime, ValueError) as error:
            recording.quarantine.add(name, "malformed_row", f"line {line}: {error}")
            continue
        recording.memory.append(point)


def read_operator_memory(path: Path, name: str, rank: int | None, recording: Recording) -> None:
    """operator_memory.csv: allocations. A negative size or an empty release is normal, the rest is counted."""
    names = header_of(path)
    size = next(column for column in names if column.startswith("Size("))
    for line, row in rows_of(path, name, recording):
        if number(row[size]) is None:
            recording.quarantine.add(name, "malformed_row", f"line {line}: size {row[size]!r}")
            continue
        allocated = next((row[key] for key in names if key.startswith("Allocation Total Allocated")), None)
        reserved = next((row[key] for key in names if key.startswith("Allocation Total Reserved")), None)
        at, total, pool = row.get("Allocation Time(us)"), number(allocated), number(reserved)
        if total is None or pool is None or at is None or number(at) is None:
            continue  # released in the window, allocated before it
        unit = unit_bytes(next(key for key in names if key.startswith("Allocation Total Allocated")))
        recording.memory.append(MemoryPoint(rank, to_ns(at), total * unit, pool * unit, "operators"))


def unit_bytes(column: str) -> int:
    """Bytes of the unit that a column's name carries in brackets."""
    return _BYTES.get(column[column.rfind("(") + 1 : -1], 1)
