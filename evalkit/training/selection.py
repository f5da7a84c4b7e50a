"""Early stop and keep-best, by a metric's interval instead of its point."""

from collections.abc import Callable
from dataclasses import dataclass

from evalkit.errors import InputError
from evalkit.metrics.registry import spec_for
from evalkit.metrics.result import MetricResult


@dataclass
class KeepBest:
    """Calls `save` when a metric is better than ever, with certainty.

    Better: the whole interval lies beyond the best value so far, on the good side. The first value is the best so far.
    An evaluation without an interval changes nothing.

    Attributes:
        metric: its name in full.
        save: called with the step.
        best: step and value of the best so far.
    """

    metric: str
    save: Callable[[int], None]
    best: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        """Raises InputError where no metric has the name."""
        self._sign = direction_sign(self.metric)

    def take(self, step: int, result: MetricResult | None) -> bool:
        """Look at one evaluation; whether it is the best."""
        if result is None or result.value is None:
            return False
        if self.best is not None and not _beyond(result, self.best[1], self._sign):
            return False
        self.best = (step, result.value)
        self.save(step)
        return True


@dataclass
class EarlyStop:
    """Asks for the end when a metric has got worse, with certainty, `patience` evaluations in a row.

    Worse: the whole interval lies beyond the best value so far, on the bad side.

    Attributes:
        metric: its name in full.
        patience: evaluations.
        best: best value so far.
        worse: evaluations in a row that were worse.
    """

    metric: str
    patience: int = 3
    best: float | None = None
    worse: int = 0

    def __post_init__(self) -> None:
        """Raises InputError where no metric has the name, or patience isn't positive."""
        if self.patience < 1:
            raise InputError(f"patience: a positive number is needed (got {self.patience})")
        self._sign = direction_sign(self.metric)

    def take(self, result: MetricResult | None) -> bool:
        """Look at one evaluation; whether the training should end."""
        if result is None or result.value is None:
            return False
        if self.best is not None and _beyond(result, self.best, -self._sign):
            self.worse += 1
            return self.worse >= self.patience
        self.worse = 0
        if self.best is None or self._sign * (result.value - self.best) > 0:
            self.best = result.value
        return False


def direction_sign(metric: str) -> int:
    """1 where higher is better, else -1.

    Raises:
        InputError: no metric has the name.
    """
    return 1 if spec_for(metric).direction == "higher" else -1


def _beyond(result: MetricResult, value: float, sign: int) -> bool:
    """Whether the whole interval lies above (sign 1) or below (sign -1) `value`."""
    interval = result.interval
    end = None if interval is None else (interval.low if sign > 0 else interval.high)
    return end is not None and sign * (end - value) > 0
