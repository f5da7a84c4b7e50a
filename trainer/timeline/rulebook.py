"""The rules file, read strictly once."""

from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from evalkit.yaml_source import load_yaml
from trainer.findings import Severity

Scope = Literal["run", "rank", "stage", "link", "link_total", "transport", "operators"]
_PATH = Path(__file__).parent / "rules.yaml"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Condition(_Strict):
    """One comparison of a fact with a threshold."""

    fact: str
    above: float | None = None
    below: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _one_comparison(self) -> "Condition":
        given = [self.above, self.below, self.at_least, self.at_most]
        if sum(value is not None for value in given) != 1:
            raise ValueError("exactly one of above, below, at_least, at_most")
        return self

    def holds(self, value: float) -> bool:
        """Whether a measured value meets the condition."""
        if self.above is not None:
            return value > self.above
        if self.below is not None:
            return value < self.below
        if self.at_least is not None:
            return value >= self.at_least
        assert self.at_most is not None
        return value <= self.at_most

    def text(self) -> str:
        """The condition in words."""
        for words, value in (
            ("above", self.above),
            ("below", self.below),
            ("at least", self.at_least),
            ("at most", self.at_most),
        ):
            if value is not None:
                return f"{self.fact} {words} {value:g}"
        raise AssertionError


class RivalRule(_Strict):
    """Another explanation that a finding names."""

    rule: str
    text: str


class Rule(_Strict):
    """One verdict: what must hold, what it says, what else it could be, what to do, and who says so."""

    rule: str
    scope: Scope
    severity: Severity
    when: tuple[Condition, ...]
    unless: tuple[str, ...] = ()
    summary: str
    facts: tuple[str, ...]
    rivals: tuple[RivalRule, ...]
    action: str
    source: str


class KernelBound(_Strict):
    """From which ratios on a kernel is bound by the matrix (or vector) unit, or by memory."""

    mac: float
    bandwidth: float


class Rulebook(_Strict):
    """All rules in their order, and the thresholds that facts need."""

    rules: tuple[Rule, ...]
    kernel_bounds: dict[Literal["cube", "vector"], KernelBound]
    small_packet_mb: dict[str, float]
    large_softmax_axis: int

    @model_validator(mode="after")
    def _names_exist(self) -> "Rulebook":
        names = [rule.rule for rule in self.rules]
        if len(set(names)) != len(names):
            raise ValueError("a rule stands twice")
        for at, rule in enumerate(self.rules):
            unknown = {rival.rule for rival in rule.rivals} | set(rule.unless)
            if unknown - set(names):
                raise ValueError(f"{rule.rule} names {sorted(unknown - set(names))}, which aren't rules")
            if set(rule.unless) - set(names[:at]):
                raise ValueError(f"{rule.rule}: `unless` must name earlier rules")
        return self


@lru_cache(maxsize=1)
def rulebook() -> Rulebook:
    """The rules of this package."""
    return load_yaml(_PATH, Rulebook)
