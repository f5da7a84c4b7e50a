"""Short tables for the terminal; the reports hold everything."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from evalkit.gate.power import RulePower
    from evalkit.gate.verdict import Verdict
    from evalkit.metrics.result import Interval
    from evalkit.runs.comparing import RunComparison
    from evalkit.runs.results_io import Results

_STYLE_BY_OUTCOME = {"PASS": "green", "FAIL": "bold red", "INCONCLUSIVE": "yellow", "NOT_APPLIED": "dim"}


def print_rules(verdict: "Verdict") -> None:
    """Print a line a rule: outcome, metric, value, bound against threshold, reason."""
    from rich.table import Table
    from rich.text import Text

    table = Table("outcome", "rule", "value", "bound", "n", "reason", box=None, pad_edge=False)
    for rule in verdict.rules:
        name = _name(rule.metric, rule.k, rule.slice)
        outcome = rule.outcome + (" (warn)" if rule.severity == "warn" else "")
        cells = [_number(rule.value), _number(rule.bound), "-" if rule.n is None else str(rule.n)]
        table.add_row(Text(outcome, _STYLE_BY_OUTCOME[rule.outcome]), Text(name), *cells, Text(rule.reason))
    print_table(table)


def print_metrics(results: "Results") -> None:
    """Print a line a metric: value with interval, or the reason why there is none."""
    from rich.table import Table
    from rich.text import Text

    table = Table("metric", "value", "interval", "n", box=None, pad_edge=False)
    for metric in results.metrics:
        name = _name(metric.name, metric.k, metric.slice)
        value = _number(metric.value) if metric.value is not None else f"none: {metric.reason}"
        table.add_row(Text(name), Text(value), _ends(metric.interval), str(metric.n))
    print_table(table)
    print_conservation(results)


def print_conservation(results: "Results") -> None:
    """Print that every token and byte was scored exactly once, and what was left out."""
    from evalkit.report.conservation import conservation_sentence

    sentence = conservation_sentence(results.conservation)
    if sentence:
        print(sentence)


def print_differences(found: "RunComparison") -> None:
    """Print a line a metric: both values, the difference with its interval, and the p-values."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        "metric", "first", "second", "difference", "interval", "p", "clusters", box=None, pad_edge=False
    )
    for metric in found.comparison.metrics:
        change = metric.absolute
        tests = [f"{test.p:.3g} ({test.method})" for test in found.tests_of(metric) if test.p is not None]
        table.add_row(
            Text(_name(metric.name, metric.k, metric.slice)),
            _number(metric.candidate),
            _number(metric.baseline),
            Text(_number(change.value) if change.value is not None else f"none: {change.reason}"),
            _ends(change.interval),
            ", ".join(tests) or "-",
            str(metric.clusters),
        )
    print_table(table)


def print_power(rules: "Sequence[RulePower]") -> None:
    """Print a line a rule: samples at hand and needed, the power at hand, and what was assumed."""
    from rich.table import Table
    from rich.text import Text

    from evalkit.gate.power import describe

    table = Table(
        "rule", "threshold", "at hand", "needed", "power", "finding", "assumed", box=None, pad_edge=False
    )
    for item in rules:
        table.add_row(
            Text(_name(item.metric, item.k, item.slice)),
            f"{item.condition} {_number(item.threshold)}",
            "-" if item.n is None else f"{item.n} {item.units}",
            "-" if item.needs_n is None else str(item.needs_n),
            "-" if item.power is None else f"{item.power:.1%}",
            Text(describe(item)),
            Text(item.assumption or "-"),
        )
    print_table(table)


def _name(name: str, k: int | None, slice: str | None) -> str:
    return name + (f" k={k}" if k is not None else "") + (f" [{slice}]" if slice else "")


def print_table(table: "Table") -> None:
    """Print a table; without a terminal in lines as long as they are."""
    from rich.console import Console

    # Without a terminal there is no width to fit into: lines stay whole for whoever reads the log.
    console = Console()
    Console(width=None if console.is_terminal else 240).print(table)


def _ends(interval: "Interval | None") -> str:
    if interval is None:
        return "-"
    return f"{_number(interval.low)} to {_number(interval.high)} ({interval.confidence:.0%})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
