"""What a rule demands, on one axis: a value, a threshold, and the side on which it is good."""

from dataclasses import dataclass
from typing import Literal

from evalkit.metrics.result import Direction
from evalkit.scenario.schema import Rule
from evalkit.yaml_source import FieldPath

Kind = Literal["absolute", "change", "within"]


@dataclass(frozen=True)
class Condition:
    """The demand of one rule.

    Attributes:
        kind: absolute (min, max), change (against the baseline) or within (share within a latency budget).
        name: min, max, max_relative_increase, ..., within_ms.
        direction: the good side of the threshold: "lower" means that the value may not lie above it.
        threshold: on the axis of the judged value; for an allowed decrease of 0.02 it is -0.02.
        relative: whether the judged change is relative to the baseline.
    """

    kind: Kind
    name: str
    direction: Direction
    threshold: float
    relative: bool = False

    @classmethod
    def of(cls, rule: Rule) -> "Condition":
        """The condition of a rule."""
        if rule.min is not None:
            return cls("absolute", "min", "higher", rule.min)
        if rule.max is not None:
            return cls("absolute", "max", "lower", rule.max)
        if rule.change is not None:
            ((name, allowed),) = rule.change.model_dump(exclude_none=True).items()
            falls = name.endswith("decrease")
            return cls(
                kind="change",
                name=name,
                direction="higher" if falls else "lower",
                threshold=-allowed if falls else allowed,
                relative="relative" in name,
            )
        # The schema lets a rule without another condition through only with within_ms and share.
        assert rule.share is not None
        return cls("within", "within_ms", "higher", rule.share)

    @property
    def field(self) -> FieldPath:
        """Where the threshold stands in the rule."""
        if self.kind == "change":
            return ("change", self.name)
        return ("share",) if self.kind == "within" else (self.name,)

    def clears(self, value: float) -> bool:
        """Whether `value` is on the good side or exactly at the threshold; never true for NaN."""
        return value <= self.threshold if self.direction == "lower" else value >= self.threshold

    def violates(self, value: float) -> bool:
        """Whether `value` is strictly beyond the threshold; never true for NaN."""
        return value > self.threshold if self.direction == "lower" else value < self.threshold
