"""Which files of a folder belong together, on which clock, and whose they are."""

from collections.abc import Iterable

import numpy as np

from trainer.timeline.clock import NS_PER_MS
from trainer.timeline.coverage import extent, has_device_rows
from trainer.timeline.model import Recording, TraceFile
from trainer.timeline.quarantine import Quarantine
from trainer.timeline.roles import step_number

# Files whose times are further apart than this weren't recorded together.
_SAME_RECORDING_NS = 3_600_000 * NS_PER_MS
_SECOND_NS = 1_000 * NS_PER_MS
# An event further away than this many times the length of all others can't belong to them.
_FAR = 20
# From here on a trace is a burden to copy and to look at.
_LARGE_BYTES = 1 << 30


def select(recording: Recording) -> list[TraceFile]:
    """The files of one recording, each with a rank; what was left out is counted, what was assumed is noted."""
    for file in recording.files:
        _drop_far_events(file, recording.quarantine)
    files = [file for file in recording.files if any(len(part) for part in file.tracks.values())]
    _align_relative(files)
    files = _one_recording(files, recording)
    _give_ranks(files, recording)
    _advise_on_size(files, recording)
    return files


def _drop_far_events(file: TraceFile, quarantine: Quarantine) -> None:
    """Leave out events whose time stamps lie in another world, as ts 0.000 does in a trace of absolute times."""
    starts = np.concatenate([part.start for part in file.tracks.values()] or [np.empty(0, np.int64)])
    if len(starts) < 2:
        return
    starts.sort()
    _drop_endless(file, int(starts[-1] - starts[0]), quarantine)
    gaps = np.diff(starts)
    at = int(gaps.argmax())
    left, right = int(starts[at] - starts[0]), int(starts[-1] - starts[at + 1])
    if int(gaps[at]) <= _FAR * max(left, right, _SECOND_NS):
        return
    # A block of zeros is never the recording, however many there are; else the smaller side is left out.
    zeros = starts[0] == 0 and left == 0
    keep_right = zeros or at + 1 <= len(starts) - at - 1
    border = int(starts[at + 1])
    dropped = at + 1 if keep_right else len(starts) - at - 1
    share = f"{dropped} of {len(starts)} events ({100 * dropped / len(starts):.1f} %)"
    quarantine.add(file.name, "out_of_window", share, dropped)
    for key, part in file.tracks.items():
        file.tracks[key] = part.where(part.start >= border if keep_right else part.start < border)


def _drop_endless(file: TraceFile, span_ns: int, quarantine: Quarantine) -> None:
    """Leave out durations that have overflowed: many times longer than all the rest of the trace."""
    limit = _FAR * max(span_ns, _SECOND_NS)
    for key, part in file.tracks.items():
        endless = part.duration > limit
        if endless.any():
            example = f"{int(part.duration[endless].max())} ns in {key[0]} / {key[1]}"
            quarantine.add(file.name, "overflow", example, int(endless.sum()))
            file.tracks[key] = part.where(~endless)


def _align_relative(files: Iterable[TraceFile]) -> None:
    """MindInsight's timeline_display counts from 0; the text table of the same operators has the device's clock."""
    files = list(files)
    for file in files:
        if "timeline_display" not in file.path.name or extent(file)[0] != 0:
            continue
        tables = [
            other
            for other in files
            if other.rank == file.rank and other.path.name.startswith("output_timeline_data")
        ]
        if len(tables) == 1:
            shift = extent(tables[0])[0]
            file.tracks = {key: part.moved(-shift) for key, part in file.tracks.items()}


def _one_recording(files: list[TraceFile], recording: Recording) -> list[TraceFile]:
    """The files of one recording: the group with most ranks, then most events. Others are counted and named."""
    groups: list[list[TraceFile]] = []
    reach = 0
    for file in sorted(files, key=lambda item: extent(item)[0]):
        start, end = extent(file)
        if not groups or start > reach + _SAME_RECORDING_NS:
            groups.append([])
            reach = end
        groups[-1].append(file)
        reach = max(reach, end)
    if len(groups) < 2:
        return files
    chosen = max(
        groups,
        key=lambda group: (
            any(has_device_rows(file, recording) for file in group),
            len({file.rank for file in group}),
            sum(file.events for file in group),
        ),
    )
    for group in groups:
        for file in group if group is not chosen else ():
            recording.quarantine.add(file.name, "other_recording", "give one folder a recording", file.events)
            recording.world_sizes.pop(file.name, None)
    names = ", ".join(sorted({file.name for file in chosen})[:3])
    recording.notes.append(
        f"the folder holds {len(groups)} recordings of different times; the one of {names} was analysed"
    )
    return [file for file in files if file in chosen]


def _give_ranks(files: list[TraceFile], recording: Recording) -> None:
    taken = {file.rank for file in files if file.rank is not None}
    traced = {file.rank for file in files if file.kernels is None}
    for file in files:
        if file.rank is not None:
            continue
        # A trace without a rank belongs to the tables of its profile, unless another trace does.
        free = recording.folder_ranks.given(file.path)
        if free is None or free in traced:
            free = next(number for number in range(len(taken) + 1) if number not in taken)
        taken.add(free)
        traced.add(free)
        file.rank = free
        recording.notes.append(
            f"{file.name}: no rank in its content or name, taken as rank {free}; `--ranks FILE` says which it is"
        )


def _advise_on_size(files: list[TraceFile], recording: Recording) -> None:
    for file in files:
        size = file.path.stat().st_size
        if size < _LARGE_BYTES:
            continue
        numbers = {number for part in file.tracks.values() for number in np.unique(part.name)}
        steps = sum(1 for number in numbers if step_number(recording.names.texts[number]) is not None)
        each = f", {size / steps / (1 << 30):.2f} GiB a step" if steps else ""
        recording.notes.append(
            f"{file.name} has {size / (1 << 30):.1f} GiB for {file.events:,} events{each}: record fewer steps, without "
            "stacks and shapes, or only some ranks"
        )
