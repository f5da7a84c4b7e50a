"""Find a slow divergence: a loss that rises too slowly to leave the level before it, and doesn't come back."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from trainer.diagnosis.spikes.records import TrainingStep

# A level now is the median of so many losses.
_NOW = 10
# Nats; a share of a loss that has gone to nearly 0 (few data, learnt by heart) would be nothing.
_SMALLEST_RISE = 0.01
# A level counts as held when it is the median of an eighth of the log, within these bounds: half as many low losses are
# a dip, which anything easy in the data makes.
_SHARE, _FEWEST_HELD, _MOST_HELD = 8, 20, 100


@dataclass(frozen=True)
class Drift:
    """From `start` on the loss stays above `level`, the lowest that it held, by more than the threshold."""

    start: TrainingStep
    level: float


def find_drift(steps: Sequence[TrainingStep], dips: Sequence[range], large: float) -> Drift | None:
    """The slow divergence at the end of a log, if there is one.

    Args:
        steps: with a loss each.
        dips: positions of losses that lay below their level for a while and came back to it. They are no level: what
            comes after them is compared with what was before.
        large: share of the lowest level by which the loss must stay above it.

    Returns:
        None too where a loss isn't finite, or too few are left to tell.
    """
    dipped = {at for dip in dips for at in dip}
    kept = [step for at, step in enumerate(steps) if at not in dipped]
    losses = [step.loss for step in kept if step.loss is not None and math.isfinite(step.loss)]
    if len(losses) != len(kept) or len(losses) < 2 * _NOW:
        return None
    held = min(max(len(losses) // _SHARE, _FEWEST_HELD), _MOST_HELD, len(losses) // 2)
    middles = list(_medians(losses, held))
    best = min(range(len(middles)), key=middles.__getitem__)
    level = middles[best]
    limit = level + max(large * abs(level), _SMALLEST_RISE)
    levels = list(_medians(losses, _NOW))
    above = next((at for at in range(len(levels) - 1, -1, -1) if levels[at] <= limit), -1) + 1
    if len(levels) - above < _NOW or above <= best:
        return None
    return Drift(kept[above], level)


def _medians(losses: Sequence[float], width: int) -> Iterator[float]:
    return (median(losses[at : at + width]) for at in range(len(losses) - width + 1))
