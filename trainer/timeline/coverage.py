"""Where a trace tells what its device did, and where it doesn't."""

import numpy as np
from numpy.typing import NDArray

from trainer.timeline import intervals
from trainer.timeline.clock import NS_PER_MS
from trainer.timeline.intervals import EMPTY, Set
from trainer.timeline.model import Recording, StepMark, TraceFile
from trainer.timeline.roles import DEVICE_ROLES, Role, roles_of

# Pauses inside a burst of operators, where a file keeps one occurrence of each.
_BURST_NS = NS_PER_MS


def extent(file: TraceFile) -> tuple[int, int]:
    """First start and last end of a file's events, in ns."""
    parts = [part for part in file.tracks.values() if len(part)]
    return min(int(part.start.min()) for part in parts), max(int(part.end.max()) for part in parts)


def evidence(
    files: list[TraceFile],
    recording: Recording,
    steps: tuple[StepMark, ...],
    computing: Set,
    communication: Set,
) -> Set:
    """Where the trace tells what the device did: the extent of each file with device rows, without lost windows."""
    windows = [extent(file) for file in files if has_device_rows(file, recording)]
    busy = intervals.union_of(computing, communication)
    if not all(file.complete for file in files):
        # One occurrence of each operator: inside a burst of operators the pauses are real, between bursts unknown.
        pause = np.append(np.diff(np.column_stack([busy[:-1, 1], busy[1:, 0]]), axis=1).ravel(), 0)
        return intervals.union(busy[:, 0], busy[:, 1] + np.where(pause <= _BURST_NS, pause, 0))
    seen = intervals.union(np.array([w[0] for w in windows]), np.array([w[1] for w in windows]))
    kept = np.concatenate([file.launch_ns for file in files])
    lost = np.concatenate([file.lost_launch_ns for file in files])
    return intervals.difference(
        seen,
        intervals.union_of(_lost_head(kept, lost, busy), _lost_steps(steps, computing)),
    )


def has_device_rows(file: TraceFile, recording: Recording) -> bool:
    """Whether a file shows any work of a device."""
    kinds, names = recording.kinds.texts, recording.names.texts
    device = (*DEVICE_ROLES, Role.PROFILER_COMPUTE, Role.PROFILER_COMMUNICATION)
    return any(
        np.isin(roles_of(part, key[0], key[1], kinds, names), device).any()
        for key, part in file.tracks.items()
        if len(part)
    )


def _lost_head(kept: NDArray[np.int64], lost: NDArray[np.int64], busy: Set) -> Set:
    """From the first launch without a task to the first one that has one, where that is before the first task."""
    if not len(lost) or not len(busy) or lost.min() >= busy[0, 0]:
        return EMPTY
    later = kept[kept > lost.min()]
    until = min(int(busy[0, 0]), int(later.min())) if len(later) else int(busy[0, 0])
    return np.array([[int(lost.min()), until]], np.int64)


def _lost_steps(steps: tuple[StepMark, ...], computing: Set) -> Set:
    """Steps without any computation: they were run, so that their device data was lost."""
    if not len(computing):
        return EMPTY
    empty = [
        (step.start_ns, step.end_ns)
        for step in steps
        if not len(intervals.clip(computing, step.start_ns, step.end_ns))
    ]
    return intervals.union(
        np.array([w[0] for w in empty], np.int64), np.array([w[1] for w in empty], np.int64)
    )
