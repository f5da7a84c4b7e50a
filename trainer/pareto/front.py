"""The front over configurations, their noise, and what to recommend.

A configuration is the mean of its runs, never its best one; one with too few runs is named as a candidate and can't be on
the front. Speeds are compared by their logarithm: their noise grows with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from trainer.pareto.runs import Run
from trainer.pareto.space import ParetoSpace

Status = Literal["front", "dominated", "candidate", "too few runs", "nan", "infeasible", "unmeasured"]
_REDRAWS = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval; `low` and `high` are None where one run says nothing about noise."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None

    def to_json(self) -> dict[str, Any]:
        """For pareto.json."""
        return vars(self)


def shown_number(value: float) -> str:
    """For people: five digits, and more where a whole number has them."""
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:,.5g}"


@dataclass(frozen=True)
class Setting:
    """A configuration with all its runs.

    Attributes:
        status: front; dominated; candidate (too few runs, but those would be on the front: give it more seeds); too few
            runs; nan (a run diverged); infeasible; unmeasured.
        front_share: in how many redraws of all means from their noise it is on the front; None where it isn't eligible.
        why: of a status that isn't front or dominated.
    """

    configuration: dict[str, Any]
    runs: tuple[Run, ...]
    score: Estimate | None
    speed: Estimate | None
    status: Status
    front_share: float | None
    why: str

    @property
    def label(self) -> str:
        """For people."""
        return ", ".join(f"{name} {value}" for name, value in self.configuration.items())

    @property
    def n(self) -> int:
        """Good runs."""
        return sum(run.state == "ok" for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """For pareto.json."""
        return {
            "configuration": self.configuration,
            "n": self.n,
            "score": None if self.score is None else self.score.to_json(),
            "speed": None if self.speed is None else self.speed.to_json(),
            "status": self.status,
            "front_share": self.front_share,
            "why": self.why,
            "runs": [run.to_json() for run in self.runs],
        }


@dataclass(frozen=True)
class Noise:
    """Standard deviations of one run and their degrees of freedom: score in its unit, speed in log units."""

    score_sd: float
    score_df: int
    speed_sd: float
    speed_df: int


class Sample:
    """A configuration's good runs as numbers: score turned so that less is better, log speed so that more is."""

    def __init__(self, runs: Sequence[Run], space: ParetoSpace) -> None:
        good = [run for run in runs if run.state == "ok"]
        sign = 1.0 if space.score.direction == "minimize" else -1.0
        turn = 1.0 if space.speed.direction == "maximize" else -1.0
        self.loss = sign * np.array([run.score for run in good], dtype=np.float64)
        self.pace = turn * np.log(np.array([run.speed for run in good], dtype=np.float64))

    @property
    def n(self) -> int:
        """Runs."""
        return len(self.loss)


def pooled_noise(samples: Sequence[Sample]) -> Noise | None:
    """Within-configuration noise of all with two runs or more; None where there are none."""
    df = sum(item.n - 1 for item in samples if item.n > 1)
    if df == 0:
        return None
    squares = [
        sum(float(((v - v.mean()) ** 2).sum()) for item in samples if len(v := getattr(item, name)) > 1)
        for name in ("loss", "pace")
    ]
    return Noise((squares[0] / df) ** 0.5, df, (squares[1] / df) ** 0.5, df)


def error_of(
    values: npt.NDArray[np.float64], pooled: tuple[float, int] | None
) -> tuple[float, float, int] | None:
    """Standard deviation, standard error of the mean and degrees of freedom; None where nothing says anything."""
    if pooled is not None:
        return pooled[0], pooled[0] / len(values) ** 0.5, pooled[1]
    if len(values) < 2:
        return None
    sd = float(values.std(ddof=1))
    return sd, sd / len(values) ** 0.5, len(values) - 1


def find_front(runs: Sequence[Run], space: ParetoSpace, seed: int = 0) -> list[Setting]:
    """All configurations with their status, in the order in which they first appear."""
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        key = tuple((name, repr(value)) for name, value in run.configuration.items())
        groups.setdefault(key, []).append(run)
    gathered = list(groups.values())
    samples = [Sample(group, space) for group in gathered]
    noise = noise_of(samples, space)
    first = [_status(group, sample, space) for group, sample in zip(gathered, samples, strict=True)]
    eligible = [index for index, (status, _) in enumerate(first) if status == "front"]
    points = np.array([(samples[i].loss.mean(), -samples[i].pace.mean()) for i in eligible]).reshape(-1, 2)
    best = nondominated(points)
    shares = _shares([samples[i] for i in eligible], noise, seed)
    settings = []
    for index, (group, sample) in enumerate(zip(gathered, samples, strict=True)):
        status, why = first[index]
        share = None
        if index in eligible:
            place = eligible.index(index)
            share = float(shares[place])
            status = "front" if best[place] else "dominated"
        elif status == "too few runs":
            own = (sample.loss.mean(), -sample.pace.mean())
            if not any(_dominates(point, own) for point in points[best]):
                status, why = "candidate", f"{why}; it would be on the front, give it more seeds"
        score, speed = (
            (_score(sample, noise, space), _speed(sample, noise, space)) if sample.n else (None, None)
        )
        settings.append(Setting(group[0].configuration, tuple(group), score, speed, status, share, why))
    return settings


def noise_of(samples: Sequence[Sample], space: ParetoSpace) -> Noise | None:
    """The pooled noise, where the space asks for it."""
    return pooled_noise(samples) if space.noise == "pooled" else None


def nondominated(points: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which rows no other row beats: less is better in each column; equal rows don't beat each other."""
    less_or_equal = (points[:, None, :] <= points[None, :, :]).all(axis=2)
    less = (points[:, None, :] < points[None, :, :]).any(axis=2)
    keep: npt.NDArray[np.bool_] = ~(less_or_equal & less).any(axis=0)
    return keep


def _dominates(point: npt.NDArray[np.float64], other: tuple[float, float]) -> bool:
    return bool((point <= other).all() and (point < other).any())


def _status(group: Sequence[Run], sample: Sample, space: ParetoSpace) -> tuple[Status, str]:
    """`front` stands for eligible here."""
    bad: tuple[Status, ...] = ("nan", "infeasible")
    for state in bad:
        found = [run for run in group if run.state == state]
        if found:
            return state, f"{len(found)} of {len(group)} runs: {found[0].why}"
    if sample.n == 0:
        return "unmeasured", group[0].why
    if sample.n < space.min_seeds:
        return "too few runs", f"{sample.n} of the {space.min_seeds} runs that tell luck from quality"
    return "front", ""


def _shares(samples: Sequence[Sample], noise: Noise | None, seed: int) -> npt.NDArray[np.float64]:
    """How often each is on the front when every mean is redrawn from Student's t around it."""
    generator = np.random.default_rng(seed)
    counts = np.zeros(len(samples))
    if not samples:
        return counts
    scales, freedoms, means = [], [], []
    for sample in samples:
        loss = error_of(sample.loss, None if noise is None else (noise.score_sd, noise.score_df))
        pace = error_of(sample.pace, None if noise is None else (noise.speed_sd, noise.speed_df))
        assert loss is not None and pace is not None  # eligible ones have two runs
        means.append((sample.loss.mean(), -sample.pace.mean()))
        scales.append((loss[1], pace[1]))
        freedoms.append((loss[2], pace[2]))
    for _ in range(_REDRAWS):
        draw = np.array(means) + generator.standard_t(np.array(freedoms)) * np.array(scales)
        counts += nondominated(draw)
    return counts / _REDRAWS


def _interval(
    mean: float, error: tuple[float, float, int] | None, alpha: float
) -> tuple[float, float] | None:
    if error is None:
        return None
    half = float(stats.t.ppf(1 - alpha, error[2])) * error[1]
    return mean - half, mean + half


def _score(sample: Sample, noise: Noise | None, space: ParetoSpace) -> Estimate:
    sign = 1.0 if space.score.direction == "minimize" else -1.0
    mean = sign * float(sample.loss.mean())
    error = error_of(sample.loss, None if noise is None else (noise.score_sd, noise.score_df))
    interval = _interval(mean, error, space.alpha)
    low, high = interval if interval is not None else (None, None)
    return Estimate(mean, None if error is None else error[0], low, high)


def _speed(sample: Sample, noise: Noise | None, space: ParetoSpace) -> Estimate:
    """In the speed's own unit, the mean a geometric one; `sd` is relative (of the logarithm)."""
    turn = 1.0 if space.speed.direction == "maximize" else -1.0
    mean = turn * float(sample.pace.mean())
    error = error_of(sample.pace, None if noise is None else (noise.speed_sd, noise.speed_df))
    interval = _interval(mean, error, space.alpha)
    low, high = (float(np.exp(value)) for value in interval) if interval is not None else (None, None)
    return Estimate(float(np.exp(mean)), None if error is None else error[0], low, high)
