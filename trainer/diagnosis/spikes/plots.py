"""Curves as inline SVG that stretches with its frame; the labels are text outside it, so that they stay readable."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

_WIDTH, _HEIGHT = 1000.0, 100.0
_MOST_COLUMNS = 700
_COLOURS = 4


@dataclass(frozen=True)
class Curve:
    """(step, value) points in rising order, drawn as one line; `colour` counts from 0."""

    points: tuple[tuple[float, float], ...]
    colour: int = 0


@dataclass(frozen=True)
class Band:
    """A stretch of steps that is marked, with a number that links to `href`."""

    start: float
    end: float
    label: str
    href: str


@dataclass(frozen=True)
class Line:
    """A vertical line: a resume or an error; `kind` is a CSS class."""

    at: float
    kind: str


@dataclass(frozen=True)
class Label:
    """A text at a share (0 to 1) of the frame's width or height."""

    share: float
    text: str
    href: str = ""


@dataclass(frozen=True)
class Plot:
    """What the template draws."""

    title: str
    svg: Markup
    x_ticks: tuple[Label, ...]
    y_ticks: tuple[Label, ...]
    marks: tuple[Label, ...]


def draw(
    title: str,
    curves: Sequence[Curve],
    *,
    bands: Iterable[Band] = (),
    lines: Iterable[Line] = (),
    logarithmic: bool = False,
    points: bool = False,
) -> Plot | None:
    """A plot of one quantity over the steps; None without any finite point.

    Args:
        title: the quantity and its unit.
        curves: the values.
        bands: marked windows.
        lines: marked steps.
        logarithmic: a logarithmic value axis; values up to 0 are left out.
        points: draw a dot at each value.
    """
    curves = [_usable(curve, logarithmic) for curve in curves]
    values = [value for curve in curves for _, value in curve.points]
    if not values:
        return None
    steps = [step for curve in curves for step, _ in curve.points]
    low, high = _padded(min(steps), max(steps), 0.01)
    bottom, top = _padded(min(values), max(values), 0.06)
    if logarithmic and min(values) == max(values):
        bottom, top = values[0] - 0.5, values[0] + 0.5

    def x(step: float) -> float:
        return (min(max(step, low), high) - low) / (high - low)

    def y(value: float) -> float:
        return 1 - (value - bottom) / (top - bottom)

    bands, lines = list(bands), list(lines)
    ticks = _log_ticks(bottom, top) if logarithmic else _ticks(bottom, top, 4)
    parts = [_segment("grid", 0, y(tick), 1, y(tick)) for tick in ticks]
    for band in bands:
        left, width = x(band.start), max(x(band.end) - x(band.start), 0.003)
        parts.append(
            Markup('<rect class="band" x="{:.2f}" y="0" width="{:.2f}" height="{:.0f}"/>').format(
                left * _WIDTH, width * _WIDTH, _HEIGHT
            )
        )
    parts += [_segment(f"line {line.kind}", x(line.at), 0, x(line.at), 1) for line in lines]
    for curve in curves:
        thinned = _thin(curve.points)
        path = " ".join(f"{x(step) * _WIDTH:.2f},{y(value) * _HEIGHT:.2f}" for step, value in thinned)
        css = f"curve c{curve.colour % _COLOURS}"
        parts.append(Markup('<polyline class="{}" points="{}"/>').format(css, path))
        if points or len(thinned) == 1:
            # A line of no length with round caps: a circle would be stretched with the picture.
            parts += [
                _segment(f"dot c{curve.colour % _COLOURS}", x(step), y(value), x(step), y(value))
                for step, value in thinned
            ]
    shown = f"{_unit(min(values), logarithmic)} to {_unit(max(values), logarithmic)} over steps {min(steps):,.0f} to {max(steps):,.0f}"
    description = f"{title}: {shown}" + (f"; {len(bands)} marked" if bands else "")
    svg = Markup(
        '<svg viewBox="0 0 {:.0f} {:.0f}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDTH, _HEIGHT, description, Markup("").join(parts))
    return Plot(
        title,
        svg,
        tuple(Label(x(tick), f"{tick:,.0f}") for tick in _ticks(low, high, 5) if float(tick).is_integer()),
        tuple(Label(y(tick), _unit(tick, logarithmic)) for tick in ticks),
        tuple(Label(x((band.start + band.end) / 2), band.label, band.href) for band in bands),
    )  # fmt: skip


def _unit(value: float, logarithmic: bool) -> str:
    value = 10**value if logarithmic else value
    for from_, size, letter in ((1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if from_ <= abs(value) < 1e12:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _usable(curve: Curve, logarithmic: bool) -> Curve:
    points = (
        (step, math.log10(value) if logarithmic else value)
        for step, value in curve.points
        if math.isfinite(value) and (value > 0 or not logarithmic)
    )
    return Curve(tuple(points), curve.colour)


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Each column of the picture keeps its lowest and its highest value, so that no spike is lost."""
    if len(points) <= 2 * _MOST_COLUMNS:
        return list(points)
    first, last = points[0][0], points[-1][0]
    columns: dict[int, list[tuple[float, float]]] = {}
    for step, value in points:
        column = int((step - first) / (last - first) * (_MOST_COLUMNS - 1))
        columns.setdefault(column, []).append((step, value))
    kept = []
    for inside in columns.values():
        low, high = min(inside, key=lambda point: point[1]), max(inside, key=lambda point: point[1])
        kept += sorted({low, high})
    return kept


def _padded(low: float, high: float, share: float) -> tuple[float, float]:
    room = (high - low) * share or abs(high) * 0.5 or 0.5
    return low - room, high + room


def _ticks(low: float, high: float, about: int) -> list[float]:
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step)
    return [round(at * step, 12) for at in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten, or the powers alone where those are enough."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    tens = [float(power) for power in powers if low <= power <= high]
    if len(tens) >= 3:
        return tens[:: math.ceil(len(tens) / 5)]
    fine = [power + math.log10(factor) for power in powers for factor in (1, 2, 5)]
    fine = [tick for tick in fine if low <= tick <= high]
    return fine if len(fine) > 1 else _ticks(low, high, 3)


def _segment(css: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<line class="{}" x1="{:.2f}" y1="{:.2f}" x2="{:.2f}" y2="{:.2f}"/>').format(
        css, x1 * _WIDTH, y1 * _HEIGHT, x2 * _WIDTH, y2 * _HEIGHT
    )
