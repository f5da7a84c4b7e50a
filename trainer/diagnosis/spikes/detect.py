"""Find loss spikes: a robust level (median and MAD of what went before), persistence, and the time to recover."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from trainer.diagnosis.spikes.drift import Drift, find_drift
from trainer.diagnosis.spikes.records import Stretch, TrainingStep

# The standard deviation of a normal distribution is 1.4826 times its median absolute deviation.
_MAD_TO_SIGMA = 1.4826
_SMALLEST_SIGMA = 1e-3
_JUST_BEFORE = 20


@dataclass(frozen=True)
class Detection:
    """When a rise is a spike.

    Attributes:
        window: so many logged losses are the level that a loss is compared with.
        sigmas: a loss is an outlier beyond median + sigmas x sigma; back within `recovered_sigmas` it has recovered.
        relative_sigma: sigma is never taken smaller than this share of the median (few or equal losses have no MAD).
        large: an outlier by more than this share of the median is a spike at once, unless the very next step is back
            (one odd batch); smaller ones must persist: `persistent` outliers among three logged losses in a row.
        longest: after so many logged losses without recovery the new level is taken as it is.
    """

    window: int = 100
    sigmas: float = 6.0
    recovered_sigmas: float = 3.0
    relative_sigma: float = 0.01
    large: float = 0.20
    persistent: int = 2
    longest: int = 500


@dataclass(frozen=True)
class Level:
    """The level before a loss: median and robust sigma of `records` losses."""

    median: float
    sigma: float
    records: int


@dataclass(frozen=True)
class Spike:
    """A spike within a stretch.

    Attributes:
        start, peak: the first logged step outside the level, and the highest (a loss that isn't finite is the highest).
        last: the last step that belongs to it.
        recovered: the first of two losses in a row back at the level; None: not within the log.
    """

    stretch: Stretch
    start: TrainingStep
    peak: TrainingStep
    last: TrainingStep
    level: Level
    recovered: TrainingStep | None

    @property
    def recovery_steps(self) -> int | None:
        """Steps from the start until it has recovered."""
        return self.recovered.step - self.start.step if self.recovered is not None else None

    @property
    def finite(self) -> bool:
        """Whether the loss stayed a number."""
        return self.peak.loss is not None and math.isfinite(self.peak.loss)


@dataclass(frozen=True)
class Rises:
    """What rises in a stretch.

    Attributes:
        spikes: in order.
        odd_batches: single steps that stand out and whose next step is back: noise of the data, no alarm.
        drift: at the end the loss stays above the lowest level that it held by more than `large`, outside of any spike.
    """

    spikes: tuple[Spike, ...]
    odd_batches: tuple[TrainingStep, ...]
    drift: Drift | None


def find_rises(stretch: Stretch, settings: Detection | None = None) -> Rises:
    """Spikes, odd batches and a slow divergence. Steps without a loss (skipped ones) are passed over."""
    settings = settings or Detection()
    history = deque[float](
        (step.loss for step in stretch.before if step.loss is not None and math.isfinite(step.loss)),
        maxlen=settings.window,
    )
    steps = [step for step in stretch.steps if step.loss is not None]
    spikes: list[Spike] = []
    odd: list[TrainingStep] = []
    dips: list[range] = []
    at = 0
    while at < len(steps):
        level = _level(history, settings)
        if level is None or not _begins(steps, at, level, settings):
            if level is not None and _stands_out(steps[at], level, settings):
                odd.append(steps[at])
            if level is not None and (not dips or at >= dips[-1].stop):
                dip = _dip(steps, at, list(history), settings)
                dips += [] if dip is None else [dip]
            _remember(history, steps[at])
            at += 1
            continue
        spike, at = _follow(stretch, steps, at, level, settings)
        spikes.append(spike)
        if spike.recovered is None and at < len(steps):
            history.clear()
    begin = _after_jumps(steps, spikes)
    later = [range(dip.start - begin, dip.stop - begin) for dip in dips if dip.start >= begin]
    return Rises(tuple(spikes), tuple(odd), find_drift(steps[begin:], later, settings.large))


def _level(history: Sequence[float], settings: Detection) -> Level | None:
    if not history:
        return None
    middle = median(history)
    spread = _MAD_TO_SIGMA * median(abs(loss - middle) for loss in history)
    if len(history) > 2:
        # A falling loss spreads around its median without any noise; differences of neighbours don't see the trend.
        steps = _MAD_TO_SIGMA * median(abs(later - loss) for loss, later in pairwise(history))
        spread = min(spread, steps / math.sqrt(2))
    return Level(middle, max(spread, settings.relative_sigma * abs(middle), _SMALLEST_SIGMA), len(history))


def _begins(steps: list[TrainingStep], at: int, level: Level, settings: Detection) -> bool:
    if not _outlier(steps[at], level, settings.sigmas):
        return False
    loss = steps[at].loss
    assert loss is not None
    if not math.isfinite(loss):
        return True
    if _stands_out(steps[at], level, settings):
        return not _odd_batch(steps, at, level, settings)
    nearby = steps[at : at + 3]
    return sum(_outlier(step, level, settings.sigmas) for step in nearby) >= settings.persistent


def _stands_out(step: TrainingStep, level: Level, settings: Detection) -> bool:
    assert step.loss is not None
    large = step.loss - level.median > settings.large * abs(level.median)
    return large and _outlier(step, level, settings.sigmas)


def _odd_batch(steps: list[TrainingStep], at: int, level: Level, settings: Detection) -> bool:
    """Whether one step alone stands out. Where only every n-th step is logged that can't be known."""
    if at + 1 == len(steps) or steps[at + 1].step != steps[at].step + 1:
        return False
    return not _outlier(steps[at + 1], level, settings.recovered_sigmas)


def _outlier(step: TrainingStep, level: Level, sigmas: float) -> bool:
    assert step.loss is not None
    return not step.loss <= level.median + sigmas * level.sigma


def _follow(
    stretch: Stretch, steps: list[TrainingStep], start: int, level: Level, settings: Detection
) -> tuple[Spike, int]:
    end = min(len(steps), start + settings.longest)
    recovered = None
    for at in range(start + 1, end):
        back = not _outlier(steps[at], level, settings.recovered_sigmas)
        follower = steps[at + 1] if at + 1 < len(steps) else steps[at]
        if back and not _outlier(follower, level, settings.recovered_sigmas):
            recovered, end = steps[at], at
            break
    inside = steps[start:end]
    peak = max(inside, key=lambda step: _height(step.loss))
    return Spike(stretch, steps[start], peak, inside[-1], level, recovered), end


def _dip(
    steps: list[TrainingStep], start: int, history: Sequence[float], settings: Detection
) -> range | None:
    """Losses from `start` on that fall below the level at once, and come most of the way back within a window.

    The level is that of the last few losses: a falling loss is soon below what it was a hundred steps ago.
    """
    level = _level(history[-_JUST_BEFORE:], settings)
    if level is None:
        return None
    beyond = level.median - settings.sigmas * level.sigma
    losses = [_height(step.loss) for step in steps[start : start + settings.window]]
    if losses[0] >= beyond or sum(loss < beyond for loss in losses[:3]) < settings.persistent:
        return None
    lowest = losses[0]
    for at, (loss, following) in enumerate(pairwise(losses)):
        lowest = min(lowest, loss)
        back = level.median - max(settings.recovered_sigmas * level.sigma, (level.median - lowest) / 3)
        if loss >= back and following >= back:
            return range(start, start + at)
    return None


def _after_jumps(steps: list[TrainingStep], spikes: list[Spike]) -> int:
    """Where the losses begin that follow the last rise that never recovered: it has been told, and is the level now."""
    last = next((spike.last for spike in reversed(spikes) if spike.recovered is None), None)
    return 0 if last is None else next(at for at, step in enumerate(steps) if step is last) + 1


def _height(loss: float | None) -> float:
    return loss if loss is not None and math.isfinite(loss) else math.inf


def _remember(history: deque[float], step: TrainingStep) -> None:
    if step.loss is not None and math.isfinite(step.loss):
        history.append(step.loss)
