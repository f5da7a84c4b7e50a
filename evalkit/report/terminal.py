"""Short tables for the terminal; the reports hold everything."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from evalkit.gate.verdict import Verdict
    from evalkit.metrics.result import MetricResult
    from evalkit.runs.results_io import Results

_STYLE_BY_OUTCOME = {"PASS": "green", "FAIL": "bold red", "INCONCLUSIVE": "yellow", "NOT_APPLIED": "dim"}


def print_rules(verdict: "Verdict") -> None:
    """Print a line a rule: outcome, metric, value, bound against threshold, reason."""
    from rich.table import Table
    from rich.text import Text

    table = Table("outcome", "rule", "value", "bound", "n", "reason", box=None, pad_edge=False)
    for rule in verdict.rules:
        name = (
            rule.metric
            + (f" k={rule.k}" if rule.k is not None else "")
            + (f" [{rule.slice}]" if rule.slice else "")
        )
        outcome = rule.outcome + (" (warn)" if rule.severity == "warn" else "")
        cells = [_number(rule.value), _number(rule.bound), "-" if rule.n is None else str(rule.n)]
        table.add_row(Text(outcome, _STYLE_BY_OUTCOME[rule.outcome]), Text(name), *cells, Text(rule.reason))
    _print(table)


def print_metrics(results: "Results") -> None:
    """Print a line a metric: value with interval, or the reason why there is none."""
    from rich.table import Table
    from rich.text import Text

    table = Table("metric", "value", "interval", "n", box=None, pad_edge=False)
    for metric in results.metrics:
        name = (
            metric.name
            + (f" k={metric.k}" if metric.k is not None else "")
            + (f" [{metric.slice}]" if metric.slice else "")
        )
        value = _number(metric.value) if metric.value is not None else f"none: {metric.reason}"
        table.add_row(Text(name), Text(value), _interval(metric), str(metric.n))
    _print(table)


def _print(table: "Table") -> None:
    from rich.console import Console

    # Without a terminal there is no width to fit into: lines stay whole for whoever reads the log.
    console = Console()
    Console(width=None if console.is_terminal else 240).print(table)


def _interval(metric: "MetricResult") -> str:
    interval = metric.interval
    if interval is None:
        return "-"
    return f"{_number(interval.low)} to {_number(interval.high)} ({interval.confidence:.0%})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
