"""MindSpore's tables of operators with shapes (framework_raw) and average times (aicore_intermediate detail)."""

import json
from pathlib import Path

from trainer.timeline.clock import NS_PER_MS
from trainer.timeline.model import OperatorTime, Recording
from trainer.timeline.readers.tables import number, rows_of


def read_framework(path: Path, name: str, rank: int, recording: Recording) -> None:
    """framework_raw_N.csv: the operators' types and shapes; without times of their own."""
    for line, row in rows_of(path, name, recording):
        try:
            shapes = json.loads(row["op_info"])
        except ValueError:
            recording.quarantine.add(name, "malformed_row", f"line {line}")
            continue
        largest = None
        for key, tensor in shapes.items() if isinstance(shapes, dict) else ():
            if key.startswith("input") and isinstance(tensor, dict):
                axis = _last_axis(tensor.get("shape"))
                largest = axis if largest is None or (axis or 0) > largest else largest
        recording.framework[rank, row["full_kernel_name"]] = (row.get("kernel_type", ""), largest)


def _last_axis(shape: object) -> int | None:
    if isinstance(shape, str):
        shape = [int(part) for part in shape.split(",") if part.strip().isdecimal()]
    return int(shape[-1]) if isinstance(shape, list) and shape and isinstance(shape[-1], int) else None


def read_kernel_averages(path: Path, name: str, rank: int, recording: Recording) -> None:
    """aicore_intermediate_N_detail.csv: average time of each operator, in ms, and how often it ran."""
    for line, row in rows_of(path, name, recording):
        time, count = number(row["execution_time"]), number(row.get("execution_frequency"))
        if time is None or count is None or time < 0:
            recording.quarantine.add(name, "malformed_row", f"line {line}")
            continue
        recording.averages.append((rank, row["full_kernel_name"], time * NS_PER_MS * count, int(count)))


def join(recording: Recording) -> None:
    """Times from one table, types and shapes from the other, for ranks without a table by type."""
    with_types = {item.rank for item in recording.operators}
    for rank, name, duration, count in recording.averages:
        found = recording.framework.get((rank, name))
        if found is not None and rank not in with_types:
            recording.operators.append(
                OperatorTime(rank, found[0], duration, count, largest_last_axis=found[1])
            )
