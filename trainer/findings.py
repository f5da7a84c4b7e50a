"""A finding of the diagnosing tools: what was found, by which numbers, what else could explain it, what to do next."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

Value = float | int | str | None


@dataclass(frozen=True)
class Evidence:
    """One number (or text) that a finding rests on.

    `value` None means that it couldn't be measured; `where` is a rank, a step, a file:line or a field path.
    """

    name: str
    value: Value
    unit: str = ""
    where: str = ""

    def to_json(self) -> dict[str, Value]:
        """Fields that are empty are left out; an unknown value stays, as null."""
        fields: dict[str, Value] = {"name": self.name, "value": self.value}
        if self.unit:
            fields["unit"] = self.unit
        if self.where:
            fields["where"] = self.where
        return fields


@dataclass(frozen=True)
class Rival:
    """Another explanation: the rule that would state it, and what the numbers say about it."""

    rule: str
    because: str

    def to_json(self) -> dict[str, Value]:
        """The two fields."""
        return {"rule": self.rule, "because": self.because}


@dataclass(frozen=True)
class Finding:
    """What a rule found.

    `summary` is one sentence for people; `action` says what to do next.
    """

    rule: str
    severity: Severity
    summary: str
    evidence: tuple[Evidence, ...]
    rivals: tuple[Rival, ...]
    action: str

    def to_json(self) -> dict[str, Any]:
        """The finding as the command-line contract wants it."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "summary": self.summary,
            "evidence": [item.to_json() for item in self.evidence],
            "rivals": [rival.to_json() for rival in self.rivals],
            "action": self.action,
        }

    def value(self, name: str) -> Value:
        """The value of the first evidence of that name.

        Raises:
            KeyError: the finding carries no such evidence.
        """
        for item in self.evidence:
            if item.name == name:
                return item.value
        raise KeyError(name)


def report(
    findings: Iterable[Finding],
    *,
    missing_ranks: Iterable[int] = (),
    quarantine: Iterable[Mapping[str, Any]] = (),
    skew: Mapping[str, Any] | None = None,
    **further: Any,
) -> dict[str, Any]:
    """The JSON object that every diagnosing command prints with `--json`."""
    return {
        "findings": [finding.to_json() for finding in findings],
        "missing_ranks": list(missing_ranks),
        "quarantine": [dict(row) for row in quarantine],
        "skew": dict(skew) if skew is not None else None,
        **further,
    }
