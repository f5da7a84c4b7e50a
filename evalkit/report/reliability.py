"""Reliability curves: in each bin of decisions or tokens, the mean probability against what was observed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalkit.report import numbers
from evalkit.report.charts import Dot, Mark, Scale, Strip
from evalkit.report.source import ReportSource


@dataclass(frozen=True)
class ReliabilityRow:
    """One bin of the candidate's decisions or tokens."""

    said: str
    seen: str
    interval: str
    n: str
    strip: Strip


@dataclass(frozen=True)
class ReliabilityCurve:
    """One curve: what it is of, and its bins, lowest probability first."""

    title: str
    lead: str
    rows: tuple[ReliabilityRow, ...]


_CURVES = (
    (
        "calibration/ece",
        "the decisions' probabilities",
        "Bins of equally many judged decisions. The dashed line is the mean probability of high risk that the candidate "
        "gave, the dot the share that was of high risk.",
    ),
    (
        "calibration/top1_ece",
        "the next token's probability",
        "Bins of equally many scored tokens. The dashed line is the mean probability that the candidate gave to its "
        "likeliest token, the dot the share where that token came.",
    ),
)


def reliability_curves(source: ReportSource) -> list[ReliabilityCurve]:
    """The curves of the candidate; none of what wasn't measured."""
    found = []
    for name, title, lead in _CURVES:
        metric = source.results.find(name)
        bins = metric.details.get("bins") if metric is not None else None
        rows = tuple(_row(item) for item in bins or () if isinstance(item, Mapping))
        if rows:
            found.append(ReliabilityCurve(title, lead, rows))
    return found


def _row(item: Mapping[str, Any]) -> ReliabilityRow:
    said, seen = numbers.number(item["confidence"], "share"), numbers.number(item["accuracy"], "share")
    low, high = numbers.number(item["low"], "share"), numbers.number(item["high"], "share")
    drawn = Strip(
        Scale(0.0, 1.0, False),
        [Dot(item["accuracy"], item["low"], item["high"])],
        [Mark(item["confidence"], "threshold", f"mean probability {said}")],
        f"mean probability {said}: observed {seen}, {low} to {high}",
    )
    return ReliabilityRow(said, seen, f"{low} … {high}", numbers.count(item["n"]), drawn)
