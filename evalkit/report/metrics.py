"""Metrics as a report shows them: headline figures, and tables where both models share a scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from evalkit.gate.verdict import Verdict
from evalkit.metrics.result import Interval, MetricResult
from evalkit.report import numbers
from evalkit.report.changes import ChangeView, change_view, key_name
from evalkit.report.charts import Dot, Mark, Scale, Strip, axis
from evalkit.report.dialogue_notes import dialogue_notes
from evalkit.report.resampling import resampling_notes
from evalkit.report.source import ReportSource

# In reading order; the changes against the baseline stand between the classes and the tokens' statistics.
_SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("business", "Business and dialogues", ("business", "dialogue")),
    ("risk", "Risk decisions", ("risk",)),
    ("language", "Perplexity by token class", ("perplexity", "bits_per_byte", "rate")),
    ("own", "Metrics of your own", ("own",)),
    ("tokens", "Token statistics and calibration", ("logits", "calibration")),
    ("latency", "Latency and cache", ("latency", "cache")),
)
_UNKNOWN = "own"

_HEADLINES = {
    "dialogue/pass_hat_k": "Dialogues passed in all of k trials",
    "dialogue/consistency": "Facts kept across turns",
    "dialogue/satisfaction": "Predicted satisfaction",
    "dialogue/resolution_rate": "Dialogues resolved",
    "dialogue/resolution_turns": "Turns to a resolution",
    "dialogue/handover_rate": "Dialogues handed over",
    "dialogue/handover_recall": "Needed hand-overs made",
    "dialogue/cost": "Cost of a dialogue",
    "risk/high_risk_recall": "High-risk cases found",
    "risk/false_reject_rate": "Good customers rejected",
    "perplexity/token": "Perplexity per token",
    "bits_per_byte": "Bits per byte",
    "latency/first_token": "Time to first token",
    "latency/turn_overhead": "Turn overhead",
    "cache/reuse_ratio": "Prompt tokens reused",
}


@dataclass(frozen=True)
class Figure:
    """A headline figure."""

    label: str
    name: str
    value: str
    interval: str
    baseline: str
    change: ChangeView | None


@dataclass(frozen=True)
class MetricRow:
    """One metric of a table."""

    name: str
    value: str
    interval: str
    reason: str
    baseline: str
    baseline_interval: str
    change: ChangeView | None
    n: str
    clusters: str
    coverage: str
    notes: tuple[str, ...]
    strip: Strip


@dataclass(frozen=True)
class MetricBlock:
    """Rows of one unit on one scale, with its axis."""

    unit: str
    rows: tuple[MetricRow, ...]
    axis: Markup


@dataclass(frozen=True)
class MetricSection:
    """One table, and what could not be measured: a reason with the names it holds for."""

    anchor: str
    title: str
    blocks: tuple[MetricBlock, ...]
    absent: tuple[tuple[str, str], ...]


def figures(source: ReportSource) -> list[Figure]:
    """The figures that a review asks for first: business scores, then the known headlines."""
    wanted = [metric for metric in source.results.metrics if metric.slice is None]
    order = {name: index for index, name in enumerate(_HEADLINES)}
    chosen = [metric for metric in wanted if metric.name.startswith("business/")]
    chosen += sorted(
        (metric for metric in wanted if metric.name in order and metric.value is not None),
        key=lambda metric: (order[metric.name], metric.k or 0),
    )
    return [_figure(source, metric) for metric in chosen]


def sections(source: ReportSource) -> list[MetricSection]:
    """Every metric of the clean texts, decisions and dialogues, by section and unit, in the order of the results."""
    # What is measured under perturbations has a table of its own.
    known = {"robustness", *(first for _, _, firsts in _SECTIONS for first in firsts)}
    found = []
    for anchor, title, firsts in _SECTIONS:
        members = [
            metric
            for metric in source.results.metrics
            if _first(metric) in firsts or (anchor == _UNKNOWN and _first(metric) not in known)
        ]
        if members:
            measured = [metric for metric in members if metric.value is not None]
            found.append(MetricSection(anchor, title, _blocks(source, measured), _absent(members)))
    return found


def _figure(source: ReportSource, metric: MetricResult) -> Figure:
    label = _HEADLINES.get(metric.name, metric.name.partition("/")[2].replace("_", " ").capitalize())
    if metric.k is not None:
        every = "at the first try" if metric.k == 1 else f"{metric.k} times of {metric.k}"
        label = label.replace("in all of k trials", every)
    other = _baseline(source, metric)
    return Figure(
        label=label,
        name=key_name(metric.name, metric.k, metric.slice),
        value=numbers.number(metric.value, metric.unit),
        interval=numbers.interval(metric.interval, metric.unit)
        if metric.interval
        else metric.reason or str(metric.details.get("interval_reason") or ""),
        baseline=numbers.number(other.value, other.unit) if other else "",
        change=_change(source, metric),
    )


def _absent(members: Sequence[MetricResult]) -> tuple[tuple[str, str], ...]:
    names: dict[str, list[str]] = {}
    for metric in members:
        if metric.value is None:
            names.setdefault(metric.reason or "", []).append(key_name(metric.name, metric.k, metric.slice))
    return tuple((reason, ", ".join(found)) for reason, found in names.items())


def _blocks(source: ReportSource, members: Sequence[MetricResult]) -> tuple[MetricBlock, ...]:
    units = list(dict.fromkeys(metric.unit for metric in members))
    by_unit = sorted(members, key=lambda metric: units.index(metric.unit))
    blocks = []
    for unit, group in groupby(by_unit, key=lambda metric: metric.unit):
        metrics = list(group)
        marks = {id(metric): _marks(metric, source.verdict) for metric in metrics}
        scale = Scale.over(
            [value for metric in metrics for value in _extent(source, metric)]
            + [mark.value for metric in metrics for mark in marks[id(metric)]],
            linear=unit == "share",
        )
        rows = tuple(_row(source, metric, scale, marks[id(metric)]) for metric in metrics)
        labels = [(tick, numbers.number(tick, unit)) for tick in scale.ticks()]
        blocks.append(MetricBlock(unit, rows, axis(scale, labels)))
    return tuple(blocks)


def _row(source: ReportSource, metric: MetricResult, scale: Scale, marks: Sequence[Mark]) -> MetricRow:
    other = _baseline(source, metric)
    name = key_name(metric.name, metric.k, metric.slice)
    value, interval = (
        numbers.number(metric.value, metric.unit),
        numbers.interval(metric.interval, metric.unit),
    )
    dots = [] if metric.value is None else [Dot(metric.value, *_ends(metric.interval))]
    if other is not None and other.value is not None:
        dots.append(Dot(other.value, *_ends(other.interval), series="baseline"))
    described = f"{name}: candidate {value}, {interval}"
    if other is not None:
        described += f"; baseline {numbers.number(other.value, other.unit)}"
    return MetricRow(
        name=name,
        value=value,
        interval=interval,
        reason=str(metric.details.get("interval_reason") or ""),
        baseline=numbers.number(other.value, other.unit) if other else "",
        baseline_interval=numbers.interval(other.interval, other.unit) if other else "",
        change=_change(source, metric),
        n=numbers.count(metric.n),
        clusters=numbers.count(metric.clusters),
        coverage=numbers.number(metric.coverage, "share"),
        notes=_notes(metric),
        strip=Strip(scale, dots, marks, described),
    )


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _extent(source: ReportSource, metric: MetricResult) -> list[float | None]:
    other = _baseline(source, metric)
    values = [metric.value, *_ends(metric.interval)]
    return values + ([other.value, *_ends(other.interval)] if other else [])


def _marks(metric: MetricResult, verdict: Verdict | None) -> list[Mark]:
    marks = [
        Mark(
            float(metric.details[name]), "tick", f"{name} {numbers.number(metric.details[name], metric.unit)}"
        )
        for name in ("p95", "p99")
        if isinstance(metric.details.get(name), int | float)
    ]
    key = (metric.name, metric.k, metric.slice)
    for rule in verdict.rules if verdict else ():
        if (rule.metric, rule.k, rule.slice) != key:
            continue
        if rule.kind == "absolute":
            shown = numbers.number(rule.threshold, metric.unit)
            marks.append(Mark(rule.threshold, "threshold", f"threshold {shown}"))
        elif rule.kind == "within" and rule.within_ms is not None:
            marks.append(Mark(rule.within_ms, "threshold", f"budget {rule.within_ms:g} ms"))
    return marks


def _notes(metric: MetricResult) -> tuple[str, ...]:
    notes = [
        f"{name} {numbers.number(metric.details[name], metric.unit)}"
        for name in ("p95", "p99")
        if isinstance(metric.details.get(name), int | float)
    ]
    calibrated = metric.details.get("expected_if_calibrated")
    if isinstance(calibrated, int | float):
        shown = numbers.number(calibrated, metric.unit)
        notes.append(f"a calibrated model would show {shown} with as few decisions")
    outliers = metric.details.get("surprise_outliers")
    if isinstance(outliers, dict) and outliers.get("count"):
        notes.append(f"{numbers.count(outliers['count'])} texts far from the others")
    notes += resampling_notes(metric.details)
    notes += dialogue_notes(metric.details)
    for entry in metric.details.get("within") or ():
        if isinstance(entry, dict) and isinstance(entry.get("ms"), int | float):
            notes.append(f"{numbers.number(entry.get('share'), 'share')} within {entry['ms']:g} ms")
    return tuple(notes)


def _baseline(source: ReportSource, metric: MetricResult) -> MetricResult | None:
    if source.baseline_results is None:
        return None
    return source.baseline_results.find(metric.name, metric.k, metric.slice)


def _change(source: ReportSource, metric: MetricResult) -> ChangeView | None:
    compared = source.comparison.find(metric.name, metric.k, metric.slice) if source.comparison else None
    return change_view(compared) if compared else None


def _first(metric: MetricResult) -> str:
    return metric.name.partition("/")[0]
