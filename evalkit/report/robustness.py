"""How the candidate's metrics move under each perturbation, as a report shows it."""

from dataclasses import dataclass
from typing import Any

from evalkit.metrics.context import RobustnessSetup
from evalkit.metrics.result import MetricResult
from evalkit.metrics.robustness import HEADLINE
from evalkit.metrics.robustness_specs import RELATIVE, robustness_name
from evalkit.report import numbers
from evalkit.report.source import ReportSource

# The figures of a report; the others stand in results.json.
_SHOWN = (HEADLINE, "bits_per_byte", "logits/top_k_accuracy", "rate/oov")


@dataclass(frozen=True)
class RobustnessRow:
    """One metric under one perturbation: the paired difference to the clean texts.

    Attributes:
        metric: its name without the perturbation.
        change, interval: of the candidate; where there is none `reason` says why.
        clean, perturbed: its values.
        baseline: the baseline's change, empty where there is no baseline.
        tone: better, worse, same or unknown.
        worst: the worst slice, where slices were measured.
    """

    metric: str
    change: str
    interval: str
    reason: str
    clean: str
    perturbed: str
    baseline: str
    tone: str
    worst: str


@dataclass(frozen=True)
class RobustnessBlock:
    """One perturbation.

    Attributes:
        name, description: of the perturbation.
        meaning: whether the texts still say what they said.
        changed: how many texts it changed, of how many compared.
        warning: texts that couldn't be compared, else empty.
        rows: its metrics.
    """

    name: str
    description: str
    meaning: str
    changed: str
    warning: str
    rows: tuple[RobustnessRow, ...]


_MEANING = {
    "respelt": "same content, spelt otherwise: surprise is counted on the units of the clean text",
    "added": "content added, nothing lost",
    "removed": "content lost: a change of meaning",
    "altered": "another content: a change of meaning",
}


def robustness_blocks(source: ReportSource) -> list[RobustnessBlock]:
    """Every perturbation of the run, in the scenario's order."""
    return [block for setup in source.context.robustness if (block := _block(source, setup)) is not None]


def _block(source: ReportSource, setup: RobustnessSetup) -> RobustnessBlock | None:
    found = [source.results.find(robustness_name(setup.name, metric)) for metric in _SHOWN]
    metrics = [metric for metric in found if metric is not None]
    if not metrics:
        return None
    details = metrics[0].details
    compared, changed = details.get("texts_compared"), details.get("texts_changed")
    coverage = metrics[0].coverage
    whole = coverage is not None and coverage == 1
    return RobustnessBlock(
        name=setup.name,
        description=setup.description,
        meaning=_MEANING[setup.effect],
        changed=f"{numbers.count(changed)} of {numbers.count(compared)} texts changed",
        warning="" if whole else f"only {numbers.number(coverage, 'share')} of the texts could be compared",
        rows=tuple(_row(source, setup.name, metric) for metric in metrics),
    )


def _row(source: ReportSource, perturbation: str, metric: MetricResult) -> RobustnessRow:
    details = metric.details
    unit = None if metric.unit == RELATIVE else metric.unit
    name = metric.name.removeprefix(robustness_name(perturbation, ""))
    other = None if source.baseline_results is None else source.baseline_results.find(metric.name)
    return RobustnessRow(
        metric=name,
        change=_change(metric),
        interval=numbers.change_interval(metric.interval, relative=metric.unit == RELATIVE, unit=metric.unit),
        reason=metric.reason or str(details.get("interval_reason") or ""),
        clean=numbers.number(details.get("clean"), unit),
        perturbed=numbers.number(details.get("perturbed"), unit),
        baseline="" if other is None else _change(other),
        tone=_tone(metric),
        worst=_worst(details),
    )


def _change(metric: MetricResult) -> str:
    return numbers.change(metric.value, relative=metric.unit == RELATIVE, unit=metric.unit)


def _worst(details: dict[str, Any]) -> str:
    if "worst_slice" not in details:
        return ""
    shown = numbers.change(details["worst_slice_value"], relative=True, unit=None)
    return f"{details['worst_slice']} {shown} (of {numbers.count(details['slices_measured'])})"


def _tone(metric: MetricResult) -> str:
    interval = metric.interval
    if metric.value is None or interval is None or interval.low is None or interval.high is None:
        return "unknown"
    if interval.low <= 0 <= interval.high:
        return "same"
    return "better" if (interval.high < 0) == (metric.direction == "lower") else "worse"
