"""What moved with a spike: the signs that causes are made of, each measured or not there."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from trainer.diagnosis.incidents import Incident
from trainer.diagnosis.spikes.causebook import Windows
from trainer.diagnosis.spikes.detect import Spike
from trainer.diagnosis.spikes.records import Stretch, TrainingStep

_NORM_ONSET = 3.0
_SCALE_COLLAPSE = 4.0
_LEARNING_RATE_JUMP = 1.5


@dataclass(frozen=True)
class Context:
    """Everything else that is known: all stretches and spikes of the logs, and errors of other logs."""

    stretches: Sequence[Stretch]
    spikes: Sequence[Spike]
    incidents: Sequence[Incident] = ()


@dataclass(frozen=True)
class Sign:
    """A sign that is there, with the numbers of its sentence."""

    name: str
    values: dict[str, object]


@dataclass(frozen=True)
class Norms:
    """The gradient norm around a spike. None: not measured.

    Attributes:
        lead_steps: so many steps before the loss it rose beyond three times its level.
        stale: so many values in the window that repeat the one before.
    """

    before: float | None
    highest: float | None
    lead_steps: int | None
    stale: int


def measure_norms(spike: Spike, windows: Windows) -> Norms:
    """The gradient norm before and within a spike, repeated values left out."""
    steps = _around(spike, windows.look_back_steps)
    values: list[tuple[TrainingStep, float]] = []
    stale = 0
    previous: float | None = None
    for step in steps:
        if step.grad_norm is None or math.isnan(step.grad_norm):
            continue
        if repeats(previous, step.grad_norm):
            stale += 1
        else:
            values.append((step, step.grad_norm))
        previous = step.grad_norm
    inside = [norm for step, norm in values if step.step >= spike.start.step - windows.near_steps]
    # The last norms before the spike may be rising already: the level is the lower half of what went before.
    earlier = sorted(norm for step, norm in values if step.step < spike.start.step)
    if not earlier or not inside:
        return Norms(None, max(inside, default=None), None, stale)
    level = earlier[(len(earlier) - 1) // 2] if len(earlier) > 2 else earlier[0]
    first = next((step for step, norm in values if norm > _NORM_ONSET * level), None)
    lead = spike.start.step - first.step if first is not None and first.step <= spike.start.step else None
    return Norms(level, max(inside), lead, stale)


def find_signs(spike: Spike, context: Context, windows: Windows) -> list[Sign]:
    """All signs of a spike."""
    return [
        *_scale(spike, windows),
        *_overflows(spike, windows),
        *_errors(spike, context, windows),
        *_data(spike, context),
        *_resume(spike, windows),
        *_learning_rate(spike, context, windows),
        *_attempts(spike, context, windows),
    ]


def _around(spike: Spike, look_back: int) -> list[TrainingStep]:
    """The steps of the stretch (and its history) from `look_back` before the spike to its end."""
    every = (*spike.stretch.before, *spike.stretch.steps)
    return [step for step in every if spike.start.step - look_back <= step.step <= spike.last.step]


def _scale(spike: Spike, windows: Windows) -> Iterator[Sign]:
    known = [
        (step.step, step.loss_scale)
        for step in _around(spike, windows.scale_growth_steps)
        if step.loss_scale is not None
    ]
    start = spike.start.step
    inside = [scale for step, scale in known if start - 2 <= step <= start + windows.near_steps]
    falls = sum(high > low for high, low in pairwise(inside))
    if falls >= 2:
        yield Sign("scale_halved", {"times": falls, "high": max(inside), "low": min(inside)})
    grown = [(step, high) for (_, low), (step, high) in pairwise(known) if low < high and step <= start]
    if grown:
        yield Sign("scale_grew_before", {"high": grown[-1][1], "steps": start - grown[-1][0]})
    before = [scale for step, scale in known if start - windows.look_back_steps <= step < start]
    if before and before[-1] * _SCALE_COLLAPSE <= max(before):
        yield Sign(
            "scale_fell_before", {"high": max(before), "low": before[-1], "steps": windows.look_back_steps}
        )


def _overflows(spike: Spike, windows: Windows) -> Iterator[Sign]:
    skipped = [step for step in _around(spike, 2) if step.skipped and step.step >= spike.start.step - 1]
    if skipped:
        yield Sign("overflow_seen", {"count": len(skipped)})
    stale = measure_norms(spike, windows).stale
    if stale:
        yield Sign("stale_norms", {"count": stale})


def _errors(spike: Spike, context: Context, windows: Windows) -> Iterator[Sign]:
    if spike.start.time is None:
        return
    earliest = spike.start.time - timedelta(minutes=windows.log_minutes)
    for incident in context.incidents:  # in the order of their times: the first error wins
        if incident.failure.role == "echo" or incident.when is None:
            continue
        if earliest <= incident.when <= spike.start.time:
            minutes = (spike.start.time - incident.when).total_seconds() / 60
            yield Sign(
                "error_in_logs",
                {"failure": incident.failure.rule, "minutes": minutes, "message": incident.line.shown},
            )
            return


def _data(spike: Spike, context: Context) -> Iterator[Sign]:
    before = _previous(spike)
    start = spike.start
    for other in context.spikes:
        if other is spike or other.stretch.attempt == spike.stretch.attempt:
            continue
        if start.sample_ids is not None and start.sample_ids == other.start.sample_ids:
            yield Sign("same_data_again", {"data": f"samples {start.sample_ids[:40]}"})
            break
    if before is None:
        return
    if None not in (before.batch_size, start.batch_size) and before.batch_size != start.batch_size:
        yield Sign("batch_changed", {"before": before.batch_size, "after": start.batch_size})
    if None not in (before.epoch, start.epoch) and before.epoch != start.epoch:
        yield Sign("epoch_began", {"epoch": start.epoch})
    if before.samples is not None and start.samples is not None and start.batch_size:
        expected = before.samples + (start.step - before.step) * start.batch_size
        # A ramp of the batch size explains less than a batch a step.
        if abs(start.samples - expected) > (start.step - before.step) * start.batch_size:
            yield Sign("samples_jumped", {"samples": start.samples - expected})


def _resume(spike: Spike, windows: Windows) -> Iterator[Sign]:
    if not spike.stretch.resumed:
        return
    steps = spike.start.step - spike.stretch.steps[0].step
    if steps <= windows.near_steps:
        yield Sign("resumed_just_before", {"steps": steps})


def _learning_rate(spike: Spike, context: Context, windows: Windows) -> Iterator[Sign]:
    rate = spike.start.learning_rate
    if rate is None:
        return
    rates = [
        step.learning_rate
        for stretch in context.stretches
        for step in stretch.steps
        if step.learning_rate is not None
    ]
    if rate >= max(rates) > min(rates):
        yield Sign("at_peak_learning_rate", {"rate": rate})
    known = [
        (step.step, step.learning_rate)
        for step in (*spike.stretch.before, *spike.stretch.steps)
        if step.learning_rate is not None and step.step <= spike.start.step
    ]
    recent = [value for step, value in known if step >= spike.start.step - windows.near_steps]
    for low, high in pairwise(recent):
        if low > 0 and high / low >= _LEARNING_RATE_JUMP and spike.start.step > windows.near_steps:
            yield Sign("learning_rate_jumped", {"before": low, "after": high})
            break
    rising = [step for (_, low), (step, high) in pairwise(known) if low < high]
    if rising and rate > 0:
        since = spike.start.step - rising[-1]
        # Still rising at the spike is no end of a warm-up.
        ended = rising[-1] < known[-1][0] and rate >= max(value for _, value in known) * 0.99
        if ended and since <= max(windows.warmup_steps, 0.1 * rising[-1]):
            yield Sign("warmup_just_ended", {"steps": since})


def _attempts(spike: Spike, context: Context, windows: Windows) -> Iterator[Sign]:
    for other in context.spikes:
        apart = abs(other.start.step - spike.start.step)
        if other.stretch.attempt != spike.stretch.attempt and apart <= windows.same_place * spike.start.step:
            yield Sign("spikes_at_the_same_place", {"step": other.start.step})
            break
    if spike.recovered is None:
        yield Sign("never_recovered", {})
    first = spike.stretch.steps[0].step
    if spike.start.step <= windows.near_steps and first <= windows.near_steps:
        yield Sign("within_first_steps", {"step": spike.start.step})


def _previous(spike: Spike) -> TrainingStep | None:
    every = [step for step in (*spike.stretch.before, *spike.stretch.steps) if step.step < spike.start.step]
    return every[-1] if every else None


def repeats(previous: float | None, norm: float | None) -> bool:
    """Whether a gradient norm is the one before, printed again. Round numbers (0.29) repeat by chance."""
    return norm is not None and norm == previous and norm != float(f"{norm:.4g}")


def shown(value: float | None) -> str:
    """A loss or a norm in a sentence."""
    if value is None:
        return "unknown"
    return f"{value:.4g}" if math.isfinite(value) else str(value)
