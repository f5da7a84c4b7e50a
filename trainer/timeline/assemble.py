"""From files to ranks: one time base, one set of rows a rank, with what each row means and what time it covers."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainer.timeline import intervals
from trainer.timeline.clock import NS_PER_MS
from trainer.timeline.events import Slices, concatenate, empty_slices, sorted_slices, without_duplicates
from trainer.timeline.intervals import EMPTY, Set
from trainer.timeline.model import KernelTable, Recording, StepMark, TraceFile, TrackKey
from trainer.timeline.quarantine import Quarantine
from trainer.timeline.roles import DEVICE_ROLES, Role, roles_of, step_number

# Files whose times are further apart than this weren't recorded together.
_SAME_RECORDING_NS = 3_600_000 * NS_PER_MS
_SECOND_NS = 1_000 * NS_PER_MS
_BURST_NS = NS_PER_MS
# An event further away than this many times the length of all others can't belong to them.
_FAR = 20
# Old Kineto traces count in whole microseconds: start and duration are each off by up to one.
_NESTING_TOLERANCE_NS = 1_000


@dataclass(frozen=True)
class Rank:
    """One rank's timeline on its own clock."""

    rank: int
    tracks: dict[TrackKey, Slices]
    roles: dict[TrackKey, NDArray[np.int8]]
    computing: Set
    communication: Set
    evidence: Set  # where the trace says what the device did
    steps: tuple[StepMark, ...]
    communication_events: Slices
    kernels: tuple[KernelTable, ...]
    links: tuple[tuple[int, int, int, int, bool, str], ...]
    peers: frozenset[int]
    launches: int
    lost_launches: int
    sources: tuple[str, ...]
    complete: bool = True
    why_unknown: str = ""

    @property
    def start_ns(self) -> int:
        """First evidence, or first event."""
        return min(int(part.start[0]) for part in self.tracks.values() if len(part))

    @property
    def end_ns(self) -> int:
        """Last end of an event."""
        return max(int(part.end.max()) for part in self.tracks.values() if len(part))

    def events_of(self, role: Role) -> Slices:
        """All events of a role."""
        return sorted_slices(
            concatenate(part.where(self.roles[key] == role) for key, part in self.tracks.items())
        )


def assemble(recording: Recording) -> list[Rank]:
    """The ranks of a recording, in order. Files are given a rank where they have none, with a note."""
    for file in recording.files:
        _drop_far_events(file, recording.quarantine)
    files = [file for file in recording.files if any(len(part) for part in file.tracks.values())]
    _align_relative(files)
    files = _one_recording(files, recording)
    _give_ranks(files, recording)
    by_rank: dict[int, list[TraceFile]] = {}
    for file in files:
        by_rank.setdefault(int(file.rank or 0), []).append(file)
    return [_rank(rank, by_rank[rank], recording) for rank in sorted(by_rank)]


def _extent(file: TraceFile) -> tuple[int, int]:
    parts = [part for part in file.tracks.values() if len(part)]
    return min(int(part.start.min()) for part in parts), max(int(part.end.max()) for part in parts)


def _drop_far_events(file: TraceFile, quarantine: Quarantine) -> None:
    """Leave out events whose time stamps lie in another world, as ts 0.000 does in a trace of absolute times."""
    starts = np.concatenate([part.start for part in file.tracks.values()] or [np.empty(0, np.int64)])
    if len(starts) < 2:
        return
    starts.sort()
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


def _align_relative(files: Iterable[TraceFile]) -> None:
    """MindInsight's timeline_display counts from 0; the text table of the same operators has the device's clock."""
    files = list(files)
    for file in files:
        if "timeline_display" not in file.path.name or _extent(file)[0] != 0:
            continue
        tables = [
            other
            for other in files
            if other.rank == file.rank and other.path.name.startswith("output_timeline_data")
        ]
        if len(tables) == 1:
            shift = _extent(tables[0])[0]
            file.tracks = {key: part.moved(-shift) for key, part in file.tracks.items()}


def _one_recording(files: list[TraceFile], recording: Recording) -> list[TraceFile]:
    """The files of one recording: the group with most ranks, then most events. Others are counted and named."""
    groups: list[list[TraceFile]] = []
    reach = 0
    for file in sorted(files, key=lambda item: _extent(item)[0]):
        start, end = _extent(file)
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
            any(_has_device_rows(file, recording) for file in group),
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
    for file in files:
        if file.rank is not None:
            continue
        free = next(number for number in range(len(taken) + 1) if number not in taken)
        taken.add(free)
        file.rank = free
        recording.notes.append(
            f"{file.name}: no rank in its content or name, taken as rank {free}; `--ranks FILE` says which it is"
        )


def _rank(rank: int, files: list[TraceFile], recording: Recording) -> Rank:
    quarantine = recording.quarantine
    tracks: dict[TrackKey, Slices] = {}
    for key in sorted({key for file in files for key in file.tracks}):
        parts = [file.tracks[key] for file in files if len(file.tracks.get(key, empty_slices()))]
        if len(parts) > 1:
            joined, copies = without_duplicates(concatenate(parts))
            quarantine.add(f"rank {rank}", "duplicate", f"{key[0]} / {key[1]}", copies)
        else:
            joined = sorted_slices(concatenate(parts))
        if len(joined):
            tracks[key] = joined
    kinds, names = recording.kinds.texts, recording.names.texts
    roles = {key: roles_of(part, key[0], key[1], kinds, names) for key, part in tracks.items()}
    for key in tracks:
        tracks[key] = _mended(tracks[key], roles[key], key, f"rank {rank}", quarantine)
    computing = _time_of(tracks, roles, Role.COMPUTE)
    communication = _time_of(tracks, roles, Role.COMMUNICATION)
    why = ""
    if not len(computing) and not len(communication):
        computing = _time_of(tracks, roles, Role.PROFILER_COMPUTE)
        communication = _time_of(tracks, roles, Role.PROFILER_COMMUNICATION)
        if not len(computing) and not len(communication):
            why = "no device rows in its trace: what the device did isn't known"
    lost = np.concatenate([file.lost_launch_ns for file in files])
    steps = _steps(tracks, roles, names)
    evidence = EMPTY if why else _evidence(files, recording, steps, lost, computing, communication)
    return Rank(
        rank=rank,
        tracks=tracks,
        roles=roles,
        computing=computing,
        communication=communication,
        evidence=evidence,
        steps=steps or _whole(computing, communication),
        communication_events=sorted_slices(
            concatenate(part.where(roles[key] == Role.COMMUNICATION) for key, part in tracks.items())
        ),
        kernels=tuple(file.kernels for file in files if file.kernels is not None),
        links=_distinct_links(files),
        peers=frozenset(peer for file in files for peer in file.peers),
        launches=sum(len(file.launch_ns) + len(file.lost_launch_ns) for file in files),
        lost_launches=len(lost),
        sources=tuple(file.name for file in files),
        complete=all(file.complete for file in files),
        why_unknown=why,
    )


def _distinct_links(files: list[TraceFile]) -> tuple[tuple[int, int, int, int, bool, str], ...]:
    # The HCCL export repeats the tasks of the msprof export of the same iteration.
    whole = [file for file in files if file.links and not file.path.name.startswith("hccl_")]
    return tuple(link for file in whole or files for link in file.links)


def _time_of(tracks: dict[TrackKey, Slices], roles: dict[TrackKey, NDArray[np.int8]], role: Role) -> Set:
    chosen = concatenate(part.where(roles[key] == role) for key, part in tracks.items())
    return intervals.union(chosen.start, chosen.end)


def _mended(
    part: Slices, roles: NDArray[np.int8], key: TrackKey, where: str, quarantine: Quarantine
) -> Slices:
    """Count overlaps on a track; on a device's stream, which runs one task at a time, cut them off."""
    if len(part) < 2:
        return part
    reach = np.maximum.accumulate(part.end)[:-1]
    inside = part.start[1:] < reach
    crossing = inside & (part.end[1:] > reach + _NESTING_TOLERANCE_NS)
    row = f"{key[0]} / {key[1]}"
    is_stream = key[1].lower().startswith("stream") or key[0].startswith("pid 1")
    if not is_stream:
        if np.isin(roles, (Role.HOST, Role.STEP)).any():
            quarantine.add(where, "child_after_parent", row, int(crossing.sum()))
        return part
    computing = roles == Role.COMPUTE
    if not computing.any():
        return part
    at = np.flatnonzero(computing)
    end = part.end
    following = part.start[at[1:]]
    overlaps = end[at[:-1]] > following + _NESTING_TOLERANCE_NS
    quarantine.add(where, "overlap_on_track", row, int(overlaps.sum()))
    if not overlaps.any():
        return part
    duration = part.duration.copy()
    duration[at[:-1]] = np.where(overlaps, following - part.start[at[:-1]], duration[at[:-1]])
    return replace(part, duration=duration)


def _steps(
    tracks: dict[TrackKey, Slices], roles: dict[TrackKey, NDArray[np.int8]], names: list[str]
) -> tuple[StepMark, ...]:
    """Step marks of the trace, one a step number (the host's or the profiler's own rows); sorted by time."""
    marks: dict[int, StepMark] = {}
    for key, part in tracks.items():
        chosen = part.where(roles[key] == Role.STEP)
        for start, end, name in zip(chosen.start, chosen.end, chosen.name, strict=True):
            number = step_number(names[name])
            if number is not None and number not in marks:
                marks[number] = StepMark(number, int(start), int(end))
    return tuple(sorted(marks.values(), key=lambda mark: mark.start_ns))


def _whole(computing: Set, communication: Set) -> tuple[StepMark, ...]:
    busy = intervals.union_of(computing, communication)
    return (StepMark(0, int(busy[0, 0]), int(busy[-1, 1])),) if len(busy) else ()


def _evidence(
    files: list[TraceFile],
    recording: Recording,
    steps: tuple[StepMark, ...],
    lost: NDArray[np.int64],
    computing: Set,
    communication: Set,
) -> Set:
    """Where the trace tells what the device did: the extent of each file with device rows, without lost windows."""
    windows = [_extent(file) for file in files if _has_device_rows(file, recording)]
    busy = intervals.union_of(computing, communication)
    if not all(file.complete for file in files):
        # One occurrence of each operator: inside a burst of operators the pauses are real, between bursts unknown.
        pause = np.append(np.diff(np.column_stack([busy[:-1, 1], busy[1:, 0]]), axis=1).ravel(), 0)
        return intervals.union(busy[:, 0], busy[:, 1] + np.where(pause <= _BURST_NS, pause, 0))
    seen = intervals.union(np.array([w[0] for w in windows]), np.array([w[1] for w in windows]))
    return intervals.difference(seen, _lost_windows(steps, lost, busy, computing))


def _has_device_rows(file: TraceFile, recording: Recording) -> bool:
    kinds, names = recording.kinds.texts, recording.names.texts
    device = (*DEVICE_ROLES, Role.PROFILER_COMPUTE, Role.PROFILER_COMMUNICATION)
    return any(
        np.isin(roles_of(part, key[0], key[1], kinds, names), device).any()
        for key, part in file.tracks.items()
        if len(part)
    )


def _lost_windows(steps: tuple[StepMark, ...], lost: NDArray[np.int64], busy: Set, computing: Set) -> Set:
    """Steps without any computation (they were run, so it was lost), and launches before the first device task."""
    windows = []
    if len(lost) and len(busy) and int(lost.min()) < int(busy[0, 0]):
        windows.append((int(lost.min()), int(busy[0, 0])))
    if len(computing):
        windows.extend(
            (step.start_ns, step.end_ns)
            for step in steps
            if not len(intervals.clip(computing, step.start_ns, step.end_ns))
        )
    return intervals.union(
        np.array([w[0] for w in windows], np.int64), np.array([w[1] for w in windows], np.int64)
    )
