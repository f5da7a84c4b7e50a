"""The time model and its fit: which coefficients a cluster's own measurements support, and how far they can be trusted."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from evalkit.errors import InputError
from trainer.planning.cost import StepParts

Float = npt.NDArray[np.float64]
Part = Literal["compute", "layer_micro_batch", "tensor", "data", "pipeline", "step"]
# What is fitted; transfers between stages come from links only.
PARTS: tuple[Part, ...] = ("compute", "layer_micro_batch", "tensor", "data", "step")
_OPTIONAL: tuple[Part, ...] = PARTS[1:]
# A textbook's model: operations and ring communication, nothing fixed.
TEXTBOOK: tuple[Part, ...] = ("compute", "tensor", "data")


@dataclass(frozen=True)
class TimeModel:
    """Seconds of a step = Σ coefficient · amount.

    Attributes:
        efficiency: share of the peak rate that large matrices reach.
        layer_micro_batch_ms: fixed cost of one layer and micro-batch (kernel launches, small kernels).
        tensor_gb_s, data_gb_s: link bandwidth that communication sees, as far as it isn't hidden; None: hidden.
        step_s: fixed cost of a step (optimizer, data, logging).
        relative_error: to expect of a prediction; None: nobody measured.
        calibrated: True where the coefficients come from measurements, those of communication too.
    """

    efficiency: float
    layer_micro_batch_ms: float = 0.0
    tensor_gb_s: float | None = None
    data_gb_s: float | None = None
    step_s: float = 0.0
    relative_error: float | None = None
    calibrated: bool = False

    def seconds(self, parts: StepParts) -> dict[Part, float]:
        """Where the time of a step goes; the sum is its prediction."""
        return {
            "compute": parts.compute_s / self.efficiency,
            "layer_micro_batch": parts.layer_micro_batches * self.layer_micro_batch_ms / 1e3,
            "tensor": 0.0 if self.tensor_gb_s is None else parts.tensor_gb / self.tensor_gb_s,
            "data": 0.0 if self.data_gb_s is None else parts.data_gb / self.data_gb_s,
            "pipeline": 0.0,
            "step": self.step_s,
        }

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


@dataclass(frozen=True)
class Fit:
    """A fitted model and what its own measurements say about it.

    Attributes:
        parts: that it uses.
        predicted: seconds of each measurement by the model fitted to all.
        left_out: by the model fitted to all the others, its parts chosen anew each time.
        spearman, spearman_left_out: rank correlation of each with what was measured, over seconds of a row of the batch (so
            that steps of different sizes can be compared) and `_step` over seconds of a step; None where ranks are all equal.
        relative_error: mean |predicted - measured| / measured of `left_out`.
        top_recall: share of the k fastest that are among the k predicted fastest (of `left_out`), k = 1, 3, 5.
    """

    model: TimeModel
    parts: tuple[Part, ...]
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    left_out: tuple[float, ...]
    spearman: float | None
    spearman_left_out: float | None
    spearman_step: float | None
    spearman_step_left_out: float | None
    relative_error_in_sample: float
    relative_error: float
    top_recall: dict[int, float]

    def to_json(self) -> dict[str, Any]:
        """The figures, without the measurements."""
        return {
            "model": self.model.to_json(),
            "parts": list(self.parts),
            "measurements": len(self.measured),
            "spearman": self.spearman,
            "spearman_left_out": self.spearman_left_out,
            "spearman_step": self.spearman_step,
            "spearman_step_left_out": self.spearman_step_left_out,
            "relative_error_in_sample": self.relative_error_in_sample,
            "relative_error_left_out": self.relative_error,
            "top_recall_left_out": {f"top_{k}": value for k, value in self.top_recall.items()},
        }


def fit_time_model(
    steps: Sequence[StepParts],
    measured_s: Sequence[float],
    parts: tuple[Part, ...] | None = None,
    *,
    rows: Sequence[int] | None = None,
) -> Fit:
    """Fit to measured steps, relative errors weighing equally and no coefficient negative.

    Args:
        steps: their amounts.
        measured_s: their seconds.
        parts: which coefficients to use; None: the set with the smallest leave-one-out error (compute always).
        rows: of each step's batch; None: they are all equal.

    Raises:
        InputError: fewer than four measurements, or a time that isn't positive.
    """
    if len(steps) < 4:
        raise InputError(f"{len(steps)} measured steps; at least 4 are needed to fit and to leave one out")
    if any(not seconds > 0 for seconds in measured_s):
        raise InputError("a measured step takes no time; correct it or leave the row out")
    amounts, measured = _amounts(steps), np.array(measured_s, dtype=float)
    chosen = parts or _choose(amounts, measured)
    coefficients = _solve(amounts, measured, chosen)
    left_out = np.empty(len(measured))
    for index in range(len(measured)):
        others = np.arange(len(measured)) != index
        own = parts or _choose(amounts[others], measured[others])
        left_out[index] = amounts[index] @ _solve(amounts[others], measured[others], own)
    predicted = amounts @ coefficients
    error = float(np.mean(abs(left_out / measured - 1)))
    work = np.ones(len(measured)) if rows is None else np.array(rows, dtype=float)
    return Fit(
        model=_model(coefficients, error),
        parts=chosen,
        measured=tuple(map(float, measured)),
        predicted=tuple(map(float, predicted)),
        left_out=tuple(map(float, left_out)),
        spearman=spearman(predicted / work, measured / work),
        spearman_left_out=spearman(left_out / work, measured / work),
        spearman_step=spearman(predicted, measured),
        spearman_step_left_out=spearman(left_out, measured),
        relative_error_in_sample=float(np.mean(abs(predicted / measured - 1))),
        relative_error=error,
        top_recall={
            k: top_recall(left_out / work, measured / work, k) for k in (1, 3, 5) if k < len(measured)
        },
    )


def spearman(predicted: Float, measured: Float) -> float | None:
    """Rank correlation; None where all of one side are equal."""
    from scipy.stats import rankdata

    ranks = rankdata(predicted), rankdata(measured)
    if any(np.ptp(side) == 0 for side in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def top_recall(predicted: Float, measured: Float, k: int) -> float:
    """Share of the k fastest that are among the k predicted fastest."""
    fastest = set(np.argsort(measured, kind="stable")[:k])
    return len(fastest & set(np.argsort(predicted, kind="stable")[:k])) / k


def _amounts(steps: Sequence[StepParts]) -> Float:
    rows = [
        (step.compute_s, step.layer_micro_batches / 1e3, step.tensor_gb, step.data_gb, 1.0) for step in steps
    ]
    return np.array(rows, dtype=float)


def _solve(amounts: Float, measured: Float, parts: tuple[Part, ...]) -> Float:
    from scipy.optimize import nnls

    columns = [PARTS.index(part) for part in parts]
    found, _ = nnls(amounts[:, columns] / measured[:, None], np.ones(len(measured)))
    coefficients = np.zeros(len(PARTS))
    coefficients[columns] = found
    return coefficients


def _choose(amounts: Float, measured: Float) -> tuple[Part, ...]:
    """The set of parts with the smallest leave-one-out error; of equal ones the smallest set."""
    best: tuple[float, tuple[Part, ...]] | None = None
    for count in range(len(_OPTIONAL) + 1):
        if count + 1 >= len(measured) - 1:
            break
        for others in combinations(_OPTIONAL, count):
            parts: tuple[Part, ...] = ("compute", *others)
            error = _left_out_error(amounts, measured, parts)
            if best is None or error < best[0] * (1 - 1e-9):
                best = (error, parts)
    return best[1] if best else ("compute",)


def _left_out_error(amounts: Float, measured: Float, parts: tuple[Part, ...]) -> float:
    total = 0.0
    for index in range(len(measured)):
        others = np.arange(len(measured)) != index
        predicted = amounts[index] @ _solve(amounts[others], measured[others], parts)
        total += float((predicted / measured[index] - 1) ** 2)
    return total


def _model(coefficients: Float, error: float) -> TimeModel:
    compute, layer, tensor, data, step = map(float, coefficients)
    if not compute:
        raise InputError(
            "the measured steps don't grow with their operations; check the columns and their units"
        )
    return TimeModel(
        efficiency=1 / compute,
        layer_micro_batch_ms=layer,
        tensor_gb_s=1 / tensor if tensor else None,
        data_gb_s=1 / data if data else None,
        step_s=step,
        relative_error=error,
        calibrated=True,
    )
