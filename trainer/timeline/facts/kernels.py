"""Kernels and operators: what bounds them, and the operators that eat time for little work."""

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

from trainer.timeline.assemble import Rank
from trainer.timeline.events import Ints
from trainer.timeline.facts.subject import Fact, Subject, ms, share
from trainer.timeline.model import KernelTable, OperatorTime, Recording
from trainer.timeline.roles import Role
from trainer.timeline.rulebook import rulebook

_GATHER = re.compile(r"^(gather|embedding|index_?select|take)", re.I)
_SCATTER = re.compile(r"^(scatter|tensorscatter|index_?(add|put)|unsortedsegment|inplaceindexadd)", re.I)
_SOFTMAX = re.compile(r"softmax", re.I)
_RECURRENT = re.compile(r"(lstm|gru|rnn)", re.I)
_MATMUL = re.compile(r"(matmul|^mm$|^linear|dense)", re.I)
_BIAS = re.compile(r"^(biasadd|add|adds)$", re.I)
_GELU = re.compile(r"gelu", re.I)
_LAST_AXIS = re.compile(r"(\d+)\"?\s*(?:;|$|\")")


def bound_facts(ranks: list[Rank], kinds: list[str]) -> dict[str, Fact]:
    """How much of the kernels' time is bound by memory or by the compute units; None without such counters."""
    tables = [table for rank in ranks for table in rank.kernels if len(table.duration_ns)]
    if not tables:
        return {"bandwidth_bound_share": Fact(None, "share", "no kernel table")}
    whole = bandwidth = compute = unknown = weighted = 0.0
    for table in tables:
        duration = table.duration_ns.astype(np.float64)
        known = ~np.isnan(table.bandwidth_ratio)
        mac = np.nan_to_num(table.mac_ratio)
        memory = np.nan_to_num(table.bandwidth_ratio)
        limits = rulebook().kernel_bounds
        computing = np.where(table.cube, mac >= limits["cube"].mac, mac >= limits["vector"].mac)
        waiting = np.where(
            table.cube, memory >= limits["cube"].bandwidth, memory >= limits["vector"].bandwidth
        )
        whole += duration.sum()
        compute += duration[known & computing].sum()
        bandwidth += duration[known & waiting & ~computing].sum()
        unknown += duration[~known].sum()
        weighted += (duration * memory)[known].sum()
    measured = whole - unknown
    where = f"{sum(len(table.duration_ns) for table in tables)} kernels"
    if measured < whole / 2:
        where = "the table has no memory counters for most kernels"
        measured = 0.0
    return {
        "bandwidth_bound_share": share(bandwidth, measured, where),
        "compute_bound_share": share(compute, measured, where),
        "bandwidth_utilisation": share(weighted, measured, where),
        "kernels_without_counters_share": share(unknown, whole, where),
    }


def operator_subjects(ranks: list[Rank], recording: Recording) -> list[Subject]:
    """One subject a rank that has operators: from kernel tables, operator tables, or the names in its timeline."""
    subjects = []
    told = {item.rank for item in recording.operators}
    for rank in ranks:
        if rank.kernels:
            facts = _of_tables(rank.kernels, recording)
        elif rank.rank not in told:
            facts = _of_timeline(rank, recording)
        else:
            continue
        if facts:
            subjects.append(Subject("operators", f"rank {rank.rank}", facts))
    for number in sorted(told - {rank.rank for rank in ranks if rank.kernels}):
        rows = [item for item in recording.operators if item.rank == number]
        subjects.append(Subject("operators", f"rank {number}", _of_rows(rows)))
    return subjects


def _of_rows(rows: list[OperatorTime]) -> dict[str, Fact]:
    times: dict[str, float] = {}
    for row in rows:
        times[row.op_type] = times.get(row.op_type, 0.0) + row.duration_ns
    whole = sum(times.values())
    facts = _shares(times, whole)
    limit = rulebook().large_softmax_axis
    large = [row for row in rows if _SOFTMAX.search(row.op_type) and (row.largest_last_axis or 0) >= limit]
    axes = [row.largest_last_axis or 0 for row in large]
    known = any(row.largest_last_axis for row in rows)
    facts["large_softmax_share"] = (
        share(sum(row.duration_ns for row in large), whole) if known else Fact(None, "share")
    )
    facts["softmax_axis"] = Fact(float(max(axes)) if axes else None)
    shapes = [row for row in rows if row.shapes is not None]
    if shapes:
        facts["shapes_of_one_operator"] = Fact(float(max(row.shapes or 0 for row in shapes)))
        facts["dynamic_share"] = share(sum(row.duration_ns for row in shapes if (row.shapes or 0) > 1), whole)
    return facts


def _shares(times: dict[str, float], whole: float) -> dict[str, Fact]:
    gather = _matching(times, _GATHER)
    scatter = _matching(times, _SCATTER)
    pair = gather + scatter if gather and scatter else 0.0
    return {
        "gather_scatter_share": share(pair, whole),
        "gather_ms": ms(gather),
        "scatter_ms": ms(scatter),
        "recurrent_share": share(_matching(times, _RECURRENT), whole),
    }


def _matching(times: dict[str, float], pattern: re.Pattern[str]) -> float:
    return math.fsum(time for name, time in times.items() if pattern.search(name))


def _of_tables(tables: Iterable[KernelTable], recording: Recording) -> dict[str, Fact]:
    times: dict[str, float] = {}
    shapes: dict[int, set[int]] = {}
    large = dynamic = 0.0
    axis, unfused, unfused_ns = 0, 0, 0.0
    kinds = recording.kinds.texts
    for table in tables:
        for kind in np.unique(table.op_type):
            chosen = table.op_type == kind
            name = kinds[kind]
            times[name] = times.get(name, 0.0) + float(table.duration_ns[chosen].sum())
            shapes.setdefault(int(kind), set()).update(np.unique(table.shapes[chosen]).tolist())
            if _SOFTMAX.search(name):
                for shape in np.unique(table.shapes[chosen]):
                    last = last_axis(recording.shapes.texts[shape])
                    if last >= rulebook().large_softmax_axis:
                        large += float(table.duration_ns[chosen & (table.shapes == shape)].sum())
                        axis = max(axis, last)
        dynamic += float(table.duration_ns[table.dynamic].sum())
        order = np.argsort(table.start_ns, kind="stable")
        count, time = _unfused([kinds[kind] for kind in table.op_type[order]], table.duration_ns[order])
        unfused, unfused_ns = unfused + count, unfused_ns + time
    whole = math.fsum(times.values())
    return _shares(times, whole) | {
        "large_softmax_share": share(large, whole),
        "softmax_axis": Fact(float(axis) if axis else None),
        "unfused_gelu_count": Fact(float(unfused)),
        "unfused_gelu_share": share(unfused_ns, whole),
        "shapes_of_one_operator": Fact(float(max((len(found) for found in shapes.values()), default=0))),
        "dynamic_share": share(dynamic, whole),
    }


def last_axis(shapes: str) -> int:
    """The largest last axis among input shapes such as `"4,1024;4,8192"`; 0 where there is none."""
    return max((int(found) for found in _LAST_AXIS.findall(shapes)), default=0)


def _unfused(types: Sequence[str], durations: Ints) -> tuple[int, float]:
    """Matrix product, bias and GELU as three kernels in a row, in order of time: (how often, their time in ns)."""
    found = [
        at
        for at in range(len(types) - 2)
        if _GELU.search(types[at + 2]) and _BIAS.search(types[at + 1]) and _MATMUL.search(types[at])
    ]
    return len(found), float(sum(int(durations[at : at + 3].sum()) for at in found))


def _of_timeline(rank: Rank, recording: Recording) -> dict[str, Fact]:
    events = rank.events_of(Role.COMPUTE)
    if not len(events):
        return {}
    types = {int(number): operator_type(recording.names.texts[number]) for number in np.unique(events.name)}
    times: dict[str, float] = {}
    ids, index = np.unique(events.name, return_inverse=True)
    sums = np.bincount(index, weights=events.duration.astype(np.float64))
    for number, time in zip(ids, sums, strict=True):
        times[types[int(number)]] = times.get(types[int(number)], 0.0) + float(time)
    whole = math.fsum(times.values())
    count, time_ns = _unfused([types[number] for number in events.name.tolist()], events.duration)
    return _shares(times, whole) | {
        "unfused_gelu_count": Fact(float(count)),
        "unfused_gelu_share": share(time_ns, whole),
    }


def operator_type(name: str) -> str:
    """The operator's type in a timeline's name: `Default/.../MatMul-op81` is MatMul, `aclnnAdd_AddAiCore_Add` Add."""
    last = name.rsplit("/", 1)[-1]
    if "-op" in last:
        return last.split("-op")[0]
    if last.startswith("aclnn"):
        return last.rsplit("_", 1)[-1]
    return last
