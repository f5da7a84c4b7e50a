"""Calibration on own measurements: one memory constant a gradient type, and the time model; each with its error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalkit.errors import InputError
from trainer.planning.cost import step_parts
from trainer.planning.measurements import Measurement
from trainer.planning.memory import plan_stages
from trainer.planning.settings import DeviceMemory, GradientType
from trainer.planning.time_model import Fit, Part, fit_time_model

_NOTHING = DeviceMemory(hccl_buffer_mib=0, workspace_mib=0, fragmentation=1)


@dataclass(frozen=True)
class MemoryFit:
    """What a device holds beside the planned terms: context, communication buffers, fragments, logits.

    Attributes:
        constant_gib: gradient type → mean residual of its rows.
        spread_gib: gradient type → standard deviation; None for a single row.
        mean_error: mean |predicted - measured| / measured over all rows with a measured peak; `mean_error_left_out` with
            the constant of the other rows each time.
        largest_error: of those.
        missed: runs that ran out of memory though the prediction fits into `limit_gib`.
        false_alarms: runs that ran though it doesn't.
    """

    constant_gib: Mapping[GradientType, float]
    spread_gib: Mapping[GradientType, float | None]
    rows: int
    out_of_memory_rows: int
    mean_error: float
    mean_error_left_out: float | None
    largest_error: float
    limit_gib: float
    missed: tuple[str, ...]
    false_alarms: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {
            "constant_gib": dict(self.constant_gib),
            "spread_gib": dict(self.spread_gib),
            "measurements": self.rows,
            "out_of_memory_measurements": self.out_of_memory_rows,
            "relative_error_in_sample": self.mean_error,
            "relative_error_left_out": self.mean_error_left_out,
            "largest_relative_error": self.largest_error,
            "limit_gib": self.limit_gib,
            "missed_out_of_memory": list(self.missed),
            "false_alarms": list(self.false_alarms),
        }


def fit_memory(measurements: Sequence[Measurement], limit_gib: float) -> MemoryFit:
    """One constant a gradient type.

    Raises:
        InputError: no run has a measured peak.
    """
    measured = [(row, row.memory_gib) for row in measurements if row.memory_gib is not None]
    if not measured:
        raise InputError("no run has memory_gib; without a measured peak memory can't be calibrated")
    residuals: dict[GradientType, list[float]] = {}
    for row, memory in measured:
        residuals.setdefault(row.training.gradient_type, []).append(memory - planned_gib(row))
    constants = {kind: float(np.mean(values)) for kind, values in residuals.items()}
    errors, left_out, false_alarms = [], [], []
    for row, memory in measured:
        kind, planned = row.training.gradient_type, planned_gib(row)
        predicted = planned + constants[kind]
        errors.append(abs(predicted / memory - 1))
        values = residuals[kind]
        if len(values) > 1:
            others = (sum(values) - (memory - planned)) / (len(values) - 1)
            left_out.append(abs((planned + others) / memory - 1))
        if predicted > limit_gib and not row.out_of_memory:
            false_alarms.append(row.where)
    ended = [row for row in measurements if row.out_of_memory]
    missed = [
        row.where
        for row in ended
        if planned_gib(row) + constants.get(row.training.gradient_type, 0.0) <= limit_gib
    ]
    return MemoryFit(
        constant_gib=constants,
        spread_gib={
            kind: float(np.std(values, ddof=1)) if len(values) > 1 else None
            for kind, values in residuals.items()
        },
        rows=len(measured),
        out_of_memory_rows=len(ended),
        mean_error=float(np.mean(errors)),
        mean_error_left_out=float(np.mean(left_out)) if left_out else None,
        largest_error=max(errors),
        limit_gib=limit_gib,
        missed=tuple(missed),
        false_alarms=tuple(false_alarms),
    )


def planned_gib(measurement: Measurement) -> float:
    """What the planned terms of the fullest stage add up to, without buffers, workspace, fragments and context."""
    stages = plan_stages(measurement.shape, measurement.training, _NOTHING)
    return max(stage.total_mib for stage in stages) / 1024


def fit_times(
    measurements: Sequence[Measurement],
    *,
    peak_tflops: float,
    alignment: int = 1,
    misaligned_penalty: float = 1.0,
    parts: tuple[Part, ...] | None = None,
) -> Fit:
    """The time model on those runs whose step was timed; see `fit_time_model`.

    Raises:
        InputError: too few of them.
    """
    timed = [(row, row.seconds) for row in measurements if row.seconds is not None]
    steps = [
        step_parts(
            row.shape,
            row.training,
            peak_tflops=peak_tflops,
            alignment=alignment,
            misaligned_penalty=misaligned_penalty,
        )
        for row, _ in timed
    ]
    return fit_time_model(
        steps, [seconds for _, seconds in timed], parts, rows=[row.training.strategy.rows for row, _ in timed]
    )
