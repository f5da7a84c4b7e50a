"""A metric over runs as rows of dots and whiskers: for the terminal, and as one SVG file."""

from collections.abc import Iterator

from markupsafe import Markup

from evalkit.metrics.result import Interval
from evalkit.report import numbers
from evalkit.report.charts import Scale
from evalkit.report.terminal import print_table
from evalkit.report.text import visible
from evalkit.runs.history import History, HistoryRun, Series
from evalkit.runs.registry_rows import MetricEntry

_STRIP = 41
_STYLE_BY_VERDICT = {"PASS": "green", "FAIL": "bold red", "INCONCLUSIVE": "yellow", "NOT JUDGED": "dim"}

_ROW, _WIDTH, _LEFT, _RIGHT = 28, 1040, 370, 670
_STYLE = """
svg { font: 13px system-ui, sans-serif; background: #fff; color: #1c1c22 }
text { fill: currentColor } .soft { opacity: .75 } .title { font-weight: 600 }
line { stroke: #8a8a94 } .whisker { stroke: #2456b8; stroke-width: 2 } circle { fill: #2456b8 }
@media (prefers-color-scheme: dark) { svg { background: #17171c; color: #ececf1 }
.whisker { stroke: #8fb4ff } circle { fill: #8fb4ff } }
"""


def print_runs(history: History) -> None:
    """Print a line a run, the oldest first."""
    from rich.table import Table
    from rich.text import Text

    if not history.runs:
        print("no run is recorded yet")
        return
    table = Table("created", "run", "scenario", "model", "digest", "verdict", box=None, pad_edge=False)
    for item in history.runs:
        run = item.run
        names = [Text(visible(name)) for name in (run.created, run.run_id, run.scenario, run.model_name)]
        table.add_row(*names, Text(numbers.short_digest(run.model_digest)), _verdict(item))
    print_table(table)


def print_series(history: History) -> None:
    """Print each series: a line a run with value, interval, and both drawn on the series's scale."""
    from rich.table import Table
    from rich.text import Text

    for series in history.series:
        print(f"{_title(series)}  ({_place(series)})")
        scale = _scale(series)
        ends = f"{numbers.number(scale.low, _unit(series))} … {numbers.number(scale.high, _unit(series))}"
        table = Table(
            "created",
            "run",
            "model",
            "verdict",
            "value",
            "interval",
            f"scale {ends}",
            box=None,
            pad_edge=False,
        )
        for item, entry in series.points:
            names = [Text(visible(name)) for name in (item.run.created, item.run.run_id, item.run.model_name)]
            value = numbers.number(entry.value, entry.unit)
            drawn = (
                _strip(scale, entry) if entry.value is not None else f"none: {visible(entry.reason or '')}"
            )
            table.add_row(*names, _verdict(item), value, _interval(entry), Text(drawn))
        print_table(table)
        print()


def history_svg(history: History) -> str:
    """The same as an SVG file: no script, no font, nothing from the network."""
    rows: list[Markup] = []
    top = 8
    for series in history.series:
        drawn, height = _series_svg(series, top)
        rows += drawn
        top += height
    label = f"{history.metric} over {len(history.runs)} runs"
    head = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" '
        'aria-label="{2}"><title>{2}</title><style>{3}</style>'
    ).format(_WIDTH, top, visible(label), Markup(_STYLE))
    return str(head + Markup("\n").join(rows) + Markup("</svg>\n"))


def _series_svg(series: Series, top: int) -> tuple[list[Markup], int]:
    scale, unit = _scale(series), _unit(series)
    rows = [
        _text(8, top + 18, _title(series), "title"),
        _text(8, top + 36, _place(series), "soft"),
    ]
    first = top + 48
    bottom = first + _ROW * len(series.points)
    for tick in scale.ticks():
        x = _x(scale, tick)
        rows.append(
            Markup('<line x1="{0}" x2="{0}" y1="{1}" y2="{2}" opacity=".35"/>').format(x, first, bottom)
        )
        rows.append(_text(x, bottom + 16, numbers.number(tick, unit), "soft", "middle"))
    for index, (item, entry) in enumerate(series.points):
        y = first + _ROW * index + _ROW // 2
        rows.append(_text(8, y + 4, f"{item.run.created}  {item.run.model_name}"[:52]))
        if entry.value is None:
            rows.append(_text(_LEFT, y + 4, f"none: {entry.reason}", "soft"))
        else:
            rows += _dot(scale, entry, y)
            value = f"{numbers.number(entry.value, unit)}  ({_interval(entry)})  {item.word}"
            rows.append(_text(_RIGHT + 14, y + 4, value))
    return rows, bottom + 36 - top


def _dot(scale: Scale, entry: MetricEntry, y: int) -> Iterator[Markup]:
    assert entry.value is not None
    ends = [end for end in (entry.low, entry.high) if end is not None]
    if ends:
        span = sorted([*ends, entry.value])
        yield Markup('<line class="whisker" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(
            _x(scale, span[0]), _x(scale, span[-1]), y=y
        )
    for end in ends:
        yield Markup('<line class="whisker" x1="{x}" x2="{x}" y1="{}" y2="{}"/>').format(
            y - 5, y + 5, x=_x(scale, end)
        )
    yield Markup('<circle cx="{}" cy="{}" r="4.5"/>').format(_x(scale, entry.value), y)


def _strip(scale: Scale, entry: MetricEntry) -> str:
    """Value and interval in characters; an end that isn't known has no cap."""
    assert entry.value is not None

    def place(value: float) -> int:
        return round(scale.position(value) / 100 * (_STRIP - 1))

    cells = [" "] * _STRIP
    ends = [end for end in (entry.low, entry.high) if end is not None]
    span = sorted(place(value) for value in [*ends, entry.value])
    for index in range(span[0], span[-1] + 1):
        cells[index] = "─"
    if entry.low is not None:
        cells[place(entry.low)] = "├"
    if entry.high is not None:
        cells[place(entry.high)] = "┤"
    cells[place(entry.value)] = "●"
    return "".join(cells).rstrip()


def _scale(series: Series) -> Scale:
    values = [value for _, entry in series.points for value in (entry.value, entry.low, entry.high)]
    return Scale.over(values)


def _unit(series: Series) -> str:
    return series.points[0][1].unit


def _title(series: Series) -> str:
    k = "" if series.k is None else f" k={series.k}"
    return visible(f"{series.name}{k}" + (f" [{series.slice}]" if series.slice else ""))


def _place(series: Series) -> str:
    return visible(f"scenario {series.scenario} {series.scenario_sha256[:12]}, {series.signature}")


def _interval(entry: MetricEntry) -> str:
    if entry.low is None and entry.high is None:
        return "no interval"
    known = Interval(entry.low, entry.high, entry.confidence or 0.0, 2, "")
    return f"{numbers.interval(known, entry.unit)} at {numbers.confidence(known)}"


def _x(scale: Scale, value: float) -> float:
    return round(_LEFT + scale.position(value) / 100 * (_RIGHT - _LEFT), 1)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> Markup:
    return Markup('<text x="{}" y="{}" class="{}" text-anchor="{}">{}</text>').format(
        x, y, kind, anchor, visible(text)
    )


def _verdict(item: HistoryRun) -> str:
    style = _STYLE_BY_VERDICT.get(item.word, "")
    return f"[{style}]{item.word}[/]"
