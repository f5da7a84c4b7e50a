"""time × device × metric, on corrected clocks. A cell that the trace says nothing about is unknown, not zero."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.timeline import intervals
from trainer.timeline.assemble import Rank
from trainer.timeline.facts.parts import StepParts
from trainer.timeline.facts.world import World
from trainer.timeline.intervals import Set
from trainer.timeline.skew import Skew

METRICS = ("compute_utilisation", "memory_bandwidth_utilisation", "communication_wait")
# Cells of all metrics together: what a browser draws and a file holds without trouble.
_CELLS = 2_500_000
_MOST_BINS = 2_048
_LEAST_BINS = 64
# A cell is known when the trace covers at least half of it.
_KNOWN = 0.5


@dataclass(frozen=True)
class Cube:
    """values[metric]: array of shape (ranks, bins), shares of the bin from 0 to 1, NaN where unknown."""

    ranks: tuple[int, ...]
    edges_ns: NDArray[np.int64]  # bins + 1, on the reference's clock
    values: dict[str, NDArray[np.float64]]
    steps: tuple[tuple[int, int, int], ...]  # (step, start, end) of the first rank that marks steps
    why_unknown: dict[int, str]
    notes: tuple[str, ...] = ()

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.edges_ns) - 1


def build_cube(ranks: list[Rank], skew: Skew, world: World, tables: list[StepParts]) -> Cube:
    """Cut the common window into bins; missing ranks have rows of their own, all unknown.

    Without any timeline, the steps of `tables` (the profiler's own) become the bins.
    """
    if tables and not any(len(rank.evidence) for rank in ranks):
        return _of_tables(tables, world)
    shifts = {rank.rank: skew.correction_ns(rank.rank) for rank in ranks}
    windows = [
        (int(rank.evidence[0, 0]) - shifts[rank.rank], int(rank.evidence[-1, 1]) - shifts[rank.rank])
        for rank in ranks
        if len(rank.evidence)
    ] or [(rank.start_ns, rank.end_ns) for rank in ranks]
    rows = tuple(sorted({rank.rank for rank in ranks} | set(world.missing) | set(world.present)))
    start = min((low for low, _ in windows), default=0)
    end = max((high for _, high in windows), default=start + 1)
    bins = int(
        min(_MOST_BINS, max(_LEAST_BINS, _CELLS // (len(METRICS) * max(1, len(rows)))), max(1, end - start))
    )
    # Integer edges, the last one exactly the end.
    edges = start + (np.arange(bins + 1, dtype=np.int64) * (end - start)) // bins
    values = {metric: np.full((len(rows), bins), np.nan) for metric in METRICS}
    why = dict.fromkeys(world.missing, "not in the folder")
    why |= dict.fromkeys(world.present, "only summary tables, no timeline")
    for rank in ranks:
        del why[rank.rank]
    for rank in ranks:
        at = rows.index(rank.rank)
        if not len(rank.evidence):
            why[rank.rank] = rank.why_unknown or "no device rows in its trace"
            continue
        for metric, row in _rows(rank, edges + shifts[rank.rank]).items():
            values[metric][at] = row
    marks: tuple[tuple[int, int, int], ...] = ()
    for rank in ranks:
        if rank.steps and not marks:
            shift = shifts[rank.rank]
            marks = tuple((step.step, step.start_ns - shift, step.end_ns - shift) for step in rank.steps)
    return Cube(rows, edges, values, marks, why)


def _of_tables(tables: list[StepParts], world: World) -> Cube:
    """Each step of the tables as one bin, as long as the mean of its ranks; inside it nothing is known."""
    rows = tuple(sorted({part.rank for part in tables} | set(world.missing)))
    steps = list(dict.fromkeys(part.step for part in tables))
    lengths = [
        max(1, round(np.mean([part.step_ns for part in tables if part.step == step]))) for step in steps
    ]
    edges = np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))])
    values = {metric: np.full((len(rows), len(steps)), np.nan) for metric in METRICS}
    for part in tables:
        at, column = rows.index(part.rank), steps.index(part.step)
        values["compute_utilisation"][at, column] = part.computing_ns / part.step_ns
        values["communication_wait"][at, column] = part.exposed_ns / part.step_ns
    # Bins of one length, as fine as the shortest step asks for.
    bins = int(min(_MOST_BINS, max(len(steps), 4 * len(steps))))
    fine = np.arange(bins + 1, dtype=np.int64) * int(edges[-1]) // bins
    of_step = np.searchsorted(edges, (fine[:-1] + fine[1:]) // 2, side="right") - 1
    marks = tuple(
        (number if (number := _number(step)) is not None else at, int(edges[at]), int(edges[at + 1]))
        for at, step in enumerate(steps)
    )
    note = "there are tables of steps only: the time axis is made of the steps' mean lengths, and shares are per step"
    why = dict.fromkeys(world.missing, "not in the folder")
    return Cube(rows, fine, {key: row[:, of_step] for key, row in values.items()}, marks, why, (note,))


def _number(text: str) -> int | None:
    try:
        return int(float(text))
    except ValueError:
        return None


def _rows(rank: Rank, edges: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    seen = _per_bin(rank.evidence, edges).astype(np.float64)
    width = np.diff(edges).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        covered = np.where((seen >= _KNOWN * width) & (seen > 0), seen, np.nan)
    exposed = intervals.difference(rank.communication, rank.computing)
    return {
        "compute_utilisation": _share(rank.computing, rank.evidence, edges, covered),
        "memory_bandwidth_utilisation": _bandwidth(rank, edges, covered),
        "communication_wait": _share(exposed, rank.evidence, edges, covered),
    }


def _per_bin(times: Set, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.diff(intervals.covered_until(times, edges))


def _share(
    times: Set, evidence: Set, edges: NDArray[np.int64], covered: NDArray[np.float64]
) -> NDArray[np.float64]:
    inside = intervals.intersection(times, evidence)
    return np.minimum(_per_bin(inside, edges) / covered, 1.0)


def _bandwidth(rank: Rank, edges: NDArray[np.int64], covered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean share of the time in which kernels read or write memory; unknown where their table has no such counters."""
    unknown = np.full(len(edges) - 1, np.nan)
    tables = [table for table in rank.kernels if len(table.start_ns)]
    if not tables:
        return unknown
    start = np.concatenate([table.start_ns for table in tables])
    end = start + np.concatenate([table.duration_ns for table in tables])
    ratio = np.concatenate([table.bandwidth_ratio for table in tables])
    measured = ~np.isnan(ratio)
    if not measured.any():
        return unknown
    busy = _weighted(start[measured], end[measured], ratio[measured], edges)
    # Kernels without a counter make a bin unknown once they fill more of it than those with one.
    without = _per_bin(intervals.union(start[~measured], end[~measured]), edges)
    having = _per_bin(intervals.union(start[measured], end[measured]), edges)
    known = without <= having
    return np.where(known, np.minimum(busy / covered, 1.0), np.nan)


def _weighted(
    start: NDArray[np.int64], end: NDArray[np.int64], weight: NDArray[np.float64], edges: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Integral over each bin of the sum of the weights of the intervals that are open."""
    origin = int(edges[0])

    def until(times: NDArray[np.int64]) -> NDArray[np.float64]:
        # Sum over intervals begun before t of weight * (t - begin).
        order = np.argsort(times, kind="stable")
        sorted_times = (times[order] - origin).astype(np.float64)
        sums = np.concatenate([[0.0], np.cumsum(weight[order])])
        moments = np.concatenate([[0.0], np.cumsum(weight[order] * sorted_times)])
        at = np.searchsorted(times[order], edges, side="right")
        found: NDArray[np.float64] = sums[at] * (edges - origin) - moments[at]
        return found

    result: NDArray[np.float64] = np.diff(until(start) - until(end))
    return np.maximum(result, 0.0)


def write_parquet(cube: Cube, path: Path) -> None:
    """One row a cell: rank, start_ns, end_ns and the metrics; unknown is null."""
    import pyarrow as pa
    from pyarrow import parquet

    count = len(cube.ranks)
    # From buffers: pa.array() would load pandas.
    columns = {
        "rank": _column(pa.int32(), np.repeat(np.array(cube.ranks, np.int32), cube.bins)),
        "start_ns": _column(pa.int64(), np.tile(cube.edges_ns[:-1], count)),
        "end_ns": _column(pa.int64(), np.tile(cube.edges_ns[1:], count)),
    }
    for metric in METRICS:
        columns[metric] = _column(pa.float64(), cube.values[metric].ravel())
    table = pa.table(
        columns, metadata={"clock": "reference rank, ns", "unit": "share of the bin, null = unknown"}
    )
    parquet.write_table(table, path, compression="zstd")


def _column(kind: Any, values: NDArray[Any]) -> Any:
    """An Arrow array over the memory of `values`; NaN is null."""
    import pyarrow as pa

    valid = None
    if values.dtype.kind == "f":
        valid = pa.py_buffer(np.packbits(~np.isnan(values), bitorder="little").tobytes())
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])
