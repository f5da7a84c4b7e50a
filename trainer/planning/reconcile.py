"""A plan against what was measured: predicted, measured and residual; and MindSpore's own dry run as the better source."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.errors import InputError
from evalkit.files import read_text
from trainer.planning.memory import StageMemory, require_stage
from trainer.planning.settings import DeviceMemory, Measured

_USED = re.compile(r"Used peak memory usage \(without fragments\): (\d+)M")
_ACTUAL = re.compile(r"Actual peak memory usage \(with fragments\): (\d+)M")
_DEVICE = re.compile(r"Device (?:MOC|HBM) memory size: (\d+)M")


@dataclass(frozen=True)
class Residual:
    """One measured figure beside its prediction.

    Attributes:
        term: of the plan, or "total".
        kind: of the peak, see `Measured`.
        measured_mib: None where nobody measured this term.
    """

    stage: int
    term: str
    kind: str
    predicted_mib: float
    measured_mib: float | None

    @property
    def residual_mib(self) -> float | None:
        """Measured less predicted; None where it wasn't measured."""
        return None if self.measured_mib is None else self.measured_mib - self.predicted_mib

    @property
    def relative_error(self) -> float | None:
        """(predicted - measured) / measured."""
        return None if not self.measured_mib else self.predicted_mib / self.measured_mib - 1

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        residual, relative = self.residual_mib, self.relative_error
        return {
            "stage": self.stage,
            "term": self.term,
            "kind": self.kind,
            "predicted_mib": round(self.predicted_mib, 3),
            "measured_mib": self.measured_mib,
            "residual_mib": None if residual is None else round(residual, 3),
            "relative_error": None if relative is None else round(relative, 5),
        }


@dataclass(frozen=True)
class DryRun:
    """What MindSpore prints at the end of a run, or of a simulated one (MS_SIMULATION_LEVEL=1).

    Attributes:
        actual_mib: with fragments; None where it is printed below `used_mib`, which can't be.
        device_mib: the device's memory; None where it isn't printed.
    """

    used_mib: int
    actual_mib: int | None
    device_mib: int | None
    doubt: str | None = None


def reconcile(stages: tuple[StageMemory, ...], measured: tuple[Measured, ...]) -> list[Residual]:
    """Each measured peak beside the plan: first the total, then each term.

    Raises:
        InputError: a stage or term that the plan hasn't got.
    """
    rows = []
    for item in measured:
        stage = require_stage(stages, item.stage)
        if item.kind == "device":
            predicted, terms = stage.total_mib, dict(stage.terms_mib)
        else:
            fragments = item.kind == "actual"
            predicted = stage.pool_mib(fragments=fragments)
            left_out = {"hccl_buffers", "context"} | (set() if fragments else {"fragmentation"})
            terms = {term: value for term, value in stage.terms_mib.items() if term not in left_out}
        rows.append(Residual(item.stage, "total", item.kind, predicted, item.peak_mib))
        unknown = set(item.terms_mib) - set(terms)
        if unknown:
            raise InputError(
                f"measured.terms_mib: {', '.join(sorted(unknown))}: not a term of this plan; it has {', '.join(terms)}"
            )
        rows += [
            Residual(item.stage, term, item.kind, value, item.terms_mib.get(term))
            for term, value in terms.items()
        ]
    return rows


def read_dry_run(path: Path) -> DryRun:
    """The peaks in a log of MindSpore (GLOG_v=1, or MS_MEMORY_STATISTIC=1).

    Raises:
        InputError: no such file, or no peak in it.
    """
    text = read_text(path)
    used = _USED.findall(text)
    if not used:
        raise InputError(
            f"{path}: no line `Used peak memory usage (without fragments)`; run with MS_SIMULATION_LEVEL=1, "
            "MS_MEMORY_STATISTIC=1 and GLOG_v=1"
        )
    actual, device = _ACTUAL.findall(text), _DEVICE.findall(text)
    return check_reading(
        int(used[-1]), int(actual[-1]) if actual else None, int(device[-1]) if device else None
    )


def check_reading(used_mib: int, actual_mib: int | None, device_mib: int | None = None) -> DryRun:
    """A reading whose peak with fragments lies below the one without is a misprint: it isn't used, and said."""
    if actual_mib is not None and actual_mib < used_mib:
        doubt = (
            f"the peak with fragments, {actual_mib} MiB, is below the one without, {used_mib} MiB; not used"
        )
        return DryRun(used_mib, None, device_mib, doubt)
    return DryRun(used_mib, actual_mib, device_mib)


def dry_run_total_mib(dry_run: DryRun, stage: StageMemory, device: DeviceMemory) -> float:
    """Everything on the device, with the pool from the dry run.

    A dry run knows no operator workspace (its kernels never run), so that the plan's is added; where its peak with
    fragments isn't known, the plan's factor takes its place.
    """
    actual = dry_run.actual_mib
    pool = dry_run.used_mib * device.fragmentation if actual is None else float(actual)
    outside = sum(stage.terms_mib.get(term, 0.0) for term in ("hccl_buffers", "context"))
    return pool + device.workspace_mib + outside
