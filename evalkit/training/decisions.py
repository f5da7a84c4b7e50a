"""What follows from a measurement: keeping the best, stopping early, and saying where neither can be decided."""

from evalkit.checks import instance
from evalkit.console import say
from evalkit.errors import InputError
from evalkit.training.evaluation import Measurement
from evalkit.training.names import MeasuredNames
from evalkit.training.selection import EarlyStop, KeepBest, undecidable


class Decisions:
    """`KeepBest` and `EarlyStop` of a training.

    Attributes:
        save_failed: whether the function to save failed at the last measurement.
    """

    def __init__(
        self, keep_best: KeepBest | None, early_stop: EarlyStop | None, names: MeasuredNames
    ) -> None:
        """Look at their metrics.

        Raises:
            InputError: a metric won't be measured, or will never have a value.
        """
        self._keep_best, self._early_stop = keep_best, early_stop
        if keep_best is not None:
            instance("keep_best", keep_best, KeepBest, "KeepBest(metric, save)")
        if early_stop is not None:
            instance("early_stop", early_stop, EarlyStop, "EarlyStop(metric, patience)")
        self._asked: dict[str, KeepBest | EarlyStop] = {
            role: rule
            for role, rule in (("keep_best", keep_best), ("early_stop", early_stop))
            if rule is not None
        }
        for role, rule in self._asked.items():
            rule.bind(names.spec(role, rule.metric).direction)
            reason = names.absent(rule.metric)
            if reason is not None:
                raise InputError(f"{role}: {rule.metric} will have no value: {reason}")
        self.save_failed = False
        self._measured = 0
        self._undecided: dict[str, list[str]] = {role: [] for role in self._asked}

    def begin(self) -> None:
        """A new training begins."""
        for rule in self._asked.values():
            rule.begin()
        self.save_failed, self._measured = False, 0
        self._undecided = {role: [] for role in self._asked}

    def take(self, step: int, measurement: Measurement) -> tuple[list[str], str | None]:
        """Decide by a measurement.

        Returns:
            What went wrong, a line each; and why the training should stop, or None.
        """
        problems: list[str] = []
        self._measured += 1
        self.save_failed = False
        for role, rule in self._asked.items():
            reason = undecidable(measurement.find(rule.metric))
            if reason is not None:
                problem = f"{role}: nothing is decided by {rule.metric}: {reason}"
                if not self._undecided[role]:
                    say(f"evalkit: after step {step}: {problem}")
                self._undecided[role].append(reason)
                problems.append(problem)
        keep_best, early_stop = self._keep_best, self._early_stop
        if keep_best is not None:
            try:
                keep_best.take(step, measurement.find(keep_best.metric))
            except Exception as error:  # the function is the user's
                self.save_failed = True
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                problems.append(f"keep_best: save failed: {reason:.300}")
        if early_stop is not None and early_stop.take(measurement.find(early_stop.metric)):
            return problems, f"{early_stop.metric} got worse {early_stop.worse} times in a row"
        return problems, None

    def never_made(self) -> list[str]:
        """A line for each rule that could decide nothing in the whole training."""
        return [
            f"{role}: {self._asked[role].metric} could decide nothing in {self._measured} evaluation(s): {reasons[-1]}"
            for role, reasons in self._undecided.items()
            if reasons and len(reasons) == self._measured
        ]
