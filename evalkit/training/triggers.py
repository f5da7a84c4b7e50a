"""When to evaluate: small rules over the steps of a training.

A rule sees every step once, in order, and answers with a reason where it fires. A forced rule reacts to trouble; the
callback holds forced evaluations apart by a cooldown. A planned rule (a schedule) has none.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evalkit.checks import number, several, shown, whole
from evalkit.errors import InputError


@dataclass(frozen=True)
class StepEvent:
    """What one training step did.

    Attributes:
        step: number of the step over the whole training, from 1; it counts skipped steps too.
        epoch: from 1.
        epoch_ends: whether this is the epoch's last step.
        total_steps: of the whole training; None where it isn't known.
        loss: of the step; None where no rule asked for it, or it can't be read.
        loss_scale: after the step; None where there is none or it wasn't read at this step.
        overflow: whether the step was skipped; None where that isn't known.
    """

    step: int
    epoch: int
    epoch_ends: bool = False
    total_steps: int | None = None
    loss: float | None = None
    loss_scale: float | None = None
    overflow: bool | None = None


class Trigger(Protocol):
    """A rule of one's own is any object like this.

    Where it also has a method `begin()`, that is called before each training, for a rule that is used a second time.
    On several ranks a rule must say the same on all of them.

    Attributes:
        name: stands in the record of the evaluation.
        forced: whether the cooldown applies.
        reads: which of loss, loss_scale and overflow `see` looks at; they cost a read from the device.
    """

    @property
    def name(self) -> str: ...

    @property
    def forced(self) -> bool: ...

    @property
    def reads(self) -> frozenset[str]: ...

    def see(self, event: StepEvent) -> str | None:
        """Take the next step; the reason where an evaluation is wanted after it, else None."""
        ...


class _Planned:
    forced = False
    reads: frozenset[str] = frozenset()

    def begin(self) -> None:
        """A new training begins; a rule without a memory has nothing to forget."""


class EveryNSteps(_Planned):
    """After each `steps`-th step."""

    name = "every_n_steps"

    def __init__(self, steps: int = 500) -> None:
        """Raises InputError where `steps` isn't a positive whole number."""
        self.steps = whole("steps", steps, least=1)

    def see(self, event: StepEvent) -> str | None:
        """See `Trigger.see`."""
        return f"every {self.steps} steps" if event.step % self.steps == 0 else None


class EveryEpoch(_Planned):
    """At the end of each `epochs`-th epoch."""

    name = "every_epoch"

    def __init__(self, epochs: int = 1) -> None:
        """Raises InputError where `epochs` isn't a positive whole number."""
        self.epochs = whole("epochs", epochs, least=1)

    def see(self, event: StepEvent) -> str | None:
        """See `Trigger.see`."""
        due = event.epoch_ends and event.epoch % self.epochs == 0
        return f"end of epoch {event.epoch}" if due else None


class AtFractions(_Planned):
    """At given shares of the training's steps, each once; 0.5 is half of the budget."""

    name = "at_fraction"

    def __init__(self, fractions: Sequence[float]) -> None:
        """Raises InputError where a share isn't in (0, 1], or there is none."""
        what = "shares above 0 and up to 1"
        given = several("fractions", fractions, what)
        if not given:
            raise InputError(f"fractions: {what} are needed (got {shown(fractions)})")
        beyond = math.nextafter(1, 2)
        shares = (
            number("fractions", share, above=0, below=beyond, what=f"a list of {what}") for share in given
        )
        self.fractions = tuple(sorted(set(shares)))
        self.begin()

    def begin(self) -> None:
        """See `Trigger`."""
        self._left = list(self.fractions)

    def see(self, event: StepEvent) -> str | None:
        """See `Trigger.see`."""
        if event.total_steps is None:
            return None
        passed = [share for share in self._left if event.step >= math.ceil(share * event.total_steps)]
        self._left = self._left[len(passed) :]
        return f"{passed[-1]:g} of the {event.total_steps} steps" if passed else None


class AtEnd(_Planned):
    """Once, after the last step; the callback asks at the end of the training, whatever ended it."""

    name = "at_end"

    def see(self, event: StepEvent) -> str | None:
        """See `Trigger.see`."""
        return None


class OnLossScaleDrop:
    """When the dynamic loss scale falls by `halvings` halvings within `window` steps.

    A training starts with a scale that is far too high and lowers it in its first steps: until the scale has held for
    `settled` steps in a row (or grown), drops are calibration and don't count. A single halving after the scale's
    regular growth is routine, hence two.
    """

    name = "loss_scale_drop"
    forced = True
    reads = frozenset({"loss_scale"})

    def __init__(self, halvings: int = 2, window: int = 100, settled: int = 5) -> None:
        """Raises InputError where a number isn't positive and whole."""
        self.halvings = whole("halvings", halvings, least=1)
        self.window, self.settled = whole("window", window, least=1), whole("settled", settled, least=1)
        self.begin()

    def begin(self) -> None:
        """See `Trigger`."""
        self._scales: deque[tuple[int, float]] = deque()
        self._held = 0
        self._calibrated = False

    def see(self, event: StepEvent) -> str | None:
        """See `Trigger.see`."""
        scale = event.loss_scale
        if scale is None or not math.isfinite(scale):
            return None
        if scale <= 0:
            return self._fell_to_nothing(scale)
        if not self._calibrated and not self._settles(event.step, scale):
            return None
        while self._scales and self._scales[0][0] <= event.step - self.window:
            self._scales.popleft()
        highest = max((earlier for _, earlier in self._scales), default=scale)
        self._scales.append((event.step, scale))
        if math.log2(highest / scale) < self.halvings:
            return None
        self._scales.clear()
        self._scales.append((event.step, scale))  # a further fall counts from here
        return f"loss scale {highest:g} -> {scale:g} within {self.window} steps"

    def _fell_to_nothing(self, scale: float) -> str | None:
        """A scale of 0 after calibration is the worst of falls; it is told once."""
        if not self._calibrated or not self._scales:
            return None
        highest = max(earlier for _, earlier in self._scales)
        self._scales.clear()
        return f"loss scale {highest:g} -> {scale:g}"

    def _settles(self, step: int, scale: float) -> bool:
        previous = self._scales[-1] if self._scales else None
        self._scales.clear()
        self._scales.append((step, scale))
        if previous is None:
            return False
        before, value = previous
        self._held = self._held + step - before if scale >= value else 0
        self._calibrated = self._held >= self.settled or scale > value
        return self._calibrated


class OnOverflow:
    """When `consecutive` steps in a row overflow, the calibration of the loss scale exempt."""

    name = "overflow"
    forced = True
    reads = frozenset({"overflow"})

    def __init__(self, consecutive: int = 1, settled: int = 5) -> None:
        """Raises InputError where a number isn't positive and whole."""
        self.consecutive = whole("consecutive", consecutive, least=1)
        self.settled = whole("settled", settled, least=1)
        self.begin()

    def begin(self) -> None:
        """See `Trigger`."""
        self._clean = self._run = 0
        self._calibrated = False

    def see(self, event: StepEvent) -> str | None:
        """See `Trigger.see`."""
        if event.overflow is None:
            return None
        if not event.overflow:
            self._clean, self._run = self._clean + 1, 0
            self._calibrated = self._calibrated or self._clean >= self.settled
            return None
        self._clean = 0
        if not self._calibrated:
            return None
        self._run += 1
        return f"{self._run} overflow(s) in a row" if self._run == self.consecutive else None


class OnLossSpike:
    """When the loss stays far above its recent course.

    Far: above median + `deviations` · 1.4826 · MAD of the last `window` losses that weren't suspicious themselves, for
    `persistence` steps in a row; not a number counts as far. One wild batch is none.
    """

    name = "loss_spike"
    forced = True
    reads = frozenset({"loss"})

    _LEAST = 20  # losses, below which there is no course to compare with

    def __init__(self, deviations: float = 6.0, window: int = 100, persistence: int = 3) -> None:
        """Raises InputError where a number doesn't fit."""
        self.deviations = number("deviations", deviations, above=0)
        self.window = whole("window", window, least=self._LEAST)
        self.persistence = whole("persistence", persistence, least=1)
        self.begin()

    def begin(self) -> None:
        """See `Trigger`."""
        self._course: deque[float] = deque(maxlen=self.window)
        self._far: list[float] = []

    def see(self, event: StepEvent) -> str | None:
        """See `Trigger.see`."""
        loss = event.loss
        if loss is None:
            return None
        limit = self._limit()
        if math.isfinite(loss) and (limit is None or loss <= limit):
            self._course.append(loss)
            self._far.clear()
            return None
        self._far.append(loss)
        if len(self._far) < self.persistence:
            return None
        than = "not a number" if limit is None else f"above {limit:.4g}"
        reason = f"loss {loss:.4g} {than} for {len(self._far)} steps"
        # What lasts becomes the new course, so that one event gives one alarm.
        self._course.clear()
        self._course.extend(value for value in self._far if math.isfinite(value))
        self._far.clear()
        return reason

    def _limit(self) -> float | None:
        if len(self._course) < self._LEAST:
            return None
        centre = statistics.median(self._course)
        spread = statistics.median(abs(value - centre) for value in self._course)
        # A flat course has no spread; a thousandth of its level stands for one.
        return centre + self.deviations * 1.4826 * max(spread, 1e-3 * abs(centre))
