"""What the readers hand over: events of ranks in columns, and the rows of summary tables, all in integer ns."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.timeline.events import Interner, Slices, name_interner
from trainer.timeline.quarantine import Quarantine
from trainer.timeline.ranks import FolderRanks

TrackKey = tuple[str, str]  # (process row, thread row)


@dataclass(frozen=True)
class StepMark:
    """A step's window as the trace marks it."""

    step: int
    start_ns: int
    end_ns: int


@dataclass
class TraceFile:
    """One timeline file, read."""

    path: Path
    name: str  # relative to the folder, for reports
    rank: int | None
    header: dict[str, Any] = field(default_factory=dict)
    tracks: dict[TrackKey, Slices] = field(default_factory=dict)
    # Of host launches and the device tasks they started: start times in ns, paired by the reader.
    launch_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    launched_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    lost_launch_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    # (source, target, bytes, ns, whether it reduces in place, transport) of tasks inside collectives
    links: list[tuple[int, int, int, int, bool, str]] = field(default_factory=list)
    peers: set[int] = field(default_factory=set)
    events: int = 0
    # Of tables of kernels: the utilisations by operator, see `KernelTable`.
    kernels: "KernelTable | None" = None
    # False where a file keeps one occurrence of each operator only: time without an operator isn't idle then.
    complete: bool = True


@dataclass(frozen=True)
class KernelTable:
    """Kernels with their counters: arrays of equal length; NaN where a table has no such column."""

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    op_type: NDArray[np.int32]
    shapes: NDArray[np.int32]  # ids of the input shapes' text
    dynamic: NDArray[np.bool_]
    cube: NDArray[np.bool_]  # runs on the matrix unit
    mac_ratio: NDArray[np.float64]
    bandwidth_ratio: NDArray[
        np.float64
    ]  # share of the kernel's time in which memory is being read or written
    stream: NDArray[np.int32]


@dataclass(frozen=True)
class StepSummary:
    """A row of step_trace_time.csv (or its cluster form), in ns; None where a column is missing."""

    ranks: tuple[int, ...]
    step: str
    is_stage: bool
    computing_ns: int
    exposed_ns: int
    communication_ns: int
    free_ns: int
    stage_ns: int | None
    bubble_ns: int | None
    source: str

    @property
    def step_ns(self) -> int:
        """Computing + exposed + free: the step."""
        return self.computing_ns + self.exposed_ns + self.free_ns


@dataclass(frozen=True)
class PipelineSummary:
    """MindInsight's averages of a rank of a pipeline, in ns."""

    rank: int
    stages: int
    devices: int
    computing_ns: int
    communication_alone_ns: int
    stage_ns: int
    receive_alone_ns: int
    collective_alone_ns: int
    source: str

    @property
    def stage(self) -> int:
        """Stage number from 0; MindInsight's files count ranks stage by stage."""
        return self.rank * self.stages // self.devices


@dataclass(frozen=True)
class IntervalSummary:
    """MindInsight's average step of a rank, in ns: the pause before it and the whole."""

    rank: int
    interval_ns: int
    total_ns: int
    source: str


@dataclass(frozen=True)
class LinkTransfer:
    """Transfers of one operation over one link: from MindInsight's hccl_raw or communication.json."""

    rank: int
    link: str
    transport: str
    operation: str
    size_bytes: float
    duration_ns: float
    # What the file itself calls the link's bandwidth, bytes a second; not always size over time.
    stated_bandwidth: float | None
    source: str
    message_bytes: float | None = None


@dataclass(frozen=True)
class CollectiveTime:
    """A communication operation of a rank, from communication.json, in ns."""

    rank: int
    group: str
    operation: str
    start_ns: int
    elapse_ns: int
    transit_ns: int
    wait_ns: int
    source: str


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of a rank's step (millions), from flops_summary."""

    rank: int
    mflops: float
    source: str


@dataclass(frozen=True)
class DataQueue:
    """Samples of the queue that feeds the device."""

    rank: int
    samples: int
    empty: int
    usage: float | None
    source: str


@dataclass(frozen=True)
class MemoryPoint:
    """Allocated and reserved bytes of a device at a time."""

    rank: int | None
    time_ns: int
    allocated_bytes: float
    reserved_bytes: float
    component: str


@dataclass(frozen=True)
class OperatorTime:
    """Time of an operator type in a rank, from a table of operators."""

    rank: int
    op_type: str
    duration_ns: float
    count: int
    shapes: int | None = None
    dynamic: bool = False
    largest_last_axis: int | None = None


@dataclass
class Recording:
    """Everything that the readers found in a folder."""

    files: list[TraceFile] = field(default_factory=list)
    steps: list[StepSummary] = field(default_factory=list)
    pipelines: list[PipelineSummary] = field(default_factory=list)
    intervals: list[IntervalSummary] = field(default_factory=list)
    transfers: list[LinkTransfer] = field(default_factory=list)
    collectives: list[CollectiveTime] = field(default_factory=list)
    flops: list[Flops] = field(default_factory=list)
    queues: list[DataQueue] = field(default_factory=list)
    memory: list[MemoryPoint] = field(default_factory=list)
    operators: list[OperatorTime] = field(default_factory=list)
    stages: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # Two halves of one table in MindSpore's older profiler: (rank, operator) → (type, largest last axis), and times.
    framework: dict[tuple[int, str], tuple[str, int | None]] = field(default_factory=dict)
    averages: list[tuple[int, str, float, int]] = field(default_factory=list)
    names: Interner = field(default_factory=name_interner)
    kinds: Interner = field(default_factory=Interner)
    shapes: Interner = field(default_factory=name_interner)
    quarantine: Quarantine = field(default_factory=Quarantine)
    read: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folder_ranks: FolderRanks = field(default_factory=lambda: FolderRanks(set()))
    world_sizes: dict[str, int] = field(default_factory=dict)  # where it was told → size

    @property
    def empty(self) -> bool:
        """Whether no file gave a single event, row or number."""
        tables = (
            self.steps, self.pipelines, self.intervals, self.transfers, self.collectives, self.flops, self.queues,
            self.memory, self.operators, self.framework, self.averages,
        )  # fmt: skip
        return not any(tables) and not any(file.events for file in self.files)
