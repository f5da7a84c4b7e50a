"""Which setting to take: no significant loss of score, most speed; and what that is worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from trainer.pareto.front import Sample, Setting, error_of, noise_of
from trainer.pareto.space import ParetoSpace


@dataclass(frozen=True)
class Recommendation:
    """The knee.

    Attributes:
        setting: the one to take.
        best: the one with the best mean score, which it is compared with.
        loss: of score against it, in its unit, positive is worse; `loss_high`: the one-sided upper bound.
        p_loss: one-sided p of "it is worse"; None: it is the best itself.
        speed_gain, speed_gain_low, speed_gain_high: factor of speed, with its interval.
        test: in words.
    """

    setting: Setting
    best: Setting
    loss: float
    loss_high: float | None
    p_loss: float | None
    speed_gain: float
    speed_gain_low: float | None
    speed_gain_high: float | None
    test: str

    def to_json(self) -> dict[str, Any]:
        """For pareto.json."""
        return vars(self) | {
            "setting": self.setting.configuration,
            "best": self.best.configuration,
        }


def recommend(settings: Sequence[Setting], space: ParetoSpace) -> Recommendation | None:
    """The fastest of the front's settings that loses no score; None where the front is empty.

    Compared with the best mean score by Welch's t test (pooled noise: Student's), one-sided at `alpha`. The best of many
    means is lucky itself, so a loss against it is rather overstated than hidden.
    """
    front = [item for item in settings if item.status == "front"]
    if not front:
        return None
    samples = {id(item): Sample(item.runs, space) for item in settings if item.n}
    noise = noise_of(list(samples.values()), space)
    pooled_loss = None if noise is None else (noise.score_sd, noise.score_df)
    pooled_pace = None if noise is None else (noise.speed_sd, noise.speed_df)
    best = min(front, key=lambda item: float(samples[id(item)].loss.mean()))
    test = "Student's t with pooled noise" if noise is not None else "Welch's t"
    taken = Recommendation(best, best, 0.0, None, None, 1.0, None, None, _words(test, space))
    for item in front:
        if item is best:
            continue
        mine, other = samples[id(item)], samples[id(best)]
        loss, error, freedom = _difference(mine.loss, other.loss, pooled_loss)
        p = float(stats.t.sf(loss / error, freedom)) if error > 0 else float(loss <= 0)
        high = loss + float(stats.t.ppf(1 - space.alpha, freedom)) * error
        accepted = high <= space.margin if space.margin is not None else p >= space.alpha
        gain, gain_error, gain_freedom = _difference(mine.pace, other.pace, pooled_pace)
        if not accepted or np.exp(gain) <= taken.speed_gain:
            continue
        half = float(stats.t.ppf(1 - space.alpha, gain_freedom)) * gain_error
        taken = Recommendation(
            item, best, loss, high, p,
            float(np.exp(gain)), float(np.exp(gain - half)), float(np.exp(gain + half)),
            _words(test, space),
        )  # fmt: skip
    return taken


def _difference(
    mine: npt.NDArray[np.float64], other: npt.NDArray[np.float64], pooled: tuple[float, int] | None
) -> tuple[float, float, float]:
    """Difference of means, its standard error and Welch-Satterthwaite degrees of freedom."""
    first, second = error_of(mine, pooled), error_of(other, pooled)
    assert first is not None and second is not None  # the front's settings have two runs
    (_, a, df_a), (_, b, df_b) = first, second
    error = (a * a + b * b) ** 0.5
    difference = float(mine.mean() - other.mean())
    if pooled is not None:
        return difference, error, float(pooled[1])
    if error == 0:
        return difference, 0.0, float(df_a + df_b)
    return difference, error, (a * a + b * b) ** 2 / (a**4 / df_a + b**4 / df_b)


def _words(test: str, space: ParetoSpace) -> str:
    if space.margin is not None:
        return f"{test}, one-sided at {space.alpha:g}: shown to lose less than {space.margin:g}"
    return f"{test}, one-sided at {space.alpha:g}: not shown to lose; see the upper bound for what could hide"
