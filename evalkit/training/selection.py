"""Early stop and keep-best, by a metric's interval instead of its point."""

from collections.abc import Callable
from dataclasses import dataclass

from evalkit.checks import function, instance, number, shown, whole
from evalkit.errors import InputError
from evalkit.metrics.registry import spec_for
from evalkit.metrics.result import Direction, MetricResult
from evalkit.metrics.spec import ROBUSTNESS_PREFIX, is_declared


@dataclass
class KeepBest:
    """Calls `save` when a metric is better than ever, with certainty.

    Better: the whole interval lies beyond the best value so far, on the good side. The first value is the best so far.
    An evaluation without an interval changes nothing. Where `save` raises, the best is the one before, so that the next
    one is saved again.

    Attributes:
        metric: its name in full.
        save: called with the step.
        best: step and value of the best so far; one that is given here is where each training starts.
    """

    metric: str
    save: Callable[[int], None]
    best: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        """Raises InputError where no metric has the name, or `save` can't be called."""
        self._sign = _sign(self.metric)
        function("save", self.save, "a function of the step", inputs=1)
        if self.best is not None:
            if not isinstance(self.best, tuple) or len(self.best) != 2:
                raise InputError(f"best: (step, value) is needed (got {shown(self.best)})")
            step, value = self.best
            self.best = (whole("best: step", step, least=0), _finite("best: value", value))
        self._first = self.best

    def bind(self, direction: Direction) -> None:
        """Say which way is better, which a metric that a scenario declares doesn't tell by its name."""
        self._sign = 1 if direction == "higher" else -1

    def begin(self) -> None:
        """A new training begins: forget the best of the last one."""
        self.best = self._first

    def take(self, step: int, result: MetricResult | None) -> bool:
        """Look at one evaluation; whether it is the best."""
        if result is None or result.value is None:
            return False
        if self.best is not None and not _beyond(result, self.best[1], self._sign):
            return False
        before, self.best = self.best, (step, result.value)
        try:
            self.save(step)
        except BaseException:
            self.best = before
            raise
        return True


@dataclass
class EarlyStop:
    """Asks for the end when a metric has got worse, with certainty, `patience` evaluations in a row.

    Worse: the whole interval lies beyond the best value so far, on the bad side.

    Attributes:
        metric: its name in full.
        patience: evaluations.
        best: best value so far; one that is given here is where each training starts.
        worse: evaluations in a row that were worse.
    """

    metric: str
    patience: int = 3
    best: float | None = None
    worse: int = 0

    def __post_init__(self) -> None:
        """Raises InputError where no metric has the name, or a number doesn't fit."""
        self._sign = _sign(self.metric)
        whole("patience", self.patience, least=1)
        self.best = None if self.best is None else _finite("best", self.best)
        whole("worse", self.worse, least=0)
        self._first = (self.best, self.worse)

    def bind(self, direction: Direction) -> None:
        """See `KeepBest.bind`."""
        self._sign = 1 if direction == "higher" else -1

    def begin(self) -> None:
        """A new training begins: forget the last one."""
        self.best, self.worse = self._first

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


def undecidable(result: MetricResult | None) -> str | None:
    """Why nothing can be decided by a result, else None."""
    if result is None:
        return "it isn't among the metrics of this evaluation"
    if result.value is None:
        return result.reason or "it has no value"
    if result.interval is None:
        return f"it has no interval ({result.details.get('interval_reason', 'none was made')})"
    return None


def _sign(metric: str) -> int:
    """1 where higher is better, else -1; of a metric that a scenario declares `bind` tells it.

    Raises:
        InputError: no metric has the name.
    """
    instance("metric", metric, str, "a metric's name")
    if is_declared(metric) and not metric.startswith(ROBUSTNESS_PREFIX):
        return -1
    return 1 if spec_for(metric).direction == "higher" else -1


def _finite(name: str, value: float) -> float:
    return number(name, value, above=float("-inf"), what="a finite number")


def _beyond(result: MetricResult, value: float, sign: int) -> bool:
    """Whether the whole interval lies above (sign 1) or below (sign -1) `value`."""
    interval = result.interval
    end = None if interval is None else (interval.low if sign > 0 else interval.high)
    return end is not None and sign * (end - value) > 0
