"""All triggers of a training: which of them asks for an evaluation, the cooldown of forced ones, and those that fail."""

from collections.abc import Sequence, Set
from typing import Any

from evalkit.checks import function, has, instance, several, shown, whole
from evalkit.errors import InputError
from evalkit.training.triggers import AtEnd, StepEvent, Trigger

_READS = frozenset({"loss", "loss_scale", "overflow"})


class TriggerPanel:
    """Shows each step to every trigger.

    Attributes:
        triggers: in the user's order.
        reads: what they look at.
        suppressed: forced evaluations that the cooldown held back since the last evaluation.
    """

    def __init__(self, triggers: Sequence[Trigger], cooldown: int) -> None:
        """Take the triggers.

        Args:
            triggers: at least one.
            cooldown: steps after a forced evaluation in which no other is forced.

        Raises:
            InputError: something isn't a trigger, or the cooldown no number of steps.
        """
        found = several("triggers", triggers, "triggers")
        if not found:
            raise InputError(
                "triggers: there is none, so nothing would be measured; leave it out for the default"
            )
        for place, trigger in enumerate(found):
            _check(f"triggers: {place}", trigger)
        self.triggers: tuple[Trigger, ...] = found
        self.reads = frozenset[str]().union(*(trigger.reads for trigger in found))
        self._cooldown = whole("cooldown", cooldown, least=0)
        self.begin()

    @property
    def at_end(self) -> bool:
        """Whether an evaluation is wanted after the last step."""
        return any(isinstance(trigger, AtEnd) for trigger in self.triggers)

    def begin(self) -> list[tuple[str, str]]:
        """A new training begins: every trigger is as on its first day. Returns those that failed, see `ask`."""
        self._failed: set[int] = set()
        self._forced_at: int | None = None
        self.suppressed = 0
        failures = []
        for place, trigger in enumerate(self.triggers):
            begin = getattr(trigger, "begin", None)
            try:
                if callable(begin):
                    begin()
            except Exception as error:  # a trigger may be the user's code
                failures.append(self._failure(place, error))
        return failures

    def start(self, event: StepEvent) -> list[tuple[str, str]]:
        """Show the loss scale before the first step, to those that look at it: a drop in that step shows only against it.

        Returns those that failed, see `ask`.
        """
        failures = []
        for place, trigger in enumerate(self.triggers):
            if "loss_scale" in trigger.reads and place not in self._failed:
                try:
                    trigger.see(event)
                except Exception as error:  # a trigger may be the user's code
                    failures.append(self._failure(place, error))
        return failures

    def ask(self, event: StepEvent) -> tuple[tuple[str, str] | None, list[tuple[str, str]]]:
        """Show a step to every trigger. Trouble goes before schedules.

        Returns:
            Name and reason of the trigger that asks for an evaluation, or None; and of each trigger that failed its
            name and the error. Such a one isn't asked again in this training.
        """
        planned: tuple[str, str] | None = None
        forced: tuple[str, str] | None = None
        failures = []
        for place, trigger in enumerate(self.triggers):
            if place in self._failed:
                continue
            try:
                reason = trigger.see(event)
                if reason is None:
                    continue
                instance("see", reason, str, "a reason, which is a text, or None")
            except Exception as error:  # a trigger may be the user's code
                failures.append(self._failure(place, error))
                continue
            if not trigger.forced:
                planned = planned or (trigger.name, reason)
            elif self._forced_at is not None and event.step - self._forced_at <= self._cooldown:
                self.suppressed += 1
            else:
                forced = forced or (trigger.name, reason)
        if forced is not None:
            self._forced_at = event.step
        return forced or planned, failures

    def _failure(self, place: int, error: Exception) -> tuple[str, str]:
        self._failed.add(place)
        name = self.triggers[place].name
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return name, f"trigger {name}: {reason:.300}; it isn't asked again"


def _check(place: str, trigger: Any) -> None:
    has(place, trigger, ("name", "forced", "reads", "see"), "a trigger")
    instance(f"{place}: name", trigger.name, str, "a text")
    instance(f"{place}: forced", trigger.forced, bool, "True or False")
    function(f"{place}: see", trigger.see, "a method that takes a step's event", inputs=1)
    if (begin := getattr(trigger, "begin", None)) is not None:
        function(f"{place}: begin", begin, "a method without arguments", inputs=0)
    if not isinstance(trigger.reads, Set) or not trigger.reads <= _READS:
        raise InputError(
            f"{place}: reads: a set of {', '.join(sorted(_READS))} is needed (got {shown(trigger.reads)})"
        )
