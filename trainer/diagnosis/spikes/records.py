"""What a training log says about its steps, whatever format it was written in."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

LogFormat = Literal["mindformers", "megatron", "llm.c", "nanogpt", "jsonl"]

# An excerpt may leave steps out; beyond this gap what went before is no baseline any more.
_NEW_STRETCH_STEPS = 500
_NEW_STRETCH_FACTOR = 10
_SPACINGS_LOOKED_AT = 20


@dataclass(frozen=True)
class TrainingStep:
    """One logged step. None: the log doesn't say, or says a value that means "not measured".

    Attributes:
        step: counted over the whole training.
        loss: in nats; NaN and infinities are kept, a skipped step has none.
        grad_norm: None too where the log prints 0, which is what an optimizer that doesn't measure it prints.
        loss_scale: None too where the log prints a number that is no scale (-1).
        skipped: whether the update was skipped (overflow).
        samples: consumed until the end of the step.
        sample_ids: a name of the step's data, equal for equal data.
        time: of the line, or of the last line before it that has one.
        seconds: the step took.
    """

    path: Path
    line: int
    step: int
    loss: float | None = None
    grad_norm: float | None = None
    loss_scale: float | None = None
    learning_rate: float | None = None
    skipped: bool | None = None
    batch_size: int | None = None
    samples: int | None = None
    epoch: int | None = None
    sample_ids: str | None = None
    seconds: float | None = None
    time: datetime | None = None

    @property
    def where(self) -> str:
        """file:line."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class TrainingLog:
    """A log file, read.

    Attributes:
        steps: in the order of the file.
        cut_lines: lines of steps that end in the middle of a number or before the loss.
        zero_norms: steps whose gradient norm is printed as 0.
        no_scales: steps whose loss scale is printed as a number that is none.
        overflow_lines: lines that report an overflow apart from the steps' own.
    """

    path: Path
    format: LogFormat
    steps: tuple[TrainingStep, ...]
    cut_lines: int = 0
    zero_norms: int = 0
    no_scales: int = 0
    overflow_lines: int = 0


@dataclass(frozen=True)
class Stretch:
    """Steps that rise without a long gap, in one attempt.

    Attributes:
        attempt: grows each time the step counter goes back.
        before: steps of earlier attempts that lead to the first step here: its history.
        resumed: whether this is a known resume: an attempt that repeats what an earlier one logged.
    """

    attempt: int
    steps: tuple[TrainingStep, ...]
    before: tuple[TrainingStep, ...] = ()
    resumed: bool = False


def stretches(steps: Sequence[TrainingStep]) -> list[Stretch]:
    """Cut the steps of all logs (in the order given) where the counter goes back or leaves a long gap."""
    pieces: list[tuple[int, list[TrainingStep]]] = []
    attempt = 0
    for step in steps:
        current = pieces[-1][1] if pieces else None
        if current is None or step.step <= current[-1].step:
            attempt += 1
            pieces.append((attempt, [step]))
        elif _long_gap(current, step):
            pieces.append((attempt, [step]))
        else:
            current.append(step)
    found: list[Stretch] = []
    for number, piece in pieces:
        before = _history(found, number, piece[0])
        found.append(Stretch(number, tuple(piece), before, bool(before)))
    return found


def _history(earlier: list[Stretch], attempt: int, first: TrainingStep) -> tuple[TrainingStep, ...]:
    """The steps of the last earlier attempt that lead to `first` without a gap."""
    for stretch in reversed(earlier):
        if stretch.attempt == attempt:
            return ()  # behind a gap, not a resume
        trunk = [step for step in (*stretch.before, *stretch.steps) if step.step < first.step]
        if trunk and stretch.steps[-1].step >= first.step and not _long_gap(trunk, first):
            return tuple(trunk)
    return ()


def _long_gap(steps: Sequence[TrainingStep], following: TrainingStep) -> bool:
    gap = following.step - steps[-1].step
    recent = steps[-_SPACINGS_LOOKED_AT:]
    spacing = (recent[-1].step - recent[0].step) / (len(recent) - 1) if len(recent) > 1 else 1.0
    return gap > _NEW_STRETCH_STEPS and gap > _NEW_STRETCH_FACTOR * spacing
