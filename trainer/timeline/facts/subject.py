"""A subject (the run, a rank, a stage, a link, ...) and the facts measured about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer.timeline.rulebook import Scope


@dataclass(frozen=True)
class Fact:
    """A measured value; None where the trace doesn't have it."""

    value: float | None
    unit: str = ""
    where: str = ""


@dataclass(frozen=True)
class Subject:
    """What facts are about."""

    scope: Scope
    name: str
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """A fact's value; None where nobody measured it."""
        fact = self.facts.get(name)
        return fact.value if fact is not None else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """part / whole; None where either is unknown or the whole is nothing."""
    if part is None or whole is None or whole <= 0:
        return None
    return part / whole


def share(part: float | None, whole: float | None, where: str = "") -> Fact:
    """A share as a fact."""
    return Fact(ratio(part, whole), "share", where)


def ms(ns: float | None, where: str = "") -> Fact:
    """A duration as a fact in ms."""
    return Fact(None if ns is None else ns / 1e6, "ms", where)
