"""Rows of a table of runs that can't be right, so that nobody calibrates on a slip of the pen."""

from collections.abc import Sequence

from trainer.planning.cost import step_parts
from trainer.planning.measurements import Measurement

# Logged rates agree with the operations to 0.1 %; older formulae leave out a few per cent.
_RATE_TOLERANCE = 0.025
_SAME = 1e-3


def find_doubts(measurements: Sequence[Measurement], limit_gib: float | None = None) -> list[str]:
    """A sentence for each row that contradicts itself, the device, or its own mirror image.

    Args:
        measurements: of one table.
        limit_gib: the device's memory; None: not checked.
    """
    return [
        text
        for row in measurements
        for text in (_rate(row), _memory(row, limit_gib), _mirror(row, measurements))
        if text is not None
    ]


def _rate(row: Measurement) -> str | None:
    """Seconds · logged rate = operations of a device and step."""
    if row.seconds is None or row.tflops is None:
        return None
    work = step_parts(row.shape, row.training, peak_tflops=1.0).flop / 1e12
    off = row.seconds * row.tflops / work - 1
    if abs(off) <= _RATE_TOLERANCE:
        return None
    return (
        f"{row.where}: {row.seconds:g} s at {row.tflops:g} TFLOP/s are {100 * off:+.1f} % of the {work:,.0f} TFLOP that such a "
        "step has on a device; check both, the cut and the layers"
    )


def _memory(row: Measurement, limit_gib: float | None) -> str | None:
    if limit_gib is None or row.memory_gib is None or row.memory_gib <= limit_gib:
        return None
    text = f"{row.where}: {row.memory_gib:g} GiB on a device of {limit_gib:g} GiB can't be"
    if row.seconds is not None and row.seconds <= limit_gib:
        return f"{text}; memory and seconds ({row.seconds:g}) look swapped"
    return f"{text}; check the column and its unit"


def _mirror(row: Measurement, others: Sequence[Measurement]) -> str | None:
    """The same strategy measured twice, the rate of one being the seconds of the other."""
    if row.seconds is None or row.tflops is None:
        return None
    for other in others:
        if other is row or other.seconds is None or other.tflops is None:
            continue
        if (other.shape, other.training) != (row.shape, row.training):
            continue
        mirrored = _near(other.seconds, row.tflops) and _near(other.tflops, row.seconds)
        if mirrored and not _near(row.seconds, row.tflops):
            return (
                f"{row.where} and {other.where}: seconds and TFLOP/s of one of them are swapped; correct it"
            )
    return None


def _near(first: float, second: float) -> bool:
    return abs(first / second - 1) <= _SAME
