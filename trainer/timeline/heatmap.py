"""heatmap.html: findings first, then one map a metric; one file, no network, its own script allowed by its hash."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from evalkit.report.pages import page_templates
from trainer.timeline.cube import Cube
from trainer.timeline.facts.world import shown_ranks

_TEMPLATES = Path(__file__).parent / "templates"
_SCRIPT = ("heatmap.js", "heatmap_view.js")
_TOP, _UNKNOWN = 250, 255
_WORDS = {"error": "✗ error", "warning": "! warning", "info": "i note"}
_METRICS = {
    "compute_utilisation": (
        "Compute utilisation",
        "share of a cell's time in which a compute unit runs a kernel",
    ),
    "memory_bandwidth_utilisation": (
        "Memory-bandwidth utilisation",
        "share of the time in which kernels read or write memory, from their counters",
    ),
    "communication_wait": (
        "Communication wait",
        "share of a cell's time in communication that no computation hides",
    ),
}
_BLANK = {
    "compute_utilisation": "Unknown everywhere: no rank has device rows.",
    "memory_bandwidth_utilisation": "Unknown everywhere: it needs kernel_details.csv with mte columns (profiler level 1 or 2, "
    "aic_metrics PipeUtilization).",
    "communication_wait": "Unknown everywhere: no rank has device rows.",
}
_MOST_ROWS = 200


def render_heatmap(cube: Cube, findings: dict[str, Any], title: str) -> str:
    """The page. `findings` is what findings.json holds; the template escapes every value."""
    script = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPT)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # `<` can't appear in JSON's structure: escaped, the data can't close its element.
    data = json.dumps(_data(cube), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return (
        page_templates(_TEMPLATES)
        .get_template("heatmap.html.j2")
        .render(
            view=_view(cube, findings, title),
            style=Markup((_TEMPLATES / "heatmap.css").read_text(encoding="utf-8")),
            script=Markup(script),
            script_hash=f"sha256-{digest}",
            data=Markup(data),
        )
    )


def _levels(values: NDArray[np.float64]) -> str:
    levels = np.where(np.isnan(values), _UNKNOWN, np.rint(np.nan_to_num(values) * _TOP)).astype(np.uint8)
    return base64.b64encode(levels.tobytes()).decode()


def _data(cube: Cube) -> dict[str, Any]:
    # Times from the window's start: absolute ns don't fit into a double.
    origin = int(cube.edges_ns[0])
    return {
        "ranks": list(cube.ranks),
        "bins": cube.bins,
        "start_ns": 0,
        "end_ns": int(cube.edges_ns[-1]) - origin,
        "steps": [[step, start - origin, end - origin] for step, start, end in cube.steps],
        "why": {str(rank): reason for rank, reason in cube.why_unknown.items()},
        "metrics": [
            {"key": key, "title": _METRICS[key][0], "values": _levels(rows)}
            for key, rows in cube.values.items()
        ],
    }


def _view(cube: Cube, findings: dict[str, Any], title: str) -> dict[str, Any]:
    missing = findings["missing_ranks"]
    span = int(cube.edges_ns[-1] - cube.edges_ns[0])
    chips = [
        f"{len(findings['ranks_present'])} ranks present" + (f", {len(missing)} missing" if missing else ""),
        f"{len(cube.steps)} steps" if len(cube.steps) != 1 else "1 step",
        f"window {_duration(span)}",
        f"{cube.bins} cells of {_duration(span / cube.bins)}",
        f"{len(findings['files_read'])} file{'s' if len(findings['files_read']) != 1 else ''}",
    ]
    return {
        "title": title,
        "chips": chips,
        "notes": [*cube.notes, *findings["notes"]],
        "findings": [_finding(finding) for finding in findings["findings"]],
        "words": _WORDS,
        "skew_note": _skew_note(findings["skew"], cube),
        "metrics": [_metric(key, rows) for key, rows in cube.values.items()],
        "ranks": _rank_rows(cube, findings["skew"]),
        "quarantine": findings["quarantine"][:_MOST_ROWS],
        "undecided": findings["undecided"],
    }


def _finding(finding: dict[str, Any]) -> dict[str, Any]:
    evidence = [
        {
            "name": item["name"].replace("_", " "),
            "shown": _value(item["value"], item.get("unit", "")) if item["name"] != "source" else "",
            "where": item.get("where", "") if item["name"] != "source" else item["value"],
        }
        for item in finding["evidence"]
    ]
    return finding | {"evidence": evidence}


def _value(value: object, unit: str) -> str:
    if value is None:
        return "unknown"
    if not isinstance(value, (int, float)):
        return str(value)
    if unit == "share":
        return f"{100 * value:.1f} %"
    return f"{value:.4g} {unit}".strip() if unit != "ratio" else f"{value:.3g}"


def _metric(key: str, rows: NDArray[np.float64]) -> dict[str, str]:
    unknown = float(np.isnan(rows).mean()) if rows.size else 1.0
    mean = None if unknown == 1.0 else float(np.nanmean(rows))
    spoken = f"mean {100 * mean:.0f} %, " if mean is not None else ""
    return {
        "key": key,
        "title": _METRICS[key][0],
        "meaning": _METRICS[key][1],
        "why": _BLANK[key] if unknown == 1.0 else "",
        "unknown": f"{_share(unknown)} of the cells",
        "spoken": f"{spoken}{_share(unknown)} of the cells are unknown",
    }


def _share(value: float) -> str:
    """Whole per cents, but few isn't none and nearly all isn't all."""
    if 0 < value < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < value < 1 else f"{100 * value:.0f} %"


def _skew_note(skew: dict[str, Any] | None, cube: Cube) -> str:
    if not skew or len(skew["ranks"]) < 2:
        unknown = " Clocks of other ranks couldn't be compared." if skew and skew["unknown_ranks"] else ""
        return f"Times are those of the trace's own clock.{unknown}"
    moved = [row for row in skew["ranks"].values() if row["corrected"]]
    worst = max(row["uncertainty_us"] for row in skew["ranks"].values())
    most = max((abs(row["offset_us"]) for row in moved), default=0.0)
    corrected = (
        f"{len(moved)} {'clock was' if len(moved) == 1 else 'clocks were'} corrected, by up to {_duration(most * 1e3)}"
        if moved
        else "no clock differs by more than that"
    )
    unknown = (
        f" The clocks of ranks {shown_ranks(skew['unknown_ranks'])} couldn't be compared."
        if skew["unknown_ranks"]
        else ""
    )
    return (
        f"Times are on the clock of rank {skew['reference']}; the ranks' clocks compare within ± {_duration(worst * 1e3)}: "
        f"{corrected}. Differences between ranks below that mean nothing.{unknown}"
    )


def _rank_rows(cube: Cube, skew: dict[str, Any] | None) -> list[dict[str, str]]:
    offsets = skew["ranks"] if skew else {}
    rows = []
    for at, rank in enumerate(cube.ranks):
        means = [_mean(cube.values[key][at]) for key in _METRICS]
        known = float((~np.isnan(cube.values["compute_utilisation"][at])).mean())
        offset = offsets.get(str(rank))
        shown = "unknown"
        if offset is not None:
            shown = (
                "reference"
                if offset["method"] == "reference"
                else f"{offset['offset_us']:,.2f} ± {offset['uncertainty_us']:,.2f} µs"
                + ("" if offset["corrected"] else " (not taken off)")
            )
        rows.append(
            {
                "rank": str(rank),
                "compute": means[0],
                "memory": means[1],
                "wait": means[2],
                "known": _share(known),
                "offset": shown,
                "note": cube.why_unknown.get(rank, ""),
            }
        )
    return rows


def _mean(row: NDArray[np.float64]) -> str:
    known = row[~np.isnan(row)]
    return f"{100 * float(known.mean()):.1f} %" if len(known) else "unknown"


def _duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}" if ns < 1000 * size else f"{ns / size:,.0f} {unit}"
    return f"{ns:.3g} ns"
