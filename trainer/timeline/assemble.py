"""From files to ranks: one time base, one set of rows a rank, with what each row means and what time it covers."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trainer.timeline import coverage, intervals
from trainer.timeline.events import Slices, concatenate, empty_slices, sorted_slices, without_duplicates
from trainer.timeline.intervals import EMPTY, Set
from trainer.timeline.model import KernelTable, Recording, StepMark, TraceFile, TrackKey
from trainer.timeline.quarantine import Quarantine
from trainer.timeline.roles import Role, roles_of, step_number
from trainer.timeline.selection import select

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
    by_rank: dict[int, list[TraceFile]] = {}
    for file in select(recording):
        by_rank.setdefault(int(file.rank or 0), []).append(file)
    return [_rank(rank, by_rank[rank], recording) for rank in sorted(by_rank)]


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
    evidence = EMPTY if why else coverage.evidence(files, recording, steps, computing, communication)
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
    is_stream = key[1].lower().startswith("stream") or key[0] == "pid 1"
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
