"""The raw tables of MindSpore's older profiler, as MindInsight reads them. Ticks are 10 ns, times in files are ms."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.ranks import MOST_RANKS
from trainer.timeline.clock import NS_PER_MS, BadTime, to_ns
from trainer.timeline.events import Columns
from trainer.timeline.model import (
    DataQueue,
    Flops,
    IntervalSummary,
    LinkTransfer,
    OperatorTime,
    PipelineSummary,
    Recording,
    TraceFile,
)
from trainer.timeline.readers.tables import number, rows_of

_TICK_NS = 10
_PIPELINE_NAME = re.compile(r"_(\d+)_(\d+)_(\d+)\.csv")
_AVERAGE = "-"  # the row of averages; not derivable from the other rows, since the files are cut


def read_step_trace(path: Path, name: str, rank: int, recording: Recording) -> TraceFile:
    """step_trace_raw_N_detail_time.csv: steps in ticks; the reduce segments are its communication."""
    file = TraceFile(path, name, rank)
    marks, kind = Columns(), recording.kinds.id_of("iteration time")
    for line, row in rows_of(path, name, recording):
        try:
            start, end = (to_ns(int(row[key]), _TICK_NS) for key in ("start_point", "end_point"))
            interval = to_ns(int(row["iteration_interval"]), _TICK_NS)
        except ValueError as error:
            recording.quarantine.add(name, "malformed_row", f"line {line}: {error}")
            continue
        if row["step_num"] == _AVERAGE:
            recording.intervals.append(IntervalSummary(rank, interval, end - start, f"{name}:{line}"))
        elif end < start:
            recording.quarantine.add(name, "negative_duration", f"line {line}")
        else:
            marks.add(start, end - start, recording.names.id_of(f"Iteration {row['step_num']}"), kind)
    file.tracks["Step Trace", "step table"] = marks.freeze()
    file.events = len(marks)
    return file


def read_pipeline(path: Path, name: str, rank: int, recording: Recording) -> None:
    """ascend_cluster_analyse_pipeline-parallel_STAGES_DEVICES_RANK.csv: the last row holds the averages, in ms."""
    shape = _PIPELINE_NAME.search(path.name)
    rows = list(rows_of(path, name, recording))
    if shape is None or not rows:
        recording.quarantine.add(name, "unreadable_file", "no rows, or no _STAGES_DEVICES_RANK in its name")
        return
    line, row = rows[-1]
    stages, devices, rank = (int(part) for part in shape.groups())
    if not 0 < stages <= devices or not rank < devices <= MOST_RANKS:
        recording.quarantine.add(name, "unreadable_file", f"rank {rank} of {devices} in {stages} stages")
        return
    try:
        recording.pipelines.append(
            PipelineSummary(
                rank=rank,
                stages=stages,
                devices=devices,
                computing_ns=to_ns(row["computation_time"], NS_PER_MS),
                communication_alone_ns=to_ns(row["communication_alone_time"], NS_PER_MS),
                stage_ns=to_ns(row["stage_time"], NS_PER_MS),
                receive_alone_ns=to_ns(row["receive_alone_time"], NS_PER_MS),
                collective_alone_ns=to_ns(row["collective_communication_alone_time"], NS_PER_MS),
                source=f"{name}:{line}",
            )
        )
    except (BadTime, KeyError) as error:
        recording.quarantine.add(name, "malformed_row", f"line {line}: {error}")
    recording.world_sizes[name] = devices


def read_hccl(path: Path, name: str, rank: int, recording: Recording) -> None:
    """hccl_raw_N.csv: links of operations, from the row of averages where there is one."""
    chosen: tuple[int, Any] | None = None
    for line, row in rows_of(path, name, recording):
        if chosen is None or row["step_num"] == _AVERAGE:
            chosen = (line, row)
    if chosen is None:
        return
    line, row = chosen
    try:
        operations = json.loads(row["communication_operator_cost"])
        stated = json.loads(row["link_info"])
        for operation, (_, _, _, links) in operations.items():
            for link, transports in links.items():
                for transport, (time_ms, size_kb, _) in transports.items():
                    of_link = stated.get(link, {}).get(transport)
                    recording.transfers.append(
                        LinkTransfer(
                            rank,
                            link,
                            transport,
                            operation,
                            size_kb * 1e3,
                            time_ms * NS_PER_MS,
                            of_link[2] * 1e3 if of_link else None,
                            f"{name}:{line}",
                        )
                    )
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        recording.quarantine.add(name, "malformed_row", f"line {line}: {error}")


def read_timeline_text(path: Path, name: str, rank: int, recording: Recording) -> TraceFile:
    """output_timeline_data_N.txt: operators of streams, in ms."""
    file = TraceFile(path, name, rank)
    tracks: dict[str, Columns] = {}
    kind = recording.kinds.id_of("kernel")
    for line, row in rows_of(path, name, recording):
        try:
            start, duration = to_ns(row["start_time(ms)"], NS_PER_MS), to_ns(row["duration(ms)"], NS_PER_MS)
        except BadTime as error:
            recording.quarantine.add(name, "malformed_row", f"line {line}: {error}")
            continue
        if duration < 0:
            recording.quarantine.add(name, "negative_duration", f"line {line}")
            continue
        operator = recording.names.id_of(row["op_name"])
        tracks.setdefault(row["stream_id"], Columns()).add(start, duration, operator, kind)
    file.tracks = {
        ("Ascend Hardware", f"Stream {stream}"): found.freeze() for stream, found in tracks.items()
    }
    file.events = sum(len(found) for found in file.tracks.values())
    return file


def read_operator_types(path: Path, name: str, rank: int, recording: Recording) -> None:
    """aicore_intermediate_N_type.csv: total time of an operator type, in ms."""
    for line, row in rows_of(path, name, recording):
        total, count = number(row["total_time"]), number(row["execution_frequency"])
        if total is None or count is None or total < 0:
            recording.quarantine.add(name, "malformed_row", f"line {line}")
            continue
        recording.operators.append(OperatorTime(rank, row["kernel_type"], total * NS_PER_MS, int(count)))


def read_data_pipeline(path: Path, name: str, rank: int, recording: Recording) -> None:
    """minddata_pipeline_raw_N.csv: samples of the queues between the data operators; the last one feeds the device."""
    for line, row in rows_of(path, name, recording):
        try:
            samples = json.loads(row["output_queue_size"]) if row["output_queue_size"] else None
        except ValueError:
            recording.quarantine.add(name, "malformed_row", f"line {line}")
            continue
        if samples:
            usage = number(row["output_queue_usage_rate"])
            recording.queues.append(_queue(rank, samples, usage, f"{name}:{line}"))
            return  # the operators stand in order, the one nearest to the device first


def read_pipeline_profile(document: Any, name: str, rank: int, recording: Recording) -> None:
    """pipeline_profiling_N.json: the same samples in JSON."""
    operators = [item for item in document["op_info"] if (item.get("metrics") or {}).get("output_queue")]
    if not operators:
        return
    nearest = min(operators, key=lambda item: item["op_id"])
    queue = nearest["metrics"]["output_queue"]
    usage = sum(queue["size"]) / len(queue["size"]) / queue["length"] if queue["size"] else None
    recording.queues.append(_queue(rank, queue["size"], usage, name))


def read_device_queue(path: Path, name: str, rank: int, recording: Recording) -> None:
    """device_queue_profiling_N.txt: rows `type extra batch value time`; type 1 is the queue's length."""
    samples = []
    for cells in (line.split() for line in path.read_text(errors="replace").splitlines()):
        if len(cells) == 5 and all(cell.isdecimal() for cell in cells):
            if cells[0] == "1":
                samples.append(int(cells[3]))
        elif cells:
            recording.quarantine.add(name, "malformed_row", " ".join(cells))
    if samples:
        recording.queues.append(_queue(rank, samples, None, name))


def _queue(rank: int, samples: Sequence[float], usage: float | None, source: str) -> DataQueue:
    return DataQueue(rank, len(samples), sum(1 for size in samples if size == 0), usage, source)


def read_flops(document: Any, name: str, rank: int, recording: Recording) -> None:
    """flops_summary_N.json: millions of floating-point operations."""
    recording.flops.append(Flops(rank, float(document["FLOPs"]), name))


def read_dynamic_shapes(document: Any, name: str, rank: int, recording: Recording) -> None:
    """dynamic_shape_info_N.json: operators by step with their shapes and µs."""
    times: dict[str, list[float]] = {}
    shapes: dict[str, set[str]] = {}
    for operators in document["operator"].values():
        for item in operators:
            kind = str(item["op_type"])
            times.setdefault(kind, []).append(float(item["dur"]))
            shapes.setdefault(kind, set()).add(json.dumps(item["shape_info"]))
    for kind, durations in times.items():
        recording.operators.append(
            OperatorTime(rank, kind, sum(durations) * 1e3, len(durations), len(shapes[kind]), dynamic=True)
        )
