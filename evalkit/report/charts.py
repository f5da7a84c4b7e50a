"""Dots and whiskers as inline SVG strips, one a table row on a common scale.

Positions are per cent of the width, so that a strip fits a phone and a wall alike and text keeps its size;
colours are CSS classes, so that light, dark and print need no second drawing.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from evalkit.report.text import visible

_HEIGHT = 30
_AXIS_HEIGHT = 20
_MARGIN = 0.06
_LOG_FROM_RATIO = 10.0
# Beyond this a decade is too narrow to be seen, and the quotient nears the end of float64.
_LOG_TO_RATIO = 1e30
_MAX_TICKS = 4

Series = Literal["candidate", "baseline"]


@dataclass(frozen=True)
class Dot:
    """A value with its interval; an end that is None has no whisker."""

    value: float
    low: float | None
    high: float | None
    series: Series = "candidate"
    tone: str = ""


@dataclass(frozen=True)
class Mark:
    """A vertical line (threshold, budget, zero) or a small tick (p95, p99) at a value."""

    value: float
    kind: Literal["threshold", "zero", "tick"]
    label: str


@dataclass(frozen=True)
class Scale:
    """Where a value lies, in per cent of the width."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def over(cls, values: Iterable[float | None], *, linear: bool = False) -> "Scale":
        """A scale that shows every finite value; logarithmic where positive values span a factor above 10."""
        finite = [value for value in values if value is not None and math.isfinite(value)]
        if not finite:
            return cls(0.0, 1.0, False)
        low, high = min(finite), max(finite)
        logarithmic = not linear and low > 0 and _LOG_FROM_RATIO < high / low < _LOG_TO_RATIO
        if logarithmic:
            pad = (high / low) ** _MARGIN
            return cls(low / pad, high * pad, True)
        pad = (high - low) * _MARGIN or abs(high) * _MARGIN or 1.0
        return cls(low - pad, high + pad, False)

    def position(self, value: float) -> float:
        """Per cent from the left, clipped to the strip."""
        if self.logarithmic:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 2)

    def ticks(self) -> list[float]:
        """Round values within the scale, four or five."""
        if self.logarithmic:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps: Sequence[float] = (1, 2, 5)
            while True:
                found = [step * 10.0**decade for decade in decades for step in steps]
                found = [value for value in found if self.low <= value <= self.high]
                if len(found) <= _MAX_TICKS or len(steps) == 1:
                    return found[:: math.ceil(len(found) / _MAX_TICKS) or 1]
                steps = steps[:-1] if len(steps) == 3 else (1,)
        step = _round_step((self.high - self.low) / _MAX_TICKS)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [index * step for index in range(first, last + 1)]


@dataclass(frozen=True)
class Strip:
    """One row of a chart, to be drawn: a lane a dot, the candidate above the baseline.

    Attributes:
        scale: of the whole table.
        dots, marks: values that aren't finite are left out.
        description: what a screen reader says.
    """

    scale: Scale
    dots: Sequence[Dot]
    marks: Sequence[Mark]
    description: str

    def svg(self, say: Callable[[str], str]) -> Markup:
        """The drawing; `say` translates its labels."""
        parts = [Markup('<line class="lane" x1="0" x2="100%" y1="{0}" y2="{0}"/>').format(_HEIGHT / 2)]
        parts += [_mark(self.scale, mark, say) for mark in self.marks if math.isfinite(mark.value)]
        shown = [dot for dot in self.dots if math.isfinite(dot.value)]
        for index, dot in enumerate(shown):
            parts.append(_dot(self.scale, dot, _HEIGHT * (index + 1) / (len(shown) + 1)))
        return _svg(parts, _HEIGHT, say(self.description))


def axis(scale: Scale, labels: Sequence[tuple[float, str]]) -> Markup:
    """The row of tick labels below the strips of a table; decoration for a screen reader."""
    parts = []
    for value, label in labels:
        place = scale.position(value)
        anchor = "start" if place < 8 else "end" if place > 92 else "middle"
        parts.append(Markup('<line class="tick" x1="{0}%" x2="{0}%" y1="0" y2="4"/>').format(place))
        parts.append(Markup('<text x="{}%" y="16" text-anchor="{}">{}</text>').format(place, anchor, label))
    return Markup('<svg class="axis" width="100%" height="{}" aria-hidden="true">{}</svg>').format(
        _AXIS_HEIGHT, Markup("").join(parts)
    )


def _mark(scale: Scale, mark: Mark, say: Callable[[str], str]) -> Markup:
    top, bottom = (_HEIGHT / 2 - 5, _HEIGHT / 2 + 5) if mark.kind == "tick" else (1, _HEIGHT - 1)
    return Markup('<line class="{}" x1="{}%" x2="{}%" y1="{}" y2="{}"><title>{}</title></line>').format(
        mark.kind, *[scale.position(mark.value)] * 2, top, bottom, visible(say(mark.label))
    )


def _dot(scale: Scale, dot: Dot, y: float) -> Markup:
    y = round(y, 2)
    shape = Markup('<circle cx="{}%" cy="{}" r="4.5"/>').format(scale.position(dot.value), y)
    ends = [end for end in (dot.low, dot.high) if end is not None and math.isfinite(end)]
    left, right = min([dot.value, *ends]), max([dot.value, *ends])
    whisker = Markup('<line x1="{}%" x2="{}%" y1="{}" y2="{}"/>').format(
        scale.position(left), scale.position(right), y, y
    )
    caps = Markup("").join(
        Markup('<line x1="{}%" x2="{}%" y1="{}" y2="{}"/>').format(*[scale.position(end)] * 2, y - 4, y + 4)
        for end in ends
    )
    return Markup('<g class="dot {} {}">{}{}{}</g>').format(dot.series, dot.tone, whisker, caps, shape)


def _svg(parts: Sequence[Markup], height: int, description: str) -> Markup:
    return Markup('<svg class="strip" width="100%" height="{}" role="img" aria-label="{}">{}</svg>').format(
        height, visible(description), Markup("").join(parts)
    )


def _round_step(rough: float) -> float:
    """The next 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * (1 - 1e-9))
