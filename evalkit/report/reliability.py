"""The reliability curve: in each bin of decisions, the mean probability against what was observed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from evalkit.report import numbers
from evalkit.report.charts import Dot, Mark, Scale, strip
from evalkit.report.source import ReportSource


@dataclass(frozen=True)
class ReliabilityRow:
    """One bin of the candidate's decisions."""

    said: str
    seen: str
    interval: str
    n: str
    strip: Markup


def reliability_rows(source: ReportSource) -> list[ReliabilityRow]:
    """The bins of calibration/ece, lowest probability first; empty where decisions weren't measured."""
    metric = source.results.find("calibration/ece")
    bins = metric.details.get("bins") if metric is not None else None
    return [_row(item) for item in bins or () if isinstance(item, Mapping)]


def _row(item: Mapping[str, Any]) -> ReliabilityRow:
    said, seen = numbers.number(item["confidence"], "share"), numbers.number(item["accuracy"], "share")
    low, high = numbers.number(item["low"], "share"), numbers.number(item["high"], "share")
    drawn = strip(
        Scale(0.0, 1.0, False),
        [Dot(item["accuracy"], item["low"], item["high"])],
        [Mark(item["confidence"], "threshold", f"mean probability {said}")],
        f"mean probability {said}: observed {seen}, {low} to {high}",
    )
    return ReliabilityRow(said, seen, f"{low} … {high}", numbers.count(item["n"]), drawn)
