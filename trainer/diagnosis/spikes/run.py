"""From logs to findings: read, cut into stretches, find what rises, explain it, say what wasn't measured."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from evalkit.errors import InputError
from trainer.diagnosis.distributed import first_failure
from trainer.diagnosis.incidents import Incident, find_incidents
from trainer.diagnosis.plog import read_log
from trainer.diagnosis.rulebook import make_finding
from trainer.diagnosis.spikes.causebook import cause_book
from trainer.diagnosis.spikes.causes import explain
from trainer.diagnosis.spikes.detect import Detection, Rises, Spike, find_rises
from trainer.diagnosis.spikes.readers import read_training_log
from trainer.diagnosis.spikes.records import Stretch, TrainingLog, stretches
from trainer.diagnosis.spikes.signals import Context, repeats, shown
from trainer.findings import Evidence, Finding, report


@dataclass(frozen=True)
class SpikeReport:
    """Everything that was read and found.

    Attributes:
        findings: one a spike in the order of the logs (`explained` pairs them), then the rest.
        explained: each spike with its finding.
        incidents: errors of the other logs, by time.
    """

    logs: tuple[TrainingLog, ...]
    stretches: tuple[Stretch, ...]
    explained: tuple[tuple[Spike, Finding], ...]
    findings: tuple[Finding, ...]
    incidents: tuple[Incident, ...]

    @property
    def spikes(self) -> list[Spike]:
        """The spikes alone."""
        return [spike for spike, _ in self.explained]

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints and findings.json holds."""
        return report(
            self.findings,
            spikes=[_spike_json(spike, finding) for spike, finding in self.explained],
            logs=[
                {"file": str(log.path), "format": log.format, "steps": len(log.steps)} for log in self.logs
            ],
        )


def diagnose_spikes(
    logs: Sequence[Path | str],
    plogs: Sequence[Path | str] = (),
    trace: Path | str | None = None,
    settings: Detection | None = None,
) -> SpikeReport:
    """Diagnose training logs, given in the order in which they were written.

    Args:
        logs: the training's own logs.
        plogs: logs of CANN, HCCL or the processes, whose errors are joined by time.
        trace: a profiler's folder; its verdicts are told beside the spikes.
        settings: when a rise is a spike.

    Raises:
        InputError: a file can't be read, holds no step, or is given twice.
    """
    if isinstance(logs, str) or isinstance(plogs, str):
        raise TypeError("logs and plogs are lists of paths, not one path")
    _given_once(logs)
    read = [read_training_log(path) for path in logs]
    cut = stretches([step for log in read for step in log.steps])
    rises = [find_rises(stretch, settings) for stretch in cut]
    incidents = find_incidents([read_log(Path(path)) for path in plogs])
    spikes = [spike for rise in rises for spike in rise.spikes]
    context = Context(cut, spikes, incidents)
    explained = [(spike, explain(spike, context)) for spike in spikes]
    findings = [
        *(finding for _, finding in explained),
        *(finding for stretch in cut for finding in _never_finite(stretch)),
        *(finding for stretch, rise in zip(cut, rises, strict=True) for finding in _rises(stretch, rise)),
        *_measuring(read),
        *_unjoined(context),
        *_profile(trace, spikes),
    ]
    return SpikeReport(tuple(read), tuple(cut), tuple(explained), tuple(findings), tuple(incidents))


def _given_once(logs: Sequence[Path | str]) -> None:
    """A log that is read twice would look like another attempt that spiked at the same place."""
    seen = set[Path]()
    for path in logs:
        real = Path(os.path.realpath(path))
        if real in seen:
            raise InputError(
                f"{path}: given twice; give each log once, the parts of a training in their order"
            )
        seen.add(real)


def _never_finite(stretch: Stretch) -> Iterator[Finding]:
    """A stretch whose losses begin with NaN or infinities: it has no level, so that no spike begins in it."""
    if any(step.loss is not None and math.isfinite(step.loss) for step in stretch.before):
        return
    steps = [step for step in stretch.steps if step.loss is not None]
    count = next((at for at, step in enumerate(steps) if math.isfinite(step.loss or 0.0)), len(steps))
    # A few skipped steps at the start are the search for a loss scale.
    if count and (count == len(steps) or not all(step.skipped for step in steps[:count])):
        evidence = [
            Evidence("start", steps[0].step, where=steps[0].where),
            Evidence("loss", str(steps[0].loss)),
            Evidence("count", count),
            Evidence("finite", sum(math.isfinite(step.loss or 0.0) for step in steps)),
            Evidence("steps", len(steps)),
            Evidence("attempt", stretch.attempt),
        ]
        yield _make("not_finite_from_the_start", evidence)


def _rises(stretch: Stretch, rise: Rises) -> Iterator[Finding]:
    if rise.drift is not None:
        losses = [step.loss for step in stretch.steps if step.loss is not None]
        evidence = [
            Evidence("start", rise.drift.start.step, where=rise.drift.start.where),
            Evidence("level", round(rise.drift.level, 6), "nats"),
            Evidence("last", losses[-1], "nats", stretch.steps[-1].where),
        ]
        yield _make("slow_divergence", evidence)
    if rise.odd_batches:
        largest = max(rise.odd_batches, key=lambda step: step.loss or 0.0)
        evidence = [
            Evidence("count", len(rise.odd_batches)),
            Evidence("largest", largest.loss, "nats", largest.where),
            Evidence("step", largest.step),
        ]
        yield _make("odd_batches", evidence)


def _measuring(logs: list[TrainingLog]) -> Iterator[Finding]:
    for log in logs:
        where = str(log.path)
        norms = [step.grad_norm for step in log.steps]
        stale = sum(repeats(before, norm) for before, norm in pairwise(norms))
        skipped = sum(bool(step.skipped) for step in log.steps)
        if all(step.loss is None for step in log.steps):
            scales = [step.loss_scale for step in log.steps if step.loss_scale is not None]
            evidence = [
                Evidence("steps", len(log.steps), where=where),
                Evidence("high", scales[0] if scales else None),
                Evidence("low", scales[-1] if scales else None),
            ]
            yield _make("every_step_skipped", evidence)
        elif skipped:
            evidence = [Evidence("count", skipped, where=where), Evidence("steps", len(log.steps))]
            yield _make("steps_skipped", evidence)
        for rule, count in (
            ("grad_norm_stale", stale),
            ("grad_norm_not_measured", log.zero_norms),
            ("loss_scale_not_measured", log.no_scales),
            ("lines_cut", log.cut_lines),
        ):
            if count:
                yield _make(rule, [Evidence("count", count, where=where)])


def _unjoined(context: Context) -> Iterator[Finding]:
    first = first_failure(context.incidents)
    if first is None or not context.spikes:
        return
    why = None
    if all(spike.start.time is None for spike in context.spikes):
        why = "the training logs have no times"
    elif first.when is None:
        why = "the errors have no times"
    if why is not None:
        evidence = [Evidence("why", why), Evidence("message", first.line.shown, where=first.line.where)]
        yield _make("logs_not_joined", evidence)


def _profile(trace: Path | str | None, spikes: list[Spike]) -> Iterator[Finding]:
    if trace is None:
        return
    from trainer.timeline.run import analyse

    analysis = analyse(trace)
    verdicts = [finding.rule for finding in analysis.findings if finding.severity != "info"]
    profiled = sorted({mark.step for rank in analysis.ranks for mark in rank.steps})
    covered = [spike.start.step for spike in spikes if spike.start.step in profiled]
    yield _make(
        "profile_beside",
        [
            Evidence("verdicts", ", ".join(dict.fromkeys(verdicts)) or "nothing", where=str(trace)),
            Evidence("first_profiled_step", profiled[0] if profiled else None),
            Evidence("last_profiled_step", profiled[-1] if profiled else None),
            Evidence("spikes_in_the_profile", ", ".join(map(str, covered)) or "none"),
        ],
    )


def _spike_json(spike: Spike, finding: Finding) -> dict[str, Any]:
    return {
        "log": str(spike.start.path),
        "cause": finding.rule,
        "start": spike.start.step,
        "peak": spike.peak.step,
        "peak_loss": spike.peak.loss if spike.finite else None,
        "level": spike.level.median,
        "last": spike.last.step,
        "recovered": spike.recovered.step if spike.recovered else None,
        "recovery_steps": spike.recovery_steps,
        "summary": f"{shown(spike.level.median)} -> {shown(spike.peak.loss)}",
    }


def _make(rule: str, evidence: list[Evidence]) -> Finding:
    return make_finding(rule, cause_book().rules[rule], evidence)
