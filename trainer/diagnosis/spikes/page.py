"""spikes.html: findings, the whole curve with its marked events, and a close-up of each spike; one file, no script."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from evalkit.files import folder_atomic, write_json_atomic
from evalkit.report.pages import page_templates
from trainer.diagnosis.incidents import Incident
from trainer.diagnosis.spikes.detect import Spike
from trainer.diagnosis.spikes.plots import Band, Curve, Line, Plot, draw
from trainer.diagnosis.spikes.records import TrainingStep
from trainer.diagnosis.spikes.run import SpikeReport
from trainer.diagnosis.spikes.signals import shown
from trainer.findings import Evidence, Finding

_TEMPLATES = Path(__file__).parent / "templates"
_WORDS = {"error": "✗ error", "warning": "! warning", "info": "i note"}
_BEFORE, _BEHIND = 40, 20
_BEFORE_STEPS = 100
_MOST_CLOSE_UPS = 20
_MOST_ROWS = 80
_QUANTITIES = (
    ("Gradient norm (logarithmic)", "grad_norm", True),
    ("Loss scale (logarithmic)", "loss_scale", True),
    ("Learning rate", "learning_rate", False),
)


def write_report(report: SpikeReport, out: Path | str) -> None:
    """Write spikes.html and findings.json into a new folder.

    Raises:
        InputError: `out` exists already.
    """
    with folder_atomic(Path(out)) as staging:
        write_json_atomic(staging / "findings.json", report.to_json())
        (staging / "spikes.html").write_text(render_page(report), encoding="utf-8")


def render_page(report: SpikeReport) -> str:
    """The page; the template escapes every value."""
    return (
        page_templates(_TEMPLATES)
        .get_template("spikes.html.j2")
        .render(
            view=_view(report),
            style=Markup((_TEMPLATES / "spikes.css").read_text(encoding="utf-8")),
        )
    )


def _view(report: SpikeReport) -> dict[str, Any]:
    steps = sum(len(log.steps) for log in report.logs)
    attempts = len({stretch.attempt for stretch in report.stretches})
    close_ups = [
        _close_up(number, spike, finding)
        for number, (spike, finding) in enumerate(report.explained[:_MOST_CLOSE_UPS], start=1)
    ]
    return {
        "title": ", ".join(dict.fromkeys(log.path.name for log in report.logs)),
        "chips": [
            f"{steps:,} steps" if steps != 1 else "1 step",
            f"{attempts} attempts" if attempts != 1 else "1 attempt",
            f"{len(report.spikes)} spikes" if len(report.spikes) != 1 else "1 spike",
            *dict.fromkeys(f"format {log.format}" for log in report.logs),
        ],
        "attempts": attempts,
        "resumed": any(stretch.resumed for stretch in report.stretches),
        "failed": bool(report.incidents),
        "findings": [_finding(finding) for finding in report.findings],
        "words": _WORDS,
        "curve": _curve(report),
        "close_ups": close_ups,
        "left_out": max(0, len(report.spikes) - _MOST_CLOSE_UPS),
    }


def _curve(report: SpikeReport) -> Plot | None:
    curves = [
        Curve(_points(stretch.steps, "loss"), stretch.attempt - 1)
        for stretch in report.stretches
        if any(step.loss is not None for step in stretch.steps)
    ]
    bands = [_band(number, spike) for number, spike in enumerate(report.spikes, start=1)]
    lines = [Line(stretch.steps[0].step, "resume") for stretch in report.stretches if stretch.resumed]
    every = [step for stretch in report.stretches for step in stretch.steps]
    lines += [line for incident in report.incidents if (line := _incident(incident, every)) is not None]
    return draw("Loss (nats)", curves, bands=bands, lines=lines)


def _incident(incident: Incident, steps: list[TrainingStep]) -> Line | None:
    """The first step written after an error; None where times are missing or the log ends before."""
    if incident.when is None or incident.failure.role == "echo":
        return None
    when = incident.when
    behind = next((step for step in steps if step.time is not None and step.time >= when), None)
    return Line(behind.step, "failure") if behind else None


def _band(number: int, spike: Spike) -> Band:
    end = spike.recovered or spike.last
    return Band(spike.start.step, end.step, str(number), f"#spike-{number}")


def _close_up(number: int, spike: Spike, finding: Finding) -> dict[str, Any]:
    every = [*spike.stretch.before, *spike.stretch.steps]
    start, end = every.index(spike.start), every.index(spike.recovered or spike.last)
    # Where an excerpt leaves a gap, a few steps before are enough.
    near = sum(step.step >= spike.start.step - _BEFORE_STEPS for step in every[:start])
    steps = every[max(0, start - min(_BEFORE, max(near, 2))) : end + 1 + _BEHIND]
    band = _band(number, spike)
    loss = draw("Loss (nats)", [Curve(_points(steps, "loss"))], bands=[band], points=len(steps) <= 120)
    others = [
        draw(title, [Curve(_points(steps, name))], bands=[band], logarithmic=log, points=len(steps) <= 120)
        for title, name, log in _QUANTITIES
    ]
    names = [title for (title, _, _), plot in zip(_QUANTITIES, others, strict=True) if plot is None]
    return {
        "number": number,
        "heading": f"{spike.start.step:,}: {shown(spike.level.median)} → {shown(spike.peak.loss)}",
        "cause": finding.rule.replace("_", " "),
        "severity": finding.severity,
        "summary": finding.summary,
        "recovery": (
            f"back at its level after {spike.recovery_steps:,} steps (step {spike.recovered.step:,})"
            if spike.recovered is not None
            else "not back at its level within the log"
        ),
        "plots": [plot for plot in (loss, *others) if plot is not None],
        "unknown": ", ".join(name.split(" (")[0].lower() for name in names),
        "rows": [_row(step) for step in steps[:_MOST_ROWS]],
    }


def _points(
    steps: list[TrainingStep] | tuple[TrainingStep, ...], name: str
) -> tuple[tuple[float, float], ...]:
    return tuple((step.step, getattr(step, name)) for step in steps if getattr(step, name) is not None)


def _row(step: TrainingStep) -> list[str]:
    values = (step.loss, step.grad_norm, step.loss_scale, step.learning_rate)
    skipped = "unknown" if step.skipped is None else ("yes" if step.skipped else "no")
    return [f"{step.step:,}", *(shown(value) for value in values), skipped]


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity,
        "rule": finding.rule.replace("_", " "),
        "summary": finding.summary,
        "action": finding.action,
        "rivals": [
            {"rule": rival.rule.replace("_", " "), "because": rival.because} for rival in finding.rivals
        ],
        "evidence": [_evidence(item) for item in finding.evidence],
    }


def _evidence(item: Evidence) -> tuple[str, str, str]:
    value = "unknown" if item.value is None else item.value
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return item.name.replace("_", " "), f"{text} {item.unit}".strip(), item.where
