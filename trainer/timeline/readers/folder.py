"""Find out what each file of a folder is, by its content, and read it."""

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from evalkit.errors import InputError
from trainer.files_below import files_below
from trainer.ranks import MOST_RANKS
from trainer.regular_file import require_regular, shown_path
from trainer.timeline.gzip_stream import damage_of, open_bytes
from trainer.timeline.model import Recording, TraceFile
from trainer.timeline.ranks import (
    FolderRanks,
    RankMap,
    rank_from_header,
    rank_from_map,
    rank_from_place,
    unused_patterns,
)
from trainer.timeline.readers import documents, frames, mindinsight, tables
from trainer.timeline.readers.chrome import read_chrome

_HEAD_BYTES = 1 << 16
_DOCUMENT_BYTES = 256 << 20
_SUFFIXES = (".json", ".csv", ".txt", ".gz")
KNOWN = (
    "trace_view.json / msprof JSON, Kineto traces (plain or .gz), step_trace_time.csv, kernel_details.csv, "
    "communication.json, memory_record.csv, and the raw tables of MindSpore's profiler"
)

# A table is told by columns that only it has.
_TABLES: tuple[tuple[frozenset[str], Callable[..., TraceFile | None]], ...] = (
    (frozenset({"Computing", "Communication(Not Overlapped)", "Free", "Step"}), tables.read_step_times),
    (frozenset({"Start Time(us)", "Duration(us)", "Name"}), tables.read_kernels),
    (frozenset({"Name", "Size(KB)", "Allocation Time(us)"}), tables.read_operator_memory),
    (frozenset({"Name", "Size(MB)", "Allocation Time(us)"}), tables.read_operator_memory),
    (frozenset({"step_num", "start_point", "end_point", "iteration_interval"}), mindinsight.read_step_trace),
    (frozenset({"step_num", "communication_operator_cost", "link_info"}), mindinsight.read_hccl),
    (frozenset({"computation_time", "communication_alone_time", "stage_time"}), mindinsight.read_pipeline),
    (frozenset({"kernel_type", "total_time", "execution_frequency"}), mindinsight.read_operator_types),
    (frozenset({"op_id", "output_queue_size", "output_queue_usage_rate"}), mindinsight.read_data_pipeline),
    (frozenset({"op_name", "start_time(ms)", "duration(ms)"}), mindinsight.read_timeline_text),
    (frozenset({"full_kernel_name", "op_info"}), frames.read_framework),
    (frozenset({"full_kernel_name", "execution_time"}), frames.read_kernel_averages),
)


def read_folder(root: Path, ranks: RankMap) -> Recording:
    """Read every profiler file below `root` (or `root` itself, if it is a file).

    Raises:
        InputError: `root` doesn't exist or holds nothing this tool knows.
    """
    if not root.exists():
        raise InputError(f"{root}: no such file or folder; give a profiler's output folder")
    require_regular(root)
    paths, unlisted = ([root], []) if root.is_file() else files_below(root)
    folder = root.parent if root.is_file() else root
    told = {path: _placed(path, folder, ranks) for path in paths}
    placed = {path: rank if rank is None or rank < MOST_RANKS else None for path, rank in told.items()}
    recording = Recording(folder_ranks=FolderRanks({rank for rank in placed.values() if rank is not None}))
    recording.notes.extend(
        f"the rank map's pattern {pattern!r} fits no file that a pattern before it doesn't: it changed nothing"
        for pattern in unused_patterns((path.relative_to(folder).as_posix() for path in paths), ranks)
    )
    for path, why in unlisted:
        recording.quarantine.add(shown_path(path.relative_to(folder)), "unreadable_folder", why)
    with _without_collector():
        for path in paths:
            if path.suffix not in _SUFFIXES and root != path:
                continue
            name = shown_path(path.relative_to(folder))
            if any(part.startswith(".") for part in Path(name).parts) or _is_own_report(path):
                continue
            if not path.is_file():
                why = (
                    "a broken link" if path.is_symlink() and not path.exists() else "a pipe, socket or device"
                )
                recording.quarantine.add(name, "unreadable_file", why)
                continue
            _note_beyond(told[path], name, recording)
            _read_one(path, name, placed[path], ranks, recording)
    frames.join(recording)
    if not recording.read or recording.empty:
        raise InputError(f"{shown_path(root)}: {_why_nothing(root, paths, recording)}")
    return recording


def _why_nothing(root: Path, paths: list[Path], recording: Recording) -> str:
    rows = recording.quarantine.rows()
    # Of a single file the reason alone: its name stands before it.
    reasons = [
        (f"{row['file']}: " if root.is_dir() else "") + (row["example"] or row["meaning"]) for row in rows
    ]
    reasons += [f"{name}: no rows" for name in recording.read]
    if reasons:
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        return f"nothing in it can be used: {'; '.join(reasons[:3])}{more}; known are {KNOWN}"
    if not paths:
        return "the folder is empty; give a profiler's output folder"
    kinds = ", ".join(
        f"{count} {suffix or 'without a suffix'}"
        for suffix, count in Counter(path.suffix for path in paths).most_common(4)
    )
    text = (
        "; databases aren't read, export the profile as text" if any(p.suffix == ".db" for p in paths) else ""
    )
    return (
        f"it holds no {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]} file ({kinds}){text}; known are {KNOWN}"
    )


def _is_own_report(path: Path) -> bool:
    """Whether a file was written by an earlier run of this tool, whose trace.json would be read as a trace."""
    return all((path.parent / name).is_file() for name in ("cube.parquet", "findings.json"))


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Parsed events hold no cycles: looking for some in them costs a third of the reading time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _placed(path: Path, folder: Path, ranks: RankMap) -> int | None:
    rank = rank_from_map(path.relative_to(folder).as_posix(), ranks)
    return rank if rank is not None else rank_from_place(path, folder)


def _read_one(path: Path, name: str, rank: int | None, ranks: RankMap, recording: Recording) -> None:
    try:
        with open_bytes(path) as stream:
            head = stream.read(_HEAD_BYTES)
            damage = damage_of(stream)
    except OSError as error:
        recording.quarantine.add(name, "unreadable_file", error.strerror or str(error))
        return
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    before = recording.quarantine.count("unreadable_file")
    if not text:
        kind, why = ("unreadable_file", damage) if damage else ("not_a_timeline", "an empty file")
        recording.quarantine.add(name, kind, why)
        return
    if text.startswith((b"[", b"{")):
        known = _read_json(path, name, text, rank, ranks, recording)
    else:
        known = _read_table(path, name, rank, recording)
    if known:
        recording.read.append(name)
    elif recording.quarantine.count("unreadable_file") == before and (
        path.suffix in (".json", ".csv", ".gz") or path.suffix not in _SUFFIXES
    ):
        recording.quarantine.add(name, "not_a_timeline", "no timed events, no known columns or keys")


def _read_table(path: Path, name: str, rank: int | None, recording: Recording) -> bool:
    if path.name.startswith("device_queue_profiling"):
        mindinsight.read_device_queue(path, name, _of_profile(path, rank, recording), recording)
        return True
    columns = frozenset(tables.header_of(path))
    if any(column.startswith("Timestamp") for column in columns) and {
        column.partition("(")[0] for column in columns
    } >= {"Total Allocated", "Total Reserved"}:
        tables.read_memory(path, name, rank, recording)
        return True
    for needed, read in _TABLES:
        if needed <= columns:
            own = columns & {"Device_id", "Index"}  # the table tells itself
            file = read(path, name, rank if own else _of_profile(path, rank, recording), recording)
            if file is not None:
                recording.files.append(file)
            return True
    return False


def _of_profile(path: Path, rank: int | None, recording: Recording) -> int:
    return rank if rank is not None else recording.folder_ranks.of(path)


def _read_json(
    path: Path, name: str, head: bytes, rank: int | None, ranks: RankMap, recording: Recording
) -> bool:
    is_list = head.startswith(b"[")
    if is_list and head[1:].lstrip()[:1] not in (b"{", b"]", b""):
        return False
    if not is_list and b'"traceEvents"' not in head:
        document = _document(path, name, recording)
        if not isinstance(document, dict):
            return False
        if "traceEvents" not in document:
            return _dispatch(document, path, name, rank, recording)
        del document
    file = read_chrome(path, name, rank, recording)
    if rank_from_map(name, ranks) is None:
        told = rank_from_header(file.header)
        file.rank = told if told is not None and told < MOST_RANKS else rank
        _note_beyond(told, name, recording)
    _note_world(file, recording)
    if not file.events:
        return False
    recording.files.append(file)
    return True


def _document(path: Path, name: str, recording: Recording) -> Any:
    with open_bytes(path) as stream:
        data = stream.read(_DOCUMENT_BYTES + 1)
        damage = damage_of(stream)
    if len(data) > _DOCUMENT_BYTES:
        # Only traces are larger, and they are streamed.
        return {"traceEvents": None}
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if b'"traceEvents"' in data:
            return {"traceEvents": None}
        recording.quarantine.add(name, "unreadable_file", damage or f"no valid JSON: {error}")
        return None


def _dispatch(
    document: dict[str, Any], path: Path, name: str, rank: int | None, recording: Recording
) -> bool:
    with _shape_errors(name, recording):
        if isinstance(document.get("maps"), dict):
            recording.files.extend(documents.read_operator_maps(document, path, name, recording))
            return True
        if "FLOPs" in document:
            mindinsight.read_flops(document, name, _of_profile(path, rank, recording), recording)
            return True
        if isinstance(document.get("op_info"), list) and "sampling_interval" in document:
            if "op_type" in str(document["op_info"][:1]):
                mindinsight.read_pipeline_profile(
                    document, name, _of_profile(path, rank, recording), recording
                )
                return True
            return False
        if isinstance(document.get("operator"), dict) and "dynamic" in path.name:
            mindinsight.read_dynamic_shapes(document, name, _of_profile(path, rank, recording), recording)
            return True
        before = len(recording.collectives)
        documents.read_communication(document, name, rank, recording)
        return len(recording.collectives) > before
    return False


@contextlib.contextmanager
def _shape_errors(name: str, recording: Recording) -> Iterator[None]:
    """A document of a known kind with another shape inside is an unreadable file, not a fault of ours."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError, IndexError) as error:
        recording.quarantine.add(name, "unreadable_file", f"unexpected content: {error!r}")


def _note_world(file: TraceFile, recording: Recording) -> None:
    told = file.header.get("distributedInfo")
    size = told.get("world_size") if isinstance(told, dict) else None
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        if size <= MOST_RANKS:
            recording.world_sizes[file.name] = size
        else:
            recording.quarantine.add(file.name, "rank_beyond_limit", f"world_size {str(size)[:20]}")


def _note_beyond(rank: int | None, name: str, recording: Recording) -> None:
    if rank is not None and rank >= MOST_RANKS:
        recording.quarantine.add(name, "rank_beyond_limit", f"rank {str(rank)[:20]}")
        recording.notes.append(
            f"{name}: rank {str(rank)[:20]} isn't believed, the highest is {MOST_RANKS - 1}"
        )
