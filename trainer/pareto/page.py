"""pareto.html: settings by speed and score with their noise boxes, single runs behind them, and the tables; no script."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from evalkit.report.charts import Scale
from evalkit.report.pages import page_templates
from trainer.pareto.front import Estimate, Setting, shown_number
from trainer.pareto.report import ParetoReport

_TEMPLATES = Path(__file__).parent / "templates"
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900.0, 460.0, 70.0, 40.0


def render_pareto_page(report: ParetoReport) -> str:
    """The page; the template escapes every value."""
    style = Markup((_TEMPLATES / "pareto.css").read_text(encoding="utf-8"))
    return page_templates(_TEMPLATES).get_template("pareto.html.j2").render(view=_view(report), style=style)


class _Axis:
    """Values to pixels."""

    def __init__(self, scale: Scale, start: float, end: float) -> None:
        self._scale, self._start, self._end = scale, start, end

    def __call__(self, value: float) -> float:
        return self._start + self._scale.position(value) / 100 * (self._end - self._start)

    def ticks(self) -> list[tuple[float, str]]:
        """Places and their values."""
        return [(self(value), shown_number(value)) for value in self._scale.ticks()]


def _view(report: ParetoReport) -> dict[str, Any]:
    space = report.space
    measured = [item for item in report.settings if item.score is not None and item.speed is not None]
    singles = [
        run
        for item in report.settings
        for run in item.runs
        if run.score is not None and run.speed is not None
    ]
    x = _Axis(Scale.over(run.speed for run in singles), _LEFT, _WIDTH - 10)
    y = _Axis(Scale.over((run.score for run in singles), linear=True), _HEIGHT - _BOTTOM, 10)
    taken = report.recommendation.setting if report.recommendation is not None else None
    front = sorted((item for item in measured if item.status == "front"), key=lambda item: _mean(item.speed))
    return {
        "name": space.name,
        "summary": report.summary,
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "bottom": _HEIGHT - _BOTTOM,
        "x_name": f"{space.speed.metric} ({_better(space.speed.direction)} is better)",
        "y_name": f"{space.score.metric} ({_better(space.score.direction)} is better)",
        "x_ticks": x.ticks(),
        "y_ticks": y.ticks(),
        "dots": [(x(float(run.speed or 0)), y(float(run.score or 0))) for run in singles],
        "line": " ".join(f"{x(_mean(item.speed)):.1f},{y(_mean(item.score)):.1f}" for item in front),
        "points": [_point(item, x, y, item is taken) for item in measured],
        "interval": f"{100 * (1 - 2 * space.alpha):g} % intervals of the means, noise {space.noise}",
        "rows": [_row(item) for item in sorted(measured, key=_order)],
        "others": [
            _row(item)
            for item in report.settings
            if item not in measured or item.status in ("nan", "infeasible")
        ],
    }


def _point(item: Setting, x: _Axis, y: _Axis, taken: bool) -> dict[str, Any]:
    assert item.score is not None and item.speed is not None
    box = None
    if item.score.low is not None and item.speed.low is not None:
        left, right = sorted((x(item.speed.low), x(item.speed.high or 0)))
        top, bottom = sorted((y(item.score.low), y(item.score.high or 0)))
        box = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    return {
        "x": x(item.speed.mean),
        "y": y(item.score.mean),
        "box": box,
        "kind": item.status.replace(" ", "-"),
        "taken": taken,
        "text": f"{item.label}: {item.n} runs, score {_interval(item.score)}, speed {_interval(item.speed)}, {item.status}",
    }


def _row(item: Setting) -> dict[str, Any]:
    return {
        "label": item.label,
        "kind": item.status.replace(" ", "-"),
        "cells": [
            item.status,
            str(item.n),
            _interval(item.score),
            _interval(item.speed),
            "-" if item.front_share is None else f"{item.front_share:.0%}",
        ],
        "why": item.why,
    }


def _order(item: Setting) -> tuple[int, float]:
    return ("front", "candidate").index(item.status) if item.status in ("front", "candidate") else 2, -_mean(
        item.speed
    )


def _mean(value: Estimate | None) -> float:
    return 0.0 if value is None else value.mean


def _interval(value: Estimate | None) -> str:
    if value is None:
        return "-"
    if value.low is None or value.high is None:
        return f"{shown_number(value.mean)} (noise not known)"
    return f"{shown_number(value.mean)} [{shown_number(value.low)}, {shown_number(value.high)}]"


def _better(direction: str) -> str:
    return "less" if direction == "minimize" else "more"
